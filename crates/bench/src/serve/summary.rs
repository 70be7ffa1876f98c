//! Rates and percentiles of what came.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::load::Round;
use super::request::{Answered, Server};
use crate::figures::{Machine, median, quantile, right, table};

/// What was asked.
#[derive(Debug, Serialize)]
pub struct Shape {
    /// Of a closed loop.
    pub clients: Option<u32>,
    /// Of an open one, per second.
    pub rate: Option<f64>,
    /// In each round.
    pub requests: u32,
    /// That were measured.
    pub rounds: u32,
    /// That all prompts begin with.
    pub shared_words: u32,
    /// Of each prompt alone.
    pub own_words: u32,
    /// Of the prompts that were read meanwhile.
    pub heavy_words: Option<u32>,
    /// Of each answer at most.
    pub max_tokens: u32,
    /// Of each request.
    pub fields: Map<String, Value>,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Of ten, nine are below.
    pub p90: f64,
    /// Of a hundred, 99 are below.
    pub p99: f64,
}

/// Figures of one server over all rounds that were measured.
#[derive(Debug, Serialize)]
pub struct Side {
    /// Where it is.
    pub address: String,
    /// What it was asked for.
    pub model: String,
    /// Complete answers.
    pub answers: usize,
    /// Requests without one.
    pub failed: usize,
    /// Why the first of them failed.
    pub reason: Option<String>,
    /// Complete answers per second: the median of the rounds.
    pub requests_per_s: f64,
    /// Tokens of answers per second: the median of the rounds.
    pub tokens_per_s: f64,
    /// Mean tokens of a prompt, where the server tells.
    pub prompt_tokens: Option<f64>,
    /// Part of them that the server had already, where it tells.
    pub cached_part: Option<f64>,
    /// From sending to the first part of the text.
    pub first_token_ms: Percentiles,
    /// Between two parts of the text.
    pub between_tokens_ms: Percentiles,
    /// From sending to the end.
    pub whole_ms: Percentiles,
    /// Tokens per second of the heavy prompts that were read to the end while the others asked; none if there is none.
    pub heavy_tokens_per_s: Option<f64>,
    /// Of each round.
    pub round_requests_per_s: Vec<f64>,
    #[serde(skip)]
    pub(super) first: Vec<f64>,
    #[serde(skip)]
    pub(super) between: Vec<f64>,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Figures {
    #[serde(flatten)]
    machine: Machine,
    #[serde(flatten)]
    shape: Shape,
    /// One for each server.
    pub sides: Vec<Side>,
    /// Requests per second of the first server by those of the second: the median of the rounds.
    pub ratio: Option<f64>,
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn per_second(count: u64, wall: Duration) -> f64 {
    float(count) / wall.as_secs_f64().max(1e-9)
}

impl Percentiles {
    fn of(values: &[f64]) -> Self {
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| quantile(values, part));
        Self { p50, p90, p99 }
    }
}

impl Side {
    fn new(server: &Server, rounds: &[Round]) -> Self {
        let answers: Vec<&Answered> = rounds.iter().flat_map(|r| &r.answers).collect();
        let failures = || rounds.iter().flat_map(|r| &r.failures);
        let by_round = |count: fn(&Round) -> u64| -> Vec<f64> {
            let rates = rounds.iter().map(|r| per_second(count(r), r.wall));
            rates.collect()
        };
        let requests = by_round(|r| r.answers.len() as u64);
        let tokens = by_round(|r| r.answers.iter().map(|a| a.tokens).sum());
        let first: Vec<f64> = answers.iter().map(|a| milliseconds(a.first)).collect();
        let between = answers.iter().flat_map(|a| &a.between);
        let between: Vec<f64> = between.map(|gap| milliseconds(*gap)).collect();
        let whole: Vec<f64> = answers.iter().map(|a| milliseconds(a.whole)).collect();
        let prompt: Option<u64> = answers.iter().map(|a| a.prompt).sum();
        let cached: Option<u64> = answers.iter().map(|a| a.cached).sum();
        let heavy: Vec<&Answered> = rounds.iter().flat_map(|r| &r.heavy).collect();
        let read: u64 = heavy.iter().filter_map(|a| a.prompt).sum();
        let reading: Duration = heavy.iter().map(|a| a.whole).sum();
        Self {
            address: server.address().to_owned(),
            model: server.model().to_owned(),
            answers: answers.len(),
            failed: failures().count(),
            reason: failures().next().cloned(),
            requests_per_s: median(&requests),
            tokens_per_s: median(&tokens),
            prompt_tokens: prompt.map(|all| float(all) / float(answers.len() as u64)),
            cached_part: prompt
                .zip(cached)
                .map(|(all, cached)| float(cached) / float(all.max(1))),
            first_token_ms: Percentiles::of(&first),
            between_tokens_ms: Percentiles::of(&between),
            whole_ms: Percentiles::of(&whole),
            heavy_tokens_per_s: (read > 0).then(|| per_second(read, reading)),
            round_requests_per_s: requests,
            first,
            between,
        }
    }
}

impl Figures {
    /// Of the rounds of each server.
    pub fn new<'a>(
        machine: Machine,
        shape: Shape,
        sides: impl Iterator<Item = (&'a Server, &'a Vec<Round>)>,
    ) -> Self {
        let sides: Vec<Side> = sides.map(|(s, rounds)| Side::new(s, rounds)).collect();
        let ratio = match &sides[..] {
            [first, second] => {
                let rounds = first.round_requests_per_s.iter();
                let rounds = rounds.zip(&second.round_requests_per_s);
                Some(median(&rounds.map(|(a, b)| a / b).collect::<Vec<_>>()))
            }
            _ => None,
        };
        Self {
            machine,
            shape,
            sides,
            ratio,
        }
    }

