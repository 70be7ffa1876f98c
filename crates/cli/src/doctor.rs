//! `tandem doctor`: looks at each node and server of a configuration, tries what it believes of them, and says the fix.
//!
//! - [`checks`]: what was found; [`ask`]: what is tried; [`gpu`]: who else is on this machine's GPU.

mod ask;
mod checks;
mod gpu;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use tandem_cluster::{Public, Security};
use tandem_coordinator::{
    Calls, Config as CoordinatorConfig, Limits, NodeList, ServerConfig, ServerReport,
};
use tandem_proto::LinkReport;
use tandem_sched::profile::{Catalogue, Link};

use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::setup;
use crate::{links, nodes, output, shutdown};
use checks::{Report, Subject};

/// Exit status if something does not work.
const SOMETHING_FAILS: u8 = 4;
/// Longest silence of a server while it is looked at, in seconds, unless its configuration says it.
const SILENCE_S: u64 = 120;

/// Arguments of `tandem doctor`.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 all works; 4 something does not; 1 nothing could be looked at."
)]
pub struct Arguments {
    #[command(flatten)]
    setup: setup::Arguments,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
    /// Asks no model anything: what is there, and nothing of how fast or true it is.
    #[arg(long)]
    quick: bool,
    /// What the links between nodes should be, a name of `tandem plan --list`, such as 10gbit; one that is slower is named.
    #[arg(long)]
    link: Option<String>,
}

/// Looks at everything, one after the other, and prints what it found.
///
/// # Errors
/// If the configuration cannot be used.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let mut setup = arguments.setup.prepare(environment).await?;
    let catalogue = Catalogue::built_in()?;
    let expected = arguments.link.as_ref().map(|name| catalogue.link(name));
    let wanted = Looking {
        quick: arguments.quick,
        catalogue: &catalogue,
        expected: expected.transpose()?,
    };
    let looking = look(&setup.config.coordinator, &setup.security, &wanted);
    let mut report = tokio::select! {
        report = looking => report?,
        () = shutdown::signal() => return Ok(ExitCode::from(shutdown::INTERRUPTED)),
    };
    for warning in &setup.config.warnings {
        report.add(Subject::new("configuration"), |s| {
            s.warn("written", warning, "")
        });
    }
    report.add(Subject::new("this machine"), gpu::check);
    if let Some(local) = setup.local.take() {
        local.stop().await;
    }
    output::print(&match arguments.json {
        true => serde_json::to_string_pretty(&report)?,
        false => report.text(),
    })?;
    Ok(match report.works() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(SOMETHING_FAILS),
    })
}

/// What is looked at, and how.
struct Looking<'a> {
    /// No model and no link is tried.
    quick: bool,
    catalogue: &'a Catalogue,
    /// What links should be.
    expected: Option<&'a Link>,
}

async fn look(
    config: &CoordinatorConfig,
    security: &Security,
    looking: &Looking<'_>,
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    if !config.nodes.is_empty() {
        look_at_nodes(config, security, looking, &mut report).await?;
    }
    for server in &config.servers {
        look_at_server(config, server, looking.quick, &mut report).await?;
    }
    Ok(report)
}

async fn start(config: CoordinatorConfig, security: Security) -> anyhow::Result<Coordinator> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Coordinator::start(any_port, Public::plaintext(), config, security).await
}

/// The nodes and the models that they have, without servers that might answer in their place.
async fn look_at_nodes(
    config: &CoordinatorConfig,
    security: &Security,
    looking: &Looking<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut config = config.clone();
    config.servers.clear();
    config.models.retain(|model| !model.decode.is_empty());
    for model in &mut config.models {
        model.servers.clear();
    }
    if config.models.is_empty() {
        return Ok(());
    }
    let mut coordinator = start(config.clone(), security.clone()).await?;
    let found = coordinator.nodes().await?;
    tell_nodes(&found, report);
    let problems = nodes::problems(&config, &found, coordinator.is_tls());
    for problem in problems {
        report.add(Subject::new("nodes together"), |s| {
            s.fail("configuration", &problem, "")
        });
    }
    let unavailable = coordinator.unavailable().await?;
    for model in &config.models {
        let mut subject = Subject::new(&format!("model `{}` on nodes", model.name));
        let quoted = format!("`{}`", model.name);
        match unavailable.iter().find(|reason| reason.contains(&quoted)) {
            Some(reason) => subject.fail("served", reason, ""),
            None if looking.quick => subject.ok("served", "yes"),
            None => ask::try_model(&coordinator, &model.name, &mut subject).await,
        }
        report.subjects.push(subject);
    }
    if !looking.quick {
        try_links(&config, security, looking, report).await;
    }
    coordinator.stop().await
}

/// The link of each node that prefills to each one that decodes what it prefills.
async fn try_links(
    config: &CoordinatorConfig,
    security: &Security,
    looking: &Looking<'_>,
    report: &mut Report,
) {
    let calls = Calls::new(security.clone(), config.identities(), Limits::default());
    for (from, to) in links::pairs(config.models.iter()) {
        let mut subject = Subject::new(&format!("link `{from}` to `{to}`"));
        let tested = links::tried(&calls, config, (from, to)).await;
        match tested {
            Ok(tested) => tell_link(&tested, looking, &mut subject),
            Err(error) => subject.fail("tried", &output::explain(&error), ""),
        }
        report.subjects.push(subject);
    }
}

