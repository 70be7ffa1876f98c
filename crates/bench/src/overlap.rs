//! `tandem bench overlap`: how much of a handoff hides behind the prefill, on links of several speeds.
//!
//! - [`namespaces`]: two network namespaces with a shaped link between them;
//! - [`relay`]: a shaped link inside this process, where those are not to be had;
//! - [`driver`]: the requests, made on the machine of the decode node.

pub mod driver;
mod namespaces;
mod relay;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tandem_handoff::policy::Quality;

use super::CHUNK;
use super::cores;
use super::figures::{Machine, right, table, told};
use super::link::Link;
use super::nodes::{CONTEXT, Cluster, Nodes, Place, THREADS, program};
use driver::{Case, Course};
use namespaces::Namespaces;
use relay::Relay;

/// Links faster than the small model of this repository produces KV on one core, and slower ones.
const LINKS: [&str; 6] = [
    "10gbit,0.6ms",
    "2.5gbit,0.6ms",
    "1gbit,0.6ms",
    "150mbit,0.6ms",
    "20mbit,2ms",
    "10mbit,2ms",
];
/// Tokens of the context that are left for the answer.
const SPARE_TOKENS: u32 = 400;

/// Arguments of `tandem bench overlap`.
#[derive(Args)]
pub struct Arguments {
    /// Rate each way and round-trip time, such as 10gbit,0.6ms; may be repeated [default: 10gbit,0.6ms,
    /// 2.5gbit,0.6ms, 1gbit,0.6ms, 150mbit,0.6ms, 20mbit,2ms and 10mbit,2ms].
    #[arg(long, value_name = "RATE,TIME")]
    link: Vec<Link>,
    /// The model of both nodes.
    #[arg(long, value_name = "PATH", default_value = super::DEFAULT_MODEL)]
    model: PathBuf,
    /// Another build of this program, which prefills, such as one for a GPU [default: this one].
    #[arg(long, value_name = "PATH")]
    prefill_program: Option<PathBuf>,
    /// CPU threads of each node.
    #[arg(long, default_value_t = THREADS, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: u32,
    /// Tokens of a chunk.
    #[arg(long, default_value_t = CHUNK, value_parser = clap::value_parser!(u32).range(64..=i64::from(CONTEXT)))]
    chunk: u32,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 3500, value_parser = clap::value_parser!(u32).range(64..=i64::from(CONTEXT - SPARE_TOKENS)))]
    tokens: u32,
    /// How often everything is measured; means are shown.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The lossiest codec that `auto` may take: lossless or q8.
    #[arg(long, default_value = "q8")]
    quality: Quality,
    /// Leaves out what the decode node takes alone, which is long with a large model on a CPU.
    #[arg(long)]
    skip_local: bool,
    /// Uses the link inside this process even if namespaces can be had.
    #[arg(long)]
    without_namespaces: bool,
    /// Leaves it to the system on which cores everything runs [default: the engine that prefills keeps to half of them,
    /// and all else to the others, where the system can be told so].
    #[arg(long)]
    share_cores: bool,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    const fn course(&self) -> Course {
        Course {
            tokens: self.tokens,
            rounds: self.rounds,
            quality: self.quality,
            chunk: self.chunk,
            skip_local: self.skip_local,
        }
    }

    fn links(&self) -> anyhow::Result<Vec<Link>> {
        if !self.link.is_empty() {
            return Ok(self.link.clone());
        }
        let parsed: Result<Vec<Link>, String> = LINKS.iter().map(|l| l.parse()).collect();
        parsed.map_err(anyhow::Error::msg)
    }

    /// Where the nodes run, with what.
    fn places(&self, namespaces: Option<&Namespaces>) -> [Place; 2] {
        let bare = namespaces.map_or_else(|| [Place::here(), Place::here()], Namespaces::places);
        let mut places = bare.map(|place| Place {
            threads: self.threads,
            chunk: self.chunk,
            ..place
        });
        places[0].program.clone_from(&self.prefill_program);
        places
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    /// False: the link was inside this process, and only KV went over it.
    namespaces: bool,
    delay: Delay,
    /// True if the engine that prefills had cores of its own.
    cores_apart: bool,
    model: String,
    /// What prefilled, if it was another build.
    prefill_program: Option<String>,
    threads: u32,
    chunk: u32,
    tokens: u32,
    rounds: u32,
    quality: Quality,
    links: Vec<OnLink>,
}

/// What delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Delay {
    /// The system: every packet.
    Netem,
    /// A [`Relay`] at the decode node: connections that carry KV.
    Relay,
}

#[derive(Debug, Serialize)]
struct OnLink {
    link: Link,
    #[serde(flatten)]
    case: Case,
}

