//! Computing: one chunk of a prefill, one token of every sequence that generates.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tandem_engine::{DecodeStep, EngineError, Item, LayerRows};
use tandem_handoff::page::page_start;
use tandem_handoff::receipt::Receipt;
use tandem_proto::{FinishReason, GenerateEvent};
use tokio::sync::{mpsc, oneshot};

use super::export::{begin, hand_out, hand_out_filled};
use super::sequences::{
    ActiveSequence, After, ChunkExport, ExportStage, ReceiptState, Stage, Work,
};
use super::slices::{CopyOut, FullOut, Window};
use super::{EngineLoop, engine_error, generation_error, milliseconds};
use crate::limits::MAX_CHUNKS_WAITING;
use crate::measured::Measured;
use crate::sequence::{Begun, Computed, Input, Retired, SequenceId};

/// This part of a prompt has been computed since.
fn measure(measured: &Mutex<Measured>, range: &Range<u32>, since: Instant) {
    let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
    measured.prefilled(range, since.elapsed());
}

impl EngineLoop {
    /// Computes one chunk of the next prefill in turn.
    pub(super) fn prefill_step(&mut self) {
        let ready =
            |(id, sequence): (&SequenceId, &ActiveSequence)| sequence.can_prefill().then_some(*id);
        let after = (
            std::ops::Bound::Excluded(self.last_prefill),
            std::ops::Bound::Unbounded,
        );
        let next = self.sequences.range(after).find_map(ready);
        let Some(id) = next.or_else(|| self.sequences.iter().find_map(ready)) else {
            return;
        };
        self.last_prefill = id;
        let after = self.prefill_chunk(id);
        self.go_on(id, after);
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
        let range = sequence.chunking(self.engine.tail_tokens()).at(next);
        let start = Instant::now();
        let last = range.end == sequence.kv_end();
        let tokens = &sequence.tokens[range.start as usize..range.end as usize];
        if let Work::Export(e) = &mut sequence.work
            && e.by_layer
            && !tokens.is_empty()
        {
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
            self.engine.evaluate(&[item], Some(&mut give))?;
            measure(&self.measured, &range, start);
            sequence.has_computed(&range, start);
            let engine = self.engine.as_mut();
            return hand_out_filled(engine, sequence, export, range.end);
        }
        if !tokens.is_empty() {
            self.engine.prefill(sequence.place, range.start, tokens)?;
            measure(&self.measured, &range, start);
            sequence.has_computed(&range, start);
        }
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
                    Some(out) => g.stage = Stage::Settling(Window::Out(out)),
                    None => g.start_decoding(sequence.tokens[kv_end as usize], kv_end),
                }
                Ok(After::Keep)
            }
        }
    }

    /// One token of every generating sequence whose coordinator keeps up.
    pub(super) fn decode_step(&mut self) {
        let mut ids = Vec::new();
        let mut steps = Vec::new();
        for (id, sequence) in &mut self.sequences {
            let kv_end = sequence.kv_end();
            let g = match &mut sequence.work {
                Work::Generate(g) => g,
                Work::Export(e) if matches!(e.stage, ExportStage::Evaluating) => {
                    ids.push(*id);
                    steps.push(DecodeStep {
                        sequence: sequence.place,
                        token: sequence.tokens[kv_end as usize],
                        position: kv_end,
                    });
                    continue;
                }
                _ => continue,
            };
            let Stage::Decoding {
                token, position, ..
            } = g.stage
            else {
                continue;
            };
            if !g.has_room() {
                g.stalled.get_or_insert_with(Instant::now);
                continue;
            }
            g.stalled = None;
            ids.push(*id);
            steps.push(DecodeStep {
                sequence: sequence.place,
                token,
                position,
            });
        }
        if steps.is_empty() {
            return;
        }
        self.engine.begin_step();
        let start = Instant::now();
        match self.engine.decode(&steps) {
            Ok(rows) => {
                let measured = self.measured.lock();
                let mut measured = measured.unwrap_or_else(PoisonError::into_inner);
                measured.decoded(&steps, start.elapsed());
                drop(measured);
                for (id, logits) in ids.into_iter().zip(rows) {
                    self.evaluated(id, logits);
                }
            }
            Err(e) => {
                tracing::error!(sequences = steps.len(), error = %e, "decode failed");
                for id in ids {
                    self.fail(id, engine_error(&e));
                }
            }
        }
        self.engine.end_step();
    }

    /// A row of logits has been computed.
    fn evaluated(&mut self, id: SequenceId, logits: Vec<f32>) {
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
            return self.sampled(id, &logits);
        }
        let receipt = std::mem::replace(&mut g.receipt, ReceiptState::Awaited);
        g.logits = Some(logits.clone());
        if let ReceiptState::Here(told) = receipt {
            self.compare(id, &told);
        }
        self.sampled(id, &logits);
    }

    pub(super) fn sampled(&mut self, id: SequenceId, logits: &[f32]) {
        let context = self.engine.capacity().tokens_per_sequence;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        let step = match g.generation.next(logits) {
            Ok(step) => step,
            Err(e) => {
                return self.fail(id, generation_error(&e));
            }
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

    /// The answer is complete: tells so, and hands out the KV if somebody keeps it. If it is that of the prompt alone,
    /// whoever keeps it tells so.
    pub(super) fn finish(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        let Stage::Finished { done, position, .. } =
            std::mem::replace(&mut g.stage, Stage::Receiving)
        else {
            return;
        };
        let mut done = *done;
        if let GenerateEvent::Done { parity, .. } = &mut done {
            *parity = g.compared;
        }
        // What came from pages or from another node has been kept as pages already.
        let brought = page_start(g.summary.cached_tokens + g.summary.remote_tokens);
        let is_own = g.summary.remote_tokens == 0;
        let (end, last) = match g.keep.keeps_answer() {
            true => {
                g.tell(done);
                (position, None)
            }
            false if g.retire.is_some() && is_own && g.keep.prompt_end() > brought => {
                (g.keep.prompt_end(), Some((done, g.events.clone())))
            }
            false => {
                g.tell(done);
                return self.end(id);
            }
        };
        let Some(retire) = g.retire.take() else {
            return self.end(id);
        };
        // The last token that was sampled has no KV.
        let mut tokens = sequence.tokens.clone();
        tokens.extend_from_slice(g.generation.generated());
        tokens.truncate(end as usize);
        let generated =
            u32::try_from(tokens.len().saturating_sub(sequence.tokens.len())).unwrap_or(0);
        let (chunks, receiver) = mpsc::channel(MAX_CHUNKS_WAITING);
        let retired = Retired {
            tokens,
            generated,
            last,
            is_own,
            chunks: receiver,
        };
        sequence.work = Work::Retire {
            chunks,
            full: FullOut::of(self.engine.contract(), brought..end),
            end,
            window: None,
        };
        if let Err(retired) = retire.send(retired) {
            if let Some((last, events)) = retired.last {
                // There is room for it, or nobody listens.
                let _ = events.try_send(last);
            }
            self.end(id);
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
