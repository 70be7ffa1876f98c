//! What an engine is, and everything about generation that does not depend on one.
//!
//! - [`kv_engine`]: token-level access to a model: prefill, hand out KV, take KV in, decode;
//! - [`tokenizer`]: text to tokens and back;
//! - [`sampling`]: logits to a token, the same on every platform for the same seed;
//! - [`constraint`]: JSON-schema constrained decoding;
//! - [`chat`]: the chat template of a model;
//! - [`stop`]: stop strings over streamed bytes;
//! - [`generation`]: sampling, constraint, stop strings and limits of one answer together;
//! - [`limits`]: the named limits;
//! - [`fake`]: a deterministic engine without a model;
//! - [`conformance`]: the suite that every [`KvEngine`] must pass.

pub mod chat;
pub mod conformance;
pub mod constraint;
pub mod fake;
pub mod generation;
pub mod kv_engine;
pub mod limits;
pub mod paced;
pub mod sampling;
pub mod stop;
pub mod tokenizer;
mod weights;

pub use kv_engine::{Capacity, DecodeStep, EngineError, GiveRows, KvEngine, LayerRows, Sequence};
pub use tokenizer::{SpecialTokens, Token, Tokenizer};
