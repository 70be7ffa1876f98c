//! What is known of links from one handoff to the next.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tandem_kv::codec::Codec;

use super::choice::Measured;
use crate::limits::{BELIEVED_BYTES, MAX_LINKS, STREAMS, STREAMS_GAIN, STREAMS_PAUSE};

/// What earlier handoffs have learnt of the links to targets.
pub struct Links {
    known: Mutex<LruCache<String, Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Payload bytes per second, where handoffs had to wait for the link.
    rate: Option<f64>,
    streams: Streams,
}

impl Default for Links {
    fn default() -> Self {
        let most = NonZeroUsize::new(MAX_LINKS).unwrap_or(NonZeroUsize::MIN);
        Self {
            known: Mutex::new(LruCache::new(most)),
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

impl Links {
    fn known(&self) -> MutexGuard<'_, LruCache<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate of the link to a target, if it is known.
    pub fn rate(&self, target: &str) -> Option<f64> {
        self.known().get(target).and_then(|known| known.rate)
    }

    /// Connections that the next handoff to a target opens.
    pub fn streams(&self, target: &str) -> u32 {
        let mut known = self.known();
        known.get_mut(target).map_or(1, |k| k.streams.next())
    }

    /// Takes what a handoff has learnt of the rate of the link to its target.
    pub fn learn(&self, target: &str, measured: &Measured) {
        let rate = match measured.learnt() {
            Learnt::Nothing => return,
            Learnt::Fast => None,
            Learnt::Rate(rate) => Some(rate),
        };
        self.at(target, |known| known.rate = rate);
    }

    /// Takes how a handoff went over the connections of [`Links::streams`].
    pub fn carried(&self, target: &str, carried: &Carried) {
        self.at(target, |known| {
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

    /// One of several connections broke: the next handoffs do without.
    pub fn broke(&self, target: &str) {
        self.at(target, |known| {
            known.streams = Streams {
                pause: STREAMS_PAUSE,
                ..Streams::default()
            };
        });
    }

    fn at(&self, target: &str, change: impl FnOnce(&mut Known)) {
        change(
            self.known()
                .get_or_insert_mut(target.to_owned(), Known::default),
        );
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

/// How many connections fill a link, found by trying one more.
#[derive(Debug)]
struct Streams {
    best: u32,
    /// Bytes per second with that many, and in which codec, if one more may carry more.
    rate: Option<(f64, Option<Codec>)>,
    /// Handoffs until one more is tried again.
    pause: u32,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            best: 1,
            rate: None,
            pause: 0,
        }
    }
}

impl Streams {
    fn next(&mut self) -> u32 {
        if self.pause > 0 {
            self.pause -= 1;
            self.best
        } else {
            (self.best + u32::from(self.rate.is_some())).min(STREAMS)
        }
    }

    fn carried(&mut self, carried: &Carried) {
        if carried.bytes < BELIEVED_BYTES || carried.time.is_zero() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = carried.bytes as f64 / carried.time.as_secs_f64();
        if carried.streams > self.best {
            match self.rate {
                Some((before, codec)) if codec == carried.codec => {
                    if rate < before * STREAMS_GAIN {
                        self.pause = STREAMS_PAUSE;
                        return;
                    }
                    self.best = carried.streams;
                }
                // Nothing to compare with.
                _ => return,
            }
        } else if carried.streams < self.best {
            return;
        }
        self.rate = carried.queued.then_some((rate, carried.codec));
    }
}
