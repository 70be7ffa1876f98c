//! Rates that are measured again and again.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::limits::MAX_SPANS;

/// A sum of something, bytes or tokens, over a sum of seconds; older ones count less and less.
#[derive(Debug, Default)]
pub struct Rate {
    amount: f64,
    seconds: f64,
}

impl Rate {
    /// What came before counts half of what it did.
    pub fn add(&mut self, amount: u64, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let amount = amount as f64;
        self.amount = self.amount / 2.0 + amount;
        self.seconds = self.seconds / 2.0 + time.as_secs_f64();
    }

    /// How much in a second; 0 if nothing has been measured.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.amount / self.seconds
        } else {
            0.0
        }
    }
}

/// Time that has been counted: what several do at once takes no longer than what one does.
#[derive(Debug, Default)]
pub struct Counted(Vec<Range<Instant>>);

impl Counted {
    /// Counts a span, and gives how much of it had not been counted. Of spans with gaps between them the latest
    /// [`MAX_SPANS`] are told apart.
    pub fn add(&mut self, span: Range<Instant>) -> Duration {
        let mut again = Duration::ZERO;
        let mut all = span.clone();
        self.0.retain(|counted| {
            let is_apart = counted.end < span.start || span.end < counted.start;
            if !is_apart {
                again += counted.end.min(span.end) - counted.start.max(span.start);
                all = all.start.min(counted.start)..all.end.max(counted.end);
            }
            is_apart
        });
        if self.0.len() == MAX_SPANS
            && let Some(oldest) = (0..MAX_SPANS).min_by_key(|at| self.0[*at].end)
        {
            self.0.swap_remove(oldest);
        }
        self.0.push(all);
        span.end.duration_since(span.start).saturating_sub(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with a row of milliseconds, each of which is counted once.
    #[test]
    fn what_several_do_at_once_is_counted_once() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        for seed in 0..200u32 {
            let mut state = seed;
            let mut below = |n: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % n
            };
            let (mut counted, mut row) = (Counted::default(), [false; 400]);
            for _ in 0..MAX_SPANS {
                let from = below(380);
                let to = from + below(20);
                let time = counted.add(start + ms * from..start + ms * to);
                let of_these = &mut row[from as usize..to as usize];
                let new = of_these.iter().filter(|was| !**was).count();
                assert_eq!(time, ms * u32::try_from(new).unwrap(), "seed {seed}");
                of_these.fill(true);
            }
        }
    }

    #[test]
    fn spans_are_bounded_and_the_latest_are_told_apart() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let mut counted = Counted::default();
        let span = |at: usize| {
            let from = start + ms * u32::try_from(2 * at).unwrap();
            from..from + ms
        };
        for at in 0..MAX_SPANS * 3 {
            assert_eq!(counted.add(span(at)), ms);
        }
        assert_eq!(counted.0.len(), MAX_SPANS);
        for at in MAX_SPANS * 2..MAX_SPANS * 3 {
            assert_eq!(counted.add(span(at)), Duration::ZERO);
        }
        // Around all of them.
        let all = start..start + ms * u32::try_from(MAX_SPANS * 8).unwrap();
        let new = u32::try_from(MAX_SPANS * 7).unwrap();
        assert_eq!(counted.add(all), ms * new);
        assert_eq!(counted.0.len(), 1);
    }
}
