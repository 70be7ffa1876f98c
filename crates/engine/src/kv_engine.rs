//! Engines that give token-level access to their KV cache.

use std::sync::Arc;

use crate::compute::Compute;
use crate::tokenizer::Tokenizer;

/// A model with its [cache](crate::KvCache), what [computes](Compute) it, and its vocabulary. Synchronous; lives on its own
/// thread.
pub trait KvEngine: Compute + Send {
    /// The tokenizer of the model.
    fn tokenizer(&self) -> Arc<dyn Tokenizer>;
}
