//! Copying KV out of the engine as soon as it is computed, a slice between two steps of running generations, and
//! windows of models with sliding windows back to where an import puts them.
//!
//! A window cache is a ring: after a long prefill the window starts in its middle, while an imported one
//! starts at its first cell. The order of cells is the order of float sums, so a local prefill has to end
//! where a handoff would.

mod by_layer;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine::{Compute, EngineError, KvCache};
use tandem_handoff::limits::TARGET_BLOCK_BYTES;
use tandem_handoff::{KvBlock, Section};

use self::by_layer::LayerExport;
use super::sequences::{ActiveSequence, After, ChunkExport, Export, ExportStage, Stage, Work};
use super::slices::{FullOut, Taking, put_back};
use super::{EngineLoop, milliseconds};
use crate::limits::SLICE_BYTES;
use crate::sequence::{Computed, Input, SequenceId, StreamedBlock};

/// Copies a slice of what a prefill for another node has computed; hands all of it out, full blocks and what there
/// is of the window, once the last slice is copied.
pub(super) fn hand_out(
    engine: &mut dyn KvCache,
    sequence: &mut ActiveSequence,
    mut export: ChunkExport,
) -> Result<After, EngineError> {
    let to = export.full.rest.end;
    let Work::Export(e) = &mut sequence.work else {
        return Ok(After::Keep);
    };
    let mut copied = 0;
    while let Some(block) = export.full.step(engine, sequence.place, &mut copied)? {
        export.blocks.push(block);
    }
    let mut is_whole = export.full.is_over();
    if let Some(window) = &mut e.window {
        if is_whole && copied + TARGET_BLOCK_BYTES <= SLICE_BYTES {
            export
                .blocks
                .extend(window.step(engine, sequence.place, to)?);
        }
        is_whole &= !window.lags(to);
    }
    if !is_whole {
        e.stage = ExportStage::ChunkExport(export);
        return Ok(After::Keep);
    }
    let ChunkExport {
        blocks, computed, ..
    } = export;
    Ok(deliver(sequence, blocks, to, computed))
}

/// The blocks of the chunk that a prefill for another node computes next, which are filled meanwhile.
pub(super) fn begin(
    engine: &dyn Compute,
    export: &Export,
    tokens: Range<u32>,
) -> (LayerExport, Vec<StreamedBlock>) {
    let Range { start, end: to } = tokens;
    let contract = engine.contract();
    let full = FullOut::of(contract, tokens).blocks(contract);
    let full = full.map(|tokens| (Section::Full, tokens));
    // Rows before this chunk are copied out first, behind it.
    let window = export.window.iter().filter(|w| w.next() >= start);
    let window = window.flat_map(|window| window.blocks(contract, to));
    let window = window.map(|tokens| (Section::Window, tokens));
    LayerExport::of(contract, full.chain(window), engine.gives_final_rows())
}

/// Hands out the blocks that were filled while the chunk up to `to` was computed, and what else there is of the
/// window.
pub(super) fn hand_out_filled(
    engine: &mut dyn KvCache,
    sequence: &mut ActiveSequence,
    export: LayerExport,
    to: u32,
) -> Result<After, EngineError> {
    let computed = Instant::now();
    let blocks = export.finish()?;
    if let Work::Export(e) = &mut sequence.work
        && let Some(window) = &mut e.window
    {
        for rows in blocks.iter().filter(|b| b.section == Section::Window) {
            window.join(engine.contract(), rows);
        }
    }
    let export = ChunkExport {
        blocks,
        full: FullOut::of(engine.contract(), to..to),
        computed,
    };
    hand_out(engine, sequence, export)
}

