//! Integration tests: real sockets, fake engines.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

mod it {
    mod cancel;
    mod chaos;
    mod cluster;
    mod codecs;
    mod conversation;
    mod document;
    mod faults;
    mod fencing;
    mod handoff;
    mod hostile;
    mod kills;
    mod link;
    mod lossy;
    mod parity;
    mod peers;
    mod phases;
    mod proxy;
    mod raw;
    mod refusals;
    mod resume;
    mod reuse;
    mod rig;
    mod security;
    mod sharing;
    mod slices;
    mod streamed;
    mod wire;
}
