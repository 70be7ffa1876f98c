//! Requests to servers, with limits on silence and on length. No proxy, and no redirect: prompts go where the configuration
//! says.

use std::time::Duration;

use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::stream::{self, BoxStream, StreamExt};
use reqwest::{Client, Method, Response, header};
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::error::{CallError, innermost};
use crate::limits::{MAX_REFUSAL_BYTES, MAX_SERVER_ANSWER_BYTES, MAX_SERVER_EVENT_BYTES};

use crate::config::server::ServerConfig;

/// Characters of a server's own message that are shown.
const MAX_SHOWN: usize = 300;
/// Where servers begin to repeat what they were sent, or what a model wrote.
const QUOTES: [&str; 5] = [
    "'input'",
    "\"input\"",
    "input_value",
    "input at pos",
    "'msg'",
];

/// Speaks to one server.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    base: String,
    key: Option<crate::config::server::Secret>,
    pub(crate) silence: Duration,
}

/// A request with a body.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) path: &'static str,
    /// One JSON object.
    pub(crate) body: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Message {
    /// With this id in both logs; never one of a client's.
    pub(crate) fn new(path: &'static str, body: &Value, id: &str) -> Self {
        Self {
            path,
            body: body.to_string(),
            headers: vec![("x-request-id", id.to_owned())],
        }
    }

    /// Puts a field into the body whose value is JSON already, and stays as it is.
    pub(crate) fn insert(&mut self, name: &str, json: &str) {
        let end = self.body.rfind('}').unwrap_or(self.body.len());
        self.body.truncate(end);
        let comma = if self.body.trim_end().ends_with('{') {
            ""
        } else {
            ","
        };
        self.body.push_str(&format!("{comma}\"{name}\":{json}}}"));
    }
}

/// The parts of an answer, as texts of JSON.
pub(crate) type Events = BoxStream<'static, Result<String, CallError>>;

/// A server's refusal.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    /// Its own words, shortened; nothing of them is trusted.
    pub(crate) message: String,
}

impl Http {
    pub(crate) fn new(
        config: &ServerConfig,
        base: &str,
        connect: Duration,
        silence: Duration,
    ) -> Result<Self, String> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(connect)
            // Servers close connections that are not used without a word, some after each answer; what is sent in that
            // moment is lost. A connection for each request costs a round trip.
            .pool_max_idle_per_host(0)
            .user_agent("tandem");
        if let Some(pem) = &config.ca {
            let certificates = reqwest::Certificate::from_pem_bundle(pem)
                .map_err(|e| format!("`ca_file` holds no certificates: {e}"))?;
            builder = builder.tls_certs_merge(certificates);
        }
        Ok(Self {
            client: builder.build().map_err(|e| innermost(&e))?,
            base: base.to_owned(),
            key: config.key.clone(),
            silence,
        })
    }

    /// The JSON at a path, whatever its status; `None` for what is no JSON.
    pub(crate) async fn look(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<(u16, Option<Value>), CallError> {
        let asking = async {
            let method = match body {
                Some(_) => Method::POST,
                None => Method::GET,
            };
            let body = body.map(Value::to_string);
            let response = self.send(method, path, body, &[]).await?;
            let status = response.status().as_u16();
            let read = read(response, MAX_SERVER_EVENT_BYTES, limit).await?;
            Ok((status, serde_json::from_slice(&read).ok()))
        };
        let answered = timeout(limit, asking).await;
        answered.map_err(|_| CallError::Silent(limit))?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        headers: &[(&'static str, String)],
    ) -> Result<Response, CallError> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        request.send().await.map_err(|e| match e.is_connect() {
            true => CallError::Connect(innermost(&e)),
            false => CallError::broken(&e),
        })
    }

    /// Status and whole body of the answer to a request.
    pub(crate) async fn post(&self, message: &Message) -> Result<(u16, Vec<u8>), CallError> {
        let body = Some(message.body.clone());
        let sending = self.send(Method::POST, message.path, body, &message.headers);
        let sent = timeout(self.silence, sending).await;
        let response = sent.map_err(|_| CallError::Silent(self.silence))??;
        let status = response.status().as_u16();
        let body = read(response, MAX_SERVER_ANSWER_BYTES, self.silence).await?;
        Ok((status, body))
    }

    /// `host:port` of where it asks.
    pub(crate) fn authority(&self) -> String {
        let url = reqwest::Url::parse(&self.base).ok();
        let port = url.as_ref().and_then(reqwest::Url::port_or_known_default);
        format!("{}:{}", self.host(), port.unwrap_or_default())
    }

    /// The host of where it asks.
    pub(crate) fn host(&self) -> String {
        let url = reqwest::Url::parse(&self.base).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str);
        host.unwrap_or_default().to_owned()
    }

    /// Posts a request whose answer comes in parts.
    pub(crate) async fn ask(
        &self,
        message: &Message,
    ) -> Result<Result<Events, Refused>, CallError> {
        let body = Some(message.body.clone());
        let sending = self.send(Method::POST, message.path, body, &message.headers);
        let sent = timeout(self.silence, sending).await;
        let response = sent.map_err(|_| CallError::Silent(self.silence))??;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION);
            let to = to.and_then(|to| to.to_str().ok()).unwrap_or("elsewhere");
            let message = format!(
                "it redirects to {}; name that address as its `url`",
                shown(to)
            );
            return Ok(Err(Refused {
                status: status.as_u16(),
                message,
            }));
        }
        if !status.is_success() {
            let body = read(response, MAX_REFUSAL_BYTES, self.silence).await?;
            let body = serde_json::from_slice::<Value>(&body).ok();
            let message = body.as_ref().and_then(error_message);
            return Ok(Err(Refused {
                status: status.as_u16(),
                message: message.unwrap_or_else(|| "no reason given".to_owned()),
            }));
        }
        let kind = response.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is = |name: &str| kind.trim_start().to_ascii_lowercase().starts_with(name);
        let (events, lines) = (is("text/event-stream"), is("application/x-ndjson"));
        let bytes = bytes(response, MAX_SERVER_ANSWER_BYTES, self.silence);
        Ok(Ok(match (events, lines) {
            (true, _) => sse(bytes),
            (_, true) => ndjson(bytes),
            _ => whole(bytes),
        }))
    }
}

