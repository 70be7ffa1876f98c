//! Taking KV in: blocks of another node or of pages, the comparison of both ends, and what is done when it
//! does not come.

use std::ops::Range;
use std::time::Instant;

use tandem_engine::KvEngine;
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;

use super::sequences::{ActiveSequence, Apply, Reading, ReceiptState, Stage, Work};
use super::{EngineLoop, milliseconds};
use crate::limits::SLICE_BYTES;
use crate::sequence::{Carried, HandedOver, Lost, Origin, SequenceId, Told};

impl EngineLoop {
    /// Takes a slice of KV in; tells how many blocks that ended.
    pub(super) fn apply_step(&mut self) -> usize {
        let (mut taken, mut ended) = (0, 0);
        while let Some(mut apply) = self.applies.pop_front() {
            let part = apply.taking.part();
            taken += apply.taking.part_bytes();
            let result = self.apply(&apply, &part);
            if result.is_ok() && !apply.taking.taken(&part) {
                self.applies.push_front(apply);
            } else {
                ended += 1;
                // Whoever waits may have given up meanwhile; then nobody needs the answer.
                let _ = apply.reply.send(result);
            }
            let next = self.applies.front().map_or(0, |a| a.taking.part_bytes());
            if taken.saturating_add(next) > SLICE_BYTES {
                break;
            }
        }
        ended
    }

    fn apply(&mut self, apply: &Apply, part: &Range<u32>) -> Result<(), String> {
        let (id, block) = (apply.id, &*apply.taking.block);
        let epoch = id.0;
        let gone =
            || format!("epoch {epoch} of the sequence is over, or it no longer waits for KV");
        let sequence = self.sequences.get_mut(&id).ok_or_else(gone)?;
        let waits = match sequence.reading {
            Reading::Receiving => true,
            // A handoff that is given up may still bring something.
            Reading::Seeding => apply.origin == Origin::Pages,
            _ => false,
        };
        if !waits {
            return Err(gone());
        }
        let start = Instant::now();
        let (engine, place) = (self.engine.as_mut(), sequence.place);
        let import = |e: &mut dyn KvEngine| e.import_part(place, block, part.clone());
        let result = self.beginnings.with_room(engine, None, import);
        if let Work::Generate(g) = &mut sequence.work {
            g.summary.apply_ms += milliseconds(start);
            let carried = match apply.origin {
                Origin::Handoff(carried) if result.is_ok() => carried,
                _ => Carried::default(),
            };
            g.summary.codec = g.summary.codec.max(carried.codec);
            // Pages have none on the wire.
            let is_whole = part.end == block.tokens.end && carried.wire_bytes > 0;
            if is_whole && matches!(sequence.reading, Reading::Receiving) {
                g.summary.handoff_bytes += block.bytes();
                g.summary.wire_bytes += carried.wire_bytes;
            }
        }
        result.map_err(|e| e.to_string())
    }

    /// Pages of this node are in place, as far as there are any; the rest is computed here.
    pub(super) fn seeded(&mut self, id: SequenceId, exact: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if !matches!(sequence.reading, Reading::Seeding) {
            return;
        }
        if exact && sequence.reproducible {
            // They may have ended before the place that was chosen.
            let chunking = sequence.chunking(self.engine.tail_tokens());
            let goes_on_at = chunking.goes_on_at(self.engine.held(sequence.place));
            self.engine.truncate(sequence.place, goes_on_at);
        }
        let held = self.engine.held(sequence.place);
        if held == 0 {
            self.engine.clear(sequence.place);
        }
        match &mut sequence.work {
            Work::Generate(g) => g.summary.cached_tokens = held,
            // They have been handed out.
            Work::Export(e) => e.end = held,
        }
        sequence.read_from(held);
    }

