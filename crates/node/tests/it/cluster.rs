//! Nodes with fake engines on loopback, and a client that plays the coordinator.

use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_engine::KvEngine;
use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_identity::Security;
use tandem_node::{Limits, NodeConfig};
use tandem_proto::{
    Format, GenerateEvent, GenerateRequest, Generation, NodeError, NodeStatus, PrefillEvent,
    PrefillMode, PrefillRequest, PrefillSummary, Prompt, Role, Ticket,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub const MODEL: &str = "m";
/// No test waits for longer than this; reaching it is a failure, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct TestNode {
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// Short waits where a test needs them to pass, long ones elsewhere.
pub fn limits() -> Limits {
    Limits {
        beat: Duration::from_millis(200),
        ..Limits::default()
    }
}

pub async fn node(role: Role, config: FakeConfig, limits: Limits) -> TestNode {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handoff = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let engine: Box<dyn KvEngine> = Box::new(FakeEngine::new(config));
    let node_config = NodeConfig {
        role,
        version: "test".into(),
        security: Security::Plaintext,
        limits,
    };
    let models = vec![(MODEL.to_owned(), engine)];
    let running = tokio::spawn(async move {
        let shutdown = async move {
            let _ = stopped.await;
        };
        tandem_node::run(listener, handoff, node_config, models, shutdown)
            .await
            .unwrap();
    });
    TestNode {
        url,
        stop: Some(stop),
        running: Some(running),
    }
}

/// Events of a stream, one at a time.
pub struct Events<E> {
    bytes:
        std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    buffer: Vec<u8>,
    kind: std::marker::PhantomData<E>,
}

impl<E: DeserializeOwned> Events<E> {
    /// The next event, `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<E> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("event"));
            }
            let more = tokio::time::timeout(PATIENCE, self.bytes.next());
            match more.await.expect("the stream hangs") {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(_)) | None => return None,
            }
        }
    }
}

impl TestNode {
    pub async fn post<B: Serialize, E: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<Events<E>, NodeError> {
        let url = format!("{}{path}", self.url);
        let response = reqwest::Client::new()
            .post(url)
            .json(body)
            .send()
            .await
            .unwrap();
        if !response.status().is_success() {
            let error: NodeError = response.json().await.unwrap();
            return Err(error);
        }
        Ok(Events {
            bytes: Box::pin(response.bytes_stream()),
            buffer: Vec::new(),
            kind: std::marker::PhantomData,
        })
    }

    pub async fn generate(
        &self,
        request: &GenerateRequest,
    ) -> Result<Events<GenerateEvent>, NodeError> {
        self.post("/node/v1/generate", request).await
    }

    pub async fn prefill(
        &self,
        request: &PrefillRequest,
    ) -> Result<Events<PrefillEvent>, NodeError> {
        self.post("/node/v1/prefill", request).await
    }

    /// Shuts the node down and waits until it has ended.
    pub async fn end(mut self) {
        drop(self.stop.take());
        let running = self.running.take().unwrap();
        let ended = tokio::time::timeout(PATIENCE, running).await;
        ended.expect("the node lives on").unwrap();
    }

    pub async fn status(&self) -> NodeStatus {
        let url = format!("{}/node/v1/status", self.url);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }

    /// Waits until no sequence is in use.
    pub async fn idle(&self) {
        let wait = async {
            while !self.status().await.models[0].sequences.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("a slot leaks");
    }
}

pub fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 32 + (i * 7 + i / 11) % 90).collect()
}

pub fn request(tokens: &[u32], prefill: PrefillMode, chunk: u32) -> GenerateRequest {
    GenerateRequest {
        request: "req-1".into(),
        model: MODEL.into(),
        prompt: Prompt::Tokens(tokens.to_vec()),
        generation: Generation {
            max_tokens: Some(12),
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 7,
            stop: Vec::new(),
            format: Format::Text,
        },
        prefill,
        prefill_peer: None,
        chunk,
    }
}

/// What a whole answer consisted of.
#[derive(Debug, Default)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub summary: PrefillSummary,
    pub failed: Option<NodeError>,
    pub done: bool,
}

/// Reads an answer to its end.
pub async fn finish(events: &mut Events<GenerateEvent>) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = events.next().await {
        match event {
            GenerateEvent::Token { id, .. } => answer.tokens.push(id),
            GenerateEvent::Prefilled(summary) => answer.summary = summary,
            GenerateEvent::Failed(error) => answer.failed = Some(error),
            GenerateEvent::Done { .. } => answer.done = true,
            GenerateEvent::Opened { .. } | GenerateEvent::Beat => {}
        }
    }
    answer
}

/// The first event of an answer: its ticket.
pub async fn opened(events: &mut Events<GenerateEvent>) -> Option<Ticket> {
    match events.next().await {
        Some(GenerateEvent::Opened { ticket, .. }) => ticket,
        other => panic!("expected `opened`, got {other:?}"),
    }
}

pub fn prefill_request(tokens: &[u32], ticket: &Ticket, chunk: u32) -> PrefillRequest {
    PrefillRequest {
        request: "req-1".into(),
        model: MODEL.into(),
        tokens: tokens.to_vec(),
        chunk,
        target: format!("127.0.0.1:{}", ticket.port),
        target_peer: None,
        ticket: ticket.secret.clone(),
        handoff: ticket.handoff,
    }
}

/// The last event of a prefill.
pub async fn prefill_end(events: &mut Events<PrefillEvent>) -> PrefillEvent {
    let mut last = PrefillEvent::Beat;
    while let Some(event) = events.next().await {
        last = event;
    }
    last
}

/// The tokens of an undisturbed local answer.
pub async fn local_tokens(config: &FakeConfig, tokens: &[u32], chunk: u32) -> Vec<u32> {
    let node = node(Role::Both, config.clone(), limits()).await;
    let request = request(tokens, PrefillMode::Local, chunk);
    let answer = finish(&mut node.generate(&request).await.unwrap()).await;
    assert!(answer.done, "{answer:?}");
    answer.tokens
}

/// Opens a request at a decode node and starts its prefill at a prefill node.
pub async fn hand_over(
    prefill: &TestNode,
    decode: &TestNode,
    tokens: &[u32],
    chunk: u32,
) -> (Events<GenerateEvent>, Events<PrefillEvent>) {
    let request = request(tokens, PrefillMode::Remote, chunk);
    let mut events = decode.generate(&request).await.unwrap();
    let ticket = opened(&mut events).await.expect("ticket");
    let sending = prefill
        .prefill(&prefill_request(tokens, &ticket, chunk))
        .await;
    (events, sending.unwrap())
}
