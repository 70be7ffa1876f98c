//! The threads that compute on the processor: one pool for all engines of this process with equally many, which use it in
//! [`turns`](crate::turns).
//!
//! Without a pool llama.cpp starts threads for each graph. A new thread may be put on the core of one that spins and waits
//! for it, where it gets a turn every few milliseconds: a step then takes ten times as long. So the threads stay, and
//! where they are as many as there are cores, each has its own. They do not spin between two graphs, because others may
//! compute then.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::thread;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_sys_2::{
    ggml_threadpool, ggml_threadpool_new, ggml_threadpool_params_default, llama_attach_threadpool,
    llama_context,
};

/// Threads that stay until the end of the process.
struct Pool {
    threads: u32,
    /// The core of each, if they have their own.
    cores: Option<Vec<usize>>,
    native: *mut ggml_threadpool,
}

// SAFETY: ggml's pool may be used by any thread, by one at a time, which `turns` sees to.
unsafe impl Send for Pool {}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// What a thread that computes needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    /// Its core, if it has its own.
    core: Option<usize>,
}

/// Has a context computed by the pool, which is made for the first one. `None` if it has other threads: llama.cpp then
/// starts some for each graph.
pub(crate) fn attach(context: &LlamaContext<'_>, threads: u32) -> Option<Seat> {
    let context = native(context)?;
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.is_none() {
        // ggml gives whoever makes a pool the place of its first thread, which this thread must not have.
        *pool = thread::spawn(move || Pool::new(threads))
            .join()
            .ok()
            .flatten();
    }
    let pool = pool.as_ref().filter(|pool| pool.threads == threads)?;
    // SAFETY: both are alive; the pool stays until the end of the process, and whoever computes with the context has a
    // turn.
    unsafe { llama_attach_threadpool(context, pool.native, pool.native) };
    // ggml gives its own threads the cores from the first on, and whoever computes with them the last one.
    let core = pool.cores.as_ref().and_then(|cores| cores.last()).copied();
    Some(Seat { core })
}

impl Seat {
    /// This thread computes with the pool: it takes the place of the pool's first thread.
    pub(crate) fn take(self) {
        thread_local! {
            static TAKEN: Cell<bool> = const { Cell::new(false) };
        }
        if let Some(core) = self.core
            && !TAKEN.replace(true)
        {
            processors::keep_to(core);
        }
    }
}

impl Pool {
    fn new(threads: u32) -> Option<Self> {
        let count = i32::try_from(threads).ok()?;
        // SAFETY: a plain function of its argument.
        let mut params = unsafe { ggml_threadpool_params_default(count) };
        params.poll = 0;
        let all = processors::all();
        let fits = |core: &usize| *core < params.cpumask.len();
        let cores = all.filter(|all| all.len() == threads as usize && all.iter().all(fits));
        for core in cores.iter().flatten() {
            params.cpumask[*core] = true;
            params.strict_cpu = true;
        }
        // SAFETY: the parameters are valid, and are not used after the call.
        let native = unsafe { ggml_threadpool_new(&raw mut params) };
        (!native.is_null()).then_some(Self {
            threads,
            cores,
            native,
        })
    }
}

/// llama.cpp's context. The bindings show its address in their debug text only.
fn native(context: &LlamaContext<'_>) -> Option<*mut llama_context> {
    let text = format!("{context:?}");
    let (_, rest) = text.split_once("context: 0x")?;
    let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    let address = usize::from_str_radix(digits, 16).ok()?;
    (address != 0).then_some(std::ptr::with_exposed_provenance_mut(address))
}

/// Which cores there are.
#[cfg(target_os = "linux")]
mod processors {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Those that this process may use.
    pub(super) fn all() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some(
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect(),
        )
    }

    /// Keeps this thread to one of them.
    pub(super) fn keep_to(core: usize) {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(%error, core, "an engine cannot keep to its core");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod processors {
    pub(super) const fn all() -> Option<Vec<usize>> {
        None
    }

    pub(super) const fn keep_to(_: usize) {}
}
