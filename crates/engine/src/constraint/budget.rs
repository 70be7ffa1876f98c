//! Work that a client chooses, on a thread that has a large stack and is not waited for for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use super::ConstraintError;
use crate::limits::{COMPILE_LIMIT, MAX_COMPILING};

/// Stack of such a thread. Only what is used of it takes memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// How many are at work.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<Places>);

#[derive(Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of those that are at work.
struct Running(Arc<Places>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
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

    /// Waits for a place, as long as for a schema.
    fn enter(&self) -> Result<Running, ConstraintError> {
        let taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= MAX_COMPILING;
        let waited = self.0.freed.wait_timeout_while(taken, COMPILE_LIMIT, full);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(ConstraintError::Busy);
        }
        *taken += 1;
        Ok(Running(Arc::clone(&self.0)))
    }
}
