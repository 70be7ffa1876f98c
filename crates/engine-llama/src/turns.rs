//! Whose turn it is on the processor.
//!
//! An engine computes with several threads, which wait for each other by spinning. Two that compute at once on the same
//! cores take a hundred times as long as one after the other. So engines compute one step at a time, in turns: who has
//! just computed comes after who waits. Those of one process share a queue, and processes of one user share two locked
//! files. A turn is over when what was computed has been used: choosing a token takes a core, too. An engine of one thread
//! waits for nobody, and takes no turns.
//!
//! Who has a lock writes its process id into the file. So those who wait can tell a long step of a large model from a
//! process that was stopped (Ctrl-Z, a debugger, a laptop's lid): they go on beside the latter, still one after the other.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};

/// Longest wait for another process, which may compute a long chunk of a large model.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at whether that process has been stopped.
const INQUIRY: Duration = Duration::from_millis(50);
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
                .read(true)
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

    /// `None` if another process does not end its turn, and the place in front of it is not free either.
    fn take(&self, patience: Duration) -> Option<Held<'_>> {
        let was_stuck = self.stuck.load(Ordering::Relaxed);
        let until = Instant::now()
            + if was_stuck {
                patience.min(IMPATIENCE)
            } else {
                patience
            };
        let next = wait(&self.next, until);
        let computing = wait(&self.computing, until);
        self.stuck.store(computing.is_none(), Ordering::Relaxed);
        if computing.is_none() && !was_stuck {
            tracing::warn!(
                process = holder(&self.computing),
                "another process has been stopped in its turn on the processor, or does not end it; computing beside it"
            );
        }
        // Who computes beside that one keeps the place, so that nobody else does.
        computing.or(next)
    }
}

/// Waits for a lock until then, or until who has it turns out to have been stopped.
fn wait(file: &File, until: Instant) -> Option<Held<'_>> {
    let mut inquiry = Instant::now() + INQUIRY;
    loop {
        if file.try_lock().is_ok() {
            // Others do without if it cannot be written.
            let _ = sign(file, std::process::id());
            return Some(Held(file));
        }
        let now = Instant::now();
        if now >= until || (now >= inquiry && holder(file).is_some_and(is_stopped)) {
            return None;
        }
        if now >= inquiry {
            inquiry = now + INQUIRY;
        }
        sleep(LOOK);
    }
}

/// Writes who has the lock: a number in a line, over the last one.
fn sign(mut file: &File, process: u32) -> io::Result<()> {
    file.rewind()?;
    file.write_all(format!("{process:010}\n").as_bytes())
}

/// The process that has a lock, if it says so.
fn holder(mut file: &File) -> Option<u32> {
    let mut line = [0; 10];
    file.rewind().ok()?;
    file.read_exact(&mut line).ok()?;
    std::str::from_utf8(&line).ok()?.parse().ok()
}

/// True for a process of this machine that is known to stand still.
fn is_stopped(process: u32) -> bool {
    let process = Pid::from_u32(process);
    let mut system = System::new();
    let (only, nothing) = (
        ProcessesToUpdate::Some(&[process]),
        ProcessRefreshKind::nothing(),
    );
    system.refresh_processes_specifics(only, false, nothing);
    let status = system.process(process).map(sysinfo::Process::status);
    matches!(status, Some(ProcessStatus::Stop | ProcessStatus::Tracing))
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

    /// The folder as three processes open it.
    fn three(folder: &Path) -> [Processes; 3] {
        std::array::from_fn(|_| Processes::open(folder).unwrap())
    }

    #[test]
    fn who_does_not_end_its_turn_holds_others_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let [silent, other, third] = three(folder.path());
        let held = silent.take(PATIENCE).unwrap();
        let patience = Duration::from_millis(200);
        let start = Instant::now();
        let beside = other.take(patience).expect("the place of the next one");
        assert!(start.elapsed() >= patience);
        // Nobody else computes meanwhile.
        assert!(third.take(patience).is_none());
        drop(beside);
        // Until it comes back.
        let start = Instant::now();
        drop(other.take(PATIENCE));
        assert!(start.elapsed() < PATIENCE);
        drop(held);
        assert!(other.take(PATIENCE).is_some());
        assert!(!other.stuck.load(Ordering::Relaxed));
    }

    /// A process, and what a signal makes of it.
    #[cfg(unix)]
    struct Other(std::process::Child);

    #[cfg(unix)]
    impl Other {
        fn start() -> Self {
            let mut command = std::process::Command::new("sleep");
            Self(command.arg("600").spawn().unwrap())
        }

        fn signal(&self, name: &str) {
            let mut command = std::process::Command::new("kill");
            let sent = command.args([name, &self.0.id().to_string()]).status();
            assert!(sent.unwrap().success());
            let is_stopped = || is_stopped(self.0.id());
            let start = Instant::now();
            while is_stopped() != (name == "-STOP") {
                assert!(start.elapsed() < PATIENCE, "{name}");
                sleep(LOOK);
            }
        }
    }

    #[cfg(unix)]
    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A long step is waited for, and a process that was stopped is not: its turn has not ended in either case.
    #[cfg(unix)]
    #[test]
    fn a_stopped_process_holds_nobody_up_and_a_long_step_does() {
        let folder = tempfile::tempdir().unwrap();
        let [stopped, other, third] = three(folder.path());
        let process = Other::start();
        let held = stopped.take(PATIENCE).unwrap();
        sign(&stopped.computing, process.0.id()).unwrap();
        // It computes.
        let long = INQUIRY * 10;
        let start = Instant::now();
        drop(other.take(long));
        assert!(start.elapsed() >= long);
        other.stuck.store(false, Ordering::Relaxed);
        process.signal("-STOP");
        for _ in 0..3 {
            let start = Instant::now();
            let beside = other.take(PATIENCE).expect("the place of the next one");
            assert!(start.elapsed() < PATIENCE / 10, "{:?}", start.elapsed());
            // Two do not compute beside it.
            assert!(third.take(INQUIRY * 2).is_none());
            drop(beside);
        }
        process.signal("-CONT");
        drop(held);
        assert!(other.take(PATIENCE).is_some());
        assert!(
            !other.stuck.load(Ordering::Relaxed),
            "its turn is its own again"
        );
    }
}
