//! The trait of engines that give token-level access to their KV cache.

use std::ops::Range;
use std::sync::Arc;

use tandem_handoff::{Contract, KvBlock, PlaneKind, Section};

use crate::tokenizer::{Token, Tokenizer};

/// A sequence inside an engine. Valid from [`KvEngine::open`] to [`KvEngine::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u32);

/// What fits into an engine at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that may be open at once.
    pub sequences: u32,
    /// Tokens of one sequence, prompt and answer together.
    pub tokens_per_sequence: u32,
    /// Largest number of tokens per call of [`KvEngine::prefill`]; chunks are cut at this size.
    pub prefill_tokens: u32,
    /// Tokens computed in one go inside a prefill; chunk sizes must be multiples of it for equal
    /// batch shapes on both ends.
    pub microbatch_tokens: u32,
}

/// One token to evaluate for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeStep {
    /// The sequence.
    pub sequence: Sequence,
    /// The token.
    pub token: Token,
    /// Its position, which must be the number of tokens the sequence holds.
    pub position: u32,
}

/// K or V of one layer, as soon as it has been computed.
pub struct LayerRows<'a> {
    /// The layer.
    pub layer: u32,
    /// K or V.
    pub kind: PlaneKind,
    /// Whose rows they are.
    pub tokens: Range<u32>,
    /// Appends the rows of some of these tokens (what lies outside is left out).
    pub read: &'a dyn Fn(Range<u32>, &mut Vec<u8>),
}

/// Takes rows as they come, perhaps on another thread than the engine's.
pub type GiveRows<'a> = dyn FnMut(&LayerRows<'_>) + Send + 'a;

/// Why an engine could not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// All sequences are in use.
    #[error("all {0} sequences of the engine are in use")]
    Full(u32),
    /// The call does not fit the state of the sequence: a bug of the caller, or of a peer.
    #[error("engine call refused: {0}")]
    Refused(String),
    /// The engine itself failed.
    #[error("engine failed: {0}")]
    Failed(String),
}

/// Token-level access to a model and its KV cache. Synchronous; lives on its own thread.
///
/// The token contract: prefill covers tokens `[0, n-1)` of a prompt of `n` tokens; the decoding
/// side evaluates token `n-1` by [`KvEngine::decode`] and samples from its logits. So no logits
/// and no rollback cross from one engine to another.
pub trait KvEngine: Send {
    /// What must be equal on both ends of a handoff.
    fn contract(&self) -> &Contract;

    /// The tokenizer of the model.
    fn tokenizer(&self) -> Arc<dyn Tokenizer>;

    /// What fits.
    fn capacity(&self) -> Capacity;

    /// Tokens of a step in which the end of a prompt is computed (its last complete chunk and what follows), so
    /// that its KV leaves while the rest is computed; divides the chunk, or is larger than it. Both ends of a
    /// handoff compute in such steps, and so the same.
    fn tail_tokens(&self) -> u32;

    /// Threads of the processor that compute each step, the same until the end: results have equal bits only with
    /// equally many. `None` if something else computes.
    fn threads(&self) -> Option<u32> {
        None
    }

    /// A step begins whose results are used until [`Self::end_step`]: engines that share a processor wait so long, because
    /// choosing tokens takes a core, too. A step outside of the two is one by itself.
    fn begin_step(&mut self) {}

    /// The end of it.
    fn end_step(&mut self) {}

    /// Why KV of this model cannot be handed to another engine, if it cannot. Then nothing is exported and nothing
    /// imported, and a sequence goes on from where it ends or starts over.
    fn stays(&self) -> Option<&str> {
        None
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// [`EngineError::Full`] if all are in use.
    fn open(&mut self) -> Result<Sequence, EngineError>;

    /// Evaluates `tokens` at positions `start..` and keeps their KV. No logits. Whatever the
    /// sequence has beyond [`KvEngine::held`] is dropped first.
    ///
    /// # Errors
    /// If `start` is not the number of tokens held, or the engine fails.
    fn prefill(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
    ) -> Result<(), EngineError>;

    /// True if [`KvEngine::prefill_by_layer`] gives rows.
    fn gives_layers(&self) -> bool {
        false
    }

    /// True if rows that [`KvEngine::prefill_by_layer`] has given are right whether or not it fails after that. Those of
    /// all layers may be used then before it returns.
    fn gives_final_rows(&self) -> bool {
        false
    }

    /// As [`KvEngine::prefill`]. An engine that [gives layers](KvEngine::gives_layers) gives K and V of each of them
    /// while the next ones are computed: those of a layer for the tokens in order, perhaps in several parts, and
    /// the same rows that [`KvEngine::export`] would. `give` must not panic. It is not called any more when this returns.
    ///
    /// # Errors
    /// As [`KvEngine::prefill`], and if rows could not be given; what has been given is of no use then, but for
    /// [final rows](KvEngine::gives_final_rows).
    fn prefill_by_layer(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
        give: &mut GiveRows<'_>,
    ) -> Result<(), EngineError> {
        let _ = give;
        self.prefill(sequence, start, tokens)
    }

    /// Copies KV of a range of tokens out. For [`Section::Window`] the range must lie in the window
    /// that ends at the last token held.
    ///
    /// # Errors
    /// If the range is not held, or the engine fails.
    fn export(
        &mut self,
        sequence: Sequence,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<KvBlock, EngineError>;

    /// Bytes that [`KvEngine::export`] copies for each token of a section, at most. llama.cpp copies the rows of window layers
    /// along with those of the full ones, where it still has them.
    fn export_bytes(&self, section: Section) -> u64 {
        let contract = self.contract();
        let bytes = |section| contract.token_bytes(&contract.section_layers(section));
        match section {
            Section::Full => Section::ALL.into_iter().map(bytes).sum(),
            Section::Window => bytes(section),
        }
    }

    /// Takes the rows of `tokens` of a block in. Full blocks must continue where the sequence ends;
    /// the window comes last. Parts of a block come in order, and a window is there with its last
    /// part. A window may come again, also to where it was computed: it then lies where an import puts
    /// it, so that a local answer can be that of a handoff, to the bit. On an error the sequence holds
    /// what it held before, or nothing ([`KvEngine::held`] tells).
    ///
    /// # Errors
    /// If the block does not fit the contract, or the part does not continue the sequence.
    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: Range<u32>,
    ) -> Result<(), EngineError>;

    /// Takes a whole block in.
    ///
    /// # Errors
    /// As [`KvEngine::import_part`].
    fn import(&mut self, sequence: Sequence, block: &KvBlock) -> Result<(), EngineError> {
        self.import_part(sequence, block, block.tokens.clone())
    }

    /// Number of tokens from 0 whose KV is complete enough to continue from.
    ///
    /// For a model with window layers that is 0 until the window has been imported.
    fn held(&self, sequence: Sequence) -> u32;

    /// Drops KV from a position on: [`KvEngine::held`] is then `tokens` at most, and 0 where the engine cannot go
    /// back, as with window layers, whose rows before the window have gone.
    fn truncate(&mut self, sequence: Sequence, tokens: u32);

    /// Drops all KV of a sequence and keeps it open.
    fn clear(&mut self, sequence: Sequence) {
        self.truncate(sequence, 0);
    }

    /// Evaluates one token for each of several sequences; one row of `n_vocab` logits per step.
    ///
    /// # Errors
    /// If a position is not the number of tokens held, or the engine fails.
    fn decode(&mut self, steps: &[DecodeStep]) -> Result<Vec<Vec<f32>>, EngineError>;

    /// Closes a sequence and frees its KV.
    fn release(&mut self, sequence: Sequence);
}
