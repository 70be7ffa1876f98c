//! `tandem bench prefix`: bytes on the wire where submissions share a rubric, with the have-list and
//! without.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_proto::{HandoffTerms, Prompt, Reuse};

use super::ask::{Asked, Pair, Prompts, Sent};
use super::figures::{Machine, median, right, table, told};
use super::nodes::{CONTEXT, Cluster, Nodes, Place};

/// Tokens that all submissions begin with.
const SHARED_TOKENS: u32 = 2000;
/// Tokens of the context that are left for the answer.
const SPARE_TOKENS: u32 = 400;
/// Of the prompts.
const SEED: u64 = 2;

/// Arguments of `tandem bench prefix`.
#[derive(Args)]
pub struct Arguments {
    /// Submissions.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    submissions: u32,
    /// Tokens of each that are its own.
    #[arg(long, value_name = "TOKENS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONTEXT - SHARED_TOKENS - SPARE_TOKENS)))]
    own: u32,
    /// The codec: `raw`, `plane` or `q8`. A lossy one is what all of these requests allow.
    #[arg(long, default_value_t = Codec::Raw)]
    codec: Codec,
    /// The model of both nodes.
    #[arg(long, value_name = "PATH", default_value = super::DEFAULT_MODEL)]
    model: PathBuf,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    model: String,
    codec: Codec,
    shared_tokens: u32,
    own_tokens: u32,
    submissions: u32,
    /// Medians of all submissions but the first.
    wire_bytes_per_submission: Compared,
    /// Medians of the same, in milliseconds.
    first_token_ms: Compared,
    /// Bytes on the wire of the first submission, which nobody has anything of.
    first: Compared,
}

#[derive(Debug, Serialize)]
struct Compared {
    without: f64,
    with: f64,
}

/// Bytes on the wire and time to first token of each submission.
struct Run(Vec<(f64, f64)>);

impl Run {
    fn rest(&self, figure: impl Fn(&(f64, f64)) -> f64) -> f64 {
        median(&self.0[1..].iter().map(figure).collect::<Vec<f64>>())
    }
}

/// Runs the measurement.
///
/// # Errors
/// If a node or a request fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    told(measure(&arguments), arguments.json, shown).await
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    let cluster = Cluster::create().await?;
    let places = [Place::here(), Place::here()];
    let nodes = Nodes::start(&cluster, [&arguments.model; 2], &places).await?;
    let pair = cluster.pair(&nodes, nodes.decode.handoff).await?;
    let mut prompts = Prompts::of(&pair, SEED).await?;
    let rubric = prompts.tokens(SHARED_TOKENS);
    let mut submissions = Vec::new();
    for _ in 0..arguments.submissions {
        let own = prompts.tokens(arguments.own);
        submissions.push(Prompt::Tokens([rubric.as_slice(), &own].concat()));
    }
    let without = run(&pair, &submissions, arguments, Reuse::Off).await?;
    let with = run(&pair, &submissions, arguments, Reuse::Exact).await?;
    nodes.stop().await;
    let compared = |figure: &dyn Fn(&Run) -> f64| Compared {
        without: figure(&without),
        with: figure(&with),
    };
    Ok(Figures {
        machine: Machine::this(),
        model: arguments.model.display().to_string(),
        codec: arguments.codec,
        shared_tokens: SHARED_TOKENS,
        own_tokens: arguments.own,
        submissions: arguments.submissions,
        wire_bytes_per_submission: compared(&|run| run.rest(|s| s.0)),
        first_token_ms: compared(&|run| run.rest(|s| s.1)),
        first: compared(&|run| run.0[0].0),
    })
}

async fn run(
    pair: &Pair,
    submissions: &[Prompt],
    arguments: &Arguments,
    reuse: Reuse,
) -> anyhow::Result<Run> {
    let codec = arguments.codec;
    let quality = Quality::ALL.into_iter().find(|q| q.allows(codec));
    let terms = HandoffTerms {
        codec: codec.into(),
        quality: quality.unwrap_or_default(),
        reuse,
        ..HandoffTerms::default()
    };
    let mut out = Vec::new();
    for submission in submissions {
        pair.decode.idle().await?;
        pair.prefill.idle().await?;
        out.push(figures_of(&pair.remote(submission, 1, &terms).await?));
    }
    Ok(Run(out))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn figures_of((asked, sent): &(Asked, Sent)) -> (f64, f64) {
    (sent.wire_bytes as f64, asked.first_token_ms)
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&["per submission", "without", "with the have-list"]);
    let mb = |bytes: f64| right(format!("{:.3} MB", bytes / 1e6));
    let ms = |value: f64| right(format!("{value:.1} ms"));
    let (wire, first) = (&figures.wire_bytes_per_submission, &figures.first);
    let token = &figures.first_token_ms;
    let cell = comfy_table::Cell::new;
    out.add_row(vec![
        cell("first, on the wire"),
        mb(first.without),
        mb(first.with),
    ]);
    out.add_row(vec![
        cell("others, on the wire"),
        mb(wire.without),
        mb(wire.with),
    ]);
    out.add_row(vec![
        cell("others, first token"),
        ms(token.without),
        ms(token.with),
    ]);
    format!(
        "{}\n{} submissions of {} tokens, of which the first {} are shared; {}, codec {}\n{out}",
        figures.machine,
        figures.submissions,
        figures.shared_tokens + figures.own_tokens,
        figures.shared_tokens,
        figures.model,
        figures.codec,
    )
}
