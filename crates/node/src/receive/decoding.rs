//! How fast this node decodes, for the choice of whoever sends to it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tandem_kv::adaptive::DecodeRates;
use tandem_kv::codec::Codec;

use crate::limits::{BELIEVED_BYTES, DECODE_RATE_AGE};
use crate::rate::Rate;

/// What decoding has cost in all handoffs, by codec.
#[derive(Debug, Default)]
pub struct Decoding {
    known: Mutex<[Known; 2]>,
}

#[derive(Debug, Default)]
struct Known {
    rate: Rate,
    bytes: u64,
    last: Option<Instant>,
}

impl Decoding {
    /// A segment of so many bytes of rows has been decoded just now.
    pub fn took(&self, codec: Codec, raw_bytes: u64, time: Duration, now: Instant) {
        let index = match codec {
            Codec::Raw => return,
            Codec::Plane => 0,
            Codec::Q8 => 1,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut known[index];
        known.rate.add(raw_bytes, time);
        known.bytes = known.bytes.saturating_add(raw_bytes);
        known.last = Some(now);
    }

    /// What one connection decodes in a second. What was measured in too few bytes, or too long ago, is
    /// not known: a busy hour must not keep a codec from being tried again.
    #[must_use]
    pub fn rates(&self, now: Instant) -> DecodeRates {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |known: &Known| {
            let age = known.last.map(|last| now.saturating_duration_since(last));
            known.bytes >= BELIEVED_BYTES && age.is_some_and(|age| age <= DECODE_RATE_AGE)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive rate"
        )]
        let rate = |known: &Known| is_good(known).then(|| known.rate.per_second() as u64);
        let [plane, q8] = known.each_ref().map(rate);
        DecodeRates { plane, q8 }
    }
}
