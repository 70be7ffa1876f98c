//! Whose turn it is on the processor.
//!
//! An engine computes with several threads, which wait for each other by spinning. Two that compute at once on the same
//! cores take a hundred times as long as one after the other. So engines compute one step at a time, in turns: who has
//! just computed comes after who waits. Those of one process share a queue, and processes of one user share two locked
//! files. A turn is over when what was computed has been used: choosing a token takes a core, too. An engine of one thread waits for nobody, and takes no turns.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for another process: it may compute a long chunk of a large model, and it may have been stopped.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same while one is known to stand still: enough for a step of somebody else.
const IMPATIENCE: Duration = Duration::from_millis(50);
/// Between two looks at whether another process is done; the same for all, so that all have the same chance.
const LOOK: Duration = Duration::from_micros(200);

/// Threads of this process that wait for their turns, in the order in which they came.
static QUEUE: Queue = Queue {
    tickets: Mutex::new(Tickets { next: 0, turn: 0 }),
    over: Condvar::new(),
};
/// The same for processes.
static PROCESSES: OnceLock<Processes> = OnceLock::new();

/// From now on engines of this process take turns with those of other processes that share this folder too, which is
/// made if it is not there. It must be on this machine.
///
/// # Errors
/// If files cannot be opened or locked there.
pub fn share_with_processes(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let processes = Processes::open(folder)?;
    let _ = PROCESSES.set(processes);
    Ok(())
}

/// Somebody's turn, until it is dropped.
pub(crate) struct Turn {
    /// Dropped first.
    _processes: Option<Held<'static>>,
    _thread: Served,
}

/// Waits until nobody else computes: for at most one step of each engine that waits, too.
pub(crate) fn take() -> Turn {
    let thread = QUEUE.take();
    Turn {
        _processes: PROCESSES.get().and_then(|p| p.take(PATIENCE)),
        _thread: thread,
    }
}

/// A lock that is fair: who has just had it comes after who waits.
struct Queue {
    tickets: Mutex<Tickets>,
    over: Condvar,
}

struct Tickets {
    next: u64,
    turn: u64,
}

/// The first of the queue.
struct Served;

impl Queue {
    fn take(&'static self) -> Served {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = tickets.next;
        tickets.next += 1;
        let waits = |tickets: &mut Tickets| tickets.turn != mine;
        drop(
            self.over
                .wait_while(tickets, waits)
                .unwrap_or_else(PoisonError::into_inner),
        );
        Served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        QUEUE
            .tickets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .turn += 1;
        QUEUE.over.notify_all();
    }
}

/// Two files that processes lock. Only one thread of a process does so at a time.
struct Processes {
    next: File,
    computing: File,
    /// True if somebody has held them for too long.
    stuck: AtomicBool,
}

/// The lock of a file.
struct Held<'a>(&'a File);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The end of the process unlocks, too.
        let _ = self.0.unlock();
    }
}

impl Processes {
    fn open(folder: &Path) -> io::Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)
        };
        let processes = Self {
            next: open("next.lock")?,
            computing: open("computing.lock")?,
            stuck: AtomicBool::new(false),
        };
        // Some file systems lock nothing.
        match processes.next.try_lock() {
            Ok(()) => processes.next.unlock()?,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(e),
        }
        Ok(processes)
    }

    /// `None` if another process does not end its turn.
    fn take(&self, patience: Duration) -> Option<Held<'_>> {
        let was_stuck = self.stuck.load(Ordering::Relaxed);
        let until = Instant::now()
            + if was_stuck {
                patience.min(IMPATIENCE)
            } else {
                patience
            };
        let taken = wait(&self.next, until).and_then(|_next| wait(&self.computing, until));
        self.stuck.store(taken.is_none(), Ordering::Relaxed);
        if taken.is_none() && !was_stuck {
            let seconds = patience.as_secs_f64();
            tracing::warn!(
                seconds,
                "another process does not end its turn on the processor; computing beside it"
            );
        }
        taken
    }
}

fn wait(file: &File, until: Instant) -> Option<Held<'_>> {
    loop {
        if file.try_lock().is_ok() {
            return Some(Held(file));
        }
        if Instant::now() >= until {
            return None;
        }
        sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Three that have work all the time, as processes: files opened apart exclude each other like those.
    #[test]
    fn processes_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3)
            .map(|who| {
                let processes = Processes::open(folder.path()).unwrap();
                let turns = Arc::clone(&turns);
                std::thread::spawn(move || {
                    for _ in 0..100 {
                        let held = processes.take(Duration::from_secs(60)).unwrap();
                        let mut order = turns.try_lock().expect("one at a time");
                        order.push(who);
                        sleep(Duration::from_millis(1));
                        drop((order, held));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let order = turns.lock().unwrap();
        // While all have work, nobody is left out for long.
        for who in 0..3 {
            let of_the_first_half = order[..150].iter().filter(|w| **w == who).count();
            assert!(of_the_first_half >= 20, "{who}: {order:?}");
        }
    }

    #[test]
    fn who_does_not_end_its_turn_holds_others_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let (stopped, other) = (
            Processes::open(folder.path()).unwrap(),
            Processes::open(folder.path()).unwrap(),
        );
        let held = stopped.take(PATIENCE).unwrap();
        let patience = Duration::from_millis(50);
        let start = Instant::now();
        assert!(other.take(patience).is_none());
        assert!(start.elapsed() >= patience);
        // Until it comes back.
        let start = Instant::now();
        assert!(other.take(PATIENCE).is_none());
        assert!(start.elapsed() < PATIENCE);
        drop(held);
        assert!(other.take(PATIENCE).is_some());
    }
}
