//! The day that templates are told.

use jiff::civil;
use jiff::fmt::strtime;
use minijinja::{Error, ErrorKind};

/// A day of the calendar; its time is midnight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Date(civil::DateTime);

impl Date {
    /// Reads `YYYY-MM-DD`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_digit() || c == '-';
        if text.len() != 10 || !text.chars().all(plain) {
            return None;
        }
        let date: civil::Date = text.parse().ok()?;
        Some(Self(date.to_datetime(civil::Time::midnight())))
    }

    /// The day as `strftime` writes it.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        strtime::format(format, self.0).map_err(|e| {
            let message = format!("strftime_now(\"{format}\"): {e}");
            Error::new(ErrorKind::InvalidOperation, message)
        })
    }
}
