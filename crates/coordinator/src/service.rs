//! The life of a request: wait for a plan, attempt it, start over elsewhere, tell the outcome.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_api::{ApiError, TandemInfo, Usage};
use tandem_sched::{Failure, Plan};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::alone::Profiles;
use crate::answers::Answers;
use crate::backend::pair::Pairs as NodePairs;
use crate::backend::server::Server;
use crate::backend::{Answer, Attempt, AttemptError, Backend};
use crate::calls::Calls;
use crate::cluster::{Cluster, Decision, Slot};
use crate::config::{Config, ParityAction};
use crate::pairs::Pairs;
use crate::poison::{Losses, Poisons};
use crate::prefix::Beginning;
use crate::request::{Outcome, Piece, Request, Sink};
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
    /// With what the decode node would have taken alone, and which mode it was.
    fn told(&self, request: &Request, mut info: TandemInfo) -> TandemInfo {
        let is_by_nodes = info.server.is_none();
        info.reproducible = is_by_nodes && self.config.handoff.is_reproducible(request);
        info.alone = self.profiles.alone(&request.model, &info);
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
    fn prefix(&self, request: &Request, answer: Option<&Answer>) -> Vec<u64> {
        if !self.config.handoff.reuse {
            return Vec::new();
        }
        let beginning = Beginning::of(&self.prefix_keys, &request.cache_salt, &request.prompt);
        let beginning = match answer {
            Some(answer) if self.keeps(request) => {
                beginning.answered(&request.prompt, &answer.text, &answer.tokens)
            }
            Some(_) | None => beginning,
        };
        beginning.digests()
    }

    /// Waits in the queue of the request's model.
    async fn submit(&self, request: &Request) -> Result<Slot, ApiError> {
        self.check_poison(request)?;
        let goes_on = self.config.handoff.goes_on(&request.prompt);
        let (id, model) = (request.id.clone(), request.model.clone());
        let prefix = self.prefix(request, None);
        self.cluster
            .submit(id, model, request.route, prefix, goes_on)
            .await
    }

    /// True if nodes keep the answer's KV.
    fn keeps(&self, request: &Request) -> bool {
        request.keep && self.config.handoff.keeps(&request.prompt)
    }

    /// Takes an answer in: what a prompt that goes on from it begins with, and how its nodes get on. Whose rows do not fit
    /// is not known: nobody is to be preferred for them.
    async fn answered(&self, slot: Slot, request: &Request, plan: &Plan, answer: &Answer) {
        self.learn(request, answer);
        self.pairs.answered(plan, &answer.timeline);
        if answer.timeline.parity.is_none_or(|parity| parity.holds) {
            return slot.finish(self.prefix(request, Some(answer)));
        }
        let refuses = self.config.handoff.parity == ParityAction::Refuse;
        if let Some(prefill) = plan.prefill.as_deref().filter(|_| refuses) {
            slot.refuse(prefill, &plan.decode, &request.model).await;
        }
        slot.finish(Vec::new());
    }

    /// That it is no request that nodes have died of.
    fn check_poison(&self, request: &Request) -> Result<(), ApiError> {
        self.poisons.check(self.poison(request), Instant::now())
    }

    /// The digest of all of a request that a node works on.
    fn poison(&self, request: &Request) -> u64 {
        let body = (
            &request.model,
            &request.prompt,
            &request.generation,
            &request.passed,
        );
        self.poisons.key(&body)
    }

    /// Remembers nodes that were lost with a request before they had opened it.
    fn blame(&self, request: &Request, losses: &mut Losses) {
        for _ in 0..std::mem::take(&mut losses.unopened) {
            self.poisons.add(self.poison(request), Instant::now());
        }
    }

    /// Remembers an answer that a next turn may bring again.
    fn learn(&self, request: &Request, answer: &Answer) {
        // Thoughts are not brought again.
        if self.keeps(request) && !answer.tokens.is_empty() && answer.thoughts.is_empty() {
            let Answer { text, tokens, .. } = answer;
            self.answers
                .learn(&request.cache_salt, &request.model, text, tokens);
        }
    }
}

/// Runs a request to its end, or until the coordinator stops.
pub(crate) async fn answer(
    service: &Service,
    request: &Request,
    sink: &mut Sink,
) -> Result<Outcome, ApiError> {
    let result = tokio::select! {
        result = live(service, request, sink) => result,
        () = service.stop.cancelled() => Err(ApiError::stopping()),
    };
    match &result {
        Ok(outcome) => {
            let info = &outcome.info;
            tracing::info!(
                request = request.id,
                mode = info.mode,
                prompt_tokens = info.prompt_tokens,
                generated_tokens = info.generated_tokens,
                handoff_bytes = info.handoff_bytes,
                phases = ?info.phases_ms,
                "answered"
            );
        }
        Err(error) => tracing::warn!(request = request.id, %error, "not answered"),
    }
    result
}

/// Runs a request to its end and sends what happens; for a streamed answer.
pub(crate) async fn stream(service: Arc<Service>, request: Request, pieces: mpsc::Sender<Piece>) {
    let stall = service.config.limits.client_stall;
    let mut sink = Sink::new(Some(pieces), stall);
    let last = match answer(&service, &request, &mut sink).await {
        Ok(outcome) => Piece::Done(Box::new(outcome)),
        Err(error) => Piece::Failed(error),
    };
    // If the client has gone, nobody is left to be told.
    let _ = sink.send(last).await;
}

async fn live(service: &Service, request: &Request, sink: &mut Sink) -> Result<Outcome, ApiError> {
    let mut slot = service.submit(request).await?;
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
        service.check_poison(request)?;
        let mut attempt_events = plan.notes.clone();
        let attempt = Attempt {
            config: &service.config,
            request,
            plan: &plan,
            slot: &slot,
            sink,
            arrived,
            events: &mut attempt_events,
            losses: &mut losses,
        };
        match service.backend(&plan.decode).attempt(attempt).await {
            Ok(answer) => {
                service.answered(slot, request, &plan, &answer).await;
                events.extend(busy_note(busy));
                events.append(&mut attempt_events);
                let outcome = outcome(request, answer, |timeline| {
                    service.told(request, timeline.info(&request.id, &plan, queue, events))
                });
                service.totals.add(&request.model, &outcome.info);
                return Ok(outcome);
            }
            Err(AttemptError::Final(error)) => return Err(error),
            Err(AttemptError::TooLong(error)) => {
                too_long = Some(error);
                let failure = Failure::TooLong;
                slot.decode_failed(&plan.decode, failure, true).await;
            }
            Err(AttemptError::Node { failure, message }) => {
                let retry = !sink.has_begun() && !losses.is_enough();
                tracing::warn!(request = request.id, message, retry, "decode failed");
                slot.decode_failed(&plan.decode, failure.clone(), retry)
                    .await;
                service.blame(request, &mut losses);
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
    request: &Request,
    answer: Answer,
    info: impl FnOnce(&crate::timeline::Timeline) -> TandemInfo,
) -> Outcome {
    let mut info = info(&answer.timeline);
    info.tokens = request.return_tokens.then_some(answer.tokens);
    info.ignored.clone_from(&request.ignored);
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
