//! A coordinator on a free port, and a client for it.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};
use tandem_api::{ChatCompletion, ErrorBody, TandemInfo};
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Config, CoordinatorError, ModelConfig, NodeConfig, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake::{FakeNode, MODEL};

/// A running coordinator. Dropping it stops it.
pub struct Rig {
    pub base: String,
    pub http: reqwest::Client,
    shutdown: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<Result<(), CoordinatorError>>,
}

/// The model with these nodes, in this order; statuses are asked for often.
pub fn config(prefill: &[&FakeNode], decode: &[&FakeNode]) -> Config {
    let node = |n: &&FakeNode| NodeConfig {
        name: n.name.clone(),
        address: n.address.clone(),
        identity: None,
        profile: None,
    };
    let names = |nodes: &[&FakeNode]| nodes.iter().map(|n| n.name.clone()).collect();
    let mut config = Config::new(
        prefill.iter().chain(decode).map(node).collect(),
        vec![ModelConfig {
            name: MODEL.into(),
            prefill: names(prefill),
            decode: names(decode),
            servers: Vec::new(),
            mixed_quantisation: false,
            profile: None,
        }],
    );
    config.limits.poll = Duration::from_millis(5);
    config.limits.may_return = Duration::ZERO;
    config
}

impl Rig {
    pub async fn start(config: Config) -> Self {
        Self::start_as(config, Security::Plaintext).await
    }

    /// The same as a machine of a cluster.
    pub async fn start_as(config: Config, security: Security) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (shutdown, told) = oneshot::channel();
        let task = tokio::spawn(run(
            vec![(listener, Public::plaintext())],
            config,
            security,
            async {
                let _ = told.await;
            },
        ));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            base,
            http,
            shutdown: Some(shutdown),
            task,
        }
    }

    /// Tells the coordinator to stop.
    pub fn stop(&mut self) {
        self.shutdown.take();
    }

    /// Sends a request in the background.
    pub fn post(&self, path: &str, body: Value) -> JoinHandle<reqwest::Response> {
        let request = self.http.post(format!("{}{path}", self.base)).json(&body);
        tokio::spawn(async move { request.send().await.unwrap() })
    }

    pub fn chat(&self, extra: Value) -> JoinHandle<reqwest::Response> {
        self.post("/v1/chat/completions", chat_body(extra))
    }

    pub async fn text(&self, path: &str) -> String {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await;
        answer.unwrap().text().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await;
        let answer = answer.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

/// A chat with one message, and these fields.
pub fn chat_body(extra: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}

/// Status and error of an answer.
pub async fn error_of(answer: reqwest::Response) -> (u16, tandem_api::ErrorDetail) {
    let status = answer.status().as_u16();
    let body: ErrorBody = answer.json().await.unwrap();
    (status, body.error)
}

/// Text and extension of a whole chat answer.
pub async fn whole_of(answer: reqwest::Response) -> (String, TandemInfo) {
    assert_eq!(answer.status(), 200);
    let mut object: ChatCompletion = answer.json().await.unwrap();
    let text = object.choices.remove(0).message.content.unwrap();
    (text, object.tandem.unwrap())
}

/// The events of a streamed answer.
pub struct Sse {
    stream: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    buffer: String,
}

impl Sse {
    pub fn new(answer: reqwest::Response) -> Self {
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self {
            stream: Box::pin(answer.bytes_stream()),
            buffer: String::new(),
        }
    }

    /// The next block, comments included; `None` at the end.
    pub async fn raw(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block = self.buffer[..end].to_owned();
                self.buffer.drain(..end + 2);
                return Some(block);
            }
            let bytes = self.stream.next().await?.unwrap();
            self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// The data of the next event; `None` at the end.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            let block = self.raw().await?;
            if let Some(data) = block.strip_prefix("data: ") {
                return Some(data.to_owned());
            }
            assert!(block.starts_with(':'), "{block}");
        }
    }

    pub async fn json(&mut self) -> Value {
        serde_json::from_str(&self.next().await.unwrap()).unwrap()
    }

    /// Reads to the end; the events as JSON and whether `[DONE]` came last.
    pub async fn rest(&mut self) -> (Vec<Value>, bool) {
        let mut events = Vec::new();
        while let Some(data) = self.next().await {
            if data == "[DONE]" {
                assert_eq!(self.next().await, None);
                return (events, true);
            }
            events.push(serde_json::from_str(&data).unwrap());
        }
        (events, false)
    }
}

/// Joined text of chat chunks.
pub fn text_of(events: &[Value]) -> String {
    let text = |e: &Value| {
        e["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    events.iter().filter_map(text).collect()
}
