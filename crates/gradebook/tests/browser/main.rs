//! The pages in a real browser: Debian's Chromium, driven by its own driver.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod agreement;
mod exports;
mod harness;
mod hostile;
mod lists;
mod live;
#[path = "../common/models.rs"]
mod models;
mod names;
mod pictures;
mod review;
mod saves;
mod speed;
