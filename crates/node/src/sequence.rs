//! What a sequence is doing, and the commands and events around it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine::Token;
use tandem_engine::generation::Generation;
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::{ParityBound, Receipt, ReturnTicket};
use tandem_handoff::{KvBlock, Plane, Section};
use tandem_proto::{GenerateEvent, HandoffTerms, SequenceStatus};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::prefix_cache::Keep;

/// Number of a sequence; never used twice by an engine loop, so that a late message for a sequence that has
/// ended finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A sequence's number and its place in the engine; the place is free again when this is dropped.
#[derive(Debug)]
pub struct Admission {
    /// The number.
    pub sequence: SequenceId,
    /// One of the engine's sequences.
    pub place: OwnedSemaphorePermit,
}

/// How a block came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// The codec; `None` for exact rows of this node.
    pub codec: Option<Codec>,
    /// Bytes on the wire; none for rows of this node.
    pub wire_bytes: u64,
}

/// Who brings a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A handoff: blocks of the sender in this codec, and pages of this node that come before them, exact ones or
    /// such as came in a lossy codec.
    Handoff(Carried),
    /// Pages of this node alone.
    Pages,
}

/// What is to be read of a request.
pub struct SequencePrompt {
    /// Id of the request.
    pub request: String,
    /// All tokens of the prompt, at least one.
    pub tokens: Vec<Token>,
    /// Tokens per chunk of a prefill.
    pub chunk: u32,
    /// Pages of this node.
    pub pages: Option<PagesHere>,
    /// What it shares KV with: sequences of the same salt. `None`: with nobody.
    pub salt: Option<Arc<str>>,
    /// True if it runs alone, and its prompt is computed in fixed shapes.
    pub reproducible: bool,
}

impl std::fmt::Debug for SequencePrompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SequencePrompt")
            .field("request", &self.request)
            .field("n_tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

/// A request to generate.
pub struct GenerateSequence {
    /// What it reads.
    pub prompt: SequencePrompt,
    /// Where KV comes from.
    pub source: Source,
    /// How the ends of a handoff are compared.
    pub parity: Parity,
    /// Where pages of the prompt are, to be forgotten if it turns out that they are wrong.
    pub keep: Keep,
    /// Who takes the KV when the answer is complete: of prompt and answer, or of the prompt alone.
    pub retire: Option<oneshot::Sender<Retired>>,
    /// Sampler, constraint, stop texts.
    pub generation: Generation,
    /// Where events go; closed when the coordinator has gone.
    pub events: mpsc::Sender<GenerateEvent>,
}

impl std::fmt::Debug for GenerateSequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerateSequence")
            .field("prompt", &self.prompt)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Pages of this node that a sequence can begin with.
#[derive(Debug)]
pub struct PagesHere {
    /// How many tokens they have, if that is known yet.
    pub tokens: Option<u32>,
    /// Asked for them: they come, and [`Command::Seeded`] behind them.
    pub ask: oneshot::Sender<()>,
}

/// Where the KV of a prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It is computed here, but for what others have computed already.
    Here,
    /// Another node sends it.
    Remote,
}

/// How a generation compares the ends of its handoff.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parity {
    /// True if the sender will tell what it computed for the last token.
    pub expected: bool,
    /// Beyond which the ends do not fit together.
    pub bound: ParityBound,
    /// How far rows may differ from what was computed.
    pub quality: Quality,
    /// True if the sender may hold another quantisation of the weights.
    pub mixed_quantisation: bool,
}

impl Parity {
    /// By the terms of a request.
    #[must_use]
    pub const fn of(terms: &HandoffTerms, expected: bool) -> Self {
        Self {
            expected,
            bound: terms.bound,
            quality: terms.quality,
            mixed_quantisation: terms.mixed_quantisation,
        }
    }
}

/// What came with a handoff.
#[derive(Debug, Clone, Copy, Default)]
pub struct HandedOver {
    /// Bytes of rows.
    pub raw_bytes: u64,
    /// Bytes on the wire for them.
    pub wire_bytes: u64,
    /// Connections after the first.
    pub reconnects: u32,
}

/// A handoff that did not come to its end.
#[derive(Debug, Clone)]
pub struct Lost {
    /// Why.
    pub reason: String,
    /// True if what came is not what was sent, as far as can be told: nothing of it is used.
    pub is_wrong: bool,
}

impl<T: Into<String>> From<T> for Lost {
    fn from(reason: T) -> Self {
        Self {
            reason: reason.into(),
            is_wrong: false,
        }
    }
}

/// What a sender says of the last token.
#[derive(Debug)]
pub enum Told {
    /// What it computed.
    Receipt(Box<Receipt>),
    /// Something that is no receipt, and why.
    Unusable(String),
    /// Nothing, and nothing more will come.
    Nothing,
}

