//! What is known of links from one handoff to the next.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::choice::Measured;
use crate::limits::MAX_LINKS;

/// The rates of links that earlier handoffs were slowed down by, in payload bytes per second, by target.
pub struct Links {
    rates: Mutex<LruCache<String, f64>>,
}

impl Default for Links {
    fn default() -> Self {
        let most = NonZeroUsize::new(MAX_LINKS).unwrap_or(NonZeroUsize::MIN);
        Self {
            rates: Mutex::new(LruCache::new(most)),
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

impl Links {
    fn rates(&self) -> MutexGuard<'_, LruCache<String, f64>> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate of the link to a target, if it is known.
    pub fn rate(&self, target: &str) -> Option<f64> {
        self.rates().get(target).copied()
    }

    /// Takes what a handoff has learnt of the link to its target.
    pub fn learn(&self, target: &str, measured: &Measured) {
        match measured.learnt() {
            Learnt::Nothing => {}
            Learnt::Fast => drop(self.rates().pop(target)),
            Learnt::Rate(rate) => drop(self.rates().put(target.to_owned(), rate)),
        }
    }
}

/// What a handoff tells of its link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Learnt {
    /// It was too short.
    Nothing,
    /// Nothing had to wait for it.
    Fast,
    /// Payload bytes per second.
    Rate(f64),
}
