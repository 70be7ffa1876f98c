//! Named limits of a node.

use std::time::Duration;

/// Commands that may wait for an engine thread.
pub const MAX_COMMANDS: usize = 1024;
/// Events of one request that may wait for the coordinator; beyond that its sequence pauses.
pub const MAX_EVENTS: usize = 256;
/// Chunks of a prefill that may wait to be sent; beyond that the prefill pauses.
pub const MAX_CHUNKS_WAITING: usize = 2;
/// Handoffs that are being received at once.
pub const MAX_HANDOFFS: usize = 64;
/// Connections to the control API at once; further ones wait until others have ended, as those that say nothing do.
pub const MAX_CONNECTIONS: usize = 4096;
/// Connections that have not said hello; beyond that the oldest of them is dropped.
pub const MAX_UNGREETED: usize = 128;
/// Permissions to hand an answer back that may be open.
pub const MAX_RETURNS: usize = 256;
/// Answers that are handed back at once; beyond that they stay where they are.
pub const MAX_HAND_BACKS: usize = 64;
/// Answers that are taken back at once, so that places for handoffs of requests are left.
pub const MAX_TAKEN_BACK: usize = MAX_HANDOFFS / 2;
/// An answer whose KV the other node does not take for this long is not handed back: it keeps its
/// place in the engine until then.
pub const HAND_BACK_STALL: Duration = Duration::from_secs(5);
/// Complete handoffs that can be confirmed again, because the sender may not have heard of it.
pub const MAX_CONFIRMED: usize = 256;
/// Memory for KV that is being received, over all handoffs, in units of [`STAGING_UNIT`]: for [`MAX_HANDOFFS`] without windows
/// and large steps. Large steps leave half of it, answers that are taken back a quarter.
pub const STAGING_UNITS: usize = 4608;
/// The unit in which memory for KV is given out.
pub const STAGING_UNIT: u64 = 1 << 20;
/// Blocks of a handoff of which pages are made at the same time where it is received.
pub const MAX_KEEPERS: usize = 4;
/// Steps that the connection of a handoff may have taken and its owner not looked at.
pub const MAX_STEPS_WAITING: usize = 16;
/// New connections of a handoff that may wait for its owner.
pub const MAX_ARRIVALS: usize = 8;
/// Bytes of KV that an engine takes in between two steps of running generations, and bytes that are copied out of
/// it, or of a window back: 3 to 9 ms of a processor's time (`docs/benchmarks.md`).
pub const SLICE_BYTES: u64 = 2 * tandem_handoff::limits::TARGET_BLOCK_BYTES;
/// Bytes per second below which a connection is of no use: what somebody sends a byte at a time would hold a
/// handoff up without being silent.
pub const MIN_LINK_RATE: u64 = 64 << 10;
/// Bytes that are read from a connection before they are summed; a plane that is larger is read at once.
pub const READ_BYTES: usize = 768 << 10;
/// Blocks that a sender gives to its writer before they are written.
pub const BLOCKS_AHEAD: usize = 2;
/// Time that a handoff goes on after all was computed before its link is taken for what held it up...
pub const EXPOSED_TIME: Duration = Duration::from_millis(100);
/// ... and which part of the whole transfer that must be.
pub const EXPOSED_SHARE: f64 = 0.1;
/// Handoffs in a row that are coded, after which one goes raw: the link may be faster than it was.
pub const RAW_AGAIN: u32 = 32;
/// Ways, each of a model's rows to a peer, that are remembered.
pub const MAX_LINKS: usize = 256;
/// Segments are written together until they are so many bytes, as long as there are more.
pub const WRITE_BYTES: u64 = 1 << 20;
/// Segments that are encoded before they are written.
pub const SEGMENTS_AHEAD: usize = 2;
/// How much later than it should a timer may have been on a played link without making that slower.
pub const TIMER_LATE: Duration = Duration::from_millis(5);
/// Broken connections after which a handoff is given up.
pub const MAX_RECONNECTS: u32 = 16;
/// Pause before the first attempt at a new connection; it doubles up to [`RECONNECT_GROWTH`] times this.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How much the pause grows.
pub const RECONNECT_GROWTH: u32 = 32;
/// Frames that the connection of a handoff has brought and its owner has not looked at.
pub const MAX_INCOMING_WAITING: usize = 8;
/// What the writer has done and the owner of the handoff has not looked at.
pub const MAX_WRITTEN_WAITING: usize = 64;
/// Control frames that wait for the writer: a commit, a receipt, beats and a goodbye.
pub const MAX_CONTROL_WAITING: usize = 8;
/// An engine thread without work looks for closed requests this often.
pub const IDLE_TICK: Duration = Duration::from_millis(100);
/// Prompts that are tokenised at once for those who only ask how long they are.
pub const MAX_TOKENIZING: usize = 4;
/// How long a further one waits for its turn.
pub const TOKENIZING_WAIT: Duration = Duration::from_secs(5);
/// How long a request waits at most for a sequence that is about to be free: as long as a coordinator would wait for the
/// next status of a busy node.
pub const ADMISSION_WAIT: Duration = Duration::from_secs(1);
/// How long a reproducible request waits for the end of all others on the node that decodes it. The node that prefills it
/// is waited for as long as its permission to send KV is good.
pub const ALONE_WAIT: Duration = Duration::from_secs(30 * 60);
/// How much later than on a quiet node a token of a running answer may come because a prompt is read beside it; half as much
/// again and again for each further request, and as long as [`MIN_CHUNK`] tokens take in any case.
pub const STALL: Duration = Duration::from_millis(50);
/// Tokens of prompts that are read beside running answers in any case.
pub const MIN_CHUNK: u32 = 16;
/// Tokens of a step of which a processor computes attention together; with fewer it takes each by itself, which takes up to
/// three times as long (`GGML_FA_TILE_Q` of ggml).
pub const TILE: u32 = 64;
/// One step in so many reads the oldest prompt first; the others that with the fewest tokens left.
pub const OLDEST_EVERY: u32 = 4;
/// Tokens that two prompts have in common from which on they share them.
pub const MIN_SHARED: u32 = 32;
/// Bytes of the windows that are kept where prompts part.
pub const WINDOW_BYTES: u64 = 512 << 20;
/// How many those are at most.
pub const MAX_WINDOWS: usize = 64;
/// Between two looks whether a node that drains is idle.
pub const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// Looks at an engine within [`Limits::engine_step`].
pub const HANG_LOOKS: u32 = 8;

