//! The control API that the coordinator calls.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_engine::Token;
use tandem_engine::chat::{ChatMessage, completion_tokens};
use tandem_engine::generation::{Format as EngineFormat, Generation, GenerationParams};
use tandem_engine::sampling::SamplingParams;
use tandem_identity::PeerId;
use tandem_kv::Contract;
use tandem_kv::adaptive::Quality;
use tandem_kv::receipt::ReturnTicket;
use tandem_kv::receiver::Expectation;
use tandem_kv::sender::Offer;
use tandem_proto::limits::MAX_BODY_BYTES;
use tandem_proto::{
    Capacity, ErrorCode, Format, GenerateEvent, GenerateRequest, HandoffStatus, HandoffTerms,
    ModelStatus, NodeError, NodeStatus, PROTOCOL_VERSION, PrefillEvent, PrefillFailed, PrefillMode,
    PrefillRequest, Prompt, Reuse, Ticket,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::NodeConfig;
use crate::conversation::{HandBack, Keeping, seed};
use crate::handoffs::Handoffs;
use crate::held::{Keep, Pieces};
use crate::job::{Command, GenerateJob, JobId, Parity, PrefillJob, Source};
use crate::limits::{
    BODY, DEFAULT_STREAMS, MAX_CHUNKS_WAITING, MAX_EVENTS, MAX_HANDOFFS, MAX_RETURNS,
    RETURN_TICKET, STAGING_UNIT, STAGING_UNITS, STREAMS,
};
use crate::model::Model;
use crate::pages::PageStore;
use crate::send::{Choice, Kept, Route, Sending, send_kv};
use crate::tickets::{Permitted, Target, Tickets, handoff_id};

/// Everything that the handlers share.
#[derive(Debug)]
pub struct Node {
    /// How the node works.
    pub config: NodeConfig,
    /// Port on which KV is taken in, on nodes that decode.
    pub handoff_port: Option<u16>,
    /// Port on which the KV of answers is taken back.
    pub return_port: u16,
    /// The models.
    pub models: Vec<Arc<Model>>,
    /// Permitted handoffs.
    pub tickets: Tickets,
    /// Handoffs that are being received.
    pub handoffs: Arc<Handoffs>,
    /// Places for handoffs that are being received.
    pub receiving: Arc<Semaphore>,
    /// Memory for them, in units of [`crate::limits::STAGING_UNIT`].
    pub staging: Arc<Semaphore>,
    /// KV of earlier requests.
    pub pages: PageStore,
    /// Permissions to hand an answer back that may be open.
    pub returns: Arc<Semaphore>,
    /// Requests that generate here, by id.
    pub running: crate::running::Running,
    /// Set when the node shuts down, so that the end of an engine thread is no fault.
    pub stopping: AtomicBool,
}

impl Node {
    /// The way to another node.
    #[must_use]
    pub fn route(&self, target: String, peer: Option<PeerId>, terms: &HandoffTerms) -> Route {
        let streams = match terms.streams {
            0 => DEFAULT_STREAMS,
            n => n.min(STREAMS),
        };
        Route {
            target,
            peer,
            security: self.config.security.clone(),
            limits: self.config.limits,
            streams,
            choice: match terms.codec.fixed() {
                Some(codec) => Choice::Fixed(codec),
                None => Choice::Auto(terms.quality),
            },
            overlap: terms.overlap,
        }
    }

    fn model(&self, name: &str) -> Result<&Arc<Model>, NodeError> {
        self.models.iter().find(|m| m.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
            NodeError::new(
                ErrorCode::UnknownModel,
                format!(
                    "this node has no model `{name}`; it has {}",
                    known.join(", ")
                ),
            )
        })
    }

    /// Ends all engine threads and with them all requests, and waits for the threads for a limited
    /// time ([`crate::Limits::stop`]).
    pub async fn stop(self: &Arc<Self>) {
        self.stopping.store(true, Ordering::Relaxed);
        let node = Arc::clone(self);
        let (done, stopped) = oneshot::channel::<()>();
        // A plain thread: the end of the process does not wait for it.
        std::thread::spawn(move || {
            for model in &node.models {
                model.stop();
            }
            let _ = done.send(());
        });
        if tokio::time::timeout(self.config.limits.stop, stopped)
            .await
            .is_err()
        {
            tracing::warn!("an engine is still busy; leaving without it");
        }
    }
}

