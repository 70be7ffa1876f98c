//! Development tasks: `cargo xtask fixtures`, `cargo xtask tidy`, `cargo xtask check`.

mod check;
mod codecs;
mod corpus;
mod fixtures;
mod fuzz;
mod limits;
mod sample;
mod sampling;
mod schemas;
mod templates;
mod tidy;

use std::path::Path;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of tandem.")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes a small model with random weights for every supported architecture.
    Fixtures(fixtures::FixturesArguments),
    /// Writes training data of the nano models.
    Corpus(corpus::CorpusArguments),
    /// Measures the nano models on submissions to tasks that they were not trained on.
    NanoEval(tandem_evaluation::Arguments),
    /// Measures the codecs of the handoff on KV of trained models.
    Codecs(codecs::CodecsArguments),
    /// Feeds edited handoffs to everything that reads bytes of a peer.
    Fuzz(fuzz::FuzzArguments),
    /// Writes the sample course of the gradebook, from the results of a run of it.
    Sample(sample::Arguments),
    /// Compiles and follows JSON schemas that mean harm.
    Schemas(schemas::SchemasArguments),
    /// Measures how long choosing a token takes.
    Sampling(sampling::SamplingArguments),
    /// Compares how chat templates are rendered with Jinja2.
    Templates(templates::TemplatesArguments),
    /// Writes `docs/limits.md`.
    Limits,
    /// Checks what no compiler checks: arrows between crates, pure crates, where `unsafe` may stand.
    Tidy,
    /// Runs every check that is not a test: format, clippy, tidy, documentation, dependencies.
    Check,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Fixtures(arguments) => fixtures::write(&arguments),
        Task::Corpus(arguments) => corpus::write(&arguments),
        Task::NanoEval(arguments) => tandem_evaluation::run(&arguments),
        Task::Codecs(arguments) => codecs::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(root(), &arguments),
        Task::Sampling(arguments) => sampling::measure(&arguments),
        Task::Sample(arguments) => sample::main(root(), &arguments),
        Task::Schemas(arguments) => schemas::run(root(), &arguments),
        Task::Templates(arguments) => templates::run(&arguments),
        Task::Limits => limits::run(root(), false),
        Task::Tidy => tidy::run(root()),
        Task::Check => check::run(root()),
    }
}

/// The root of the checkout that this program was built from.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}
