//! The engine thread of one model.
//!
//! One loop: take commands, take in a slice of KV, then copy a slice out or evaluate in one call the next token of every
//! answer and parts of prompts. What comes in and what else there is take turns where somebody waits for a
//! token, so running generations wait for at most one slice of KV, or one chunk with its rows or the first slice of
//! them; and a request that nobody waits for stops within one step. Where a comparison fails, pages are forgotten in
//! between.
//!
//! - `sequences`: what is known of each request, and what can be done for it next;
//! - `import`: taking KV in, and what is done when it does not come or does not fit;
//! - `beginnings`: rows that sequences share;
//! - `batch`: one token of each answer and parts of prompts in one call; `steps`: what follows from a token;
//! - `export`: handing KV out, layer by layer while it is computed where the engine gives it so, and windows back;
//! - `retire`: handing the KV of a request out that has ended;
//! - `turns`: who comes next between two tokens.

mod batch;
mod beginnings;
mod export;
mod import;
mod retire;
mod sequences;
mod slices;
mod steps;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tandem_engine::constraint::ConstraintError;
use tandem_engine::generation::GenerationError;
use tandem_engine::{EngineError, KvEngine, Sequence};
use tandem_proto::{ErrorCode, GenerateEvent, NodeError, PrefillSummary, SequenceStatus};

use self::batch::Pace;
use self::beginnings::Beginnings;
use self::sequences::{
    ActiveSequence, Apply, Export, Generating, Reading, ReceiptState, Stage, Work,
};
use self::slices::{CopyOut, Taking};
use self::turns::{Turn, Turns};
use crate::busy::Busy;
use crate::limits::{IDLE_TICK, Limits};
use crate::measured::Measured;
use crate::sequence::{
    Admission, Command, GenerateSequence, PrefillSequence, SequenceId, SequencePrompt, Source,
};

/// Owns the engine and every sequence of one model.
pub struct EngineLoop {
    engine: Box<dyn KvEngine>,
    commands: Receiver<Command>,
    limits: Limits,
    sequences: BTreeMap<SequenceId, ActiveSequence>,
    /// Blocks to take in, in order; bounded by the credit of each handoff.
    applies: VecDeque<Apply>,
    turns: Turns,
    beginnings: Beginnings,
    pace: Pace,
    /// The last step handed out what has ended.
    has_retired: bool,
    stopping: bool,
    /// Counts, for [`crate::model::Model::hangs`].
    steps: Arc<AtomicU64>,
    /// Sequences of ended requests of which pages are still to be made, for [`crate::model::Model::is_idle`].
    unpaged: Arc<AtomicUsize>,
    /// What steps take, for the node's status.
    measured: Arc<Mutex<Measured>>,
    /// For [`crate::model::Model::busy_percent`].
    busy: Arc<Mutex<Busy>>,
}

impl EngineLoop {
    /// A loop for `engine` that takes `commands`, counts its steps, and measures what they take.
    #[must_use]
    pub fn new(
        engine: Box<dyn KvEngine>,
        commands: Receiver<Command>,
        limits: Limits,
        steps: Arc<AtomicU64>,
        unpaged: Arc<AtomicUsize>,
        measured: Arc<Mutex<Measured>>,
        busy: Arc<Mutex<Busy>>,
    ) -> Self {
        Self {
            engine,
            commands,
            limits,
            sequences: BTreeMap::new(),
            applies: VecDeque::new(),
            turns: Turns::default(),
            beginnings: Beginnings::default(),
            pace: Pace::default(),
            has_retired: false,
            stopping: false,
            steps,
            unpaged,
            measured,
            busy,
        }
    }

