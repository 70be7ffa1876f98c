//! The engine thread of one model.
//!
//! One loop: take commands, compute at most one chunk of one prefill, decode one token of every
//! generating sequence. So running generations wait for at most one chunk, and a request that
//! nobody waits for stops within one step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use tandem_engine::generation::{FinishReason as EngineFinish, Generation};
use tandem_engine::{DecodeStep, EngineError, KvEngine, Sequence, Token};
use tandem_kv::sender::max_block_tokens;
use tandem_kv::{KvBlock, Section};
use tandem_proto::{
    ErrorCode, FinishReason, GenerateEvent, NodeError, Phase, PrefillSummary, SequenceStatus,
};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::job::{Admission, Command, Computed, GenerateJob, JobId, PrefillJob};
use crate::limits::{EVENT_STALL, IDLE_TICK};

/// Owns the engine and every sequence of one model.
pub struct Worker {
    engine: Box<dyn KvEngine>,
    commands: Receiver<Command>,
    jobs: BTreeMap<JobId, Job>,
    /// The job that computed the last chunk, for taking turns.
    last_prefill: JobId,
    stopping: bool,
}

struct Job {
    request: String,
    sequence: Sequence,
    tokens: Vec<Token>,
    chunk: u32,
    prefill_ms: f64,
    work: Work,
    /// Frees the place when the job is dropped, after its sequence is released.
    _admission: Admission,
}

enum Work {
    /// Computes KV for another node.
    Export {
        chunks: mpsc::Sender<Computed>,
        next: u32,
    },
    /// Generates for a coordinator.
    Generate(Box<Generating>),
}

struct Generating {
    stage: Stage,
    generation: Generation,
    events: mpsc::Sender<GenerateEvent>,
    summary: PrefillSummary,
    /// When an event could not be delivered for the first time since one could.
    stalled: Option<Instant>,
}

enum Stage {
    /// KV comes from another node.
    Receiving,
    /// This node computes from `next` on.
    Prefilling { next: u32 },
    /// KV is complete.
    Decoding {
        token: Token,
        position: u32,
        /// When the first token was sampled.
        first: Option<Instant>,
    },
}

/// What to do with a job after a step.
enum After {
    Keep,
    End,
}

impl Job {
    /// KV must cover tokens `[0, kv_end)`; the last token is evaluated by decoding.
    fn kv_end(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - 1
    }

    /// The chunk that starts at `next`. Chunks end at multiples of the chunk size, wherever the
    /// prefill started, so that batch shapes are those of an undisturbed prefill.
    fn chunk_at(&self, next: u32) -> Range<u32> {
        let end = (next / self.chunk + 1).saturating_mul(self.chunk);
        next..end.min(self.kv_end())
    }

    fn abandoned(&self) -> bool {
        match &self.work {
            Work::Export { chunks, .. } => chunks.is_closed(),
            Work::Generate(g) => {
                g.events.is_closed() || g.stalled.is_some_and(|t| t.elapsed() > EVENT_STALL)
            }
        }
    }

    fn phase(&self) -> Phase {
        match &self.work {
            Work::Export { .. } => Phase::Prefilling,
            Work::Generate(g) => match g.stage {
                Stage::Receiving => Phase::Receiving,
                Stage::Prefilling { .. } => Phase::Prefilling,
                Stage::Decoding { .. } => Phase::Decoding,
            },
        }
    }

    /// True if a token can be computed now.
    fn can_decode(&self) -> bool {
        match &self.work {
            Work::Export { .. } => false,
            Work::Generate(g) => matches!(g.stage, Stage::Decoding { .. }) && g.has_room(),
        }
    }

    /// True if a chunk can be computed now.
    fn can_prefill(&self) -> bool {
        match &self.work {
            Work::Export { chunks, .. } => chunks.capacity() > 0,
            Work::Generate(g) => {
                matches!(g.stage, Stage::Prefilling { .. }) && g.events.capacity() > 0
            }
        }
    }
}

impl Generating {
    /// True if a token and the last event can be delivered.
    fn has_room(&self) -> bool {
        self.events.capacity() >= 2
    }