/// The bytes of a body, with limits.
fn bytes(
    response: Response,
    most: usize,
    silence: Duration,
) -> BoxStream<'static, Result<Bytes, CallError>> {
    let next = move |(mut response, seen): (Response, usize)| async move {
        let chunk = timeout(silence, response.chunk()).await;
        let chunk = chunk.map_err(|_| CallError::Silent(silence))?;
        let Some(chunk) = chunk.map_err(|e| CallError::broken(&e))? else {
            return Ok(None);
        };
        let seen = seen + chunk.len();
        if seen > most {
            return Err(CallError::Odd(format!(
                "answered with more than {most} bytes"
            )));
        }
        Ok(Some((chunk, (response, seen))))
    };
    stream::try_unfold((response, 0), next).boxed()
}

async fn read(response: Response, most: usize, silence: Duration) -> Result<Vec<u8>, CallError> {
    let mut bytes = bytes(response, most, silence);
    let mut out = Vec::new();
    while let Some(chunk) = bytes.next().await {
        out.extend_from_slice(&chunk?);
    }
    Ok(out)
}

fn sse(bytes: BoxStream<'static, Result<Bytes, CallError>>) -> Events {
    let events = bytes.eventsource().map(|event| match event {
        Ok(event) if event.data.len() > MAX_SERVER_EVENT_BYTES => {
            Err(CallError::LongLine(MAX_SERVER_EVENT_BYTES))
        }
        Ok(event) => Ok(event.data),
        Err(EventStreamError::Transport(e)) => Err(e),
        Err(_) => Err(CallError::Odd("sent a malformed event".to_owned())),
    });
    events.boxed()
}

fn ndjson(bytes: BoxStream<'static, Result<Bytes, CallError>>) -> Events {
    let reader = StreamReader::new(bytes.map(|bytes| bytes.map_err(std::io::Error::other)));
    let codec = LinesCodec::new_with_max_length(MAX_SERVER_EVENT_BYTES);
    let lines = FramedRead::new(reader, codec).map(|line| match line {
        Ok(line) => Ok(line),
        Err(LinesCodecError::MaxLineLengthExceeded) => {
            Err(CallError::LongLine(MAX_SERVER_EVENT_BYTES))
        }
        Err(LinesCodecError::Io(e)) => Err(match e.downcast::<CallError>() {
            Ok(error) => error,
            Err(e) => CallError::broken(&e),
        }),
    });
    let lines = lines.filter(|line| {
        let is_empty = matches!(line, Ok(line) if line.trim().is_empty());
        std::future::ready(!is_empty)
    });
    lines.boxed()
}

fn whole(bytes: BoxStream<'static, Result<Bytes, CallError>>) -> Events {
    let reading = async move {
        let mut bytes = bytes;
        let mut out = Vec::new();
        while let Some(chunk) = bytes.next().await {
            out.extend_from_slice(&chunk?);
        }
        String::from_utf8(out).map_err(|_| CallError::Odd("answered with no text".to_owned()))
    };
    stream::once(reading).boxed()
}

/// The message of an error body. Servers differ in where they put it.
pub(crate) fn error_message(body: &Value) -> Option<String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) => value.get("message")?.as_str().map(str::to_owned),
        _ => None,
    };
    let found = match body.get("error") {
        Some(Value::Null) | None => {
            let is_error = body.get("object").and_then(Value::as_str) == Some("error");
            let message = body.get("message").filter(|_| is_error);
            message.or(body.get("detail")).and_then(text)?
        }
        Some(error) => text(error).unwrap_or_else(|| "no reason given".to_owned()),
    };
    Some(shown(&found))
}

/// A text of somebody else, fit for a message.
pub(crate) fn shown(text: &str) -> String {
    let quotes = QUOTES.iter().filter_map(|quote| text.find(quote));
    let text = &text[..quotes.min().unwrap_or(text.len())];
    let plain = text.chars().filter(|c| !c.is_control());
    let mut out: String = plain.clone().take(MAX_SHOWN).collect();
    if plain.count() > MAX_SHOWN {
        out.push('…');
    }
    out
}