/// Gives the blocks of the chunk up to `to` to be sent.
fn deliver(
    sequence: &mut ActiveSequence,
    blocks: Vec<Arc<KvBlock>>,
    to: u32,
    computed: Instant,
) -> After {
    let last = to == sequence.kv_end();
    let Work::Export(e) = &mut sequence.work else {
        return After::Keep;
    };
    let whole = e.window.take_if(|_| last).and_then(|w| w.copied);
    let chunk = Computed {
        blocks,
        window: whole.clone(),
        tokens: to,
        computed,
        prefill_ms: sequence.prefill_ms,
        computed_tokens: sequence.computed_tokens,
        last,
        receipt_follows: last,
    };
    let delivered = match e.begun.take() {
        Some(begun) => begun.send(chunk).is_ok(),
        None => e.chunks.try_send(Input::Chunk(chunk)).is_ok(),
    };
    e.stage = match whole {
        _ if !last => ExportStage::Prefilling(to),
        // The decode node continues from an import, so whoever evaluates here does, too.
        Some(whole) => ExportStage::PuttingBack(Taking::new(whole)),
        None => ExportStage::Evaluating,
    };
    match delivered {
        true => After::Keep,
        false => After::End,
    }
}

impl EngineLoop {
    /// Copies a slice of what one sequence has; false if there is none to copy.
    pub(super) fn copy_step(&mut self) -> bool {
        let ready =
            |(id, sequence): (&SequenceId, &ActiveSequence)| sequence.can_copy().then_some(*id);
        let Some(id) = self.sequences.iter().find_map(ready) else {
            return false;
        };
        let after = self.copy_slice(id);
        self.go_on(id, after);
        true
    }

    fn copy_slice(&mut self, id: SequenceId) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let (engine, place) = (self.engine.as_mut(), sequence.place);
        let begun = Instant::now();
        match &mut sequence.work {
            Work::Export(e) => match &mut e.stage {
                ExportStage::ChunkExport(export) => {
                    let export = ChunkExport {
                        blocks: std::mem::take(&mut export.blocks),
                        full: export.full.take(),
                        computed: export.computed,
                    };
                    return hand_out(engine, sequence, export);
                }
                ExportStage::PuttingBack(taking) => {
                    let is_back = put_back(engine, place, taking)?;
                    if is_back {
                        e.stage = ExportStage::Evaluating;
                    }
                }
                _ => {}
            },
            Work::Generate(_) => {
                return self.copy_window(id, begun);
            }
            Work::Retire {
                chunks,
                end,
                window: Some((out, blocks)),
                ..
            } => {
                blocks.extend(out.step(engine, place, *end)?);
                if let Some(whole) = out.whole() {
                    let chunk = Computed {
                        blocks: std::mem::take(blocks),
                        window: Some(Arc::clone(whole)),
                        tokens: *end,
                        computed: begun,
                        prefill_ms: 0.0,
                        computed_tokens: 0,
                        last: true,
                        receipt_follows: false,
                    };
                    // Whoever takes them may have gone.
                    let _ = chunks.try_send(Input::Chunk(chunk));
                    return Ok(After::End);
                }
            }
            Work::Retire { .. } => {}
        }
        Ok(After::Keep)
    }

    /// Moves a slice of the window of a prompt that is read here: to where an import puts it, or out for others.
    fn copy_window(&mut self, id: SequenceId, begun: Instant) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let (engine, place, kv_end) = (self.engine.as_mut(), sequence.place, sequence.kv_end());
        let Work::Generate(g) = &mut sequence.work else {
            return Ok(After::Keep);
        };
        let mut copied = None;
        match &mut g.stage {
            Stage::Settling { window, next } => match window.step(engine, place) {
                Ok(false) => {}
                Ok(true) if *next == kv_end && sequence.reproducible => {
                    g.start_decoding(sequence.tokens[kv_end as usize], kv_end);
                }
                Ok(true) => g.stage = Stage::Prefilling { next: *next },
                Err(error) if sequence.reproducible => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a window cannot be shared; computing instead");
                    engine.clear(place);
                    g.summary.cached_tokens = 0;
                    g.stage = Stage::Prefilling { next: 0 };
                }
            },
            Stage::Copying { out, next } => {
                out.step(engine, place, *next)?;
                copied = out.whole().cloned();
                if copied.is_some() {
                    g.stage = Stage::Prefilling { next: *next };
                }
            }
            _ => return Ok(After::Keep),
        }
        sequence.prefill_ms += milliseconds(begun);
        g.summary.local_prefill_ms = sequence.prefill_ms;
        if let Some(rows) = copied {
            self.keep_window(id, &rows);
        }
        Ok(After::Keep)
    }
}
