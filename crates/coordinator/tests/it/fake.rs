//! A node that does what the test tells it to, call by call.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Serialize;
use serde_json::Value;
use tandem_cluster::{Gate, Link, Security};
use tandem_handoff::codec::Codec;
use tandem_handoff::{Contract, ElementType, LayerKind, LayerSpec};
use tandem_proto::*;
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Name of the model that every fake node holds.
pub const MODEL: &str = "m";
/// Port that the fake decode nodes give out in tickets.
pub const HANDOFF_PORT: u16 = 4321;

/// Longest handshake.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(30);

/// A gate as a listener of axum.
struct Door(Gate);

impl axum::serve::Listener for Door {
    type Io = Link;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Link, Self::Addr) {
        self.0.next().await
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(self.0.local_addr())
    }
}

/// Body of an event stream; an error breaks the connection off.
type Chunk = Result<Bytes, std::io::Error>;
type Inbox<T> = AsyncMutex<mpsc::UnboundedReceiver<T>>;

/// A node under the test's control. Dropping it stops it from accepting connections.
pub struct FakeNode {
    router: Router,
    pub name: String,
    pub address: String,
    status: Arc<Mutex<Value>>,
    generates: Inbox<Call<GenerateRequest>>,
    prefills: Inbox<Call<PrefillRequest>>,
    failures: Inbox<(String, HandoffFailed)>,
    statuses: Inbox<()>,
    server: JoinHandle<()>,
}

/// A call that waits for its answer.
pub struct Call<T> {
    pub request: T,
    answer: oneshot::Sender<Response>,
}

/// A stream of events that the coordinator reads. Dropping it ends the stream.
pub struct Events {
    chunks: mpsc::Sender<Chunk>,
}

struct Shared {
    status: Arc<Mutex<Value>>,
    generates: mpsc::UnboundedSender<Call<GenerateRequest>>,
    prefills: mpsc::UnboundedSender<Call<PrefillRequest>>,
    failures: mpsc::UnboundedSender<(String, HandoffFailed)>,
    statuses: mpsc::UnboundedSender<()>,
}

/// The contract of every fake node, but for the tokenizer digest.
pub fn contract(tokenizer: &str) -> Contract {
    Contract {
        layout_version: 1,
        engine: "fake 1".into(),
        architecture: "llama".into(),
        quantisation: "f16".into(),
        weights: "w".into(),
        tokenizer: tokenizer.into(),
        rope: "base=10000".into(),
        rotation: "none".into(),
        window: 0,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers: vec![LayerSpec {
            kind: LayerKind::Full,
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
        }],
    }
}

/// A status with one model and this room for sequences.
pub fn status(role: Role, sequences: u32, tokenizer: &str) -> NodeStatus {
    NodeStatus {
        protocol: PROTOCOL_VERSION,
        version: "0.1.0".into(),
        role,
        identity: None,
        draining: false,
        handoff_port: role.decodes().then_some(HANDOFF_PORT),
        models: vec![ModelStatus {
            name: MODEL.into(),
            contract: contract(tokenizer),
            capacity: Capacity {
                sequences,
                tokens_per_sequence: 1024,
                prefill_tokens: 512,
                microbatch_tokens: 64,
            },
            threads: None,
            no_chat: None,
            stays: None,
            busy_percent: 40,
            steps: StepTimes::default(),
            sequences: Vec::new(),
        }],
    }
}

impl FakeNode {
    pub async fn start(name: &str, status: NodeStatus) -> Self {
        Self::start_as(name, status, Security::Plaintext).await
    }

