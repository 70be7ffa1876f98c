//! `tandem bench serve`: a load on a server with an OpenAI-compatible API, alone or in turns with a second one.
//!
//! - `prompts`: what is asked: a part that all requests begin with, and one of their own;
//! - `request`: one streamed request and its times;
//! - `load`: many of them, in a closed or an open loop;
//! - `summary`: rates and percentiles;
//! - `plot`: the same as a drawing.

mod load;
mod plot;
mod prompts;
mod request;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Map, Value};

use self::load::{Load, Round};
use self::prompts::Prompts;
use self::request::Server;
use self::summary::{Figures, Shape};
use super::figures::{Machine, told};

/// Requests of one round at most.
const MAX_REQUESTS: i64 = 100_000;
/// Words of a prompt at most.
const MAX_WORDS: i64 = 1_000_000;

/// Arguments of `tandem bench serve`.
#[derive(Args)]
pub struct Arguments {
    /// The server: `http://HOST:PORT`, with or without `/v1`.
    #[arg(long, value_name = "URL")]
    to: String,
    /// A second server, which is asked in turns with the first: the same prompts, one round each.
    #[arg(long, value_name = "URL")]
    beside: Option<String>,
    /// The model; without it the first that the server lists.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The model of the second server.
    #[arg(long, value_name = "NAME", requires = "beside")]
    beside_model: Option<String>,
    /// A file with the API key, sent to both servers.
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,
    /// Closed loop: so many clients, each of which sends its next request when its last answer is complete.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Open loop: requests per second, at random times (a Poisson process), whether or not answers come.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
    /// Requests of each round.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=MAX_REQUESTS))]
    requests: u32,
    /// Rounds that are measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rounds before them that are not.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warm: u32,
    /// Words that all prompts begin with.
    #[arg(long, value_name = "WORDS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(0..=MAX_WORDS))]
    shared: u32,
    /// Words that each prompt ends with, of its own.
    #[arg(long, value_name = "WORDS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=MAX_WORDS))]
    own: u32,
    /// Tokens of each answer at most.
    #[arg(long, value_name = "TOKENS", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=MAX_WORDS))]
    max_tokens: u32,
    /// One client more, which has prompts of so many words read while the others ask, and takes one token of each answer.
    #[arg(long, value_name = "WORDS", value_parser = clap::value_parser!(u32).range(1..=MAX_WORDS))]
    heavy: Option<u32>,
    /// Asks `/v1/completions`, for a model without a chat template.
    #[arg(long)]
    completions: bool,
    /// More fields of each request, as a JSON object: sampling, a schema.
    #[arg(long, value_name = "JSON", default_value = r#"{"temperature": 0}"#, value_parser = object)]
    fields: Map<String, Value>,
    /// Fields for the first server only, such as `{"tandem": {"keep": false}}`.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = object)]
    to_fields: Map<String, Value>,
    /// Of the prompts, and of the times of an open loop.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes a drawing of the times to first token and between tokens.
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("not a JSON object: {e}"))
}

impl Arguments {
    fn load(&self) -> anyhow::Result<Load> {
        match self.rate {
            None => Ok(Load::Closed(self.clients)),
            Some(rate) if rate.is_finite() && rate > 0.0 => Ok(Load::Open(rate)),
            Some(rate) => bail!("--rate is {rate}; it must be above 0"),
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            clients: self.rate.is_none().then_some(self.clients),
            rate: self.rate,
            requests: self.requests,
            rounds: self.rounds,
            shared_words: self.shared,
            own_words: self.own,
            heavy_words: self.heavy,
            max_tokens: self.max_tokens,
            fields: self.fields.clone(),
        }
    }
}

/// Runs the measurement.
///
/// # Errors
/// If a server cannot be asked, or gives no text in a whole round.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let figures = measure(&arguments).await?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, plot::svg(&figures))
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    let is_whole = figures.sides.iter().all(|side| side.failed == 0);
    told(async { Ok(figures) }, arguments.json, ToString::to_string).await?;
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn servers(arguments: &Arguments) -> anyhow::Result<Vec<Server>> {
    let key = match &arguments.key_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.with_context(|| format!("{}: cannot be read", path.display()))?)
        }
    };
    let mut fields = arguments.fields.clone();
    fields.extend(arguments.to_fields.clone());
    let mut sides = vec![(&arguments.to, &arguments.model, fields)];
    if let Some(url) = &arguments.beside {
        sides.push((url, &arguments.beside_model, arguments.fields.clone()));
    }
    let mut servers = Vec::new();
    for (url, model, mut fields) in sides {
        fields.insert("max_tokens".to_owned(), arguments.max_tokens.into());
        let server = Server::new(url, key.as_deref(), arguments.completions, fields)?;
        servers.push(server.with_model(model.as_deref()).await?);
    }
    Ok(servers)
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    let load = arguments.load()?;
    let servers = servers(arguments).await?;
    let prompts = Prompts::new(arguments.seed, arguments.shared, arguments.own);
    let mut rounds: Vec<Vec<Round>> = servers.iter().map(|_| Vec::new()).collect();
    for number in 0..arguments.warm + arguments.rounds {
        let texts: Vec<String> = (0..arguments.requests)
            .map(|request| prompts.text(number, request))
            .collect();
        let heavy = arguments.heavy.map(|words| prompts.heavy(number, words));
        // Who is asked first takes turns, too.
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if number % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let round = load
                .run(
                    &servers[side],
                    &texts,
                    heavy.as_ref(),
                    arguments.seed + u64::from(number),
                )
                .await;
            if let Some(reason) = round.is_useless() {
                bail!("{}: no answer has text: {reason}", servers[side].address());
            }
            if number >= arguments.warm {
                rounds[side].push(round);
            }
        }
    }
    let sides = servers.iter().zip(&rounds);
    Ok(Figures::new(Machine::this(), arguments.shape(), sides))
}