    /// A handoff begins with pages of this node up to here: they are in place, or come next.
    pub(super) fn has_pages(&mut self, id: SequenceId, tokens: u32) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && matches!(sequence.reading, Reading::Receiving)
            && let Work::Generate(g) = &mut sequence.work
        {
            g.summary.cached_tokens = tokens;
        }
    }

    pub(super) fn committed(&mut self, id: SequenceId, handed: &HandedOver) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let held = self.engine.held(sequence.place);
        let kv_end = sequence.kv_end();
        if !matches!(sequence.reading, Reading::Receiving) {
            return;
        }
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        g.summary.handoff_bytes = handed.raw_bytes;
        g.summary.wire_bytes = handed.wire_bytes;
        g.summary.reconnects = handed.reconnects;
        if !g.is_lossless() {
            // What follows from lossy rows is kept by nobody.
            g.retire = None;
        }
        if held == kv_end {
            g.summary.remote_tokens = held.saturating_sub(g.summary.cached_tokens);
            sequence.complete();
        } else {
            self.fall_back(
                id,
                format!("committed, but {held} of {kv_end} tokens are held").into(),
            );
        }
    }

    /// What the sender computed for the last token has come, or will not come.
    pub(super) fn receipt(&mut self, id: SequenceId, told: Told) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        if !matches!(g.receipt, ReceiptState::Awaited) {
            return;
        }
        match told {
            Told::Receipt(_) if g.logits.is_none() => g.receipt = ReceiptState::Here(told),
            told => self.compare(id, &told),
        }
    }

    /// Compares the ends, or finds that they cannot be compared, and goes on from there.
    pub(super) fn compare(&mut self, id: SequenceId, told: &Told) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        g.receipt = ReceiptState::Settled;
        let logits = g.logits.take();
        let compared = match (told, &logits) {
            (Told::Receipt(receipt), Some(logits)) => {
                receipt.compare(logits).map_err(|e| e.to_string())
            }
            (Told::Unusable(reason), _) => Err(format!(
                "what the prefill node computed is not known: {reason}"
            )),
            _ => Err("the prefill node did not tell what it computed".to_owned()),
        };
        let fault = compared.map_or_else(Some, |parity| g.judged(parity));
        let mut doubtful = None;
        if let Some(reason) = &fault {
            let mut forgotten = 0;
            if !matches!(told, Told::Nothing) {
                // What one request does not trust, no other one gets.
                g.retire = None;
                // Lossy rows say nothing about exact ones that had been there.
                let exact = match g.summary.codec.is_none_or(Codec::is_lossless) {
                    true => 0,
                    false => g.summary.cached_tokens,
                };
                forgotten = g.keep.forget(&sequence.tokens, exact);
                doubtful = Some((sequence.salt.clone(), sequence.tokens.clone()));
                sequence.is_doubtful = true;
            }
            tracing::warn!(request = %sequence.request, %reason, forgotten, "parity");
        }
        let is_finished = matches!(g.stage, Stage::Finished { .. });
        if let Some((salt, tokens)) = doubtful {
            self.doubt(salt.as_ref(), &tokens);
        }
        if is_finished {
            self.finish(id);
        }
    }

    /// Waits that have become too long.
    pub(super) fn check_waits(&mut self) {
        let patience = self.limits.receipt;
        let overdue = |(id, sequence): (&SequenceId, &ActiveSequence)| match &sequence.work {
            Work::Generate(g) => match g.stage {
                Stage::Finished { since, .. } if since.elapsed() > patience => Some(*id),
                _ => None,
            },
            _ => None,
        };
        let late: Vec<SequenceId> = self.sequences.iter().filter_map(overdue).collect();
        for id in late {
            self.compare(id, &Told::Nothing);
        }
    }

    /// Computes here what another node did not send. What it did send is kept, unless it is of another
    /// quantisation, and where the engine can continue from it: a model with window layers starts over
    /// unless its window came. Where nothing is kept, pages of this node come first.
    pub(super) fn fall_back(&mut self, id: SequenceId, lost: Lost) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let chunking = sequence.chunking(self.engine.tail_tokens());
        let kv_end = sequence.kv_end();
        if !matches!(sequence.reading, Reading::Receiving) {
            return;
        }
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        let Lost { reason, is_wrong } = lost;
        // Rows of another quantisation are all of a prompt's rows, or none.
        if is_wrong || g.parity.mixed_quantisation {
            self.engine.clear(sequence.place);
        }
        let held = self.engine.held(sequence.place);
        if sequence.reproducible {
            // The rows that follow are to be those of an undisturbed prefill, to the bit.
            let goes_on_at = chunking.goes_on_at(held);
            self.engine.truncate(sequence.place, goes_on_at);
        }
        let held = self.engine.held(sequence.place);
        // Pages of this node are in place before anything is sent, as far as they came.
        g.summary.cached_tokens = g.summary.cached_tokens.min(held);
        g.summary.remote_tokens = held - g.summary.cached_tokens;
        g.summary.fallback = Some(reason);
        if held == 0 {
            g.summary.codec = None;
        } else if g.parity.quality != Quality::Lossless {
            // What came, now or before, may be lossy.
            g.retire = None;
        }
        // There is nothing to compare: no receipt will come.
        g.receipt = ReceiptState::Settled;
        tracing::warn!(request = %sequence.request, held, kv_end, "prefilling here what was not handed over");
        if is_wrong {
            // Pages that what came was wrong for are being forgotten.
            sequence.pages = None;
        }
        if held == 0 {
            self.engine.clear(sequence.place);
            self.begin(id);
        } else {
            sequence.read_from(held);
        }
    }
}
