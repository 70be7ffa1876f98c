//! An engine that takes the time of another machine and computes nothing.
//!
//! It holds no weights and no rows: its KV is a pattern of the shape of a model, made where it is read and compared where
//! it arrives, so that what crosses a link has the size of the real thing. Its answers say `paced` until they are cut.
//! Its contract says so too: nothing real agrees with it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use half::f16;
use tandem_handoff::contract::LAYOUT_VERSION;
use tandem_handoff::{
    Contract, ElementType, KvBlock, LayerKind, LayerSpec, Plane, PlaneKind, Section,
};

use crate::compute::{Compute, GiveRows, Item, LayerRows, check_items, check_share};
use crate::fake::FakeTokenizer;
use crate::kv_cache::{Capacity, EngineError, KvCache, Sequence};
use crate::kv_engine::KvEngine;
use crate::tokenizer::{Token, Tokenizer};

/// What an answer says, again and again.
const ANSWER: &[u8] = b"paced ";
/// Values of the pattern of which all rows are made; odd, so that rows differ from each other.
const PATTERN: usize = 524_287;

/// How long things take.
pub trait Pace: Send {
    /// A prefill of `new` tokens after `have`.
    fn prefill(&self, have: u32, new: u32) -> Duration;

    /// One step of decoding of sequences that hold so many tokens.
    fn step(&self, held: &[u32]) -> Duration;
}

/// The machine whose time engines take: what one of them computes, the others wait for.
#[derive(Debug, Default)]
pub struct PacedMachine {
    /// When what it has been given is done.
    free: Mutex<Option<Instant>>,
}

impl PacedMachine {
    /// Begins something that takes so long, as soon as the machine is free. Returns when that is.
    fn begin(&self, now: Instant, long: Duration) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = free.map_or(now, |free| free.max(now));
        *free = Some(begins + long);
        begins
    }
}

/// What is played.
#[derive(Debug, Clone)]
pub struct PacedModel {
    /// Its name, which stands in the contract.
    pub name: String,
    /// Its layers.
    pub layers: Vec<LayerSpec>,
    /// Tokens that [`LayerKind::Window`] layers look back; 0 without such layers.
    pub window: u32,
    /// Why its KV cannot be handed over, if it cannot.
    pub stays: Option<String>,
}

/// What a sequence holds.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Tokens in the full layers.
    full: u32,
    /// One past the last token of the window layers.
    window: u32,
}

/// The engine. See the module.
pub struct PacedEngine {
    contract: Contract,
    capacity: Capacity,
    stays: Option<String>,
    pace: Box<dyn Pace>,
    machine: Arc<PacedMachine>,
    tokenizer: Arc<FakeTokenizer>,
    pattern: Arc<[u8]>,
    slots: Vec<Option<Held>>,
}

impl PacedEngine {
    /// An engine with no open sequence. Engines of one machine take turns.
    ///
    /// # Errors
    /// If the layers make no valid contract.
    pub fn new(
        model: PacedModel,
        capacity: Capacity,
        pace: Box<dyn Pace>,
        machine: Arc<PacedMachine>,
    ) -> Result<Self, EngineError> {
        let contract = Contract {
            layout_version: LAYOUT_VERSION,
            engine: "paced 1".to_owned(),
            architecture: "paced".to_owned(),
            quantisation: "paced".to_owned(),
            weights: format!("paced {}", model.name),
            tokenizer: "paced bytes 1".to_owned(),
            rope: "none".to_owned(),
            rotation: "none".to_owned(),
            window: model.window,
            key_type: ElementType::F16,
            value_type: ElementType::F16,
            layers: model.layers,
        };
        contract.validate().map_err(|e| refused(e.to_string()))?;
        Ok(Self {
            contract,
            stays: model.stays,
            pace,
            machine,
            tokenizer: Arc::new(FakeTokenizer),
            pattern: pattern(),
            slots: vec![None; (capacity.sequences + capacity.cached) as usize],
            capacity,
        })
    }

    fn slot(&self, sequence: Sequence) -> Result<Held, EngineError> {
        let slot = self.slots.get(sequence.0 as usize).copied().flatten();
        slot.ok_or_else(|| refused(format!("{sequence:?} is not open")))
    }

    fn set(&mut self, sequence: Sequence, held: Held) {
        if let Some(Some(slot)) = self.slots.get_mut(sequence.0 as usize) {
            *slot = held;
        }
    }

    /// Tokens that can be continued from.
    fn usable(&self, held: Held) -> u32 {
        match self.contract.has_window() && held.window != held.full {
            true => 0,
            false => held.full,
        }
    }

    /// Takes the time of a chunk, and gives its rows meanwhile.
    fn play_chunk(&self, item: &Item<'_>, give: &mut GiveRows<'_>) {
        let whole = self.pace.prefill(item.start, item.end() - item.start);
        let began = self.machine.begin(Instant::now(), whole);
        let layers = self.layers();
        for layer in 0..layers {
            sleep_until(began + whole * (layer + 1) / layers);
            self.give_layer(item, layer, give);
        }
    }

