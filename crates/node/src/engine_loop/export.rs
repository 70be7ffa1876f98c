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
use tandem_handoff::{Contract, KvBlock, Section};
use tokio::sync::oneshot;

pub(super) use self::by_layer::LayerExport;
use super::sequences::{ActiveSequence, After, ChunkExport, Reading, Work};
use super::slices::{CopyOut, FullOut, Taking, Window};
use super::{EngineLoop, milliseconds};
use crate::limits::SLICE_BYTES;
use crate::sequence::{Begun, Computed, Input, SequenceId};

/// The blocks of the part that a prefill for another node computes next, which are filled meanwhile: whoever sends them is
/// told. An error if nobody does any more; `None` if no layers are given.
pub(super) fn begin(
    engine: &dyn Compute,
    sequence: &mut ActiveSequence,
    tokens: Range<u32>,
) -> Option<Result<LayerExport, Gone>> {
    let last = tokens.end == sequence.kv_end();
    let Work::Export(e) = &mut sequence.work else {
        return None;
    };
    if !e.by_layer {
        return None;
    }
    let contract = engine.contract();
    let (start, to) = (tokens.start, tokens.end);
    let full = FullOut::of(contract, tokens).blocks(contract);
    let full = full.map(|tokens| (Section::Full, tokens));
    // Rows before this chunk are copied out first, behind it.
    let window = e.window.iter().filter(|w| w.next() >= start);
    let window = window.flat_map(|window| window.blocks(contract, to));
    let window = window.map(|tokens| (Section::Window, tokens));
    let (export, blocks) = LayerExport::of(contract, full.chain(window), engine.gives_final_rows());
    let (whole, chunk) = oneshot::channel();
    let begun = Begun {
        blocks,
        chunk,
        last,
    };
    let told = e.chunks.try_send(Input::Begun(begun));
    e.begun = Some(whole);
    Some(told.map(|()| export).map_err(|_| Gone))
}

/// Nobody takes what is computed any more.
pub(super) struct Gone;

/// Hands out the rows of a part that has been computed for another node, if all were filled meanwhile; else they are copied
/// from the engine, a slice at a time.
pub(super) fn hand_out(
    engine: &mut dyn KvCache,
    sequence: &mut ActiveSequence,
    tokens: Range<u32>,
    layers: Option<LayerExport>,
) -> Result<After, EngineError> {
    let to = tokens.end;
    let Work::Export(e) = &mut sequence.work else {
        return Ok(After::Keep);
    };
    let mut export = ChunkExport {
        blocks: Vec::new(),
        full: FullOut::of(engine.contract(), tokens),
        computed: Instant::now(),
    };
    if let Some(layers) = layers {
        export.blocks = layers.finish()?;
        export.full = FullOut::of(engine.contract(), to..to);
        if let Some(window) = &mut e.window {
            let rows = export.blocks.iter();
            for rows in rows.filter(|b| b.section == Section::Window) {
                window.join(engine.contract(), rows);
            }
        }
    }
    let lags = e.window.as_ref().is_some_and(|window| window.lags(to));
    if export.full.is_over() && !lags {
        return copy_out(engine, sequence, export);
    }
    // Behind the next token of others.
    e.out = Some(export);
    Ok(After::Keep)
}

/// Copies a slice of what a prefill for another node has computed; hands all of it out, full blocks and what there
/// is of the window, once the last slice is copied.
fn copy_out(
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
        e.out = Some(export);
        return Ok(After::Keep);
    }
    let ChunkExport {
        blocks, computed, ..
    } = export;
    Ok(deliver(engine.contract(), sequence, blocks, to, computed))
}

/// Gives the blocks of the chunk up to `to` to be sent.
fn deliver(
    contract: &Contract,
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
    e.end = to;
    let is_cut = sequence.is_cut(to);
    sequence.reading = match (whole, CopyOut::of(contract, to).filter(|_| is_cut)) {
        (None, None) if last => Reading::Complete,
        // The decode node continues from an import, so whoever evaluates here does, too.
        (Some(whole), _) => Reading::Settling {
            window: Window::Back(Taking::new(whole)),
            next: to,
        },
        (None, Some(out)) => Reading::Copying { out, next: to },
        (None, None) => Reading::Next(to),
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
        if let Work::Export(e) = &mut sequence.work {
            let shared = match sequence.reading {
                Reading::Next(next) if e.end < next => Some(next),
                _ => None,
            };
            let rows = |next: u32| ChunkExport {
                blocks: Vec::new(),
                full: FullOut::of(
                    self.engine.contract(),
                    e.there.unwrap_or(0).clamp(e.end, next)..next,
                ),
                computed: Instant::now(),
            };
            if let Some(export) = e.out.take().or_else(|| shared.map(rows)) {
                return copy_out(self.engine.as_mut(), sequence, export);
            }
        }
        self.copy_window(id)
    }

    /// Moves a slice of the window of a prompt that is read here: to where an import puts it, or out for others.
    fn copy_window(&mut self, id: SequenceId) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let (engine, place) = (self.engine.as_mut(), sequence.place);
        let begun = Instant::now();
        let mut copied = None;
        match &mut sequence.reading {
            Reading::Settling { window, next } => {
                let next = *next;
                match window.step(engine, place) {
                    Ok(false) => {}
                    Ok(true) => sequence.settled(next),
                    Err(error) if !sequence.can_start_over() => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "a window cannot be shared; computing instead");
                        engine.clear(place);
                        sequence.reading = Reading::Next(0);
                        if let Work::Generate(g) = &mut sequence.work {
                            g.summary.cached_tokens = 0;
                        }
                    }
                }
            }
            Reading::Copying { out, next } => {
                let next = *next;
                out.step(engine, place, next)?;
                copied = out.whole().cloned();
                if copied.is_some() {
                    sequence.settled(next);
                }
            }
            _ => return Ok(After::Keep),
        }
        sequence.prefill_ms += milliseconds(begun);
        if let Work::Generate(g) = &mut sequence.work {
            g.summary.local_prefill_ms = sequence.prefill_ms;
        }
        if let Some(rows) = copied {
            self.keep_window(id, &rows);
        }
        Ok(After::Keep)
    }

    /// The other node has these tokens: what this one shares with others is handed out from there on.
    pub(super) fn has_there(&mut self, id: SequenceId, tokens: u32) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Work::Export(e) = &mut sequence.work
        {
            e.there.get_or_insert(tokens);
        }
    }
}

impl ActiveSequence {
    /// True if it may as well be read from its first token: nothing of it has been handed out.
    fn can_start_over(&self) -> bool {
        match &self.work {
            Work::Export(e) => e.end == 0,
            Work::Generate(_) => !self.reproducible,
        }
    }

    /// The window before this token is where it belongs.
    fn settled(&mut self, next: u32) {
        match &self.work {
            Work::Export(e) if e.end == self.kv_end() => self.reading = Reading::Complete,
            _ => self.read_from(next),
        }
    }
}
