//! What has been logged lately: a peer that does the same again and again, or many peers that do, do not fill
//! the log.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::limits::{MAX_SAID, SAY_AGAIN};

/// Reasons that were logged within [`SAY_AGAIN`], at most [`MAX_SAID`].
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    /// The oldest first.
    reasons: VecDeque<(Instant, IpAddr, String)>,
    /// What has not been logged since the last time that something was.
    unsaid: u64,
}

impl LogThrottle {
    /// How many others have not been logged, if this is to be logged now.
    pub(crate) fn says(&self, now: Instant, from: IpAddr, reason: &str) -> Option<u64> {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(since, ..): &(Instant, IpAddr, String)| now - *since >= SAY_AGAIN;
        while lately.reasons.front().is_some_and(is_old) {
            lately.reasons.pop_front();
        }
        let is_it = |(_, ip, why): &(Instant, IpAddr, String)| *ip == from && why == reason;
        if lately.reasons.iter().any(is_it) || lately.reasons.len() == MAX_SAID {
            lately.unsaid += 1;
            return None;
        }
        lately.reasons.push_back((now, from, reason.to_owned()));
        Some(std::mem::take(&mut lately.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_peer_and_reason_is_said_once_a_minute() {
        let log_throttle = LogThrottle::default();
        let start = Instant::now();
        let [one, other] = [1, 2].map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        let says = |seconds, from, reason| {
            let now = start + Duration::from_secs(seconds);
            log_throttle.says(now, from, reason)
        };
        assert_eq!(says(0, one, "a"), Some(0));
        assert_eq!(says(1, one, "a"), None);
        assert_eq!(says(59, one, "a"), None);
        assert_eq!(says(59, one, "b"), Some(2));
        assert_eq!(says(59, other, "a"), Some(0));
        assert_eq!(says(60, one, "a"), Some(0));
        assert_eq!(says(61, one, "b"), None);
        assert_eq!(says(119, one, "b"), Some(1));
    }

    #[test]
    fn many_peers_are_said_as_often_as_a_minute_has_room() {
        let log_throttle = LogThrottle::default();
        let start = Instant::now();
        let mut lines = 0;
        for n in 0..10_000_u32 {
            let now = start + Duration::from_millis(u64::from(n) * 30);
            let from = IpAddr::V4(Ipv4Addr::from_bits(n));
            lines += u64::from(log_throttle.says(now, from, "a").is_some());
        }
        // Five minutes.
        assert_eq!(lines, 5 * MAX_SAID as u64);
    }
}