/// A sequence whose answer is complete.
pub struct Retired {
    /// Prompt and answer, as far as there is KV that is kept.
    pub tokens: Vec<Token>,
    /// How many of them are the answer.
    pub generated: u32,
    /// True if no other node has computed any of it: what was computed behind the rows of another one is not what this
    /// one computes from the beginning.
    pub is_own: bool,
    /// Blocks of their KV, to the last one.
    pub chunks: mpsc::Receiver<Input>,
}

/// A request to compute KV for another node.
#[derive(Debug)]
pub struct PrefillSequence {
    /// What it reads, at least two tokens.
    pub prompt: SequencePrompt,
    /// True if layers are sent while the next ones are computed, where the engine gives them.
    pub by_layer: bool,
    /// Permission for the decode node to hand the KV of its answer back, for the receipt.
    pub hand_back: Option<ReturnTicket>,
    /// Where computed chunks go; closed when the handoff has ended.
    pub chunks: mpsc::Sender<Input>,
}

/// A block of the chunk that is being computed.
#[derive(Debug)]
pub struct StreamedBlock {
    /// Which layers.
    pub section: Section,
    /// Token positions.
    pub tokens: Range<u32>,
    /// Its planes, in order, each as soon as it is computed. The same ones are in the [`Computed`] chunk; if this ends
    /// before, there will be none.
    pub planes: mpsc::Receiver<Plane>,
}

/// A chunk that is being computed.
#[derive(Debug)]
pub struct Begun {
    /// Its blocks, in the order in which they must be sent.
    pub blocks: Vec<StreamedBlock>,
    /// The chunk, once it is computed; may have blocks besides.
    pub chunk: oneshot::Receiver<Computed>,
    /// True if it is the last one.
    pub last: bool,
}

/// What the engine gives to be sent.
#[derive(Debug)]
pub enum Input {
    /// The next chunk, which is being computed.
    Begun(Begun),
    /// The next chunk.
    Chunk(Computed),
    /// After the last chunk: what it computed for the last token.
    Receipt(Box<Receipt>),
}

/// A chunk that has been computed and copied out.
#[derive(Debug)]
pub struct Computed {
    /// Its blocks, those of each section in the order in which they must be sent.
    pub blocks: Vec<Arc<KvBlock>>,
    /// With the last chunk: the whole window, whose blocks are in `blocks` of this chunk and of those
    /// before it.
    pub window: Option<Arc<KvBlock>>,
    /// Tokens computed so far.
    pub tokens: u32,
    /// When its last token was computed.
    pub computed: Instant,
    /// Time spent computing so far, in milliseconds.
    pub prefill_ms: f64,
    /// Tokens of the prompt that were computed for it so far, not taken from elsewhere.
    pub computed_tokens: u32,
    /// True for the last chunk of the prompt.
    pub last: bool,
    /// True if [`Input::Receipt`] follows.
    pub receipt_follows: bool,
}

impl Computed {
    /// What pages and snapshots are made of, in order: full blocks, and the whole window in the end.
    pub fn to_keep(&self) -> impl Iterator<Item = &Arc<KvBlock>> {
        let full = self.blocks.iter().filter(|b| b.section == Section::Full);
        full.chain(&self.window)
    }
}

/// What an engine thread is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Start a generation.
    Generate(Admission, Box<GenerateSequence>),
    /// Start a prefill for another node.
    Prefill(Admission, Box<PrefillSequence>),
    /// Put KV into the cache.
    Apply(
        SequenceId,
        Origin,
        Arc<KvBlock>,
        oneshot::Sender<Result<(), String>>,
    ),
    /// A handoff begins: the sequence begins with what is here of its prompt. Told is up to which token, a page boundary.
    BeginReceiving(SequenceId, oneshot::Sender<u32>),
    /// The node that KV is computed for has the tokens before this one.
    There(SequenceId, u32),
    /// All pages of this node that the sequence can use have been applied; true if what is computed behind them must be what it is
    /// without them, to the bit.
    Seeded(SequenceId, bool),
    /// Pages of this node up to this token have been applied, or come next; a handoff brings the rest.
    Cached(SequenceId, u32),
    /// All KV of the sequence has been applied and the sender has committed.
    Committed(SequenceId, Box<HandedOver>),
    /// What the sender computed for the last token.
    Receipt(SequenceId, Told),
    /// No (more) KV will come; compute what is missing.
    HandoffFailed(SequenceId, Lost),
    /// Nobody waits for the sequence any more.
    Cancel(SequenceId),
    /// Tell what is going on.
    Status(oneshot::Sender<Vec<SequenceStatus>>),
    /// There is room again for what a sequence computes.
    Wake,
    /// End all sequences and the thread.
    Stop,
}
