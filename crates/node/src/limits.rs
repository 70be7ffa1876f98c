//! Named limits of a node.

use std::time::Duration;

/// Commands that may wait for an engine thread.
pub const MAX_COMMANDS: usize = 1024;
/// Events of one request that may wait for the coordinator; beyond that its sequence pauses.
pub const MAX_EVENTS: usize = 256;
/// A request whose coordinator takes no event for this long is given up.
pub const EVENT_STALL: Duration = Duration::from_secs(60);
/// Chunks of a prefill that may wait to be sent; beyond that the prefill pauses.
pub const MAX_CHUNKS_WAITING: usize = 2;
/// Handoff connections at once.
pub const MAX_HANDOFF_CONNECTIONS: usize = 64;
/// An engine thread without work looks for closed requests this often.
pub const IDLE_TICK: Duration = Duration::from_millis(100);
/// Pause after a connection that could not be taken, such as for want of file descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Pause before a command is offered again to an engine thread whose queue is full.
pub const COMMAND_RETRY: Duration = Duration::from_millis(50);
/// Longest wait for the body of a control request.
pub const BODY: Duration = Duration::from_secs(30);
/// Longest answer to a failing peer before the connection is dropped.
pub const GOODBYE: Duration = Duration::from_secs(1);

/// Waits that tests may shorten.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest silence of a handoff connection, and longest wait for it to open.
    pub handoff_silence: Duration,
    /// Longest wait for a connection and for a hello or its answer.
    pub connect: Duration,
    /// Longest silence of an event stream.
    pub beat: Duration,
    /// Each end of a handoff shows this often that it is alive, also during a long chunk.
    pub handoff_beat: Duration,
    /// A node that shuts down waits this long for the step that an engine is computing, and this
    /// long again for its connections.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handoff_silence: tandem_proto::limits::HANDOFF_SILENCE,
            connect: tandem_proto::limits::CONNECT,
            beat: tandem_proto::limits::BEAT,
            handoff_beat: Duration::from_secs(5),
            stop: Duration::from_secs(10),
        }
    }
}