    /// Takes the time of a step of decoding, and gives its rows.
    fn play_step(&self, items: &[&Item<'_>], give: &mut GiveRows<'_>) {
        let held: Vec<u32> = items.iter().map(|item| item.end()).collect();
        let long = self.pace.step(&held);
        sleep_until(self.machine.begin(Instant::now(), long) + long);
        for item in items {
            (0..self.layers()).for_each(|layer| self.give_layer(item, layer, give));
        }
    }

    fn layers(&self) -> u32 {
        u32::try_from(self.contract.layers.len()).unwrap_or(u32::MAX)
    }

    /// Gives the rows of an item of one layer.
    fn give_layer(&self, item: &Item<'_>, layer: u32, give: &mut GiveRows<'_>) {
        let (start, end) = (item.start, item.end());
        for kind in [PlaneKind::Key, PlaneKind::Value] {
            let row = self.row_bytes(layer, kind);
            let read = |wanted: Range<u32>, out: &mut Vec<u8>| {
                let wanted = wanted.start.max(start)..wanted.end.min(end);
                let at = self.offset(layer, kind, wanted.start);
                extend(&self.pattern, at, wanted.len() * row, out);
            };
            give(&LayerRows {
                sequence: item.sequence,
                layer,
                kind,
                tokens: start..end,
                read: &read,
            });
        }
    }

    /// The logits after so many tokens: of the next letter of [`ANSWER`].
    fn logits(&self, held: u32) -> Vec<f32> {
        let next = Token::from(ANSWER[held as usize % ANSWER.len()]);
        let logit = |token| if token == next { 0.0 } else { -30.0 };
        (0..self.tokenizer.len()).map(logit).collect()
    }

    /// The planes of a section: layer, kind, bytes of a row.
    fn planes(&self, section: Section) -> Vec<(u32, PlaneKind, usize)> {
        let layers = self.contract.section_layers(section).into_iter();
        let planes = layers.flat_map(|layer| {
            [PlaneKind::Key, PlaneKind::Value]
                .map(|kind| (layer, kind, self.row_bytes(layer, kind)))
        });
        planes.collect()
    }

    fn row_bytes(&self, layer: u32, kind: PlaneKind) -> usize {
        let element = match kind {
            PlaneKind::Key => self.contract.key_type,
            PlaneKind::Value => self.contract.value_type,
        };
        let spec = &self.contract.layers[layer as usize];
        usize::try_from(spec.row_bytes(kind, element)).unwrap_or(0)
    }

    /// Where the rows of a plane from a token on lie in the pattern.
    fn offset(&self, layer: u32, kind: PlaneKind, token: u32) -> usize {
        let plane = layer as usize * 2 + usize::from(kind == PlaneKind::Value);
        let values = token as usize * self.row_bytes(layer, kind) / 2;
        (plane * 7_919 + values) % PATTERN * 2
    }

    /// Whether these are the rows of a plane from a token on.
    fn is_pattern(&self, layer: u32, kind: PlaneKind, token: u32, rows: &[u8]) -> bool {
        let mut at = self.offset(layer, kind, token);
        let mut rest = rows;
        while !rest.is_empty() {
            let run = rest.len().min(self.pattern.len() - at);
            if rest[..run] != self.pattern[at..at + run] {
                return false;
            }
            (rest, at) = (&rest[run..], 0);
        }
        true
    }
}

/// Appends so many bytes of the pattern.
fn extend(pattern: &[u8], mut at: usize, bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + bytes;
    while out.len() < end {
        let run = (end - out.len()).min(pattern.len() - at);
        out.extend_from_slice(&pattern[at..at + run]);
        at = 0;
    }
}

/// Numbers between -1 and 1 as little-endian f16, of a generator with a fixed seed.
fn pattern() -> Arc<[u8]> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let value = |_| {
        // xorshift64* (Vigna, 2016).
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let [high, low, ..] = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes();
        f16::from_f32(f32::from(i16::from_be_bytes([high, low])) / 32_768.0).to_le_bytes()
    };
    (0..PATTERN).flat_map(value).collect()
}

fn sleep_until(then: Instant) {
    std::thread::sleep(then.saturating_duration_since(Instant::now()));
}

impl KvEngine for PacedEngine {
    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        self.tokenizer.clone()
    }
}

impl KvCache for PacedEngine {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn stays(&self) -> Option<&str> {
        self.stays.as_deref()
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        let free = (0..).zip(&self.slots).find(|(_, slot)| slot.is_none());
        let (index, _) = free.ok_or(EngineError::Full(
            self.capacity.sequences + self.capacity.cached,
        ))?;
        self.slots[index as usize] = Some(Held::default());
        Ok(Sequence(index))
    }

