//! The life of a request: wait for a plan, attempt it, start over elsewhere, tell the outcome.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_openai::{ApiError, FinishReason, Passed, TandemInfo, Usage};
use tandem_proto::{Generation, Prompt, Reuse};
use tandem_sched::{Failure, Plan, Route};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::alone::Profiles;
use crate::answers::Answers;
use crate::backend::pair::Pairs as NodePairs;
use crate::backend::{Answer, Attempt, AttemptError, Backend};
use crate::calls::Calls;
use crate::cluster::{Cluster, Decision, Slot};
use crate::config::{Config, ParityAction};
use crate::pairs::Pairs;
use crate::poison::{Losses, Poisons};
use crate::prefix::Beginning;
use crate::server::Server;
use crate::totals::Totals;
use crate::translate;

/// What all requests share.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) calls: Calls,
    /// Answers with nodes.
    pub(crate) nodes: NodePairs,
    /// Those that answer by themselves, by name.
    pub(crate) servers: HashMap<String, Arc<Server>>,
    pub(crate) cluster: Cluster,
    /// Pairs of nodes and how they get on.
    pub(crate) pairs: Pairs,
    /// Profiles of nodes and models.
    pub(crate) profiles: Profiles,
    /// What was answered.
    pub(crate) totals: Totals,
    /// For digests of prompts.
    pub(crate) prefix_keys: RandomState,
    /// Requests that may kill nodes.
    pub(crate) poisons: Poisons,
    /// The tokens of earlier answers.
    pub(crate) answers: Answers,
    /// Ends all requests when the coordinator stops.
    pub(crate) stop: CancellationToken,
}

impl Service {
    /// With what the decode node would have taken alone.
    fn told(&self, job: &Job, mut info: TandemInfo) -> TandemInfo {
        info.alone = self.profiles.alone(&job.model, &info);
        info
    }

    /// Who answers what a plan sends there.
    fn backend(&self, name: &str) -> &dyn Backend {
        match self.servers.get(name) {
            Some(server) => server.as_ref(),
            None => &self.nodes,
        }
    }

    /// What the prompt begins with, and behind it its answer if that is kept, so that nodes that have seen it are found.
    /// Nothing where nothing is reused.
    fn prefix(&self, job: &Job, answer: Option<&Answer>) -> Vec<u64> {
        if !self.config.handoff.reuse {
            return Vec::new();
        }
        let beginning = Beginning::of(&self.prefix_keys, &job.cache_salt, &job.prompt);
        let beginning = match answer {
            Some(answer) if self.keeps(job) => {
                beginning.answered(&job.prompt, &answer.text, &answer.tokens)
            }
            Some(_) | None => beginning,
        };
        beginning.digests()
    }

    /// Waits in the queue of the job's model.
    async fn submit(&self, job: &Job) -> Result<Slot, ApiError> {
        self.poisons.check(self.poison(job), Instant::now())?;
        let goes_on = self.config.handoff.reuse_of(&job.prompt) == Reuse::All;
        let (id, model) = (job.id.clone(), job.model.clone());
        let prefix = self.prefix(job, None);
        self.cluster
            .submit(id, model, job.route, prefix, goes_on)
            .await
    }

    /// True if nodes keep the answer's KV.
    fn keeps(&self, job: &Job) -> bool {
        job.keep && self.config.handoff.keeps(&job.prompt)
    }

    /// Takes an answer in: what a prompt that goes on from it begins with, and how its nodes get on. Whose rows do not fit
    /// is not known: nobody is to be preferred for them.
    async fn answered(&self, slot: Slot, job: &Job, plan: &Plan, answer: &Answer) {
        self.learn(job, answer);
        self.pairs.answered(plan, &answer.timeline);
        if answer.timeline.parity.is_none_or(|parity| parity.holds) {
            return slot.finish(self.prefix(job, Some(answer)));
        }
        let refuses = self.config.handoff.parity == ParityAction::Refuse;
        if let Some(prefill) = plan.prefill.as_deref().filter(|_| refuses) {
            slot.refuse(prefill, &plan.decode, &job.model).await;
        }
        slot.finish(Vec::new());
    }

    /// The digest of all of a request that a node works on.
    fn poison(&self, job: &Job) -> u64 {
        let body = (&job.model, &job.prompt, &job.generation, &job.passed);
        self.poisons.key(&body)
    }

    /// Remembers nodes that were lost with a request before they had opened it.
    fn blame(&self, job: &Job, losses: &mut Losses) {
        for _ in 0..std::mem::take(&mut losses.unopened) {
            self.poisons.add(self.poison(job), Instant::now());
        }
    }

