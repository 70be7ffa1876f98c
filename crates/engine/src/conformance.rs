//! The suite that every [`KvEngine`] must pass.
//!
//! A new engine runs it in a test of its own crate:
//!
//! ```
//! use tandem_engine::conformance;
//! use tandem_engine::fake::{FakeConfig, FakeEngine};
//!
//! let make = || Box::new(FakeEngine::new(FakeConfig::default())) as _;
//! conformance::run(&make, conformance::F32_ROUNDING);
//! ```
//!
//! `make` is called twice: a *source* that prefills and exports, and a *receiver* that imports
//! and decodes. Both must load the same weights. Give them at least two sequences and a small
//! micro-batch (16 tokens, say): prompts are a few micro-batches long, and longer than twice the
//! window if the model has one, and the suite says so if a sequence has too little room.
//! Run it once per kind of model (with and without window layers) and per backend. A mixture of experts whose
//! tokens visit some of them is no continuous function: where rounding chooses another expert, logits
//! jump. For such a model take [`run_one_by_one`], and [`run`] for one whose tokens visit all of them.
//!
//! What is checked:
//!
//! - remote prefill and decode give bitwise the same logits at the first generated position, and
//!   the same tokens, greedy and with a seed, as the source going on by itself after the same
//!   chunks, for chunkings {one, even, uneven,
//!   shorter than a chunk, prompts of one and two tokens, around and beyond the window}, with
//!   blocks imported whole and in parts;
//! - rows that an engine gives while it computes a chunk are those that it exports, and change nothing;
//! - `held` at every step;
//! - sequences prefilled, imported and decoded side by side stay independent, also a chunk and a step in one call
//!   ([`run`] only);
//! - misuse is refused and leaves the sequence as it was, or empty, and prefill can go on from
//!   what `held` says at once: with window layers that is from 0, over full blocks whose window
//!   never came;
//! - capacity, [`KvCache::clear`](crate::KvCache::clear), [`KvCache::release`](crate::KvCache::release).

mod handoff;
mod misuse;
mod plan;
mod probe;
mod sequences;
mod sharing;

use crate::kv_engine::KvEngine;

/// Tokens generated per answer.
pub const GENERATED: u32 = 12;

/// Largest difference between the logits of a sequence decoded alone and in a batch, of an engine that computes in f32.
///
/// Batches of different shape may take different kernels, so bits may differ. Greedy tokens may
/// then differ only where the two best logits are closer than twice this.
pub const F32_ROUNDING: f32 = 0.05;
/// The same of an engine that multiplies in f16, as backends for GPUs do.
pub const F16_ROUNDING: f32 = 0.2;

/// What the suite measured on an engine that passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Largest difference found between logits of a sequence decoded alone and in a batch, over
    /// equal tokens.
    pub batch_difference: f32,
    /// Sequences whose greedy tokens differed in a batch, where the best logits were that close.
    pub close_calls: u32,
}

/// Runs the suite. `make` gives a new engine with the same weights each time; `rounding` is [`F32_ROUNDING`] or
/// [`F16_ROUNDING`].
///
/// # Panics
/// If the engine does not conform; the message says in what.
pub fn run(make: &dyn Fn() -> Box<dyn KvEngine>, rounding: f32) -> Measured {
    let (mut source, mut receiver) = (make(), make());
    let (source, receiver) = (source.as_mut(), receiver.as_mut());
    let prompts = one_by_one(source, receiver);
    let mut measured = sequences::check_independence(source, receiver, &prompts, rounding);
    sharing::check(receiver, &prompts, rounding, &mut measured);
    measured
}

/// The suite without what compares sequences of a batch with those alone.
///
/// # Panics
/// If the engine does not conform; the message says in what.
pub fn run_one_by_one(make: &dyn Fn() -> Box<dyn KvEngine>) {
    one_by_one(make().as_mut(), make().as_mut());
}

fn one_by_one(source: &mut dyn KvEngine, receiver: &mut dyn KvEngine) -> Vec<plan::Prompt> {
    probe::check_description(source, receiver);
    let prompts = plan::prompts(source);
    for prompt in &prompts {
        handoff::check(source, receiver, prompt);
    }
    misuse::check(source, receiver, &prompts);
    sequences::check_capacity(receiver);
    sequences::check_reuse(receiver, &prompts);
    sequences::check_truncate(receiver, &prompts);
    prompts
}
