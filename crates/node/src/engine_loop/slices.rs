//! Rows that go between the engine and this process, a slice between two steps of running generations.

use std::ops::Range;
use std::sync::Arc;

use tandem_engine::{EngineError, KvCache, Sequence};
use tandem_handoff::segment::next_block;
use tandem_handoff::{Contract, KvBlock, Section};

use crate::limits::SLICE_BYTES;

/// A block that is taken in slice by slice.
pub(super) struct Taking {
    pub(super) block: Arc<KvBlock>,
    /// The first token that has not been taken in.
    next: u32,
}

impl Taking {
    pub(super) fn new(block: Arc<KvBlock>) -> Self {
        let next = block.tokens.start;
        Self { block, next }
    }

    /// What to take in next: the rest of the block, or as much of it as a slice has. A window may
    /// have more, and a page of a model with large rows.
    pub(super) fn part(&self) -> Range<u32> {
        slice(self.next..self.block.tokens.end, self.row_bytes())
    }

    /// This part has been taken in; true if it was the last.
    pub(super) fn taken(&mut self, part: &Range<u32>) -> bool {
        self.next = part.end;
        self.next == self.block.tokens.end
    }

    pub(super) fn row_bytes(&self) -> u64 {
        self.block.bytes() / u64::from(self.block.len().max(1))
    }

    pub(super) fn part_bytes(&self) -> u64 {
        self.row_bytes() * self.part().len() as u64
    }
}

/// As many of these tokens as a slice has, and at least one.
pub(super) fn slice(tokens: Range<u32>, row_bytes: u64) -> Range<u32> {
    let most = u32::try_from(SLICE_BYTES / row_bytes.max(1)).unwrap_or(u32::MAX);
    let end = tokens.start.saturating_add(most.max(1));
    tokens.start..end.min(tokens.end)
}

/// A window that is copied out.
pub(super) struct CopyOut {
    pub(super) whole: Range<u32>,
    /// What has been copied, joined.
    pub(super) copied: Option<Arc<KvBlock>>,
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
    pub(super) fn next(&self) -> u32 {
        let copied = self.copied.as_ref();
        copied.map_or(self.whole.start, |block| block.tokens.end)
    }

    /// True if it has rows before `to` that have not been copied.
    pub(super) fn lags(&self, to: u32) -> bool {
        self.next() < to.min(self.whole.end)
    }

    /// All of it, once it has been copied.
    pub(super) fn whole(&self) -> Option<&Arc<KvBlock>> {
        let copied = self.copied.as_ref();
        copied.filter(|block| block.tokens == self.whole)
    }

    /// Copies the next slice of a sequence that holds `[0, to)`; `None` if nothing is left to copy.
    pub(super) fn step(
        &mut self,
        engine: &mut dyn KvCache,
        place: Sequence,
        to: u32,
    ) -> Result<Option<Arc<KvBlock>>, EngineError> {
        if !self.lags(to) {
            return Ok(None);
        }
        let block = self.block_at(engine.contract(), self.next(), to);
        let slice = slice(block, engine.export_bytes(Section::Window));
        let rows = engine.export(place, Section::Window, slice)?;
        self.join(engine.contract(), &rows);
        Ok(Some(Arc::new(rows)))
    }

    /// The block that starts there, of a sequence that holds `[0, to)`.
    pub(super) fn block_at(&self, contract: &Contract, start: u32, to: u32) -> Range<u32> {
        next_block(contract, Section::Window, start..to.min(self.whole.end))
    }

    /// The blocks that are left, of a sequence that holds `[0, to)`.
    pub(super) fn blocks(&self, contract: &Contract, to: u32) -> impl Iterator<Item = Range<u32>> {
        let mut next = self.next();
        std::iter::from_fn(move || {
            let block = self.block_at(contract, next, to);
            next = block.end;
            (!block.is_empty()).then_some(block)
        })
    }

    /// Adds the next slice to the whole.
    pub(super) fn join(&mut self, contract: &Contract, rows: &KvBlock) {
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
    pub(super) fn step(
        &mut self,
        engine: &mut dyn KvCache,
        place: Sequence,
    ) -> Result<bool, EngineError> {
        match self {
            Self::Out(out) => {
                out.step(engine, place, out.whole.end)?;
                if let Some(whole) = out.whole() {
                    *self = Self::Back(Taking::new(Arc::clone(whole)));
                }
                Ok(false)
            }
            Self::Back(taking) => put_back(engine, place, taking),
        }
    }
}

/// Puts a slice of a window back; true if it was the last.
pub(super) fn put_back(
    engine: &mut dyn KvCache,
    place: Sequence,
    taking: &mut Taking,
) -> Result<bool, EngineError> {
    let part = taking.part();
    engine.import_part(place, &taking.block, part.clone())?;
    Ok(taking.taken(&part))
}

/// Rows of layers of full attention that are copied out, block by block.
pub(super) struct FullOut {
    /// Tokens that are left.
    pub(super) rest: Range<u32>,
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
    pub(super) fn blocks(self, contract: &Contract) -> impl Iterator<Item = Range<u32>> {
        let Range { mut start, end } = self.rest;
        std::iter::from_fn(move || {
            let block = next_block(contract, Section::Full, start..end);
            start = block.end;
            (!block.is_empty()).then_some(block)
        })
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
        engine: &mut dyn KvCache,
        place: Sequence,
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
        let rows = engine.export(place, Section::Full, part.clone())?;
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
