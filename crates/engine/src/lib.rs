//! What an engine is, and everything about generation that does not depend on one.
//!
//! - [`kv_engine`]: token-level access to a model, in three parts: its cache ([`kv_cache`]: hand KV out, take KV in), what
//!   evaluates ([`compute`]: prefill and decode), and its vocabulary ([`tokenizer`]: text to tokens and back);
//! - [`sampling`]: logits to a token, the same on every platform for the same seed;
//! - [`constraint`]: JSON-schema constrained decoding;
//! - [`chat`]: the chat template of a model;
//! - [`stop`]: stop strings over streamed bytes;
//! - [`generation`]: sampling, constraint, stop strings and limits of one answer together;
//! - [`limits`]: the named limits;
//! - [`fake`]: a deterministic engine without a model;
//! - [`conformance`]: the suite that every [`KvEngine`] must pass.

pub mod chat;
pub mod compute;
pub mod conformance;
pub mod constraint;
pub mod fake;
pub mod generation;
pub mod kv_cache;
pub mod kv_engine;
pub mod limits;
pub mod paced;
pub mod sampling;
pub mod stop;
pub mod tokenizer;
mod weights;

pub use compute::{Compute, DecodeStep, GiveRows, Item, LayerRows};
pub use kv_cache::{Capacity, EngineError, KvCache, Sequence};
pub use kv_engine::KvEngine;
pub use tokenizer::{SpecialTokens, Token, Tokenizer};
