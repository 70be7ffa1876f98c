//! `POST /node/v1/generate`: a request that generates here.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use tandem_cluster::PeerId;
use tandem_engine::Token;
use tandem_engine::chat::{ChatMessage, completion_tokens};
use tandem_engine::generation::{Format as EngineFormat, Generation, GenerationParams};
use tandem_engine::sampling::SamplingParams;
use tandem_handoff::receiver::{Covers, Expectation};
use tandem_proto::{
    ErrorCode, Format, GenerateEvent, GenerateRequest, HandoffFailed, HandoffTerms, NodeError,
    PrefillMode, Prompt, Ticket, TokenizeRequest, Tokenized,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Node, Preparing, Refusal, check_chunk, event_stream, invalid, named_peer, parse};
use crate::conversation::{Keeping, seed};
use crate::held::{Keep, Pieces};
use crate::job::{Command, GenerateJob, JobId, Parity, Retired, Source};
use crate::limits::{MAX_EVENTS, MAX_TOKENIZING, TOKENIZING_WAIT};
use crate::model::Model;
use crate::tickets::{HandBack, Permitted, Target, Until, handoff_id};
use crate::worker::generation_error;

pub(super) async fn generate(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let _preparing = Preparing::at(&node);
    started(node, body).await
}

/// Starts a request.
async fn started(node: Arc<Node>, body: Bytes) -> Result<Response, Refusal> {
    let request: GenerateRequest = parse(&body)?;
    let Checked { model, peer } = checked(&node, &request)?;
    let (id, prefill, alone_percent, chunk, terms) = (
        request.request.clone(),
        request.prefill,
        request.alone_percent,
        request.chunk,
        model.terms(&request.terms),
    );
    let start = Instant::now();
    let (tokens, generation) = prepared(&model, request).await?;
    let tokenize_ms = start.elapsed().as_secs_f64() * 1e3;
    let kv_end = u32::try_from(tokens.len()).unwrap_or(u32::MAX) - 1;
    let batches = model.batches(kv_end, chunk);
    let keep = Keep::new(&node.pages, &model.contract, &terms, batches);
    let (prompt, page_read) = (&tokens[..kv_end as usize], node.config.limits.page_read);
    let part = (prefill, alone_percent);
    let pieces = pages_of(&keep, prompt, part, page_read)?;
    // A request that is prefilled elsewhere gets its pages when the handoff begins, or ends before that.
    let remote = prefill == PrefillMode::Remote && pieces.is_none() && kv_end > 0;
    let source = source(remote, pieces.is_some());
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let admission = model.admit_soon().await?;
    let job_id = admission.job;
    let (hand_back, handed_back) = oneshot::channel();
    let opening = Opening {
        request: id.clone(),
        job: job_id,
        remote,
        peer,
        tokens: &tokens,
        terms: &terms,
        keep: keep.clone(),
        hand_back,
    };
    let guard = open_request(&node, &model, opening);
    // A prefill node may take the answer back where this one keeps nothing.
    let retire = (terms.keeps_answer() && (remote || node.config.pages.keeps_any())).then(|| {
        let terms = terms.handing_back();
        keep_answer(&node, &model, keep.clone(), terms, &tokens, handed_back)
    });
    let pages = remote.then(|| pages_on_demand(&model, job_id, keep.clone(), prompt, page_read));
    let job = GenerateJob {
        request: id,
        pages,
        tokens: tokens.clone(),
        chunk,
        source,
        generation,
        parity: Parity::of(&terms, remote),
        keep,
        retire,
        events,
    };
    model.command(Command::Generate(admission, Box::new(job)))?;
    guard.put_pages(pieces);
    let opened = opened(tokens, guard.ticket.clone(), tokenize_ms);
    Ok(answer(opened, receiver, guard, node.config.limits.beat))
}

fn opened(tokens: Vec<Token>, ticket: Option<Ticket>, tokenize_ms: f64) -> GenerateEvent {
    GenerateEvent::Opened {
        prompt_tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        tokens: ticket.is_some().then_some(tokens),
        ticket,
        tokenize_ms,
    }
}

