//! Points as whole thousandths, so that sums are exact.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Number, Value};
use std::fmt;
use std::iter::Sum;

const SCALE: u32 = 1000;
const MAX: f64 = 1_000_000.0;

/// A number of points, not negative, with at most three decimals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Points(u32);

impl Points {
    /// No points.
    pub const ZERO: Self = Self(0);

    /// From a decimal number; `None` if negative, not finite, above 1,000,000 or finer than 0.001.
    pub fn from_f64(value: f64) -> Option<Self> {
        if !(0.0..=MAX).contains(&value) {
            return None;
        }
        let scaled = value * f64::from(SCALE);
        let rounded = scaled.round();
        if (scaled - rounded).abs() > 1e-6 {
            return None;
        }
        // At most 1e9, so the text of the whole number always parses; no cast that could cut.
        format!("{rounded:.0}").parse().ok().map(Self)
    }

    /// As a decimal number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(SCALE)
    }

    /// As whole thousandths, as stores keep it.
    #[must_use]
    pub fn thousandths(self) -> u32 {
        self.0
    }

    /// From whole thousandths.
    #[must_use]
    pub fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths)
    }

    /// All multiples of `self` up to `max`, zero included; `None` if `max` is not one of them.
    pub(crate) fn multiples_up_to(self, max: Self) -> Option<Vec<Self>> {
        if self.0 == 0 || !max.0.is_multiple_of(self.0) {
            return None;
        }
        Some((0..=max.0 / self.0).map(|i| Self(i * self.0)).collect())
    }

    /// The same share of another maximum; `None` if it is finer than 0.001, or the first maximum is 0.
    pub(crate) fn share_of(self, max: Self, other: Self) -> Option<Self> {
        let product = u64::from(self.0) * u64::from(other.0);
        let max = u64::from(max.0);
        let is_whole = max > 0 && product.is_multiple_of(max);
        is_whole.then(|| u32::try_from(product / max).ok().map(Self))?
    }

    /// What is left when others are taken off; never below 0.
    pub(crate) fn less(self, off: Self) -> Self {
        Self(self.0.saturating_sub(off.0))
    }

    /// As a JSON number: `4`, not `4.0`, when whole.
    pub(crate) fn to_json(self) -> Value {
        if self.0.is_multiple_of(SCALE) {
            return Value::from(self.0 / SCALE);
        }
        Number::from_f64(self.as_f64()).map_or(Value::Null, Value::Number)
    }
}

impl Sum for Points {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.fold(0u32, |sum, p| sum.saturating_add(p.0)))
    }
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

impl Serialize for Points {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Points {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::from_f64(value).ok_or_else(|| de::Error::custom("these are no points"))
    }
}