    /// Delivers an event if there is room; the caller has checked that there is.
    fn tell(&mut self, event: GenerateEvent) {
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            tracing::error!("an event was dropped though there was room for it");
        }
    }

    /// KV is complete: decoding starts with the last token of the prompt.
    fn start_decoding(&mut self, last_token: Token, position: u32) {
        let summary = self.summary.clone();
        self.tell(GenerateEvent::Prefilled(summary));
        self.stage = Stage::Decoding {
            token: last_token,
            position,
            first: None,
        };
    }
}

impl Worker {
    /// A worker for `engine` that takes `commands`.
    #[must_use]
    pub fn new(engine: Box<dyn KvEngine>, commands: Receiver<Command>) -> Self {
        Self {
            engine,
            commands,
            jobs: BTreeMap::new(),
            last_prefill: JobId(0),
            stopping: false,
        }
    }

    /// Works until [`Command::Stop`], or until nobody can send commands any more.
    pub fn run(mut self) {
        while !self.stopping {
            self.take_commands();
            self.end_abandoned();
            self.prefill_step();
            self.decode_step();
        }
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.fail(
                id,
                NodeError::new(ErrorCode::Stopping, "the node is shutting down"),
            );
        }
    }

    /// True if a step would do something.
    fn busy(&self) -> bool {
        self.jobs
            .values()
            .any(|j| j.can_prefill() || j.can_decode())
    }

    fn take_commands(&mut self) {
        if !self.busy() {
            match self.commands.recv_timeout(IDLE_TICK) {
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stopping = true,
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Generate(admission, job) => self.start_generate(admission, *job),
            Command::Prefill(admission, job) => self.start_prefill(admission, *job),
            Command::Apply(id, block, reply) => {
                // The pump may have given up meanwhile; then nobody needs the answer.
                let _ = reply.send(self.apply(id, &block));
            }
            Command::Committed(id) => self.committed(id),
            Command::HandoffFailed(id, reason) => self.fall_back(id, reason),
            Command::Cancel(id) => self.end(id),
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Wake => {}
            Command::Stop => self.stopping = true,
        }
    }

    fn status(&self) -> Vec<SequenceStatus> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.jobs
            .values()
            .map(|job| SequenceStatus {
                request: job.request.clone(),
                phase: job.phase(),
                prompt_tokens: count(job.tokens.len()),
                held_tokens: self.engine.held(job.sequence),
                generated_tokens: match &job.work {
                    Work::Export { .. } => 0,
                    Work::Generate(g) => count(g.generation.generated().len()),
                },
            })
            .collect()
    }

    fn start_generate(&mut self, admission: Admission, job: GenerateJob) {
        let sequence = match self.engine.open() {
            Ok(sequence) => sequence,
            Err(e) => {
                // The stream ends either way.
                let _ = job.events.try_send(GenerateEvent::Failed(engine_error(&e)));
                return;
            }
        };
        let stage = if job.remote {
            Stage::Receiving
        } else {
            Stage::Prefilling { next: 0 }
        };
        let id = admission.job;
        self.jobs.insert(
            id,
            Job {
                request: job.request,
                sequence,
                tokens: job.tokens,
                chunk: job.chunk,
                prefill_ms: 0.0,
                work: Work::Generate(Box::new(Generating {
                    stage,
                    generation: job.generation,
                    events: job.events,
                    summary: PrefillSummary::default(),
                    stalled: None,
                })),
                _admission: admission,
            },
        );
        self.finish_empty_prefill(id);
    }

    fn start_prefill(&mut self, admission: Admission, job: PrefillJob) {
        let Ok(sequence) = self.engine.open() else {
            // The pump sees its channel closed and says that the prefill ended early.
            tracing::error!(request = %job.request, "no sequence for an admitted prefill");
            return;
        };
        let work = Work::Export {
            chunks: job.chunks,
            next: 0,
        };
        let id = admission.job;
        self.jobs.insert(
            id,
            Job {
                request: job.request,
                sequence,
                tokens: job.tokens,
                chunk: job.chunk,
                prefill_ms: 0.0,
                work,
                _admission: admission,
            },
        );
    }

    /// A prompt of one token has nothing to prefill.
    fn finish_empty_prefill(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.kv_end() == 0
            && let Work::Generate(g) = &mut job.work
        {
            g.start_decoding(job.tokens[0], 0);
        }
    }

    fn apply(&mut self, id: JobId, block: &KvBlock) -> Result<(), String> {
        let gone = "the request has ended or no longer waits for KV";
        let job = self.jobs.get_mut(&id).ok_or(gone)?;
        let Work::Generate(g) = &mut job.work else {
            return Err(gone.into());
        };
        if !matches!(g.stage, Stage::Receiving) {
            return Err(gone.into());
        }
        let start = Instant::now();
        let result = self.engine.import(job.sequence, block);
        g.summary.apply_ms += milliseconds(start);
        result.map_err(|e| e.to_string())?;
        g.summary.handoff_bytes += block.bytes();
        Ok(())
    }

    fn committed(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let held = self.engine.held(job.sequence);
        let kv_end = job.kv_end();
        let last = job.tokens[kv_end as usize];
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        if !matches!(g.stage, Stage::Receiving) {
            return;
        }
        if held == kv_end {
            g.summary.remote_tokens = held;
            g.start_decoding(last, kv_end);
        } else {
            self.fall_back(
                id,
                format!("committed, but {held} of {kv_end} tokens are held"),
            );
        }
    }

    /// Computes here what another node did not send. What it did send is kept, where the engine
    /// can continue from it: a model with window layers starts over unless its window came.
    fn fall_back(&mut self, id: JobId, reason: String) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let kv_end = job.kv_end();
        let last = job.tokens[kv_end as usize];
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        if !matches!(g.stage, Stage::Receiving) {
            return;
        }
        let held = self.engine.held(job.sequence);
        g.summary.remote_tokens = held;
        g.summary.fallback = Some(reason);
        tracing::warn!(request = %job.request, held, kv_end, "prefilling here what was not handed over");
        if held == kv_end {
            g.start_decoding(last, kv_end);
        } else {
            g.stage = Stage::Prefilling { next: held };
        }
    }

    fn end(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            self.engine.release(job.sequence);
        }
    }

    fn fail(&mut self, id: JobId, error: NodeError) {
        if let Some(job) = self.jobs.get_mut(&id)
            && let Work::Generate(g) = &mut job.work
        {
            // The stream ends either way; a coordinator that sees it end without `done` knows.
            let _ = g.events.try_send(GenerateEvent::Failed(error));
        }
        self.end(id);
    }

    fn end_abandoned(&mut self) {
        let gone: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, j)| j.abandoned())
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.end(id);
        }
    }

    /// Computes one chunk of the next prefill in turn.
    fn prefill_step(&mut self) {
        let ready = |(id, job): (&JobId, &Job)| job.can_prefill().then_some(*id);
        let after = (
            std::ops::Bound::Excluded(self.last_prefill),
            std::ops::Bound::Unbounded,
        );
        let next = self.jobs.range(after).find_map(ready);
        let Some(id) = next.or_else(|| self.jobs.iter().find_map(ready)) else {
            return;
        };
        self.last_prefill = id;
        match self.prefill_chunk(id) {
            Ok(After::Keep) => {}
            Ok(After::End) => self.end(id),
            Err(e) => {
                tracing::error!(job = id.0, error = %e, "prefill failed");
                self.fail(id, engine_error(&e));
            }
        }
    }

    fn prefill_chunk(&mut self, id: JobId) -> Result<After, EngineError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let next = match &job.work {
            Work::Export { next, .. } => *next,
            Work::Generate(g) => match g.stage {
                Stage::Prefilling { next } => next,
                _ => return Ok(After::Keep),
            },
        };
        let range = job.chunk_at(next);
        let start = Instant::now();
        let tokens = &job.tokens[range.start as usize..range.end as usize];
        self.engine.prefill(job.sequence, range.start, tokens)?;
        let kv_end = job.kv_end();
        let done = range.end == kv_end;
        if done && matches!(job.work, Work::Generate(_)) {
            self.engine.settle(job.sequence)?;
        }
        job.prefill_ms += milliseconds(start);
        match &mut job.work {
            Work::Export { next, chunks } => {
                let computed = Instant::now();
                let blocks = export(self.engine.as_mut(), job.sequence, &range, done)?;
                *next = range.end;
                let chunk = Computed {
                    blocks,
                    tokens: range.end,
                    computed,
                    prefill_ms: job.prefill_ms,
                    last: done,
                };
                let delivered = chunks.try_send(chunk).is_ok();
                Ok(if done || !delivered {
                    After::End
                } else {
                    After::Keep
                })
            }
            Work::Generate(g) => {
                g.summary.local_tokens += range.end - range.start;
                g.summary.local_prefill_ms = job.prefill_ms;
                if done {
                    g.start_decoding(job.tokens[kv_end as usize], kv_end);
                } else {
                    g.stage = Stage::Prefilling { next: range.end };
                }
                Ok(After::Keep)
            }
        }
    }

    /// One token of every generating sequence whose coordinator keeps up.
    fn decode_step(&mut self) {
        let mut ids = Vec::new();
        let mut steps = Vec::new();
        for (id, job) in &mut self.jobs {
            let Work::Generate(g) = &mut job.work else {
                continue;
            };
            let Stage::Decoding {
                token, position, ..
            } = g.stage
            else {
                continue;
            };
            if !g.has_room() {
                g.stalled.get_or_insert_with(Instant::now);
                continue;
            }
            g.stalled = None;
            ids.push(*id);
            steps.push(DecodeStep {
                sequence: job.sequence,
                token,
                position,
            });
        }
        if steps.is_empty() {
            return;
        }
        match self.engine.decode(&steps) {
            Ok(rows) => {
                for (id, logits) in ids.into_iter().zip(rows) {
                    self.sampled(id, &logits);
                }
            }
            Err(e) => {
                tracing::error!(sequences = steps.len(), error = %e, "decode failed");
                for id in ids {
                    self.fail(id, engine_error(&e));
                }
            }
        }
    }

    fn sampled(&mut self, id: JobId, logits: &[f32]) {
        let context = self.engine.capacity().tokens_per_sequence;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        let step = match g.generation.next(logits) {
            Ok(step) => step,
            Err(e) => {
                let error = NodeError::new(ErrorCode::Engine, e.to_string());
                return self.fail(id, error);
            }
        };
        let Stage::Decoding {
            token,
            position,
            first,
        } = &mut g.stage
        else {
            return;
        };
        *token = step.token;
        *position += 1;
        let full = *position >= context;
        let first = *first.get_or_insert_with(Instant::now);
        g.tell(GenerateEvent::Token {
            id: step.token,
            text: step.text,
        });
        let finished = match step.finished {
            Some(EngineFinish::Stop) => Some(FinishReason::Stop),
            Some(EngineFinish::Length) => Some(FinishReason::Length),
            None if full => Some(FinishReason::Length),
            None => None,
        };
        if let Some(finish_reason) = finished {
            let generated = g.generation.generated().len();
            g.tell(GenerateEvent::Done {
                finish_reason,
                generated_tokens: u32::try_from(generated).unwrap_or(u32::MAX),
                decode_ms: milliseconds(first),
            });
            self.end(id);
        }
    }
}

/// Copies a computed chunk out, in blocks that fit segments, and the window after the last chunk.
fn export(
    engine: &mut dyn KvEngine,
    sequence: Sequence,
    range: &Range<u32>,
    last: bool,
) -> Result<Vec<KvBlock>, EngineError> {
    let contract = engine.contract();
    let has_full = !contract.section_layers(Section::Full).is_empty();
    let window = contract
        .has_window()
        .then(|| contract.window_start(range.end)..range.end);
    let step = max_block_tokens(contract, Section::Full);
    let mut blocks = Vec::new();
    let mut start = range.start;
    while has_full && start < range.end {
        let end = start.saturating_add(step).min(range.end);
        blocks.push(engine.export(sequence, Section::Full, start..end)?);
        start = end;
    }
    if let (true, Some(window)) = (last, window) {
        blocks.push(engine.export(sequence, Section::Window, window)?);
    }
    Ok(blocks)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn engine_error(e: &EngineError) -> NodeError {
    let code = match e {
        EngineError::Full(_) => ErrorCode::Busy,
        EngineError::Refused(_) | EngineError::Failed(_) => ErrorCode::Engine,
    };
    NodeError::new(code, e.to_string())
}
