//! CPU time and memory of this process.

use rustix::time::{ClockId, clock_gettime};

/// CPU seconds of all threads so far, in the kernel too.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds of a measurement")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Memory of a process, where the system tells.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes that it had when everything was in place and nothing had been sent.
    base: Option<u64>,
}

impl Memory {
    /// From here on memory counts as extra.
    pub fn start() -> Self {
        Self { base: resident() }
    }

    /// Forgets the largest extent so far.
    pub fn reset_peak(self) {
        reset_peak();
    }

    /// The most memory since [`Self::reset_peak`] beyond what was there at the start, in bytes. What
    /// the allocator has kept of earlier measurements counts too.
    pub fn peak_extra(self) -> Option<u64> {
        Some(peak()?.saturating_sub(self.base?))
    }
}

#[cfg(target_os = "linux")]
fn status() -> Option<procfs::process::Status> {
    procfs::process::Process::myself().ok()?.status().ok()
}

/// Linux: `VmRSS`.
#[cfg(target_os = "linux")]
fn resident() -> Option<u64> {
    Some(status()?.vmrss? * 1024)
}

/// Linux: `VmHWM`.
#[cfg(target_os = "linux")]
fn peak() -> Option<u64> {
    Some(status()?.vmhwm? * 1024)
}

/// Linux: 5 into `clear_refs`.
#[cfg(target_os = "linux")]
fn reset_peak() {
    if let Ok(process) = procfs::process::Process::myself()
        && let Err(error) = process.clear_refs(procfs::process::ClearRefs::PeakRSS)
    {
        tracing::warn!(%error, "the peak of memory cannot be reset");
    }
}

#[cfg(not(target_os = "linux"))]
const fn resident() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
const fn peak() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
const fn reset_peak() {}
