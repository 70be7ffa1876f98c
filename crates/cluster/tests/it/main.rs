//! Certificates, handshakes, invitations: real sockets, real files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod directory;
mod handshakes;
mod joining;
mod pair;
mod plaintext;
mod records;
mod serve;
mod stranger;
mod tokens;