/// The routes.
pub fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/node/v1/status", get(status))
        .route("/node/v1/handoffs", get(handoffs))
        .route("/node/v1/generate", post(generate))
        .route("/node/v1/prefill", post(prefill))
        .route(
            "/node/v1/requests/{id}/prefill-failed",
            post(prefill_failed),
        )
        // The middleware has the limit.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn(whole_body))
        .with_state(node)
}

/// Reads the body within [`MAX_BODY_BYTES`] and [`BODY`], so that no request hangs in it.
async fn whole_body(request: Request, next: Next) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let reading = axum::body::to_bytes(body, MAX_BODY_BYTES);
    let bytes = tokio::time::timeout(BODY, reading)
        .await
        .map_err(|_| {
            invalid(format!(
                "the request body did not come within {} s",
                BODY.as_secs()
            ))
        })?
        .map_err(|e| invalid(format!("request body: {e}; at most {MAX_BODY_BYTES} bytes")))?;
    Ok(next
        .run(Request::from_parts(parts, Body::from(bytes)))
        .await)
}

/// A [`NodeError`] as an answer.
struct Refusal(NodeError);

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

fn invalid(message: impl Into<String>) -> NodeError {
    NodeError::new(ErrorCode::InvalidRequest, message)
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, NodeError> {
    serde_json::from_slice(body).map_err(|e| invalid(format!("request body: {e}")))
}

async fn status(State(node): State<Arc<Node>>) -> Json<NodeStatus> {
    let limit = node.config.limits.beat;
    let models = node.models.iter().map(|model| model_status(model, limit));
    Json(NodeStatus {
        protocol: PROTOCOL_VERSION,
        version: node.config.version.clone(),
        role: node.config.role,
        handoff_port: node.handoff_port,
        identity: node.config.security.own_id().map(|id| id.to_string()),
        models: futures_util::future::join_all(models).await,
    })
}

/// What handoffs hold now.
async fn handoffs(State(node): State<Arc<Node>>) -> Json<HandoffStatus> {
    let taken = |all: usize, left: &Semaphore| (all - left.available_permits()) as u64;
    let pages = node.pages.stats();
    Json(HandoffStatus {
        tickets: node.tickets.count() as u64,
        receiving: taken(MAX_HANDOFFS, &node.receiving),
        secrets: node.handoffs.count() as u64,
        staging_bytes: taken(STAGING_UNITS, &node.staging) * STAGING_UNIT,
        returns: taken(MAX_RETURNS, &node.returns),
        pages: pages.pages,
        snapshots: pages.snapshots,
        pins: pages.pins,
        page_bytes: pages.ram_bytes + pages.queued_bytes,
        disk_bytes: pages.disk_bytes,
        disk_errors: pages.disk_errors,
    })
}

/// An engine in the middle of a long chunk is not waited for: its sequences are then left out.
async fn model_status(model: &Model, limit: Duration) -> ModelStatus {
    let (reply, answer) = oneshot::channel();
    let sequences = match model.command(Command::Status(reply)) {
        Ok(()) => tokio::time::timeout(limit, answer).await.ok(),
        Err(_) => None,
    };
    let c = model.capacity;
    ModelStatus {
        name: model.name.clone(),
        contract: Contract::clone(&model.contract),
        capacity: Capacity {
            sequences: c.sequences,
            tokens_per_sequence: c.tokens_per_sequence,
            prefill_tokens: c.prefill_tokens,
            microbatch_tokens: c.microbatch_tokens,
        },
        sequences: sequences.and_then(Result::ok).unwrap_or_default(),
    }
}

/// Checks that chunks of this size can be computed in the batch shapes of the engine.
fn check_chunk(model: &Model, chunk: u32) -> Result<(), NodeError> {
    let c = model.capacity;
    if chunk > c.prefill_tokens || !chunk.is_multiple_of(c.microbatch_tokens) {
        return Err(invalid(format!(
            "`chunk` is {chunk}; this node computes at most {} tokens at once, in multiples of {}",
            c.prefill_tokens, c.microbatch_tokens
        )));
    }
    Ok(())
}

async fn generate(State(node): State<Arc<Node>>, body: Bytes) -> Result<Response, Refusal> {
    let request: GenerateRequest = parse(&body)?;
    request.validate()?;
    if !node.config.role.decodes() {
        return Err(NodeError::new(ErrorCode::WrongRole, "this node only prefills").into());
    }
    let model = Arc::clone(node.model(&request.model)?);
    check_chunk(&model, request.chunk)?;
    let peer = prefill_peer(&node, &request)?;
    let (id, wants_remote, chunk, terms) = (
        request.request.clone(),
        request.prefill == PrefillMode::Remote,
        request.chunk,
        request.terms.clone(),
    );
    let start = Instant::now();
    let prepared = {
        let model = Arc::clone(&model);
        tokio::task::spawn_blocking(move || prepare(&model, request)).await
    };
    let (tokens, generation) =
        prepared.map_err(|e| NodeError::new(ErrorCode::Engine, e.to_string()))??;
    let tokenize_ms = start.elapsed().as_secs_f64() * 1e3;
    let remote = wants_remote && tokens.len() > 1;
    let kv_end = u32::try_from(tokens.len()).unwrap_or(u32::MAX) - 1;
    let keep = Keep::new(node.pages.clone(), &model.contract, &terms, kv_end, chunk);
    // A request that is prefilled elsewhere gets its pages when the handoff begins.
    let pieces = keep
        .pin(&tokens[..kv_end as usize])
        .filter(|_| !remote)
        .and_then(|pinned| Pieces::all(pinned, &model.contract));
    let source = match (remote, &pieces) {
        (true, _) => Source::Remote,
        (false, Some(_)) => Source::Pages,
        (false, None) => Source::Here,
    };
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let admission = model.admit()?;
    let job_id = admission.job;
    let (hand_back, handed_back) = oneshot::channel();
    let opening = Opening {
        request: id.clone(),
        job: job_id,
        remote,
        peer,
        tokens: &tokens,
        quality: terms.quality,
        keep: keep.clone(),
        hand_back,
    };
    let guard = open_request(&node, &model, opening);
    let retire = keeps_answer(&terms).then(|| {
        let (retire, retired) = oneshot::channel();
        let keeping = Keeping {
            node: Arc::clone(&node),
            model: Arc::clone(&model),
            keep,
            terms: terms.clone(),
            retired,
            hand_back: handed_back,
        };
        tokio::spawn(keeping.run());
        retire
    });
    let job = GenerateJob {
        request: id,
        tokens: tokens.clone(),
        chunk,
        source,
        generation,
        parity: Parity {
            expected: remote,
            bound: terms.bound,
            action: terms.action,
            patience: node.config.limits.receipt,
        },
        retire,
        events,
    };
    model.command(Command::Generate(admission, Box::new(job)))?;
    if let Some(pieces) = pieces {
        tokio::spawn(seed(Arc::clone(&model), job_id, pieces, None));
    }
    let opened = GenerateEvent::Opened {
        prompt_tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        tokens: remote.then_some(tokens),
        ticket: guard.ticket.clone(),
        tokenize_ms,
    };
    let is_last =
        |e: &GenerateEvent| matches!(e, GenerateEvent::Done { .. } | GenerateEvent::Failed(_));
    Ok(event_stream(
        Some(opened),
        receiver,
        guard,
        node.config.limits.beat,
        GenerateEvent::Beat,
        is_last,
    ))
}

/// KV of decoded tokens is of use only to requests that take it.
fn keeps_answer(terms: &HandoffTerms) -> bool {
    terms.keep && terms.reuse == Reuse::All
}

/// The only machine that may use the request's ticket; `None` if there is no ticket, or no TLS and
/// so nobody is known.
fn prefill_peer(node: &Node, request: &GenerateRequest) -> Result<Option<PeerId>, NodeError> {
    let remote = request.prefill == PrefillMode::Remote;
    match (&request.prefill_peer, node.config.security.is_tls()) {
        (None, true) if remote => Err(invalid(
            "`prefill_peer` is missing: this node gives tickets only to a machine that it is told",
        )),
        (Some(_), false) => Err(invalid(
            "`prefill_peer` cannot be checked: this node was started with --plaintext",
        )),
        (None, _) => Ok(None),
        (Some(id), true) => {
            let id = id.parse();
            id.map(Some)
                .map_err(|e| invalid(format!("`prefill_peer`: {e}")))
        }
    }
}

/// Tokenises and checks a request; runs off the async threads.
fn prepare(model: &Model, request: GenerateRequest) -> Result<(Vec<Token>, Generation), NodeError> {
    let tokens = prompt_tokens(model, &request.prompt)?;
    let context = model.capacity.tokens_per_sequence;
    let n = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    if n == 0 {
        return Err(invalid("`prompt` is empty"));
    }
    if let Some(token) = tokens.iter().find(|t| **t >= model.tokenizer.len()) {
        return Err(invalid(format!(
            "`prompt`: token {token} is not in the vocabulary"
        )));
    }
    let wanted = request.generation.max_tokens.unwrap_or(1);
    if n.saturating_add(wanted) > context {
        return Err(NodeError::new(
            ErrorCode::ContextLength,
            format!(
                "the prompt has {n} tokens and `max_tokens` is {wanted}, together more than the context of {context} tokens; \
                 shorten the prompt, lower `max_tokens`, or start the node with a larger --context"
            ),
        ));
    }
    let g = request.generation;
    let params = GenerationParams {
        sampling: SamplingParams {
            temperature: g.temperature,
            top_k: g.top_k,
            top_p: g.top_p,
            min_p: g.min_p,
            seed: g.seed,
        },
        max_tokens: g.max_tokens.unwrap_or(context - n),
        stop: g.stop,
        format: match g.format {
            Format::Text => EngineFormat::Text,
            Format::JsonObject => EngineFormat::JsonObject,
            Format::JsonSchema(schema) => EngineFormat::JsonSchema(schema),
        },
    };
    let generation = Generation::new(&params, Arc::clone(&model.tokenizer), &model.constraints)
        .map_err(|e| invalid(e.to_string()))?;
    Ok((tokens, generation))
}

fn prompt_tokens(model: &Model, prompt: &Prompt) -> Result<Vec<Token>, NodeError> {
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Text(text) => Ok(completion_tokens(model.tokenizer.as_ref(), text)),
        Prompt::Chat(messages) => {
            let template = model.template.as_ref().map_err(|e| invalid(e.clone()))?;
            let messages: Vec<ChatMessage> = messages
                .iter()
                .map(|m| ChatMessage {
                    role: m.role.clone(),
                    content: m.content.clone(),
                })
                .collect();
            template
                .tokens(&messages)
                .map_err(|e| invalid(e.to_string()))
        }
    }
}