/// Runs the measurement until it is done, or what it gives is dropped; everything that was made is removed again.
///
/// # Errors
/// If a node or a request fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    told(measure(&arguments), arguments.json, shown).await
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    // As long as this process may use all of its cores.
    let machine = Machine::this();
    let links = arguments.links()?;
    // Removed last: the nodes run in them.
    let namespaces = match arguments.without_namespaces {
        true => None,
        false => Namespaces::create(&links[0])
            .inspect_err(|reason| {
                eprintln!("no network namespaces ({reason:#}): using a link inside this process");
            })
            .ok(),
    };
    let delay = match &namespaces {
        Some(namespaces) if namespaces.delays() => Delay::Netem,
        _ => Delay::Relay,
    };
    if namespaces.is_some() && delay == Delay::Relay {
        eprintln!(
            "this system cannot delay packets (no netem): only connections for KV are delayed"
        );
    }
    let places = arguments.places(namespaces.as_ref());
    let cluster = Cluster::create().await?;
    let nodes = Nodes::start(&cluster, [&arguments.model; 2], &places).await?;
    let others: Vec<u32> = nodes.decode.process().into_iter().collect();
    let cores_apart = match nodes.prefill.process() {
        Some(process) if !arguments.share_cores => cores::set_engine_apart(process, &others)?,
        _ => false,
    };
    let mut out = Vec::new();
    for link in links {
        eprintln!("link {link}");
        let cases = match &namespaces {
            Some(namespaces) => {
                namespaces.shape(&link)?;
                let late = (delay == Delay::Relay).then_some(&link);
                in_namespace(arguments, &cluster, &nodes, &places[1], late).await
            }
            None => {
                let relay = Relay::start(&link, nodes.decode.handoff).await?;
                let mut pair = cluster.pair(&nodes, relay.address()).await?;
                pair.chunk = arguments.chunk;
                driver::measure(&pair, &arguments.course()).await
            }
        };
        let cases = cases.with_context(|| format!("link {link}"))?;
        out.extend(cases.into_iter().map(|case| OnLink {
            link: link.clone(),
            case,
        }));
    }
    nodes.stop().await;
    Ok(Figures {
        machine,
        namespaces: namespaces.is_some(),
        delay,
        cores_apart,
        model: arguments.model.display().to_string(),
        prefill_program: arguments
            .prefill_program
            .as_ref()
            .map(|program| program.display().to_string()),
        threads: arguments.threads,
        chunk: arguments.chunk,
        tokens: arguments.tokens,
        rounds: arguments.rounds,
        quality: arguments.quality,
        links: out,
    })
}

/// Makes the requests from the namespace of the decode node, by another process of this program, which
/// delays KV like a link if one is given.
async fn in_namespace(
    arguments: &Arguments,
    cluster: &Cluster,
    nodes: &Nodes,
    place: &Place,
    late: Option<&Link>,
) -> anyhow::Result<Vec<Case>> {
    let [prefill, decode] = cluster.members();
    let mut command = program(place)?;
    command
        .args(["bench", "overlap-driver"])
        .args(["--prefill", &nodes.prefill.control.to_string()])
        .args(["--prefill-id", prefill.as_str()])
        .args(["--decode", &nodes.decode.control.to_string()])
        .args(["--decode-id", decode.as_str()])
        .args(["--target", &nodes.decode.handoff.to_string()])
        .arg("--cluster-dir")
        .arg(cluster.decode_folder())
        .args(arguments.course().arguments());
    if let Some(link) = late.filter(|link| !link.round_trip.is_zero()) {
        command.args(["--late", &link.to_string()]);
    }
    let output = command.spawn()?.wait_with_output().await?;
    if !output.status.success() {
        bail!("the process that makes the requests failed");
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&[
        "link",
        "codec",
        "used",
        "local ms",
        "serial ms",
        "overlapped ms",
        "bound ms",
        "of bound",
        "quartiles",
        "fastest",
        "added ms",
        "exposed",
        "wire ratio",
        "KV made MB/s",
        "carried MB/s",
    ]);
    for OnLink { link, case } in &figures.links {
        let t = &case.ttft_ms;
        let [low, high] = case.ttft_over_bound_quartiles;
        let ms = |value: f64| right(format!("{value:.1}"));
        out.add_row(vec![
            comfy_table::Cell::new(link),
            comfy_table::Cell::new(&case.codec),
            comfy_table::Cell::new(case.codec_used.map_or("–", |c| c.name())),
            t.local.map_or_else(|| right("–"), ms),
            ms(t.remote_serial),
            ms(t.remote_overlapped),
            ms(t.bound),
            right(format!("{:.3}", case.ttft_over_bound)),
            right(format!("{low:.3}–{high:.3}")),
            right(format!("{:.3}", case.fastest_over_bound)),
            ms(case.added_ms),
            right(format!("{:.1} %", case.exposed_fraction * 100.0)),
            right(format!("{:.2}", case.wire_ratio)),
            ms(case.production_mb_s),
            ms(case.goodput_mb_s),
        ]);
    }
    let link = match (figures.namespaces, figures.delay) {
        (true, Delay::Netem) => "two network namespaces",
        (true, Delay::Relay) => "two network namespaces, delay for KV only",
        (false, _) => "a link inside the process, for KV only",
    };
    format!(
        "{}\n{}{}, prompts of {} tokens in chunks of {}, threads of each node: {}, means of {} rounds, {link}, quality: {}, {}\n{out}",
        figures.machine,
        figures.model,
        figures
            .prefill_program
            .as_ref()
            .map_or(String::new(), |program| format!(", prefill by {program}")),
        figures.tokens,
        figures.chunk,
        figures.threads,
        figures.rounds,
        figures.quality.name(),
        match figures.cores_apart {
            true => "the engine that prefills on cores of its own",
            false => "cores shared",
        }
    )
}
