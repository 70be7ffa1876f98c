//! A request in the words of each dialect.

use serde_json::{Map, Value, json};
use tandem_api::{ApiError, Passed, changes_nothing};
use tandem_proto::{Format, Message, Prompt, SamplingParams};

use super::probe::Served;
use super::shape::Shape;
use crate::config::dialect::Dialect;
use crate::config::server::ServerConfig;
use crate::request::Request;

/// Fields that are written anew.
const OWN: [&str; 4] = ["messages", "prompt", "max_tokens", "keep_alive"];
/// Fields that are options of Ollama by the same name.
const OPTIONS: [&str; 13] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "num_keep",
    "num_gpu",
];
/// Fields about how tokens are chosen, which a small server leaves to itself.
const IGNORED_SAMPLING: [&str; 7] = [
    "seed",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
];
/// Tokens beside those of its text that a message may have.
const TOKENS_PER_MESSAGE: usize = 32;
/// Tokens of an answer for which room is made where no limit is given.
const OPEN_ANSWER_TOKENS: u32 = 2048;
/// Least context of a request to Ollama, in tokens: each other one loads the model anew.
const LEAST_CONTEXT: u32 = 8192;

/// What is asked, beside the request itself.
pub(crate) struct Asked<'a> {
    pub(crate) config: &'a ServerConfig,
    pub(crate) dialect: Dialect,
    pub(crate) model: &'a Served,
    pub(crate) request: &'a Request,
    pub(crate) shape: Option<&'a Shape>,
    /// The model is told the shape, because the server does not bind it to that.
    pub(crate) instructed: bool,
    /// Answers that did not fit, each with what is wrong with it.
    pub(crate) turns: &'a [(String, String)],
    /// Tokens of the context, of Ollama.
    pub(crate) context: Option<u32>,
}

/// Where it is posted, the body, and who put the messages into a prompt.
pub(crate) struct Post {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    pub(crate) prompt: &'static str,
    /// Fields of the request that the server does not hear.
    pub(crate) unheard: Vec<String>,
}

