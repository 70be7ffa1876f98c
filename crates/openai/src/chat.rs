//! `POST /v1/chat/completions`: the request.

use crate::error::ApiError;
use crate::fields::{Fields, parse_body, wrong_type};
use crate::limits;
use crate::refused;
use crate::sampling::{Sampling, StreamOptions};
use crate::tandem::TandemOptions;
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A chat request, checked. Serialises to the body that [`parse_chat`] reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatRequest {
    /// Which model to ask.
    pub model: String,
    /// The conversation, at least one message.
    pub messages: Vec<Message>,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// Whether the answer comes as server-sent events.
    pub stream: bool,
    /// Options of the stream; without effect when `stream` is false.
    #[serde(skip_serializing_if = "StreamOptions::is_default")]
    pub stream_options: StreamOptions,
    /// Shape of the answer.
    #[serde(skip_serializing_if = "ResponseFormat::is_text")]
    pub response_format: ResponseFormat,
    /// Extension.
    #[serde(skip_serializing_if = "TandemOptions::is_default")]
    pub tandem: TandemOptions,
}

/// One message. Text parts are joined by a line break, as llama.cpp and vLLM do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
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

/// `response_format`.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ResponseFormat {
    /// Free text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema. Key order in the schema is the order of generation.
    JsonSchema {
        /// Name of the schema, for messages.
        name: String,
        /// The JSON schema, an object.
        schema: Value,
        /// Whether the caller relies on it; here the schema always binds.
        strict: bool,
    },
}

impl ResponseFormat {
    fn is_text(&self) -> bool {
        *self == Self::Text
    }
}

impl Serialize for ResponseFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("ResponseFormat", 2)?;
        match self {
            Self::Text => out.serialize_field("type", "text")?,
            Self::JsonObject => out.serialize_field("type", "json_object")?,
            Self::JsonSchema {
                name,
                schema,
                strict,
            } => {
                out.serialize_field("type", "json_schema")?;
                out.serialize_field(
                    "json_schema",
                    &json!({"name": name, "schema": schema, "strict": strict}),
                )?;
            }
        }
        out.end()
    }
}

/// Reads and checks the body of a chat request.
///
/// # Errors
/// 400 for malformed JSON, a wrong type, a value out of range or an unsupported field (`param` names
/// it), 413 for a body above [`limits::MAX_BODY_BYTES`].
pub fn parse_chat(body: &[u8]) -> Result<ChatRequest, ApiError> {
    let mut fields = parse_body(body)?;
    refused::check_chat(&fields)?;
    Ok(ChatRequest {
        model: model(&mut fields)?,
        messages: messages(&mut fields)?,
        sampling: Sampling::parse(&mut fields)?,
        stream: fields.boolean("stream")?.unwrap_or(false),
        stream_options: StreamOptions::parse(&mut fields)?,
        response_format: response_format(&mut fields)?,
        tandem: TandemOptions::parse(&mut fields)?,
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

fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
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
        .map(|(i, item)| message(i, item))
        .collect()
}

fn message(index: usize, item: Value) -> Result<Message, ApiError> {
    let mut fields = Fields::of(item, &format!("messages[{index}]"))?;
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
    for name in ["tool_calls", "function_call", "audio"] {
        let neutral = fields
            .get(name)
            .is_none_or(|v| v.as_array().is_some_and(Vec::is_empty));
        if !neutral {
            let path = fields.path_of(name);
            return Err(ApiError::invalid(
                &path,
                format!("'{path}' is not supported here; leave it out"),
            ));
        }
    }
    let path = fields.path_of("content");
    let content = fields
        .take("content")
        .ok_or_else(|| fields.missing("content"))?;
    Ok(Message {
        role,
        content: content_text(content, &path)?,
    })
}

fn content_text(content: Value, path: &str) -> Result<String, ApiError> {
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
    }
    Ok(texts.join("\n"))
}

fn response_format(fields: &mut Fields) -> Result<ResponseFormat, ApiError> {
    let Some(value) = fields.take("response_format") else {
        return Ok(ResponseFormat::Text);
    };
    let mut outer = Fields::of(value, "response_format")?;
    match outer.string("type")?.as_deref() {
        None => Err(outer.missing("type")),
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::JsonObject),
        Some("json_schema") => {
            let inner = outer
                .take("json_schema")
                .ok_or_else(|| outer.missing("json_schema"))?;
            json_schema(Fields::of(inner, "response_format.json_schema")?)
        }
        Some(_) => Err(ApiError::invalid(
            "response_format.type",
            "'response_format.type' must be \"text\", \"json_object\" or \"json_schema\"",
        )),
    }
}

fn json_schema(mut fields: Fields) -> Result<ResponseFormat, ApiError> {
    let name = fields
        .string("name")?
        .ok_or_else(|| fields.missing("name"))?;
    if name.is_empty() || name.len() > limits::MAX_SCHEMA_NAME_BYTES {
        let (path, limit) = (fields.path_of("name"), limits::MAX_SCHEMA_NAME_BYTES);
        return Err(ApiError::invalid(
            &path,
            format!("'{path}' must have 1 to {limit} bytes"),
        ));
    }
    let strict = fields.boolean("strict")?.unwrap_or(false);
    let path = fields.path_of("schema");
    let schema = fields
        .take("schema")
        .ok_or_else(|| fields.missing("schema"))?;
    if !schema.is_object() {
        return Err(wrong_type(&path, "an object", &schema));
    }
    if schema.to_string().len() > limits::MAX_SCHEMA_BYTES {
        let limit = limits::MAX_SCHEMA_BYTES;
        return Err(ApiError::invalid(
            &path,
            format!("'{path}' is longer than {limit} bytes"),
        ));
    }
    Ok(ResponseFormat::JsonSchema {
        name,
        schema,
        strict,
    })
}
