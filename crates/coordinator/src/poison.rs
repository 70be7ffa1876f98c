//! Requests that may kill nodes.
//!
//! One that may have killed [`MAX_LOST_NODES`] nodes gets no further one. A body with which nodes were lost
//! that often before they had opened it, so that it was among the last that they began, is refused for a while,
//! whether it was sent once or several times. A power cut in the midst of answers outlaws none of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use tandem_api::ApiError;

use crate::limits::{MAX_LOST_NODES, MAX_POISONS, POISON};

/// What one request may have done.
#[derive(Default)]
pub(crate) struct Losses {
    /// Nodes that were lost with it.
    pub(crate) nodes: BTreeSet<String>,
    /// Decode nodes of these that had not opened it.
    pub(crate) unopened: usize,
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

/// What is known of a body.
struct Deaths {
    last: Instant,
    count: usize,
}

/// Bodies with which nodes were lost, by digest.
#[derive(Default)]
pub(crate) struct Poisons {
    keys: RandomState,
    known: Mutex<HashMap<u64, Deaths>>,
}

impl Poisons {
    /// The digest of a body. The key is of this process, so that nobody can make two with the same one.
    pub(crate) fn key(&self, body: &impl Serialize) -> u64 {
        self.keys
            .hash_one(serde_json::to_vec(body).unwrap_or_default())
    }

    /// # Errors
    /// If too many nodes were lost with this body a short time ago.
    pub(crate) fn check(&self, key: u64, now: Instant) -> Result<(), ApiError> {
        let mut known = self.known();
        known.retain(|_, deaths| now.duration_since(deaths.last) < POISON);
        let count = known.get(&key).map_or(0, |deaths| deaths.count);
        match count < MAX_LOST_NODES {
            true => Ok(()),
            false => Err(refused()),
        }
    }

    /// A node was lost with it.
    pub(crate) fn add(&self, key: u64, now: Instant) {
        let mut known = self.known();
        if known.len() >= MAX_POISONS && !known.contains_key(&key) {
            let oldest = known.iter().min_by_key(|(_, deaths)| deaths.last);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                known.remove(&oldest);
            }
        }
        let deaths = known.entry(key).or_insert(Deaths {
            last: now,
            count: 0,
        });
        deaths.last = now;
        deaths.count += 1;
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Deaths>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
