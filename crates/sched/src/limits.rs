//! Named limits of the scheduler.

use core::num::NonZeroUsize;

/// Bytes of a prompt that one digest of its beginning stands for: about 128 tokens of text.
pub const PREFIX_BLOCK: usize = 512;
/// Digests of one prompt; what follows does not matter for where it goes.
pub const MAX_PREFIX_BLOCKS: usize = 2048;
/// Digests of earlier prompts that are remembered.
pub const MAX_PREFIXES: NonZeroUsize = NonZeroUsize::new(1 << 17).unwrap();
/// Blocks of its prompt that a node must have seen for a request to go there rather than to one on which one request
/// less runs: 8 KiB, about 2000 tokens.
pub const BLOCKS_PER_REQUEST: usize = 16;
/// Requests that count for as much at most, however much of a prompt a node has seen: else all that share a beginning
/// would go to the first node that had it, and others would have nothing to do.
pub const MAX_SEEN_REQUESTS: usize = 2;
/// A decode node that lacks this many times less of a prompt than the prefill node computes it itself. A DGX Spark
/// prefills 8,192 tokens of Llama 3.1 8B in 1.47 s, a Mac Studio with an M3 Ultra in 5.57 s (EXO Labs,
/// <https://blog.exolabs.net/nvidia-dgx-spark/>).
pub const PREFILL_ADVANTAGE: usize = 4;

/// Requests that may wait for one model. One that starts over after a failure is not counted.
pub const MAX_QUEUED: usize = 256;
/// Decode nodes that one request may be started on because the one before failed.
pub const MAX_ATTEMPTS: usize = 3;
/// How often a request waits for the next status of a node that it did not reach, before that node counts as failed.
pub const MAX_UNREACHED: u32 = 3;
/// How often a request is put back into the queue because a node said that it is busy. A busy
/// node is asked again after its next status, so this is a wait of about as many seconds.
pub const MAX_BUSY_RETRIES: u32 = 600;

/// Answers without a good end that count against a server.
pub const MAX_MISSES: u32 = 4;
