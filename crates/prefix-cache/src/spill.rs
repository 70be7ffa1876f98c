//! The thread that writes pages to disk and deletes them there, so that nobody waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::disk::{Disk, FileName};
use super::index::Index;
use super::limits::{CLOSE, DELETE_PAUSE};

/// Files that could not be deleted, and when that is tried again.
struct Stuck {
    files: Vec<FileName>,
    again: Instant,
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            again: Instant::now(),
        }
    }
}

impl Stuck {
    fn is_due(&self) -> bool {
        !self.files.is_empty() && Instant::now() >= self.again
    }
}

/// What the threads of a store share.
#[derive(Debug)]
pub struct Shared {
    index: Mutex<Index>,
    /// Something may wait to be written or deleted, or the store closes: for the writer.
    queued: Condvar,
    /// The queue has become shorter: for those who wait for that.
    written: Condvar,
    pub disk: Option<Disk>,
}

impl Shared {
    /// State around an index.
    pub fn new(index: Index, disk: Option<Disk>) -> Self {
        Self {
            index: Mutex::new(index),
            queued: Condvar::new(),
            written: Condvar::new(),
            disk,
        }
    }

    /// Looks at the index without changing what is where.
    pub fn look<T>(&self, work: impl FnOnce(&mut Index) -> T) -> T {
        work(&mut self.lock())
    }

    /// Does something with the index; the writer does what follows for the disk.
    pub fn with<T>(&self, work: impl FnOnce(&mut Index) -> T) -> T {
        let result = work(&mut self.lock());
        self.queued.notify_one();
        result
    }

    /// Deletes the files that are of no use any more, and after a while those that could not be deleted: a later start would
    /// find them again, and what is in them may be wrong.
    fn clear(&self, disk: &Disk, stuck: &mut Stuck) {
        let mut unused = self.lock().take_unused();
        let fresh = unused.len();
        if stuck.is_due() {
            unused.append(&mut stuck.files);
        }
        if unused.is_empty() {
            return;
        }
        let left = disk.remove(&unused);
        let mut index = self.lock();
        index.stats.disk_errors += left.len() as u64;
        index.removed(fresh);
        drop(index);
        if !left.is_empty() {
            stuck.files.extend(left);
            stuck.again = Instant::now() + DELETE_PAUSE;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // A panic inside the lock leaves at worst wrong sizes; the rows are checked anyway.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is queued until `is_closed`; the body of the writer's thread.
    pub fn write_spills(&self, is_closed: &AtomicBool) {
        let Some(disk) = &self.disk else { return };
        let mut stuck = Stuck::default();
        loop {
            let mut index = self.lock();
            // Inside the lock, so that a close cannot slip in between this and the wait.
            if is_closed.load(Ordering::Acquire) {
                drop(index);
                return self.clear(disk, &mut stuck);
            }
            let Some(spill) = index.next_spill() else {
                // What had no room on disk has left the queue too.
                self.written.notify_all();
                if index.has_unused() || stuck.is_due() {
                    drop(index);
                    self.clear(disk, &mut stuck);
                } else if stuck.files.is_empty() {
                    drop(self.queued.wait(index));
                } else {
                    let pause = stuck.again.saturating_duration_since(Instant::now());
                    drop(self.queued.wait_timeout(index, pause));
                }
                continue;
            };
            let serial = index.next_serial();
            drop(index);
            // First the room, then the file.
            self.clear(disk, &mut stuck);
            let written = disk.write(&spill, serial);
            let file = written.inspect_err(|error| {
                disk.log("write", disk.dir(), error);
            });
            self.with(|index| {
                index.stats.disk_errors += u64::from(file.is_err());
                index.written(&spill, file.ok());
            });
            self.written.notify_all();
        }
    }

    /// Waits until `done`, which the writer's progress brings about, at most until `deadline`.
    pub fn wait(&self, deadline: Instant, mut done: impl FnMut(&mut Index) -> bool) -> bool {
        let mut index = self.lock();
        loop {
            if done(&mut index) {
                return true;
            }
            self.queued.notify_one();
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            let woken = self.written.wait_timeout(index, left);
            index = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes the writer.
    fn wake(&self) {
        // With the lock, so that a writer that has just looked is waiting by now.
        let _index = self.lock();
        self.queued.notify_one();
    }
}

/// The writer, for as long as a store is open.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    is_closed: Arc<AtomicBool>,
    /// Never says anything, and is closed when the thread ends.
    ended: Option<Mutex<Receiver<()>>>,
}

impl Writer {
    /// Starts the thread; without a disk there is none.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let is_closed = Arc::default();
        let mut writer = Self {
            shared: Arc::clone(shared),
            is_closed: Arc::clone(&is_closed),
            ended: None,
        };
        if shared.disk.is_some() {
            let shared = Arc::clone(shared);
            let (ends, ended) = channel();
            let thread = std::thread::Builder::new().name("tandem-pages".to_owned());
            thread.spawn(move || {
                shared.write_spills(&is_closed);
                // Without what it shares, another store can have the directory.
                drop(shared);
                drop(ends);
            })?;
            writer.ended = Some(Mutex::new(ended));
        }
        Ok(writer)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        self.shared.wake();
        let ended = self.ended.take();
        let ended = ended.map(|e| e.into_inner().unwrap_or_else(PoisonError::into_inner));
        if ended.is_some_and(|ended| !has_ended(&ended, CLOSE)) {
            tracing::warn!("pages: the disk does not answer; its thread is left behind");
        }
    }
}

/// Waits until the other side is closed, at most for `limit`; true if it is.
fn has_ended(ended: &Receiver<()>, limit: Duration) -> bool {
    ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_is_stuck_is_left_behind() {
        let (ends, ended) = channel();
        assert!(!has_ended(&ended, Duration::from_millis(1)));
        drop(ends);
        assert!(has_ended(&ended, Duration::from_secs(60)));
    }
}