    /// Remembers an answer that a next turn may bring again.
    fn learn(&self, job: &Job, answer: &Answer) {
        if self.keeps(job) && !answer.tokens.is_empty() {
            let Answer { text, tokens, .. } = answer;
            self.answers
                .learn(&job.cache_salt, &job.model, text, tokens);
        }
    }
}

/// A request, translated.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) prompt: Prompt,
    /// The fields of the request as they came, for a model that only servers have.
    pub(crate) passed: Option<Passed>,
    /// Field of the public request that holds the prompt, for messages.
    pub(crate) prompt_field: &'static str,
    pub(crate) generation: Generation,
    pub(crate) route: Route,
    pub(crate) return_tokens: bool,
    pub(crate) cache_salt: String,
    /// Whether the answer may be kept for a next turn.
    pub(crate) keep: bool,
    /// Fields of the request that were ignored.
    pub(crate) ignored: Vec<String>,
}

/// A request that is answered.
pub(crate) struct Outcome {
    /// The whole text, also if it was streamed.
    pub(crate) text: String,
    /// What the model thought before.
    pub(crate) thoughts: String,
    /// Tools that it calls.
    pub(crate) tools: Vec<Value>,
    pub(crate) finish: FinishReason,
    pub(crate) usage: Usage,
    pub(crate) info: TandemInfo,
}

/// A part of a streamed answer.
pub(crate) enum Piece {
    /// A node has taken the request on.
    Opened,
    /// More text.
    Text(String),
    /// More of what the model thinks before.
    Thought(String),
    /// More of the tools that it calls.
    Tools(Vec<Value>),
    /// Last: the answer is complete.
    Done(Box<Outcome>),
    /// Last: there is no (further) answer.
    Failed(ApiError),
}

/// Where the pieces of an answer go; nowhere if it is wanted whole.
pub(crate) struct Sink {
    pieces: Option<mpsc::Sender<Piece>>,
    stall: Duration,
    opened: bool,
    /// The client has seen text, so the request cannot start over.
    begun: bool,
}

impl Sink {
    pub(crate) fn new(pieces: Option<mpsc::Sender<Piece>>, stall: Duration) -> Self {
        Self {
            pieces,
            stall,
            opened: false,
            begun: false,
        }
    }

    /// Tells once that a node has taken the request on.
    pub(crate) async fn opened(&mut self) -> Result<(), ApiError> {
        if std::mem::replace(&mut self.opened, true) {
            return Ok(());
        }
        self.send(Piece::Opened).await
    }

    /// Passes text on; an empty one is left out.
    pub(crate) async fn text(&mut self, text: String) -> Result<(), ApiError> {
        if text.is_empty() || self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Text(text)).await
    }

    /// The same with thoughts.
    pub(crate) async fn thought(&mut self, thought: String) -> Result<(), ApiError> {
        if thought.is_empty() || self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Thought(thought)).await
    }

    /// And with calls of tools.
    pub(crate) async fn tools(&mut self, calls: Vec<Value>) -> Result<(), ApiError> {
        if self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Tools(calls)).await
    }

    /// True if the client has seen something of the answer.
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// True if somebody has taken the request on.
    pub(crate) const fn is_opened(&self) -> bool {
        self.opened
    }

    async fn send(&self, piece: Piece) -> Result<(), ApiError> {
        let Some(pieces) = &self.pieces else {
            return Ok(());
        };
        let sent = tokio::time::timeout(self.stall, pieces.send(piece)).await;
        let seconds = self.stall.as_secs_f64();
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(ApiError::internal("the client has gone")),
            Err(_) => Err(ApiError::internal(format!(
                "the client left the answer unread for {seconds} s"
            ))),
        }
    }
}

/// Runs a request to its end, or until the coordinator stops.
pub(crate) async fn answer(
    service: &Service,
    job: &Job,
    sink: &mut Sink,
) -> Result<Outcome, ApiError> {
    let result = tokio::select! {
        result = live(service, job, sink) => result,
        () = service.stop.cancelled() => Err(ApiError::stopping()),
    };
    match &result {
        Ok(outcome) => {
            let info = &outcome.info;
            tracing::info!(
                request = job.id,
                mode = info.mode,
                prompt_tokens = info.prompt_tokens,
                generated_tokens = info.generated_tokens,
                handoff_bytes = info.handoff_bytes,
                phases = ?info.phases_ms,
                "answered"
            );
        }
        Err(error) => tracing::warn!(request = job.id, %error, "not answered"),
    }
    result
}

