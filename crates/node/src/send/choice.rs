//! Which codec the next block travels in.

use std::time::{Duration, Instant};

use tandem_kv::adaptive::{Adaptive, CodecRates, Conditions, Quality};
use tandem_kv::codec::Codec;

use super::stream::Done;
use crate::job::Computed;
use crate::limits::FIRST_REVIEW_BYTES;

/// How the codec is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Always this one.
    Fixed(Codec),
    /// By [`Adaptive`], within a quality.
    Auto(Quality),
}

/// What a handoff has measured of itself.
#[derive(Debug)]
pub struct Measured {
    choice: Choice,
    adaptive: Adaptive,
    rates: CodecRates,
    /// Bytes of rows and time of the last chunks.
    produced: Rate,
    /// Payload bytes, and time during which some were on their way.
    carried: Rate,
    /// Payload bytes acknowledged.
    acknowledged: u64,
    /// Payload bytes written and not yet counted as carried.
    on_their_way: u64,
    busy_since: Option<Instant>,
    computed: Option<f64>,
}

/// A sum of bytes over a sum of seconds; older ones count less and less.
#[derive(Debug, Default)]
struct Rate {
    bytes: f64,
    seconds: f64,
}

impl Rate {
    /// What came before counts half of what it did.
    fn add(&mut self, bytes: u64, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = bytes as f64;
        self.bytes = self.bytes / 2.0 + bytes;
        self.seconds = self.seconds / 2.0 + time.as_secs_f64();
    }

    fn per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes / self.seconds
        } else {
            0.0
        }
    }
}

impl Measured {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(choice: &Choice) -> Self {
        let quality = match choice {
            Choice::Fixed(_) => Quality::Lossless,
            Choice::Auto(quality) => *quality,
        };
        Self {
            choice: *choice,
            adaptive: Adaptive::new(quality),
            rates: CodecRates::default(),
            produced: Rate::default(),
            carried: Rate::default(),
            acknowledged: 0,
            on_their_way: 0,
            busy_since: None,
            computed: None,
        }
    }

    /// The codec of the next block.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        match self.choice {
            Choice::Fixed(codec) => codec,
            Choice::Auto(_) => self.adaptive.codec(),
        }
    }

    /// The engine has given a chunk.
    pub fn produced(&mut self, chunk: &Computed) {
        let bytes: u64 = chunk.blocks.iter().map(|b| b.bytes()).sum();
        let before = self.computed.replace(chunk.prefill_ms).unwrap_or(0.0);
        let spent = Duration::try_from_secs_f64((chunk.prefill_ms - before) / 1e3);
        // KV that was held already costs no time and is not a production.
        if let Ok(spent) = spent
            && !spent.is_zero()
        {
            self.produced.add(bytes, spent);
        }
    }

    /// A block has been written.
    pub(super) fn block(&mut self, done: &Done) {
        self.on_their_way += done.wire_bytes;
        if done.codec == Codec::Raw || done.encoding.is_zero() || done.wire_bytes == 0 {
            return;
        }
        let rate = match done.codec {
            Codec::Raw => return,
            Codec::Plane => &mut self.rates.plane,
            Codec::Q8 => &mut self.rates.q8,
            Codec::K8v4 => &mut self.rates.k8v4,
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let (raw, wire) = (done.raw_bytes as f64, done.wire_bytes as f64);
        rate.ratio = raw / wire;
        rate.encode = raw / done.encoding.as_secs_f64();
    }

    /// A block has been given to a connection.
    pub fn opened(&mut self) {
        self.busy_since.get_or_insert_with(Instant::now);
    }

    /// Blocks have been acknowledged; `idle` if none is on its way any more.
    ///
    /// Goodput is what was acknowledged over the time in which something was on its way, so it
    /// counts the whole path: encoder, link, decoder and engine.
    pub fn acknowledged(&mut self, idle: bool) {
        let Some(since) = self.busy_since else { return };
        let now = Instant::now();
        self.busy_since = (!idle).then_some(now);
        let bytes = std::mem::take(&mut self.on_their_way);
        self.carried.add(bytes, now - since);
        self.adaptive.acknowledged(bytes);
        self.acknowledged += bytes;
        let is_fixed = matches!(self.choice, Choice::Fixed(_));
        if is_fixed || self.acknowledged < FIRST_REVIEW_BYTES || !self.adaptive.is_due() {
            return;
        }
        let production = self.produced.per_second();
        let conditions = Conditions {
            production: if production > 0.0 {
                production
            } else {
                f64::INFINITY
            },
            goodput: self.carried.per_second(),
            encoders: 1,
            decoders: 1,
            rates: self.rates,
        };
        let before = self.adaptive.codec();
        let codec = self.adaptive.review(&conditions);
        if codec != before {
            tracing::info!(
                %before, %codec, goodput = conditions.goodput, production,
                "KV travels in another codec from here on"
            );
        }
    }
}
