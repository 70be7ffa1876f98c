//! Work that a client chooses, on a thread that has a large stack and is not waited for for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::ConstraintError;
use crate::limits::{COMPILE_LIMIT, MAX_COMPILING};

/// Stack of such a thread. Only what is used of it takes memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// How many are at work.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

/// One of those that are at work.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Budget {
    /// Runs `work` and waits for it, for at most [`COMPILE_LIMIT`].
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ConstraintError> + Send + 'static,
    ) -> Result<T, ConstraintError> {
        let running = self.enter()?;
        let (done, result) = mpsc::sync_channel(1);
        let job = move || {
            let _running = running;
            let end = catch_unwind(AssertUnwindSafe(work));
            // Nobody waits for it any more if it took too long.
            let _ = done.send(end.unwrap_or(Err(ConstraintError::Unknown)));
        };
        thread::Builder::new()
            .name("schema".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(job)
            .map_err(|_| ConstraintError::Busy)?;
        match result.recv_timeout(COMPILE_LIMIT) {
            Ok(end) => end,
            Err(_) => Err(ConstraintError::Budget(format!(
                "it takes more than {} s to compile",
                COMPILE_LIMIT.as_secs()
            ))),
        }
    }

    fn enter(&self) -> Result<Running, ConstraintError> {
        let count = |n| (n < MAX_COMPILING).then_some(n + 1);
        let entered = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        match entered {
            Ok(_) => Ok(Running(Arc::clone(&self.0))),
            Err(_) => Err(ConstraintError::Busy),
        }
    }
}
