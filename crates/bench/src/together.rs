//! `tandem bench together`: two models on one machine, each alone, both in one node, and each in a node of its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;
use rand::Rng;
use serde::Serialize;
use serde_json::json;
use tandem_cluster::Security;
use tandem_proto::{
    Format, GenerateEvent, GenerateRequest, GenerationParams, HandoffTerms, PrefillMode, Prompt,
};

use super::CHUNK;
use super::ask::greedy;
use super::control::Control;
use super::figures::{Machine, median, right, table, told};
use super::nodes::Node;
use tandem_engine_llama::options::parse_model;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(600);

/// Arguments of `tandem bench together`.
#[derive(Args)]
pub struct Arguments {
    /// The two models [default: those of a checkout].
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_model)]
    model: Vec<(String, PathBuf)>,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4000))]
    tokens: u32,
    /// Lines of each prompt.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    lines: u32,
    /// Answers for each figure, which is their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Threads of each node [default: as a node without the option].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    models: [String; 2],
    tokens: u32,
    rounds: u32,
    threads: Option<u32>,
    /// One model in a node of its own, seconds.
    alone: [f64; 2],
    /// One answer at a time of a node that holds both, seconds.
    beside: [f64; 2],
    /// Both at once of that node: until each is complete, seconds.
    at_once: [f64; 2],
    /// Both at once of two nodes, seconds.
    two_nodes: [f64; 2],
    /// Until both are complete, by the sum of both alone.
    at_once_by_sum: f64,
    two_nodes_by_sum: f64,
    /// The most that an answer of a node that holds both takes longer than alone; 1 is nothing.
    beside_by_alone: f64,
}

/// Runs the measurement.
///
/// # Errors
/// If a node or a request fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    told(measure(&arguments), arguments.json, shown).await
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    let models = match arguments.model.as_slice() {
        [] => [
            ("code", super::DEFAULT_MODEL),
            ("feedback", super::DEFAULT_WRITER),
        ]
        .map(|(name, path)| (name.to_owned(), PathBuf::from(path))),
        [one, two] => [one.clone(), two.clone()],
        _ => bail!("--model must be given twice, or not at all"),
    };
    let logs = tempfile::tempdir()?;
    let start = async |models: &[(String, PathBuf)]| {
        let node = Node::with_defaults(models, arguments.threads, logs.path()).await?;
        let control = Control::connect(node.control, Security::Plaintext, None).await?;
        anyhow::Ok((node, control))
    };
    let names = [&models[0].0, &models[1].0];
    let mut alone = [0.0; 2];
    for i in 0..2 {
        let (node, control) = start(&models[i..=i]).await?;
        alone[i] = arguments.one(&control, names[i]).await?;
        node.stop().await;
    }
    let (node, control) = start(&models).await?;
    let beside = [
        arguments.one(&control, names[0]).await?,
        arguments.one(&control, names[1]).await?,
    ];
    let at_once = arguments.both([&control, &control], names).await?;
    node.stop().await;
    let (first, second) = (start(&models[..1]).await?, start(&models[1..]).await?);
    let two_nodes = arguments.both([&first.1, &second.1], names).await?;
    first.0.stop().await;
    second.0.stop().await;
    let sum = alone[0] + alone[1];
    Ok(Figures {
        machine: Machine::this(),
        models: models.map(|(_, path)| path.display().to_string()),
        tokens: arguments.tokens,
        rounds: arguments.rounds,
        threads: arguments.threads,
        alone,
        beside,
        at_once,
        two_nodes,
        at_once_by_sum: at_once[0].max(at_once[1]) / sum,
        two_nodes_by_sum: two_nodes[0].max(two_nodes[1]) / sum,
        beside_by_alone: (beside[0] / alone[0]).max(beside[1] / alone[1]),
    })
}

impl Arguments {
    /// Seconds of an answer.
    async fn one(&self, node: &Control, model: &str) -> anyhow::Result<f64> {
        // The first one finds memory that was never touched.
        self.ask(node, model, 0).await?;
        let mut seconds = Vec::new();
        for round in 1..=self.rounds {
            seconds.push(self.ask(node, model, round).await?);
        }
        Ok(median(&seconds))
    }

    /// Seconds of both answers, asked at once.
    async fn both(&self, nodes: [&Control; 2], models: [&String; 2]) -> anyhow::Result<[f64; 2]> {
        let mut seconds = [Vec::new(), Vec::new()];
        for round in 0..=self.rounds {
            let (one, two) = tokio::try_join!(
                self.ask(nodes[0], models[0], round),
                self.ask(nodes[1], models[1], round),
            )?;
            if round > 0 {
                seconds[0].push(one);
                seconds[1].push(two);
            }
        }
        Ok([median(&seconds[0]), median(&seconds[1])])
    }

    async fn ask(&self, node: &Control, model: &str, round: u32) -> anyhow::Result<f64> {
        let line = |i| format!("    total_{i} = values_{round} + {i}\n");
        let request = GenerateRequest {
            request: format!("bench-{:016x}", rand::rng().next_u64()),
            model: model.to_owned(),
            prompt: Prompt::Text((0..self.lines).map(line).collect()),
            generation: GenerationParams {
                // An answer that cannot end before it has so many tokens.
                format: Format::schema(
                    "s",
                    json!({"type": "string", "minLength": 16 * self.tokens}),
                ),
                ..greedy(self.tokens)
            },
            prefill: PrefillMode::Local,
            prefill_peer: None,
            alone_percent: 100,
            chunk: CHUNK,
            terms: HandoffTerms {
                reuse: false,
                ..HandoffTerms::default()
            },
        };
        let start = Instant::now();
        let answer = async {
            let mut events = node.generate(&request).await?;
            loop {
                match events.next().await? {
                    GenerateEvent::Done {
                        generated_tokens, ..
                    } => return anyhow::Ok(generated_tokens),
                    GenerateEvent::Failed(error) => return Err(error.into()),
                    _ => {}
                }
            }
        };
        let Ok(answered) = tokio::time::timeout(ANSWER, answer).await else {
            bail!(
                "an answer of `{model}` took longer than {} s",
                ANSWER.as_secs()
            );
        };
        let tokens = answered?;
        ensure!(
            tokens == self.tokens,
            "an answer of `{model}` has {tokens} tokens"
        );
        Ok(start.elapsed().as_secs_f64())
    }
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&["", "first model", "second model", "both, by the sum alone"]);
    let seconds = |value: f64| right(format!("{value:.2} s"));
    for (what, both, by_sum) in [
        ("alone, in a node of its own", figures.alone, None),
        ("alone, in a node with both", figures.beside, None),
        (
            "both at once, in one node",
            figures.at_once,
            Some(figures.at_once_by_sum),
        ),
        (
            "both at once, in two nodes",
            figures.two_nodes,
            Some(figures.two_nodes_by_sum),
        ),
    ] {
        let by_sum = by_sum.map_or_else(String::new, |by_sum| format!("{by_sum:.2}"));
        out.add_row(vec![
            comfy_table::Cell::new(what),
            seconds(both[0]),
            seconds(both[1]),
            right(by_sum),
        ]);
    }
    let threads = figures
        .threads
        .map_or_else(|| "default threads".to_owned(), |n| format!("{n} threads"));
    format!(
        "{}\n{} and {}; answers of {} tokens, medians of {}, {threads}\n{out}",
        figures.machine, figures.models[0], figures.models[1], figures.tokens, figures.rounds,
    )
}
