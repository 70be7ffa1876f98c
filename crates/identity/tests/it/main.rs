//! Certificates, handshakes, invitations: real sockets, real files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod handshakes;
mod pair;
mod plaintext;