impl Asked<'_> {
    pub(crate) fn post(&self) -> Result<Post, ApiError> {
        match self.dialect {
            Dialect::OpenAi => Ok(self.openai()),
            Dialect::Ollama => self.ollama(),
            Dialect::Generate => self.generate(),
        }
    }

    fn openai(&self) -> Post {
        let request = self.request;
        let mut body = self.fields();
        let path = match &request.prompt {
            Prompt::Chat(_) => {
                body.insert("messages".to_owned(), Value::Array(self.messages()));
                "/v1/chat/completions"
            }
            Prompt::Text(text) => {
                body.insert("prompt".to_owned(), json!(text));
                "/v1/completions"
            }
            Prompt::Tokens(tokens) => {
                body.insert("prompt".to_owned(), json!(tokens));
                "/v1/completions"
            }
        };
        body.insert("model".to_owned(), json!(self.model.theirs));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        if let Some(most) = request.generation.sampling.max_tokens {
            body.insert("max_tokens".to_owned(), json!(most));
        }
        let format = &request.generation.format;
        if let Some(format) = response_format(format).filter(|_| !self.instructed) {
            body.insert("response_format".to_owned(), json!(format));
        }
        Post {
            path,
            body: Value::Object(body),
            prompt: "server",
            unheard: Vec::new(),
        }
    }

    /// The fields of the request: as they came, or as they are understood here.
    fn fields(&self) -> Passed {
        match &self.request.passed {
            Some(passed) => passed.clone(),
            None => sampling(&self.request.generation.sampling),
        }
    }

    /// The messages as they came, with what is added to them.
    fn messages(&self) -> Vec<Value> {
        let passed = self.request.passed.as_ref();
        let mut messages = match (
            passed.and_then(|passed| passed.get("messages")),
            &self.request.prompt,
        ) {
            (Some(Value::Array(messages)), _) => messages.clone(),
            (_, Prompt::Chat(messages)) => {
                let message = |m: &Message| match &m.name {
                    None => json!({"role": m.role, "content": m.content}),
                    Some(name) => json!({"role": m.role, "name": name, "content": m.content}),
                };
                messages.iter().map(message).collect()
            }
            _ => Vec::new(),
        };
        if let Some(shape) = self.shape.filter(|_| self.instructed) {
            add(&mut messages, &shape.instruction());
        }
        for (answer, wrong) in self.turns {
            messages.push(json!({"role": "assistant", "content": answer}));
            messages.push(json!({"role": "user", "content": correction(wrong)}));
        }
        messages
    }

    fn ollama(&self) -> Result<Post, ApiError> {
        let request = self.request;
        let (mut body, mut options) = self.ollama_fields()?;
        if let Some(context) = self.context {
            options.insert("num_ctx".to_owned(), json!(context));
        }
        if let Some(most) = request.generation.sampling.max_tokens {
            options.insert("num_predict".to_owned(), json!(most));
        }
        body.insert("model".to_owned(), json!(self.model.theirs));
        body.insert("stream".to_owned(), json!(true));
        // Older versions do not know these; what they cut is seen by how much they have read.
        body.insert("truncate".to_owned(), json!(false));
        body.insert("shift".to_owned(), json!(false));
        if let Some(keep) = &self.config.keep_alive {
            let number = keep
                .parse::<i64>()
                .map_or_else(|_| json!(keep), |n| json!(n));
            body.insert("keep_alive".to_owned(), number);
        }
        let path = match &request.prompt {
            Prompt::Chat(_) => {
                let messages = self.messages().into_iter().map(ollama_message);
                let messages = messages.collect::<Result<Vec<Value>, _>>()?;
                body.insert("messages".to_owned(), Value::Array(messages));
                match &request.generation.format {
                    _ if self.instructed => {}
                    Format::Text => {}
                    Format::JsonObject => {
                        body.insert("format".to_owned(), json!("json"));
                    }
                    Format::JsonSchema { json_schema } => {
                        body.insert("format".to_owned(), json_schema.schema.clone());
                    }
                }
                "/api/chat"
            }
            Prompt::Text(text) => {
                body.insert("prompt".to_owned(), json!(text));
                body.insert("raw".to_owned(), json!(true));
                "/api/generate"
            }
            Prompt::Tokens(_) => return Err(self.no_tokens()),
        };
        body.insert("options".to_owned(), Value::Object(options));
        Ok(Post {
            path,
            body: Value::Object(body),
            prompt: "server",
            unheard: Vec::new(),
        })
    }

    /// The fields of the request that Ollama has, and its options.
    fn ollama_fields(&self) -> Result<(Passed, Passed), ApiError> {
        let mut options = Map::new();
        let mut body = Map::new();
        let mut has_tools = true;
        for (name, value) in self.fields() {
            match name.as_str() {
                "stop" => {
                    options.insert(name, json!(self.request.generation.sampling.stop));
                }
                name if OPTIONS.contains(&name) => {
                    options.insert(name.to_owned(), value);
                }
                "tools" | "think" => {
                    body.insert(name, value);
                }
                "reasoning_effort" => {
                    body.insert("think".to_owned(), effort(value));
                }
                "tool_choice" if matches!(value.as_str(), Some("auto" | "none")) => {
                    has_tools = value != "none";
                }
                name if OWN.contains(&name) || changes_nothing(name, &value) => {}
                name => return Err(self.unknown(name)),
            }
        }
        if !has_tools {
            body.remove("tools");
        }
        Ok((body, options))
    }

    fn generate(&self) -> Result<Post, ApiError> {
        let request = self.request;
        let mut notes = Vec::new();
        for (name, value) in request.passed.iter().flatten() {
            match name.as_str() {
                name if OWN.contains(&name) || changes_nothing(name, value) => {}
                // What it knows, and what is done for it.
                "temperature" | "stop" => {}
                name if IGNORED_SAMPLING.contains(&name) => notes.push(name.to_owned()),
                name => return Err(self.unknown(name)),
            }
        }
        let parts = request
            .passed
            .as_ref()
            .and_then(|passed| passed.get("messages")?.as_array());
        for message in parts.into_iter().flatten() {
            let parts = message["content"].as_array().into_iter().flatten();
            if let Some(part) = parts.into_iter().find(|part| !part["text"].is_string()) {
                return Err(unread(part));
            }
        }
        let (prompt, how) = match &request.prompt {
            Prompt::Tokens(_) => return Err(self.no_tokens()),
            Prompt::Text(text) => (text.clone(), "plain text"),
            Prompt::Chat(messages) => self.rendered(messages)?,
        };
        let body = json!({
            "prompt": prompt,
            "max_tokens": request.generation.sampling.max_tokens.unwrap_or(OPEN_ANSWER_TOKENS),
            "temperature": request.generation.sampling.temperature(),
        });
        Ok(Post {
            path: "/generate",
            body,
            prompt: how,
            unheard: notes,
        })
    }

    /// The messages as one prompt: in the model's form where a template is known, else as plain text.
    fn rendered(&self, messages: &[Message]) -> Result<(String, &'static str), ApiError> {
        let mut messages = messages.to_vec();
        if let (Some(shape), Some(last)) = (self.shape, messages.last_mut()) {
            last.content = format!("{}\n\n{}", last.content, shape.instruction());
        }
        for (answer, wrong) in self.turns {
            messages.push(Message::new("assistant", answer));
            messages.push(Message::new("user", correction(wrong)));
        }
        if let Some(render) = &self.config.render {
            let rendered = render.render(&messages).map_err(|e| {
                let message = format!(
                    "the template of the server `{}` cannot be used: {e}",
                    self.config.name
                );
                ApiError::invalid("messages", message)
            })?;
            return Ok((rendered, "template"));
        }
        let is_one = messages.iter().filter(|m| m.role != "system").count() == 1;
        let part = |m: &Message| match (is_one, m.role.as_str()) {
            (true, _) | (_, "system") => m.content.clone(),
            (false, "assistant") => format!("Assistant: {}", m.content),
            (false, _) => format!("User: {}", m.content),
        };
        let mut parts: Vec<String> = messages.iter().map(part).collect();
        if !is_one {
            parts.push("Assistant:".to_owned());
        }
        Ok((parts.join("\n\n"), "plain text"))
    }

    fn unknown(&self, name: &str) -> ApiError {
        let (server, dialect) = (&self.config.name, self.dialect.as_str());
        let message = format!(
            "'{name}' is nothing that the server `{server}` ({dialect}) knows; leave it out"
        );
        ApiError::invalid(name, message)
    }

    fn no_tokens(&self) -> ApiError {
        let message = format!(
            "the server `{}` takes no token ids; send the prompt as text",
            self.config.name
        );
        ApiError::invalid("prompt", message)
    }
}

