//! The task that owns the scheduler, and how everyone else speaks to it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tandem_api::ApiError;
use tandem_sched::{
    Action, Event, Failure, NodeView, Pin, Plan, Rejection, Route, Scheduler, ServerView,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot};

use crate::limits::{DRAIN_LOOK, MAX_DECISIONS, MAX_MESSAGES, MAX_REQUESTS};
use crate::pins::{read_pins, write_pins};

/// What is said to the owner.
enum Message {
    Event(Event),
    Submit {
        request: String,
        model: String,
        route: Route,
        prefix: Vec<u64>,
        goes_on: bool,
        decisions: mpsc::Sender<Decision>,
    },
    Look(oneshot::Sender<Look>),
}

/// What the scheduler knows at one moment.
pub(crate) struct Look {
    pub(crate) nodes: Vec<NodeView>,
    pub(crate) servers: Vec<ServerView>,
    pub(crate) unavailable: Vec<Rejection>,
    pub(crate) queued: HashMap<String, usize>,
    /// Nodes with another model under a name.
    pub(crate) odd: Vec<String>,
    /// Nodes that can decode each model, with the tokens of their contexts.
    pub(crate) decoders: HashMap<String, Vec<(String, u32)>>,
}

/// What is to become of a request.
pub(crate) enum Decision {
    Start(Plan),
    Reject(Rejection),
}

/// Speaks to the owner.
#[derive(Clone)]
pub(crate) struct Cluster {
    messages: mpsc::Sender<Message>,
    open: Arc<Semaphore>,
}

/// The owner; [`Owner::run`] is its task.
pub(crate) struct Owner {
    scheduler: Scheduler,
    models: Vec<String>,
    messages: mpsc::Receiver<Message>,
    waiting: HashMap<String, mpsc::Sender<Decision>>,
    /// Where pins are kept.
    pins: Option<PathBuf>,
    /// Nodes with another model under a name, as they have been told last.
    odd: Vec<String>,
}

/// A submitted request. Dropping it frees what the request holds.
pub(crate) struct Slot {
    request: String,
    decisions: mpsc::Receiver<Decision>,
    messages: mpsc::Sender<Message>,
    /// A place in the channel, so that the end can be told without waiting.
    end: Option<mpsc::OwnedPermit<Message>>,
    /// What a prompt that goes on from the answer begins with, if there is an answer.
    answered: Option<Vec<u64>>,
    _open: OwnedSemaphorePermit,
}

/// The owner of this scheduler, which offers these models, and the way to speak to it.
pub(crate) fn cluster(
    scheduler: Scheduler,
    models: Vec<String>,
    pins: Option<PathBuf>,
) -> (Cluster, Owner) {
    // Each open request reserves one place; the others are for all other messages.
    let (messages, receiver) = mpsc::channel(MAX_REQUESTS + MAX_MESSAGES);
    let owner = Owner {
        scheduler,
        models,
        messages: receiver,
        waiting: HashMap::new(),
        pins,
        odd: Vec::new(),
    };
    let open = Arc::new(Semaphore::new(MAX_REQUESTS));
    (Cluster { messages, open }, owner)
}

impl Cluster {
    /// Tells the scheduler about a node.
    pub(crate) async fn tell(&self, event: Event) {
        // Without an owner the coordinator is stopping and nobody needs to know.
        let _ = self.messages.send(Message::Event(event)).await;
    }

    /// What the scheduler knows now.
    pub(crate) async fn look(&self) -> Result<Look, ApiError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.messages.send(Message::Look(reply)).await;
        sent.map_err(|_| ApiError::stopping())?;
        answer.await.map_err(|_| ApiError::stopping())
    }

    /// Takes no new request any more; completes when none is open.
    pub(crate) async fn drain(&self) {
        self.open.close();
        while self.open.available_permits() < MAX_REQUESTS {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }

    /// A place among the open requests.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let open = Arc::clone(&self.open).try_acquire_owned();
        open.map_err(|e| match e {
            TryAcquireError::Closed => ApiError::stopping(),
            TryAcquireError::NoPermits => ApiError::busy(format!(
                "{MAX_REQUESTS} requests are open already; send this one again later"
            )),
        })
    }

    /// True if new requests are taken.
    pub(crate) fn takes_requests(&self) -> bool {
        !self.open.is_closed()
    }

    /// Submits a request.
    pub(crate) async fn submit(
        &self,
        request: String,
        model: String,
        route: Route,
        prefix: Vec<u64>,
        goes_on: bool,
    ) -> Result<Slot, ApiError> {
        let open = self.enter()?;
        let end = self.messages.clone().reserve_owned().await;
        let end = end.map_err(|_| ApiError::stopping())?;
        let (decisions, receiver) = mpsc::channel(MAX_DECISIONS);
        let submit = Message::Submit {
            request: request.clone(),
            model,
            route,
            prefix,
            goes_on,
            decisions,
        };
        let sent = self.messages.send(submit).await;
        sent.map_err(|_| ApiError::stopping())?;
        Ok(Slot {
            request,
            decisions: receiver,
            messages: self.messages.clone(),
            end: Some(end),
            answered: None,
            _open: open,
        })
    }
}

