//! The engine thread of one model.
//!
//! One loop: take commands, take in a bounded amount of KV, compute at most one chunk of one
//! prefill, decode one token of every generating sequence. So running generations wait for at most
//! one slice and one chunk, and a request that nobody waits for stops within one step.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use tandem_engine::generation::{FinishReason as EngineFinish, Generation};
use tandem_engine::{DecodeStep, EngineError, KvEngine, Sequence, Token};
use tandem_kv::codec::Codec;
use tandem_kv::page::PAGE_TOKENS;
use tandem_kv::receipt::{Receipt, ReturnTicket};
use tandem_kv::segment::block_tokens;
use tandem_kv::{KvBlock, Section};
use tandem_proto::{
    ErrorCode, FinishReason, GenerateEvent, NodeError, ParityAction, ParityReport, Phase,
    PrefillSummary, SequenceStatus,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::held::Keep;
use crate::job::{
    Admission, Command, Computed, GenerateJob, HandedOver, JobId, Parity, PrefillJob, Retired,
    Source,
};
use crate::limits::{EVENT_STALL, IDLE_TICK, MAX_APPLY_SLICE_BYTES, MAX_CHUNKS_WAITING};
use crate::send::Input;

/// Owns the engine and every sequence of one model.
pub struct Worker {
    engine: Box<dyn KvEngine>,
    commands: Receiver<Command>,
    jobs: BTreeMap<JobId, Job>,
    /// Blocks to take in, in order; bounded by the credit of each handoff.
    applies: VecDeque<Apply>,
    /// The job that computed the last chunk, for taking turns.
    last_prefill: JobId,
    stopping: bool,
}

/// A block to take in, and who waits for that.
struct Apply {
    id: JobId,
    block: Arc<KvBlock>,
    /// The first token that has not been taken in.
    next: u32,
    reply: oneshot::Sender<Result<(), String>>,
}

impl Apply {
    /// What to take in next: the rest of the block, or as much of it as a slice has. Only a window
    /// has more.
    fn part(&self) -> Range<u32> {
        let row = self.row_bytes().max(1);
        let most = u32::try_from(MAX_APPLY_SLICE_BYTES / row).unwrap_or(u32::MAX);
        let end = self.next.saturating_add(most.max(1));
        self.next..end.min(self.block.tokens.end)
    }

    fn row_bytes(&self) -> u64 {
        self.block.bytes() / u64::from(self.block.len().max(1))
    }

    fn part_bytes(&self) -> u64 {
        self.row_bytes() * self.part().len() as u64
    }
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
    Export(Box<Export>),
    /// Generates for a coordinator.
    Generate(Box<Generating>),
    /// Has generated; hands out its KV.
    Retire {
        chunks: mpsc::Sender<Input>,
        next: u32,
        end: u32,
    },
}

struct Export {
    stage: ExportStage,
    chunks: mpsc::Sender<Input>,
    receipt: bool,
    hand_back: Option<ReturnTicket>,
}

enum ExportStage {
    /// Pages of this node come first.
    Seeding,
    /// This node computes from here on.
    Prefilling(u32),
    /// All chunks are out; the last token is next.
    Evaluating,
}

struct Generating {
    stage: Stage,
    generation: Generation,
    events: mpsc::Sender<GenerateEvent>,
    summary: PrefillSummary,
    parity: Parity,
    receipt: ReceiptState,
    /// Logits of the last prompt token, until they have been compared.
    logits: Option<Vec<f32>>,
    compared: Option<ParityReport>,
    keep: Keep,
    retire: Option<oneshot::Sender<Retired>>,
    /// When an event could not be delivered for the first time since one could.
    stalled: Option<Instant>,
}

enum ReceiptState {
    /// None is expected, or it has been compared.
    Settled,
    /// It will come, or the news that it will not.
    Awaited,
    /// It came before our own logits.
    Here(Box<Receipt>),
    /// It will not come, and nothing may be sampled without it.
    Missing,
}

enum Stage {
    /// KV comes from another node.
    Receiving,
    /// KV comes from pages of this node.
    Seeding,
    /// This node computes from `next` on.
    Prefilling { next: u32 },
    /// KV is complete.
    Decoding {
        token: Token,
        position: u32,
        /// When the first token was sampled.
        first: Option<Instant>,
    },
    /// The last prompt token is evaluated; nothing is sampled before the ends have been compared.
    Checking { since: Instant },
    /// The answer is complete; the last event waits for the comparison.
    Finished {
        done: Box<GenerateEvent>,
        position: u32,
        since: Instant,
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
            Work::Export(export) => export.chunks.is_closed(),
            Work::Retire { chunks, .. } => chunks.is_closed(),
            Work::Generate(g) => {
                g.events.is_closed() || g.stalled.is_some_and(|t| t.elapsed() > EVENT_STALL)
            }
        }
    }

    fn phase(&self) -> Phase {
        match &self.work {
            Work::Export(_) => Phase::Prefilling,
            Work::Retire { .. } => Phase::Decoding,
            Work::Generate(g) => match g.stage {
                Stage::Receiving | Stage::Seeding => Phase::Receiving,
                Stage::Prefilling { .. } => Phase::Prefilling,
                _ => Phase::Decoding,
            },
        }
    }

    /// True if a token can be computed now.
    fn can_decode(&self) -> bool {
        match &self.work {
            Work::Export(e) => matches!(e.stage, ExportStage::Evaluating),
            Work::Retire { .. } => false,
            Work::Generate(g) => matches!(g.stage, Stage::Decoding { .. }) && g.has_room(),
        }
    }

    /// True if a chunk can be computed now.
    fn can_prefill(&self) -> bool {
        match &self.work {
            // One place stays free for the receipt.
            Work::Export(e) => {
                matches!(e.stage, ExportStage::Prefilling(_)) && e.chunks.capacity() > 1
            }
            Work::Retire { chunks, .. } => chunks.capacity() > 0,
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

    /// True if nothing may be sampled before the ends have been compared.
    fn must_check(&self) -> bool {
        self.parity.action == ParityAction::Redo && !matches!(self.receipt, ReceiptState::Settled)
    }

    /// KV is complete: decoding starts with the last token of the prompt.
    fn start_decoding(&mut self, last_token: Token, position: u32) {
        if !self.must_check() {
            let summary = self.summary.clone();
            self.tell(GenerateEvent::Prefilled(summary));
        }
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
            applies: VecDeque::new(),
            last_prefill: JobId(0),
            stopping: false,
        }
    }

    /// Works until [`Command::Stop`], or until nobody can send commands any more.
    pub fn run(mut self) {
        while !self.stopping {
            self.take_commands();
            self.end_abandoned();
            self.apply_step();
            self.prefill_step();
            self.decode_step();
            self.check_waits();
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
        !self.applies.is_empty()
            || self
                .jobs
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
            Command::Apply(id, block, reply) => self.applies.push_back(Apply {
                id,
                next: block.tokens.start,
                block,
                reply,
            }),
            Command::Seeded(id) => self.seeded(id),
            Command::Cached(id, tokens) => self.has_pages(id, tokens),
            Command::Committed(id, handed) => self.committed(id, &handed),
            Command::Receipt(id, receipt) => self.receipt(id, receipt),
            Command::HandoffFailed(id, reason) => self.fall_back(id, reason),
            Command::Cancel(id) => self.cancel(id),
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
                    Work::Export(_) | Work::Retire { .. } => 0,
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
        let stage = match job.source {
            Source::Here => Stage::Prefilling { next: 0 },
            Source::Pages => Stage::Seeding,
            Source::Remote => Stage::Receiving,
        };
        let receipt = if job.parity.expected {
            ReceiptState::Awaited
        } else {
            ReceiptState::Settled
        };
        let work = Work::Generate(Box::new(Generating {
            stage,
            generation: job.generation,
            events: job.events,
            summary: PrefillSummary::default(),
            parity: job.parity,
            receipt,
            logits: None,
            compared: None,
            keep: job.keep,
            retire: job.retire,
            stalled: None,
        }));
        let id = admission.job;
        self.add(
            admission,
            job.request,
            sequence,
            job.tokens,
            job.chunk,
            work,
        );
        self.finish_empty_prefill(id);
    }

    fn start_prefill(&mut self, admission: Admission, job: PrefillJob) {
        let Ok(sequence) = self.engine.open() else {
            // The pump sees its channel closed and says that the prefill ended early.
            tracing::error!(request = %job.request, "no sequence for an admitted prefill");
            return;
        };
        let stage = if job.seeded {
            ExportStage::Seeding
        } else {
            ExportStage::Prefilling(0)
        };
        let work = Work::Export(Box::new(Export {
            stage,
            chunks: job.chunks,
            receipt: job.receipt,
            hand_back: job.hand_back,
        }));
        self.add(
            admission,
            job.request,
            sequence,
            job.tokens,
            job.chunk,
            work,
        );
    }

    fn add(
        &mut self,
        admission: Admission,
        request: String,
        sequence: Sequence,
        tokens: Vec<Token>,
        chunk: u32,
        work: Work,
    ) {
        let job = Job {
            request,
            sequence,
            tokens,
            chunk,
            prefill_ms: 0.0,
            work,
            _admission: admission,
        };
        self.jobs.insert(job._admission.job, job);
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

    /// Takes KV in: everything if nobody waits for a token, else no more than a slice.
    fn apply_step(&mut self) {
        let mut taken = 0;
        while let Some(mut apply) = self.applies.pop_front() {
            let part = apply.part();
            taken += apply.part_bytes();
            let result = self.apply(apply.id, &apply.block, &part);
            if result.is_ok() && part.end < apply.block.tokens.end {
                apply.next = part.end;
                self.applies.push_front(apply);
            } else {
                let Apply { block, reply, .. } = apply;
                // Whoever waits wants the block back.
                drop(block);
                // It may have given up meanwhile; then nobody needs the answer.
                let _ = reply.send(result);
            }
            let next = self.applies.front().map_or(0, Apply::part_bytes);
            let over = taken.saturating_add(next) > MAX_APPLY_SLICE_BYTES;
            if over && self.jobs.values().any(Job::can_decode) {
                return;
            }
        }
    }

    fn apply(&mut self, id: JobId, block: &KvBlock, part: &Range<u32>) -> Result<(), String> {
        let epoch = id.0;
        let gone =
            || format!("epoch {epoch} of the sequence is over, or it no longer waits for KV");
        let job = self.jobs.get_mut(&id).ok_or_else(gone)?;
        let waits = match &job.work {
            Work::Generate(g) => matches!(g.stage, Stage::Receiving | Stage::Seeding),
            Work::Export(e) => matches!(e.stage, ExportStage::Seeding),
            Work::Retire { .. } => false,
        };
        if !waits {
            return Err(gone());
        }
        let start = Instant::now();
        let result = self.engine.import_part(job.sequence, block, part.clone());
        if let Work::Generate(g) = &mut job.work {
            g.summary.apply_ms += milliseconds(start);
            let whole = part.end == block.tokens.end;
            let is_page =
                block.section == Section::Full && block.tokens.end <= g.summary.cached_tokens;
            if result.is_ok() && whole && !is_page && matches!(g.stage, Stage::Receiving) {
                g.summary.handoff_bytes += block.bytes();
            }
        }
        result.map_err(|e| e.to_string())
    }

    /// Pages of this node are in place, as far as there are any; the rest is computed here.
    fn seeded(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let held = self.engine.held(job.sequence);
        if held == 0 {
            self.engine.clear(job.sequence);
        }
        let kv_end = job.kv_end();
        let last = job.tokens[kv_end as usize];
        match &mut job.work {
            Work::Generate(g) if matches!(g.stage, Stage::Seeding) => {
                g.summary.cached_tokens = held;
                if held == kv_end {
                    g.start_decoding(last, kv_end);
                } else {
                    g.stage = Stage::Prefilling { next: held };
                }
            }
            Work::Export(e) if matches!(e.stage, ExportStage::Seeding) => {
                e.stage = ExportStage::Prefilling(held);
            }
            _ => {}
        }
    }

    /// A handoff begins with pages of this node up to here: they are in place, or come next.
    fn has_pages(&mut self, id: JobId, tokens: u32) {
        if let Some(job) = self.jobs.get_mut(&id)
            && let Work::Generate(g) = &mut job.work
            && matches!(g.stage, Stage::Receiving)
        {
            g.summary.cached_tokens = tokens;
        }
    }

    fn committed(&mut self, id: JobId, handed: &HandedOver) {
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
        g.summary.handoff_bytes = handed.raw_bytes;
        g.summary.wire_bytes = handed.wire_bytes;
        g.summary.codec = handed.codec;
        g.summary.reconnects = handed.reconnects;
        if held == kv_end {
            g.summary.remote_tokens = held.saturating_sub(g.summary.cached_tokens);
            g.start_decoding(last, kv_end);
        } else {
            self.fall_back(
                id,
                format!("committed, but {held} of {kv_end} tokens are held"),
            );
        }
    }

    /// What the sender computed for the last token has come, or will not come.
    fn receipt(&mut self, id: JobId, receipt: Option<Box<Receipt>>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        if !matches!(g.receipt, ReceiptState::Awaited) {
            return;
        }
        match receipt {
            Some(receipt) if g.logits.is_none() => g.receipt = ReceiptState::Here(receipt),
            None if g.must_check() && g.logits.is_none() => g.receipt = ReceiptState::Missing,
            receipt => self.compare(id, receipt.as_deref()),
        }
    }

    /// Compares the ends, or finds that they cannot be compared, and goes on from there.
    fn compare(&mut self, id: JobId, receipt: Option<&Receipt>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        g.receipt = ReceiptState::Settled;
        let logits = g.logits.take();
        let compared = match (receipt, &logits) {
            (Some(receipt), Some(logits)) => receipt.compare(logits).map_err(|e| e.to_string()),
            _ => Err("the prefill node did not tell what it computed".to_owned()),
        };
        let fault = match compared {
            Ok(parity) => {
                let holds = g.parity.bound.holds(&parity);
                g.compared = Some(ParityReport { parity, holds });
                (!holds).then(|| {
                    format!(
                        "the nodes do not compute the same: KL {:.4}, largest difference {:.3}, likeliest token {}",
                        parity.kl,
                        parity.max_difference,
                        if parity.same_top { "equal" } else { "another" }
                    )
                })
            }
            Err(reason) => Some(reason),
        };
        if let Some(reason) = &fault {
            let is_redone = matches!(g.stage, Stage::Checking { .. });
            let mut forgotten = 0;
            // What one request does not trust, no other one gets.
            if receipt.is_some() || is_redone {
                g.retire = None;
                // Lossy rows have not been kept, and say nothing about those that were.
                if g.summary.codec.is_none_or(Codec::is_lossless) {
                    forgotten = g.keep.forget(&job.tokens);
                }
            }
            tracing::warn!(request = %job.request, %reason, forgotten, "parity");
        }
        match (&g.stage, fault, logits) {
            (Stage::Checking { .. }, Some(reason), _) => self.redo(id, reason),
            (Stage::Checking { .. }, None, Some(logits)) => {
                let summary = g.summary.clone();
                g.tell(GenerateEvent::Prefilled(summary));
                let kv_end = job.kv_end();
                if let Work::Generate(g) = &mut job.work {
                    g.stage = Stage::Decoding {
                        token: job.tokens[kv_end as usize],
                        position: kv_end,
                        first: None,
                    };
                }
                self.sampled(id, &logits);
            }
            (Stage::Finished { .. }, ..) => self.finish(id),
            _ => {}
        }
    }

    /// Throws away what another node computed and computes it here.
    fn redo(&mut self, id: JobId, reason: String) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        self.engine.clear(job.sequence);
        if let Work::Generate(g) = &mut job.work {
            g.summary.remote_tokens = 0;
            g.summary.cached_tokens = 0;
            g.summary.fallback = Some(reason);
            g.stage = Stage::Prefilling { next: 0 };
        }
    }

    /// Waits that have become too long.
    fn check_waits(&mut self) {
        let overdue = |(id, job): (&JobId, &Job)| match &job.work {
            Work::Generate(g) => match g.stage {
                Stage::Checking { since } | Stage::Finished { since, .. }
                    if since.elapsed() > g.parity.patience =>
                {
                    Some(*id)
                }
                _ => None,
            },
            _ => None,
        };
        let late: Vec<JobId> = self.jobs.iter().filter_map(overdue).collect();
        for id in late {
            self.compare(id, None);
        }
    }

    /// Computes here what another node did not send. What it did send is kept, unless it has to be
    /// compared, and where the engine can continue from it: a model with window layers starts over
    /// unless its window came.
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
        // Rows that must be compared before they are used cannot be any more.
        if g.parity.mixed_quantisation || g.parity.action == ParityAction::Redo {
            self.engine.clear(job.sequence);
        }
        let held = self.engine.held(job.sequence);
        // Pages of this node are in place before anything is sent, as far as they came.
        g.summary.cached_tokens = g.summary.cached_tokens.min(held);
        g.summary.remote_tokens = held - g.summary.cached_tokens;
        g.summary.fallback = Some(reason);
        // There is nothing to compare: the last token is computed from KV of this node.
        g.receipt = ReceiptState::Settled;
        tracing::warn!(request = %job.request, held, kv_end, "prefilling here what was not handed over");
        if held == kv_end {
            g.start_decoding(last, kv_end);
        } else {
            g.stage = Stage::Prefilling { next: held };
        }
    }

    /// Nobody waits for the answer any more. One that is complete hands out its KV all the same,
    /// for as long as somebody takes it.
    fn cancel(&mut self, id: JobId) {
        let is_retired = |job: &Job| matches!(job.work, Work::Retire { .. });
        if !self.jobs.get(&id).is_some_and(is_retired) {
            self.end(id);
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
            Work::Export(e) => match e.stage {
                ExportStage::Prefilling(next) => next,
                _ => return Ok(After::Keep),
            },
            Work::Generate(g) => match g.stage {
                Stage::Prefilling { next } => next,
                _ => return Ok(After::Keep),
            },
            Work::Retire { .. } => return self.retire_slice(id),
        };
        let range = job.chunk_at(next);
        let start = Instant::now();
        let tokens = &job.tokens[range.start as usize..range.end as usize];
        if !tokens.is_empty() {
            self.engine.prefill(job.sequence, range.start, tokens)?;
        }
        let kv_end = job.kv_end();
        let done = range.end == kv_end;
        if done && matches!(job.work, Work::Generate(_)) {
            self.engine.settle(job.sequence)?;
        }
        job.prefill_ms += milliseconds(start);
        match &mut job.work {
            Work::Export(e) => {
                let computed = Instant::now();
                let blocks = export(self.engine.as_mut(), job.sequence, &range, done)?;
                let chunk = Computed {
                    blocks,
                    tokens: range.end,
                    computed,
                    prefill_ms: job.prefill_ms,
                    last: done,
                    receipt_follows: done && e.receipt,
                };
                let delivered = e.chunks.try_send(Input::Chunk(chunk)).is_ok();
                e.stage = if done {
                    ExportStage::Evaluating
                } else {
                    ExportStage::Prefilling(range.end)
                };
                if !delivered || (done && !e.receipt) {
                    return Ok(After::End);
                }
                if done {
                    // The decode node continues from an import, so this end does, too.
                    self.engine.settle(job.sequence)?;
                }
                Ok(After::Keep)
            }
            Work::Retire { .. } => Ok(After::Keep),
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
            let kv_end = job.kv_end();
            let g = match &mut job.work {
                Work::Generate(g) => g,
                Work::Export(e) if matches!(e.stage, ExportStage::Evaluating) => {
                    ids.push(*id);
                    steps.push(DecodeStep {
                        sequence: job.sequence,
                        token: job.tokens[kv_end as usize],
                        position: kv_end,
                    });
                    continue;
                }
                _ => continue,
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
                    self.evaluated(id, logits);
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

    /// A row of logits has been computed.
    fn evaluated(&mut self, id: JobId, logits: Vec<f32>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let g = match &mut job.work {
            Work::Generate(g) => g,
            Work::Export(e) => {
                let receipt = Receipt::of(&logits, e.hand_back.take());
                let _ = e.chunks.try_send(Input::Receipt(Box::new(receipt)));
                return self.end(id);
            }
            Work::Retire { .. } => return,
        };
        let is_first = matches!(g.stage, Stage::Decoding { first: None, .. });
        if !is_first || matches!(g.receipt, ReceiptState::Settled) {
            return self.sampled(id, &logits);
        }
        let must_check = g.must_check();
        let receipt = std::mem::replace(&mut g.receipt, ReceiptState::Awaited);
        g.logits = Some(logits.clone());
        if must_check {
            let since = Instant::now();
            g.stage = Stage::Checking { since };
        }
        match receipt {
            ReceiptState::Here(receipt) => self.compare(id, Some(&receipt)),
            ReceiptState::Missing => self.compare(id, None),
            ReceiptState::Awaited | ReceiptState::Settled => {}
        }
        if !must_check {
            self.sampled(id, &logits);
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
            let done = GenerateEvent::Done {
                finish_reason,
                generated_tokens: u32::try_from(generated).unwrap_or(u32::MAX),
                decode_ms: milliseconds(first),
                parity: None,
            };
            let Stage::Decoding { position, .. } = g.stage else {
                return;
            };
            g.stage = Stage::Finished {
                done: Box::new(done),
                position,
                since: Instant::now(),
            };
            if matches!(g.receipt, ReceiptState::Settled) {
                self.finish(id);
            }
        }
    }

    /// The answer is complete: tells so, and hands out the KV if somebody keeps it.
    fn finish(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut job.work else {
            return;
        };
        let Stage::Finished { done, position, .. } =
            std::mem::replace(&mut g.stage, Stage::Receiving)
        else {
            return;
        };
        let mut done = *done;
        if let GenerateEvent::Done { parity, .. } = &mut done {
            *parity = g.compared;
        }
        g.tell(done);
        let Some(retire) = g.retire.take() else {
            return self.end(id);
        };
        // The last token that was sampled has no KV.
        let mut tokens = job.tokens.clone();
        tokens.extend_from_slice(g.generation.generated());
        tokens.truncate(position as usize);
        let generated = u32::try_from(tokens.len().saturating_sub(job.tokens.len())).unwrap_or(0);
        let (chunks, receiver) = mpsc::channel(MAX_CHUNKS_WAITING);
        let retired = Retired {
            tokens,
            generated,
            chunks: receiver,
        };
        // What came from pages or from another node has been kept as pages already.
        let next = g.summary.cached_tokens + g.summary.remote_tokens;
        let next = next - next % PAGE_TOKENS;
        job.work = Work::Retire {
            chunks,
            next,
            end: position,
        };
        if retire.send(retired).is_err() {
            self.end(id);
        }
    }

    /// Hands out one block of a sequence that has generated.
    fn retire_slice(&mut self, id: JobId) -> Result<After, EngineError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let Work::Retire { chunks, next, end } = &mut job.work else {
            return Ok(After::Keep);
        };
        let stop = next
            .saturating_add(block_tokens(self.engine.contract()))
            .min(*end);
        let last = stop == *end;
        let blocks = export(self.engine.as_mut(), job.sequence, &(*next..stop), last)?;
        *next = stop;
        let chunk = Computed {
            blocks,
            tokens: stop,
            computed: Instant::now(),
            prefill_ms: 0.0,
            last,
            receipt_follows: false,
        };
        let delivered = chunks.try_send(Input::Chunk(chunk)).is_ok();
        Ok(if last || !delivered {
            After::End
        } else {
            After::Keep
        })
    }
}

/// Copies a computed chunk out, in blocks that fit segments, and the window after the last chunk.
fn export(
    engine: &mut dyn KvEngine,
    sequence: Sequence,
    range: &Range<u32>,
    last: bool,
) -> Result<Vec<Arc<KvBlock>>, EngineError> {
    let contract = engine.contract();
    let has_full = !contract.section_layers(Section::Full).is_empty();
    let window = contract
        .has_window()
        .then(|| contract.window_start(range.end)..range.end);
    let step = block_tokens(contract);
    let mut blocks = Vec::new();
    let mut start = range.start;
    while has_full && start < range.end {
        // Pages stay whole, so that they can be kept.
        let aligned = start.saturating_add(step) / PAGE_TOKENS * PAGE_TOKENS;
        let end = if aligned > start {
            aligned
        } else {
            start + step
        };
        let end = end.min(range.end);
        blocks.push(Arc::new(engine.export(
            sequence,
            Section::Full,
            start..end,
        )?));
        start = end;
    }
    if let (true, Some(window)) = (last, window) {
        blocks.push(Arc::new(engine.export(
            sequence,
            Section::Window,
            window,
        )?));
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
