//! The `tandem` binary: reads arguments, configuration and environment, and wires the rest.
//!
//! One file per command ([`cluster`], [`node`], [`serve`], [`run`], [`grade`], [`course`], [`compare`], [`demo`]; measurements are in [`tandem_bench`]); [`setup`] is what they work
//! with: the configuration file ([`config`]), or models of this machine ([`sources`], [`local`]); [`environment`] the only reader of environment variables, [`coordinator`] a
//! coordinator inside this process, [`nodes`] what is wrong with the configured nodes, [`open_files`] what differs between systems.

mod address;
mod asking;
mod canvas;
mod cluster;
mod commands;
mod compare;
mod config;
mod context;
mod coordinator;
mod course;
mod demo;
mod doctor;
mod environment;
mod fetch;
mod files;
mod grade;
mod import;
mod links;
mod loading;
mod local;
mod node;
mod nodes;
mod numbers;
mod open_files;
mod output;
mod paced;
mod plan;
mod probe;
mod processes;
mod progress;
mod repin;
mod run;
mod security;
mod serve;
mod servers;
mod setup;
mod shutdown;
mod sources;
mod stability;
mod tables;
mod template;
mod version;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use environment::Environment;

/// Prefills prompts on one node and decodes them on another.
#[derive(Parser)]
#[command(
    name = "tandem",
    disable_version_flag = true,
    arg_required_else_help = true
)]
struct Arguments {
    /// Prints version, engine, CPU features and devices of this build.
    #[arg(short = 'V', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// A daemon: holds models, prefills, takes KV in, decodes.
    Node(node::Arguments),
    /// The coordinator: an OpenAI-compatible API in front of nodes, of servers that run already, or of models in this process.
    Serve(serve::Arguments),
    /// Which machines belong together: makes a cluster, invites, joins.
    Cluster(cluster::Arguments),
    /// Answers one prompt on the terminal and shows the timings; without a prompt, a chat.
    Run(run::Arguments),
    /// Grades submissions and writes the results into a folder.
    Grade(grade::Arguments),
    /// The gradebook's courses, also where there is no model.
    Course(course::Arguments),
    /// A course of Canvas by its API: fetches what students handed in, sends approved grades.
    Canvas(canvas::Arguments),
    /// Two models, two rubrics or two runs, side by side on the same submissions: what changes, for whom, how far they agree.
    Compare(compare::Arguments),
    /// Looks at each node and server: what it is, whether it does what it should, how fast it is; and says the fix.
    Doctor(doctor::Arguments),
    /// Makes a configuration of that of an earlier set-up: distributed_config.json, cluster_config.json, model_config.py.
    Import(import::Arguments),
    /// What machines would do together, of their profiles: one answer and a course, by each way; no node needs to run.
    Plan(plan::Arguments),
    /// Measures what this machine does with a model, and writes its profile for `tandem plan`; or the link to a node.
    Probe(probe::Arguments),
    /// Starts four nodes and a coordinator on this machine and grades the sample course.
    Demo(demo::Arguments),
    /// Measures what handoffs cost on this machine, and any server under load.
    Bench(tandem_bench::Arguments),
    /// Prints docs/commands.md.
    #[command(hide = true)]
    Commands,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let environment = Environment::read();
    match dispatch(arguments, &environment) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tandem: {}", output::explain(&error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    if arguments.version {
        output::print(&version::text())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(command) = arguments.command else {
        anyhow::bail!("name a command; `tandem --help` lists them");
    };
    environment.start_logging(match command {
        Command::Node(_) | Command::Serve(_) => "info",
        Command::Cluster(_) | Command::Bench(_) | Command::Commands => "warn",
        Command::Run(_)
        | Command::Grade(_)
        | Command::Course(_)
        | Command::Canvas(_)
        | Command::Compare(_)
        | Command::Doctor(_)
        | Command::Import(_)
        | Command::Plan(_)
        | Command::Probe(_)
        | Command::Demo(_) => "error",
    });
    open_files::raise_limit();
    match command {
        Command::Node(arguments) => node::main(arguments, environment),
        Command::Serve(arguments) => on_runtime(serve::main(arguments, environment)),
        Command::Cluster(arguments) => on_runtime(cluster::main(arguments, environment)),
        Command::Run(arguments) => on_runtime(run::main(arguments, environment)),
        Command::Grade(arguments) => on_runtime(grade::main(arguments, environment)),
        Command::Course(arguments) => on_runtime(course::main(arguments, environment)),
        Command::Canvas(arguments) => on_runtime(canvas::main(arguments, environment)),
        Command::Compare(arguments) => compare::main(&arguments),
        Command::Doctor(arguments) => on_runtime(doctor::main(arguments, environment)),
        Command::Import(arguments) => on_runtime(import::main(arguments)),
        Command::Plan(arguments) => on_runtime(plan::main(arguments, environment)),
        Command::Probe(arguments) => on_runtime(probe::main(arguments, environment)),
        Command::Demo(arguments) => on_runtime(demo::main(arguments, environment)),
        Command::Bench(arguments) => on_runtime(async {
            tokio::select! {
                code = tandem_bench::main(arguments) => code,
                () = shutdown::signal() => Ok(ExitCode::from(shutdown::INTERRUPTED)),
            }
        }),
        Command::Commands => {
            output::print(commands::markdown(&Arguments::command()).trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// How long blocking work, such as a chunk that an engine computes, may go on when a command has
/// ended.
const LINGER: Duration = Duration::from_secs(2);

/// Runs a command to its end on a new runtime. Work that is then still going on is left behind.
fn on_runtime<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(LINGER);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_does_not_hold_a_command_up() {
        let (_open, never) = std::sync::mpsc::channel::<()>();
        let result = on_runtime(async move {
            tokio::task::spawn_blocking(move || never.recv());
            Ok(ExitCode::SUCCESS)
        });
        assert!(result.is_ok());
    }
}
