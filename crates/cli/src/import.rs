//! `tandem import`: a configuration of an earlier set-up of two servers becomes one of tandem.
//!
//! - [`read`]: what such files say; nothing of them is run;
//! - this file: what a server that runs says of itself, and the `tandem.toml`.

mod read;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Config, ModelConfig, ServerConfig, ServerReport};

use crate::config::{ANALYSIS_TOKENS, FEEDBACK_TOKENS};
use crate::coordinator::Coordinator;
use crate::{files, output};
use read::{Imported, Job, Machine};

/// Name of the file that is written.
const FILE: &str = "tandem.toml";
/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// Arguments of `tandem import`.
#[derive(Args)]
pub struct Arguments {
    /// distributed_config.json, cluster_config.json, model_config.py; several of one set-up together.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where to write [default: tandem.toml beside the first file].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Writes over a file that is there.
    #[arg(long)]
    replace: bool,
}

/// Writes the configuration, and says what could not be mapped.
///
/// # Errors
/// If a file cannot be read or names no server, or the result cannot be written.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut imported = Imported::default();
    for path in &arguments.files {
        let shown = path.display();
        let text = files::read_text(path, MAX_BYTES)?;
        read::add(&mut imported, path, &text).with_context(|| shown.to_string())?;
    }
    if imported.machines.is_empty() {
        bail!("no server was found; {}", imported.notes.join("; "));
    }
    let found = look(&imported).await?;
    let text = toml(&imported, &found);
    let beside = arguments.files[0].parent().unwrap_or(Path::new(""));
    let out = arguments.out.unwrap_or_else(|| beside.join(FILE));
    let mut options = std::fs::OpenOptions::new();
    let options = match arguments.replace {
        true => options.write(true).create(true).truncate(true),
        false => options.write(true).create_new(true),
    };
    let shown = out.display();
    let mut file = options.open(&out).with_context(|| {
        format!("cannot write {shown}; --replace writes over a file that is there")
    })?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {shown}"))?;
    for note in &imported.notes {
        eprintln!("tandem: {note}");
    }
    for server in found.iter().filter(|server| !server.up) {
        let reason = server.reason.as_deref().unwrap_or_default();
        eprintln!(
            "tandem: server `{}` at {}: {reason}",
            server.name, server.url
        );
    }
    output::print(&format!(
        "{shown} is written; `tandem doctor --config {shown}` looks at its servers"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What those servers say of themselves that run now.
async fn look(imported: &Imported) -> anyhow::Result<Vec<ServerReport>> {
    let servers = imported.machines.iter().map(|machine| {
        let mut server = ServerConfig::new(&machine.name, &machine.url);
        if let Some(model) = &machine.theirs {
            server
                .models
                .insert(machine.job.model().to_owned(), model.clone());
        }
        server
    });
    let mut config = Config::new(Vec::new(), Vec::new());
    config.servers = servers.collect();
    for (job, names) in imported.jobs() {
        config.models.push(ModelConfig {
            name: job.model().to_owned(),
            prefill: Vec::new(),
            decode: Vec::new(),
            servers: names,
            mixed_quantisation: false,
            profile: None,
        });
    }
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut coordinator =
        Coordinator::start(any_port, Public::plaintext(), config, Security::Plaintext).await?;
    let nodes = coordinator.nodes().await?;
    coordinator.stop().await?;
    Ok(nodes.servers)
}

/// The configuration, with where each part is from.
fn toml(imported: &Imported, found: &[ServerReport]) -> String {
    let mut out = String::from(
        "# Made by `tandem import`. What it could not map, it has said; `tandem doctor` looks at the servers.\n",
    );
    for machine in &imported.machines {
        let report = found.iter().find(|report| report.name == machine.name);
        out.push_str(&server(machine, report));
    }
    for (job, names) in imported.jobs() {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        let _ = write!(
            out,
            "\n[[model]]\nname = {}\nservers = [{}]\n",
            quoted(job.model()),
            names.join(", ")
        );
    }
    let most = imported.jobs().iter().map(|(_, names)| names.len()).max();
    // So that each of several equal servers has something to do.
    let parallel = imported.parallel.unwrap_or(2 * most.unwrap_or(1) as u64);
    let _ = write!(out, "\n[grading]\nparallel = {parallel} # works at once\n");
    for (job, key, most) in [
        (Job::Analysis, "code_analysis", ANALYSIS_TOKENS),
        (Job::Feedback, "feedback", FEEDBACK_TOKENS),
    ] {
        let machine = imported.machines.iter().find(|machine| machine.job == job);
        // One model does both where there is only one.
        let asked = machine.or(imported.machines.first());
        let Some(asked) = asked else { continue };
        let _ = write!(
            out,
            "\n[grading.{key}]\nmodel = {}\n",
            quoted(asked.job.model())
        );
        let _ = match machine.and_then(|machine| machine.max_tokens) {
            Some(tokens) if job == Job::Analysis => writeln!(
                out,
                "max_tokens = {tokens} # an analysis that is cut has no score: raise it if that occurs"
            ),
            Some(tokens) => writeln!(out, "max_tokens = {tokens}"),
            None => writeln!(out, "max_tokens = {most}"),
        };
        if let Some(temperature) = machine.and_then(|machine| machine.temperature) {
            let _ = writeln!(out, "temperature = {temperature:?}");
        }
    }
    out
}

fn server(machine: &Machine, report: Option<&ServerReport>) -> String {
    let mut out = format!(
        "\n[[server]] # {}\nname = {}\nurl = {}\n",
        machine.from,
        quoted(&machine.name),
        quoted(&machine.url)
    );
    let dialect = report.and_then(|report| report.dialect.as_deref());
    let _ = match dialect {
        Some(dialect) => writeln!(out, "dialect = {}", quoted(dialect)),
        None => writeln!(
            out,
            "dialect = \"auto\" # it did not answer when this was written"
        ),
    };
    if let Some(context) = machine.context {
        let _ = writeln!(out, "context = {context}");
    }
    if let Some(seconds) = machine.silence {
        let _ = writeln!(out, "silence = {seconds}");
    }
    let told = report.and_then(|report| report.models.first());
    if let Some(theirs) = &machine.theirs {
        let _ = writeln!(
            out,
            "models = {{ {} = {} }}",
            machine.job.model(),
            quoted(theirs)
        );
    }
    if let Some(model) = &machine.model {
        let _ = match told {
            Some(told) if told.model != *model => writeln!(
                out,
                "# By the old file it has {}; by its own account {}.",
                quoted(model),
                quoted(&told.model)
            ),
            _ => writeln!(out, "# By the old file it has {}.", quoted(model)),
        };
    }
    out
}

/// A text in the words of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
