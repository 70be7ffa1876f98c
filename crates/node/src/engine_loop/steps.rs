//! Computing: one chunk of a prefill, one token of every sequence that generates.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tandem_engine::{EngineError, Item, KvEngine, LayerRows};
use tandem_handoff::receipt::Receipt;
use tandem_proto::{FinishReason, GenerateEvent};
use tokio::sync::oneshot;

use super::batch::Choice;
use super::beginnings::{Unpaged, length};
use super::export::{begin, hand_out, hand_out_filled};
use super::sequences::{
    ActiveSequence, After, ChunkExport, ExportStage, ReceiptState, Stage, Work,
};
use super::slices::{CopyOut, FullOut, Window};
use super::{EngineLoop, engine_error, generation_error, milliseconds};
use crate::measured::Measured;
use crate::sequence::{Begun, Computed, Input, SequenceId};

/// This part of a prompt has been computed since.
fn measure(measured: &Mutex<Measured>, range: &Range<u32>, since: Instant) {
    let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
    measured.prefilled(range, since.elapsed());
}

impl EngineLoop {
    /// Computes one chunk of the next prefill in turn that is computed by itself; false if there is none.
    pub(super) fn prefill_step(&mut self) -> bool {
        let ready =
            |(id, sequence): (&SequenceId, &ActiveSequence)| sequence.can_prefill().then_some(*id);
        let after = (
            std::ops::Bound::Excluded(self.last_prefill),
            std::ops::Bound::Unbounded,
        );
        let next = self.sequences.range(after).find_map(ready);
        let Some(id) = next.or_else(|| self.sequences.iter().find_map(ready)) else {
            return false;
        };
        self.last_prefill = id;
        let after = self.prefill_chunk(id);
        self.go_on(id, after);
        true
    }

    /// After a step of a sequence.
    pub(super) fn go_on(&mut self, id: SequenceId, after: Result<After, EngineError>) {
        match after {
            Ok(After::Keep) => {}
            Ok(After::End) => self.end(id),
            Err(e) => {
                tracing::error!(sequence = id.0, error = %e, "prefill failed");
                self.fail(id, engine_error(&e));
            }
        }
    }

