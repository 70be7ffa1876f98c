//! llama.cpp behind the engine traits.
//!
//! The only crate that knows llama.cpp and the only one with `unsafe`.
//!
//! - [`gguf`]: what a model file says about itself, and its fingerprints;
//! - `fingerprint`: those of files that were read before;
//! - [`layout`]: which layers live in which section of llama.cpp's cache, and the [`Contract`](tandem_handoff::Contract);
//! - [`blob`]: llama.cpp's sequence state from and to neutral planes (safe, pure);
//! - `tap`: rows of a layer while the next one is computed;
//! - [`vocabulary`]: the tokenizer;
//! - [`engine`]: [`LlamaEngine`], which implements [`KvEngine`](tandem_engine::KvEngine);
//! - [`options`]: how a model is loaded, and why it cannot be; [`loading`]: how far that is;
//! - [`turns`]: whose turn it is on the processor;
//! - [`build`]: what this build can do (CPU features, backends).

pub mod blob;
pub mod build;
pub mod engine;
mod fingerprint;
pub mod gguf;
pub mod layout;
pub mod loading;
pub mod options;
mod pool;
mod tap;
pub mod turns;
pub mod vocabulary;

pub use engine::LlamaEngine;
pub use loading::{Loading, Watch};
pub use options::{LlamaError, LlamaOptions, MAX_SEQUENCES, cached_sequences};
