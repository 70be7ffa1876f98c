//! Continuous batching: one call of the engine evaluates the next token of each answer and parts of prompts, also of
//! those that are read for other nodes: their rows are given while the next layers are computed.
//!
//! A reproducible prompt is computed in fixed shapes (`chunking`); nothing else runs beside it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_engine::generation::{Generation, GenerationError, Step};
use tandem_engine::{DecodeStep, EngineError, Item, KvEngine, LayerRows, Sequence, Token};

use super::export::{LayerExport, begin, hand_out};
use super::sequences::After;
use super::sequences::{ActiveSequence, Reading, Stage, Work};
use super::slices::{CopyOut, Window};
use super::{EngineLoop, engine_error};
use crate::limits::{MIN_CHUNK, OLDEST_EVERY, STALL, TILE};
use crate::sequence::SequenceId;

/// How long steps take, for the size of the next one.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// A step of answers alone, in seconds.
    answers: Option<f64>,
    /// Each token of a prompt besides, in seconds, in steps of fewer tokens than a tile...
    small: Option<f64>,
    /// ... and in others.
    large: Option<f64>,
    /// Steps that read prompts.
    reads: u32,
}

/// What an answer says next, or why it does not go on.
pub(super) type Choice = Result<Step, GenerationError>;

/// Threads that choose tokens at the same time.
const MAX_CHOOSERS: usize = 8;
/// Logits that one thread looks through before others could begin.
const ALONE_NUMBERS: usize = 1 << 16;

/// The weight of the last step in a mean.
const NEWEST: f64 = 0.25;
/// How many times the mean one step counts at most: the machine may have done something else.
const OUTLIER: f64 = 2.0;

fn blend(mean: &mut Option<f64>, newest: f64) {
    let capped = |m: f64| m + (newest.min(m * OUTLIER) - m) * NEWEST;
    *mean = Some(mean.map_or(newest, capped));
}

