//! Rates that are measured again and again.

use std::time::Duration;

/// A sum of bytes over a sum of seconds; older ones count less and less.
#[derive(Debug, Default)]
pub struct Rate {
    bytes: f64,
    seconds: f64,
}

impl Rate {
    /// What came before counts half of what it did.
    pub fn add(&mut self, bytes: u64, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = bytes as f64;
        self.bytes = self.bytes / 2.0 + bytes;
        self.seconds = self.seconds / 2.0 + time.as_secs_f64();
    }

    /// What was added last was more than that.
    pub fn more(&mut self, bytes: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = bytes as f64;
        self.bytes += bytes;
    }

    /// Bytes per second; 0 if nothing has been measured.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes / self.seconds
        } else {
            0.0
        }
    }
}
