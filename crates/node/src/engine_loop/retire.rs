//! Handing out the KV of a request that has ended, of which pages are made here and on the node that prefilled it.

use std::sync::Arc;
use std::time::Instant;

use tandem_engine::{EngineError, KvEngine, Sequence, Token};
use tandem_handoff::{Contract, KvBlock};
use tokio::sync::mpsc;

use super::EngineLoop;
use super::sequences::{After, Cached, Unpaged};
use super::slices::{CopyOut, FullOut};
use crate::limits::MAX_CHUNKS_WAITING;
use crate::sequence::{Admission, Computed, Input, Retired};

/// A sequence whose KV is handed out. [`Retiring::start`] finds what there are no pages of; then a [`Retiring::step`] at a
/// time copies a block of it, and the window in the end.
pub(super) struct Retiring {
    pub(super) cached: Cached,
    chunks: mpsc::Sender<Input>,
    /// What is left of the full layers.
    full: FullOut,
    end: u32,
    /// The window, which is handed out when all full blocks are, and its blocks so far.
    window: Option<(CopyOut, Vec<Arc<KvBlock>>)>,
    /// The place of its request, where its rows must not be lost.
    pub(super) admission: Option<Admission>,
}

impl Retiring {
    /// Begins; gives the sequence back if nobody takes its KV, or if there are pages of all of it.
    pub(super) fn start(
        contract: &Contract,
        cached: Cached,
        pages: Unpaged,
        admission: Option<Admission>,
    ) -> Result<Self, Cached> {
        let tokens: &[Token] = &cached.tokens[..pages.end as usize];
        let start = pages.keep.held(tokens).tokens;
        if start >= pages.end {
            return Err(cached);
        }
        let (chunks, receiver) = mpsc::channel(MAX_CHUNKS_WAITING);
        let retired = Retired {
            tokens: tokens.to_vec(),
            generated: pages.generated,
            is_own: pages.is_own,
            chunks: receiver,
        };
        if pages.retire.send(retired).is_err() {
            return Err(cached);
        }
        Ok(Self {
            cached,
            chunks,
            full: FullOut::of(contract, start..pages.end),
            end: pages.end,
            window: None,
            admission,
        })
    }

    pub(super) const fn place(&self) -> Sequence {
        self.cached.place
    }

    fn can_step(&self) -> bool {
        self.chunks.is_closed() || self.chunks.capacity() > 0
    }

    /// Copies a block, or a slice of it, and hands it out when it is whole.
    fn step(&mut self, engine: &mut dyn KvEngine) -> Result<After, EngineError> {
        let place = self.place();
        let mut blocks = Vec::new();
        let mut whole = None;
        if let Some((out, copied)) = &mut self.window {
            copied.extend(out.step(engine, place, self.end)?);
            whole = out.whole().cloned();
            if whole.is_none() {
                return Ok(After::Keep);
            }
            blocks = std::mem::take(copied);
        } else {
            blocks.extend(self.full.step(engine, place, &mut 0)?);
            if blocks.is_empty() && !self.full.is_over() {
                return Ok(After::Keep);
            }
            if self.full.is_over() {
                let out = CopyOut::of(engine.contract(), self.end);
                self.window = out.map(|out| (out, Vec::new()));
            }
        }
        let last = whole.is_some() || (self.full.is_over() && self.window.is_none());
        let chunk = Computed {
            blocks,
            window: whole,
            tokens: self.full.next(),
            computed: Instant::now(),
            prefill_ms: 0.0,
            computed_tokens: 0,
            last,
            receipt_follows: false,
        };
        let is_taken = self.chunks.try_send(Input::Chunk(chunk)).is_ok();
        Ok(match last || !is_taken {
            true => After::End,
            false => After::Keep,
        })
    }
}

impl EngineLoop {
    /// True if a slice can be copied of what has ended.
    pub(super) fn can_retire(&self) -> bool {
        self.beginnings.retiring.iter().any(Retiring::can_step)
    }

    /// Copies a slice of what has ended; false if there is none to copy.
    pub(super) fn retire_step(&mut self) -> bool {
        let all = &mut self.beginnings.retiring;
        let Some(at) = all.iter().position(Retiring::can_step) else {
            return false;
        };
        let mut retiring = all.remove(at);
        let engine = self.engine.as_mut();
        match retiring.step(engine) {
            // Behind the others.
            Ok(After::Keep) => self.beginnings.retiring.push(retiring),
            Ok(After::End) => self.beginnings.add(engine, retiring.cached),
            Err(error) => {
                tracing::error!(%error, "pages of an answer cannot be made");
                engine.release(retiring.place());
            }
        }
        true
    }
}
