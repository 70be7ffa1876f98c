//! `tandem run`: one prompt, answered on the terminal.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use tandem_identity::Public;
use tandem_openai::{
    ChatCompletionChunk, ChatRequest, ErrorBody, FinishReason, Message, ResponseFormat, Role,
    RouteChoice, Sampling, StreamOptions, TandemInfo, TandemOptions,
};

use crate::config::{self, Config};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::{nodes, output, security, shutdown, tables};

/// Longest silence of the coordinator, which sends signs of life while it works.
const SILENCE: Duration = Duration::from_secs(60);

/// Room in a request for everything but the prompt, in bytes.
const REQUEST_ALLOWANCE: usize = 64 << 10;

/// Largest prompt, in bytes: what the coordinator takes, less the allowance. Characters that JSON
/// escapes count more there, and the coordinator says so.
const MAX_PROMPT_BYTES: usize = tandem_openai::limits::MAX_BODY_BYTES - REQUEST_ALLOWANCE;

/// Arguments of `tandem run`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// Which model to ask [default: the only one].
    #[arg(long)]
    model: Option<String>,
    /// The prompt; `-` reads it from standard input.
    #[arg(required_unless_present = "prompt_file")]
    prompt: Option<String>,
    /// Reads the prompt from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Tokens of the answer at most [default: until the context is full].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Same seed, same tokens.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the prefill may run.
    #[arg(long, value_enum, default_value = "auto")]
    route: Route,
}

/// [`RouteChoice`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Route {
    /// The coordinator decides.
    Auto,
    /// On the decode node itself.
    Local,
    /// On another node if one can, waiting for it.
    Remote,
}

impl From<Route> for RouteChoice {
    fn from(route: Route) -> Self {
        match route {
            Route::Auto => Self::Auto,
            Route::Local => Self::Local,
            Route::Remote => Self::Remote,
        }
    }
}

/// Streams the answer to standard output, then the timings to standard error.
///
/// # Errors
/// If the configuration cannot be used, no node can serve the model, or the answer breaks off.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let config = arguments.config.load(environment)?;
    let security = arguments.security.security(environment)?;
    let model = choose_model(&config, arguments.model.as_deref())?;
    let prompt = read_prompt(&arguments)?;
    let request = request(&arguments, model, prompt);
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut coordinator = Coordinator::start(
        any_port,
        Public::plaintext(),
        config.coordinator.clone(),
        security,
    )
    .await?;
    tokio::select! {
        result = answer(&mut coordinator, &config, &request) => result?,
        () = shutdown::signal() => return Ok(ExitCode::from(shutdown::INTERRUPTED)),
    }
    coordinator.stop().await?;
    Ok(ExitCode::SUCCESS)
}

fn choose_model(config: &Config, wanted: Option<&str>) -> anyhow::Result<String> {
    let names: Vec<&str> = config
        .coordinator
        .models
        .iter()
        .map(|m| m.name.as_str())
        .collect();
    match (wanted, names.as_slice()) {
        (Some(wanted), names) if names.contains(&wanted) => Ok(wanted.to_owned()),
        (Some(wanted), names) => bail!(
            "--model `{wanted}` is not configured: use one of {}",
            names.join(", ")
        ),
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => bail!("name a model with --model: one of {}", names.join(", ")),
    }
}

