//! `POST /v1/completions`: the request.

use crate::chat::model;
use crate::error::ApiError;
use crate::fields::{Fields, parse_body, wrong_type};
use crate::limits;
use crate::refused;
use crate::sampling::{StreamOptions, sampling};
use crate::tandem::TandemOptions;
use crate::unknown::Unknown;
use serde::Serialize;
use serde_json::Value;
use tandem_proto::SamplingParams;

/// A completion request, checked. Serialises to the body that [`parse_completion`] reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionRequest {
    /// Which model to ask.
    pub model: String,
    /// What to continue.
    pub prompt: Prompt,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingParams,
    /// Whether the answer comes as server-sent events.
    pub stream: bool,
    /// Options of the stream; without effect when `stream` is false.
    #[serde(skip_serializing_if = "StreamOptions::is_default")]
    pub stream_options: StreamOptions,
    /// Extension.
    #[serde(skip_serializing_if = "TandemOptions::is_default")]
    pub tandem: TandemOptions,
    /// Fields that were ignored, where the request or the server permits that.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// A prompt without a chat template. An array with one string or one array of ids is read as its element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text, still to be tokenised.
    Text(String),
    /// Token ids, at least one.
    Tokens(Vec<u32>),
}

/// Reads and checks the body of a completion request.
///
/// # Errors
/// As [`crate::parse_chat`].
pub fn parse_completion(body: &[u8], lenient: bool) -> Result<CompletionRequest, ApiError> {
    let mut fields = parse_body(body)?;
    let tandem = TandemOptions::parse(&mut fields)?;
    let unknown = Unknown::new(tandem.lenient.unwrap_or(lenient));
    completion(fields, tandem, unknown)
}

/// The rest of a completion request.
pub(crate) fn completion(
    mut fields: Fields,
    mut tandem: TandemOptions,
    mut unknown: Unknown,
) -> Result<CompletionRequest, ApiError> {
    refused::check_completion(&mut fields, &mut unknown)?;
    let model = model(&mut fields)?;
    let prompt = prompt(&mut fields)?;
    let sampling = sampling(&mut fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let stream_options = StreamOptions::parse(&mut fields, &mut unknown)?;
    tandem.take_salt(&mut fields)?;
    refused::finish(fields, &["prompt"], &mut unknown)?;
    Ok(CompletionRequest {
        model,
        prompt,
        sampling,
        stream,
        stream_options,
        tandem,
        ignored: unknown.ignored(),
    })
}

fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    let value = fields
        .take("prompt")
        .ok_or_else(|| fields.missing("prompt"))?;
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) => match items.as_slice() {
            [] => Err(ApiError::invalid("prompt", "'prompt' must not be empty")),
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(ids)] => tokens(ids),
            [Value::String(_) | Value::Array(_), ..] => Err(ApiError::invalid(
                "prompt",
                "'prompt' may hold one prompt only; send one request for each",
            )),
            ids => tokens(ids),
        },
        other => Err(wrong_type(
            "prompt",
            "a string or an array of token ids",
            &other,
        )),
    }
}

fn tokens(ids: &[Value]) -> Result<Prompt, ApiError> {
    if ids.is_empty() || ids.len() > limits::MAX_PROMPT_TOKENS {
        let limit = limits::MAX_PROMPT_TOKENS;
        return Err(ApiError::invalid(
            "prompt",
            format!("'prompt' must hold 1 to {limit} token ids"),
        ));
    }
    let id = |(i, value): (usize, &Value)| {
        let path = format!("prompt[{i}]");
        let id = value.as_u64().and_then(|n| u32::try_from(n).ok());
        id.ok_or_else(|| wrong_type(&path, "a token id (an integer from 0 to 4294967295)", value))
    };
    Ok(Prompt::Tokens(
        ids.iter().enumerate().map(id).collect::<Result<_, _>>()?,
    ))
}
