//! How much KV is moved between two steps of running generations: what takes no longer than a limit, by how long
//! earlier slices took.

use std::time::Duration;

use crate::limits::{MAX_SLICE_BYTES, MIN_SLICE_BYTES};

/// The size of the next slice in one direction.
#[derive(Debug)]
pub struct SliceSize {
    limit: Duration,
    most: u64,
    /// False: nobody waits for the next token, and there is no limit of time.
    pub is_waited_for: bool,
}

impl SliceSize {
    /// Of slices that are to take so long at most. How long they take on this machine is not known yet: the first one
    /// is small.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self {
            limit,
            most: MIN_SLICE_BYTES,
            is_waited_for: true,
        }
    }

    /// Bytes that the next slice has at most.
    #[must_use]
    pub const fn most(&self) -> u64 {
        if self.is_waited_for {
            self.most
        } else {
            MAX_SLICE_BYTES
        }
    }

    /// A slice of so many bytes has taken so long. One that took too long makes the next one shorter, by half at most,
    /// because the system may have held up this one alone; one that took less than half of the limit makes it longer
    /// by a quarter, if it was as large as it could be. What is smaller than any limit says nothing.
    pub fn took(&mut self, bytes: u64, time: Duration) {
        if !self.is_waited_for || bytes < MIN_SLICE_BYTES / 2 {
            return;
        }
        if time > self.limit {
            let fits = u128::from(bytes) * self.limit.as_nanos() / time.as_nanos();
            let fits = u64::try_from(fits).unwrap_or(MAX_SLICE_BYTES);
            let least = (self.most / 2).max(MIN_SLICE_BYTES);
            self.most = fits.clamp(least, self.most);
        } else if time < self.limit / 2 && bytes >= self.most / 2 {
            self.most = (self.most + self.most / 4).min(MAX_SLICE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(10);

    /// A machine that moves so many bytes in a millisecond.
    fn time(bytes: u64, rate: u64) -> Duration {
        Duration::from_nanos(bytes * 1_000_000 / rate)
    }

    proptest! {
        #[test]
        fn no_slice_of_a_steady_machine_takes_longer_than_the_limit(
            rate in (MIN_SLICE_BYTES / 10)..(1u64 << 30),
        ) {
            let mut size = SliceSize::new(LIMIT);
            for _ in 0..30 {
                let took = time(size.most(), rate);
                // The least that a machine is asked for takes a microsecond more on the slowest one here.
                prop_assert!(took <= LIMIT + Duration::from_micros(1), "{size:?} {took:?}");
                size.took(size.most(), took);
            }
        }

        #[test]
        fn slices_soon_take_no_longer_than_the_limit_and_no_less_than_a_third(
            rate in (MIN_SLICE_BYTES / 10)..(1u64 << 30),
            held_up in prop::collection::vec((0u64..2_000, 0u64..=MAX_SLICE_BYTES), 0..20),
        ) {
            let mut size = SliceSize::new(LIMIT);
            // Whatever it was before.
            for (ms, bytes) in held_up {
                size.took(bytes.min(size.most()), Duration::from_millis(ms));
                prop_assert!((MIN_SLICE_BYTES..=MAX_SLICE_BYTES).contains(&size.most()));
            }
            for _ in 0..20 {
                size.took(size.most(), time(size.most(), rate));
            }
            let took = time(size.most(), rate);
            // A slice that takes exactly as long is one too many nanoseconds long at most.
            prop_assert!(took <= LIMIT + Duration::from_micros(1), "{took:?}");
            prop_assert!(took >= LIMIT / 3 || size.most() == MAX_SLICE_BYTES, "{took:?}");
        }
    }

    #[test]
    fn the_first_ones_are_small_and_those_of_a_fast_machine_soon_large() {
        let mut size = SliceSize::new(LIMIT);
        assert_eq!(size.most(), MIN_SLICE_BYTES);
        for _ in 0..7 {
            size.took(size.most(), LIMIT / 2 - Duration::from_nanos(1));
        }
        assert_eq!(size.most(), MAX_SLICE_BYTES);
    }

    #[test]
    fn one_that_was_held_up_costs_half_and_small_ones_say_nothing() {
        let mut size = SliceSize::new(LIMIT);
        size.most = MAX_SLICE_BYTES;
        size.took(MAX_SLICE_BYTES, Duration::from_secs(60));
        assert_eq!(size.most(), MAX_SLICE_BYTES / 2);
        size.took(1, Duration::from_nanos(1));
        size.took(1, Duration::from_secs(60));
        assert_eq!(size.most(), MAX_SLICE_BYTES / 2);
        size.is_waited_for = false;
        assert_eq!(size.most(), MAX_SLICE_BYTES);
        size.took(MAX_SLICE_BYTES, Duration::from_secs(60));
        size.is_waited_for = true;
        size.took(MAX_SLICE_BYTES / 2, LIMIT / 4);
        assert_eq!(size.most(), MAX_SLICE_BYTES / 2 / 4 * 5);
    }
}