fn read_prompt(arguments: &Arguments) -> anyhow::Result<String> {
    let source: Box<dyn Read> = match (&arguments.prompt_file, arguments.prompt.as_deref()) {
        (Some(path), _) => Box::new(
            std::fs::File::open(path)
                .with_context(|| format!("--prompt-file: cannot read {}", path.display()))?,
        ),
        (None, Some("-")) => Box::new(std::io::stdin().lock()),
        (None, prompt) => return Ok(prompt.unwrap_or_default().to_owned()),
    };
    let mut text = String::new();
    source
        .take(MAX_PROMPT_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .context("the prompt cannot be read as UTF-8 text")?;
    if text.len() > MAX_PROMPT_BYTES {
        bail!("the prompt is longer than {MAX_PROMPT_BYTES} bytes: shorten it");
    }
    Ok(text)
}

fn request(arguments: &Arguments, model: String, prompt: String) -> ChatRequest {
    ChatRequest {
        model,
        messages: vec![Message {
            role: Role::User,
            content: prompt,
        }],
        sampling: Sampling {
            max_tokens: arguments.max_tokens,
            temperature: Some(arguments.temperature),
            seed: arguments.seed,
            ..Sampling::default()
        },
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
        },
        response_format: ResponseFormat::Text,
        tandem: TandemOptions {
            route: arguments.route.into(),
            keep: false,
            ..TandemOptions::default()
        },
        ignored: Vec::new(),
    }
}

async fn answer(
    coordinator: &mut Coordinator,
    config: &Config,
    request: &ChatRequest,
) -> anyhow::Result<()> {
    let found = nodes::problems(
        &config.coordinator,
        &coordinator.nodes().await?,
        coordinator.is_tls(),
    );
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    let url = format!("{}/chat/completions", coordinator.base_url());
    let response = coordinator.http().post(url).json(request).send();
    let response = tokio::time::timeout(SILENCE, response)
        .await
        .context("the coordinator is silent")??;
    if !response.status().is_success() {
        let refusal: ErrorBody = response.json().await?;
        bail!("{}", refusal.error.message);
    }
    let (info, finish) = show(response).await?;
    if finish == FinishReason::Length {
        eprintln!("tandem: the answer was cut at --max-tokens or at the end of the context");
    }
    eprintln!("{}", tables::timings(&info));
    for event in &info.events {
        eprintln!("note: {event}");
    }
    Ok(())
}

/// Prints an answer as it comes.
async fn show(response: reqwest::Response) -> anyhow::Result<(TandemInfo, FinishReason)> {
    let bytes = futures_util::stream::try_unfold(response, |mut response| async move {
        // Comments keep the stream alive and count, so that only a dead coordinator is silent.
        let chunk = tokio::time::timeout(SILENCE, response.chunk())
            .await
            .context("the coordinator is silent")?;
        anyhow::Ok(chunk?.map(|bytes| (bytes, response)))
    });
    let mut events = Box::pin(bytes.eventsource());
    let (mut info, mut finish) = (None, None);
    while let Some(event) = events.next().await {
        let data = event
            .map_err(|e| anyhow::anyhow!("the answer broke off: {e}"))?
            .data;
        if data == "[DONE]" {
            break;
        }
        if let Ok(failure) = serde_json::from_str::<ErrorBody>(&data) {
            output::print("")?;
            bail!("the answer broke off: {}", failure.error.message);
        }
        let chunk: ChatCompletionChunk =
            serde_json::from_str(&data).context("the coordinator's answer cannot be read")?;
        if let Some(choice) = chunk.choices.into_iter().next() {
            output::print_part(&choice.delta.content.unwrap_or_default())?;
            finish = choice.finish_reason.or(finish);
        }
        info = chunk.tandem.or(info);
    }
    output::print("")?;
    match (info, finish) {
        (Some(info), Some(finish)) => Ok((info, finish)),
        _ => bail!("the answer broke off before its end"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tandem_coordinator::limits::MAX_NAME_BYTES;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn the_coordinator_takes_the_longest_prompt() {
        let line = "run --config x --max-tokens 1048576 --temperature 0.12345678901234567 \
                    --seed 18446744073709551615 --route remote -";
        let arguments = Line::parse_from(line.split_whitespace()).arguments;
        let (model, prompt) = ("m".repeat(MAX_NAME_BYTES), "x".repeat(MAX_PROMPT_BYTES));
        let body = serde_json::to_vec(&request(&arguments, model, prompt)).unwrap();
        tandem_openai::parse_chat(&body, false).unwrap();
    }
}
