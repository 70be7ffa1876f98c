//! The suite on the fake, and on engines that are each broken in one way.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tandem_engine::conformance::{self, F32_ROUNDING, Measured};
use tandem_engine::fake::{Call, CallKind, Failure, FakeConfig, FakeEngine};
use tandem_engine::{
    Capacity, Compute, DecodeStep, EngineError, GiveRows, Item, KvCache, KvEngine, LayerRows,
    Sequence, Token, Tokenizer,
};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::{Contract, KvBlock, Plane, PlaneKind, Section};

#[test]
fn the_fake_conforms() {
    let models = [FakeConfig::default(), FakeConfig::windowed()];
    for (config, by_layer) in models.iter().flat_map(|m| [(m, false), (m, true)]) {
        let config = FakeConfig {
            by_layer,
            ..config.clone()
        };
        let make = || Box::new(FakeEngine::new(config.clone())) as Box<dyn KvEngine>;
        let measured = conformance::run(&make, F32_ROUNDING);
        assert_eq!(
            measured,
            Measured {
                batch_difference: 0.0,
                close_calls: 0
            }
        );
    }
}

#[test]
fn other_shapes_conform() {
    for (window, micro, chunk) in [(1, 1, 1), (200, 16, 64), (64, 16, 16), (7, 4, 512)] {
        let config = FakeConfig {
            window,
            microbatch_tokens: micro,
            prefill_tokens: chunk,
            sequences: 2,
            by_layer: true,
            ..FakeConfig::windowed()
        };
        let make = || Box::new(FakeEngine::new(config.clone())) as Box<dyn KvEngine>;
        conformance::run(&make, F32_ROUNDING);
    }
}

/// One way to be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Exports zeros instead of the last row of each plane.
    DropsRow,
    /// Exports the first row of each plane twice, and the second not at all.
    DuplicatesRow,
    /// Exports the rows of each plane in reverse order.
    ReversesRows,
    /// Exports rows of other tokens.
    WrongRange,
    /// Imports zeros for the window.
    SkipsWindow,
    /// Imports zeros for all parts of a window but the last.
    SkipsParts,
    /// Imports full blocks at the end of what is there, whatever they say.
    IgnoresImportPosition,
    /// Decodes at the end, whatever the position says.
    IgnoresDecodePosition,
    /// Prefills at the end, whatever the position says.
    IgnoresPrefillPosition,
    /// All sequences are one.
    SharesSequences,
    /// Swaps the tokens of the first two steps of a batch.
    SwapsBatch,
    /// Gives the rows of logits of a batch in reverse order.
    ReversesLogits,
    /// Gives the logits of a chunk for those of a step in the same call.
    MixesLogits,
    /// Counts one too many.
    HeldTooMany,
    /// Counts one too few.
    HeldTooFew,
    /// Counts full blocks before the window is there.
    HeldWithoutWindow,
    /// Makes any block fit its shape.
    RepairsShapes,
    /// Exports rows that are not there, as zeros.
    InventsRows,
    /// Changes a row when an import is refused.
    SpoilsOnRefusal,
    /// Drops everything but still counts it when an import is refused.
    ForgetsOnRefusal,
    /// Keeps the rows over a release.
    KeepsOverRelease,
    /// Does not clear.
    KeepsOverClear,
    /// Going back changes a row.
    TruncateDisturbs,
    /// Going back counts and drops nothing.
    TruncatesTooFew,
    /// Opens more sequences than it says.
    NeverFull,
    /// Gives the wrong error when full.
    FullIsAFailure,
    /// Exporting changes a row.
    ExportDisturbs,
    /// The row of logits is one too short.
    ShortLogits,
    /// Gives K and V of a layer the one for the other.
    GivesSwapped,
    /// Does not give the last layer.
    GivesTooFew,
    /// Gives the first rows again and again.
    GivesWrongRows,
    /// Gives rows with the wrong tokens.
    GivesWrongTokens,
    /// Gives all rows, whichever are wanted.
    GivesAll,
    /// Gives rows of all items as those of the first one.
    GivesOthers,
    /// Giving rows changes one.
    GivingDisturbs,
    /// Shares one token less.
    SharesTooFew,
    /// Who shared its rows has them no more.
    SharesByMoving,
    /// Shares with one that holds some.
    SharesOver,
    /// Shares rows of which one is another.
    SharesWrongRows,
}

