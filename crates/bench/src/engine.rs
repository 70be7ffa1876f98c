//! An engine that does nothing but take KV in: what a handoff costs beside an engine's own work.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_engine::compute::check_items;
use tandem_engine::fake::FakeTokenizer;
use tandem_engine::{
    Capacity, Compute, EngineError, GiveRows, Item, KvCache, KvEngine, Sequence, Tokenizer,
};
use tandem_handoff::contract::LAYOUT_VERSION;
use tandem_handoff::{Contract, ElementType, KvBlock, LayerKind, LayerSpec, PlaneKind, Section};

/// Layers of the model whose cache this one has the shape of: Qwen3-30B-A3B.
const LAYERS: usize = 48;
/// Its KV heads.
const KV_HEADS: u32 = 4;
/// Elements of each.
const HEAD_DIM: u32 = 128;
/// Sequences that may be open: one, and one that is being closed.
const SEQUENCES: u32 = 2;
/// Tokens per chunk.
pub const CHUNK: u32 = 512;

/// What is handed over: 48 full layers with 4 KV heads of 128 in f16, 96 KiB for each token.
#[must_use]
pub fn contract() -> Contract {
    let layer = LayerSpec {
        kind: LayerKind::Full,
        kv_heads: KV_HEADS,
        key_dim: HEAD_DIM,
        value_dim: HEAD_DIM,
    };
    Contract {
        layout_version: LAYOUT_VERSION,
        engine: "tandem bench".into(),
        architecture: "qwen3moe".into(),
        quantisation: "none".into(),
        weights: "none".into(),
        tokenizer: "none".into(),
        rope: "none".into(),
        rotation: "none".into(),
        window: 0,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers: vec![layer; LAYERS],
    }
}

/// The planes that KV is put into, shared by the engines of a process. Every page of their memory has
/// been touched, as that of an engine in use.
#[derive(Debug)]
pub struct Cache {
    /// K and V of each layer, `[token][kv_head][dim]`.
    planes: Vec<Vec<u8>>,
    row_bytes: usize,
}

impl Cache {
    /// Planes for this many tokens.
    #[must_use]
    pub fn new(contract: &Contract, tokens: u32) -> Self {
        let row_bytes = contract.layers.first().map_or(0, |layer| {
            layer.row_bytes(PlaneKind::Key, contract.key_type)
        });
        let row_bytes = usize::try_from(row_bytes).unwrap_or(0);
        // Not zero: that would be memory which the system has not given yet.
        let plane = vec![1; row_bytes * tokens as usize];
        Self {
            planes: vec![plane; contract.layers.len() * 2],
            row_bytes,
        }
    }

    /// BLAKE3 of the digests of all planes, each over its first `tokens` rows.
    #[must_use]
    pub fn digest(&self, tokens: u32) -> String {
        let end = tokens as usize * self.row_bytes;
        let planes = self.planes.iter().map(|plane| blake3::hash(&plane[..end]));
        digest_of(planes)
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.planes.iter_mut().for_each(|plane| plane.fill(1));
    }

    /// The rows of some tokens, plane by plane; empty where there are none.
    pub fn rows(&mut self, tokens: Range<u32>) -> impl Iterator<Item = &mut [u8]> {
        let bytes = |token: u32| token as usize * self.row_bytes;
        let range = bytes(tokens.start)..bytes(tokens.end);
        let planes = self.planes.iter_mut();
        planes.map(move |plane| plane.get_mut(range.clone()).unwrap_or_default())
    }

    fn put(&mut self, block: &KvBlock) -> Result<(), EngineError> {
        for (to, from) in self.rows(block.tokens.clone()).zip(&block.planes) {
            if to.len() != from.data.len() {
                return Err(EngineError::Refused("a plane has another size".into()));
            }
            to.copy_from_slice(&from.data);
        }
        Ok(())
    }
}

/// BLAKE3 of digests.
#[must_use]
pub fn digest_of(planes: impl Iterator<Item = blake3::Hash>) -> String {
    let mut all = blake3::Hasher::new();
    for plane in planes {
        all.update(plane.as_bytes());
    }
    all.finalize().to_hex().to_string()
}

/// What this engine computes for any token: all are equally likely.
#[must_use]
pub fn logits() -> Vec<f32> {
    vec![0.0; FakeTokenizer.len() as usize]
}

/// The engine.
pub struct BenchEngine {
    contract: Contract,
    cache: Arc<Mutex<Cache>>,
    tokens: u32,
    /// Tokens that each open sequence holds.
    held: BTreeMap<Sequence, u32>,
    next: u32,
}

impl BenchEngine {
    /// An engine for sequences of this many tokens.
    #[must_use]
    pub const fn new(contract: Contract, cache: Arc<Mutex<Cache>>, tokens: u32) -> Self {
        Self {
            contract,
            cache,
            tokens,
            held: BTreeMap::new(),
            next: 0,
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_model<T>(call: &str) -> Result<T, EngineError> {
    let reason = format!("{call}: this engine has no model, it takes KV in");
    Err(EngineError::Refused(reason))
}

impl KvEngine for BenchEngine {
    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        Arc::new(FakeTokenizer)
    }
}

impl KvCache for BenchEngine {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            sequences: SEQUENCES,
            cached: 0,
            tokens_per_sequence: self.tokens,
            prefill_tokens: CHUNK,
            microbatch_tokens: CHUNK,
        }
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        if self.held.len() >= SEQUENCES as usize {
            return Err(EngineError::Full(SEQUENCES));
        }
        let sequence = Sequence(self.next);
        self.next = self.next.wrapping_add(1);
        self.held.insert(sequence, 0);
        Ok(sequence)
    }

    fn share(&mut self, _: Sequence, _: Sequence, _: u32) -> Result<(), EngineError> {
        no_model("share")
    }

    fn is_open(&self, sequence: Sequence) -> bool {
        self.held.contains_key(&sequence)
    }

    fn export(&mut self, _: Sequence, _: Section, _: Range<u32>) -> Result<KvBlock, EngineError> {
        no_model("export")
    }

    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: Range<u32>,
    ) -> Result<(), EngineError> {
        let in_order = self.held(sequence) == block.tokens.start && tokens == block.tokens;
        if !in_order || block.section != Section::Full {
            return Err(EngineError::Refused("a block out of order".into()));
        }
        self.cache().put(block)?;
        self.held.insert(sequence, block.tokens.end);
        Ok(())
    }

    fn held(&self, sequence: Sequence) -> u32 {
        self.held.get(&sequence).copied().unwrap_or(0)
    }

    fn truncate(&mut self, sequence: Sequence, tokens: u32) {
        let held = self.held(sequence).min(tokens);
        self.held.insert(sequence, held);
    }

    fn release(&mut self, sequence: Sequence) {
        self.held.remove(&sequence);
    }
}

impl Compute for BenchEngine {
    fn tail_tokens(&self) -> u32 {
        self.capacity().microbatch_tokens
    }

    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        _: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        if !items.iter().all(|item| item.logits) {
            return no_model("prefill");
        }
        check_items(self, FakeTokenizer.len(), items)?;
        for item in items {
            self.held.insert(item.sequence, item.end());
        }
        Ok(vec![logits(); items.len()])
    }
}
