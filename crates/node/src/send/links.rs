//! What is known of links from one handoff to the next.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;
use tandem_kv::codec::Codec;

use super::choice::Measured;
use crate::limits::{
    ARRIVAL_BYTES, BELIEVED_BYTES, BELIEVED_TIME, FREE_BYTES, MAX_LINKS, STREAMS,
    STREAMS_BELIEVED_BYTES, STREAMS_GAIN, STREAMS_PAUSE, TIMER_LATE,
};

/// What earlier handoffs have learnt of the links to targets.
pub struct Links {
    known: Mutex<LruCache<String, Known>>,
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

#[derive(Debug, Default)]
struct Known {
    memory: Memory,
    streams: Streams,
    /// Handoffs that go on now.
    going: usize,
    /// How often one began beside another.
    crowds: u64,
}

impl Default for Links {
    fn default() -> Self {
        let most = NonZeroUsize::new(MAX_LINKS).unwrap_or(NonZeroUsize::MIN);
        Self {
            known: Mutex::new(LruCache::new(most)),
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

    fn known(&self) -> MutexGuard<'_, LruCache<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What handoffs have learnt of the link to a target. What could not be believed is the next one's from here on,
    /// so that it counts once.
    pub fn recall(&self, target: &str) -> Memory {
        let mut known = self.known();
        let Some(Known { memory, .. }) = known.get_mut(target) else {
            return Memory::default();
        };
        let recalled = *memory;
        memory.little = Waited::default();
        recalled
    }

    /// A handoff to a target begins.
    pub fn trip(self: &Arc<Self>, target: &str) -> Trip {
        let (streams, crowds) = self.at(target, |known| {
            known.going += 1;
            known.crowds += u64::from(known.going > 1);
            (
                known.streams.next(),
                (known.going == 1).then_some(known.crowds),
            )
        });
        Trip {
            links: Arc::clone(self),
            target: target.to_owned(),
            streams,
            crowds,
        }
    }

    /// Handoffs that go on.
    pub fn going(&self) -> usize {
        self.known().iter().map(|(_, known)| known.going).sum()
    }

    /// Takes what a handoff has learnt of the rate of the link to its target.
    pub fn learn(&self, target: &str, measured: &Measured) {
        self.at(target, |known| known.memory.learn(measured));
    }

    fn at<T>(&self, target: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        change(
            self.known()
                .get_or_insert_mut(target.to_owned(), Known::default),
        )
    }
}

/// A handoff that goes on.
#[derive(Debug)]
pub struct Trip {
    links: Arc<Links>,
    target: String,
    streams: u32,
    /// [`Known::crowds`] when it began, if it began alone.
    crowds: Option<u64>,
}

impl Trip {
    /// Connections that it is to open.
    #[must_use]
    pub const fn streams(&self) -> u32 {
        self.streams
    }

    /// How it went. Beside another one, which takes its share of the link, it tells nothing.
    pub fn carried(&self, carried: &Carried) {
        let target = &self.target;
        self.links.at(target, |known| {
            if self.crowds != Some(known.crowds) {
                return;
            }
            let before = known.streams.best;
            known.streams.carried(carried);
            let after = known.streams.best;
            if before != after {
                tracing::info!(
                    target,
                    before,
                    after,
                    "connections of handoffs to this node"
                );
            }
        });
    }

    /// One of its further connections broke: the next handoffs do without.
    pub fn broke(&self) {
        self.links.at(&self.target, |known| {
            known.streams = Streams {
                pause: STREAMS_PAUSE,
                ..Streams::default()
            };
        });
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        self.links.at(&self.target, |known| {
            known.going = known.going.saturating_sub(1);
        });
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

/// What a handoff carried over how many connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Carried {
    /// Connections.
    pub streams: u32,
    /// The lossiest codec.
    pub codec: Option<Codec>,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Time in which some were on their way.
    pub time: Duration,
    /// True if most blocks waited for one before them on the same connection.
    pub queued: bool,
}

/// How many connections fill a link, found by trying one more or one fewer.
#[derive(Debug)]
struct Streams {
    best: u32,
    /// Bytes per second with that many, and in which codec.
    rate: Option<(f64, Option<Codec>)>,
    /// True if blocks waited for connections, so that one more may carry more.
    queued: bool,
    /// Handoffs until another number is tried.
    pause: u32,
    /// True if that is one fewer.
    fewer: bool,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            best: 1,
            rate: None,
            queued: false,
            pause: 0,
            fewer: false,
        }
    }
}

impl Streams {
    fn next(&mut self) -> u32 {
        if self.pause > 0 {
            self.pause -= 1;
            return self.best;
        }
        let may_add = self.queued && self.best < STREAMS;
        match self.rate {
            None => self.best,
            Some(_) if self.best > 1 && (self.fewer || !may_add) => self.best - 1,
            Some(_) => self.best + u32::from(may_add),
        }
    }

    fn carried(&mut self, carried: &Carried) {
        if carried.bytes < STREAMS_BELIEVED_BYTES || carried.time.is_zero() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = carried.bytes as f64 / carried.time.as_secs_f64();
        if carried.streams != self.best {
            let Some((before, codec)) = self.rate.filter(|_| self.pause == 0) else {
                return;
            };
            if codec != carried.codec {
                // To be compared with the best number in the same codec.
                self.rate = None;
                return;
            }
            let (more, fewer) = if carried.streams > self.best {
                (rate, before)
            } else {
                (before, rate)
            };
            let is_gain = more >= fewer * STREAMS_GAIN;
            if is_gain != (carried.streams > self.best) {
                self.fewer = !self.fewer;
                self.pause = STREAMS_PAUSE;
                return;
            }
            self.best = carried.streams;
            if !carried.queued || self.best == STREAMS {
                self.fewer = true;
                self.pause = STREAMS_PAUSE;
            }
        }
        self.rate = Some((rate, carried.codec));
        self.queued = carried.queued;
    }
}
