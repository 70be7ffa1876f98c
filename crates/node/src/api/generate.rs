//! `POST /node/v1/generate`: a request that generates here.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use tandem_cluster::PeerId;
use tandem_engine::chat::{ChatMessage, completion_tokens};
use tandem_engine::generation::Generation;
use tandem_engine::{Token, Tokenizer};
use tandem_handoff::receiver::{Covers, Expectation};
use tandem_proto::{
    ErrorCode, GenerateEvent, GenerateRequest, HandoffFailed, HandoffTerms, Message, NodeError,
    PrefillMode, Prompt, Ticket, TokenizeRequest, Tokenized,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;

use super::{Node, Preparing, Refusal, check_chunk, event_stream, invalid, named_peer, parse};
use crate::conversation::{Keeping, seed, shared_by};
use crate::engine_loop::generation_error;
use crate::limits::{ALONE_WAIT, MAX_EVENTS, MAX_TOKENIZING, TOKENIZING_WAIT};
use crate::model::Model;
use crate::prefix_cache::{Keep, Pieces};
use crate::sequence::{
    Command, GenerateSequence, PagesHere, Parity, Retired, SequenceId, SequencePrompt, Source,
};
use crate::tickets::{HandBack, Permitted, Target, handoff_id};

pub(super) async fn generate(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let _preparing = Preparing::at(&node);
    started(node, body).await
}

/// Starts a request: checks it, tokenises its prompt, finds out what of its KV is here, and gives it a place in the
/// engine.
async fn started(node: Arc<Node>, body: Bytes) -> Result<Response, Refusal> {
    let request: GenerateRequest = parse(&body)?;
    let Checked { model, peer } = checked(&node, &request)?;
    let asked = Asked::of(&model, &request);
    let began = Instant::now();
    let (tokens, generation) = prepared(&model, request).await?;
    let tokenize_ms = began.elapsed().as_secs_f64() * 1e3;
    let starting = Starting::new(node, model, asked, tokens);
    let pieces = starting.pieces()?;
    let source = starting.source(pieces.is_some());
    let admission = match starting.asked.terms.reproducible {
        true => starting.model.admit_alone(ALONE_WAIT).await?,
        false => starting.model.admit_soon().await?,
    };
    let id = admission.sequence;
    let (guard, hand_back) = starting.open(id, source, peer);
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let mut sequence = starting.sequence(source, generation, hand_back, events);
    sequence.prompt.pages = starting.pages(id, source, pieces);
    let command = Command::Generate(admission, Box::new(sequence));
    starting.model.command(command)?;
    let beat = starting.node.config.limits.beat;
    let opened = starting.opened(guard.ticket.clone(), tokenize_ms);
    Ok(answer(opened, receiver, guard, beat))
}

/// What of a request says where the KV of its prompt comes from.
struct Asked {
    request: String,
    prefill: PrefillMode,
    /// How much of the prompt this node may compute by itself.
    alone_percent: u8,
    chunk: u32,
    terms: HandoffTerms,
    is_chat: bool,
}

impl Asked {
    fn of(model: &Model, request: &GenerateRequest) -> Self {
        Self {
            request: request.request.clone(),
            prefill: request.prefill,
            alone_percent: request.alone_percent,
            chunk: request.chunk,
            terms: model.terms(&request.terms),
            is_chat: matches!(request.prompt, Prompt::Chat(_)),
        }
    }
}

/// A request whose prompt is known, and that has no place yet.
struct Starting {
    node: Arc<Node>,
    model: Arc<Model>,
    asked: Asked,
    /// At least one.
    tokens: Vec<Token>,
    keep: Keep,
}

impl Starting {
    fn new(node: Arc<Node>, model: Arc<Model>, asked: Asked, tokens: Vec<Token>) -> Self {
        let chunking = model.chunking(kv_end(&tokens), asked.chunk);
        let keep = Keep::new(&node.pages, &model.contract, &asked.terms, chunking);
        Self {
            node,
            model,
            asked,
            tokens,
            keep,
        }
    }

    /// The tokens whose KV is needed: that of the last one comes with the first step of decoding.
    fn prompt(&self) -> &[Token] {
        &self.tokens[..kv_end(&self.tokens) as usize]
    }

    /// The pages with which this node prefills by itself; `None` if it does without, or another node prefills.
    ///
    /// # Errors
    /// If this node is to prefill, and more of the prompt is missing than it is to.
    fn pieces(&self) -> Result<Option<Pieces>, NodeError> {
        let (prompt, percent) = (self.prompt(), self.asked.alone_percent);
        if self.asked.prefill == PrefillMode::Remote && percent == 0 {
            return Ok(None);
        }
        let is_enough = |pieces: &Pieces| {
            let missing = prompt.len().saturating_sub(pieces.tokens() as usize);
            missing * 100 <= prompt.len() * usize::from(percent)
        };
        let limit = self.node.config.limits.page_read;
        let pieces = self.keep.pieces(prompt, limit).filter(is_enough);
        if self.asked.prefill == PrefillMode::Local && percent < 100 && pieces.is_none() {
            let message = format!("more than {percent} % of the prompt is missing here");
            return Err(NodeError::new(ErrorCode::Lacks, message));
        }
        Ok(pieces)
    }

    /// Where the KV comes from at first. A request that is prefilled elsewhere gets its pages when the handoff begins,
    /// or ends before that.
    fn source(&self, has_pages: bool) -> Source {
        let is_remote = self.asked.prefill == PrefillMode::Remote && !self.prompt().is_empty();
        match is_remote && !has_pages {
            true => Source::Remote,
            false => Source::Here,
        }
    }

    /// Registers the request: gives it a ticket if KV is to come, and a guard that undoes everything when the
    /// coordinator has gone. Its ticket says where the KV of the answer may be handed back to.
    fn open(
        &self,
        sequence: SequenceId,
        source: Source,
        peer: Option<PeerId>,
    ) -> (Guard, oneshot::Receiver<HandBack>) {
        let (hand_back, handed_back) = oneshot::channel();
        let (alive, over) = watch::channel(());
        let (node, terms) = (&self.node, &self.asked.terms);
        let handoff = handoff_id(sequence.0);
        let port = node.handoff_port.filter(|_| source == Source::Remote);
        let ticket = port.map(|port| {
            let permitted = Permitted {
                request: self.asked.request.clone(),
                target: Target::Sequence {
                    model: Arc::clone(&self.model),
                    sequence,
                    over,
                    hand_back: Arc::new(Mutex::new(Some(hand_back))),
                },
                expectation: Expectation {
                    contract: Arc::clone(&self.model.contract),
                    handoff,
                    tokens: self.tokens.clone(),
                    kv_end: kv_end(&self.tokens),
                    covers: Covers::All,
                    quality: terms.quality,
                    mixed_quantisation: terms.mixed_quantisation,
                },
                keep: self.keep.clone(),
                peer,
            };
            let limit = node.config.limits.handoff_silence;
            Ticket {
                secret: node.tickets.issue(permitted, limit),
                handoff,
                ip: node.handoff_ip,
                port,
            }
        });
        let request = self.asked.request.clone();
        node.running
            .insert(&request, Arc::clone(&self.model), sequence);
        let guard = Guard {
            node: Arc::clone(node),
            model: Arc::clone(&self.model),
            request,
            sequence,
            ticket,
            _alive: alive,
        };
        (guard, handed_back)
    }

    /// What the engine thread gets of it.
    fn sequence(
        &self,
        source: Source,
        generation: Generation,
        hand_back: oneshot::Receiver<HandBack>,
        events: mpsc::Sender<GenerateEvent>,
    ) -> GenerateSequence {
        let is_remote = source == Source::Remote;
        GenerateSequence {
            prompt: SequencePrompt {
                request: self.asked.request.clone(),
                tokens: self.tokens.clone(),
                chunk: self.asked.chunk,
                pages: None,
                salt: shared_by(&self.asked.terms),
                reproducible: self.asked.terms.reproducible,
            },
            source,
            parity: Parity::of(&self.asked.terms, is_remote),
            keep: self.keep.clone(),
            retire: self.kept(is_remote, hand_back),
            generation,
            events,
        }
    }

    /// Pages that are put into a sequence when it asks for them: those that were found, or if its handoff has brought
    /// nothing, what is there then.
    fn pages(
        &self,
        sequence: SequenceId,
        source: Source,
        pieces: Option<Pieces>,
    ) -> Option<PagesHere> {
        let is_remote = source == Source::Remote;
        let tokens = pieces.as_ref().map(Pieces::tokens);
        if !is_remote && pieces.is_none() {
            return None;
        }
        let (ask, asked) = oneshot::channel();
        let (model, keep) = (Arc::clone(&self.model), self.keep.clone());
        let (prompt, limit) = (self.prompt().to_vec(), self.node.config.limits.page_read);
        tokio::spawn(async move {
            if asked.await.is_err() {
                return;
            }
            match pieces.or_else(|| keep.pieces(&prompt, limit)) {
                Some(pieces) => seed(model, sequence, pieces, None).await,
                None => model.deliver(Command::Seeded(sequence, true)).await,
            }
        });
        Some(PagesHere { tokens, ask })
    }

    /// Starts to wait for the end of an answer: its KV is kept, here or where it is handed back to, or that of its
    /// prompt alone.
    fn kept(
        &self,
        is_remote: bool,
        hand_back: oneshot::Receiver<HandBack>,
    ) -> Option<oneshot::Sender<Retired>> {
        let has_pages = self.node.config.pages.keeps_any();
        let is_of_use = match (self.keep.keeps_answer(), is_remote) {
            (true, true) => true,
            (true, false) => has_pages,
            // What another node has sent has become pages by then.
            (false, true) => false,
            (false, false) => has_pages && self.keep.prompt_end() > 0,
        };
        if !is_of_use {
            return None;
        }
        let (retire, retired) = oneshot::channel();
        let keeping = Keeping {
            node: Arc::clone(&self.node),
            model: Arc::clone(&self.model),
            keep: self.keep.clone(),
            terms: self.asked.terms.handing_back(),
            prompt: self.tokens.clone(),
            retired,
            hand_back,
        };
        tokio::spawn(keeping.run());
        Some(retire)
    }

    fn opened(self, ticket: Option<Ticket>, tokenize_ms: f64) -> GenerateEvent {
        GenerateEvent::Opened {
            prompt_end: match self.asked.is_chat {
                true => end_of(self.model.tokenizer.as_ref(), &self.tokens),
                false => String::new(),
            },
            prompt_tokens: u32::try_from(self.tokens.len()).unwrap_or(u32::MAX),
            tokens: ticket.is_some().then_some(self.tokens),
            ticket,
            tokenize_ms,
        }
    }
}

/// Tokens at the end of a prompt whose text the coordinator is told.
const PROMPT_END: usize = 8;

/// The text of the last tokens of a prompt, as it would be in an answer: without control tokens, whose ends would not be
/// seen there either.
fn end_of(tokenizer: &dyn Tokenizer, tokens: &[Token]) -> String {
    let last = &tokens[tokens.len().saturating_sub(PROMPT_END)..];
    let bytes: Vec<u8> = last
        .iter()
        .flat_map(|token| tokenizer.bytes(*token))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of the tokens of a prompt whose KV is needed.
fn kv_end(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX) - 1
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
    let tokenized: Result<Tokenized, NodeError> = tokenizing.await.map_err(|e| unprepared(&e))?;
    Ok(Json(tokenized?))
}

/// Tokenises and checks a request off the async threads.
async fn prepared(
    model: &Arc<Model>,
    request: GenerateRequest,
) -> Result<(Vec<Token>, Generation), NodeError> {
    let model = Arc::clone(model);
    let preparing = tokio::task::spawn_blocking(move || prepare(&model, request));
    preparing.await.map_err(|e| unprepared(&e))?
}

/// The tokens of a prompt: at least one, and all of the vocabulary.
fn checked_tokens(model: &Model, prompt: &Prompt) -> Result<Vec<Token>, NodeError> {
    check_bytes(model, prompt)?;
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

/// That a prompt is not so long that no tokens of this vocabulary make it fit: finding those of megabytes takes seconds.
/// What an assistant said does not count, as templates may leave some of it out.
fn check_bytes(model: &Model, prompt: &Prompt) -> Result<(), NodeError> {
    let bytes: usize = match prompt {
        Prompt::Tokens(_) => return Ok(()),
        Prompt::Text(text) => text.len(),
        Prompt::Chat(messages) => {
            let kept = messages.iter().filter(|m| m.role != "assistant");
            kept.map(|m| m.content.len()).sum()
        }
    };
    let (longest, context) = (model.longest_token, model.capacity.tokens_per_sequence);
    let most = longest.saturating_mul(usize::try_from(context).unwrap_or(usize::MAX));
    match bytes > most {
        true => Err(NodeError::new(
            ErrorCode::ContextLength,
            format!(
                "the prompt has {bytes} bytes, more than the context of {context} tokens can have ({most}); \
                 shorten the prompt, or start the node with a larger --context"
            ),
        )),
        false => Ok(()),
    }
}

/// The thread that prepares a request has failed, which the log explains, or was not begun because the node ends.
fn unprepared(why: &JoinError) -> NodeError {
    match why.is_cancelled() {
        true => NodeError::new(ErrorCode::Stopping, "the node is shutting down"),
        false => NodeError::new(ErrorCode::Engine, "the request could not be prepared"),
    }
}

fn prepare(model: &Model, request: GenerateRequest) -> Result<(Vec<Token>, Generation), NodeError> {
    let tokens = checked_tokens(model, &request.prompt)?;
    let context = model.capacity.tokens_per_sequence;
    let n = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let wanted = request.generation.sampling.max_tokens.unwrap_or(1);
    if n.saturating_add(wanted) > context {
        return Err(NodeError::new(
            ErrorCode::ContextLength,
            format!(
                "the prompt has {n} tokens and `max_tokens` is {wanted}, together more than the context of {context} tokens; \
                 shorten the prompt, lower `max_tokens`, or start the node with a larger --context"
            ),
        ));
    }
    let mut params = request.generation;
    params.sampling.max_tokens.get_or_insert(context - n);
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
            let messages: Vec<ChatMessage> = messages.iter().map(chat_message).collect();
            template
                .tokens(&messages)
                .map_err(|e| invalid(e.to_string()))
        }
    }
}

