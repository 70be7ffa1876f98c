//! A deterministic engine without a model, for tests of everything around an engine.
//!
//! Its KV rows are functions of the token, its position and all rows before; the logits are
//! computed from the rows it *stores*. So a row that is missing, swapped, duplicated or from
//! another sequence changes the tokens, as with a real model, and far more visibly.

mod cache;
mod tokenizer;

use std::ops::Range;
use std::sync::Arc;

use tandem_handoff::contract::LAYOUT_VERSION;
use tandem_handoff::{Contract, ElementType, KvBlock, LayerKind, LayerSpec, PlaneKind, Section};

pub use self::tokenizer::{FAKE_BOS, FAKE_EOS, FAKE_IM_START, FakeTokenizer};

use self::cache::Cache;
use crate::compute::{Compute, DecodeStep, GiveRows, Item, LayerRows, check_items, check_share};
use crate::kv_cache::{Capacity, EngineError, KvCache, Sequence};
use crate::kv_engine::KvEngine;
use crate::tokenizer::{Token, Tokenizer};

/// A call of the engine, as the gate sees it before it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// [`KvCache::open`].
    Open,
    /// A chunk of [`Compute::evaluate`].
    Prefill {
        /// The sequence.
        sequence: Sequence,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// K and V of a layer are given by [`Compute::evaluate`].
    Give {
        /// The sequence.
        sequence: Sequence,
        /// The layer.
        layer: u32,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// The last layer has been given by [`Compute::evaluate`], and is not done.
    Given {
        /// The sequence.
        sequence: Sequence,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// [`KvCache::export`].
    Export {
        /// The sequence.
        sequence: Sequence,
        /// Which layers.
        section: Section,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// [`KvCache::import_part`].
    Import {
        /// The sequence.
        sequence: Sequence,
        /// Which layers.
        section: Section,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// The steps of decoding of [`Compute::evaluate`].
    Decode {
        /// The steps of the batch.
        steps: Vec<DecodeStep>,
    },
    /// [`KvCache::share`].
    Share {
        /// Whose tokens.
        from: Sequence,
        /// Who has them, too.
        to: Sequence,
        /// How many.
        tokens: u32,
    },
    /// [`KvCache::truncate`], and so [`KvCache::clear`].
    Truncate {
        /// The sequence.
        sequence: Sequence,
        /// What it keeps.
        tokens: u32,
    },
    /// [`KvCache::release`].
    Release(Sequence),
}

/// Which method a [`Call`] is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// [`KvCache::open`].
    Open,
    /// A chunk of [`Compute::evaluate`].
    Prefill,
    /// A layer that is given.
    Give,
    /// What is left when all layers have been given.
    Given,
    /// [`KvCache::export`].
    Export,
    /// [`KvCache::import_part`].
    Import,
    /// The steps of decoding of [`Compute::evaluate`].
    Decode,
    /// [`KvCache::share`].
    Share,
    /// [`KvCache::truncate`].
    Truncate,
    /// [`KvCache::release`].
    Release,
}

impl Call {
    /// Which method it is.
    #[must_use]
    pub fn kind(&self) -> CallKind {
        match self {
            Self::Open => CallKind::Open,
            Self::Prefill { .. } => CallKind::Prefill,
            Self::Give { .. } => CallKind::Give,
            Self::Given { .. } => CallKind::Given,
            Self::Export { .. } => CallKind::Export,
            Self::Import { .. } => CallKind::Import,
            Self::Decode { .. } => CallKind::Decode,
            Self::Share { .. } => CallKind::Share,
            Self::Truncate { .. } => CallKind::Truncate,
            Self::Release(_) => CallKind::Release,
        }
    }
}

/// Called on the engine's thread before each call does its work; it may block or count.
pub type Gate = Arc<dyn Fn(&Call) + Send + Sync>;

/// A failure to inject: the `nth` call (from 0) of one kind fails and changes nothing, and so do later ones if they are to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Which method; [`CallKind::Truncate`] and [`CallKind::Release`] cannot fail.
    pub call: CallKind,
    /// Which call of that method, from 0.
    pub nth: u32,
    /// How many calls later the next one fails; 0 if none does.
    pub every: u32,
}

impl Failure {
    fn is_of(self, nth: u32) -> bool {
        let since = nth.checked_sub(self.nth);
        since.is_some_and(|since| since == 0 || self.every > 0 && since.is_multiple_of(self.every))
    }
}

/// What a [`FakeEngine`] is like.
#[derive(Clone)]
pub struct FakeConfig {
    /// Sequences open at once.
    pub sequences: u32,
    /// Those that may be open besides.
    pub cached: u32,
    /// Tokens of one sequence.
    pub tokens_per_sequence: u32,
    /// Most tokens per prefill call.
    pub prefill_tokens: u32,
    /// Chunk sizes must be multiples of it.
    pub microbatch_tokens: u32,
    /// Tokens of a step at the end of a prompt.
    pub tail_tokens: u32,
    /// True if layers are given while a chunk is computed, a micro-batch at a time. What of it is sent meanwhile, and so
    /// which bytes are on the wire, depends on how fast the sender is.
    pub by_layer: bool,
    /// True if rows that have been given may be used before the call is over.
    pub final_rows: bool,
    /// Shape of the cache.
    pub layers: Vec<LayerSpec>,
    /// Window of [`LayerKind::Window`] layers in tokens; 0 if there are none.
    pub window: u32,
    /// Changes all rows and logits.
    pub seed: u64,
    /// The contract's fingerprint of the weights; changes all rows and logits too.
    pub weights: String,
    /// The contract's quantisation.
    pub quantisation: String,
    /// The contract's fingerprint of the tokenizer.
    pub tokenizer: String,
    /// A failure to inject.
    pub fail: Option<Failure>,
    /// Called before each call.
    pub gate: Option<Gate>,
}

impl std::fmt::Debug for FakeConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeConfig")
            .field("sequences", &self.sequences)
            .field("layers", &self.layers)
            .field("window", &self.window)
            .field("seed", &self.seed)
            .field("weights", &self.weights)
            .finish_non_exhaustive()
    }
}

