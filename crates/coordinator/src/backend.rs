//! Who answers whole requests: a pair of nodes, or a server. The scheduler picks among both.

pub(crate) mod pair;
pub(crate) mod server;
mod thoughts;

use std::pin::Pin;
use std::time::Instant;

use serde_json::Value;
use tandem_api::{ApiError, FinishReason};
use tandem_sched::{Failure, Plan};

use crate::cluster::Slot;
use crate::config::Config;
use crate::poison::Losses;
use crate::request::{Request, Sink};
use crate::timeline::Timeline;

/// Something that goes on.
pub(crate) type Running<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Answers requests where a plan sends them.
pub(crate) trait Backend: Send + Sync {
    /// Runs until the answer is complete or whoever answers has failed. Dropping it ends the work.
    fn attempt<'a>(&'a self, attempt: Attempt<'a>) -> Running<'a, Result<Answer, AttemptError>>;
}

/// What an attempt works with.
pub(crate) struct Attempt<'a> {
    pub(crate) config: &'a Config,
    pub(crate) request: &'a Request,
    pub(crate) plan: &'a Plan,
    pub(crate) slot: &'a Slot,
    pub(crate) sink: &'a mut Sink,
    /// When the request arrived.
    pub(crate) arrived: Instant,
    /// Notes for a person; survive the attempt.
    pub(crate) events: &'a mut Vec<String>,
    /// What the request may have done to nodes; survives the attempt, too.
    pub(crate) losses: &'a mut Losses,
}

/// Why an attempt has no answer.
pub(crate) enum AttemptError {
    /// The decode node, or the server, failed; another one may succeed.
    Node { failure: Failure, message: String },
    /// The request is longer than the context of the node; one with a longer context may take it.
    TooLong(ApiError),
    /// Nobody can do better.
    Final(ApiError),
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// What the model thought before, where that comes apart.
    pub(crate) thoughts: String,
    /// Tools that it calls.
    pub(crate) tools: Vec<Value>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish: FinishReason,
    pub(crate) timeline: Timeline,
}
