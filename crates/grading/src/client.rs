//! One streamed request to an OpenAI-compatible server. Silence is bounded, work is not.

use crate::config::GradingConfig;
use crate::error::GradingError;
use crate::finding::{Finding, FindingKind};
use crate::limits;
use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use reqwest::Response;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, Instant};
use tandem_api::{
    ChatCompletion, ChatCompletionChunk, ChatRequest, FinishReason, TandemInfo, Usage,
};
use tokio::time::timeout;

/// A server and how long to wait for it.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    tokenize: String,
    idle: Duration,
}

/// The size of a prompt, as tandem and vLLM tell it.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Counted {
    pub(crate) count: u64,
    #[serde(rename = "max_model_len")]
    pub(crate) context: Option<u64>,
}

/// A complete answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Milliseconds from sending to the first part of the text.
    pub(crate) first_ms: Option<f64>,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) usage: Option<Usage>,
    pub(crate) tandem: Option<TandemInfo>,
}

/// Why there is no complete answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the server refused the request with status {status}: {message}")]
    Refused { status: u16, message: String },
    #[error("the server failed with status {status}: {message}")]
    Server { status: u16, message: String },
    #[error("the server failed in the middle of its answer: {0}")]
    Reported(String),
    #[error("{0}")]
    OtherShape(String),
    #[error("the server was silent for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the connection broke in the middle of the answer")]
    Broken,
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("the server ended the answer before its end")]
    Ended,
}

impl JobError {
    /// What a person is told of it.
    pub(crate) fn finding(&self) -> Finding {
        let kind = match self {
            Self::Unreachable(_)
            | Self::Server { .. }
            | Self::Reported(_)
            | Self::Silent(_)
            | Self::Broken => FindingKind::NoAnswer,
            Self::Refused { .. } => FindingKind::Refused,
            Self::OtherShape(_) | Self::Unreadable(_) | Self::TooLong(_) | Self::Ended => {
                FindingKind::Unusable
            }
        };
        Finding::new(kind, self.to_string())
    }

    /// What the server says of it, or what else is known.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Server { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the server, or the node behind it, is away for the moment.
    pub(crate) fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::Server {
                    status: 429 | 503,
                    ..
                }
        )
    }

    /// Whether the same request may succeed when sent again. A silent server is not asked again:
    /// one hanging item would otherwise hold up the batch several times over.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::Server { .. }
                | Self::Reported(_)
                | Self::Broken
                | Self::Ended
        )
    }
}

impl Client {
    pub(crate) fn new(config: &GradingConfig) -> Result<Self, GradingError> {
        // Student work goes to the configured server only: no proxy, no redirect.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(config.connect_limit)
            .build()
            .map_err(|e| GradingError::Config {
                field: "base_url",
                problem: e.to_string(),
            })?;
        let base = config.base_url.trim_end_matches('/');
        Ok(Self {
            http,
            url: format!("{base}/chat/completions"),
            tokenize: format!("{}/tokenize", base.trim_end_matches("/v1")),
            idle: config.idle_limit,
        })
    }

    /// Sends a request and collects its answer; `text` sees each part of it when it comes.
    pub(crate) async fn ask(
        &self,
        request: &ChatRequest,
        text: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Answer, JobError> {
        let since = Instant::now();
        let sending = self.http.post(&self.url).json(request).send();
        let response = timeout(self.idle, sending)
            .await
            .map_err(|_| JobError::Silent(self.idle))?;
        let response = response.map_err(|e| JobError::Unreachable(root_cause(&e)))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(self.refusal(status, response).await);
        }
        let kind = response
            .headers()
            .get("content-type")
            .and_then(|v| v.to_str().ok())
            .unwrap_or("");
        let answer = match kind.starts_with("application/json") {
            true => self.whole(response).await?,
            false => self.streamed(response, since, text).await?,
        };
        match answer.finish {
            Some(FinishReason::Other) => Err(JobError::Ended),
            _ => Ok(answer),
        }
    }

    /// How many tokens the prompt of a request has; nothing if the server has no route for that.
    pub(crate) async fn count(&self, request: &ChatRequest) -> Result<Option<Counted>, JobError> {
        let sending = self.http.post(&self.tokenize).json(request).send();
        let response = timeout(self.idle, sending)
            .await
            .map_err(|_| JobError::Silent(self.idle))?;
        let response = response.map_err(|e| JobError::Unreachable(root_cause(&e)))?;
        match response.status().as_u16() {
            200 => {}
            404 | 405 | 501 => return Ok(None),
            status => return Err(self.refusal(status, response).await),
        }
        let body = self.body(response, limits::MAX_COUNT_BYTES).await?;
        // Other servers have another route of that name.
        Ok(serde_json::from_slice(&body).ok())
    }

