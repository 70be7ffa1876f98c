//! The gradebook's pages and store, by what comes over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agreement;
mod batches;
mod comments;
mod deletions;
mod exports;
#[path = "../common/models.rs"]
mod models;
mod pages;
mod people;
mod privacy;
mod rubrics;
mod runs;
mod scores;
mod site;
mod stores;
mod upload;
