//! What a sequence is doing, and the commands and events around it.

use std::ops::Range;
use std::time::Instant;

use tandem_engine::Token;
use tandem_engine::generation::Generation;
use tandem_kv::{KvBlock, Section};
use tandem_proto::{GenerateEvent, SequenceStatus};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Number of a job; never used twice by a worker, so that a late message for a job that has
/// ended finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A job's number and its place in the engine; the place is free again when this is dropped.
#[derive(Debug)]
pub struct Admission {
    /// The number.
    pub job: JobId,
    /// One of the engine's sequences.
    pub place: OwnedSemaphorePermit,
}

/// A request to generate.
pub struct GenerateJob {
    /// Id of the request.
    pub request: String,
    /// All tokens of the prompt, at least one.
    pub tokens: Vec<Token>,
    /// Tokens per chunk of a local prefill.
    pub chunk: u32,
    /// True if KV comes from another node.
    pub remote: bool,
    /// Sampler, constraint, stop texts.
    pub generation: Generation,
    /// Where events go; closed when the coordinator has gone.
    pub events: mpsc::Sender<GenerateEvent>,
}

impl std::fmt::Debug for GenerateJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerateJob")
            .field("request", &self.request)
            .field("n_tokens", &self.tokens.len())
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

/// A request to compute KV for another node.
pub struct PrefillJob {
    /// Id of the request.
    pub request: String,
    /// All tokens of the prompt, at least two.
    pub tokens: Vec<Token>,
    /// Tokens per chunk.
    pub chunk: u32,
    /// Where computed chunks go; closed when the handoff has ended.
    pub chunks: mpsc::Sender<Computed>,
}

impl std::fmt::Debug for PrefillJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefillJob")
            .field("request", &self.request)
            .field("n_tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

/// A chunk that has been computed and copied out.
#[derive(Debug)]
pub struct Computed {
    /// Its blocks in the order in which they must be sent.
    pub blocks: Vec<KvBlock>,
    /// Tokens computed so far.
    pub tokens: u32,
    /// When its last token was computed.
    pub computed: Instant,
    /// Time spent computing so far, in milliseconds.
    pub prefill_ms: f64,
    /// True for the last chunk of the prompt.
    pub last: bool,
}

/// What an engine thread is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Start a generation.
    Generate(Admission, Box<GenerateJob>),
    /// Start a prefill for another node.
    Prefill(Admission, Box<PrefillJob>),
    /// Put received KV into the cache.
    Apply(JobId, Box<KvBlock>, oneshot::Sender<Result<(), String>>),
    /// All KV of the job has been applied and the sender has committed.
    Committed(JobId),
    /// No (more) KV will come; compute what is missing.
    HandoffFailed(JobId, String),
    /// Nobody waits for the job any more.
    Cancel(JobId),
    /// Tell what is going on.
    Status(oneshot::Sender<Vec<SequenceStatus>>),
    /// There is room again for what a job computes.
    Wake,
    /// End all jobs and the thread.
    Stop,
}

/// Tokens of a section of a block, as acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The section.
    pub section: Section,
    /// The tokens.
    pub tokens: Range<u32>,
}