/// The pages of a prompt with which this node prefills by itself; `None` if it does without, or another node
/// prefills.
///
/// # Errors
/// If this node is to prefill, and more of the prompt is missing than it is to.
fn pages_of(
    keep: &Keep,
    prompt: &[Token],
    (prefill, percent): (PrefillMode, u8),
    limit: Duration,
) -> Result<Option<Pieces>, NodeError> {
    if prefill == PrefillMode::Remote && percent == 0 {
        return Ok(None);
    }
    let is_enough = |pieces: &Pieces| {
        let missing = prompt.len().saturating_sub(pieces.tokens() as usize);
        missing * 100 <= prompt.len() * usize::from(percent)
    };
    let pieces = keep.pieces(prompt, limit).filter(is_enough);
    if prefill == PrefillMode::Local && percent < 100 && pieces.is_none() {
        let message = format!("more than {percent} % of the prompt is missing here");
        return Err(NodeError::new(ErrorCode::Lacks, message));
    }
    Ok(pieces)
}

/// Where the KV of a prompt comes from at first.
const fn source(remote: bool, has_pages: bool) -> Source {
    match (remote, has_pages) {
        (true, _) => Source::Remote,
        (false, true) => Source::Pages,
        (false, false) => Source::Here,
    }
}

/// Puts them into the sequence of a job when it asks for them: when its handoff has brought nothing.
fn pages_on_demand(
    model: &Arc<Model>,
    job: JobId,
    keep: Keep,
    tokens: &[Token],
    limit: Duration,
) -> oneshot::Sender<()> {
    let (ask, asked) = oneshot::channel();
    let (model, tokens) = (Arc::clone(model), tokens.to_vec());
    tokio::spawn(async move {
        if asked.await.is_err() {
            return;
        }
        match keep.pieces(&tokens, limit) {
            Some(pieces) => seed(model, job, pieces, None).await,
            None => model.deliver(Command::Seeded(job, true)).await,
        }
    });
    ask
}

/// What a request is about.
struct Checked {
    model: Arc<Model>,
    /// The machine that may bring its KV.
    peer: Option<PeerId>,
}

fn checked(node: &Node, request: &GenerateRequest) -> Result<Checked, NodeError> {
    node.takes_work()?;
    request.validate()?;
    if !node.config.role.decodes() {
        return Err(NodeError::new(
            ErrorCode::WrongRole,
            "this node only prefills",
        ));
    }
    let model = Arc::clone(node.model(&request.model)?);
    check_chunk(&model, request.chunk)?;
    if request.prefill == PrefillMode::Remote {
        model.check_handed_over()?;
    }
    let peer = prefill_peer(node, request)?;
    Ok(Checked { model, peer })
}

fn answer(
    opened: GenerateEvent,
    events: mpsc::Receiver<GenerateEvent>,
    guard: Guard,
    beat: Duration,
) -> Response {
    let is_last =
        |e: &GenerateEvent| matches!(e, GenerateEvent::Done { .. } | GenerateEvent::Failed(_));
    event_stream(
        Some(opened),
        events,
        guard,
        beat,
        GenerateEvent::Beat,
        is_last,
    )
}

/// Starts to wait for the end of an answer whose KV is kept.
fn keep_answer(
    node: &Arc<Node>,
    model: &Arc<Model>,
    keep: Keep,
    terms: HandoffTerms,
    prompt: &[Token],
    hand_back: oneshot::Receiver<HandBack>,
) -> oneshot::Sender<Retired> {
    let (retire, retired) = oneshot::channel();
    let keeping = Keeping {
        node: Arc::clone(node),
        model: Arc::clone(model),
        keep,
        terms,
        prompt: prompt.to_vec(),
        retired,
        hand_back,
    };
    tokio::spawn(keeping.run());
    retire
}

/// The only machine that may use the request's ticket; `None` if there is no ticket, or no TLS and
/// so nobody is known.
fn prefill_peer(node: &Node, request: &GenerateRequest) -> Result<Option<PeerId>, NodeError> {
    if request.prefill == PrefillMode::Local && request.prefill_peer.is_none() {
        return Ok(None);
    }
    let why = "gives tickets only to a machine that it is told";
    named_peer(node, "prefill_peer", request.prefill_peer.as_deref(), why)
}