/// How many tokens at such a rate take so long.
fn within(time: Duration, rate: Option<f64>) -> u32 {
    let each = rate.and_then(|rate| Duration::try_from_secs_f64(rate).ok());
    let tokens = each.map_or(0, |each| time.as_nanos() / each.as_nanos().max(1));
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Pace {
    /// How many tokens of prompts a step reads that has room for so many, beside the answers of so many requests: whole tiles,
    /// unless these hold answers up for too long.
    fn budget(&self, room: u32, requests: u32) -> u32 {
        let few = within(STALL, self.small).clamp(MIN_CHUNK, TILE - 1);
        let each = self
            .small
            .and_then(|rate| Duration::try_from_secs_f64(rate).ok());
        let long = each.unwrap_or_default().saturating_mul(few).max(STALL);
        // With many at once, what they wait for is the work of all.
        let many = within(long.saturating_mul((requests / 2).max(1)), self.large);
        let tokens = match many < TILE {
            true => few,
            // More of them take less each.
            false => many.saturating_add(TILE / 2) / TILE * TILE,
        };
        tokens.min(room)
    }

    /// A step of so many tokens of prompts and answers took so long.
    fn took(&mut self, tokens: u32, answers: u32, took: Duration) {
        let took = took.as_secs_f64();
        if tokens == 0 {
            return blend(&mut self.answers, took);
        }
        self.reads = self.reads.wrapping_add(1);
        let alone = match answers {
            0 => 0.0,
            _ => self.answers.unwrap_or(0.0),
        };
        let each = (took - alone).max(0.0) / f64::from(tokens);
        if tokens.saturating_add(answers) >= TILE {
            blend(&mut self.large, each);
        } else if tokens >= MIN_CHUNK {
            blend(&mut self.small, each);
        }
    }
}

/// What one sequence has in a step.
struct Part {
    id: SequenceId,
    place: Sequence,
    start: u32,
    tokens: Vec<Token>,
    logits: bool,
    is_answer: bool,
}

impl Part {
    fn count(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    fn end(&self) -> u32 {
        self.start + self.count()
    }
}

/// Tokens of all.
fn count(parts: &[Part]) -> u32 {
    parts.iter().map(Part::count).fold(0, u32::saturating_add)
}

/// The blocks of the parts whose layers are given while the next ones are computed.
type Layers = BTreeMap<Sequence, LayerExport>;

impl EngineLoop {
    /// One token of every answer whose coordinator keeps up, and parts of prompts if they are read in this step.
    pub(super) fn step(&mut self, reads: bool) {
        let mut parts = self.next_tokens();
        let mut chunks = match reads {
            true => self.next_chunks(count(&parts)),
            false => Vec::new(),
        };
        let layers = self.begin_layers(&mut chunks);
        if parts.is_empty() && chunks.is_empty() {
            return;
        }
        self.engine.begin_step();
        if self.engine.threads().is_some() && count(&chunks) >= TILE {
            // In one call answers would be computed in tiles, too, each with the KV of all others.
            self.compute(std::mem::take(&mut parts), Layers::new());
        }
        parts.append(&mut chunks);
        self.compute(parts, layers);
        self.engine.end_step();
    }

    /// One call of the engine.
    fn compute(&mut self, parts: Vec<Part>, mut layers: Layers) {
        if parts.is_empty() {
            return;
        }
        let begun = Instant::now();
        match self.evaluate(&parts, &mut layers) {
            Ok(rows) => {
                let took = begun.elapsed();
                self.measure_step(&parts, took);
                self.take_step(parts, rows, layers, took);
            }
            Err(e) => {
                tracing::error!(sequences = parts.len(), error = %e, "a step failed");
                for part in parts {
                    self.fail(part.id, engine_error(&e));
                }
            }
        }
    }

    fn evaluate(
        &mut self,
        parts: &[Part],
        layers: &mut Layers,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        // All of a prompt may be shared.
        let items: Vec<Item<'_>> = parts
            .iter()
            .filter(|part| part.count() > 0)
            .map(|part| Item {
                sequence: part.place,
                start: part.start,
                tokens: &part.tokens,
                logits: part.logits,
            })
            .collect();
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let gives = !layers.is_empty();
        let mut give = |rows: &LayerRows<'_>| {
            if let Some(export) = layers.get_mut(&rows.sequence) {
                export.take(rows);
            }
        };
        let evaluate = |e: &mut dyn KvEngine| match gives {
            true => e.evaluate(&items, Some(&mut give)),
            false => e.evaluate(&items, None),
        };
        let engine = self.engine.as_mut();
        self.beginnings.with_room(engine, None, evaluate)
    }

    /// Tells those who send layers what is computed for them now; a part that nobody takes is left out.
    fn begin_layers(&mut self, parts: &mut Vec<Part>) -> Layers {
        let mut layers = Layers::new();
        let mut gone = Vec::new();
        for part in parts.iter().filter(|p| p.count() > 0) {
            let Some(sequence) = self.sequences.get_mut(&part.id) else {
                continue;
            };
            match begin(self.engine.as_ref(), sequence, part.start..part.end()) {
                Some(Ok(export)) => drop(layers.insert(part.place, export)),
                Some(Err(_)) => gone.push(part.id),
                None => {}
            }
        }
        for id in gone {
            parts.retain(|part| part.id != id);
            self.end(id);
        }
        layers
    }

    /// The next token of each answer, and the last one of each prompt that has been computed for another node.
    fn next_tokens(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (id, sequence) in &mut self.sequences {
            let kv_end = sequence.kv_end();
            let (token, position) = match &mut sequence.work {
                Work::Export(_) if matches!(sequence.reading, Reading::Complete) => {
                    (sequence.tokens[kv_end as usize], kv_end)
                }
                Work::Generate(g) => {
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
                    (token, position)
                }
                Work::Export(_) => continue,
            };
            parts.push(Part {
                id: *id,
                place: sequence.place,
                start: position,
                tokens: vec![token],
                logits: true,
                is_answer: true,
            });
        }
        parts
    }

    /// Parts of prompts beside so many answers: first of those with the fewest tokens left, so that their answers begin; now
    /// and then of the oldest.
    fn next_chunks(&self, answers: u32) -> Vec<Part> {
        let mut parts = Vec::new();
        let room = self.engine.capacity().call_tokens().saturating_sub(answers);
        let requests = u32::try_from(self.sequences.len()).unwrap_or(u32::MAX);
        let mut budget = match answers {
            0 => room,
            _ => self.pace.budget(room, requests),
        };
        let all = self.sequences.iter();
        let mut ready: Vec<(SequenceId, u32)> = all
            .filter(|(_, sequence)| sequence.can_read())
            .map(|(id, sequence)| (*id, sequence.left()))
            .collect();
        ready.sort_by_key(|(id, left)| (*left, *id));
        if self.pace.reads.is_multiple_of(OLDEST_EVERY)
            && let Some(oldest) = ready.iter().min().copied()
        {
            ready.retain(|one| *one != oldest);
            ready.insert(0, oldest);
        }
        for (id, _) in ready {
            if budget == 0 {
                break;
            }
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let (start, end) = sequence.next_part(budget, self.engine.tail_tokens());
            budget -= end - start;
            parts.push(Part {
                id,
                place: sequence.place,
                start,
                tokens: sequence.tokens[start as usize..end as usize].to_vec(),
                logits: end > sequence.kv_end(),
                is_answer: false,
            });
        }
        parts
    }

    /// Counts what can be compared: answers alone, or one prompt alone.
    fn measure_step(&mut self, parts: &[Part], took: Duration) {
        let answers = parts.iter().filter(|p| p.is_answer).count();
        let answers = u32::try_from(answers).unwrap_or(u32::MAX);
        let read = count(parts).saturating_sub(answers);
        self.pace.took(read, answers, took);
        let measured = self.measured.lock();
        let mut measured = measured.unwrap_or_else(std::sync::PoisonError::into_inner);
        match parts {
            [one] if !one.is_answer => {
                measured.prefilled(&(one.start..one.end()), took);
            }
            _ if read == 0 => {
                let steps = parts.iter().map(|part| DecodeStep {
                    sequence: part.place,
                    token: part.tokens[0],
                    position: part.start,
                });
                measured.decoded(&steps.collect::<Vec<_>>(), took);
            }
            _ => {}
        }
    }

    /// What a step has computed.
    fn take_step(
        &mut self,
        parts: Vec<Part>,
        rows: Vec<Vec<f32>>,
        mut layers: Layers,
        took: Duration,
    ) {
        let all = f64::from(count(&parts).max(1));
        let ids = parts.iter().filter(|p| p.logits).map(|p| p.id);
        let rows: BTreeMap<SequenceId, Vec<f32>> = ids.zip(rows).collect();
        for part in parts {
            if !part.is_answer {
                let share = f64::from(part.count()) / all;
                let after = self.has_read(&part, layers.remove(&part.place), took.mul_f64(share));
                self.go_on(part.id, after);
            }
        }
        let mut chosen = self.choose(&rows);
        for (id, logits) in rows {
            self.evaluated(id, logits, chosen.remove(&id));
        }
    }

    /// What each answer says next. A choice may take long (a mask, the order of all tokens), so several are made at
    /// the same time.
    fn choose(&mut self, rows: &BTreeMap<SequenceId, Vec<f32>>) -> BTreeMap<SequenceId, Choice> {
        let mut open = Vec::new();
        for (id, sequence) in &mut self.sequences {
            if let (Some(logits), Work::Generate(g)) = (rows.get(id), &mut sequence.work) {
                open.push((*id, &mut g.generation, logits.as_slice()));
            }
        }
        let choose =
            |(id, generation, logits): (_, &mut Generation, &[f32])| (id, generation.next(logits));
        let numbers: usize = open.iter().map(|(_, _, logits)| logits.len()).sum();
        let threads = self.engine.threads().map_or(MAX_CHOOSERS, |t| t as usize);
        let threads = threads.min(MAX_CHOOSERS).min(open.len());
        if threads < 2 || numbers < ALONE_NUMBERS {
            return open.into_iter().map(choose).collect();
        }
        let each = open.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            while open.len() > each {
                let part = open.split_off(open.len() - each);
                others.push(scope.spawn(move || part.into_iter().map(choose).collect::<Vec<_>>()));
            }
            let mut chosen: BTreeMap<_, _> = open.into_iter().map(choose).collect();
            for other in others {
                match other.join() {
                    Ok(more) => chosen.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            chosen
        })
    }

    /// A part of a prompt has been read, whose layers have been given if that is wanted.
    fn has_read(
        &mut self,
        part: &Part,
        layers: Option<LayerExport>,
        took: Duration,
    ) -> Result<After, EngineError> {
        let Some(sequence) = self.sequences.get_mut(&part.id) else {
            return Ok(After::Keep);
        };
        let (end, kv_end) = (part.end(), sequence.kv_end());
        // The last token counts as the first step of the answer.
        let computed = end.min(kv_end).saturating_sub(part.start);
        sequence.prefill_ms += took.as_secs_f64() * 1e3;
        sequence.computed_tokens += computed;
        let engine = self.engine.as_mut();
        let Work::Generate(g) = &mut sequence.work else {
            return hand_out(engine, sequence, part.start..end, layers);
        };
        g.summary.local_tokens += computed;
        g.summary.local_prefill_ms = sequence.prefill_ms;
        let is_cut = sequence.is_cut(end);
        let window = CopyOut::of(engine.contract(), end);
        match window {
            _ if part.logits => sequence.complete(),
            Some(out) if sequence.reproducible && end == kv_end => {
                let (window, next) = (Window::Out(out), end);
                sequence.reading = Reading::Settling { window, next };
            }
            Some(out) if is_cut => sequence.reading = Reading::Copying { out, next: end },
            _ if sequence.reproducible => sequence.read_from(end),
            _ => sequence.reading = Reading::Next(end),
        }
        Ok(After::Keep)
    }
}

impl ActiveSequence {
    /// How many tokens of its prompt are left to read.
    fn left(&self) -> u32 {
        let next = match self.reading {
            Reading::Next(next) => next,
            _ => 0,
        };
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - next
    }

    /// The next tokens to read, at most so many, and no more than up to a cut. The last token of a prompt that is read for
    /// another node, or reproducibly, is evaluated behind all others.
    fn next_part(&self, most: u32, tail: u32) -> (u32, u32) {
        let start = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - self.left();
        let left = match &self.work {
            Work::Generate(_) if !self.reproducible => self.left(),
            _ => self
                .chunking(tail)
                .at(start)
                .len()
                .try_into()
                .unwrap_or(u32::MAX),
        };
        let end = start + left.min(most);
        let cut = self.cuts.iter().find(|cut| **cut > start);
        (start, cut.map_or(end, |cut| end.min(*cut)))
    }

    /// True if its window is to be copied there.
    pub(super) fn is_cut(&mut self, end: u32) -> bool {
        let is_cut = self.cuts.first() == Some(&end);
        self.cuts.retain(|cut| *cut > end);
        is_cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_prompts_are_whole_tiles_as_far_as_answers_may_wait() {
        // (milliseconds of a token in small steps and in large ones, requests, tokens of a part)
        for (small, large, requests, tokens) in [
            (1.0, 0.25, 2, 192),
            (1.0, 0.25, 8, 512),
            (5.0, 3.0, 2, MIN_CHUNK),
            (5.0, 3.0, 8, 128),
            (0.5, 0.9, 2, TILE - 1),
        ] {
            let mut pace = Pace::default();
            assert_eq!(pace.budget(512, requests), MIN_CHUNK);
            for (rate, count) in [(small, MIN_CHUNK), (large, 512)] {
                let took = Duration::from_secs_f64(rate * f64::from(count) / 1e3);
                pace.took(count, 0, took);
            }
            let case = format!("{small} {large} {requests}");
            assert_eq!(pace.budget(512, requests), tokens, "{case}");
            assert_eq!(pace.budget(5, requests), 5, "{case}");
        }
    }
}