    /// The same as a machine of a cluster; its status is used as it is.
    pub async fn start_as(name: &str, status: NodeStatus, security: Security) -> Self {
        let status = Arc::new(Mutex::new(serde_json::to_value(status).unwrap()));
        let (generates, generate_inbox) = mpsc::unbounded_channel();
        let (prefills, prefill_inbox) = mpsc::unbounded_channel();
        let (failures, failure_inbox) = mpsc::unbounded_channel();
        let (statuses, status_inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            status: Arc::clone(&status),
            generates,
            prefills,
            failures,
            statuses,
        });
        let router = Router::new()
            .route("/node/v1/status", get(tell_status))
            .route("/node/v1/generate", post(take_generate))
            .route("/node/v1/prefill", post(take_prefill))
            .route("/node/v1/requests/{id}/prefill-failed", post(take_failure))
            .with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let gate = Gate::start(listener, security, HANDSHAKE).unwrap();
        let server = tokio::spawn(serve(gate, router.clone()));
        Self {
            router,
            name: name.to_owned(),
            address,
            status,
            generates: AsyncMutex::new(generate_inbox),
            prefills: AsyncMutex::new(prefill_inbox),
            failures: AsyncMutex::new(failure_inbox),
            statuses: AsyncMutex::new(status_inbox),
            server,
        }
    }

    /// A node that prefills and has room for 8 sequences.
    pub async fn prefill(name: &str) -> Self {
        Self::start(name, status(Role::Prefill, 8, "t")).await
    }

    /// A node that decodes.
    pub async fn decode(name: &str, sequences: u32) -> Self {
        Self::start(name, status(Role::Decode, sequences, "t")).await
    }

    /// The next `generate` call.
    pub async fn generate(&self) -> Call<GenerateRequest> {
        self.generates.lock().await.recv().await.unwrap()
    }

    /// The next `prefill` call.
    pub async fn prefill_call(&self) -> Call<PrefillRequest> {
        self.prefills.lock().await.recv().await.unwrap()
    }

    /// The next report that a prefill failed: request and reason.
    pub async fn failure(&self) -> (String, String) {
        let (id, body) = self.failures.lock().await.recv().await.unwrap();
        (id, body.reason)
    }

    /// True if a `generate` call waits to be taken.
    pub async fn has_generate(&self) -> bool {
        !self.generates.lock().await.is_empty()
    }

    /// Answers status questions with this from now on, and returns when the coordinator has it:
    /// one question may have been answered before, the next gets the new status, and the one
    /// after that is asked when the scheduler has been told. With `null` the questions fail.
    pub async fn become_status(&self, status: Value) {
        *self.status.lock().unwrap() = status;
        let mut statuses = self.statuses.lock().await;
        while statuses.try_recv().is_ok() {}
        for _ in 0..3 {
            statuses.recv().await.unwrap();
        }
    }

    /// Listens at the same address again, without TLS.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(&self.address).await.unwrap();
        let gate = Gate::start(listener, Security::Plaintext, HANDSHAKE).unwrap();
        self.server = tokio::spawn(serve(gate, self.router.clone()));
    }

    /// Accepts no connection any more and returns when the port is closed.
    pub async fn stop(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }
}

