//! One streamed request, and when its parts came.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use eventsource_stream::Eventsource as _;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

/// Longest silence of a server.
const SILENCE: Duration = Duration::from_secs(600);
/// Bytes of an answer at most.
const MAX_BYTES: usize = 64 << 20;

/// A server, and what it is asked besides the prompt.
pub struct Server {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
    completions: bool,
    fields: Map<String, Value>,
}

/// A complete answer.
#[derive(Debug, Clone, Default)]
pub struct Answered {
    /// To the first part of the text.
    pub first: Duration,
    /// Between two parts of it.
    pub between: Vec<Duration>,
    /// To the end.
    pub whole: Duration,
    /// Tokens of the answer; parts of its text where the server does not tell.
    pub tokens: u64,
    /// Tokens of the prompt, where the server tells.
    pub prompt: Option<u64>,
    /// Those of them that the server had already, where it tells.
    pub cached: Option<u64>,
}

impl Server {
    /// A server at an address.
    ///
    /// # Errors
    /// If no client can be made.
    pub fn new(
        url: &str,
        key: Option<&str>,
        completions: bool,
        fields: Map<String, Value>,
    ) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1");
        // A server may close a connection behind an answer and not say so; the next request on it would fail.
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0);
        Ok(Self {
            http: http.build()?,
            base: base.to_owned(),
            key: key.map(|key| key.trim().to_owned()),
            completions,
            fields,
        })
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// The model that it is asked for.
    pub fn model(&self) -> &str {
        self.fields["model"].as_str().unwrap_or_default()
    }

    /// Asks for this model, or for the first that it has.
    ///
    /// # Errors
    /// If it does not say which models it has.
    pub async fn with_model(mut self, name: Option<&str>) -> anyhow::Result<Self> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self.first_model().await?,
        };
        self.fields.insert("model".to_owned(), name.into());
        Ok(self)
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/models", self.base);
        let asking = self.with_key(self.http.get(&url)).send();
        let answer = timeout(SILENCE, asking)
            .await
            .with_context(|| url.clone())?;
        let list: Value = answer.with_context(|| url.clone())?.json().await?;
        let first = list["data"][0]["id"].as_str();
        let first =
            first.with_context(|| format!("{url} lists no model; name one with --model"))?;
        Ok(first.to_owned())
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a prompt and reads its answer.
    ///
    /// # Errors
    /// If there is no complete answer with text.
    pub async fn ask(&self, prompt: &str, max_tokens: Option<u32>) -> anyhow::Result<Answered> {
        let mut body = self.fields.clone();
        let path = if self.completions {
            body.insert("prompt".to_owned(), prompt.into());
            "completions"
        } else {
            let messages = json!([{"role": "user", "content": prompt}]);
            body.insert("messages".to_owned(), messages);
            "chat/completions"
        };
        if let Some(max_tokens) = max_tokens {
            body.insert("max_tokens".to_owned(), max_tokens.into());
        }
        body.insert("stream".to_owned(), true.into());
        let usage = json!({"include_usage": true});
        body.insert("stream_options".to_owned(), usage);
        let url = format!("{}/v1/{path}", self.base);
        let since = Instant::now();
        let asking = self.with_key(self.http.post(url)).json(&body).send();
        let response = timeout(SILENCE, asking)
            .await
            .context("the server is silent")??;
        let status = response.status();
        if !status.is_success() {
            let text = timeout(SILENCE, response.text()).await??;
            let text: String = text.chars().take(300).collect();
            bail!("status {}: {text}", status.as_u16());
        }
        read(response, since).await
    }
}

async fn read(response: reqwest::Response, since: Instant) -> anyhow::Result<Answered> {
    let mut events = Box::pin(response.bytes_stream().eventsource());
    let mut answered = Answered::default();
    let (mut parts, mut bytes, mut ended) = (Vec::new(), 0, false);
    loop {
        let event = timeout(SILENCE, events.next()).await;
        let Some(event) = event.context("the server is silent")? else {
            break;
        };
        let data = event?.data;
        if data == "[DONE]" {
            break;
        }
        bytes += data.len();
        if bytes > MAX_BYTES {
            bail!("the answer is longer than {MAX_BYTES} bytes");
        }
        let value: Value = serde_json::from_str(&data)?;
        if value.get("error").is_some_and(|error| !error.is_null()) {
            bail!("{}", value["error"]["message"]);
        }
        if has_text(&value["choices"][0]) {
            parts.push(since.elapsed());
        }
        ended |= value["choices"][0]["finish_reason"].is_string();
        answered.count(&value);
    }
    answered.whole = since.elapsed();
    let Some(first) = parts.first().filter(|_| ended) else {
        bail!("the answer has no text, or no end");
    };
    answered.first = *first;
    answered.between = parts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if answered.tokens == 0 {
        answered.tokens = parts.len() as u64;
    }
    Ok(answered)
}

fn has_text(choice: &Value) -> bool {
    let texts = [&choice["delta"]["content"], &choice["text"]];
    texts
        .iter()
        .any(|t| t.as_str().is_some_and(|t| !t.is_empty()))
}

impl Answered {
    /// Takes what a part says of the whole.
    fn count(&mut self, value: &Value) {
        let usage = &value["usage"];
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.tokens = tokens;
        }
        self.prompt = usage["prompt_tokens"].as_u64().or(self.prompt);
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        // llama-server's own field.
        let cached = cached.or_else(|| value["timings"]["cache_n"].as_u64());
        self.cached = cached.or(self.cached);
    }
}
