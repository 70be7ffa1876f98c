//! `tandem run`: one prompt, answered on the terminal; without one, a chat.

mod chat;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use tandem_api::{
    ChatCompletionChunk, ChatRequest, ErrorBody, FinishReason, Format, Message, Role, RouteChoice,
    SamplingParams, StreamOptions, TandemInfo, TandemOptions,
};
use tandem_cluster::Public;

use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::setup::{self, Setup};
use crate::{nodes, output, shutdown, tables};

/// Longest silence of the coordinator, which sends signs of life while it works.
const SILENCE: Duration = Duration::from_secs(60);

/// Room in a request for everything but the prompt, in bytes.
const REQUEST_ALLOWANCE: usize = 64 << 10;

/// Largest prompt, in bytes: what the coordinator takes, less the allowance. Characters that JSON
/// escapes count more there, and the coordinator says so.
const MAX_PROMPT_BYTES: usize = tandem_api::limits::MAX_BODY_BYTES - REQUEST_ALLOWANCE;

/// Arguments of `tandem run`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    setup: setup::Arguments,
    /// The prompt; `-` reads it from standard input. Without one, a chat: each line is a message, `/new` begins anew,
    /// Ctrl-C cuts an answer, Ctrl-D ends.
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
    let prompt = read_prompt(&arguments)?;
    let Setup {
        config,
        security,
        mut local,
    } = arguments.setup.prepare(environment).await?;
    let model = choose_model(&config, arguments.setup.chosen())?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut coordinator = Coordinator::start(
        any_port,
        Public::plaintext(),
        config.coordinator.clone(),
        security,
    )
    .await?;
    let work = async {
        warn(&mut coordinator, &config).await?;
        match prompt {
            Some(prompt) => {
                let request = request(&arguments, model, vec![said(Role::User, prompt)]);
                tokio::select! {
                    result = answer(&coordinator, &request) => result.map(|()| ExitCode::SUCCESS),
                    () = shutdown::signal() => Ok(ExitCode::from(shutdown::INTERRUPTED)),
                }
            }
            None => chat::chat(&coordinator, &arguments, &model).await,
        }
    };
    let code = tokio::select! {
        code = work => code?,
        failure = Setup::failed(&mut local) => {
            failure?;
            return Ok(ExitCode::FAILURE);
        }
    };
    coordinator.stop().await?;
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(code)
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
            "--model `{wanted}` is not in the configuration: use one of {}",
            names.join(", ")
        ),
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => bail!(
            "there are several models, and one is asked: with --config name it with --model, else give only one; there are {}",
            names.join(", ")
        ),
    }
}

/// The prompt; none for a chat.
fn read_prompt(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    let source: Box<dyn Read> = match (&arguments.prompt_file, arguments.prompt.as_deref()) {
        (Some(path), _) => Box::new(
            std::fs::File::open(path)
                .with_context(|| format!("--prompt-file: cannot read {}", path.display()))?,
        ),
        (None, Some("-")) => Box::new(std::io::stdin().lock()),
        (None, prompt) => return Ok(prompt.map(str::to_owned)),
    };
    let mut text = String::new();
    source
        .take(MAX_PROMPT_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .context("the prompt cannot be read as UTF-8 text")?;
    if text.len() > MAX_PROMPT_BYTES {
        bail!("the prompt is longer than {MAX_PROMPT_BYTES} bytes: shorten it");
    }
    Ok(Some(text))
}

fn said(role: Role, content: String) -> Message {
    Message::new(role, content)
}

fn request(arguments: &Arguments, model: String, messages: Vec<Message>) -> ChatRequest {
    ChatRequest {
        model,
        messages,
        sampling: SamplingParams {
            max_tokens: arguments.max_tokens,
            temperature: Some(arguments.temperature),
            seed: arguments.seed,
            ..SamplingParams::default()
        },
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
        },
        response_format: Format::Text,
        tandem: TandemOptions {
            route: arguments.route.into(),
            // A chat goes on.
            keep: arguments.prompt.is_none() && arguments.prompt_file.is_none(),
            ..TandemOptions::default()
        },
        ignored: Vec::new(),
    }
}

/// Tells what is wrong with the nodes.
async fn warn(coordinator: &mut Coordinator, config: &Config) -> anyhow::Result<()> {
    let found = nodes::problems(
        &config.coordinator,
        &coordinator.nodes().await?,
        coordinator.is_tls(),
    );
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    Ok(())
}

async fn answer(coordinator: &Coordinator, request: &ChatRequest) -> anyhow::Result<()> {
    let mut text = String::new();
    let (info, finish) = ask(coordinator, request, &mut text).await?;
    if finish == FinishReason::Length {
        eprintln!("tandem: the answer was cut at --max-tokens or at the end of the context");
    }
    eprintln!("{}", tables::timings(&info));
    for event in &info.events {
        eprintln!("note: {event}");
    }
    Ok(())
}

/// Asks, and prints the answer as it comes; what has come of it is in `text`.
async fn ask(
    coordinator: &Coordinator,
    request: &ChatRequest,
    text: &mut String,
) -> anyhow::Result<(TandemInfo, FinishReason)> {
    let url = format!("{}/chat/completions", coordinator.base_url());
    let response = coordinator.http().post(url).json(request).send();
    let response = tokio::time::timeout(SILENCE, response)
        .await
        .context("the coordinator is silent")??;
    if !response.status().is_success() {
        let refusal: ErrorBody = response.json().await?;
        bail!("{}", refusal.error.message);
    }
    show(response, text).await
}

/// Prints an answer as it comes.
async fn show(
    response: reqwest::Response,
    text: &mut String,
) -> anyhow::Result<(TandemInfo, FinishReason)> {
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
            let part = choice.delta.content.unwrap_or_default();
            output::print_part(&part)?;
            text.push_str(&part);
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
        let line = "run --model x --max-tokens 1048576 --temperature 0.12345678901234567 \
                    --seed 18446744073709551615 --route remote -";
        let arguments = Line::parse_from(line.split_whitespace()).arguments;
        let (model, prompt) = ("m".repeat(MAX_NAME_BYTES), "x".repeat(MAX_PROMPT_BYTES));
        let body = serde_json::to_vec(&request(&arguments, model, vec![said(Role::User, prompt)]))
            .unwrap();
        tandem_api::parse_chat(&body, false).unwrap();
    }
}