/// A request that is about to start.
struct Opening<'a> {
    request: String,
    job: JobId,
    remote: bool,
    peer: Option<PeerId>,
    tokens: &'a [Token],
    quality: Quality,
    keep: Keep,
    hand_back: oneshot::Sender<HandBack>,
}

/// Registers a request: gives it a ticket if KV is to come, and a guard that undoes everything
/// when the coordinator has gone.
fn open_request(node: &Arc<Node>, model: &Arc<Model>, opening: Opening<'_>) -> Guard {
    let Opening {
        request,
        job,
        remote,
        peer,
        tokens,
        quality,
        keep,
        hand_back,
    } = opening;
    let (alive, over) = watch::channel(());
    let handoff = handoff_id(job.0);
    let ticket = node.handoff_port.filter(|_| remote).map(|port| {
        let permitted = Permitted {
            request: request.clone(),
            target: Target::Sequence {
                model: Arc::clone(model),
                job,
            },
            expectation: Expectation {
                contract: Arc::clone(&model.contract),
                handoff,
                tokens: tokens.to_vec(),
                kv_end: u32::try_from(tokens.len()).unwrap_or(u32::MAX) - 1,
                continued: false,
                quality,
            },
            keep,
            peer,
            over,
            hand_back: Arc::new(Mutex::new(Some(hand_back))),
            place: None,
        };
        Ticket {
            secret: node.tickets.issue(permitted),
            handoff,
            port,
        }
    });
    node.running.insert(&request, Arc::clone(model), job);
    let guard = Guard {
        node: Arc::clone(node),
        model: Arc::clone(model),
        request,
        job,
        ticket,
        _alive: alive,
    };
    if let Some(ticket) = &guard.ticket {
        tokio::spawn(expire(Arc::clone(node), ticket.secret.clone()));
    }
    guard
}

