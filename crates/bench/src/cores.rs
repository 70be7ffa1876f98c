//! Cores of their own for both ends of a handoff, as two machines have them.
//!
//! Two processes on one machine take each other's cores: a thread of the receiver that wakes where the sender
//! is busy holds it up, while another core has nothing to do. What is measured then is where the system puts
//! threads.

use anyhow::Context;

/// Keeps one process to half of the cores that this one may use, and the others to the other half; false if there
/// is only one core, or the system cannot be told.
///
/// # Errors
/// If the system does not permit it.
pub fn divide(one: u32, others: &[u32]) -> anyhow::Result<bool> {
    let Some((cores, rest)) = halves() else {
        return Ok(false);
    };
    keep(&[one], &cores)
        .and_then(|()| keep(others, &rest))
        .context(REFUSED)?;
    Ok(true)
}

/// Keeps the engine of a node, and what it computes with, to half of the cores that this process may use, and
/// everything else of all nodes and this process to the other half; false as above. A machine whose GPU prefills has its cores for what sends.
///
/// # Errors
/// If the system does not permit it.
pub fn set_engine_apart(node: u32, others: &[u32]) -> anyhow::Result<bool> {
    let Some((cores, rest)) = halves() else {
        return Ok(false);
    };
    let all = [others, &[node, std::process::id()]].concat();
    keep(&all, &rest)
        .and_then(|()| keep_threads(node, ENGINE, &cores))
        .context(REFUSED)?;
    Ok(true)
}

/// How the names of engine threads begin.
const ENGINE: &str = "engine ";
const REFUSED: &str = "processes cannot be kept to cores of their own; --share-cores does without";

#[cfg(target_os = "linux")]
use linux::{halves, keep, keep_threads};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use procfs::process::Process;
    use rustix::io::Errno;
    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

    /// How often a thread is looked for that may just have begun, which gives itself its name, and the pause in between.
    const NAMED: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);

    /// The cores that this process may use, in two halves; threads of one core stay together where
    /// there are several.
    pub fn halves() -> Option<(Vec<usize>, Vec<usize>)> {
        let allowed = sched_getaffinity(None).ok()?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let mut cores: Vec<usize> = cores.collect();
        cores.sort_by_key(|core| (first_sibling(*core), *core));
        let half = cores.len() / 2;
        let is_cut = |at: &usize| first_sibling(cores[*at - 1]) != first_sibling(cores[*at]);
        let cuts = (1..cores.len()).filter(is_cut);
        // All are threads of one core if there is none.
        let cut = cuts.min_by_key(|at| at.abs_diff(half)).unwrap_or(half);
        let second = cores.split_off(cut);
        (!cores.is_empty()).then_some((cores, second))
    }

    /// The first of the processors that are threads of the same core as this one.
    fn first_sibling(core: usize) -> usize {
        let file = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(file).unwrap_or_default();
        let first = list.split([',', '-', '\n']).next();
        first.and_then(|first| first.parse().ok()).unwrap_or(core)
    }

    /// The cores as a set.
    fn set_of(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        set
    }

    /// Keeps the threads of a process whose names begin so to these cores.
    pub fn keep_threads(process: u32, begin: &str, cores: &[usize]) -> anyhow::Result<()> {
        let set = set_of(cores);
        let process = Process::new(i32::try_from(process)?)?;
        for _ in 0..NAMED {
            let mut found = false;
            for task in process.tasks()? {
                let task = task?;
                // One that has ended has no name.
                if task.status().is_ok_and(|s| s.name.starts_with(begin)) {
                    sched_setaffinity(Pid::from_raw(task.tid), &set)?;
                    found = true;
                }
            }
            if found {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        anyhow::bail!("process {} has no thread `{begin}`", process.pid)
    }

    /// Keeps all threads of the processes to these cores, and so those that they will start.
    pub fn keep(processes: &[u32], cores: &[usize]) -> anyhow::Result<()> {
        let set = set_of(cores);
        for process in processes {
            let process = Process::new(i32::try_from(*process)?)?;
            let mut kept = BTreeSet::new();
            // One that had not been kept yet may have started another.
            loop {
                let threads = process.tasks()?.map(|task| task.map(|task| task.tid));
                let threads = threads.collect::<Result<BTreeSet<i32>, _>>()?;
                let new: Vec<i32> = threads.difference(&kept).copied().collect();
                if new.is_empty() {
                    break;
                }
                for thread in new {
                    match sched_setaffinity(Pid::from_raw(thread), &set) {
                        // It has ended.
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(error) => return Err(error.into()),
                    }
                    kept.insert(thread);
                }
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_core_is_in_one_half() {
            let allowed = sched_getaffinity(None).unwrap();
            let Some((first, second)) = halves() else {
                assert_eq!(allowed.count(), 1);
                return;
            };
            assert!(!first.is_empty() && !second.is_empty());
            let mut all = [first, second].concat();
            all.sort_unstable();
            let expected = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
            assert_eq!(all, expected.collect::<Vec<_>>());
        }

        #[test]
        fn threads_of_one_name_keep_to_their_cores() {
            let Some((cores, _)) = halves() else {
                return;
            };
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let named = std::thread::Builder::new().name("engine of a test".into());
            let (tell, told) = std::sync::mpsc::channel();
            let thread = named
                .spawn(move || {
                    tell.send(rustix::thread::gettid()).unwrap();
                    let _ = ended.recv();
                })
                .unwrap();
            let id = told.recv().unwrap();
            let before = sched_getaffinity(None).unwrap();
            keep_threads(std::process::id(), "engine of", &cores).unwrap();
            let found = sched_getaffinity(Some(id)).unwrap();
            drop(end);
            thread.join().unwrap();
            assert_eq!(found, set_of(&cores));
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            keep_threads(std::process::id(), "no such", &cores).unwrap_err();
        }

        #[test]
        fn all_threads_of_a_process_keep_to_its_cores() {
            let Some((_, cores)) = halves() else {
                return;
            };
            let mut child = std::process::Command::new("sleep")
                .arg("60")
                .spawn()
                .unwrap();
            let done = keep(&[child.id()], &cores);
            let thread = Pid::from_raw(i32::try_from(child.id()).unwrap());
            let found = sched_getaffinity(thread);
            child.kill().unwrap();
            child.wait().unwrap();
            done.unwrap();
            let found = found.unwrap();
            let kept = (0..CpuSet::MAX_CPU).filter(|core| found.is_set(*core));
            let mut cores = cores;
            cores.sort_unstable();
            assert_eq!(kept.collect::<Vec<_>>(), cores);
        }
    }
}

/// No other system is told on which cores a process runs.
#[cfg(not(target_os = "linux"))]
const fn halves() -> Option<(Vec<usize>, Vec<usize>)> {
    None
}

#[cfg(not(target_os = "linux"))]
fn keep(_: &[u32], _: &[usize]) -> anyhow::Result<()> {
    anyhow::bail!("this system cannot be told on which cores a process runs")
}

#[cfg(not(target_os = "linux"))]
fn keep_threads(_: u32, _: &str, _: &[usize]) -> anyhow::Result<()> {
    keep(&[], &[])
}
