//! What follows from a token that has been computed, up to the end of the answer.

use std::time::Instant;

use tandem_engine::EngineError;
use tandem_handoff::receipt::Receipt;
use tandem_proto::{FinishReason, GenerateEvent};

use super::batch::Choice;
use super::beginnings::length;
use super::retire::Retiring;
use super::sequences::{After, ReceiptState, Stage, Unpaged, Work};
use super::{EngineLoop, engine_error, generation_error, milliseconds};
use crate::sequence::{Input, SequenceId};

impl EngineLoop {
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
        let stage = std::mem::replace(&mut g.stage, Stage::Ended);
        let Stage::Finished { done, position, .. } = stage else {
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
        let pages = pages.map(|retire| {
            Box::new(Unpaged {
                keep: g.keep.clone(),
                retire,
                generated: end.saturating_sub(length(&sequence.tokens)),
                end,
                is_own,
            })
        });
        let is_full = self.beginnings.unpaged() >= self.engine.capacity().cached as usize;
        let is_urgent = !is_own || sequence.salt.is_none() || is_full;
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return;
        };
        let pages = match pages {
            Some(pages) if is_urgent => pages,
            pages => return self.leave(sequence, pages),
        };
        let salt = sequence.salt.take().filter(|_| sequence.gives_rows());
        let (mut cached, admission) = sequence.into_cached(salt);
        cached.tokens.truncate(position as usize);
        let engine = self.engine.as_mut();
        match Retiring::start(engine.contract(), cached, *pages, Some(admission)) {
            Ok(retiring) => self.beginnings.retiring.push(retiring),
            Err(cached) => self.beginnings.add(engine, cached),
        }
    }
}
