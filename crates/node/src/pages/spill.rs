//! The thread that writes pages to disk, so that nobody waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::disk::{Disk, FileName};
use super::index::Index;

/// What the threads of a store share.
#[derive(Debug)]
pub struct Shared {
    index: Mutex<Index>,
    /// Something may wait to be written, or the store closes: for the writer.
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

    /// Does something with the index, and then what follows for the disk, without the lock.
    pub fn with<T>(&self, work: impl FnOnce(&mut Index) -> T) -> T {
        let mut index = self.lock();
        let result = work(&mut index);
        let unused = index.take_unused();
        drop(index);
        self.queued.notify_one();
        self.remove(&unused);
        result
    }

    fn remove(&self, unused: &[FileName]) {
        if let Some(disk) = self.disk.as_ref().filter(|_| !unused.is_empty()) {
            let errors = disk.remove(unused);
            self.lock().stats.disk_errors += errors;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // A panic inside the lock leaves at worst wrong sizes; the rows are checked anyway.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is queued until `is_closed`; the body of the writer's thread.
    pub fn write_spills(&self, is_closed: &AtomicBool) {
        let Some(disk) = &self.disk else { return };
        loop {
            let mut index = self.lock();
            // Inside the lock, so that a close cannot slip in between this and the wait.
            if is_closed.load(Ordering::Acquire) {
                return;
            }
            let Some(spill) = index.next_spill() else {
                let unused = index.take_unused();
                // What had no room on disk has left the queue too.
                self.written.notify_all();
                if unused.is_empty() {
                    drop(self.queued.wait(index));
                } else {
                    drop(index);
                    self.remove(&unused);
                }
                continue;
            };
            let serial = index.next_serial();
            let unused = index.take_unused();
            drop(index);
            // First the room, then the file.
            self.remove(&unused);
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
    thread: Option<std::thread::JoinHandle<()>>,
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
            thread: None,
        };
        if shared.disk.is_some() {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("tandem-pages".to_owned());
            writer.thread = Some(thread.spawn(move || shared.write_spills(&is_closed))?);
        }
        Ok(writer)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
