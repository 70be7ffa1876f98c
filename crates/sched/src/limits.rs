//! Named limits of the scheduler.

/// Requests that may wait for one model. One that starts over after a failure is not counted.
pub const MAX_QUEUED: usize = 256;
/// Decode nodes that one request may be started on because the one before failed.
pub const MAX_ATTEMPTS: usize = 3;
/// How often a request is put back into the queue because a node said that it is busy. A busy
/// node is asked again after its next status, so this is a wait of about as many seconds.
pub const MAX_BUSY_RETRIES: u32 = 600;
