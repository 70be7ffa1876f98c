//! A deterministic engine without a model, for tests of everything around an engine.
//!
//! Its KV rows are functions of the token, its position and all rows before; the logits are
//! computed from the rows it *stores*. So a row that is missing, swapped, duplicated or from
//! another sequence changes the tokens, as with a real model, and far more visibly.

mod cache;
mod tokenizer;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use tandem_handoff::contract::LAYOUT_VERSION;
use tandem_handoff::{Contract, ElementType, KvBlock, LayerKind, LayerSpec, PlaneKind, Section};

pub use self::tokenizer::{FAKE_BOS, FAKE_EOS, FAKE_IM_START, FakeTokenizer};

use self::cache::Cache;
use crate::kv_engine::{
    Capacity, DecodeStep, EngineError, GiveRows, KvEngine, LayerRows, Sequence,
};
use crate::tokenizer::{Token, Tokenizer};

/// A call of the engine, as the gate sees it before it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// [`KvEngine::open`].
    Open,
    /// [`KvEngine::prefill`].
    Prefill {
        /// The sequence.
        sequence: Sequence,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// K and V of a layer are given by [`KvEngine::prefill_by_layer`].
    Give {
        /// The sequence.
        sequence: Sequence,
        /// The layer.
        layer: u32,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// The last layer has been given by [`KvEngine::prefill_by_layer`], and is not done.
    Given {
        /// The sequence.
        sequence: Sequence,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// [`KvEngine::export`].
    Export {
        /// The sequence.
        sequence: Sequence,
        /// Which layers.
        section: Section,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// [`KvEngine::import_part`].
    Import {
        /// The sequence.
        sequence: Sequence,
        /// Which layers.
        section: Section,
        /// Token positions.
        tokens: Range<u32>,
    },
    /// [`KvEngine::decode`].
    Decode {
        /// The steps of the batch.
        steps: Vec<DecodeStep>,
    },
    /// [`KvEngine::truncate`], and so [`KvEngine::clear`].
    Truncate {
        /// The sequence.
        sequence: Sequence,
        /// What it keeps.
        tokens: u32,
    },
    /// [`KvEngine::release`].
    Release(Sequence),
}

/// Which method a [`Call`] is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// [`KvEngine::open`].
    Open,
    /// [`KvEngine::prefill`].
    Prefill,
    /// A layer that is given.
    Give,
    /// What is left when all layers have been given.
    Given,
    /// [`KvEngine::export`].
    Export,
    /// [`KvEngine::import_part`].
    Import,
    /// [`KvEngine::decode`].
    Decode,
    /// [`KvEngine::truncate`].
    Truncate,
    /// [`KvEngine::release`].
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
            slots: (0..config.sequences).map(|_| None).collect(),
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

    /// That `count` tokens at `start` continue the sequence and fit.
    fn check_position(
        &self,
        sequence: Sequence,
        start: u32,
        count: usize,
    ) -> Result<(), EngineError> {
        let held = self.cache(sequence)?.held();
        if start != held {
            return Err(refused(format!(
                "position {start} of a sequence that holds {held} tokens"
            )));
        }
        self.check_end(u64::from(start) + count as u64)
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

    fn check_prefill(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        self.enter(&Call::Prefill {
            sequence,
            tokens: start..start.saturating_add(count),
        })?;
        if count > self.config.prefill_tokens {
            return Err(refused(format!("a chunk of {count} tokens")));
        }
        self.check_position(sequence, start, tokens.len())?;
        self.check_tokens(tokens)
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
                layer,
                kind,
                tokens: tokens.clone(),
                read: &read,
            });
        }
        self.enter(&Call::Given { sequence, tokens })
            .inspect_err(|_| self.clear(sequence))
    }

    fn check_steps(&self, steps: &[DecodeStep]) -> Result<(), EngineError> {
        let mut seen = BTreeSet::new();
        for step in steps {
            self.check_position(step.sequence, step.position, 1)?;
            self.check_tokens(&[step.token])?;
            if !seen.insert(step.sequence) {
                return Err(refused(format!("{:?} twice in one batch", step.sequence)));
            }
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[Token]) -> Result<(), EngineError> {
        match tokens.iter().find(|&&t| t >= self.tokenizer.len()) {
            Some(token) => Err(refused(format!("token {token} is not in the vocabulary"))),
            None => Ok(()),
        }
    }
}

impl KvEngine for FakeEngine {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        self.tokenizer.clone()
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            sequences: self.config.sequences,
            tokens_per_sequence: self.config.tokens_per_sequence,
            prefill_tokens: self.config.prefill_tokens,
            microbatch_tokens: self.config.microbatch_tokens,
        }
    }

    fn tail_tokens(&self) -> u32 {
        self.config.tail_tokens
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        self.enter(&Call::Open)?;
        let free = (0..).zip(&self.slots).find(|(_, slot)| slot.is_none());
        let Some((index, _)) = free else {
            return Err(EngineError::Full(self.config.sequences));
        };
        let cache = Cache::new(&self.contract, self.config.seed);
        self.slots[index as usize] = Some(cache);
        Ok(Sequence(index))
    }

    fn prefill(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        self.check_prefill(sequence, start, tokens)?;
        let cache = self.cache_mut(sequence)?;
        cache.drop_incomplete();
        for &token in tokens {
            cache.push(token);
        }
        Ok(())
    }

    fn gives_layers(&self) -> bool {
        self.config.by_layer
    }

    fn gives_final_rows(&self) -> bool {
        self.config.final_rows
    }

    fn prefill_by_layer(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
        give: &mut GiveRows<'_>,
    ) -> Result<(), EngineError> {
        if !self.config.by_layer {
            return self.prefill(sequence, start, tokens);
        }
        self.check_prefill(sequence, start, tokens)?;
        self.cache_mut(sequence)?.drop_incomplete();
        let micro = self.config.microbatch_tokens.max(1);
        for (part, start) in tokens
            .chunks(micro as usize)
            .zip((start..).step_by(micro as usize))
        {
            self.give_part(sequence, start, part, give)?;
        }
        Ok(())
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

    fn decode(&mut self, steps: &[DecodeStep]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.enter(&Call::Decode {
            steps: steps.to_vec(),
        })?;
        self.check_steps(steps)?;
        let vocabulary = self.tokenizer.len();
        steps
            .iter()
            .map(|step| {
                let cache = self.cache_mut(step.sequence)?;
                cache.drop_incomplete();
                cache.push(step.token);
                Ok(cache.logits(vocabulary))
            })
            .collect()
    }

    fn release(&mut self, sequence: Sequence) {
        let _ = self.enter(&Call::Release(sequence));
        if let Some(slot) = self.slots.get_mut(sequence.0 as usize) {
            *slot = None;
        }
    }
}

fn refused(reason: String) -> EngineError {
    EngineError::Refused(reason)
}

fn not_open(sequence: Sequence) -> EngineError {
    refused(format!("{sequence:?} is not open"))
}
