//! Copying KV out of the engine as soon as it is computed, a slice between two steps of running generations, and
//! windows of models with sliding windows back to where an import puts them.
//!
//! A window cache is a ring: after a long prefill the window starts in its middle, while an imported one
//! starts at its first cell. The order of cells is the order of float sums, so a local prefill has to end
//! where a handoff would.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine::{Compute, EngineError, KvCache};
use tandem_handoff::limits::TARGET_BLOCK_BYTES;
use tandem_handoff::{KvBlock, Section};

use super::filling::Filling;
use super::jobs::{After, Copying, Export, ExportStage, Job, Stage, Work};
use super::slices::{FullOut, Taking, put_back};
use super::{Worker, milliseconds};
use crate::job::{Computed, Growing, Input, JobId};
use crate::limits::SLICE_BYTES;

/// Copies a slice of what a prefill for another node has computed; hands all of it out, full blocks and what there
/// is of the window, once the last slice is copied.
pub(super) fn hand_out(
    engine: &mut dyn KvCache,
    job: &mut Job,
    mut copying: Copying,
) -> Result<After, EngineError> {
    let to = copying.full.rest.end;
    let Work::Export(e) = &mut job.work else {
        return Ok(After::Keep);
    };
    let mut copied = 0;
    while let Some(block) = copying.full.step(engine, job.sequence, &mut copied)? {
        copying.blocks.push(block);
    }
    let mut is_whole = copying.full.is_over();
    if let Some(window) = &mut e.window {
        if is_whole && copied + TARGET_BLOCK_BYTES <= SLICE_BYTES {
            copying
                .blocks
                .extend(window.step(engine, job.sequence, to)?);
        }
        is_whole &= !window.lags(to);
    }
    if !is_whole {
        e.stage = ExportStage::Copying(copying);
        return Ok(After::Keep);
    }
    let Copying {
        blocks, computed, ..
    } = copying;
    Ok(deliver(job, blocks, to, computed))
}

/// The blocks of the chunk that a prefill for another node computes next, which are filled meanwhile.
pub(super) fn begin(
    engine: &dyn Compute,
    export: &Export,
    tokens: Range<u32>,
) -> (Filling, Vec<Growing>) {
    let Range { start, end: to } = tokens;
    let contract = engine.contract();
    let full = FullOut::of(contract, tokens).blocks(contract);
    let full = full.map(|tokens| (Section::Full, tokens));
    // Rows before this chunk are copied out first, behind it.
    let window = export.window.iter().filter(|w| w.next() >= start);
    let window = window.flat_map(|window| window.blocks(contract, to));
    let window = window.map(|tokens| (Section::Window, tokens));
    Filling::of(contract, full.chain(window), engine.gives_final_rows())
}

/// Hands out the blocks that were filled while the chunk up to `to` was computed, and what else there is of the
/// window.
pub(super) fn hand_out_filled(
    engine: &mut dyn KvCache,
    job: &mut Job,
    filling: Filling,
    to: u32,
) -> Result<After, EngineError> {
    let computed = Instant::now();
    let blocks = filling.finish()?;
    if let Work::Export(e) = &mut job.work
        && let Some(window) = &mut e.window
    {
        for rows in blocks.iter().filter(|b| b.section == Section::Window) {
            window.join(engine.contract(), rows);
        }
    }
    let copying = Copying {
        blocks,
        full: FullOut::of(engine.contract(), to..to),
        computed,
    };
    hand_out(engine, job, copying)
}

/// Gives the blocks of the chunk up to `to` to be sent.
fn deliver(job: &mut Job, blocks: Vec<Arc<KvBlock>>, to: u32, computed: Instant) -> After {
    let last = to == job.kv_end();
    let Work::Export(e) = &mut job.work else {
        return After::Keep;
    };
    let whole = e.window.take_if(|_| last).and_then(|w| w.copied);
    let chunk = Computed {
        blocks,
        window: whole.clone(),
        tokens: to,
        computed,
        prefill_ms: job.prefill_ms,
        computed_tokens: job.computed_tokens,
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

impl Worker {
    /// Copies a slice of what one job has; false if there is none to copy.
    pub(super) fn copy_step(&mut self) -> bool {
        let ready = |(id, job): (&JobId, &Job)| job.can_copy().then_some(*id);
        let Some(id) = self.jobs.iter().find_map(ready) else {
            return false;
        };
        let after = self.copy_slice(id);
        self.go_on(id, after);
        true
    }

    fn copy_slice(&mut self, id: JobId) -> Result<After, EngineError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let (engine, sequence, kv_end) = (self.engine.as_mut(), job.sequence, job.kv_end());
        let begun = Instant::now();
        match &mut job.work {
            Work::Export(e) => match &mut e.stage {
                ExportStage::Copying(copying) => {
                    let copying = Copying {
                        blocks: std::mem::take(&mut copying.blocks),
                        full: copying.full.take(),
                        computed: copying.computed,
                    };
                    return hand_out(engine, job, copying);
                }
                ExportStage::PuttingBack(taking) => {
                    let is_back = put_back(engine, sequence, taking)?;
                    if is_back {
                        e.stage = ExportStage::Evaluating;
                    }
                }
                _ => {}
            },
            Work::Generate(g) => {
                let Stage::Settling(window) = &mut g.stage else {
                    return Ok(After::Keep);
                };
                let is_back = window.step(engine, sequence)?;
                job.prefill_ms += milliseconds(begun);
                g.summary.local_prefill_ms = job.prefill_ms;
                if is_back {
                    g.start_decoding(job.tokens[kv_end as usize], kv_end);
                }
            }
            Work::Retire {
                chunks,
                end,
                window: Some((out, blocks)),
                ..
            } => {
                blocks.extend(out.step(engine, sequence, *end)?);
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
}
