//! How a server is told to end.

/// What becomes of the requests that are being answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing new is taken, and what runs is finished within a limit.
    Drain,
    /// They end with an error.
    Now,
}

/// A shutdown that says nothing else ends all.
impl From<()> for Ending {
    fn from((): ()) -> Self {
        Self::Now
    }
}