pub(super) async fn tokenize(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Json<Tokenized>, Refusal> {
    let request: TokenizeRequest = parse(&body)?;
    let model = Arc::clone(node.model(&request.model)?);
    let place = tokio::time::timeout(TOKENIZING_WAIT, node.tokenizing.acquire()).await;
    let _place = place.map_err(|_| {
        let busy = format!("{MAX_TOKENIZING} other prompts are being tokenised");
        NodeError::new(ErrorCode::Busy, busy)
    })?;
    let tokenizing = tokio::task::spawn_blocking(move || {
        let tokens = checked_tokens(&model, &request.prompt)?;
        let context = model.capacity.tokens_per_sequence;
        Ok(Tokenized { tokens, context })
    });
    let tokenized: Result<Tokenized, NodeError> = tokenizing.await.map_err(|_| unprepared())?;
    Ok(Json(tokenized?))
}

/// Tokenises and checks a request off the async threads.
async fn prepared(
    model: &Arc<Model>,
    request: GenerateRequest,
) -> Result<(Vec<Token>, Generation), NodeError> {
    let model = Arc::clone(model);
    let preparing = tokio::task::spawn_blocking(move || prepare(&model, request));
    preparing.await.map_err(|_| unprepared())?
}

/// The tokens of a prompt: at least one, and all of the vocabulary.
fn checked_tokens(model: &Model, prompt: &Prompt) -> Result<Vec<Token>, NodeError> {
    let tokens = prompt_tokens(model, prompt)?;
    if tokens.is_empty() {
        return Err(invalid("`prompt` is empty"));
    }
    if let Some(token) = tokens.iter().find(|t| **t >= model.tokenizer.len()) {
        return Err(invalid(format!(
            "`prompt`: token {token} is not in the vocabulary"
        )));
    }
    Ok(tokens)
}

/// The thread that prepares a request has failed; why is in the log.
fn unprepared() -> NodeError {
    NodeError::new(ErrorCode::Engine, "the request could not be prepared")
}

fn prepare(model: &Model, request: GenerateRequest) -> Result<(Vec<Token>, Generation), NodeError> {
    let tokens = checked_tokens(model, &request.prompt)?;
    let context = model.capacity.tokens_per_sequence;
    let n = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
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
        .map_err(|e| generation_error(&e))?;
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
                    tokens: m.tokens.clone(),
                    ..ChatMessage::new(m.role.clone(), m.content.clone())
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
    terms: &'a HandoffTerms,
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
        terms,
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
                covers: Covers::All,
                quality: terms.quality,
                mixed_quantisation: terms.mixed_quantisation,
            },
            keep,
            peer,
            until: Until::Request(over),
            hand_back: Arc::new(Mutex::new(Some(hand_back))),
            place: None,
        };
        Ticket {
            secret: node
                .tickets
                .issue(permitted, node.config.limits.handoff_silence),
            handoff,
            ip: node.handoff_ip,
            port,
        }
    });
    node.running.insert(&request, Arc::clone(model), job);
    Guard {
        node: Arc::clone(node),
        model: Arc::clone(model),
        request,
        job,
        ticket,
        _alive: alive,
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

impl Guard {
    /// Has pages of this node put into the sequence of the request.
    fn put_pages(&self, pieces: Option<Pieces>) {
        if let Some(pieces) = pieces {
            tokio::spawn(seed(Arc::clone(&self.model), self.job, pieces, None));
        }
    }
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

pub(super) async fn prefill_failed(
    State(node): State<Arc<Node>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let failed: HandoffFailed = parse(&body)?;
    let Some((model, job)) = node.running.get(&id) else {
        return Err(invalid(format!("no request `{id}` is running here")).into());
    };
    model.command(Command::HandoffFailed(job, failed.reason.into()))?;
    Ok(StatusCode::NO_CONTENT)
}