    async fn refusal(&self, status: u16, response: Response) -> JobError {
        let body = self
            .body(response, limits::MAX_ERROR_BODY_BYTES)
            .await
            .unwrap_or_default();
        let body = serde_json::from_slice::<Value>(&body).ok();
        let is_other_shape = body.as_ref().is_some_and(is_other_shape);
        let message = body.and_then(|body| error_message(&body));
        if let (true, Some(message)) = (is_other_shape, &message) {
            return JobError::OtherShape(message.clone());
        }
        let message = message.unwrap_or_else(|| "no reason given".to_owned());
        match status {
            429 | 500.. => JobError::Server { status, message },
            _ => JobError::Refused { status, message },
        }
    }

    /// A server that does not stream answers with one object.
    async fn whole(&self, response: Response) -> Result<Answer, JobError> {
        let body = self.body(response, limits::MAX_ANSWER_BYTES).await?;
        let whole: ChatCompletion = serde_json::from_slice(&body).map_err(unreadable)?;
        let choice = whole.choices.into_iter().next();
        let choice = choice.ok_or_else(|| JobError::Unreadable("it has no choices".to_owned()))?;
        Ok(Answer {
            text: choice.message.content.unwrap_or_default(),
            first_ms: None,
            finish: choice.finish_reason,
            usage: whole.usage,
            tandem: whole.tandem,
        })
    }

    async fn streamed(
        &self,
        response: Response,
        since: Instant,
        text: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Answer, JobError> {
        let mut events = Box::pin(
            self.bytes_of(response, limits::MAX_STREAM_BYTES)
                .eventsource(),
        );
        let mut answer = Answer::default();
        while let Some(event) = events.next().await {
            let event = event.map_err(|e| match e {
                eventsource_stream::EventStreamError::Transport(e) => e,
                other => JobError::Unreadable(other.to_string()),
            })?;
            if event.data == "[DONE]" {
                break;
            }
            let from = answer.text.len();
            answer.add(&event.data)?;
            if answer.text.len() > from {
                let first = || since.elapsed().as_secs_f64() * 1e3;
                answer.first_ms.get_or_insert_with(first);
                text(&answer.text[from..]);
            }
        }
        if answer.finish.is_none() {
            return Err(JobError::Broken);
        }
        Ok(answer)
    }

    async fn body(&self, response: Response, limit: usize) -> Result<Vec<u8>, JobError> {
        let mut bytes = Box::pin(self.bytes_of(response, limit));
        let mut out = Vec::new();
        while let Some(chunk) = bytes.next().await {
            out.extend_from_slice(&chunk?);
        }
        Ok(out)
    }

    /// The body's bytes, with limits on silence and on length. Comments that keep a stream alive
    /// are bytes too, so a server that works is not taken for one that hangs.
    fn bytes_of(
        &self,
        response: Response,
        limit: usize,
    ) -> impl Stream<Item = Result<Vec<u8>, JobError>> + use<> {
        let idle = self.idle;
        futures_util::stream::try_unfold(
            (response, 0usize),
            move |(mut response, seen)| async move {
                let chunk = timeout(idle, response.chunk())
                    .await
                    .map_err(|_| JobError::Silent(idle))?;
                let Some(chunk) = chunk.map_err(|_| JobError::Broken)? else {
                    return Ok(None);
                };
                let seen = seen + chunk.len();
                if seen > limit {
                    return Err(JobError::TooLong(limit));
                }
                Ok(Some((chunk.to_vec(), (response, seen))))
            },
        )
    }
}

impl Answer {
    fn add(&mut self, data: &str) -> Result<(), JobError> {
        let value: Value = serde_json::from_str(data).map_err(unreadable)?;
        if let Some(message) = error_message(&value) {
            return Err(match is_other_shape(&value) {
                true => JobError::OtherShape(message),
                false => JobError::Reported(message),
            });
        }
        let chunk: ChatCompletionChunk = serde_json::from_value(value).map_err(unreadable)?;
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.text
                .push_str(&choice.delta.content.unwrap_or_default());
            self.finish = choice.finish_reason.or(self.finish);
        }
        if self.text.len() > limits::MAX_ANSWER_BYTES {
            return Err(JobError::TooLong(limits::MAX_ANSWER_BYTES));
        }
        self.usage = chunk.usage.or(self.usage);
        self.tandem = chunk.tandem.or(self.tandem.take());
        Ok(())
    }
}

fn unreadable(e: serde_json::Error) -> JobError {
    JobError::Unreadable(e.to_string())
}

/// True for an error of a tandem server that asked again by itself.
fn is_other_shape(body: &Value) -> bool {
    body["error"]["code"] == tandem_api::OTHER_SHAPE
}

/// The message of an error body. Servers differ in what else they put there.
fn error_message(body: &Value) -> Option<String> {
    match body.get("error")? {
        Value::Null => None,
        Value::String(message) => Some(shortened(message)),
        error => {
            let message = error.get("message").and_then(Value::as_str);
            Some(shortened(message.unwrap_or("no reason given")))
        }
    }
}

fn shortened(message: &str) -> String {
    message
        .chars()
        .filter(|c| !c.is_control())
        .take(limits::MAX_ERROR_CHARS)
        .collect()
}

/// The innermost cause; the outer ones only repeat the address.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
