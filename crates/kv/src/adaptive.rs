//! Which codec a handoff takes: the least lossy one that keeps up with the prefill, or the fastest
//! where none does, and never one that is lossier than allowed. Pure: rates come from the caller,
//! who measures them.
//!
//! All rates are bytes of raw rows per second, but for the goodput of the link, which is payload
//! bytes per second.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::codec::Codec;

/// A codec hides behind the prefill if it is this much faster: transfers are not even.
pub const MARGIN: f64 = 1.25;
/// Where nothing hides the transfer, coding must be this much faster than raw to be worth its CPU time.
pub const WORTHWHILE: f64 = 1.15;
/// Payload bytes between two evaluations of an [`Adaptive`].
pub const REVIEW_BYTES: u64 = 64 << 20;
/// A goodput may be wrong by this factor before an [`Adaptive`] changes its mind.
pub const HYSTERESIS: f64 = 1.2;

/// The lossiest codec that may be chosen: a promise about quality, set by the operator.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// Every bit arrives.
    #[default]
    Lossless,
    /// 8-bit blocks.
    Q8,
}

impl Quality {
    /// Every ceiling, from strict to lax.
    pub const ALL: [Self; 2] = [Self::Lossless, Self::Q8];

    /// The name in configuration; [`FromStr`] reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lossless => "lossless",
            Self::Q8 => "q8",
        }
    }

    /// True if rows may travel in this codec.
    #[must_use]
    pub const fn allows(self, codec: Codec) -> bool {
        match codec {
            Codec::Raw | Codec::Plane => true,
            Codec::Q8 => matches!(self, Self::Q8),
        }
    }
}

impl std::fmt::Display for Quality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no quality has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown quality, known are lossless, q8")]
pub struct UnknownQuality;

impl FromStr for Quality {
    type Err = UnknownQuality;

    fn from_str(name: &str) -> Result<Self, UnknownQuality> {
        let found = Self::ALL.into_iter().find(|q| q.name() == name);
        found.ok_or(UnknownQuality)
    }
}

/// What one codec does on these two machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecRate {
    /// Raw bytes per payload byte.
    pub ratio: f64,
    /// Raw bytes per second that the sender encodes.
    pub encode: f64,
    /// Raw bytes per second that the receiver decodes.
    pub decode: f64,
}

/// Measured rates of every codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecRates {
    /// [`Codec::Raw`]: ratio 1, and copies instead of coding.
    pub raw: CodecRate,
    /// [`Codec::Plane`].
    pub plane: CodecRate,
    /// [`Codec::Q8`].
    pub q8: CodecRate,
}

/// Bytes of rows that a receiver decodes in a second, as it has measured them; `None`
/// where it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeRates {
    /// [`Codec::Plane`].
    pub plane: Option<u64>,
    /// [`Codec::Q8`].
    pub q8: Option<u64>,
}

impl CodecRates {
    /// Takes over what a receiver has measured.
    pub fn decoded_at(&mut self, receiver: &DecodeRates) {
        let DecodeRates { plane, q8 } = *receiver;
        for (rate, measured) in [(&mut self.plane, plane), (&mut self.q8, q8)] {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            if let Some(measured) = measured {
                rate.decode = measured as f64;
            }
        }
    }

    /// Rates of one codec.
    #[must_use]
    pub const fn of(&self, codec: Codec) -> &CodecRate {
        match codec {
            Codec::Raw => &self.raw,
            Codec::Plane => &self.plane,
            Codec::Q8 => &self.q8,
        }
    }
}

/// What to assume until something has been measured: the ratios of the formats, of `plane` as trained
/// rows in f16 have it, and about half the speed of one core of a Zen 4 server (`docs/codecs.md`).
impl Default for CodecRates {
    fn default() -> Self {
        let rate = |ratio, encode, decode| CodecRate {
            ratio,
            encode,
            decode,
        };
        Self {
            raw: rate(1.0, 10e9, 10e9),
            plane: rate(1.15, 1e9, 2e9),
            q8: rate(64.0 / 34.0, 5e9, 8e9),
        }
    }
}

/// What a choice is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// Raw bytes per second that the prefill makes; infinite for rows that are held already.
    pub production: f64,
    /// Payload bytes per second that the link carries, measured where it was the bottleneck.
    pub goodput: f64,
    /// What the codecs do.
    pub rates: CodecRates,
}

