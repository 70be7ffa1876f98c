//! How busy an engine was over the last minute.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// What is looked back over, in seconds.
const WINDOW: u64 = 60;

/// Busy time by second. Time comes in as an argument.
#[derive(Debug)]
pub struct Busy {
    since: Instant,
    /// Seconds since then with what of each was busy, in order.
    seconds: VecDeque<(u64, Duration)>,
    /// When what goes on now began.
    begun: Option<Instant>,
}

impl Busy {
    /// Nothing yet.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            since: now,
            seconds: VecDeque::new(),
            begun: None,
        }
    }

    /// Something begins.
    pub const fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// It has ended.
    pub fn end(&mut self, now: Instant) {
        if let Some(begun) = self.begun.take() {
            self.add(begun..now);
        }
    }

    /// Counts a span that begins where the last one ended, or later.
    fn add(&mut self, span: Range<Instant>) {
        let end = span.end.saturating_duration_since(self.since);
        let mut at = span.start.saturating_duration_since(self.since);
        while at < end {
            let second = at.as_secs();
            let part = end.min(Duration::from_secs(second + 1)) - at;
            match self.seconds.back_mut() {
                Some((last, busy)) if *last == second => *busy += part,
                _ => self.seconds.push_back((second, part)),
            }
            at += part;
        }
        self.forget(end);
    }

    fn forget(&mut self, now: Duration) {
        let first = now.as_secs().saturating_sub(WINDOW);
        while self
            .seconds
            .front()
            .is_some_and(|(second, _)| *second < first)
        {
            self.seconds.pop_front();
        }
    }

    /// Percent of the last minute, or of the time since it was made if that is less.
    #[must_use]
    pub fn percent(&mut self, now: Instant) -> u8 {
        // A long step counts before it ends.
        if let Some(begun) = self.begun {
            self.end(now);
            self.begun = Some(now.max(begun));
        }
        let now = now.saturating_duration_since(self.since);
        self.forget(now);
        let busy: Duration = self.seconds.iter().map(|(_, busy)| *busy).sum();
        // Whole seconds are kept, and the one that goes on.
        let of =
            now.min(Duration::from_secs(WINDOW) + Duration::from_nanos(now.subsec_nanos().into()));
        let share = busy.as_secs_f64() / of.as_secs_f64().max(1e-3);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 100"
        )]
        let percent = (share.clamp(0.0, 1.0) * 100.0).round() as u8;
        percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_last_minute() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut busy = Busy::new(start);
        assert_eq!(busy.percent(start), 0);
        busy.add(at(0.0)..at(5.0));
        assert_eq!(busy.percent(at(10.0)), 50);
        busy.add(at(10.0)..at(10.5));
        busy.add(at(10.5)..at(20.0));
        assert_eq!(busy.percent(at(20.0)), 75);
        // The first seconds are forgotten.
        assert_eq!(busy.percent(at(65.0)), 17);
        assert_eq!(busy.percent(at(200.0)), 0);
        // A long step counts as what of it lies in the window.
        busy.add(at(200.0)..at(400.0));
        assert_eq!(busy.percent(at(400.0)), 100);
        busy.begin(at(400.0));
        assert_eq!(busy.percent(at(430.0)), 100);
        busy.end(at(445.0));
        assert_eq!(busy.percent(at(475.0)), 50);
        assert!(busy.seconds.len() <= 61);
    }
}
