//! `tandem bench`: what a handoff costs on this machine and what a server gives under load, measured.
//!
//! - `serve`: a load on any server, alone or in turns with a second one;
//! - `handoff`: goodput of the whole path between two processes, with the `receiver` in the other;
//! - `overlap`: how much of a handoff hides behind the prefill, on a `link` of some speed;
//! - `turn`: the next turn of a conversation, wherever it is prefilled;
//! - `parity`: how well two models fit together;
//! - `together`: two models on one machine;
//! - `slices`: how long an engine is busy with a slice of KV;
//! - `nodes`: the nodes of `overlap`, `turn` and `parity`, and `ask` what they are asked;
//! - `control`: calls of a node's control API;
//! - `engine`, `rows`: an engine that only takes KV in, and rows to give it;
//! - `copy`: copies without tandem, to compare with;
//! - `cores`: which ones each process runs on;
//! - `usage`: CPU time and memory of a process;
//! - `figures`: medians, and the machine that they are of.

mod ask;
mod control;
mod copy;
mod cores;
mod engine;
mod figures;
mod handoff;
mod link;
mod nodes;
mod overlap;
mod parity;
mod receiver;
mod rows;
mod serve;
mod slices;
mod together;
mod turn;
mod usage;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Name of the model at both nodes.
const MODEL: &str = "bench";
/// Tokens per chunk, computed at once, unless a place says otherwise.
const CHUNK: u32 = 512;
/// The trained model of a checkout that analyses code.
const DEFAULT_MODEL: &str = "models/nano-coder.gguf";
/// And the one that writes feedback.
const DEFAULT_WRITER: &str = "models/nano-writer.gguf";

/// Arguments of `tandem bench`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// A load on a server with an OpenAI-compatible API, tandem's or another: requests and tokens per second, times to
    /// first token and between tokens, and what it had in its cache; in turns with a second server.
    Serve(serve::Arguments),
    /// Goodput from planes in the sender's memory to planes applied at the receiver: two processes on
    /// loopback, each codec with and without TLS, next to a plain TCP copy and memcpy.
    Handoff(handoff::Arguments),
    /// Time to first token on links of several speeds: local, remote without overlap, remote with it.
    /// Two network namespaces with a shaped link between them, where that is permitted.
    Overlap(overlap::Arguments),
    /// The next turn of a conversation: on the nodes that had the one before, and on another prefill node.
    Turn(turn::Arguments),
    /// How well two model files fit together, such as two quantisations, with each codec: both ends'
    /// distributions after each prompt, and the answers, compared with those of the decode node alone.
    Parity(parity::Arguments),
    /// How long an engine is busy with a slice of KV that comes in or goes out, which running generations wait for.
    Slices(slices::Arguments),
    /// Two models on one machine: each alone, both at once in one node, and in a node each.
    Together(together::Arguments),
    /// Makes the requests of `overlap`.
    #[command(hide = true)]
    OverlapDriver(overlap::driver::Arguments),
    /// The other process of `handoff`.
    #[command(hide = true)]
    Receiver(receiver::Arguments),
}

/// Runs a measurement.
///
/// # Errors
/// If something that is measured fails, or is not what was sent.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.bench {
        Bench::Serve(arguments) => serve::main(arguments).await,
        Bench::Handoff(arguments) => handoff::main(arguments).await,
        Bench::Overlap(arguments) => overlap::main(arguments).await,
        Bench::Turn(arguments) => turn::main(arguments).await,
        Bench::Parity(arguments) => parity::main(arguments).await,
        Bench::Together(arguments) => together::main(arguments).await,
        Bench::Slices(arguments) => slices::main(arguments).await,
        Bench::OverlapDriver(arguments) => overlap::driver::main(arguments).await,
        Bench::Receiver(arguments) => receiver::main(arguments).await,
    }
}