/// Pause after a connection that could not be taken, such as for want of file descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Pause before a command is offered again to an engine thread whose queue is full.
pub const COMMAND_RETRY: Duration = Duration::from_millis(50);
/// Longest answer to a failing peer before the connection is dropped.
pub const GOODBYE: Duration = Duration::from_secs(1);

/// Waits that tests may shorten.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest silence of a handoff connection, and longest wait for it to open.
    pub handoff_silence: Duration,
    /// Longest wait for a connection and for a hello.
    pub connect: Duration,
    /// How long a connection to the control API may be silent.
    pub head: Duration,
    /// Longest wait for the body of a control request.
    pub body: Duration,
    /// Longest wait for pages from disk, a block at a time.
    pub page_read: Duration,
    /// How long a handoff whose connection broke waits for a new one.
    pub resume: Duration,
    /// How long an answer that is complete waits for the prefill node's receipt.
    pub receipt: Duration,
    /// How long the permission to hand an answer back is good for: longer than an answer takes.
    pub return_ticket: Duration,
    /// How long handing an answer back may take: a node that shows that it is alive and takes nothing
    /// would hold on to memory.
    pub hand_back: Duration,
    /// Longest silence of an event stream.
    pub beat: Duration,
    /// A request whose coordinator takes no event for this long is given up.
    pub event_stall: Duration,
    /// Each end of a handoff shows this often that it is alive, also during a long chunk.
    pub handoff_beat: Duration,
    /// Longest step of an engine: a chunk of a prefill on the slowest machine takes less. A node whose
    /// engine takes longer ends.
    pub engine_step: Duration,
    /// A node that shuts down waits this long for the step that an engine is computing, and this
    /// long again for its connections.
    pub stop: Duration,
    /// How long requests may go on when the node is told to drain.
    pub drain: Duration,
    /// Bytes of KV that leave this machine per second at most, for a node that plays a machine with a slower link.
    pub link_rate: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handoff_silence: tandem_proto::limits::HANDOFF_SILENCE,
            connect: tandem_proto::limits::CONNECT,
            head: tandem_proto::limits::HEAD,
            body: Duration::from_secs(30),
            page_read: Duration::from_secs(10),
            resume: Duration::from_secs(10),
            receipt: Duration::from_secs(1),
            return_ticket: Duration::from_secs(30 * 60),
            hand_back: Duration::from_secs(10 * 60),
            beat: tandem_proto::limits::BEAT,
            event_stall: Duration::from_secs(60),
            handoff_beat: Duration::from_secs(5),
            engine_step: Duration::from_secs(30 * 60),
            stop: Duration::from_secs(10),
            drain: Duration::from_secs(60),
            link_rate: None,
        }
    }
}