impl Fault {
    /// True if it is one of rows that are given while a chunk is computed.
    fn is_of_giving(self) -> bool {
        matches!(
            self,
            Self::GivesSwapped
                | Self::GivesTooFew
                | Self::GivesWrongRows
                | Self::GivesWrongTokens
                | Self::GivesAll
                | Self::GivesOthers
                | Self::GivingDisturbs
        )
    }
}

/// What the suite says of each fault: that the right check found it.
const FAULTS: [(Fault, bool, &str); 45] = [
    (Fault::DropsRow, false, "the first logits differ"),
    (Fault::DropsRow, true, "a part of the window is not"),
    (Fault::DuplicatesRow, false, "the first logits differ"),
    (Fault::ReversesRows, false, "the first logits differ"),
    (Fault::ReversesRows, true, "a part of the window is not"),
    (Fault::WrongRange, false, "the first logits differ"),
    (Fault::SkipsWindow, true, "settle: the window is another"),
    (Fault::SkipsParts, true, "settle: the window is another"),
    (
        Fault::IgnoresImportPosition,
        false,
        "after a gap: should be refused",
    ),
    (Fault::IgnoresDecodePosition, false, "decode at 0 of"),
    (Fault::IgnoresPrefillPosition, false, "prefill at 0 of"),
    (Fault::SharesSequences, false, "after open: `held`"),
    (Fault::SwapsBatch, false, "side by side, prefilled"),
    (Fault::ReversesLogits, false, "side by side, prefilled"),
    (Fault::MixesLogits, false, "a chunk and a step in one call"),
    (Fault::HeldTooMany, false, "`held` is"),
    (Fault::HeldTooFew, false, "`held` is"),
    (Fault::HeldTooFew, true, "`held` is"),
    (Fault::HeldWithoutWindow, true, "`held` is"),
    (
        Fault::RepairsShapes,
        false,
        "one row too few: should be refused",
    ),
    (
        Fault::RepairsShapes,
        true,
        "one row too few: should be refused",
    ),
    (
        Fault::InventsRows,
        false,
        "export past the end: should be refused",
    ),
    (
        Fault::SpoilsOnRefusal,
        false,
        "then prefill of the rest: the first logits differ",
    ),
    (Fault::ForgetsOnRefusal, false, "then prefill of the rest"),
    (Fault::KeepsOverRelease, false, "after open: `held`"),
    (
        Fault::KeepsOverClear,
        false,
        "then clear and import: `held`",
    ),
    (Fault::TruncateDisturbs, false, "back to a chunk: the first"),
    (Fault::TruncatesTooFew, false, "back to a chunk: `held`"),
    (Fault::NeverFull, false, "instead of Full"),
    (Fault::FullIsAFailure, false, "instead of Full"),
    (Fault::ExportDisturbs, false, "the first logits differ"),
    (Fault::ShortLogits, false, "one logit per token"),
    (Fault::GivesSwapped, false, "other rows than those"),
    (Fault::GivesTooFew, false, "as it was given: is missing"),
    (Fault::GivesWrongRows, false, "other rows than those"),
    (Fault::GivesWrongRows, true, "other rows than those"),
    (Fault::GivesWrongTokens, false, "or has gaps"),
    (Fault::GivesAll, false, "read one by one are others"),
    (Fault::GivesOthers, false, "other rows than those"),
    (Fault::GivingDisturbs, false, "other rows than those"),
    (Fault::SharesTooFew, false, "shared: `held` is"),
    (Fault::SharesTooFew, true, "shared: should work"),
    (Fault::SharesByMoving, false, "shared: `held` is"),
    (Fault::SharesOver, false, "holds some: should be refused"),
    (Fault::SharesWrongRows, false, "to, token 0: logits differ"),
];