    fn prefill_chunk(&mut self, id: SequenceId) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let next = match &sequence.work {
            Work::Export(e) => match e.stage {
                ExportStage::Prefilling(next) => next,
                _ => return Ok(After::Keep),
            },
            Work::Generate(g) => match g.stage {
                Stage::Prefilling { next } => next,
                _ => return Ok(After::Keep),
            },
            Work::Retire { .. } => return self.retire_slice(id),
        };
        // By itself: others would change the shape of the batch, or the rows are given to be sent.
        let range = sequence.chunking(self.engine.tail_tokens()).at(next);
        let start = Instant::now();
        let tokens = &sequence.tokens[range.start as usize..range.end as usize];
        if !tokens.is_empty() && matches!(&sequence.work, Work::Export(e) if e.by_layer) {
            return self.give_chunk(id, range);
        }
        if !tokens.is_empty() {
            let (engine, place) = (self.engine.as_mut(), sequence.place);
            self.beginnings
                .with_room(engine, None, |e| e.prefill(place, range.start, tokens))?;
            measure(&self.measured, &range, start);
            sequence.has_computed(&range, start);
        }
        self.chunk_computed(id, range)
    }

    /// Computes a chunk whose layers are given while the next ones are computed.
    fn give_chunk(&mut self, id: SequenceId, range: Range<u32>) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let start = Instant::now();
        let last = range.end == sequence.kv_end();
        let tokens = &sequence.tokens[range.start as usize..range.end as usize];
        let Work::Export(e) = &mut sequence.work else {
            return Ok(After::Keep);
        };
        let (mut export, blocks) = begin(self.engine.as_ref(), e, range.clone());
        let (whole, chunk) = oneshot::channel();
        let begun = Begun {
            blocks,
            chunk,
            last,
        };
        if e.chunks.try_send(Input::Begun(begun)).is_err() {
            return Ok(After::End);
        }
        e.begun = Some(whole);
        let mut give = |rows: &LayerRows<'_>| export.take(rows);
        let item = Item::chunk(sequence.place, range.start, tokens);
        let engine = self.engine.as_mut();
        let evaluate = |e: &mut dyn KvEngine| e.evaluate(&[item], Some(&mut give));
        self.beginnings.with_room(engine, None, evaluate)?;
        measure(&self.measured, &range, start);
        sequence.has_computed(&range, start);
        let engine = self.engine.as_mut();
        hand_out_filled(engine, sequence, export, range.end)
    }

    /// What follows from a chunk that was computed by itself.
    fn chunk_computed(&mut self, id: SequenceId, range: Range<u32>) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let kv_end = sequence.kv_end();
        match &mut sequence.work {
            Work::Export(_) => {
                let export = ChunkExport {
                    blocks: Vec::new(),
                    full: FullOut::of(self.engine.contract(), range),
                    computed: Instant::now(),
                };
                hand_out(self.engine.as_mut(), sequence, export)
            }
            Work::Retire { .. } => Ok(After::Keep),
            Work::Generate(g) => {
                g.summary.local_tokens += range.end - range.start;
                g.summary.local_prefill_ms = sequence.prefill_ms;
                let window = CopyOut::of(self.engine.contract(), kv_end);
                match window {
                    _ if range.end < kv_end => g.stage = Stage::Prefilling { next: range.end },
                    Some(out) => {
                        let (window, next) = (Window::Out(out), kv_end);
                        g.stage = Stage::Settling { window, next };
                    }
                    None => g.start_decoding(sequence.tokens[kv_end as usize], kv_end),
                }
                Ok(After::Keep)
            }
        }
    }

    /// A row of logits has been computed.
    pub(super) fn evaluated(&mut self, id: SequenceId, logits: Vec<f32>, choice: Option<Choice>) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let g = match &mut sequence.work {
            Work::Generate(g) => g,
            Work::Export(e) => {
                let receipt = Receipt::of(&logits, e.hand_back.take());
                let _ = e.chunks.try_send(Input::Receipt(Box::new(receipt)));
                return self.end(id);
            }
            Work::Retire { .. } => return,
        };
        let is_first = matches!(g.stage, Stage::Decoding { first: None, .. });
        if !is_first || matches!(g.receipt, ReceiptState::Settled) {
            return self.sampled(id, choice);
        }
        let receipt = std::mem::replace(&mut g.receipt, ReceiptState::Awaited);
        g.logits = Some(logits);
        if let ReceiptState::Here(told) = receipt {
            self.compare(id, &told);
        }
        self.sampled(id, choice);
    }

    fn sampled(&mut self, id: SequenceId, choice: Option<Choice>) {
        let context = self.engine.capacity().tokens_per_sequence;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        let step = match choice {
            Some(Ok(step)) => step,
            Some(Err(e)) => return self.fail(id, generation_error(&e)),
            None => return,
        };
        let Stage::Decoding {
            token,
            position,
            first,
        } = &mut g.stage
        else {
            return;
        };
        *token = step.token;
        *position += 1;
        let full = *position >= context;
        let first = *first.get_or_insert_with(Instant::now);
        g.tell(GenerateEvent::Token {
            id: step.token,
            text: step.text,
        });
        let finished = step.finished.or(full.then_some(FinishReason::Length));
        if let Some(finish_reason) = finished {
            let generated = g.generation.generated().len();
            let done = GenerateEvent::Done {
                finish_reason,
                generated_tokens: u32::try_from(generated).unwrap_or(u32::MAX),
                decode_ms: milliseconds(first),
                parity: None,
            };
            let Stage::Decoding { position, .. } = g.stage else {
                return;
            };
            g.stage = Stage::Finished {
                done: Box::new(done),
                position,
                since: Instant::now(),
            };
            if matches!(g.receipt, ReceiptState::Settled) {
                self.finish(id);
            }
        }
    }

    /// The answer is complete: tells so. Its rows stay for others, and pages are made of them: at once if another node waits
    /// for them or if they do not stay.
    pub(super) fn finish(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        if !matches!(g.stage, Stage::Finished { .. }) {
            return;
        }
        let Stage::Finished { done, position, .. } =
            std::mem::replace(&mut g.stage, Stage::Receiving)
        else {
            return;
        };
        let mut done = *done;
        if let GenerateEvent::Done { parity, .. } = &mut done {
            *parity = g.compared;
        }
        g.tell(done);
        // The last token that was sampled has no KV.
        let end = match g.keep.keeps_answer() {
            true => position,
            false => g.keep.prompt_end(),
        };
        let is_own = g.summary.remote_tokens == 0;
        let pages = g.retire.take().filter(|_| end > 0);
        let pages = pages.map(|retire| Unpaged {
            keep: g.keep.clone(),
            retire,
            generated: end.saturating_sub(length(&sequence.tokens)),
            end,
            is_own,
        });
        g.stage = Stage::Ended;
        let is_urgent = !is_own || sequence.salt.is_none() || self.engine.capacity().cached == 0;
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return;
        };
        let pages = match pages {
            Some(pages) if is_urgent => pages,
            pages => return self.leave(id, sequence, pages),
        };
        let Work::Generate(g) = &sequence.work else {
            return;
        };
        sequence.tokens.extend_from_slice(g.generation.generated());
        sequence.tokens.truncate(position as usize);
        match self.handing_out(&sequence.tokens, pages) {
            Some(work) => {
                sequence.work = work;
                self.sequences.insert(id, sequence);
            }
            None => self.leave(id, sequence, None),
        }
    }

    /// Copies a block of a sequence that has generated, or a slice of it, and hands it out when it is whole.
    fn retire_slice(&mut self, id: SequenceId) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let Work::Retire {
            chunks,
            full,
            end,
            window,
        } = &mut sequence.work
        else {
            return Ok(After::Keep);
        };
        let block = full.step(self.engine.as_mut(), sequence.place, &mut 0)?;
        if block.is_none() && !full.is_over() {
            return Ok(After::Keep);
        }
        let stop = full.next();
        let done = stop == *end;
        let out = CopyOut::of(self.engine.contract(), stop).filter(|_| done);
        *window = out.map(|out| (out, Vec::new()));
        let last = done && window.is_none();
        let chunk = Computed {
            blocks: block.into_iter().collect(),
            window: None,
            tokens: stop,
            computed: Instant::now(),
            prefill_ms: 0.0,
            computed_tokens: 0,
            last,
            receipt_follows: false,
        };
        let delivered = chunks.try_send(Input::Chunk(chunk)).is_ok();
        Ok(if last || !delivered {
            After::End
        } else {
            After::Keep
        })
    }
}
