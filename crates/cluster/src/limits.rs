//! Named limits of identities and connections.

use std::time::Duration;

/// Handshakes that may be going on at one listener. When one more peer connects, the oldest gives
/// way: a handshake takes milliseconds, so the oldest is of a peer that says nothing.
pub const MAX_HANDSHAKES: usize = 256;
/// How long the same trouble with the same machine is not logged again.
pub const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Troubles that are logged within [`SAY_AGAIN`]; others are counted.
pub const MAX_SAID: usize = 64;
/// Connections that have shaken hands and wait to be taken.
pub const MAX_LINKS_WAITING: usize = 64;
/// Pause after a connection that could not be taken, such as for want of file descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Bytes that a server of HTTP buffers for a connection in each direction, and the longest head of a
/// request.
pub const HTTP_BUFFER: usize = 64 << 10;

/// Bytes that a TLS connection encrypts before the socket is given them, unless it is flushed: fewer mean
/// more calls of the system.
pub const MAX_UNSENT_BYTES: usize = 1 << 20;
/// Bytes that are read from the socket of a TLS connection at once, and the longest message of a
/// handshake, until a read has filled the buffer.
pub const FIRST_READ_BUFFER: usize = 64 << 10;
/// The same after that: a connection that carries much.
pub const READ_BUFFER: usize = 1 << 20;

/// How long a certificate of a machine is valid.
pub const NODE_VALIDITY: Duration = Duration::from_secs(5 * YEAR);
/// How long the certificate of an authority is valid; no certificate outlives it.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(20 * YEAR);
/// How long the certificate is valid with which an authority answers those that join. Longer than
/// any invitation, and forgotten with it.
pub const JOIN_VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Certificates are valid from this long before they are made, for machines whose clocks are behind.
pub const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);
const YEAR: u64 = 365 * 24 * 3600;

/// Largest file with a key or certificate, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 10;

/// Longest token, in characters.
pub const MAX_TOKEN_CHARS: usize = 512;
/// Longest address in a token, in bytes.
pub const MAX_ADDRESS_BYTES: usize = 255;
/// Largest message of a join, in bytes.
pub const MAX_JOIN_BYTES: u32 = 16 << 10;
/// Longest wait for a whole join: connection, handshake and both messages.
pub const JOIN: Duration = Duration::from_secs(10);
/// Wrong secrets that end an invitation.
pub const MAX_WRONG_SECRETS: u32 = 5;
/// Longest time for which an invitation may wait.
pub const MAX_INVITATION: Duration = Duration::from_secs(24 * 3600);