    /// What was asked, in words.
    pub fn title(&self) -> String {
        let shape = &self.shape;
        let load = match (shape.rate, shape.clients) {
            (Some(rate), _) => format!("{rate} requests per second"),
            (None, clients) => format!("{} at once", clients.unwrap_or(1)),
        };
        let heavy = shape.heavy_words.map_or_else(String::new, |words| {
            format!(", beside prompts of {words} words")
        });
        format!(
            "{load}, {} words shared and {} own, {} tokens out at most{heavy}",
            shape.shared_words, shape.own_words, shape.max_tokens
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{}; {} rounds of {} requests",
            self.title(),
            self.shape.rounds,
            self.shape.requests
        )?;
        let mut header = vec![""];
        header.extend(self.sides.iter().map(|side| side.address.as_str()));
        let mut out = table(&header);
        let mut row = |name: &str, value: &dyn Fn(&Side) -> String| {
            let values = self.sides.iter().map(|side| right(value(side)));
            let mut cells = vec![comfy_table::Cell::new(name)];
            cells.extend(values);
            out.add_row(cells);
        };
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "unknown".to_owned(), |v| format!("{v:.digits$}"))
        };
        let three = |p: &Percentiles| format!("{:.1} / {:.1} / {:.1}", p.p50, p.p90, p.p99);
        row("model", &|s| s.model.clone());
        row("requests/s", &|s| format!("{:.3}", s.requests_per_s));
        row("tokens/s", &|s| format!("{:.1}", s.tokens_per_s));
        row("tokens of a prompt", &|s| number(s.prompt_tokens, 0));
        row("part of them cached", &|s| number(s.cached_part, 2));
        row("first token, ms (p50 / p90 / p99)", &|s| {
            three(&s.first_token_ms)
        });
        row("between tokens, ms", &|s| three(&s.between_tokens_ms));
        row("whole answer, ms", &|s| three(&s.whole_ms));
        if self.shape.heavy_words.is_some() {
            row("heavy prompts, tokens/s", &|s| {
                number(s.heavy_tokens_per_s, 1)
            });
        }
        row("answers, failed", &|s| {
            format!("{}, {}", s.answers, s.failed)
        });
        write!(f, "{out}")?;
        for side in &self.sides {
            if let Some(reason) = &side.reason {
                write!(f, "\n{}: {} failed: {reason}", side.address, side.failed)?;
            }
        }
        if let Some(ratio) = self.ratio {
            write!(f, "\nrequests/s by those of the second server: {ratio:.2}")?;
        }
        Ok(())
    }
}
