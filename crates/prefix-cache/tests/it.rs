//! Rows come back bit for bit or not at all, within the limits of the store.
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
    mod disk;
    mod disk_full;
    mod engine;
    mod memory;
    mod model;
    mod rig;
    mod snapshots;
    mod threads;
}
