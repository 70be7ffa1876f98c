//! Copying KV out of the engine as soon as it is computed, a slice between two steps of running generations, and
//! windows of models with sliding windows back to where an import puts them.
//!
//! A window cache is a ring: after a long prefill the window starts in its middle, while an imported one
//! starts at its first cell. The order of cells is the order of float sums, so a local prefill has to end
//! where a handoff would.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine::{EngineError, KvEngine, Sequence};
use tandem_kv::limits::TARGET_BLOCK_BYTES;
use tandem_kv::segment::next_block;
use tandem_kv::{Contract, KvBlock, Section};

use super::filling::Filling;
use super::jobs::{After, Copying, Export, ExportStage, Job, Stage, Taking, Work, slice};
use super::{Worker, milliseconds};
use crate::job::{Computed, Growing, JobId};
use crate::limits::SLICE_BYTES;
use crate::send::Input;

/// A window that is copied out.
pub(super) struct CopyOut {
    whole: Range<u32>,
    /// What has been copied, joined.
    copied: Option<Arc<KvBlock>>,
}

impl CopyOut {
    /// The window of a sequence that holds `[0, end)` in the end; `None` if there is none.
    pub(super) fn of(contract: &Contract, end: u32) -> Option<Self> {
        (contract.has_window() && end > 0).then(|| Self {
            copied: None,
            whole: contract.window_start(end)..end,
        })
    }

    /// First token that has not been copied.
    fn next(&self) -> u32 {
        let copied = self.copied.as_ref();
        copied.map_or(self.whole.start, |block| block.tokens.end)
    }

    /// True if it has rows before `to` that have not been copied.
    fn lags(&self, to: u32) -> bool {
        self.next() < to.min(self.whole.end)
    }

    /// All of it, once it has been copied.
    fn whole(&self) -> Option<&Arc<KvBlock>> {
        let copied = self.copied.as_ref();
        copied.filter(|block| block.tokens == self.whole)
    }

    /// Copies the next slice of a sequence that holds `[0, to)`; `None` if nothing is left to copy.
    fn step(
        &mut self,
        engine: &mut dyn KvEngine,
        sequence: Sequence,
        to: u32,
    ) -> Result<Option<Arc<KvBlock>>, EngineError> {
        if !self.lags(to) {
            return Ok(None);
        }
        let block = self.block_at(engine.contract(), self.next(), to);
        let slice = slice(block, engine.export_bytes(Section::Window));
        let rows = engine.export(sequence, Section::Window, slice)?;
        self.join(engine.contract(), &rows);
        Ok(Some(Arc::new(rows)))
    }

    /// The block that starts there, of a sequence that holds `[0, to)`.
    fn block_at(&self, contract: &Contract, start: u32, to: u32) -> Range<u32> {
        next_block(contract, Section::Window, start..to.min(self.whole.end))
    }

    /// The blocks that are left, of a sequence that holds `[0, to)`.
    fn blocks(&self, contract: &Contract, to: u32) -> impl Iterator<Item = Range<u32>> {
        let mut next = self.next();
        std::iter::from_fn(move || {
            let block = self.block_at(contract, next, to);
            next = block.end;
            (!block.is_empty()).then_some(block)
        })
    }

    /// Adds the next slice to the whole.
    fn join(&mut self, contract: &Contract, rows: &KvBlock) {
        let copied = self.copied.get_or_insert_with(|| {
            let room = KvBlock::with_room(contract, Section::Window, &self.whole);
            Arc::new(room)
        });
        Arc::make_mut(copied).append(rows);
    }
}

/// What is done with the window when all chunks of a local prefill are computed.
pub(super) enum Window {
    /// It is copied out.
    Out(CopyOut),
    /// It is put back.
    Back(Taking),
}

