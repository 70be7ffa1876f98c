//! Named limits of the coordinator.

use std::time::Duration;

/// Nodes in a configuration.
pub const MAX_NODES: usize = 256;
/// Models in a configuration.
pub const MAX_MODELS: usize = 256;
/// Longest name of a node or model, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Servers in a configuration.
pub const MAX_SERVERS: usize = 64;
/// Most that the configuration may say of a server: requests at once,
pub const MAX_PARALLEL: u64 = 256;
/// tokens of its context,
pub const MAX_SERVER_CONTEXT: u64 = 1 << 24;
/// and seconds of silence.
pub const MAX_SERVER_SILENCE_S: u64 = 24 * 3600;
/// Longest answer of a server, in bytes.
pub const MAX_SERVER_ANSWER_BYTES: usize = 64 << 20;
/// Longest part of it, in bytes.
pub const MAX_SERVER_EVENT_BYTES: usize = 8 << 20;
/// How long a server is taken not to bind answers to a shape after one that had another.
pub const DISBELIEF: Duration = Duration::from_secs(600);
/// How often a server is asked again because its answer had another shape than was asked for.
pub const MAX_CORRECTIONS: usize = 2;
/// Fewest tokens of a context: who says that it read fewer of a long prompt counts the new ones alone.
pub const LEAST_CONTEXT: usize = 256;
/// Shapes of which is known whether a server binds answers to them.
pub const MAX_KNOWN_SHAPES: usize = 1024;
/// Blocks of prompts of which is known that a server has read them.
pub const MAX_KNOWN_BLOCKS: usize = 1 << 16;
/// Requests that are open at once, waiting or running.
pub const MAX_REQUESTS: usize = 4096;
/// Connections of clients at once: more than requests, so that a request too many is told so.
pub const MAX_CONNECTIONS: usize = MAX_REQUESTS + 1024;
/// Messages that may wait for the scheduler, beside the one that each open request has reserved.
pub const MAX_MESSAGES: usize = 64;
/// Decisions about one request that may wait for it; it takes each before it asks for the next.
pub const MAX_DECISIONS: usize = 4;
/// Pieces of an answer that may wait for the client; beyond that its nodes are not read.
pub const MAX_PIECES: usize = 64;
/// Bytes of a request body beyond the allowed ones that are read and dropped, so that the client
/// has sent it all and sees the refusal.
pub const MAX_DROPPED_BYTES: usize = 64 << 20;
/// Bytes of the request bodies that are being read, of all clients together. A body that does not fit is refused, so that
/// clients who send slowly cannot fill the memory.
pub const MAX_BODIES_BYTES: usize = 256 << 20;
/// Tokens of answers that are remembered, so that they are the same tokens in the next turn.
pub const MAX_ANSWER_TOKENS: usize = 4 << 20;
/// What the place of one of these answers takes, in tokens of four bytes.
pub const ANSWER_OVERHEAD: usize = 32;
/// Such tokens in one request, which has to fit a node's limit.
pub const MAX_RECALLED_TOKENS: usize = 1 << 20;
/// Longest refusal of a node, in bytes.
pub const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Nodes that one request may have killed; it gets no further one.
pub const MAX_LOST_NODES: usize = 2;
/// Requests that are refused because nodes died of them before they had opened them.
pub const MAX_POISONS: usize = 1024;
/// How long such a request is refused.
pub const POISON: Duration = Duration::from_secs(600);
/// Longest answer of a node to a question for the tokens of a prompt, in bytes.
pub const MAX_TOKENIZED_BYTES: usize = 16 << 20;
/// Longest status of a node, in bytes.
pub const MAX_STATUS_BYTES: usize = 8 << 20;

/// Between two looks whether a coordinator that drains has open requests.
pub const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// When a client is to send a request again that came while all were busy, in seconds.
pub const RETRY_BUSY_S: u64 = 1;
/// The same where no node can serve it now, or the coordinator is stopping.
pub const RETRY_UNAVAILABLE_S: u64 = 5;

/// How long a connection to a node that is not used is kept for the next call. The node would close it
/// later, so that it is not used in the moment in which it is closed.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(15);
const _: () = assert!(IDLE_CONNECTION.as_secs() < tandem_proto::limits::HEAD.as_secs());

/// Waits, as durations that tests may shorten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest wait for a connection to a node, and for its whole status.
    pub connect: Duration,
    /// Longest silence of a node: before its answer begins and between two lines of it.
    pub silence: Duration,
    /// Between two questions for a node's status.
    pub poll: Duration,
    /// Statuses in a row that a node may miss before it counts as down.
    pub missed_polls: u32,
    /// Between two questions for what a server has.
    pub server_poll: Duration,
    /// How long after its last status a node is waited for by requests that only it can serve.
    pub may_return: Duration,
    /// Between two signs of life to a client that waits for a streamed answer. An error within the
    /// first such time is answered with its status, a later one as an event.
    pub keep_alive: Duration,
    /// How long a complete answer waits for the prefill node's account of its times.
    pub prefill_report: Duration,
    /// How long a client may leave a piece of its streamed answer unread.
    pub client_stall: Duration,
    /// How long a client's connection may be silent: before its first request, inside the head of one,
    /// and between two.
    pub head: Duration,
    /// Longest wait for the whole body of a request.
    pub body: Duration,
    /// How long open answers may go on when the coordinator is told to drain.
    pub drain: Duration,
    /// How long they may go on when it is told to stop, or behind that.
    pub shutdown: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: tandem_proto::limits::CONNECT,
            silence: tandem_proto::limits::SILENCE,
            poll: Duration::from_secs(1),
            missed_polls: 3,
            server_poll: Duration::from_secs(5),
            may_return: Duration::from_secs(10),
            keep_alive: Duration::from_secs(3),
            prefill_report: Duration::from_secs(2),
            client_stall: Duration::from_secs(30),
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            drain: Duration::from_secs(60),
            shutdown: Duration::from_secs(2),
        }
    }
}
