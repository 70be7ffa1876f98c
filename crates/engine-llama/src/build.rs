//! What this build can do.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

static LOADING: Mutex<()> = Mutex::new(());

/// Serialises the calls into llama.cpp that touch process-wide state: loading and context creation.
pub(crate) fn backend_lock() -> MutexGuard<'static, ()> {
    LOADING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name and version of the engine, part of the contract. The sys crate pins llama.cpp.
pub const ENGINE_NAME: &str = "llama.cpp (llama-cpp-sys-2 0.1.161, state 4)";

/// CPU features that llama.cpp was built with, such as `AVX512 = 1 | AVX512_VNNI = 1`.
#[must_use]
pub fn cpu_features() -> String {
    // SAFETY: returns a pointer to a static, NUL-terminated string; called under the backend
    // lock because llama.cpp rebuilds that string on every call.
    let text = unsafe {
        let _lock = backend_lock();
        CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info())
            .to_string_lossy()
            .into_owned()
    };
    text.trim().trim_end_matches('|').trim().to_owned()
}

/// Compute devices that llama.cpp sees, such as `CPU` or `CUDA0`, with their descriptions.
#[must_use]
pub fn devices() -> Vec<String> {
    llama_cpp_2::list_llama_ggml_backend_devices()
        .into_iter()
        .map(|d| format!("{} ({}, {})", d.name, d.backend, d.description))
        .collect()
}

/// CPU cores that this process may use.
#[must_use]
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    u32::try_from(cores).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::ENGINE_NAME;

    /// The name is part of the contract, so it must change with the crate that pins llama.cpp.
    #[test]
    fn the_name_is_that_of_the_pinned_crate() {
        let manifest = include_str!("../../../Cargo.toml");
        let (_, rest) = manifest
            .split_once("llama-cpp-sys-2 = { version = \"=")
            .unwrap();
        let (version, _) = rest.split_once('"').unwrap();
        assert!(ENGINE_NAME.contains(&format!("llama-cpp-sys-2 {version},")));
    }
}
