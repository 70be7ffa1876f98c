//! How many tokens a sequence of a model has.

use std::path::Path;

use sysinfo::System;
use tandem_engine_llama::gguf::{Value, metadata};
use tandem_handoff::limits::MAX_TOKENS;

/// Tokens of a model that does not say what it was trained for.
pub const CONTEXT: u32 = 16384;
/// The part of the free memory that caches take, where the command line does not say how long sequences are.
const CACHE_PART: u64 = 2;

/// What the command line says, or what each model was trained for, as far as its cache fits.
pub struct Context {
    asked: Option<u32>,
    /// Bytes for the cache of each model: its part of what is left when all weights are in memory.
    free: u64,
}

impl Context {
    /// For these models, which are not in memory yet.
    pub fn new<'a>(asked: Option<u32>, models: impl Iterator<Item = &'a Path>) -> Self {
        let (mut weights, mut count) = (0, 0);
        for model in models {
            weights += file_bytes(model);
            count += 1;
        }
        let mut system = System::new();
        system.refresh_memory();
        let free = system.available_memory().saturating_sub(weights);
        Self {
            asked,
            free: free / CACHE_PART / u64::max(count, 1),
        }
    }

    /// Tokens of a sequence, at most.
    pub fn tokens(&self, model: &Path) -> u32 {
        let trained = || trained_context(model).unwrap_or(CONTEXT);
        self.asked.unwrap_or_else(trained).clamp(2, MAX_TOKENS)
    }

    /// The bound of the cache of a model, where sequences may be shorter than that.
    pub fn cache_bytes(&self) -> Option<u64> {
        self.asked.is_none().then_some(self.free)
    }
}

/// Bytes of a model, with all parts of its file.
fn file_bytes(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let name = path.file_name().and_then(|name| name.to_str());
    let parts = name.and_then(|name| name.split_once("-00001-of-"));
    let (Some((stem, rest)), Some(folder)) = (parts, path.parent()) else {
        return size(path);
    };
    let is_part = |name: &str| name.starts_with(stem) && name.ends_with(&format!("-of-{rest}"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let parts = entries.filter(|e| e.file_name().to_str().is_some_and(is_part));
    parts.map(|part| size(&part.path())).sum()
}

/// Tokens that a model was trained for, by its file.
fn trained_context(path: &Path) -> Option<u32> {
    let metadata = metadata(path).ok()?;
    let Some(Value::Text(architecture)) = metadata.get("general.architecture") else {
        return None;
    };
    match metadata.get(&format!("{architecture}.context_length")) {
        Some(Value::Int(tokens)) => u32::try_from(*tokens).ok(),
        _ => None,
    }
}