const fn layer(kind: LayerKind, kv_heads: u32, key_dim: u32, value_dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        kv_heads,
        key_dim,
        value_dim,
    }
}

impl Default for FakeConfig {
    /// Three layers of different shapes that attend to all tokens.
    fn default() -> Self {
        Self {
            sequences: 4,
            cached: 4,
            tokens_per_sequence: 4096,
            prefill_tokens: 64,
            microbatch_tokens: 16,
            tail_tokens: u32::MAX,
            by_layer: false,
            final_rows: true,
            layers: vec![
                layer(LayerKind::Full, 2, 4, 4),
                layer(LayerKind::Full, 1, 8, 4),
                layer(LayerKind::Full, 2, 4, 2),
            ],
            window: 0,
            seed: 1,
            weights: "fake-weights-1".to_owned(),
            quantisation: "none".to_owned(),
            tokenizer: "fake-bytes-1".to_owned(),
            fail: None,
            gate: None,
        }
    }
}

impl FakeConfig {
    /// Layers with a window of 24 tokens between layers that attend to all tokens.
    #[must_use]
    pub fn windowed() -> Self {
        Self {
            layers: vec![
                layer(LayerKind::Window, 2, 4, 4),
                layer(LayerKind::Full, 1, 8, 4),
                layer(LayerKind::Window, 1, 4, 6),
                layer(LayerKind::Full, 2, 4, 2),
            ],
            window: 24,
            ..Self::default()
        }
    }

    fn contract(&self) -> Contract {
        Contract {
            layout_version: LAYOUT_VERSION,
            engine: "fake 1".to_owned(),
            architecture: "fake".to_owned(),
            quantisation: self.quantisation.clone(),
            weights: self.weights.clone(),
            tokenizer: self.tokenizer.clone(),
            rope: "none".to_owned(),
            rotation: "none".to_owned(),
            window: self.window,
            key_type: ElementType::F16,
            value_type: ElementType::F16,
            layers: self.layers.clone(),
        }
    }
}

/// The engine. See the module.
pub struct FakeEngine {
    contract: Contract,
    config: FakeConfig,
    tokenizer: Arc<FakeTokenizer>,
    /// One cache per sequence; `None` if it is not open.
    slots: Vec<Option<Cache>>,
    /// Calls so far of the kind that shall fail.
    calls: u32,
}

