//! The binary as users run it: real processes, real sockets, the real engine on fixture models. Only `chaos` has a cluster in its own
//! process, with engines without models.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

mod bench;
mod canvas;
#[cfg(target_os = "linux")]
mod chaos;
mod cli;
mod client;
mod cluster;
mod daemon;
mod demo;
#[cfg(unix)]
mod drain;
mod grade;
mod gradebook;
mod hostile;
mod one_process;
mod openai_client;
mod other_caches;
mod paced;
mod pins;
mod plan;
mod probe;
mod processes;
mod servers;
mod tiny_http;
