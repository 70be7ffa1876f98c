//! The KV cache of an engine: sequences, and their rows in and out.

use std::ops::Range;

use tandem_handoff::{Contract, KvBlock, Section};

/// A sequence inside an engine. Valid from [`KvCache::open`] to [`KvCache::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u32);

/// What fits into an engine at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that may be open at once and become as long as they may.
    pub sequences: u32,
    /// Sequences that may be open besides: those of ended requests, which others share. No room in the cache is set
    /// aside for them ([`EngineError::NoRoom`]).
    pub cached: u32,
    /// Tokens of one sequence, prompt and answer together.
    pub tokens_per_sequence: u32,
    /// Largest number of tokens of a chunk of a prefill; chunks are cut at this size.
    pub prefill_tokens: u32,
    /// Tokens computed in one go inside a prefill; chunk sizes must be multiples of it for equal
    /// batch shapes on both ends.
    pub microbatch_tokens: u32,
}

impl Capacity {
    /// Most tokens of all items of one call together: a chunk, or a step of decoding of all sequences.
    #[must_use]
    pub const fn call_tokens(&self) -> u32 {
        if self.prefill_tokens > self.sequences {
            self.prefill_tokens
        } else {
            self.sequences
        }
    }
}

/// Why an engine could not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// All sequences are in use.
    #[error("all {0} sequences of the engine are in use")]
    Full(u32),
    /// The call does not fit the state of the sequence: a bug of the caller, or of a peer.
    #[error("engine call refused: {0}")]
    Refused(String),
    /// There is no room in the cache; everything is as it was. Where no more than [`Capacity::sequences`] are open, there
    /// is room.
    #[error("there is no room in the KV cache")]
    NoRoom,
    /// The engine itself failed.
    #[error("engine failed: {0}")]
    Failed(String),
}

/// The cache of a model: which sequences are open, and what they hold.
///
/// What is handed over is a block of rows of one [`Section`]. A model whose cache is more than rows per token, a recurrent
/// state say, [stays](Self::stays) until its state is a section of its own.
pub trait KvCache {
    /// What must be equal on both ends of a handoff.
    fn contract(&self) -> &Contract;

    /// What fits.
    fn capacity(&self) -> Capacity;

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

    /// Gives `to`, which is empty, the first tokens of `from`: both have the same rows of the full layers, without a copy,
    /// and each goes on and ends by itself. A model with window layers has the window at one position only. So unless `tokens` is all that
    /// `from` holds, `to` then lacks its window, as behind full blocks ([`KvCache::held`] is 0 until it is imported).
    ///
    /// # Errors
    /// [`EngineError::Refused`] if one of them is not open, `from` does not hold so many, or `to` holds any.
    /// [`EngineError::NoRoom`] if there is none for a window. `to` is empty then.
    fn share(&mut self, from: Sequence, to: Sequence, tokens: u32) -> Result<(), EngineError>;

    /// True from [`KvCache::open`] to [`KvCache::release`].
    fn is_open(&self, sequence: Sequence) -> bool;

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

    /// Bytes that [`KvCache::export`] copies for each token of a section, at most. llama.cpp copies the rows of window layers
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
    /// what it held before, or nothing ([`KvCache::held`] tells).
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
    /// As [`KvCache::import_part`].
    fn import(&mut self, sequence: Sequence, block: &KvBlock) -> Result<(), EngineError> {
        self.import_part(sequence, block, block.tokens.clone())
    }

    /// Number of tokens from 0 whose KV is complete enough to continue from.
    ///
    /// For a model with window layers that is 0 until the window has been imported.
    fn held(&self, sequence: Sequence) -> u32;

    /// Drops KV from a position on: [`KvCache::held`] is then `tokens` at most, and 0 where the engine cannot go
    /// back, as with window layers, whose rows before the window have gone.
    fn truncate(&mut self, sequence: Sequence, tokens: u32);

    /// Drops all KV of a sequence and keeps it open.
    fn clear(&mut self, sequence: Sequence) {
        self.truncate(sequence, 0);
    }

    /// Closes a sequence and frees its KV.
    fn release(&mut self, sequence: Sequence);
}