impl Slot {
    /// Waits for the next decision about the request.
    pub(crate) async fn decision(&mut self) -> Result<Decision, ApiError> {
        self.decisions.recv().await.ok_or_else(ApiError::stopping)
    }

    /// The prefill node is done with the request, and has computed the prompt or not.
    pub(crate) async fn prefill_ended(&self, computed: bool) {
        let request = self.request.clone();
        self.tell(Event::PrefillEnded { request, computed }).await;
    }

    /// The decode node failed; with `retry` a further decision follows.
    pub(crate) async fn decode_failed(&self, node: &str, failure: Failure, retry: bool) {
        self.tell(Event::DecodeFailed {
            request: self.request.clone(),
            node: node.to_owned(),
            failure,
            retry,
        })
        .await;
    }

    /// The two nodes do not compute the same: the model is not handed over between them any more.
    pub(crate) async fn refuse(&self, prefill: &str, decode: &str, model: &str) {
        self.tell(Event::PairRefused {
            prefill: prefill.to_owned(),
            decode: decode.to_owned(),
            model: model.to_owned(),
        })
        .await;
    }

    /// The request is answered, and a prompt that goes on from it begins like this.
    pub(crate) fn finish(mut self, prefix: Vec<u64>) {
        self.answered = Some(prefix);
    }

    async fn tell(&self, event: Event) {
        let _ = self.messages.send(Message::Event(event)).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let request = std::mem::take(&mut self.request);
        let event = match self.answered.take() {
            Some(prefix) => Event::Finished { request, prefix },
            None => Event::Cancel { request },
        };
        if let Some(end) = self.end.take() {
            end.send(Message::Event(event));
        }
    }
}

impl Owner {
    /// Handles one message after the other until nobody can send any more.
    pub(crate) async fn run(mut self) {
        let mut actions = Vec::new();
        while let Some(message) = self.messages.recv().await {
            let event = match message {
                Message::Event(event) => event,
                Message::Look(reply) => {
                    // Who asked may have gone.
                    let _ = reply.send(self.look());
                    continue;
                }
                Message::Submit {
                    request,
                    model,
                    route,
                    prefix,
                    goes_on,
                    decisions,
                } => {
                    self.waiting.insert(request.clone(), decisions);
                    Event::Submit {
                        request,
                        model,
                        route,
                        prefix,
                        goes_on,
                    }
                }
            };
            if let Event::Cancel { request } | Event::Finished { request, .. } = &event {
                self.waiting.remove(request);
            }
            let is_status = matches!(event, Event::NodeUp { .. });
            self.scheduler.handle(event, &mut actions);
            for action in actions.drain(..) {
                self.perform(action).await;
            }
            if is_status {
                self.check_pins().await;
            }
        }
    }

    /// Tells which nodes have another model than they should, once each; somebody may have changed which that is.
    async fn check_pins(&mut self) {
        if !self.scheduler.odd().is_empty()
            && let Some(path) = self.pins.clone()
        {
            let read = tokio::task::spawn_blocking(move || read_pins(&path)).await;
            if let Ok(Ok(pins)) = read {
                self.scheduler.set_pins(&pins);
            }
        }
        let odd = self.scheduler.odd();
        for reason in odd.iter().filter(|reason| !self.odd.contains(reason)) {
            tracing::error!(reason, "a node gets nothing");
        }
        self.odd = odd;
    }

    /// Keeps what the name of a model stands for.
    async fn keep_pins(&self, model: String, pins: Vec<Pin>) {
        let Some(path) = self.pins.clone() else {
            return;
        };
        let shown = path.display().to_string();
        let writing = tokio::task::spawn_blocking(move || {
            let mut all = read_pins(&path)?;
            all.insert(model, pins);
            write_pins(&path, all)
        });
        let written = writing.await.map_err(std::io::Error::other).flatten();
        if let Err(error) = written {
            tracing::warn!(path = shown, %error, "not kept beyond this run: which model a name stands for");
        }
    }

    async fn perform(&mut self, action: Action) {
        let (request, decision) = match action {
            Action::Pin { model, pins } => {
                tracing::info!(
                    model,
                    weights = pins[0].weights,
                    "the name stands for this model"
                );
                return self.keep_pins(model, pins).await;
            }
            Action::Queued { request, before } => {
                tracing::debug!(request, before, "queued");
                return;
            }
            Action::Start { request, plan } => {
                tracing::info!(request, plan = plan.reason, "start");
                (request, Decision::Start(plan))
            }
            Action::Reject { request, reason } => {
                tracing::info!(request, %reason, "rejected");
                (request, Decision::Reject(reason))
            }
        };
        if let Some(decisions) = self.waiting.get(&request) {
            // If the request has gone, its end is on the way.
            let _ = decisions.try_send(decision);
        }
    }

    fn look(&self) -> Look {
        let queued = |m: &String| (m.clone(), self.scheduler.queued(m));
        Look {
            nodes: self.scheduler.nodes(),
            servers: self.scheduler.servers(),
            unavailable: self.scheduler.unavailable(),
            queued: self.models.iter().map(queued).collect(),
            odd: self.scheduler.odd(),
            decoders: {
                let of = |m: &String| (m.clone(), self.scheduler.decoders(m));
                self.models.iter().map(of).collect()
            },
        }
    }
}