impl FakeEngine {
    /// An engine with no open sequence.
    ///
    /// # Panics
    /// If layers and window do not make a valid contract: a mistake of the test.
    #[must_use]
    pub fn new(config: FakeConfig) -> Self {
        let contract = config.contract();
        if let Err(error) = contract.validate() {
            panic!("FakeConfig: {error}");
        }
        Self {
            contract,
            tokenizer: Arc::new(FakeTokenizer),
            slots: (0..config.sequences + config.cached)
                .map(|_| None)
                .collect(),
            calls: 0,
            config,
        }
    }

    /// Lets the gate see the call and fails it if it is the one to fail.
    fn enter(&mut self, call: &Call) -> Result<(), EngineError> {
        if let Some(gate) = &self.config.gate {
            gate(call);
        }
        match self.config.fail {
            Some(failure) if failure.call == call.kind() => {
                let nth = self.calls;
                self.calls += 1;
                if failure.is_of(nth) {
                    return Err(EngineError::Failed(format!(
                        "injected failure of {:?} call {nth}",
                        failure.call
                    )));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn cache(&self, sequence: Sequence) -> Result<&Cache, EngineError> {
        let slot = self.slots.get(sequence.0 as usize);
        slot.and_then(Option::as_ref)
            .ok_or_else(|| not_open(sequence))
    }

    fn cache_mut(&mut self, sequence: Sequence) -> Result<&mut Cache, EngineError> {
        let slot = self.slots.get_mut(sequence.0 as usize);
        slot.and_then(Option::as_mut)
            .ok_or_else(|| not_open(sequence))
    }

    /// That so many tokens more have room. What sequences share counts for each of them.
    fn check_room(&self, tokens: usize) -> Result<(), EngineError> {
        let all = self.config.sequences as usize * self.config.tokens_per_sequence as usize;
        let caches = self.slots.iter().flatten();
        let taken: usize = caches.map(|cache| cache.full_end() as usize).sum();
        match taken + tokens <= all {
            true => Ok(()),
            false => Err(EngineError::NoRoom),
        }
    }

    fn check_end(&self, end: u64) -> Result<(), EngineError> {
        let limit = self.config.tokens_per_sequence;
        if end > u64::from(limit) {
            return Err(refused(format!(
                "{end} tokens in a sequence of at most {limit}"
            )));
        }
        Ok(())
    }

    /// Records the chunks of a call, and then its steps of decoding.
    fn enter_items(&mut self, items: &[Item<'_>]) -> Result<(), EngineError> {
        let mut steps = Vec::new();
        for item in items {
            let (mut chunk, last) = (item.start..item.end(), item.tokens.last());
            if let Some(token) = last.filter(|_| item.logits) {
                chunk.end -= 1;
                steps.push(DecodeStep {
                    sequence: item.sequence,
                    token: *token,
                    position: chunk.end,
                });
                if chunk.is_empty() {
                    continue;
                }
            }
            self.enter(&Call::Prefill {
                sequence: item.sequence,
                tokens: chunk,
            })?;
        }
        match steps.is_empty() {
            true => Ok(()),
            false => self.enter(&Call::Decode { steps }),
        }
    }

    /// Evaluates the tokens of an item in micro-batches and gives their rows.
    fn give_rows(&mut self, item: &Item<'_>, give: &mut GiveRows<'_>) -> Result<(), EngineError> {
        let micro = self.config.microbatch_tokens.max(1);
        let starts = (item.start..).step_by(micro as usize);
        for (part, start) in item.tokens.chunks(micro as usize).zip(starts) {
            self.give_part(item.sequence, start, part, give)?;
        }
        Ok(())
    }

    /// Evaluates a micro-batch and gives its rows, layer by layer.
    fn give_part(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
        give: &mut GiveRows<'_>,
    ) -> Result<(), EngineError> {
        let cache = self.cache_mut(sequence)?;
        let rows: Vec<Vec<Vec<u8>>> = tokens.iter().map(|token| cache.push(*token)).collect();
        let planes: Vec<(u32, PlaneKind)> = cache.planes().collect();
        let tokens = start..cache.held();
        for (plane, (layer, kind)) in planes.into_iter().enumerate() {
            if kind == PlaneKind::Key {
                self.enter(&Call::Give {
                    sequence,
                    layer,
                    tokens: tokens.clone(),
                })
                .inspect_err(|_| self.clear(sequence))?;
            }
            let read = |wanted: Range<u32>, out: &mut Vec<u8>| {
                let wanted = wanted.start.max(start)..wanted.end.min(tokens.end);
                for token in wanted {
                    out.extend_from_slice(&rows[(token - start) as usize][plane]);
                }
            };
            give(&LayerRows {
                sequence,
                layer,
                kind,
                tokens: tokens.clone(),
                read: &read,
            });
        }
        self.enter(&Call::Given { sequence, tokens })
            .inspect_err(|_| self.clear(sequence))
    }
}

impl KvEngine for FakeEngine {
    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        self.tokenizer.clone()
    }
}

impl KvCache for FakeEngine {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            sequences: self.config.sequences,
            cached: self.config.cached,
            tokens_per_sequence: self.config.tokens_per_sequence,
            prefill_tokens: self.config.prefill_tokens,
            microbatch_tokens: self.config.microbatch_tokens,
        }
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        self.enter(&Call::Open)?;
        let free = (0..).zip(&self.slots).find(|(_, slot)| slot.is_none());
        let Some((index, _)) = free else {
            return Err(EngineError::Full(
                self.config.sequences + self.config.cached,
            ));
        };
        let cache = Cache::new(&self.contract, self.config.seed);
        self.slots[index as usize] = Some(cache);
        Ok(Sequence(index))
    }

    fn share(&mut self, from: Sequence, to: Sequence, tokens: u32) -> Result<(), EngineError> {
        self.enter(&Call::Share { from, to, tokens })?;
        check_share(self, from, to, tokens)?;
        let shared = self.cache(from)?.beginning(tokens);
        *self.cache_mut(to)? = shared;
        Ok(())
    }

    fn is_open(&self, sequence: Sequence) -> bool {
        self.cache(sequence).is_ok()
    }

    fn export(
        &mut self,
        sequence: Sequence,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<KvBlock, EngineError> {
        self.enter(&Call::Export {
            sequence,
            section,
            tokens: tokens.clone(),
        })?;
        self.cache(sequence)?
            .export(section, tokens)
            .map_err(refused)
    }

    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: Range<u32>,
    ) -> Result<(), EngineError> {
        self.enter(&Call::Import {
            sequence,
            section: block.section,
            tokens: tokens.clone(),
        })?;
        block
            .validate(&self.contract)
            .map_err(|e| refused(e.to_string()))?;
        self.check_end(u64::from(block.tokens.end))?;
        if block.section == Section::Full {
            self.check_room(tokens.len())?;
        }
        let cache = self.cache_mut(sequence)?;
        cache.import(block, &tokens).map_err(refused)
    }

    fn held(&self, sequence: Sequence) -> u32 {
        self.cache(sequence).map_or(0, Cache::held)
    }

    fn truncate(&mut self, sequence: Sequence, tokens: u32) {
        let _ = self.enter(&Call::Truncate { sequence, tokens });
        if let Ok(cache) = self.cache_mut(sequence) {
            cache.truncate(tokens);
        }
    }

    fn release(&mut self, sequence: Sequence) {
        let _ = self.enter(&Call::Release(sequence));
        if let Some(slot) = self.slots.get_mut(sequence.0 as usize) {
            *slot = None;
        }
    }
}

impl Compute for FakeEngine {
    fn tail_tokens(&self) -> u32 {
        self.config.tail_tokens
    }

    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        mut give: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        self.enter_items(items)?;
        let vocabulary = self.tokenizer.len();
        check_items(self, vocabulary, items)?;
        self.check_room(items.iter().map(|item| item.tokens.len()).sum())?;
        let mut rows = Vec::new();
        for item in items {
            self.cache_mut(item.sequence)?.drop_incomplete();
            match &mut give {
                Some(give) if self.config.by_layer => self.give_rows(item, *give)?,
                _ => {
                    let cache = self.cache_mut(item.sequence)?;
                    item.tokens
                        .iter()
                        .for_each(|token| drop(cache.push(*token)));
                }
            }
            if item.logits {
                rows.push(self.cache(item.sequence)?.logits(vocabulary));
            }
        }
        Ok(rows)
    }

    fn gives_layers(&self) -> bool {
        self.config.by_layer
    }

    fn gives_final_rows(&self) -> bool {
        self.config.final_rows
    }
}

fn refused(reason: String) -> EngineError {
    EngineError::Refused(reason)
}

fn not_open(sequence: Sequence) -> EngineError {
    refused(format!("{sequence:?} is not open"))
}