impl Conditions {
    /// Raw bytes per second from end to end: the slowest of encoding, link and decoding, which go at
    /// the same time. Anything that is no number counts as 0.
    #[must_use]
    pub fn rate(&self, codec: Codec) -> f64 {
        let rate = self.rates.of(codec);
        let stages = [rate.encode, self.goodput * rate.ratio, rate.decode];
        if stages.iter().any(|s| s.is_nan()) {
            return 0.0;
        }
        stages.into_iter().fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// Whether these are measurements at all: before the first ones there is nothing to choose by.
    fn is_usable(&self) -> bool {
        self.goodput > 0.0 && self.production > 0.0
    }
}

/// The codec for these conditions.
///
/// With production `P`, goodput `B` and `rate(c) = min(E, B * ratio, D)`:
///
/// 1. `B >= 1.25 P`: raw;
/// 2. else the least lossy codec under the ceiling with `rate(c) >= 1.25 P`;
/// 3. else the one with the largest rate, and of equal ones the less lossy; for held rows
///    (`P` infinite) it must reach 1.15 times the rate of raw, or it is raw.
///
/// Without a usable `P` and `B` (not above 0, or no numbers): raw.
#[must_use]
pub fn choose(conditions: &Conditions, ceiling: Quality) -> Codec {
    let needed = MARGIN * conditions.production;
    if !conditions.is_usable() || conditions.goodput >= needed {
        return Codec::Raw;
    }
    let allowed = Codec::ALL.into_iter().filter(|c| ceiling.allows(*c));
    let mut fastest = (Codec::Raw, conditions.rate(Codec::Raw));
    for codec in allowed {
        let rate = conditions.rate(codec);
        if rate >= needed {
            return codec;
        }
        if rate > fastest.1 {
            fastest = (codec, rate);
        }
    }
    let raw = conditions.rate(Codec::Raw);
    if conditions.production.is_infinite() && fastest.1 < WORTHWHILE * raw {
        return Codec::Raw;
    }
    fastest.0
}

/// [`choose`], again and again during a handoff, without changing back and forth: the codec stays
/// until [`REVIEW_BYTES`] more have been acknowledged, and then changes only if the choice would be
/// another one with the goodput [`HYSTERESIS`] times lower and higher, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adaptive {
    ceiling: Quality,
    codec: Codec,
    /// Payload bytes acknowledged since the last evaluation; none yet if there was none.
    since: Option<u64>,
}

impl Adaptive {
    /// Starts with raw, which is right until something has been measured.
    #[must_use]
    pub const fn new(ceiling: Quality) -> Self {
        Self {
            ceiling,
            codec: Codec::Raw,
            since: None,
        }
    }

    /// The codec for the next segment.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        self.codec
    }

    /// Counts acknowledged payload bytes.
    pub const fn acknowledged(&mut self, bytes: u64) {
        if let Some(since) = self.since {
            self.since = Some(since.saturating_add(bytes));
        }
    }

    /// Makes the next evaluation the first one: what it was based on until now was a guess.
    pub const fn start_over(&mut self) {
        self.since = None;
    }

    /// Makes the next evaluation due now, with no more liberty to change than at any time.
    pub fn look_again(&mut self) {
        self.since = self.since.map(|since| since.max(REVIEW_BYTES));
    }

    /// True if [`Adaptive::review`] would evaluate now, so that the caller need not measure before.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        match self.since {
            None => true,
            Some(bytes) => bytes >= REVIEW_BYTES,
        }
    }

    /// Evaluates, if it is time, and says which codec the next segment takes.
    pub fn review(&mut self, conditions: &Conditions) -> Codec {
        if !self.is_due() || !conditions.is_usable() {
            return self.codec;
        }
        let choice = choose(conditions, self.ceiling);
        let is_first = self.since.is_none();
        self.since = Some(0);
        let would_stay = |factor: f64| {
            let goodput = conditions.goodput * factor;
            let shifted = Conditions {
                goodput,
                ..*conditions
            };
            choose(&shifted, self.ceiling) == self.codec
        };
        if is_first || !(would_stay(1.0 / HYSTERESIS) || would_stay(HYSTERESIS)) {
            self.codec = choice;
        }
        self.codec
    }
}
