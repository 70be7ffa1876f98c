//! Which codec a handoff takes: the least lossy one that keeps up with the prefill, or the fastest
//! where none does, and never one that is lossier than allowed. Pure: rates come from the caller,
//! who measures them.
//!
//! All rates are bytes of raw rows per second.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::codec::Codec;

/// A codec hides behind the prefill if it is this much faster: transfers are not even.
pub const MARGIN: f64 = 1.25;
/// Where nothing hides the transfer, coding must be this much faster than raw to be worth its CPU time and its loss.
pub const WORTHWHILE: f64 = 1.15;

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

/// What the whole way from one node's rows to the other's has carried in each codec: encoder, link and decoder, whichever
/// of them is the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PathRates([Option<f64>; Codec::ALL.len()]);

impl PathRates {
    /// A handoff went at this rate, and nothing but the way held it up. The latest counts half, the one before a quarter,
    /// and so on. What is no positive number is no measurement.
    pub fn measured(&mut self, codec: Codec, rate: f64) {
        if rate.is_finite() && rate > 0.0 {
            let average = &mut self.0[usize::from(codec.wire())];
            *average = Some(average.map_or(rate, |before| before.midpoint(rate)));
        }
    }

    /// The rate of a codec: as measured, or what it would be if the link were what limits, as far as it can be
    /// coded so fast. `None` if nothing is measured.
    #[must_use]
    pub fn of(&self, codec: Codec) -> Option<f64> {
        if let Some(rate) = self.0[usize::from(codec.wire())] {
            return Some(rate);
        }
        let link = Codec::ALL.into_iter().filter_map(|other| {
            let rate = self.0[usize::from(other.wire())]?;
            Some(rate / ratio(other))
        });
        let link = link.max_by(f64::total_cmp)?;
        Some((link * ratio(codec)).min(coding(codec)))
    }
}

/// Raw bytes for each byte that travels; of `plane` as trained rows in f16 have it (`docs/codecs.md`).
const fn ratio(codec: Codec) -> f64 {
    match codec {
        Codec::Raw => 1.0,
        Codec::Plane => 1.15,
        Codec::Q8 => 64.0 / 34.0,
    }
}

/// Bytes of rows that are encoded in a second, about half of what one core of a Zen 4 server does (`docs/codecs.md`).
const fn coding(codec: Codec) -> f64 {
    match codec {
        Codec::Raw => f64::INFINITY,
        Codec::Plane => 1e9,
        Codec::Q8 => 5e9,
    }
}

/// The codec for rows that are made at the rate `production` (infinite if they are there already), by the rates of the
/// way to their receiver:
///
/// 1. the least lossy codec under the ceiling that is at least 1.25 times as fast as the production;
/// 2. else the fastest, and of equal ones the less lossy, if it is at least 1.15 times as fast as raw;
/// 3. else raw, and so where nothing is known of the way, or the production is no positive number.
#[must_use]
pub fn choose(production: f64, path: &PathRates, ceiling: Quality) -> Codec {
    let Some(raw) = path.of(Codec::Raw).filter(|_| production > 0.0) else {
        return Codec::Raw;
    };
    let mut fastest = (Codec::Raw, raw);
    for codec in Codec::ALL.into_iter().filter(|c| ceiling.allows(*c)) {
        let rate = path.of(codec).unwrap_or(raw);
        if rate >= MARGIN * production {
            return codec;
        }
        if rate > fastest.1 {
            fastest = (codec, rate);
        }
    }
    if fastest.1 >= WORTHWHILE * raw {
        fastest.0
    } else {
        Codec::Raw
    }
}
