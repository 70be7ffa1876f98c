//! A link between two machines, as it is written on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// The slowest link: below it a handoff takes longer than anyone waits.
const SLOWEST: u64 = 100_000;
/// The fastest.
const FASTEST: u64 = 400_000_000_000;
/// The longest way there and back.
const LONGEST: Duration = Duration::from_secs(2);

/// Rate and round-trip time, such as `10gbit,0.6ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    name: String,
    /// Each way.
    pub bits_per_second: u64,
    /// Half of it each way.
    pub round_trip: Duration,
}

impl Link {
    /// The delay of one way.
    pub fn one_way(&self) -> Duration {
        self.round_trip / 2
    }

    /// One that has this one's delay only.
    pub fn delay_only(&self) -> Self {
        Self {
            bits_per_second: FASTEST,
            ..self.clone()
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.name)
    }
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: write rate and round-trip time, such as 2.5gbit,0.6ms");
        let (rate, time) = text.split_once(',').ok_or_else(wrong)?;
        let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
        let rate = units.iter().find_map(|(unit, factor)| {
            let number: f64 = rate.strip_suffix(unit)?.parse().ok()?;
            Some(number * factor)
        });
        let time = [("ms", 1e-3), ("us", 1e-6)]
            .iter()
            .find_map(|(unit, factor)| {
                let number: f64 = time.strip_suffix(unit)?.parse().ok()?;
                Duration::try_from_secs_f64(number * factor).ok()
            });
        let (rate, round_trip) = rate.zip(time).ok_or_else(wrong)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number that is no rate becomes one that is refused below"
        )]
        let bits_per_second = rate as u64;
        if !(SLOWEST..=FASTEST).contains(&bits_per_second) || round_trip > LONGEST {
            return Err(format!(
                "`{text}`: allowed are 100kbit to 400gbit and at most {} ms",
                LONGEST.as_millis()
            ));
        }
        Ok(Self {
            name: text.to_owned(),
            bits_per_second,
            round_trip,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read() {
        let link: Link = "2.5gbit,0.6ms".parse().expect("a link");
        assert_eq!(link.bits_per_second, 2_500_000_000);
        assert_eq!(link.one_way(), Duration::from_micros(300));
        assert_eq!(link.to_string(), "2.5gbit,0.6ms");
    }

    #[test]
    fn what_is_no_link_is_refused() {
        for text in [
            "",
            "10gbit",
            "10,1ms",
            "1bit,1ms",
            "-1gbit,1ms",
            "1gbit,9000ms",
            "NaNgbit,1ms",
        ] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }
}