/// The fake with one fault.
struct Broken {
    inner: FakeEngine,
    fault: Fault,
    /// As told; the fake itself may have room for more.
    capacity: Capacity,
    /// What `ForgetsOnRefusal` claims to hold.
    claimed: u32,
    /// Sequences that share one, or that were released and kept.
    parked: u32,
}

impl Broken {
    fn new(fault: Fault, config: FakeConfig) -> Self {
        let capacity = FakeEngine::new(config.clone()).capacity();
        let sequences = match fault {
            Fault::NeverFull => config.sequences * 2,
            _ => config.sequences,
        };
        Self {
            inner: FakeEngine::new(FakeConfig {
                sequences,
                by_layer: fault.is_of_giving(),
                ..config
            }),
            fault,
            capacity,
            claimed: 0,
            parked: 0,
        }
    }

    /// The sequence that is meant.
    fn real(&self, sequence: Sequence) -> Sequence {
        match self.fault {
            Fault::SharesSequences => Sequence(0),
            _ => sequence,
        }
    }

    fn spoil_export(&self, block: &mut KvBlock) {
        let tokens = block.len() as usize;
        for plane in &mut block.planes {
            let (end, row) = (plane.data.len(), plane.data.len() / tokens.max(1));
            match self.fault {
                Fault::DropsRow => plane.data[end - row..].fill(0),
                Fault::DuplicatesRow if tokens > 1 => plane.data.copy_within(..row, row),
                Fault::ReversesRows => {
                    let rows: Vec<Vec<u8>> = plane.data.chunks(row).map(<[u8]>::to_vec).collect();
                    let reversed: Vec<u8> = rows.into_iter().rev().flatten().collect();
                    plane.data = reversed.into();
                }
                _ => {}
            }
        }
    }

    /// Changes one bit of the first row.
    fn flip(&mut self, sequence: Sequence) {
        let held = self.inner.held(sequence);
        if held > 0 {
            let mut all = self.inner.export(sequence, Section::Full, 0..held).unwrap();
            all.planes[0].data[0] ^= 1;
            self.inner.clear(sequence);
            self.inner.import(sequence, &all).unwrap();
        }
    }

    /// Planes in order and of the right size for the tokens.
    fn repaired(&self, mut block: KvBlock) -> KvBlock {
        let contract = self.inner.contract();
        let layers = contract.section_layers(block.section).into_iter();
        let kinds = [PlaneKind::Key, PlaneKind::Value];
        block.planes = layers
            .flat_map(|layer| kinds.map(|kind| (layer, kind)))
            .map(|(layer, kind)| {
                let found = block
                    .planes
                    .iter()
                    .find(|p| p.layer == layer && p.kind == kind);
                let mut data = found.map_or_else(Vec::new, |p| p.data.to_vec());
                let bytes = plane_bytes(contract, layer, kind, block.tokens.len() as u32);
                data.resize(bytes.unwrap() as usize, 0);
                let data = data.into();
                Plane { layer, kind, data }
            })
            .collect();
        block
    }
}

