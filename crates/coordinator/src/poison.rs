//! Requests that may kill nodes.
//!
//! One that may have killed [`MAX_LOST_NODES`] nodes gets no further one. If they died before they had
//! opened it, so that it was the last that they began, the same body is refused for a while. A power cut
//! in the midst of many answers outlaws none of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tandem_openai::ApiError;

use crate::life::Job;
use crate::limits::{MAX_LOST_NODES, MAX_POISONS, POISON};

/// What one request may have done.
#[derive(Default)]
pub(crate) struct Losses {
    /// Nodes that were lost with it.
    pub(crate) nodes: BTreeSet<String>,
    /// A node has opened it.
    pub(crate) opened: bool,
}

impl Losses {
    /// Whether it must not go to another node.
    pub(crate) fn is_enough(&self) -> bool {
        self.nodes.len() >= MAX_LOST_NODES
    }

    /// The error of a request that no other node gets, after this failure.
    pub(crate) fn end(&self, message: String) -> ApiError {
        ApiError::bad_gateway(match self.is_enough() {
            true => format!(
                "{message}; no further node is given a request that may have stopped {MAX_LOST_NODES}"
            ),
            false => message,
        })
    }
}

/// The requests that are refused, by digest.
#[derive(Default)]
pub(crate) struct Poisons {
    keys: RandomState,
    since: Mutex<HashMap<u64, Instant>>,
}

impl Poisons {
    /// # Errors
    /// If this request has killed nodes a short time ago.
    pub(crate) fn check(&self, job: &Job, now: Instant) -> Result<(), ApiError> {
        let mut since = self.since();
        since.retain(|_, since| now.duration_since(*since) < POISON);
        if since.is_empty() || !since.contains_key(&self.digest(job)) {
            return Ok(());
        }
        Err(refused())
    }

    /// Remembers a request if its nodes died of it.
    pub(crate) fn learn(&self, job: &Job, losses: &Losses, now: Instant) {
        if losses.opened || !losses.is_enough() {
            return;
        }
        let digest = self.digest(job);
        let mut since = self.since();
        if since.len() >= MAX_POISONS {
            let oldest = since.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(digest, _)| *digest) {
                since.remove(&oldest);
            }
        }
        since.insert(digest, now);
    }

    /// All of a request that a node works on. The key is of this process, so that nobody can make two
    /// requests with the same one.
    fn digest(&self, job: &Job) -> u64 {
        let body = serde_json::to_vec(&(&job.model, &job.prompt, &job.generation));
        self.keys.hash_one(body.unwrap_or_default())
    }

    fn since(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused() -> ApiError {
    let message = format!(
        "{MAX_LOST_NODES} nodes stopped answering when they got this request; it is refused for {} minutes",
        POISON.as_secs() / 60
    );
    ApiError::new(
        400,
        "invalid_request_error",
        None,
        Some("nodes_lost"),
        message,
    )
}
