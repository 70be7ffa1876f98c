//! A model that a node serves: its engine thread and what is shared with it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tandem_engine::chat::ChatTemplate;
use tandem_engine::constraint::ConstraintFactory;
use tandem_engine::{Capacity, KvEngine, Tokenizer};
use tandem_handoff::{Contract, KvBlock};
use tandem_proto::{ErrorCode, HandoffTerms, NodeError, StepTimes};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use crate::RunError;
use crate::busy::Busy;
use crate::chunking::Chunking;
use crate::engine_loop::EngineLoop;
use crate::limits::{ADMISSION_WAIT, COMMAND_RETRY, HANG_LOOKS, Limits, MAX_COMMANDS};
use crate::measured::Measured;
use crate::sequence::{Admission, Command, Origin, SequenceId};

/// Whose turn it is of several blocks of one handoff.
pub type ApplyOrder = tokio::sync::Mutex<()>;

/// A model and the way to its engine thread.
pub struct Model {
    /// Name under which requests ask for it.
    pub name: String,
    /// What must be equal on both ends of a handoff.
    pub contract: Arc<Contract>,
    /// What fits.
    pub capacity: Capacity,
    /// Tokens of a step at the end of a prompt.
    pub tail_tokens: u32,
    /// True if its engine gives layers while they are computed.
    pub gives_layers: bool,
    /// Threads of the processor that compute each step.
    pub threads: Option<u32>,
    /// Why its KV is not handed over, if it is not.
    pub stays: Option<String>,
    /// The tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Bytes of its longest token.
    pub longest_token: usize,
    /// The chat template, or why the model has none.
    pub template: Result<ChatTemplate, String>,
    /// Makes constraints over this vocabulary.
    pub constraints: ConstraintFactory,
    commands: SyncSender<Command>,
    places: Arc<Semaphore>,
    next_sequence: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: watch::Receiver<bool>,
    steps: Arc<AtomicU64>,
    unpaged: Arc<AtomicUsize>,
    measured: Arc<Mutex<Measured>>,
    busy: Arc<Mutex<Busy>>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Starts the engine thread.
    ///
    /// # Errors
    /// If the vocabulary cannot be constrained or the thread cannot be started.
    pub fn start(
        name: String,
        engine: Box<dyn KvEngine>,
        limits: Limits,
    ) -> Result<Self, RunError> {
        let fail = |reason: String| RunError::Model {
            model: name.clone(),
            reason,
        };
        let contract = Arc::new(engine.contract().clone());
        let (capacity, tail_tokens) = (engine.capacity(), engine.tail_tokens());
        let gives_layers = engine.gives_layers();
        let (threads, stays) = (engine.threads(), engine.stays().map(str::to_owned));
        let tokenizer = engine.tokenizer();
        let template = ChatTemplate::new(Arc::clone(&tokenizer)).map_err(|e| e.to_string());
        if let Err(reason) = &template {
            tracing::warn!(model = %name, %reason, "chats cannot be answered");
        }
        let lengths = (0..tokenizer.len()).map(|token| tokenizer.bytes(token).len());
        let longest_token = lengths.max().unwrap_or(1).max(1);
        let constraints =
            ConstraintFactory::new(Arc::clone(&tokenizer)).map_err(|e| fail(e.to_string()))?;
        let (commands, receiver) = sync_channel(MAX_COMMANDS);
        let (running, ended) = watch::channel(false);
        let steps = Arc::new(AtomicU64::new(0));
        let measured = Arc::new(Mutex::new(Measured::default()));
        let unpaged = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&unpaged);
        let (counted, times) = (Arc::clone(&steps), Arc::clone(&measured));
        let busy = Arc::new(Mutex::new(Busy::new(Instant::now())));
        let spent = Arc::clone(&busy);
        let thread = std::thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn(move || {
                // Dropped also by a panic, which tells those who wait.
                let _running = running;
                EngineLoop::new(engine, receiver, limits, counted, left, times, spent).run();
            })
            .map_err(|e| fail(e.to_string()))?;
        Ok(Self {
            name,
            contract,
            capacity,
            tail_tokens,
            gives_layers,
            threads,
            stays,
            longest_token,
            tokenizer,
            template,
            constraints,
            commands,
            places: Arc::new(Semaphore::new(capacity.sequences as usize)),
            next_sequence: AtomicU64::new(1),
            thread: Mutex::new(Some(thread)),
            ended,
            steps,
            unpaged,
            measured,
            busy,
        })
    }

    /// How busy the engine was over the last minute, in percent.
    #[must_use]
    pub fn busy_percent(&self) -> u8 {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.percent(Instant::now())
    }

    /// What steps took.
    #[must_use]
    pub fn step_times(&self) -> StepTimes {
        let measured = self.measured.lock();
        measured.unwrap_or_else(PoisonError::into_inner).told()
    }

    /// The terms of a request that is decoded here: nothing of a model that stays is reused.
    #[must_use]
    pub fn terms(&self, asked: &HandoffTerms) -> HandoffTerms {
        let mut terms = asked.at_decode();
        if self.stays.is_some() {
            terms.reuse = false;
        }
        terms
    }

    /// That its KV is handed over.
    ///
    /// # Errors
    /// Says why it is not.
    pub fn check_handed_over(&self) -> Result<(), NodeError> {
        let Some(reason) = &self.stays else {
            return Ok(());
        };
        let message = format!("KV of `{}` is not handed over: {reason}", self.name);
        Err(NodeError::new(ErrorCode::InvalidRequest, message))
    }

    /// How a prompt is computed whose KV ends there, in chunks of so many tokens.
    #[must_use]
    pub const fn chunking(&self, kv_end: u32, chunk: u32) -> Chunking {
        Chunking {
            kv_end,
            chunk,
            tail: self.tail_tokens,
        }
    }

    /// Asks the engine thread to end and waits for it, so that the engine is gone before the
    /// process is. Blocks for at most the step in progress.
    pub fn stop(&self) {
        // A full queue means that the thread is alive; it takes the command when there is room.
        if let Err(TrySendError::Full(command)) = self.commands.try_send(Command::Stop) {
            let _ = self.commands.send(command);
        }
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(model = %self.name, "the engine thread panicked");
        }
    }

    /// Reserves a place for a new sequence, without waiting for the engine thread, which may be in the
    /// middle of a long chunk.
    ///
    /// # Errors
    /// If all sequences are in use.
    pub fn admit(&self) -> Result<Admission, NodeError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        self.admission(place.ok())
    }

    /// The same, and waits for a sequence whose request has just ended: who asked knows of the end, and the engine thread
    /// lets go of it a little later.
    ///
    /// # Errors
    /// If all sequences stay in use.
    pub async fn admit_soon(&self) -> Result<Admission, NodeError> {
        let place = timeout(ADMISSION_WAIT, Arc::clone(&self.places).acquire_owned()).await;
        self.admission(place.ok().and_then(Result::ok))
    }

    /// Reserves all places, for a sequence beside which nothing else runs. Whoever asks later waits behind it.
    ///
    /// # Errors
    /// If others run for as long as that.
    pub async fn admit_alone(&self, limit: Duration) -> Result<Admission, NodeError> {
        let all = Arc::clone(&self.places).acquire_many_owned(self.capacity.sequences);
        let place = timeout(limit, all).await;
        self.admission(place.ok().and_then(Result::ok))
    }

    fn admission(&self, place: Option<OwnedSemaphorePermit>) -> Result<Admission, NodeError> {
        let n = self.capacity.sequences;
        let busy = || {
            NodeError::new(
                ErrorCode::Busy,
                format!("all {n} sequences of `{}` are in use", self.name),
            )
        };
        Ok(Admission {
            sequence: SequenceId(self.next_sequence.fetch_add(1, Ordering::Relaxed)),
            place: place.ok_or_else(busy)?,
        })
    }

    /// True if no sequence is in use, and pages have been made of all that have ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_paged = self.unpaged.load(Ordering::SeqCst) == 0;
        is_paged && self.places.available_permits() == self.capacity.sequences as usize
    }

    /// Hands over a command that must not be lost; waits while the queue is full.
    pub async fn deliver(&self, command: Command) {
        let mut command = command;
        while let Err(TrySendError::Full(back)) = self.commands.try_send(command) {
            command = back;
            tokio::time::sleep(COMMAND_RETRY).await;
        }
    }

    /// Puts a block into a sequence; done when the engine has it.
    ///
    /// # Errors
    /// If the engine refuses it, or nobody waits for it any more.
    pub async fn apply(
        &self,
        sequence: SequenceId,
        origin: Origin,
        block: Arc<KvBlock>,
    ) -> Result<(), String> {
        self.apply_in_turn(&ApplyOrder::default(), sequence, origin, block)
            .await
    }

    /// The same for one of several blocks that are given at once: the engine takes only the one whose turn it is, so they
    /// wait for room in its queue one behind the other.
    ///
    /// # Errors
    /// As [`Model::apply`].
    pub async fn apply_in_turn(
        &self,
        turn: &ApplyOrder,
        sequence: SequenceId,
        origin: Origin,
        block: Arc<KvBlock>,
    ) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        let mine = turn.lock().await;
        self.deliver(Command::Apply(sequence, origin, block, reply))
            .await;
        drop(mine);
        let stopped = |_| Err("the engine has stopped".into());
        answer.await.unwrap_or_else(stopped)
    }

    /// Waits until the engine thread has ended, for whatever reason.
    pub async fn ended(&self) {
        // Its value never changes: the thread drops the sender, which is an error here.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Completes when one step of the engine thread takes longer than that: its engine will not
    /// come back. An idle one makes a step every [`crate::limits::IDLE_TICK`].
    pub async fn hangs(&self, limit: Duration) {
        let mut seen = None;
        let mut looks = 0;
        // Several looks: after the process was stopped for long, only one of them is late.
        while looks < HANG_LOOKS {
            let steps = self.steps.load(Ordering::Relaxed);
            if seen.replace(steps) == Some(steps) {
                looks += 1;
            } else {
                looks = 0;
            }
            tokio::time::sleep(limit / HANG_LOOKS).await;
        }
    }

    /// Hands a command to the engine thread.
    ///
    /// # Errors
    /// If its queue is full, or the thread has ended.
    pub fn command(&self, command: Command) -> Result<(), NodeError> {
        self.commands.try_send(command).map_err(|e| match e {
            TrySendError::Full(_) => NodeError::new(
                ErrorCode::Busy,
                format!(
                    "the engine of `{}` has {MAX_COMMANDS} commands waiting",
                    self.name
                ),
            ),
            TrySendError::Disconnected(_) => NodeError::new(
                ErrorCode::Stopping,
                format!("the engine of `{}` has stopped", self.name),
            ),
        })
    }
}