impl Broken {
    fn give_spoilt(
        &mut self,
        items: &[Item<'_>],
        give: &mut GiveRows<'_>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let fault = self.fault;
        let last = self.inner.contract().layers.len() as u32 - 1;
        let mut spoilt = |rows: &LayerRows<'_>| {
            let (mut kind, mut tokens) = (rows.kind, rows.tokens.clone());
            let mut sequence = rows.sequence;
            match (fault, rows.kind) {
                (Fault::GivesOthers, _) if items.len() > 1 => sequence = items[0].sequence,
                (Fault::GivesTooFew, _) if rows.layer == last => return,
                (Fault::GivesSwapped, PlaneKind::Key) => kind = PlaneKind::Value,
                (Fault::GivesSwapped, PlaneKind::Value) => kind = PlaneKind::Key,
                (Fault::GivesWrongTokens, _) => tokens.start += 1,
                _ => {}
            }
            let first = rows.tokens.start..rows.tokens.start + 1;
            let read = |wanted: Range<u32>, out: &mut Vec<u8>| match fault {
                Fault::GivesWrongRows => {
                    let wanted =
                        wanted.start.max(rows.tokens.start)..wanted.end.min(rows.tokens.end);
                    wanted.for_each(|_| (rows.read)(first.clone(), out));
                }
                Fault::GivesAll => (rows.read)(rows.tokens.clone(), out),
                _ => (rows.read)(wanted, out),
            };
            give(&LayerRows {
                sequence,
                layer: rows.layer,
                kind,
                tokens,
                read: &read,
            });
        };
        let rows = self.inner.evaluate(items, Some(&mut spoilt))?;
        if fault == Fault::GivingDisturbs {
            self.flip(items[0].sequence);
        }
        Ok(rows)
    }
}

impl KvEngine for Broken {
    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        self.inner.tokenizer()
    }
}

impl KvCache for Broken {
    fn contract(&self) -> &Contract {
        self.inner.contract()
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        self.claimed = 0;
        match self.fault {
            Fault::SharesSequences if self.parked > 0 => {
                self.parked += 1;
                Ok(Sequence(self.parked - 1))
            }
            Fault::SharesSequences => {
                self.parked = 1;
                self.inner.open()
            }
            Fault::KeepsOverRelease if self.parked > 0 => {
                self.parked = 0;
                Ok(Sequence(0))
            }
            Fault::FullIsAFailure => self
                .inner
                .open()
                .map_err(|e| EngineError::Failed(e.to_string())),
            _ => self.inner.open(),
        }
    }

    fn share(&mut self, from: Sequence, to: Sequence, tokens: u32) -> Result<(), EngineError> {
        let (from, to) = (self.real(from), self.real(to));
        let tokens = match self.fault {
            Fault::SharesTooFew if tokens <= self.inner.held(from) => tokens.saturating_sub(1),
            _ => tokens,
        };
        if self.fault == Fault::SharesOver {
            self.inner.clear(to);
        }
        self.inner.share(from, to, tokens)?;
        match self.fault {
            Fault::SharesByMoving => self.inner.clear(from),
            Fault::SharesWrongRows => self.flip(to),
            _ => {}
        }
        Ok(())
    }

    fn is_open(&self, sequence: Sequence) -> bool {
        self.inner.is_open(self.real(sequence))
    }

    fn export(
        &mut self,
        sequence: Sequence,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<KvBlock, EngineError> {
        let sequence = self.real(sequence);
        let held = self.inner.held(sequence);
        let mut asked = tokens.clone();
        match self.fault {
            Fault::InventsRows => asked = asked.start.min(held)..asked.end.min(held),
            Fault::WrongRange if tokens.start > 0 => asked = 0..tokens.len() as u32,
            _ => {}
        }
        let mut block = self.inner.export(sequence, section, asked)?;
        block.tokens = tokens;
        self.spoil_export(&mut block);
        match self.fault {
            Fault::ExportDisturbs => self.flip(sequence),
            Fault::InventsRows => block = self.repaired(block),
            _ => {}
        }
        Ok(block)
    }

    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        mut tokens: Range<u32>,
    ) -> Result<(), EngineError> {
        let sequence = self.real(sequence);
        let mut block = block.clone();
        let held = self.inner.held(sequence);
        match (self.fault, block.section) {
            (Fault::SkipsWindow, Section::Window) => {
                block.planes.iter_mut().for_each(|plane| plane.data.fill(0));
            }
            (Fault::SkipsParts, Section::Window) if tokens.end < block.tokens.end => {
                block.planes.iter_mut().for_each(|plane| plane.data.fill(0));
            }
            (Fault::IgnoresImportPosition, Section::Full) => {
                let start = held.saturating_sub(tokens.start - block.tokens.start);
                block.tokens = start..start + block.len();
                tokens = held..held + tokens.len() as u32;
            }
            (Fault::RepairsShapes, _) => block = self.repaired(block),
            _ => {}
        }
        let result = self.inner.import_part(sequence, &block, tokens);
        match self.fault {
            Fault::SpoilsOnRefusal if result.is_err() => self.flip(sequence),
            Fault::ForgetsOnRefusal if result.is_err() => {
                self.inner.clear(sequence);
                self.claimed = held;
            }
            _ => {}
        }
        result
    }

