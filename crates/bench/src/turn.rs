//! `tandem bench turn`: the next turn of a conversation, on the nodes that had the one before and on another prefill node.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tandem_proto::{HandoffTerms, Prompt};
use tokio::time::sleep;

use super::ask::{Pair, Prompts};
use super::figures::{Machine, median, right, table, told};
use super::nodes::{CONTEXT, Cluster, Nodes, Place};

/// Tokens of the first answer.
const ANSWER_TOKENS: u32 = 32;
/// Tokens of the context that are left besides.
const SPARE_TOKENS: u32 = 400;
/// Until an answer has been kept at both ends.
const SETTLE: Duration = Duration::from_millis(500);
/// Of the prompts.
const SEED: u64 = 3;

/// Arguments of `tandem bench turn`.
#[derive(Args)]
pub struct Arguments {
    /// Tokens of the first turn.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(64..=i64::from(CONTEXT - SPARE_TOKENS)))]
    tokens: u32,
    /// Tokens of the next one that are new.
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=i64::from(SPARE_TOKENS / 2)))]
    new: u32,
    /// Conversations for each case.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The model of all nodes.
    #[arg(long, value_name = "PATH", default_value = super::DEFAULT_MODEL)]
    model: PathBuf,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

/// Who takes the next turn.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    /// The nodes that had the one before.
    Same,
    /// Another prefill node, with what it has: nothing.
    Other,
    /// The decode node prefills by itself.
    Alone,
}

impl Who {
    const ALL: [Self; 3] = [Self::Same, Self::Other, Self::Alone];

    const fn shown(self) -> &'static str {
        match self {
            Self::Same => "the same prefill node",
            Self::Other => "another one",
            Self::Alone => "the decode node by itself",
        }
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    model: String,
    tokens: u32,
    new_tokens: u32,
    rounds: u32,
    cases: Vec<Case>,
}

/// Medians.
#[derive(Debug, Serialize)]
struct Case {
    case: Who,
    first_token_ms: f64,
    /// Time spent computing the prompt, wherever that was.
    prefill_ms: f64,
    /// Bytes on the wire to the decode node.
    wire_bytes: f64,
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
    let other = nodes
        .another(&cluster, &arguments.model, &places[0])
        .await?;
    let pair = cluster.pair(&nodes, nodes.decode.handoff).await?;
    let beside = Pair {
        prefill: cluster.prefill_at(other.control).await?,
        ..pair.clone()
    };
    let mut prompts = Prompts::of(&pair, SEED).await?;
    let mut rounds: [Vec<Round>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        for (who, figures) in Who::ALL.into_iter().zip(&mut rounds) {
            figures.push(round(&pair, &beside, who, &mut prompts, arguments).await?);
        }
    }
    other.stop().await;
    nodes.stop().await;
    let cases = Who::ALL.into_iter().zip(&rounds);
    Ok(Figures {
        machine: Machine::this(),
        model: arguments.model.display().to_string(),
        tokens: arguments.tokens,
        new_tokens: arguments.new,
        rounds: arguments.rounds,
        cases: cases.map(|(who, rounds)| case(who, rounds)).collect(),
    })
}

/// Time to the first token and of the prefill, in milliseconds; bytes on the wire.
struct Round([f64; 3]);

/// One conversation of two turns.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
async fn round(
    pair: &Pair,
    beside: &Pair,
    who: Who,
    prompts: &mut Prompts,
    arguments: &Arguments,
) -> anyhow::Result<Round> {
    let terms = HandoffTerms {
        reuse: true,
        keep: true,
        ..HandoffTerms::default()
    };
    let mut tokens = prompts.tokens(arguments.tokens);
    let first = Prompt::Tokens(tokens.clone());
    let (asked, _) = pair.remote(&first, ANSWER_TOKENS, &terms).await?;
    for node in [&pair.prefill, &pair.decode] {
        node.idle().await?;
    }
    sleep(SETTLE).await;
    tokens.extend(asked.answer.tokens);
    tokens.extend(prompts.tokens(arguments.new));
    let next = Prompt::Tokens(tokens);
    let (asked, sent) = match who {
        Who::Alone => {
            let asked = pair.local(&next, 1, &terms).await?;
            let prefill_ms = asked.summary.local_prefill_ms;
            return Ok(Round([asked.first_token_ms, prefill_ms, 0.0]));
        }
        Who::Same => pair.remote(&next, 1, &terms).await?,
        Who::Other => beside.remote(&next, 1, &terms).await?,
    };
    Ok(Round([
        asked.first_token_ms,
        sent.prefill_ms,
        sent.wire_bytes as f64,
    ]))
}

fn case(who: Who, rounds: &[Round]) -> Case {
    let [first_token_ms, prefill_ms, wire_bytes] = std::array::from_fn(|at| {
        let figures: Vec<f64> = rounds.iter().map(|round| round.0[at]).collect();
        median(&figures)
    });
    Case {
        case: who,
        first_token_ms,
        prefill_ms,
        wire_bytes,
    }
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&[
        "the next turn is prefilled by",
        "first token",
        "computing",
        "to the decode node",
    ]);
    let mb = |bytes: f64| right(format!("{:.3} MB", bytes / 1e6));
    let ms = |value: f64| right(format!("{value:.1} ms"));
    for case in &figures.cases {
        out.add_row(vec![
            comfy_table::Cell::new(case.case.shown()),
            ms(case.first_token_ms),
            ms(case.prefill_ms),
            mb(case.wire_bytes),
        ]);
    }
    format!(
        "{}\n{} new tokens behind a turn of {} and its answer of {ANSWER_TOKENS}; {}, medians of {}\n{out}",
        figures.machine, figures.new_tokens, figures.tokens, figures.model, figures.rounds,
    )
}
