//! The coordinator over real sockets, between a client and scripted nodes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod config;
mod disconnects;
mod endings;
mod errors;
mod failures;
mod fake;
mod fake_server;
mod legs;
mod overview;
mod pairs;
mod requests;
mod rig;
mod security;
mod servers;
mod web;