async fn serve(gate: Gate, router: Router) {
    axum::serve(Door(gate), router).await.unwrap();
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl<T> Call<T> {
    /// Begins a stream of events.
    pub fn accept(self) -> (T, Events) {
        let (chunks, receiver) = mpsc::channel(64);
        let body = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Chunk>| async move {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        self.answer
            .send(Body::from_stream(body).into_response())
            .unwrap();
        (self.request, Events { chunks })
    }

    /// Says no.
    pub fn refuse(self, code: ErrorCode, message: &str) {
        let status = StatusCode::from_u16(code.http_status()).unwrap();
        let answer = (status, Json(NodeError::new(code, message))).into_response();
        self.answer.send(answer).unwrap();
    }

    /// Waits until the coordinator gives the call up.
    pub async fn given_up(mut self) {
        self.answer.closed().await;
    }
}

impl Events {
    pub async fn send<E: Serialize>(&self, event: &E) {
        let line = serde_json::to_string(event).unwrap() + "\n";
        self.chunks.send(Ok(line.into())).await.unwrap();
    }

    /// Sends a line as it is.
    pub async fn send_raw(&self, line: &'static str) {
        self.chunks
            .send(Ok(Bytes::from_static(line.as_bytes())))
            .await
            .unwrap();
    }

    /// Closes the connection in the middle of the answer.
    pub async fn break_off(self) {
        let _ = self.chunks.send(Err(std::io::Error::other("killed"))).await;
    }

    /// Waits until the coordinator drops the connection.
    pub async fn closed(&self) {
        self.chunks.closed().await;
    }

    /// `Opened` for this many prompt tokens, with a ticket if `remote`.
    pub async fn open(&self, prompt_tokens: u32, remote: bool) {
        self.send(&GenerateEvent::Opened {
            prompt_tokens,
            tokens: remote.then(|| (0..prompt_tokens).collect()),
            ticket: remote.then(|| Ticket {
                secret: "5ec3e7".into(),
                handoff: 99,
                ip: None,
                port: HANDOFF_PORT,
            }),
            tokenize_ms: 1.5,
            prompt_end: String::new(),
        })
        .await;
    }

    /// `Prefilled` with KV from another node.
    pub async fn prefilled(&self, remote_tokens: u32, local_tokens: u32, fallback: Option<&str>) {
        self.send(&GenerateEvent::Prefilled(PrefillSummary {
            remote_tokens,
            local_tokens,
            local_prefill_ms: if local_tokens > 0 { 30.0 } else { 0.0 },
            apply_ms: 2.5,
            handoff_bytes: u64::from(remote_tokens) * 64,
            wire_bytes: u64::from(remote_tokens) * 65,
            codec: (remote_tokens > 0).then_some(Codec::Plane),
            fallback: fallback.map(str::to_owned),
            ..PrefillSummary::default()
        }))
        .await;
    }

    pub async fn token(&self, id: u32, text: &str) {
        let text = text.to_owned();
        self.send(&GenerateEvent::Token { id, text }).await;
    }

    pub async fn done(&self, generated_tokens: u32) {
        self.done_with(generated_tokens, None).await;
    }

    /// The end, with a comparison of both nodes.
    pub async fn done_with(&self, generated_tokens: u32, parity: Option<ParityReport>) {
        self.send(&GenerateEvent::Done {
            finish_reason: FinishReason::Stop,
            generated_tokens,
            decode_ms: 4.5,
            parity,
        })
        .await;
    }

    /// Two tokens and the end.
    pub async fn say_hello(&self) {
        self.token(7, "Hel").await;
        self.token(8, "lo").await;
        self.done(2).await;
    }

    /// `Done` of a prefill.
    pub async fn prefill_done(&self) {
        self.send(&PrefillEvent::Done {
            prefill_ms: 20.0,
            computed_tokens: 9,
            transfer_ms: 10.0,
            exposed_transfer_ms: 5.0,
            handoff_bytes: 576,
            wire_bytes: 585,
            have_tokens: 0,
            reconnects: 0,
        })
        .await;
    }
}

async fn tell_status(State(shared): State<Arc<Shared>>) -> Response {
    let status = shared.status.lock().unwrap().clone();
    let _ = shared.statuses.send(());
    if status.is_null() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    // No connection is kept, so that a node that has stopped cannot be reached through an old one.
    ([(header::CONNECTION, "close")], Json(status)).into_response()
}

async fn take<T>(inbox: &mpsc::UnboundedSender<Call<T>>, request: T) -> Response {
    let (answer, wait) = oneshot::channel();
    let _ = inbox.send(Call { request, answer });
    match wait.await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn take_generate(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<GenerateRequest>,
) -> Response {
    request.validate().unwrap();
    take(&shared.generates, request).await
}

async fn take_prefill(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<PrefillRequest>,
) -> Response {
    take(&shared.prefills, request).await
}

async fn take_failure(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Json(failed): Json<HandoffFailed>,
) -> StatusCode {
    let _ = shared.failures.send((id, failed));
    StatusCode::NO_CONTENT
}
