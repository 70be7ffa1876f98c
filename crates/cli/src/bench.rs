//! `tandem bench`: what a handoff costs on this machine, measured, with nothing taken from elsewhere.
//!
//! - [`handoff`]: goodput of the whole path between two processes, with the [`receiver`] in the other;
//! - [`control`]: calls of a node's control API;
//! - [`engine`], [`rows`]: an engine that only takes KV in, and rows to give it;
//! - [`copy`]: copies without tandem, to compare with;
//! - [`usage`]: CPU time and memory of a process;
//! - [`figures`]: medians, and the machine that they are of.

mod control;
mod copy;
mod engine;
mod figures;
mod handoff;
mod receiver;
mod rows;
mod usage;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Arguments of `tandem bench`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Goodput from planes in the sender's memory to planes applied at the receiver: two processes on
    /// loopback, each codec with and without TLS, next to a plain TCP copy and memcpy.
    Handoff(handoff::Arguments),
    /// The other process of `handoff`.
    #[command(hide = true)]
    Receiver(receiver::Arguments),
}

/// Runs a measurement.
///
/// # Errors
/// If something that is measured fails, or is not what was sent.
pub fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.bench {
        Bench::Handoff(arguments) => crate::on_runtime(handoff::main(arguments)),
        Bench::Receiver(arguments) => crate::on_runtime(receiver::main(arguments)),
    }
}
