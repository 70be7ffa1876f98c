//! Buffers that go from one handoff to the next, so that the system need not make their memory again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

/// Buffers of the last handoff that was received, at most [`tandem_kv::limits::CREDIT_BYTES`], until nobody has come for
/// them for a while.
#[derive(Debug, Default)]
pub struct Spare(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    /// Counts what happens to them.
    moment: u64,
}

impl Spare {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut kept = self.kept();
        kept.moment += 1;
        std::mem::take(&mut kept.buffers)
    }

    /// Keeps these for so long.
    pub fn put(self: &Arc<Self>, buffers: Vec<Vec<u8>>, time: Duration) {
        let moment = {
            let mut kept = self.kept();
            kept.moment += 1;
            kept.buffers = buffers;
            kept.moment
        };
        let own = Arc::clone(self);
        tokio::spawn(async move {
            sleep(time).await;
            let mut kept = own.kept();
            if kept.moment == moment {
                kept.buffers = Vec::new();
            }
        });
    }

    /// How much they are.
    pub fn bytes(&self) -> u64 {
        let kept = self.kept();
        kept.buffers.iter().map(|b| b.capacity() as u64).sum()
    }
}
