//! The store of KV pages: rows come back bit for bit or not at all, within its limits.

mod disk;
mod disk_full;
mod engine;
mod memory;
mod model;
pub mod rig;
mod snapshots;
mod threads;
