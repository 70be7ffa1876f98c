//! How fast this node decodes, for the choice of whoever sends to it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tandem_kv::adaptive::DecodeRates;
use tandem_kv::codec::Codec;

use crate::rate::Rate;

/// What decoding has cost in all handoffs, by codec.
#[derive(Debug, Default)]
pub struct Decoding {
    rates: Mutex<[Rate; 3]>,
}

impl Decoding {
    /// A segment of so many bytes of rows has been decoded.
    pub fn took(&self, codec: Codec, raw_bytes: u64, time: Duration) {
        let index = match codec {
            Codec::Raw => return,
            Codec::Plane => 0,
            Codec::Q8 => 1,
            Codec::K8v4 => 2,
        };
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates[index].add(raw_bytes, time);
    }

    /// What one connection decodes in a second.
    #[must_use]
    pub fn rates(&self) -> DecodeRates {
        let rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive rate"
        )]
        let known = |rate: &Rate| Some(rate.per_second() as u64).filter(|r| *r > 0);
        let [plane, q8, k8v4] = rates.each_ref().map(known);
        DecodeRates { plane, q8, k8v4 }
    }
}
