//! The gradebook's pages and store, by what comes over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pages;
mod site;
mod stores;