impl Window {
    /// Moves the next slice; true if the window is back.
    fn step(&mut self, engine: &mut dyn KvEngine, sequence: Sequence) -> Result<bool, EngineError> {
        match self {
            Self::Out(out) => {
                out.step(engine, sequence, out.whole.end)?;
                if let Some(whole) = out.whole() {
                    *self = Self::Back(Taking::new(Arc::clone(whole)));
                }
                Ok(false)
            }
            Self::Back(taking) => put_back(engine, sequence, taking),
        }
    }
}

/// Puts a slice of a window back; true if it was the last.
fn put_back(
    engine: &mut dyn KvEngine,
    sequence: Sequence,
    taking: &mut Taking,
) -> Result<bool, EngineError> {
    let part = taking.part();
    engine.import_part(sequence, &taking.block, part.clone())?;
    Ok(taking.taken(&part))
}

/// Rows of layers of full attention that are copied out, block by block.
pub(super) struct FullOut {
    /// Tokens that are left.
    rest: Range<u32>,
    /// What has been copied of a block that is more than a slice.
    begun: Option<KvBlock>,
}

impl FullOut {
    /// None are left of a model without such layers.
    pub(super) fn of(contract: &Contract, tokens: Range<u32>) -> Self {
        let rest = if contract.has_section(Section::Full) {
            tokens
        } else {
            tokens.end..tokens.end
        };
        Self { rest, begun: None }
    }

    /// The blocks that are left.
    fn blocks(self, contract: &Contract) -> impl Iterator<Item = Range<u32>> {
        let Range { mut start, end } = self.rest;
        std::iter::from_fn(move || {
            let block = next_block(contract, Section::Full, start..end);
            start = block.end;
            (!block.is_empty()).then_some(block)
        })
    }

    /// What is left is up to whoever takes it.
    fn take(&mut self) -> Self {
        Self {
            rest: self.rest.clone(),
            begun: self.begun.take(),
        }
    }

    /// The first token that is left.
    pub(super) fn next(&self) -> u32 {
        self.rest.start
    }

    /// True if nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Copies the next block, or as much of it as a slice has room for that has copied so many bytes; `None` until a
    /// block is complete, if the slice has no room for it, and in the end.
    pub(super) fn step(
        &mut self,
        engine: &mut dyn KvEngine,
        sequence: Sequence,
        copied: &mut u64,
    ) -> Result<Option<Arc<KvBlock>>, EngineError> {
        if self.is_over() {
            return Ok(None);
        }
        let start = self
            .begun
            .as_ref()
            .map_or(self.rest.start, |b| b.tokens.start);
        let block = next_block(engine.contract(), Section::Full, start..self.rest.end);
        let left = self.rest.start..block.end;
        let each = engine.export_bytes(Section::Full);
        let room = SLICE_BYTES.saturating_sub(*copied) / each.max(1);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let take = match u32::try_from(left.len()).unwrap_or(u32::MAX) {
            all if all <= room => all,
            _ if *copied == 0 => room.max(1),
            _ => return Ok(None),
        };
        let part = left.start..left.start + take;
        let rows = engine.export(sequence, Section::Full, part.clone())?;
        *copied += each * u64::from(take);
        self.rest.start = part.end;
        let is_whole = part.end == left.end;
        let block = match self.begun.take() {
            None if is_whole => rows,
            begun => {
                let contract = engine.contract();
                let room = || KvBlock::with_room(contract, Section::Full, &(start..left.end));
                let mut block = begun.unwrap_or_else(room);
                block.append(&rows);
                block
            }
        };
        if is_whole {
            return Ok(Some(Arc::new(block)));
        }
        self.begun = Some(block);
        Ok(None)
    }
}

/// Copies a slice of what a prefill for another node has computed; hands all of it out, full blocks and what there
/// is of the window, once the last slice is copied.
pub(super) fn hand_out(
    engine: &mut dyn KvEngine,
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
    engine: &dyn KvEngine,
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
    engine: &mut dyn KvEngine,
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
        receipt_follows: last && e.receipt,
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
    if !delivered || (last && !e.receipt) {
        After::End
    } else {
        After::Keep
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