/// The size of the context in which Ollama is to answer a request: what it was before, or larger, because each other size
/// loads the model anew. A token has two bytes at least in nearly all texts, and what does not fit is refused.
pub(crate) fn context_for(request: &Request, before: u32, most: Option<u32>) -> u32 {
    let bytes: usize = match &request.prompt {
        Prompt::Chat(messages) => {
            let of = |m: &Message| m.content.len() / 2 + TOKENS_PER_MESSAGE;
            messages.iter().map(of).sum()
        }
        Prompt::Text(text) => text.len() / 2 + TOKENS_PER_MESSAGE,
        Prompt::Tokens(tokens) => tokens.len(),
    };
    let further = request
        .passed
        .as_ref()
        .and_then(|passed| passed.get("tools"));
    let further = further.map_or(0, |tools| tools.to_string().len() / 2);
    let answer = request
        .generation
        .sampling
        .max_tokens
        .unwrap_or(OPEN_ANSWER_TOKENS);
    let needed = u32::try_from(bytes + further)
        .unwrap_or(u32::MAX)
        .saturating_add(answer);
    let round = needed.max(LEAST_CONTEXT).checked_next_power_of_two();
    let wanted = round.unwrap_or(u32::MAX).max(before);
    most.map_or(wanted, |most| wanted.min(most))
}

fn correction(wrong: &str) -> String {
    format!(
        "That was not what was asked for: {wrong}. Answer again, with the JSON and nothing else."
    )
}