fn chat_message(message: &Message) -> ChatMessage {
    let mut seen = ChatMessage::new(message.role.clone(), message.content.clone());
    seen.tokens.clone_from(&message.tokens);
    if let Some(name) = &message.name {
        seen.fields.insert("name".to_owned(), name.clone().into());
    }
    seen
}

/// Ends a request when its stream is dropped.
struct Guard {
    node: Arc<Node>,
    model: Arc<Model>,
    request: String,
    sequence: SequenceId,
    ticket: Option<Ticket>,
    /// Dropped with the guard: whoever takes KV in for the request ends.
    _alive: watch::Sender<()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.node.tickets.revoke(&ticket.secret);
        }
        self.node.running.remove(&self.request, self.sequence);
        // If the queue is full, the engine loop finds the closed channel by itself.
        let _ = self.model.command(Command::Cancel(self.sequence));
    }
}

pub(super) async fn prefill_failed(
    State(node): State<Arc<Node>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let failed: HandoffFailed = parse(&body)?;
    let Some((model, sequence)) = node.running.get(&id) else {
        return Err(invalid(format!("no request `{id}` is running here")).into());
    };
    model.command(Command::HandoffFailed(sequence, failed.reason.into()))?;
    Ok(StatusCode::NO_CONTENT)
}