    /// Works until [`Command::Stop`], or until nobody can send commands any more.
    pub fn run(mut self) {
        while !self.stopping {
            self.take_commands();
            let is_busy = self.is_busy();
            if is_busy {
                self.busy().begin(Instant::now());
            }
            self.end_abandoned();
            self.begin_waiting();
            let is_waited_for = self.sequences.values().any(ActiveSequence::can_decode);
            let all = &mut self.sequences.values();
            let has_others = all.any(|j| j.can_copy() || j.can_read());
            let has_others = has_others || self.can_retire();
            let has_blocks = !self.applies.is_empty();
            let turn = self.turns.next(is_waited_for, has_blocks, has_others);
            let come = match turn {
                Turn::Others => 0,
                Turn::In | Turn::Both => self.apply_step(),
            };
            let waiting = self.applies.len();
            let is_their_turn = self.turns.others(turn, is_waited_for, come, waiting);
            let reads = is_their_turn && !self.other_step();
            self.step(reads);
            self.check_waits();
            self.start_paging();
            self.steps.fetch_add(1, Ordering::Relaxed);
            if is_busy {
                self.busy().end(Instant::now());
            }
        }
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            self.fail(
                id,
                NodeError::new(ErrorCode::Stopping, "the node is shutting down"),
            );
        }
    }

    /// Copies a slice of rows; true if no prompts are read beside answers in this step.
    fn other_step(&mut self) -> bool {
        // KV is soon copied, and somebody waits for it to go on.
        if self.copy_step() {
            return true;
        }
        self.has_retired = !self.has_retired && self.retire_step();
        self.has_retired
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a step would do something.
    fn is_busy(&self) -> bool {
        !self.applies.is_empty()
            || self.can_retire()
            || self
                .sequences
                .values()
                .any(|j| j.can_read() || j.can_copy() || j.can_decode())
    }

    fn take_commands(&mut self) {
        if !self.is_busy() {
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
            Command::Generate(admission, sequence) => self.start_generate(admission, *sequence),
            Command::Prefill(admission, sequence) => self.start_prefill(admission, *sequence),
            Command::Apply(id, origin, block, reply) => self.applies.push_back(Apply {
                id,
                origin,
                taking: Taking::new(block),
                reply,
            }),
            Command::BeginReceiving(id, reply) => self.begin_receiving(id, reply),
            Command::There(id, tokens) => self.has_there(id, tokens),
            Command::Seeded(id, exact) => self.seeded(id, exact),
            Command::Cached(id, tokens) => self.has_pages(id, tokens),
            Command::Committed(id, handed) => self.committed(id, &handed),
            Command::Receipt(id, told) => self.receipt(id, told),
            Command::HandoffFailed(id, lost) => self.fall_back(id, lost),
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
        let all = self.sequences.values();
        all.map(|sequence| SequenceStatus {
            request: sequence.request.clone(),
            phase: sequence.phase(),
            prompt_tokens: count(sequence.tokens.len()),
            held_tokens: self.engine.held(sequence.place),
            generated_tokens: match &sequence.work {
                Work::Export(_) => 0,
                Work::Generate(g) => count(g.generation.generated().len()),
            },
        })
        .collect()
    }

    fn start_generate(&mut self, admission: Admission, sequence: GenerateSequence) {
        if sequence.prompt.reproducible {
            self.clear_for_reproducible();
        }
        let engine = self.engine.as_mut();
        let place = match self.beginnings.with_room(engine, None, |e| e.open()) {
            Ok(place) => place,
            Err(e) => {
                // The stream ends either way.
                let _ = sequence
                    .events
                    .try_send(GenerateEvent::Failed(engine_error(&e)));
                return;
            }
        };
        let is_here = sequence.source == Source::Here;
        let receipt = if sequence.parity.expected {
            ReceiptState::Awaited
        } else {
            ReceiptState::Settled
        };
        let work = Work::Generate(Box::new(Generating {
            stage: Stage::Prompt,
            generation: sequence.generation,
            events: sequence.events,
            summary: PrefillSummary::default(),
            parity: sequence.parity,
            receipt,
            logits: None,
            compared: None,
            keep: sequence.keep,
            retire: sequence.retire,
            stalled: None,
        }));
        let id = self.add(admission, sequence.prompt, place, work);
        if is_here {
            self.begin(id);
        }
        self.finish_empty_prefill(id);
    }

    fn start_prefill(&mut self, admission: Admission, sequence: PrefillSequence) {
        if sequence.prompt.reproducible {
            self.clear_for_reproducible();
        }
        let engine = self.engine.as_mut();
        let Ok(place) = self.beginnings.with_room(engine, None, |e| e.open()) else {
            // The pump sees its channel closed and says that the prefill ended early.
            tracing::error!(request = %sequence.prompt.request, "no sequence for an admitted prefill");
            return;
        };
        let kv_end = u32::try_from(sequence.prompt.tokens.len()).unwrap_or(u32::MAX) - 1;
        let work = Work::Export(Box::new(Export {
            out: None,
            end: 0,
            there: None,
            window: CopyOut::of(self.engine.contract(), kv_end),
            chunks: sequence.chunks,
            begun: None,
            by_layer: sequence.by_layer && self.engine.gives_layers(),
            hand_back: sequence.hand_back,
        }));
        let id = self.add(admission, sequence.prompt, place, work);
        self.begin(id);
    }

    fn add(
        &mut self,
        admission: Admission,
        prompt: SequencePrompt,
        place: Sequence,
        work: Work,
    ) -> SequenceId {
        let id = admission.sequence;
        let sequence = ActiveSequence {
            request: prompt.request,
            place,
            tokens: prompt.tokens,
            chunk: prompt.chunk,
            prefill_ms: 0.0,
            computed_tokens: 0,
            reading: Reading::Receiving,
            work,
            pages: prompt.pages,
            salt: prompt.salt,
            reproducible: prompt.reproducible,
            cuts: Vec::new(),
            is_doubtful: false,
            admission,
        };
        self.sequences.insert(id, sequence);
        id
    }

    /// A prompt of one token has nothing to prefill.
    fn finish_empty_prefill(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.kv_end() == 0
            && !matches!(sequence.reading, Reading::Complete)
        {
            sequence.complete();
        }
    }

    fn end(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.leave(sequence, None);
        }
    }

    fn fail(&mut self, id: SequenceId, error: NodeError) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Work::Generate(g) = &mut sequence.work
        {
            // The stream ends either way; a coordinator that sees it end without `done` knows.
            let _ = g.events.try_send(GenerateEvent::Failed(error));
        }
        // Its rows may be the reason.
        if let Some(sequence) = self.sequences.remove(&id) {
            self.engine.release(sequence.place);
        }
    }

    fn end_abandoned(&mut self) {
        let gone: Vec<SequenceId> = self
            .sequences
            .iter()
            .filter(|(_, j)| j.abandoned(self.limits.event_stall))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.end(id);
        }
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Why an answer cannot begin or go on.
pub(crate) fn generation_error(e: &GenerationError) -> NodeError {
    let code = match e {
        GenerationError::Constraint(ConstraintError::Budget(_)) => ErrorCode::SchemaBudget,
        GenerationError::Constraint(ConstraintError::Busy) => ErrorCode::Busy,
        e if e.is_request() => ErrorCode::InvalidRequest,
        _ => ErrorCode::Engine,
    };
    let message = match e {
        GenerationError::Constraint(ConstraintError::Schema(_) | ConstraintError::Unknown) => {
            format!("`response_format`: {e}")
        }
        e => e.to_string(),
    };
    NodeError::new(code, message)
}

fn engine_error(e: &EngineError) -> NodeError {
    let code = match e {
        EngineError::Full(_) | EngineError::NoRoom => ErrorCode::Busy,
        EngineError::Refused(_) | EngineError::Failed(_) => ErrorCode::Engine,
    };
    NodeError::new(code, e.to_string())
}
