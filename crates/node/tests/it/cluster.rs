//! Nodes with fake engines on loopback, and a client that plays the coordinator.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_cluster::Security;
use tandem_engine::KvEngine;
use tandem_engine::fake::{Call, FakeConfig, FakeEngine};
use tandem_node::{Limits, NodeConfig, RunError};
use tandem_proto::{
    Format, GenerateEvent, GenerateRequest, GenerationParams, HandoffFailed, HandoffStatus,
    HandoffTerms, NodeError, NodeStatus, ParityReport, PrefillEvent, PrefillMode, PrefillRequest,
    PrefillSummary, Prompt, Role, SamplingParams, Ticket,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub const MODEL: &str = "m";
/// No test waits for longer than this; reaching it is a failure, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct TestNode {
    pub url: String,
    /// Where it takes KV in.
    pub port: u16,
    stop: Option<oneshot::Sender<()>>,
    running: Option<tokio::task::JoinHandle<Result<(), RunError>>>,
    /// A runtime of its own, for nodes that are killed.
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(runtime) = self.runtime.get_mut().unwrap().take() {
            runtime.shutdown_background();
        }
    }
}

/// What a test gives to the one limit that it is about.
pub const SHORT: Duration = Duration::from_millis(300);

/// Waits that no test has the patience for: what ends all the same ends at once, or for the limit that the
/// test has shortened.
pub fn endless() -> Limits {
    let long = PATIENCE * 10;
    Limits {
        handoff_silence: long,
        connect: long,
        head: long,
        body: long,
        page_read: long,
        resume: long,
        receipt: long,
        return_ticket: long,
        hand_back: long,
        beat: Duration::from_millis(200),
        event_stall: long,
        ..Limits::default()
    }
}

/// The same, but complete handoffs are soon forgotten.
pub fn limits() -> Limits {
    Limits {
        resume: Duration::from_millis(500),
        ..endless()
    }
}

/// An engine with 0.5 MiB of KV for each token.
pub fn heavy() -> FakeConfig {
    let mut config = FakeConfig::default();
    config.layers.truncate(1);
    for layer in &mut config.layers {
        (layer.kv_heads, layer.key_dim, layer.value_dim) = (256, 512, 512);
    }
    config
}

/// Room for pages in memory, none on disk.
pub fn pages() -> tandem_node::PagesConfig {
    tandem_node::PagesConfig {
        ram_bytes: 64 << 20,
        disk: None,
    }
}

/// What a node is like.
pub struct Setup {
    pub role: Role,
    pub config: FakeConfig,
    pub limits: Limits,
    pub pages: tandem_node::PagesConfig,
    pub security: Security,
    /// In the place of a plain fake engine.
    pub engine: Option<Box<dyn KvEngine>>,
    /// True if the node gets a runtime of its own, so that it can be killed.
    pub mortal: bool,
}

impl Setup {
    pub fn new(role: Role, config: &FakeConfig) -> Self {
        Self {
            role,
            config: config.clone(),
            limits: limits(),
            pages: pages(),
            security: Security::Plaintext,
            engine: None,
            mortal: false,
        }
    }

    pub async fn start(self) -> TestNode {
        panics_end_the_test();
        let (control, handoff) = (bind().await, bind().await);
        let address = control.local_addr().unwrap();
        let port = handoff.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel::<()>();
        let engine = self
            .engine
            .unwrap_or_else(|| Box::new(FakeEngine::new(self.config)));
        let node_config = NodeConfig {
            role: self.role,
            version: "test".into(),
            security: self.security.clone(),
            pages: self.pages,
            limits: self.limits,
        };
        let models = vec![(MODEL.to_owned(), engine)];
        let runtime = self.mortal.then(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap()
        });
        let (control, handoff) = (control.into_std().unwrap(), handoff.into_std().unwrap());
        let work = async move {
            let control = TcpListener::from_std(control).unwrap();
            let handoff = TcpListener::from_std(handoff).unwrap();
            let shutdown = async move {
                let _ = stopped.await;
            };
            let ended =
                tandem_node::run(control, handoff, node_config, models, || {}, shutdown).await;
            // One that is mortal may end with an error, which `fault` tells.
            assert!(self.mortal || ended.is_ok(), "{ended:?}");
            ended
        };
        let running = match &runtime {
            Some(runtime) => runtime.spawn(work),
            None => tokio::spawn(work),
        };
        let address = match self.security {
            Security::Plaintext => address,
            security => bridge(Security::Plaintext, security, address).await,
        };
        TestNode {
            url: format!("http://{address}"),
            port,
            stop: Some(stop),
            running: Some(running),
            runtime: Mutex::new(runtime),
        }
    }
}