fn tell_link(tested: &LinkReport, looking: &Looking<'_>, subject: &mut Subject) {
    let verdict = links::judge(tested, looking.catalogue, looking.expected);
    subject.ok("carries", &verdict.found);
    for fault in &verdict.faults {
        let fix = "look at the cable, the port of the switch, and what else uses the link; `tandem plan` says what a slower link costs";
        subject.warn("link", fault, fix);
    }
}

fn tell_nodes(found: &NodeList, report: &mut Report) {
    for node in &found.data {
        let mut subject = Subject::new(&format!("node `{}` at {}", node.name, node.address));
        match &node.reason {
            Some(reason) => subject.fail("reached", reason, ""),
            None => subject.ok(
                "reached",
                &format!("tandem {}", node.version.as_deref().unwrap_or("?")),
            ),
        }
        for model in &node.models {
            let contract = &model.contract;
            let told = format!(
                "`{}`: {} {}, context {}, {} sequences, weights {}, busy {} % of the last minute",
                model.name,
                contract.architecture,
                contract.quantisation,
                model.capacity.tokens_per_sequence,
                model.capacity.sequences,
                &contract.weights[..contract.weights.len().min(16)],
                model.busy_percent
            );
            subject.ok("model", &told);
            if let Some(reason) = &model.stays {
                subject.warn("handoff", &format!("its KV stays: {reason}"), "");
            }
            if let Some(reason) = &model.no_chat {
                subject.fail("chat", reason, "");
            }
        }
        report.subjects.push(subject);
    }
}

/// One server by itself, so that no equal one answers in its place.
async fn look_at_server(
    config: &CoordinatorConfig,
    server: &ServerConfig,
    quick: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut alone = CoordinatorConfig::new(Vec::new(), Vec::new());
    let mut server = server.clone();
    server.silence = server.silence.or(Some(SILENCE_S));
    let models = config
        .models
        .iter()
        .filter(|m| m.servers.contains(&server.name));
    alone.models = models.cloned().collect();
    for model in &mut alone.models {
        model.servers = vec![server.name.clone()];
        model.decode.clear();
        model.prefill.clear();
    }
    if alone.models.is_empty() {
        return Ok(());
    }
    alone.servers = vec![server.clone()];
    let mut coordinator = start(alone, Security::Plaintext).await?;
    let found = coordinator.nodes().await?.servers;
    for told in &found {
        let mut subject = Subject::new(&format!("server `{}` at {}", told.name, told.url));
        tell_server(told, &server, &mut subject);
        report.subjects.push(subject);
        for model in told.models.iter().filter(|_| !quick) {
            let mut subject =
                Subject::new(&format!("model `{}` on server `{}`", model.name, told.name));
            ask::try_model(&coordinator, &model.name, &mut subject).await;
            report.subjects.push(subject);
        }
    }
    coordinator.stop().await
}

fn tell_server(told: &ServerReport, config: &ServerConfig, subject: &mut Subject) {
    // That it lacks a model is told of the model.
    let away = told.reason.as_ref().filter(|_| told.missing.is_empty());
    if let Some(reason) = away {
        let fix = match reason.contains("cannot be reached") {
            true => "start it, or correct its `url`",
            false => "",
        };
        subject.fail("reached", reason, fix);
    }
    if let Some(dialect) = &told.dialect {
        subject.ok("reached", &format!("dialect {dialect}"));
    }
    if told.url.starts_with("http://") && !is_loopback(&told.url) {
        let fix = match config.key.is_some() {
            true => "its key can be read there, too: use https",
            false => "use https, or a network that only these machines are on",
        };
        subject.warn(
            "way",
            "not encrypted: whoever is on that network reads the work of students",
            fix,
        );
    }
    for model in &told.models {
        let (found, fix) = match (model.verified, model.reported.as_str()) {
            (true, reported) => (
                format!("`{}` is `{}`, {reported}", model.name, model.model),
                "",
            ),
            (false, "") => (
                format!(
                    "`{}` is `{}` by its own account, unverified",
                    model.name, model.model
                ),
                "look there which model it runs: names of such servers are not to be relied on",
            ),
            (false, reported) => (
                format!(
                    "`{}` is `{}`, {reported}; unverified",
                    model.name, model.model
                ),
                "",
            ),
        };
        match fix {
            "" => subject.ok("model", &found),
            fix => subject.warn("model", &found, fix),
        }
        match model.context {
            Some(context) => subject.ok("context", &format!("{context} tokens")),
            None => subject.warn(
                "context",
                "it does not tell",
                "say it with `context` of a [[server]] in a configuration (docs/engines.md), so that too long a prompt is known before",
            ),
        }
    }
    for missing in &told.missing {
        subject.fail("model", missing, "");
    }
    for lack in &told.lacks {
        subject.warn("cannot", lack, "");
    }
    if told.up {
        subject.ok(
            "at once",
            &format!("{} requests (`parallel`)", told.parallel),
        );
    }
}

/// True for a server on this machine.
fn is_loopback(url: &str) -> bool {
    let host = reqwest::Url::parse(url)
        .ok()
        .and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || bare
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