    fn share(&mut self, from: Sequence, to: Sequence, tokens: u32) -> Result<(), EngineError> {
        check_share(self, from, to, tokens)?;
        let held = Held {
            full: tokens,
            window: match tokens == self.slot(from)?.full {
                true => tokens,
                false => 0,
            },
        };
        self.set(to, held);
        Ok(())
    }

    fn is_open(&self, sequence: Sequence) -> bool {
        self.slot(sequence).is_ok()
    }

    fn export(
        &mut self,
        sequence: Sequence,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<KvBlock, EngineError> {
        let held = self.usable(self.slot(sequence)?);
        if tokens.start > tokens.end || tokens.end > held {
            return Err(refused(format!(
                "export of {tokens:?} while {held} tokens are held"
            )));
        }
        let window = self.contract.window_start(held);
        if section == Section::Window && tokens.start < window {
            return Err(refused(format!(
                "export of {tokens:?}; the window begins at {window}"
            )));
        }
        let plane = |(layer, kind, row)| {
            let mut data = Vec::with_capacity(tokens.len() * row);
            let at = self.offset(layer, kind, tokens.start);
            extend(&self.pattern, at, tokens.len() * row, &mut data);
            Plane {
                layer,
                kind,
                data: data.into(),
            }
        };
        let planes = self.planes(section).into_iter().map(plane).collect();
        Ok(KvBlock {
            section,
            planes,
            tokens,
        })
    }

    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: Range<u32>,
    ) -> Result<(), EngineError> {
        let mut held = self.slot(sequence)?;
        block
            .validate(&self.contract)
            .map_err(|e| refused(e.to_string()))?;
        let whole = &block.tokens;
        let window = self.contract.window_start(held.full)..held.full;
        let (fits, start) = match block.section {
            Section::Full => (whole.end <= self.capacity.tokens_per_sequence, held.full),
            // A window begins anew, or goes on.
            Section::Window if tokens.start == whole.start => (*whole == window, whole.start),
            Section::Window => (*whole == window, held.window),
        };
        if !fits || tokens.start != start || tokens.end > whole.end || tokens.is_empty() {
            return Err(refused(format!(
                "tokens {tokens:?} of block {whole:?} of {:?}; {held:?}",
                block.section
            )));
        }
        for plane in &block.planes {
            let row = self.row_bytes(plane.layer, plane.kind);
            let at = |token: u32| (token - whole.start) as usize * row;
            let rows = &plane.data[at(tokens.start)..at(tokens.end)];
            if !self.is_pattern(plane.layer, plane.kind, tokens.start, rows) {
                return Err(refused(format!(
                    "tokens {tokens:?} of layer {} are not the rows of this engine",
                    plane.layer
                )));
            }
        }
        match block.section {
            Section::Full => held.full = tokens.end,
            Section::Window => held.window = tokens.end,
        }
        self.set(sequence, held);
        Ok(())
    }

    fn held(&self, sequence: Sequence) -> u32 {
        self.slot(sequence).map_or(0, |held| self.usable(held))
    }

    fn truncate(&mut self, sequence: Sequence, tokens: u32) {
        let Ok(held) = self.slot(sequence) else {
            return;
        };
        if tokens >= held.full && self.usable(held) > 0 {
            return;
        }
        let kept = match self.contract.has_window() {
            true => 0,
            false => tokens.min(held.full),
        };
        let held = Held {
            full: kept,
            window: kept,
        };
        self.set(sequence, held);
    }

    fn release(&mut self, sequence: Sequence) {
        if let Some(slot) = self.slots.get_mut(sequence.0 as usize) {
            *slot = None;
        }
    }
}

impl Compute for PacedEngine {
    fn tail_tokens(&self) -> u32 {
        u32::MAX
    }

    /// Chunks take their time one after the other, then the steps of decoding together.
    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        give: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        check_items(self, self.tokenizer.len(), items)?;
        let mut nobody = |_: &LayerRows<'_>| {};
        let give = give.unwrap_or(&mut nobody);
        let (steps, chunks): (Vec<_>, Vec<_>) =
            (items.iter()).partition(|item| item.logits && item.tokens.len() == 1);
        for item in chunks {
            self.play_chunk(item, give);
        }
        if !steps.is_empty() {
            self.play_step(&steps, give);
        }
        for item in items {
            let end = item.end();
            let held = Held {
                full: end,
                window: end,
            };
            self.set(item.sequence, held);
        }
        let asked = items.iter().filter(|item| item.logits);
        Ok(asked.map(|item| self.logits(item.end())).collect())
    }

    fn gives_layers(&self) -> bool {
        self.stays.is_none()
    }

    fn gives_final_rows(&self) -> bool {
        true
    }
}

fn refused(reason: String) -> EngineError {
    EngineError::Refused(reason)
}

/// A layer of this shape.
#[must_use]
pub const fn layer(kind: LayerKind, kv_heads: u32, head_dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        kv_heads,
        key_dim: head_dim,
        value_dim: head_dim,
    }
}
