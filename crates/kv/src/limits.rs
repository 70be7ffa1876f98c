//! Named limits. Every length that a peer sends is checked against one of these
//! before anything is allocated from it.

/// Largest payload of a control frame (hello, refuse, ...), in bytes.
pub const MAX_CONTROL_PAYLOAD: u32 = 1 << 20;
/// Largest payload of a segment, in bytes on the wire and after decoding.
pub const MAX_SEGMENT_PAYLOAD: u32 = 8 << 20;
/// The sender cuts chunks into segments of about this many bytes.
pub const TARGET_SEGMENT_BYTES: u32 = 2 << 20;
/// Largest number of layers of a model.
pub const MAX_LAYERS: usize = 1024;
/// Largest number of KV heads of a layer.
pub const MAX_KV_HEADS: u32 = 1024;
/// Largest size of one head, in elements.
pub const MAX_HEAD_DIM: u32 = 1024;
/// Largest number of tokens of one sequence.
pub const MAX_TOKENS: u32 = 1 << 22;
/// Largest number of tokens in one chunk (the unit of prefill, apply and acknowledgement).
pub const MAX_CHUNK_TOKENS: u32 = 1 << 14;
/// Largest number of bytes that a receiver stages for one incomplete chunk.
pub const MAX_STAGED_BYTES: u64 = 1 << 30;
/// Chunks that may be applied but not yet acknowledged, or sent but not yet acknowledged.
pub const MAX_CHUNKS_IN_FLIGHT: u32 = 4;
/// Differences of contracts that a refusal names; further ones are left out.
pub const MAX_DIFFERENCES: usize = 32;
/// Longest string inside a contract or message, in bytes.
pub const MAX_STRING: usize = 4096;