    fn held(&self, sequence: Sequence) -> u32 {
        let held = self.inner.held(self.real(sequence));
        match self.fault {
            Fault::HeldTooMany if held > 0 => held + 1,
            Fault::HeldTooFew => held.saturating_sub(1),
            Fault::HeldWithoutWindow => held.max(1),
            Fault::ForgetsOnRefusal => held.max(self.claimed),
            _ => held,
        }
    }

    fn truncate(&mut self, sequence: Sequence, tokens: u32) {
        let sequence = self.real(sequence);
        match self.fault {
            Fault::KeepsOverClear if tokens == 0 => {}
            Fault::TruncatesTooFew if tokens > 0 => self.inner.truncate(sequence, tokens + 1),
            _ => self.inner.truncate(sequence, tokens),
        }
        if self.fault == Fault::TruncateDisturbs {
            self.flip(sequence);
        }
    }

    fn release(&mut self, sequence: Sequence) {
        match self.fault {
            Fault::SharesSequences if self.parked > 1 => self.parked -= 1,
            Fault::SharesSequences => {
                self.parked = 0;
                self.inner.release(Sequence(0));
            }
            Fault::KeepsOverRelease if sequence == Sequence(0) => self.parked = 1,
            _ => self.inner.release(sequence),
        }
    }
}

impl Compute for Broken {
    fn tail_tokens(&self) -> u32 {
        self.inner.tail_tokens()
    }

    fn gives_layers(&self) -> bool {
        self.fault.is_of_giving()
    }

    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        give: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut items = items.to_vec();
        for item in &mut items {
            item.sequence = self.real(item.sequence);
            let ignored = match item.logits {
                true => Fault::IgnoresDecodePosition,
                false => Fault::IgnoresPrefillPosition,
            };
            if self.fault == ignored {
                item.start = self.inner.held(item.sequence);
            }
        }
        if let (Fault::SwapsBatch, [a, b, ..]) = (self.fault, &mut items[..])
            && a.tokens.len() == b.tokens.len()
        {
            std::mem::swap(&mut a.tokens, &mut b.tokens);
        }
        let mut rows = match give {
            Some(give) => self.give_spoilt(&items, give)?,
            None => self.inner.evaluate(&items, None)?,
        };
        match self.fault {
            Fault::ShortLogits => rows.iter_mut().for_each(|row| row.truncate(row.len() - 1)),
            Fault::ReversesLogits => rows.reverse(),
            Fault::MixesLogits if items.iter().any(|item| item.tokens.len() > 1) => rows.reverse(),
            _ => {}
        }
        Ok(rows)
    }
}

/// The message with which the suite ends, if it does.
fn verdict(make: &dyn Fn() -> Box<dyn KvEngine>) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| conformance::run(make, F32_ROUNDING))).err()?;
    Some(
        payload
            .downcast::<String>()
            .map_or_else(|_| "no message".to_owned(), |message| *message),
    )
}

