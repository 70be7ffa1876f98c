//! What is known of links from one handoff to the next.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use super::choice::Measured;
use crate::limits::{
    ARRIVAL_BYTES, BELIEVED_BYTES, BELIEVED_TIME, FREE_BYTES, MAX_LINKS, TIMER_LATE,
};

/// What earlier handoffs have learnt of the links to targets.
pub struct Links {
    known: Mutex<LruCache<String, Memory>>,
    /// Handoffs that go on now.
    going: AtomicUsize,
    /// Bytes per second that leave this machine at most.
    rate: Option<u64>,
    /// When what was to leave by that has left.
    left: Mutex<Option<Instant>>,
}

/// What is remembered of a link for the choice of a codec.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// Payload bytes per second, where something waited for the link.
    pub rate: Option<f64>,
    /// What was measured since and is too little to be believed, of one handoff or of several.
    pub little: Waited,
    /// Bytes of the last handoffs, in none of which something waited but seldom.
    free: u64,
}

impl Memory {
    /// Of a link with this rate.
    #[must_use]
    pub fn of(rate: f64) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    fn learn(&mut self, measured: &Measured) {
        match measured.learnt() {
            Learnt::Nothing => {}
            Learnt::Fast => self.rate = None,
            Learnt::Rate(rate) => self.rate = Some(rate),
        }
        let little = measured.little();
        self.little.bytes += little.bytes;
        self.little.time += little.time;
        self.free = measured.free().map_or(0, |free| self.free + free);
        if self.little.bytes < self.free / 8 {
            // What was measured is what happens now and then.
            self.little = Waited::default();
        }
        if self.free >= FREE_BYTES {
            // In another codec than raw rows the link is free, however fast it is. It may be faster than it was.
            (self.rate, self.free) = (None, 0);
        }
    }
}

/// Bytes that a link carried while something waited for it, and that time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// Bytes.
    pub bytes: u64,
    /// Time.
    pub time: Duration,
}

impl Waited {
    /// True if it can be believed: enough bytes, or, of a link of which nothing is known, fewer that took long.
    #[must_use]
    pub fn is_enough(&self, nothing_known: bool) -> bool {
        let took_long = self.time >= BELIEVED_TIME && self.bytes >= ARRIVAL_BYTES;
        !self.time.is_zero() && (self.bytes >= BELIEVED_BYTES || nothing_known && took_long)
    }

    /// Bytes per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = self.bytes as f64;
        bytes / self.time.as_secs_f64()
    }
}

impl Default for Links {
    fn default() -> Self {
        let most = NonZeroUsize::new(MAX_LINKS).unwrap_or(NonZeroUsize::MIN);
        Self {
            known: Mutex::new(LruCache::new(most)),
            going: AtomicUsize::new(0),
            rate: None,
            left: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

impl Links {
    /// Links that together carry so many bytes per second at most, like those of the machine that a node plays.
    #[must_use]
    pub fn with_rate(rate: Option<u64>) -> Self {
        Self {
            rate,
            ..Self::default()
        }
    }

    /// Waits until so many bytes would have left by a link of the rate that is set.
    pub async fn carry(&self, bytes: u64) {
        let Some(rate) = self.rate.filter(|_| bytes > 0) else {
            return;
        };
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let long = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let then = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            // What a timer was late may be made up for.
            let free = now.checked_sub(TIMER_LATE).unwrap_or(now);
            let then = left.map_or(now, |left| left.max(free)) + long;
            *left = Some(then);
            then
        };
        tokio::time::sleep_until(then.into()).await;
    }

    fn known(&self) -> MutexGuard<'_, LruCache<String, Memory>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What handoffs have learnt of the link to a target. What could not be believed is the next one's from here on,
    /// so that it counts once.
    pub fn recall(&self, target: &str) -> Memory {
        let mut known = self.known();
        let Some(memory) = known.get_mut(target) else {
            return Memory::default();
        };
        let recalled = *memory;
        memory.little = Waited::default();
        recalled
    }

    /// A handoff begins, and goes on until what this gives is dropped.
    pub fn begin(self: &Arc<Self>) -> Going {
        self.going.fetch_add(1, Ordering::Relaxed);
        Going(Arc::clone(self))
    }

    /// Handoffs that go on.
    pub fn going(&self) -> usize {
        self.going.load(Ordering::Relaxed)
    }

    /// Takes what a handoff has learnt of the rate of the link to its target.
    pub fn learn(&self, target: &str, measured: &Measured) {
        let mut known = self.known();
        let memory = known.get_or_insert_mut(target.to_owned(), Memory::default);
        memory.learn(measured);
    }
}

/// A handoff that goes on.
#[derive(Debug)]
pub struct Going(Arc<Links>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.going.fetch_sub(1, Ordering::Relaxed);
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