/// A task that panics would look like a connection that broke, which costs no token.
fn panics_end_the_test() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            let thread = std::thread::current();
            let is_of_node = |name: &str| name.starts_with("tokio") || name == "tandem-pages";
            // Tasks of a test on one thread run on the test's own.
            if tokio::task::try_id().is_some() || thread.name().is_some_and(is_of_node) {
                std::process::abort();
            }
        }));
    });
}

pub async fn node(role: Role, config: FakeConfig, limits: Limits) -> TestNode {
    let setup = Setup {
        limits,
        ..Setup::new(role, &config)
    };
    setup.start().await
}

pub async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A listener that is `near` for those that connect, and `far` for where their connections go on to.
pub async fn bridge(near: Security, far: Security, to: SocketAddr) -> SocketAddr {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (near, far) = (near.clone(), far.clone());
            tokio::spawn(async move {
                let here = near.accept(tcp, PATIENCE).await.unwrap();
                // A node that has been killed takes none.
                let Ok(there) = far.connect(&to.to_string(), PATIENCE).await else {
                    return;
                };
                let (mut from, mut back) = here.into_split();
                let (mut read, mut write) = there.into_split();
                let out = async {
                    // A request must not wait for its end: copying flushes when idle.
                    let _ = tokio::io::copy(&mut from, &mut write).await;
                    let _ = write.shutdown().await;
                };
                let home = tokio::io::copy(&mut read, &mut back);
                tokio::select! {
                    () = out => {}
                    _ = home => {}
                }
            });
        }
    });
    address
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
        self.try_post(path, body).await.expect("the node is there")
    }

    /// The same of a node that may have been killed.
    pub async fn try_post<B: Serialize, E: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> reqwest::Result<Result<Events<E>, NodeError>> {
        let url = format!("{}{path}", self.url);
        let response = reqwest::Client::new().post(url).json(body).send().await?;
        if !response.status().is_success() {
            return Ok(Err(response.json().await?));
        }
        Ok(Ok(Events {
            bytes: Box::pin(response.bytes_stream()),
            buffer: Vec::new(),
            kind: std::marker::PhantomData,
        }))
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
        ended.expect("the node lives on").unwrap().unwrap();
    }

    /// Waits until the node ends by itself, ends what the end of its process would, and tells why.
    pub async fn fault(&mut self) -> String {
        let running = self.running.take().unwrap();
        let ended = tokio::time::timeout(PATIENCE, running).await;
        let ended = ended.expect("the node lives on").unwrap();
        self.kill();
        ended.expect_err("nobody asked it to").to_string()
    }

    pub async fn status(&self) -> NodeStatus {
        let url = format!("{}/node/v1/status", self.url);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }

    /// Ends the node as a crash would: no goodbye, connections just close.
    pub fn kill(&self) {
        let runtime = self.runtime.lock().unwrap().take();
        runtime.expect("not mortal").shutdown_background();
    }

    /// What its handoffs hold.
    pub async fn handoffs(&self) -> HandoffStatus {
        let url = format!("{}/node/v1/handoffs", self.url);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }

    /// Waits until its handoffs hold what they should.
    pub async fn until(&self, what: &str, holds: impl Fn(&HandoffStatus) -> bool) {
        let mut last = HandoffStatus::default();
        let wait = async {
            loop {
                last = self.handoffs().await;
                if holds(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("never {what}: {last:?}");
        }
    }

    /// Waits until no sequence is in use and no handoff holds anything.
    pub async fn clean(&self) {
        self.idle().await;
        self.until("clean", is_clean).await;
    }

    /// Waits until nothing is going on; secrets of complete handoffs may be left.
    pub async fn settled(&self) {
        self.idle().await;
        let but_secrets = |s: &HandoffStatus| is_clean(&HandoffStatus { secrets: 0, ..*s });
        self.until("settled", but_secrets).await;
    }

    /// Waits until no sequence is in use, and nothing is held but the place of a handoff whose peer may come
    /// again.
    pub async fn released(&self) {
        self.idle().await;
        let is_free = |s: &HandoffStatus| {
            let tickets = s.tickets - s.returns.min(s.tickets);
            [tickets, s.sending, s.staging_bytes, s.pins] == [0; 4]
        };
        self.until("released", is_free).await;
    }

    /// Tells a decode node that no KV will come, as a coordinator does.
    pub async fn prefill_failed(&self, request: &str, reason: &str) {
        let url = format!("{}/node/v1/requests/{request}/prefill-failed", self.url);
        let reason = reason.to_owned();
        let body = HandoffFailed { reason };
        // A request that has ended meanwhile is not known any more.
        let _ = reqwest::Client::new().post(url).json(&body).send().await;
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

/// What a request shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Nothing.
    Off,
    /// Nothing, and it is reproducible.
    Alone,
    /// Pages, and it is reproducible.
    Exact,
    /// All there is.
    All,
}

impl Reuse {
    pub fn set(self, terms: &mut HandoffTerms) {
        terms.reuse = matches!(self, Self::Exact | Self::All);
        terms.reproducible = matches!(self, Self::Alone | Self::Exact);
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
        generation: GenerationParams {
            sampling: SamplingParams {
                max_tokens: Some(12),
                temperature: Some(0.8),
                seed: Some(7),
                ..SamplingParams::default()
            },
            format: Format::Text,
        },
        prefill,
        prefill_peer: None,
        alone_percent: match prefill {
            PrefillMode::Local => 100,
            PrefillMode::Remote => 0,
        },
        chunk,
        terms: HandoffTerms::default(),
    }
}

/// What a whole answer consisted of.
#[derive(Debug, Default)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub summary: PrefillSummary,
    pub failed: Option<NodeError>,
    pub parity: Option<ParityReport>,
    pub done: bool,
}

/// Reads an answer to its end.
pub async fn finish(events: &mut Events<GenerateEvent>) -> Answer {
    let reading = tokio::time::timeout(PATIENCE, read_answer(events));
    reading.await.expect("the answer does not end")
}

async fn read_answer(events: &mut Events<GenerateEvent>) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = events.next().await {
        match event {
            GenerateEvent::Token { id, .. } => answer.tokens.push(id),
            GenerateEvent::Prefilled(summary) => answer.summary = summary,
            GenerateEvent::Failed(error) => answer.failed = Some(error),
            GenerateEvent::Done { parity, .. } => {
                answer.parity = parity;
                answer.done = true;
            }
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
        terms: HandoffTerms::default(),
    }
}

/// The last event of a prefill.
pub async fn prefill_end(events: &mut Events<PrefillEvent>) -> PrefillEvent {
    let reading = async {
        let mut last = PrefillEvent::Beat;
        while let Some(event) = events.next().await {
            last = event;
        }
        last
    };
    let reading = tokio::time::timeout(PATIENCE, reading);
    reading.await.expect("the prefill does not end")
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

/// Waits until this holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("{what} does not come"));
}

/// True if nothing is going on: no ticket, no secret, no memory set aside, no promise.
pub fn is_clean(status: &HandoffStatus) -> bool {
    let counts = [
        status.tickets - status.returns.min(status.tickets),
        status.receiving,
        status.sending,
        status.secrets,
        status.staging_bytes,
        status.pins,
    ];
    counts == [0; 6]
}

/// A request that one node prefills and another one answers.
#[derive(Clone)]
pub struct Deal {
    pub tokens: Vec<u32>,
    pub chunk: u32,
    pub max_tokens: u32,
    pub terms: HandoffTerms,
    /// Terms that the prefill node is told, if they differ.
    pub prefill_terms: Option<HandoffTerms>,
    /// A port in the place of the decode node's own.
    pub via: Option<u16>,
    pub id: String,
    /// Who the nodes are for each other, prefill node first.
    pub peers: Option<(String, String)>,
}

/// How both ends saw it.
#[derive(Debug)]
pub struct Outcome {
    pub answer: Answer,
    pub end: PrefillEvent,
}

impl Deal {
    /// Reproducible, so that what is shared are whole pages.
    pub fn new(tokens: &[u32], chunk: u32) -> Self {
        Self {
            tokens: tokens.to_vec(),
            chunk,
            max_tokens: 12,
            terms: HandoffTerms {
                reproducible: true,
                ..HandoffTerms::default()
            },
            prefill_terms: None,
            via: None,
            id: "req-1".into(),
            peers: None,
        }
    }

    pub fn generate(&self, mode: PrefillMode) -> GenerateRequest {
        let mut request = request(&self.tokens, mode, self.chunk);
        request.terms = self.terms.clone();
        request.request = self.id.clone();
        request.generation.sampling.max_tokens = Some(self.max_tokens);
        request.prefill_peer = self.peers.as_ref().map(|(prefill, _)| prefill.clone());
        request
    }

    pub fn prefill(&self, ticket: &Ticket) -> PrefillRequest {
        let mut request = prefill_request(&self.tokens, ticket, self.chunk);
        request.terms = self.prefill_terms.as_ref().unwrap_or(&self.terms).clone();
        request.request = self.id.clone();
        request.target_peer = self.peers.as_ref().map(|(_, decode)| decode.clone());
        if let Some(port) = self.via {
            request.target = format!("127.0.0.1:{port}");
        }
        request
    }

    /// Opens the request at the decode node.
    pub async fn open(&self, decode: &TestNode) -> (Events<GenerateEvent>, Ticket) {
        let request = self.generate(PrefillMode::Remote);
        let mut events = decode.generate(&request).await.unwrap();
        let ticket = opened(&mut events).await.expect("ticket");
        (events, ticket)
    }

    /// Plays the coordinator from the start to the end.
    pub async fn run(&self, prefill: &TestNode, decode: &TestNode) -> Outcome {
        let (mut events, ticket) = self.open(decode).await;
        let sending = async {
            let end = match prefill.prefill(&self.prefill(&ticket)).await {
                Ok(mut sending) => prefill_end(&mut sending).await,
                Err(error) => PrefillEvent::Failed(error),
            };
            if let PrefillEvent::Failed(error) = &end {
                decode.prefill_failed(&self.id, &error.message).await;
            }
            end
        };
        let (answer, end) = tokio::join!(finish(&mut events), sending);
        Outcome { answer, end }
    }

    /// The answer of the decode node alone.
    pub async fn local(&self, decode: &TestNode) -> Answer {
        let request = self.generate(PrefillMode::Local);
        finish(&mut decode.generate(&request).await.unwrap()).await
    }

    /// The tokens of an undisturbed local answer.
    pub async fn expected(&self, config: &FakeConfig) -> Vec<u32> {
        let plain = FakeConfig {
            gate: None,
            fail: None,
            ..config.clone()
        };
        let fresh = node(Role::Both, plain, limits()).await;
        let alone = Self {
            terms: HandoffTerms::default(),
            peers: None,
            ..self.clone()
        };
        let answer = alone.local(&fresh).await;
        assert!(answer.done, "{answer:?}");
        answer.tokens
    }
}

impl Outcome {
    /// The handoff went well, whatever happened to its connections.
    pub fn whole(&self, expected: &[u32], what: &str) {
        assert!(self.answer.done, "{what}: {self:?}");
        assert_eq!(self.answer.summary.fallback, None, "{what}: {self:?}");
        assert_eq!(self.answer.tokens, expected, "{what}: wrong tokens");
        assert_eq!(self.answer.summary.local_tokens, 0, "{what}");
    }

    /// The handoff failed, and the answer is right all the same.
    pub fn made_good(&self, expected: &[u32], what: &str) -> String {
        assert!(self.answer.done, "{what}: {self:?}");
        assert_eq!(self.answer.tokens, expected, "{what}: wrong tokens");
        let reason = self.answer.summary.fallback.clone();
        reason.unwrap_or_else(|| panic!("{what}: no fallback: {self:?}"))
    }

    /// Bytes of rows, bytes on the wire, tokens that the decode node had, connections replaced.
    pub fn done(&self) -> (u64, u64, u32, u32) {
        let PrefillEvent::Done {
            handoff_bytes,
            wire_bytes,
            have_tokens,
            reconnects,
            ..
        } = self.end
        else {
            panic!("the prefill did not end well: {self:?}");
        };
        (handoff_bytes, wire_bytes, have_tokens, reconnects)
    }
}

/// All calls of an engine, in order.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    /// Records the calls of the engines that are made from `config`.
    pub fn of(config: &mut FakeConfig) -> Self {
        let calls = Self::default();
        let (own, before) = (calls.clone(), config.gate.take());
        config.gate = Some(Arc::new(move |call| {
            own.0.lock().unwrap().push(call.clone());
            if let Some(before) = &before {
                before(call);
            }
        }));
        calls
    }

    /// What was called since the last time.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Tokens that were prefilled since the last time.
    pub fn prefilled(&self) -> u32 {
        let calls = self.take();
        let counts = calls.iter().map(|call| match call {
            Call::Prefill { tokens, .. } => tokens.end - tokens.start,
            _ => 0,
        });
        counts.sum()
    }
}