#[test]
fn every_fault_is_found() {
    for (fault, windowed, expected) in FAULTS {
        let config = if windowed {
            FakeConfig::windowed()
        } else {
            FakeConfig::default()
        };
        let verdict = verdict(&|| Box::new(Broken::new(fault, config.clone())));
        let message = verdict.unwrap_or_else(|| panic!("{fault:?} was not found"));
        assert!(
            message.starts_with("conformance: ") && message.contains(expected),
            "{fault:?} (windowed: {windowed}): {message}"
        );
    }
}

#[test]
fn engines_with_other_weights_are_found() {
    let made = AtomicU32::new(0);
    let verdict = verdict(&|| {
        let weights = format!("weights {}", made.fetch_add(1, Ordering::Relaxed));
        Box::new(FakeEngine::new(FakeConfig {
            weights,
            ..FakeConfig::default()
        }))
    });
    assert!(verdict.is_some_and(|message| message.contains("weights 1")));
}

#[test]
fn an_engine_that_fails_is_found() {
    for call in [
        CallKind::Open,
        CallKind::Prefill,
        CallKind::Export,
        CallKind::Import,
        CallKind::Decode,
    ] {
        let verdict = verdict(&|| {
            Box::new(FakeEngine::new(FakeConfig {
                fail: Some(Failure {
                    call,
                    nth: 2,
                    every: 0,
                }),
                ..FakeConfig::default()
            }))
        });
        assert!(
            verdict.is_some_and(|message| message.contains("injected failure")),
            "{call:?}"
        );
    }
}

#[test]
fn the_gate_sees_calls_in_order() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let mut engine = FakeEngine::new(FakeConfig {
        gate: Some(Arc::new(move |call| {
            sink.lock().unwrap().push(call.clone())
        })),
        ..FakeConfig::default()
    });
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, 0, &[1, 2, 3]).unwrap();
    engine.clear(sequence);
    engine.release(sequence);
    assert_eq!(
        *seen.lock().unwrap(),
        [
            Call::Open,
            Call::Prefill {
                sequence,
                tokens: 0..3
            },
            Call::Truncate {
                sequence,
                tokens: 0
            },
            Call::Release(sequence),
        ]
    );
}

/// The suite's prompts do not tell all: each single row of each plane must matter to the fake.
#[test]
fn every_row_of_the_fake_matters() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let prompt: Vec<Token> = (0..60).map(|i| 32 + i * 7 % 90).collect();
        let mut engine = FakeEngine::new(config);
        let here = engine.open().unwrap();
        engine.prefill(here, 0, &prompt[..59]).unwrap();
        let blocks = blocks(&mut engine, here, 59);
        let original = first_logits(&mut engine, &blocks, prompt[59]);
        for (b, block) in blocks.iter().enumerate() {
            for plane in 0..block.planes.len() {
                for row in 0..block.len() as usize {
                    let mut changed = blocks.clone();
                    let data = &mut changed[b].planes[plane].data;
                    let width = data.len() / block.len() as usize;
                    data[row * width] ^= 1;
                    let logits = first_logits(&mut engine, &changed, prompt[59]);
                    assert_ne!(logits, original, "block {b}, plane {plane}, row {row}");
                }
            }
        }
    }
}

fn blocks(engine: &mut FakeEngine, sequence: Sequence, end: u32) -> Vec<KvBlock> {
    let mut blocks = vec![engine.export(sequence, Section::Full, 0..end).unwrap()];
    if engine.contract().has_window() {
        let window = engine.contract().window_start(end)..end;
        blocks.push(engine.export(sequence, Section::Window, window).unwrap());
    }
    blocks
}

fn first_logits(engine: &mut FakeEngine, blocks: &[KvBlock], token: Token) -> Vec<f32> {
    let sequence = engine.open().unwrap();
    for block in blocks {
        engine.import(sequence, block).unwrap();
    }
    let position = engine.held(sequence);
    let step = DecodeStep {
        sequence,
        token,
        position,
    };
    let mut rows = engine.decode(&[step]).unwrap();
    engine.release(sequence);
    rows.remove(0)
}
