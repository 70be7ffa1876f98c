//! What is known of links from one handoff to the next, and which codec the next one takes by it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::{PathRates, Quality, choose};
use tandem_proto::PrefillEvent;

use crate::limits::{EXPOSED_SHARE, EXPOSED_TIME, MAX_LINKS, RAW_AGAIN, TIMER_LATE};

/// How the codec is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecPolicy {
    /// Always this one.
    Fixed(Codec),
    /// By what earlier handoffs have measured, within a quality.
    Auto(Quality),
}

/// The codecs of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codecs {
    /// Of rows that leave while the next ones are computed.
    pub computed: Codec,
    /// Of rows that are there when the handoff begins.
    pub held: Codec,
}

/// How a handoff went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Time spent computing, in milliseconds.
    pub prefill_ms: f64,
    /// Tokens of the prompt that were computed for it.
    pub computed_tokens: u32,
    /// Time during which KV was written but not acknowledged, in milliseconds.
    pub transfer_ms: f64,
    /// Time from the last prompt token computed, or the receiver's answer if that came later, to everything confirmed.
    pub exposed_transfer_ms: f64,
    /// Tokens that the receiver had.
    pub have_tokens: u32,
    /// Bytes of KV rows sent.
    pub raw_bytes: u64,
    /// Bytes written for them, with headers.
    pub wire_bytes: u64,
    /// The lossiest codec that was used.
    pub codec: Option<Codec>,
    /// True if another one was used, too.
    pub is_mixed: bool,
    /// Bytes of KV rows that were computed for it.
    pub computed_bytes: u64,
    /// Time that the receiver needed to apply what had come when it read the commit, in milliseconds.
    pub apply_ms: f64,
    /// Connections that broke and were opened again.
    pub reconnects: u32,
    /// True if the receiver was sent what was computed for the last token.
    pub has_told: bool,
}

impl From<Report> for PrefillEvent {
    fn from(report: Report) -> Self {
        Self::Done {
            prefill_ms: report.prefill_ms,
            computed_tokens: report.computed_tokens,
            transfer_ms: report.transfer_ms,
            exposed_transfer_ms: report.exposed_transfer_ms,
            handoff_bytes: report.raw_bytes,
            wire_bytes: report.wire_bytes,
            have_tokens: report.have_tokens,
            reconnects: report.reconnects,
        }
    }
}

/// What earlier handoffs have measured of a model's rows and of their way to a target.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    path: PathRates,
    /// Bytes of rows that the prefill makes in a second.
    production: Option<f64>,
    /// Handoffs since the last one in raw.
    coded: u32,
}

impl Known {
    fn codecs(&self, choice: CodecPolicy, overlap: bool) -> Codecs {
        let choose = |production| match choice {
            CodecPolicy::Fixed(codec) => codec,
            CodecPolicy::Auto(quality) => choose(production, &self.path, quality),
        };
        let held = choose(f64::INFINITY);
        let computed = match self.production {
            // Nothing hides what is sent when all of it is computed.
            _ if !overlap => held,
            Some(production) => choose(production),
            None => choose(0.0),
        };
        Codecs { computed, held }
    }

    fn learn(&mut self, report: &Report) {
        if let Some(rate) = rate(report.computed_bytes, report.prefill_ms) {
            self.production = Some(self.production.map_or(rate, |known| known.midpoint(rate)));
        }
        let Some(codec) = report.codec else { return };
        let is_raw = codec == Codec::Raw;
        self.coded = if is_raw { 0 } else { self.coded + 1 };
        // A receiver that was busy is no slow link.
        let waited = report.exposed_transfer_ms - report.apply_ms;
        let is_exposed = waited >= EXPOSED_TIME.as_secs_f64() * 1e3
            && waited >= EXPOSED_SHARE * report.transfer_ms;
        let rate = rate(report.raw_bytes, report.transfer_ms).unwrap_or_default();
        let is_free = is_raw && !is_exposed && Some(rate) >= self.path.of(Codec::Raw);
        if is_free || self.coded >= RAW_AGAIN {
            (self.path, self.coded) = (PathRates::default(), 0);
        } else if is_exposed && !report.is_mixed && report.reconnects == 0 {
            self.path.measured(codec, rate);
        }
    }
}

/// Bytes per second, if it is a number above 0.
fn rate(bytes: u64, ms: f64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = bytes as f64 / (ms / 1e3);
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

/// What earlier handoffs have learnt of the links to targets.
pub struct LinkEstimates {
    known: Mutex<LruCache<String, Known>>,
    /// Handoffs that go on now.
    going: AtomicUsize,
    /// Bytes per second that leave this machine at most.
    rate: Option<u64>,
    /// When what was to leave by that has left.
    left: Mutex<Option<Instant>>,
}

impl Default for LinkEstimates {
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

impl std::fmt::Debug for LinkEstimates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkEstimates").finish_non_exhaustive()
    }
}

impl LinkEstimates {
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

    /// The codecs of the next handoff to a target: raw as long as nothing is known of the way. `overlap` is false if nothing
    /// is sent before all of it is computed.
    pub fn codecs(&self, target: &str, choice: CodecPolicy, overlap: bool) -> Codecs {
        let known = self.known().get(target).copied();
        known.unwrap_or_default().codecs(choice, overlap)
    }

    /// Takes what a handoff that has succeeded tells of the way to its target. It tells the rate of the way if it was
    /// waited for: at least [`EXPOSED_TIME`], and [`EXPOSED_SHARE`] of the transfer, after all was computed. What is
    /// known is forgotten, so that the next handoff goes raw, when
    ///
    /// - nobody had to wait for one in raw that was at least as fast as the figure kept for raw: the link is fast enough;
    /// - [`RAW_AGAIN`] in a row were coded: the link may have become faster.
    pub fn learn(&self, target: &str, report: &Report) {
        let mut known = self.known();
        let known = known.get_or_insert_mut(target.to_owned(), Known::default);
        known.learn(report);
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
}

/// A handoff that goes on.
#[derive(Debug)]
pub struct Going(Arc<LinkEstimates>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.going.fetch_sub(1, Ordering::Relaxed);
    }
}
