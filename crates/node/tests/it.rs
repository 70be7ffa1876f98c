//! Integration tests: real sockets, fake engines.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod it {
    mod cancel;
    mod cluster;
    mod faults;
    mod handoff;
    mod hostile;
    mod pages;
    mod refusals;
    mod security;
}