/// Adds a text to the last message of a person.
fn add(messages: &mut Vec<Value>, text: &str) {
    let last = messages.last_mut().filter(|m| m["role"] == "user");
    match last.and_then(|m| m.get_mut("content")) {
        Some(Value::String(content)) => *content = format!("{content}\n\n{text}"),
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": text})),
        _ => messages.push(json!({"role": "user", "content": text})),
    }
}

/// The sampling parameters with the defaults that a node would take, so that the same request gives the same answer. The
/// length is asked for by itself. What is off is left out, and a `top_p` of 0 is a very small one: not all servers take these.
fn sampling(sampling: &SamplingParams) -> Passed {
    let top_p = sampling.top_p.filter(|p| *p < 1.0);
    let filled = SamplingParams {
        max_tokens: None,
        temperature: Some(sampling.temperature()),
        top_p: top_p.map(|p| p.max(f64::from(f32::MIN_POSITIVE))),
        top_k: sampling.top_k.filter(|k| *k > 0),
        min_p: sampling.min_p.filter(|p| *p > 0.0),
        seed: Some(sampling.seed()),
        stop: sampling.stop.clone(),
    };
    match serde_json::to_value(filled) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The format as every server takes it: the client's name of a schema may be one that they refuse, and some bind an answer
/// only where `strict` is true.
fn response_format(format: &Format) -> Option<Format> {
    match format {
        Format::Text => None,
        Format::JsonObject => Some(Format::JsonObject),
        Format::JsonSchema { json_schema } => {
            Some(Format::schema("answer", json_schema.schema.clone()))
        }
    }
}

/// How much is to be thought, as Ollama reads it.
fn effort(value: Value) -> Value {
    match value.as_str() {
        Some("none") => json!(false),
        Some("minimal") => json!("low"),
        _ => value,
    }
}

/// A message as Ollama reads it: texts in one, pictures beside them, arguments of tools as objects.
fn ollama_message(mut message: Value) -> Result<Value, ApiError> {
    if message["role"] == "developer" {
        message["role"] = json!("system");
    }
    if let Some(Value::Array(parts)) = message.get("content").cloned() {
        let (mut texts, mut pictures) = (Vec::new(), Vec::new());
        for part in &parts {
            let url = part["image_url"]["url"].as_str();
            let data = url.and_then(|url| url.split_once(";base64,"));
            match (part["text"].as_str(), data) {
                (Some(text), _) => texts.push(text),
                // A picture that is elsewhere is not fetched there.
                (None, Some((_, data))) => pictures.push(json!(data)),
                (None, None) => return Err(unread(part)),
            }
        }
        message["content"] = json!(texts.join("\n"));
        if !pictures.is_empty() {
            message["images"] = Value::Array(pictures);
        }
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            let function = call.get_mut("function").and_then(Value::as_object_mut);
            let Some(arguments) = function.and_then(|f| f.get_mut("arguments")) else {
                continue;
            };
            let read = arguments.as_str();
            if let Some(read) = read.and_then(|text| serde_json::from_str(text).ok()) {
                *arguments = read;
            }
        }
    }
    Ok(message)
}

/// A part of a content that has another kind than this server reads.
fn unread(part: &Value) -> ApiError {
    let kind = part["type"].as_str().unwrap_or("unknown");
    let kind: String = kind.chars().take(32).collect();
    let message =
        format!("a part of type '{kind}' is nothing that this model's server reads; leave it out");
    ApiError::invalid("messages", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_one_of_ollama() {
        let message = json!({"role": "assistant", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ], "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]});
        let expected = json!({"role": "assistant", "content": "a\nb",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}], "images": ["AAAA"]});
        assert_eq!(ollama_message(message).unwrap(), expected);
        for (content, is_read) in [
            (
                json!([{"type": "image_url", "image_url": {"url": "https://192.0.2.1/a.png"}}]),
                false,
            ),
            (json!([{"type": "input_audio", "input_audio": {}}]), false),
            (json!([3]), false),
            (json!("text"), true),
        ] {
            let message = json!({"role": "developer", "content": content, "tool_calls": ["x", {"function": "f"}]});
            let read = ollama_message(message);
            assert_eq!(read.is_ok(), is_read);
            assert!(read.is_err() || read.unwrap()["role"] == "system");
        }
    }
}
