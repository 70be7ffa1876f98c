//! What the steps of an engine took: one table of prefill, one of decode.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tandem_engine::DecodeStep;
use tandem_proto::{StepTime, StepTimes};

/// Steps that are added up; when one more comes, those before count half.
const STEPS: u32 = 64;
/// Tokens of the depths that are told apart: below one of it, below two, below four, and so on.
const DEPTH: u32 = 1024;

/// Steps of about one size after about as many tokens, added up.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    /// The first one pays for memory that is touched for the first time, and counts only until the second comes.
    is_cold: bool,
    steps: u32,
    count: u64,
    depth: u64,
    took: Duration,
}

impl Sum {
    fn add(&mut self, count: u32, depth: u32, took: Duration) {
        if self.is_cold {
            *self = Self::default();
        } else if self.steps == 0 {
            self.is_cold = true;
        } else if self.steps == STEPS {
            self.steps /= 2;
            self.count /= 2;
            self.depth /= 2;
            self.took /= 2;
        }
        self.steps += 1;
        self.count += u64::from(count);
        self.depth += u64::from(depth);
        self.took += took;
    }

    /// The mean.
    fn told(&self) -> StepTime {
        let steps = u64::from(self.steps.max(1));
        StepTime {
            count: u32::try_from(self.count / steps).unwrap_or(u32::MAX),
            depth: u32::try_from(self.depth / steps).unwrap_or(u32::MAX),
            micros: u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX) / steps,
            steps: self.steps,
        }
    }
}

/// Steps by the sizes that are told apart. Sizes are bounded by the context, so tables are by its logarithm.
type Table = BTreeMap<(u32, u32), Sum>;

/// What steps took.
#[derive(Debug, Default)]
pub struct Measured {
    prefill: Table,
    decode: Table,
}

impl Measured {
    /// This part of a prompt was computed in one step.
    pub fn prefilled(&mut self, range: &Range<u32>, took: Duration) {
        let count = range.end.saturating_sub(range.start);
        // What begins a prompt is of depth 0 exactly, and so is told apart from what follows a short beginning.
        let depth = match range.start {
            0 => 0,
            start => 1 + octave(start / DEPTH),
        };
        let sum = self.prefill.entry((octave(count), depth)).or_default();
        sum.add(count, range.start, took);
    }

    /// One token of each of these sequences was computed in one step.
    pub fn decoded(&mut self, steps: &[DecodeStep], took: Duration) {
        let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let held: u64 = steps.iter().map(|step| u64::from(step.position)).sum();
        let depth = u32::try_from(held / u64::from(count.max(1))).unwrap_or(u32::MAX);
        let at = (count, octave(depth / DEPTH));
        self.decode.entry(at).or_default().add(count, depth, took);
    }

    /// Both tables.
    #[must_use]
    pub fn told(&self) -> StepTimes {
        let rows = |table: &Table| table.values().map(Sum::told).collect();
        StepTimes {
            prefill: rows(&self.prefill),
            decode: rows(&self.decode),
        }
    }
}

/// 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on.
const fn octave(number: u32) -> u32 {
    u32::BITS - number.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step of a size counts for nothing, and later ones for more than those long before.
    #[test]
    fn means_of_steps() {
        let ms = Duration::from_millis;
        let mut measured = Measured::default();
        let mut told = |took| {
            measured.prefilled(&(0..512), took);
            measured.told().prefill[0]
        };
        assert_eq!(told(ms(900)).micros, 900_000);
        let second = told(ms(100));
        let expected = StepTime {
            count: 512,
            depth: 0,
            micros: 100_000,
            steps: 1,
        };
        assert_eq!(second, expected);
        for _ in 1..STEPS {
            assert_eq!(told(ms(100)).micros, 100_000);
        }
        for _ in 0..STEPS {
            told(ms(200));
        }
        let later = told(ms(200));
        assert!((165_000..200_000).contains(&later.micros), "{later:?}");
        assert!(later.steps <= STEPS && later.count == 512);
    }

    #[test]
    fn sizes_are_told_apart() {
        let mut measured = Measured::default();
        for range in [0..512, 0..600, 512..1024, 3000..3512, 0..64] {
            measured.prefilled(&range, Duration::from_millis(1));
        }
        let told = measured.told().prefill;
        let sizes: Vec<_> = told.iter().map(|row| (row.count, row.depth)).collect();
        // 512 and 600 are of one size, of which the first was cold.
        assert_eq!(sizes, [(64, 0), (600, 0), (512, 512), (512, 3000)]);
    }
}
