//! Named limits of the control messages.

use std::time::Duration;

/// Longest silence of a stream of events while its node is alive: a beat is sent before that.
pub const BEAT: Duration = Duration::from_secs(2);
/// A stream that is silent for longer than this belongs to a node that is gone.
pub const SILENCE: Duration = Duration::from_secs(15);
/// How long a connection to a node may be silent: before its first request, inside the head of one, and
/// between two.
pub const HEAD: Duration = Duration::from_secs(30);
/// Longest wait for a connection to a node and for the first line of its answer.
pub const CONNECT: Duration = Duration::from_secs(5);
/// A decode node waits this long for a prefill node to connect, and for each further frame.
pub const HANDOFF_SILENCE: Duration = Duration::from_secs(20);
/// Largest body of a control request, in bytes.
pub const MAX_BODY_BYTES: usize = 32 << 20;
/// Largest line of an event stream, in bytes. The largest event lists a prompt's tokens.
pub const MAX_LINE_BYTES: usize = 64 << 20;
/// Largest number of tokens that a request may generate.
pub const MAX_GENERATED_TOKENS: u32 = 1 << 17;
/// Longest request id, in bytes; ids consist of letters, digits, `-` and `_`.
pub const MAX_REQUEST_ID: usize = 64;
