//! Named limits. Every length that a peer sends is checked against one of these
//! before anything is allocated from it.

/// Largest payload of a control frame (hello, refuse, ...), in bytes.
pub const MAX_CONTROL_PAYLOAD: u32 = 1 << 20;
/// Largest payload of a segment, in bytes on the wire and after decoding.
pub const MAX_SEGMENT_PAYLOAD: u32 = 8 << 20;
/// The sender cuts chunks into segments of about this many bytes.
pub const TARGET_SEGMENT_BYTES: u32 = 2 << 20;
/// The sender cuts no larger segment, before encoding: a codec may add to it.
pub const LARGEST_SEGMENT: u64 = MAX_SEGMENT_PAYLOAD as u64 / 2;
/// The sender cuts no smaller segment where a block has more, but for what no other layer fits with.
pub const SMALLEST_SEGMENT: u64 = 512 << 10;
/// About so many segments leave a block that is being computed, each as soon as its layers are there.
pub const STREAMED_SEGMENTS: u64 = 8;
/// Largest number of layers of a model.
pub const MAX_LAYERS: usize = 1024;
/// Largest number of KV heads of a layer.
pub const MAX_KV_HEADS: u32 = 1024;
/// Largest size of one head, in elements.
pub const MAX_HEAD_DIM: u32 = 1024;
/// Largest number of tokens of one sequence.
pub const MAX_TOKENS: u32 = 1 << 22;
/// Largest number of tokens in one chunk (the unit of prefill), and in one block (that of acknowledgement).
pub const MAX_CHUNK_TOKENS: u32 = 1 << 14;
/// Largest number of bytes of a window: its blocks are joined in memory, because an engine takes it as
/// a whole.
pub const MAX_WINDOW_BYTES: u64 = 1 << 30;
/// Largest number of bytes of one block.
pub const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// The sender cuts chunks into blocks of at most about this many bytes: what an engine applies at
/// once, and so how long others wait for it.
pub const TARGET_BLOCK_BYTES: u64 = 8 << 20;
/// Bytes that may be sent and not yet acknowledged: the credit that a receiver gives, at least.
pub const CREDIT_BYTES: u64 = 64 << 20;
/// The most of it, for a sender of large steps: the blocks of a step that is being computed are all open at once, and none
/// of them is whole before its last layer.
pub const MAX_CREDIT_BYTES: u64 = 1 << 30;
/// The sender opens no block that is whole already beyond so many of them: more would only wait in buffers.
pub const AHEAD_BYTES: u64 = 32 << 20;
/// Blocks that may be sent and not yet acknowledged, whatever their size.
pub const MAX_BLOCKS_IN_FLIGHT: usize = 256;
/// Sessions with which one handoff may go on: the one that the sender has named, and those of answers
/// that it may not have heard.
pub const MAX_SESSIONS: usize = 3;
/// Tokens after the prompt that a handoff may name (a conversation's answer that is handed back).
pub const MAX_CONTINUATION: usize = 1 << 16;
/// Likeliest tokens that a receipt names.
pub const RECEIPT_TOKENS: usize = 32;
/// Differences of contracts that a refusal names; further ones are left out.
pub const MAX_DIFFERENCES: usize = 32;
/// Longest string inside a contract or message, in bytes.
pub const MAX_STRING: usize = 4096;
