//! Seeded choices.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of choices; the same seed gives the same choices on every platform.
#[derive(Debug, Clone)]
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    /// A stream for `seed`; different `lane`s of one seed are independent.
    pub(crate) fn new(seed: u64, lane: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&lane.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number in `0..end`; 0 if `end` is 0. The bias is below `end / 2^32`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let draw = u64::from(self.0.next_u32());
        let end = end as u64;
        usize::try_from((draw * end) >> 32).unwrap_or(0)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of several, which must not be none.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// One of several with weights; the first where all weights are 0.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(usize, T)]) -> T {
        let total: usize = from.iter().map(|(weight, _)| weight).sum();
        let mut draw = self.below(total);
        for (weight, value) in from {
            if draw < *weight {
                return *value;
            }
            draw -= weight;
        }
        from[0].1
    }
}
