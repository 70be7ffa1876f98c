//! `tandem bench parity`: how well two files fit together, one that prefills and one that decodes:
//! another quantisation, another backend, or what a codec loses.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_proto::{HandoffTerms, ParityReport, Prompt};

use super::ask::{Answer, Pair, Prompts};
use super::figures::{Machine, median, right, table, told};
use super::nodes::{Cluster, Nodes, Place, THREADS};

/// Of the prompts.
const SEED: u64 = 3;

/// Arguments of `tandem bench parity`.
#[derive(Args)]
pub struct Arguments {
    /// Texts to ask with, each a prompt as it is, without a chat template [default: made-up programs].
    #[arg(value_name = "FILE")]
    texts: Vec<PathBuf>,
    /// The model that prefills.
    #[arg(long, value_name = "PATH", default_value = super::DEFAULT_MODEL)]
    model: PathBuf,
    /// The model that decodes [default: the same].
    #[arg(long, value_name = "PATH")]
    decode_model: Option<PathBuf>,
    /// Another build of this program, which prefills, such as one for a GPU [default: this one].
    #[arg(long, value_name = "PATH")]
    prefill_program: Option<PathBuf>,
    /// CPU threads of each node.
    #[arg(long, default_value_t = THREADS, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: u32,
    /// How many programs are made up.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with = "texts")]
    prompts: u32,
    /// Tokens of each, about.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(2..=7_000), conflicts_with = "texts")]
    tokens: u32,
    /// Tokens of each answer, at most.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    answer: u32,
    /// Only these codecs: raw, plane or q8 [default: all].
    #[arg(long, value_name = "NAME")]
    codec: Vec<Codec>,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn decode_model(&self) -> &PathBuf {
        self.decode_model.as_ref().unwrap_or(&self.model)
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    prefill_model: String,
    decode_model: String,
    /// What prefilled, if it was another build.
    prefill_program: Option<String>,
    prompts: usize,
    /// Median.
    prompt_tokens: f64,
    cases: Vec<Case>,
}

/// All prompts, handed over with one codec.
#[derive(Debug, Serialize)]
struct Case {
    codec: Codec,
    /// Divergence of the decode node's distribution after the prompt from the prefill node's, in nats.
    kl_median: f64,
    kl_max: f64,
    /// Largest difference of a log-probability.
    max_difference: f64,
    /// Prompts after which both find the same token likeliest.
    same_top: usize,
    /// Prompts that are beyond the bound.
    beyond_bound: usize,
    /// Answers that are those of the decode node alone, token by token.
    same_answers: usize,
}

/// A prompt that was handed over.
struct Handed {
    report: ParityReport,
    is_same_answer: bool,
}

/// Runs the measurement.
///
/// # Errors
/// If a node, a request or a handoff fails, or a handoff is not compared.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    told(measure(&arguments), arguments.json, shown).await
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    let cluster = Cluster::create().await?;
    let decode = Place {
        threads: arguments.threads,
        ..Place::here()
    };
    let prefill = Place {
        program: arguments.prefill_program.clone(),
        ..decode.clone()
    };
    let places = [prefill, decode];
    let models = [&arguments.model, arguments.decode_model()].map(PathBuf::as_path);
    let nodes = Nodes::start(&cluster, models, &places).await?;
    let pair = cluster.pair(&nodes, nodes.decode.handoff).await?;
    let prompts = prompts(arguments, &pair).await?;
    let codecs: Vec<Codec> = Codec::ALL
        .into_iter()
        .filter(|codec| arguments.codec.is_empty() || arguments.codec.contains(codec))
        .collect();
    let mut handed: Vec<Vec<Handed>> = codecs.iter().map(|_| Vec::new()).collect();
    let mut prompt_tokens = Vec::new();
    for (number, prompt) in prompts.iter().enumerate() {
        eprintln!("prompt {} of {}", number + 1, prompts.len());
        let alone = pair
            .local(prompt, arguments.answer, &terms(Codec::Raw))
            .await?;
        prompt_tokens.push(f64::from(alone.prompt_tokens));
        for (codec, handed) in codecs.iter().zip(&mut handed) {
            let asked = pair.remote(prompt, arguments.answer, &terms(*codec)).await;
            let (asked, _) = asked.with_context(|| codec.to_string())?;
            handed.push(compared(&asked.answer, &alone.answer)?);
        }
    }
    nodes.stop().await;
    Ok(Figures {
        machine: Machine::this(),
        prefill_model: arguments.model.display().to_string(),
        decode_model: arguments.decode_model().display().to_string(),
        prefill_program: arguments
            .prefill_program
            .as_ref()
            .map(|program| program.display().to_string()),
        prompts: prompts.len(),
        prompt_tokens: median(&prompt_tokens),
        cases: codecs
            .into_iter()
            .zip(&handed)
            .map(|(codec, handed)| case(codec, handed))
            .collect(),
    })
}

async fn prompts(arguments: &Arguments, pair: &Pair) -> anyhow::Result<Vec<Prompt>> {
    if arguments.texts.is_empty() {
        let mut made_up = Prompts::of(pair, SEED).await?;
        let one = |_| Prompt::Text(made_up.text(arguments.tokens));
        return Ok((0..arguments.prompts).map(one).collect());
    }
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path);
        text.map(Prompt::Text)
            .with_context(|| format!("{} cannot be read", path.display()))
    };
    arguments.texts.iter().map(read).collect()
}

fn terms(codec: Codec) -> HandoffTerms {
    HandoffTerms {
        quality: Quality::Q8,
        codec: codec.into(),
        reuse: false,
        reproducible: true,
        mixed_quantisation: true,
        ..HandoffTerms::default()
    }
}

fn compared(answer: &Answer, alone: &Answer) -> anyhow::Result<Handed> {
    Ok(Handed {
        report: answer.parity.context("a handoff was not compared")?,
        is_same_answer: answer.tokens == alone.tokens,
    })
}

fn case(codec: Codec, handed: &[Handed]) -> Case {
    let of = |figure: fn(&ParityReport) -> f64| {
        let figures = handed.iter().map(|one| figure(&one.report));
        figures.collect::<Vec<f64>>()
    };
    let largest = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    let count = |is: fn(&Handed) -> bool| handed.iter().filter(|one| is(one)).count();
    Case {
        codec,
        kl_median: median(&of(|report| report.parity.kl)),
        kl_max: largest(of(|report| report.parity.kl)),
        max_difference: largest(of(|report| report.parity.max_difference)),
        same_top: count(|one| one.report.parity.same_top),
        beyond_bound: count(|one| !one.report.holds),
        same_answers: count(|one| one.is_same_answer),
    }
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&[
        "codec",
        "KL median",
        "KL largest",
        "log-prob. differs by",
        "same likeliest",
        "beyond bound",
        "same answer",
    ]);
    for case in &figures.cases {
        out.add_row(vec![
            Cell::new(case.codec.name()),
            right(format!("{:.1e}", case.kl_median)),
            right(format!("{:.1e}", case.kl_max)),
            right(format!("{:.4}", case.max_difference)),
            right(case.same_top),
            right(case.beyond_bound),
            right(case.same_answers),
        ]);
    }
    format!(
        "{}\n{} prompts of {:.0} tokens (median); prefill {}{}, decode {}\n{out}",
        figures.machine,
        figures.prompts,
        figures.prompt_tokens,
        figures.prefill_model,
        figures
            .prefill_program
            .as_ref()
            .map_or(String::new(), |program| format!(" by {program}")),
        figures.decode_model,
    )
}
