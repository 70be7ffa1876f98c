//! `POST /v1/chat/completions`: the request.

use crate::error::ApiError;
use crate::fields::{Fields, parse_body, wrong_type};
use crate::format::response_format;
use crate::limits;
use crate::refused;
use crate::sampling::{StreamOptions, sampling};
use crate::tandem::TandemOptions;
use crate::unknown::Unknown;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_proto::{Format, SamplingParams};

/// A chat request, checked. Serialises to the body that [`parse_chat`] reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatRequest {
    /// Which model to ask.
    pub model: String,
    /// The conversation, at least one message.
    pub messages: Vec<Message>,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingParams,
    /// Whether the answer comes as server-sent events.
    pub stream: bool,
    /// Options of the stream; without effect when `stream` is false.
    #[serde(skip_serializing_if = "StreamOptions::is_default")]
    pub stream_options: StreamOptions,
    /// Shape of the answer.
    #[serde(skip_serializing_if = "Format::is_text")]
    pub response_format: Format,
    /// Extension.
    #[serde(skip_serializing_if = "TandemOptions::is_default")]
    pub tandem: TandemOptions,
    /// Fields that were ignored, where the request or the server permits that.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// One message. Text parts are joined by a line break, as llama.cpp and vLLM do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Which participant of that role says it. Most templates have no place for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message without a name.
    #[must_use]
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            name: None,
        }
    }
}

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions to the model.
    System,
    /// The newer name of the same; most chat templates know only `system`.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name as it stands in JSON and in chat templates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// Reads and checks the body of a chat request. `lenient`: what is not known here is ignored, as if the request said so.
///
/// # Errors
/// 400 for malformed JSON, a wrong type, a value out of range or an unsupported field (`param` names
/// it), 413 for a body above [`limits::MAX_BODY_BYTES`].
pub fn parse_chat(body: &[u8], lenient: bool) -> Result<ChatRequest, ApiError> {
    let mut fields = parse_body(body)?;
    let tandem = TandemOptions::parse(&mut fields)?;
    let unknown = Unknown::new(tandem.lenient.unwrap_or(lenient));
    chat(fields, tandem, unknown)
}

/// The rest of a chat request.
pub(crate) fn chat(
    mut fields: Fields,
    mut tandem: TandemOptions,
    mut unknown: Unknown,
) -> Result<ChatRequest, ApiError> {
    refused::check_chat(&mut fields, &mut unknown)?;
    let model = model(&mut fields)?;
    let messages = messages(&mut fields, &mut unknown)?;
    let sampling = sampling(&mut fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let stream_options = StreamOptions::parse(&mut fields, &mut unknown)?;
    let response_format = response_format(&mut fields, &mut unknown)?;
    tandem.take_salt(&mut fields)?;
    refused::finish(fields, &["messages", "response_format"], &mut unknown)?;
    Ok(ChatRequest {
        model,
        messages,
        sampling,
        stream,
        stream_options,
        response_format,
        tandem,
        ignored: unknown.ignored(),
    })
}

/// The `model` field, which both kinds of request have.
pub(crate) fn model(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields
        .string("model")?
        .ok_or_else(|| fields.missing("model"))?;
    if name.is_empty() || name.len() > limits::MAX_MODEL_NAME_BYTES {
        let limit = limits::MAX_MODEL_NAME_BYTES;
        return Err(ApiError::invalid(
            "model",
            format!("'model' must have 1 to {limit} bytes"),
        ));
    }
    Ok(name)
}

fn messages(fields: &mut Fields, unknown: &mut Unknown) -> Result<Vec<Message>, ApiError> {
    let items = match fields.take("messages") {
        None => return Err(fields.missing("messages")),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type("messages", "an array", &other)),
    };
    if items.is_empty() || items.len() > limits::MAX_MESSAGES {
        let limit = limits::MAX_MESSAGES;
        return Err(ApiError::invalid(
            "messages",
            format!("'messages' must hold 1 to {limit} messages"),
        ));
    }
    items
        .into_iter()
        .enumerate()
        .map(|(i, item)| message(i, item, unknown))
        .collect()
}

fn message(index: usize, item: Value, unknown: &mut Unknown) -> Result<Message, ApiError> {
    let mut fields = Fields::of(item, &format!("messages[{index}]"))?;
    if unknown.passes() {
        return Ok(outline(&mut fields));
    }
    let role = match fields.string("role")?.as_deref() {
        None => return Err(fields.missing("role")),
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some(_) => {
            let path = fields.path_of("role");
            return Err(ApiError::invalid(
                &path,
                format!("'{path}' must be \"system\", \"developer\", \"user\" or \"assistant\""),
            ));
        }
    };
    let path = fields.path_of("content");
    let content = fields
        .take("content")
        .ok_or_else(|| fields.missing("content"))?;
    let content = content_text(content, &path, unknown)?;
    let name = participant(&mut fields)?;
    refused::check_message(&mut fields, unknown)?;
    let known = ["role", "content", "name"];
    fields.finish(&known, refused::INERT_OF_MESSAGE, unknown)?;
    Ok(Message {
        role,
        content,
        name,
    })
}

/// The name of who speaks, of the length that OpenAI takes.
fn participant(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let path = fields.path_of("name");
    let name = fields.string("name")?;
    let most = limits::MAX_PARTICIPANT_CHARS;
    let fits = |name: &String| (1..=most).contains(&name.chars().count());
    match name {
        Some(name) if !fits(&name) => Err(ApiError::invalid(
            &path,
            format!("'{path}' must have 1 to {most} characters"),
        )),
        name => Ok(name),
    }
}

/// What is known here of a message that another server reads: its texts.
fn outline(fields: &mut Fields) -> Message {
    let role = match fields.get("role").and_then(Value::as_str) {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("assistant") => Role::Assistant,
        _ => Role::User,
    };
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    Message::new(role, content)
}

fn content_text(content: Value, path: &str, unknown: &mut Unknown) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            return Err(wrong_type(
                path,
                "a string or an array of text parts",
                &other,
            ));
        }
    };
    if parts.is_empty() || parts.len() > limits::MAX_CONTENT_PARTS {
        let limit = limits::MAX_CONTENT_PARTS;
        return Err(ApiError::invalid(
            path,
            format!("'{path}' must hold 1 to {limit} parts"),
        ));
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::of(part, &format!("{path}[{i}]"))?;
        let kind = fields
            .string("type")?
            .ok_or_else(|| fields.missing("type"))?;
        if kind != "text" {
            let path = fields.path_of("type");
            return Err(ApiError::invalid(
                &path,
                format!("'{path}' must be \"text\"; other parts are not supported here"),
            ));
        }
        texts.push(
            fields
                .string("text")?
                .ok_or_else(|| fields.missing("text"))?,
        );
        fields.finish(&["type", "text"], &["cache_control"], unknown)?;
    }
    Ok(texts.join("\n"))
}