/// Runs a request to its end and sends what happens; for a streamed answer.
pub(crate) async fn stream(service: Arc<Service>, job: Job, pieces: mpsc::Sender<Piece>) {
    let stall = service.config.limits.client_stall;
    let mut sink = Sink::new(Some(pieces), stall);
    let last = match answer(&service, &job, &mut sink).await {
        Ok(outcome) => Piece::Done(Box::new(outcome)),
        Err(error) => Piece::Failed(error),
    };
    // If the client has gone, nobody is left to be told.
    let _ = sink.send(last).await;
}

async fn live(service: &Service, job: &Job, sink: &mut Sink) -> Result<Outcome, ApiError> {
    let mut slot = service.submit(job).await?;
    let mut queue = Duration::ZERO;
    let arrived = Instant::now();
    let mut busy = 0_u32;
    let mut events = Vec::new();
    let mut last_failure = None;
    let mut losses = Losses::default();
    let mut too_long = None;
    loop {
        let waiting = Instant::now();
        let decision = slot.decision().await?;
        queue += waiting.elapsed();
        let plan = match decision {
            Decision::Start(plan) => plan,
            Decision::Reject(reason) => return Err(rejected(last_failure, too_long, &reason)),
        };
        // Others like it may have stopped nodes while it waited.
        service.poisons.check(service.poison(job), Instant::now())?;
        let mut attempt_events = plan.notes.clone();
        let attempt = Attempt {
            config: &service.config,
            job,
            plan: &plan,
            slot: &slot,
            sink,
            arrived,
            events: &mut attempt_events,
            losses: &mut losses,
        };
        match service.backend(&plan.decode).attempt(attempt).await {
            Ok(answer) => {
                service.answered(slot, job, &plan, &answer).await;
                events.extend(busy_note(busy));
                events.append(&mut attempt_events);
                let outcome = outcome(job, answer, |timeline| {
                    service.told(job, timeline.info(&job.id, &plan, queue, events))
                });
                service.totals.add(&job.model, &outcome.info);
                return Ok(outcome);
            }
            Err(AttemptError::Final(error)) => return Err(error),
            Err(AttemptError::TooLong(error)) => {
                too_long = Some(error);
                let failure = Failure::TooLong;
                slot.decode_failed(&plan.decode, failure, true).await;
            }
            Err(AttemptError::Node { failure, message }) => {
                let retry = !sink.begun && !losses.is_enough();
                tracing::warn!(request = job.id, message, retry, "decode failed");
                slot.decode_failed(&plan.decode, failure.clone(), retry)
                    .await;
                service.blame(job, &mut losses);
                if !retry {
                    return Err(losses.end(message));
                }
                if failure == Failure::Busy {
                    busy += 1;
                } else {
                    events.append(&mut attempt_events);
                    events.push(format!("{message}; started over"));
                }
                // A node that may have died of it counts for more than one that was not there.
                let is_lost = |f: &Option<(Failure, _)>| matches!(f, Some((Failure::Lost, _)));
                if failure == Failure::Lost || !is_lost(&last_failure) {
                    last_failure = Some((failure, message));
                }
            }
        }
    }
}

fn busy_note(busy: u32) -> Option<String> {
    (busy > 0).then(|| format!("waited because a decode node was busy, {busy} times"))
}

/// The answer to a request that is rejected. That it is too long counts if no node failed that might have had room.
fn rejected(
    failure: Option<(Failure, String)>,
    too_long: Option<ApiError>,
    reason: &tandem_sched::Rejection,
) -> ApiError {
    match (failure, too_long) {
        (None | Some((Failure::Busy, _)), Some(error)) => error,
        (failure, _) => after(failure, reason),
    }
}

/// The answer to a request that is rejected, perhaps after an attempt that failed.
fn after(failure: Option<(Failure, String)>, reason: &tandem_sched::Rejection) -> ApiError {
    match failure {
        None => translate::rejection(reason),
        Some((Failure::Busy, message)) => ApiError::busy(format!("{message}; {reason}")),
        Some((Failure::Stopping | Failure::Unreachable, message)) => {
            ApiError::unavailable(format!("{message}; {reason}"))
        }
        Some((_, message)) => ApiError::bad_gateway(format!("{message}; {reason}")),
    }
}

fn outcome(
    job: &Job,
    answer: Answer,
    info: impl FnOnce(&crate::timeline::Timeline) -> TandemInfo,
) -> Outcome {
    let mut info = info(&answer.timeline);
    info.tokens = job.return_tokens.then_some(answer.tokens);
    info.ignored.clone_from(&job.ignored);
    Outcome {
        text: answer.text,
        thoughts: answer.thoughts,
        tools: answer.tools,
        finish: answer.finish,
        usage: Usage::new(
            info.prompt_tokens,
            info.cached_tokens,
            info.generated_tokens,
        ),
        info,
    }
}