/// Ends the wait for a prefill node that never connects.
async fn expire(node: Arc<Node>, secret: String) {
    let wait = node.config.limits.handoff_silence;
    tokio::time::sleep(wait).await;
    if let Some(permitted) = node.tickets.revoke(&secret) {
        let reason = format!("no prefill node connected within {} s", wait.as_secs_f32());
        permitted.failed(reason).await;
    }
}

/// Ends a request when its stream is dropped.
struct Guard {
    node: Arc<Node>,
    model: Arc<Model>,
    request: String,
    job: JobId,
    ticket: Option<Ticket>,
    /// Dropped with the guard: whoever takes KV in for the request ends.
    _alive: watch::Sender<()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.node.tickets.revoke(&ticket.secret);
        }
        self.node.running.remove(&self.request, self.job);
        // If the queue is full, the worker finds the closed channel by itself.
        let _ = self.model.command(Command::Cancel(self.job));
    }
}

async fn prefill_failed(
    State(node): State<Arc<Node>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let failed: PrefillFailed = parse(&body)?;
    let Some((model, job)) = node.running.get(&id) else {
        return Err(invalid(format!("no request `{id}` is running here")).into());
    };
    model.command(Command::HandoffFailed(job, failed.reason))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn prefill(State(node): State<Arc<Node>>, body: Bytes) -> Result<Response, Refusal> {
    let request: PrefillRequest = parse(&body)?;
    tandem_proto::generate::check_request_id(&request.request)?;
    if !node.config.role.prefills() {
        return Err(NodeError::new(ErrorCode::WrongRole, "this node only decodes").into());
    }
    let model = Arc::clone(node.model(&request.model)?);
    if request.chunk == 0 {
        return Err(invalid("`chunk` is 0").into());
    }
    check_chunk(&model, request.chunk)?;
    check_prefill_tokens(&model, &request.tokens)?;
    let peer = target_peer(&node, &request)?;
    let terms = request.terms.clone();
    let tokens: Arc<[u32]> = request.tokens.as_slice().into();
    let kv_end = u32::try_from(tokens.len()).unwrap_or(u32::MAX) - 1;
    let keep = Keep::new(
        node.pages.clone(),
        &model.contract,
        &terms,
        kv_end,
        request.chunk,
    );
    let pieces = keep
        .pin(&tokens[..kv_end as usize])
        .and_then(|pinned| Pieces::all(pinned, &model.contract));
    // One more than may wait, for what follows the last chunk.
    let (chunks, computed) = mpsc::channel(MAX_CHUNKS_WAITING + 1);
    let admission = model.admit()?;
    let id = admission.job;
    let hand_back = keeps_answer(&terms)
        .then(|| return_ticket(&node, &model, &request, &keep, peer.as_ref()))
        .flatten();
    let back = hand_back.as_ref().map(|b| b.ticket.clone());
    let job = PrefillJob {
        request: request.request.clone(),
        tokens: request.tokens.clone(),
        chunk: request.chunk,
        seeded: pieces.is_some(),
        receipt: true,
        hand_back,
        chunks: chunks.clone(),
    };
    model.command(Command::Prefill(admission, Box::new(job)))?;
    if let Some(pieces) = pieces {
        tokio::spawn(seed(Arc::clone(&model), id, pieces, Some(chunks)));
    }
    let beat = node.config.limits.beat;
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let offer = Offer {
        contract: Arc::clone(&model.contract),
        handoff: request.handoff,
        ticket: request.ticket.clone(),
        pages: keep.chain(&tokens[..kv_end as usize]),
        tokens: request.tokens.clone(),
        continuation: 0,
        kv_end,
    };
    let route = node.route(request.target.clone(), peer, &terms);
    let sending = Sending {
        request: request.request.clone(),
        model: Arc::clone(&model),
        kept: Kept {
            keep,
            tokens,
            tail: None,
        },
    };
    tokio::spawn(async move {
        let is_done = send_kv(sending, offer, route, computed, events).await;
        // Without a handoff nobody has heard of the permission.
        if let Some(secret) = back.filter(|_| !is_done) {
            node.tickets.revoke(&secret);
        }
    });
    let guard = PumpGuard { model, job: id };
    let is_last =
        |e: &PrefillEvent| matches!(e, PrefillEvent::Done { .. } | PrefillEvent::Failed(_));
    Ok(event_stream(
        None,
        receiver,
        guard,
        beat,
        PrefillEvent::Beat,
        is_last,
    ))
}

/// The only machine that KV may be sent to; `None` without TLS, where nobody is known.
fn target_peer(node: &Node, request: &PrefillRequest) -> Result<Option<PeerId>, NodeError> {
    match (&request.target_peer, node.config.security.is_tls()) {
        (None, true) => Err(invalid(
            "`target_peer` is missing: this node sends KV only to a machine that it is told",
        )),
        (Some(_), false) => Err(invalid(
            "`target_peer` cannot be checked: this node was started with --plaintext",
        )),
        (None, false) => Ok(None),
        (Some(id), true) => {
            let id = id.parse();
            id.map(Some)
                .map_err(|e| invalid(format!("`target_peer`: {e}")))
        }
    }
}

/// The permission for the decode node to hand the KV of its answer back; `None` if there are too many.
fn return_ticket(
    node: &Arc<Node>,
    model: &Arc<Model>,
    request: &PrefillRequest,
    keep: &Keep,
    peer: Option<&PeerId>,
) -> Option<ReturnTicket> {
    let place = Arc::clone(&node.returns).try_acquire_owned().ok()?;
    let handoff = handoff_id(0);
    let (alive, over) = watch::channel(());
    let permitted = Permitted {
        request: request.request.clone(),
        target: Target::Pages,
        expectation: Expectation {
            contract: Arc::clone(&model.contract),
            handoff,
            tokens: request.tokens.clone(),
            kv_end: 0,
            continued: true,
            quality: request.terms.quality,
        },
        keep: keep.clone(),
        peer: peer.cloned(),
        over,
        hand_back: Arc::default(),
        place: Some(Arc::new(place)),
    };
    let ticket = node.tickets.issue(permitted);
    let (node, secret) = (Arc::clone(node), ticket.clone());
    let port = node.return_port;
    tokio::spawn(async move {
        tokio::time::sleep(RETURN_TICKET).await;
        node.tickets.revoke(&secret);
        drop(alive);
    });
    Some(ReturnTicket {
        ticket,
        handoff,
        port,
    })
}

fn check_prefill_tokens(model: &Model, tokens: &[Token]) -> Result<(), NodeError> {
    let context = model.capacity.tokens_per_sequence;
    if tokens.len() < 2 {
        return Err(invalid(
            "`tokens`: there is nothing to prefill before the last token",
        ));
    }
    if tokens.len() > context as usize {
        return Err(NodeError::new(
            ErrorCode::ContextLength,
            format!(
                "the prompt has {} tokens; this node was started with a context of {context}",
                tokens.len()
            ),
        ));
    }
    if let Some(token) = tokens.iter().find(|t| **t >= model.tokenizer.len()) {
        return Err(invalid(format!(
            "`tokens`: {token} is not in the vocabulary"
        )));
    }
    Ok(())
}

/// Stops a prefill when the coordinator has gone. The pump finds that out by itself, and tells the
/// decode node.
struct PumpGuard {
    model: Arc<Model>,
    job: JobId,
}

impl Drop for PumpGuard {
    fn drop(&mut self) {
        let _ = self.model.command(Command::Cancel(self.job));
    }
}

/// Events as lines of JSON, with beats in between, until the last one. `guard` lives as long as
/// the stream.
fn event_stream<E, G>(
    first: Option<E>,
    receiver: mpsc::Receiver<E>,
    guard: G,
    beat_every: Duration,
    beat: E,
    is_last: fn(&E) -> bool,
) -> Response
where
    E: Serialize + Clone + Send + 'static,
    G: Send + 'static,
{
    let state = (first, receiver, guard, beat, false);
    let lines = stream::unfold(
        state,
        move |(mut first, mut receiver, guard, beat, over)| async move {
            if over {
                return None;
            }
            let event = match first.take() {
                Some(event) => event,
                None => match tokio::time::timeout(beat_every, receiver.recv()).await {
                    Ok(event) => event?,
                    Err(_) => beat.clone(),
                },
            };
            let over = is_last(&event);
            let mut line = serde_json::to_vec(&event).unwrap_or_default();
            line.push(b'\n');
            let item: Result<Vec<u8>, Infallible> = Ok(line);
            Some((item, (first, receiver, guard, beat, over)))
        },
    );
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}
