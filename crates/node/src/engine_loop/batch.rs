//! Continuous batching: one call of the engine evaluates the next token of each answer and parts of prompts.
//!
//! Prompts for other nodes and reproducible ones are computed by themselves (`steps`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_engine::generation::{Generation, GenerationError, Step};
use tandem_engine::{DecodeStep, EngineError, Item, Sequence, Token};

use super::sequences::{ActiveSequence, ExportStage, Stage, Work};
use super::slices::CopyOut;
use super::{EngineLoop, engine_error};
use crate::limits::{MIN_CHUNK, OLDEST_EVERY, STALL};
use crate::sequence::SequenceId;

/// How long steps take, for the size of the next one.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// A step of answers alone, in seconds.
    answers: Option<f64>,
    /// Each token of a prompt besides, in seconds.
    token: Option<f64>,
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

fn blend(mean: &mut Option<f64>, newest: f64) {
    *mean = Some(mean.map_or(newest, |m| m + (newest - m) * NEWEST));
}

impl Pace {
    /// How many tokens of prompts a step reads that has room for so many, beside so many answers.
    fn budget(&self, room: u32, answers: usize) -> u32 {
        if answers == 0 {
            return room;
        }
        let Some(token) = self.token.filter(|t| *t > 0.0) else {
            return MIN_CHUNK.min(room);
        };
        let within = Duration::try_from_secs_f64(token).unwrap_or(STALL);
        let within = STALL.as_nanos() / within.as_nanos().max(1);
        let within = u32::try_from(within).unwrap_or(u32::MAX);
        within.max(MIN_CHUNK).min(room)
    }

    /// A step of so many tokens of prompts and answers took so long.
    fn took(&mut self, tokens: u32, answers: usize, took: Duration) {
        let took = took.as_secs_f64();
        if tokens == 0 {
            return blend(&mut self.answers, took);
        }
        self.reads = self.reads.wrapping_add(1);
        let alone = match answers {
            0 => 0.0,
            _ => self.answers.unwrap_or(0.0),
        };
        if tokens >= MIN_CHUNK {
            blend(&mut self.token, (took - alone).max(0.0) / f64::from(tokens));
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

impl EngineLoop {
    /// One token of every answer whose coordinator keeps up, and parts of prompts if they are read in this step.
    pub(super) fn step(&mut self, reads: bool) {
        let mut parts = self.next_tokens();
        let answers = parts.len();
        if reads {
            self.add_chunks(&mut parts);
        }
        if parts.is_empty() {
            return;
        }
        self.engine.begin_step();
        let begun = Instant::now();
        let result = self.evaluate(&parts);
        let took = begun.elapsed();
        match result {
            Ok(rows) => {
                self.measure_step(&parts, answers, took);
                self.take_step(parts, rows, took);
            }
            Err(e) => {
                tracing::error!(sequences = parts.len(), error = %e, "a step failed");
                for part in parts {
                    self.fail(part.id, engine_error(&e));
                }
            }
        }
        self.engine.end_step();
    }

    fn evaluate(&mut self, parts: &[Part]) -> Result<Vec<Vec<f32>>, EngineError> {
        let items: Vec<Item<'_>> = parts
            .iter()
            .map(|part| Item {
                sequence: part.place,
                start: part.start,
                tokens: &part.tokens,
                logits: part.logits,
            })
            .collect();
        let engine = self.engine.as_mut();
        self.beginnings
            .with_room(engine, None, |e| e.evaluate(&items, None))
    }

    /// The next token of each answer, and the last one of each prompt that has been computed for another node.
    fn next_tokens(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (id, sequence) in &mut self.sequences {
            let kv_end = sequence.kv_end();
            let (token, position) = match &mut sequence.work {
                Work::Export(e) if matches!(e.stage, ExportStage::Evaluating) => {
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
                Work::Export(_) | Work::Retire { .. } => continue,
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

    /// Adds parts of prompts: first of those with the fewest tokens left, so that their answers begin; now and then of the
    /// oldest.
    fn add_chunks(&mut self, parts: &mut Vec<Part>) {
        let answers = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let room = self.engine.capacity().call_tokens().saturating_sub(answers);
        let mut budget = self.pace.budget(room, parts.len());
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
                return;
            }
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let (start, end) = sequence.next_part(budget);
            budget -= end - start;
            parts.push(Part {
                id,
                place: sequence.place,
                start,
                tokens: sequence.tokens[start as usize..end as usize].to_vec(),
                logits: end as usize == sequence.tokens.len(),
                is_answer: false,
            });
        }
    }

    /// Counts what can be compared: answers alone, or one prompt alone.
    fn measure_step(&mut self, parts: &[Part], answers: usize, took: Duration) {
        let read = parts.iter().filter(|p| !p.is_answer);
        let read: usize = read.map(|p| p.tokens.len()).sum();
        self.pace
            .took(u32::try_from(read).unwrap_or(u32::MAX), answers, took);
        let measured = self.measured.lock();
        let mut measured = measured.unwrap_or_else(std::sync::PoisonError::into_inner);
        match parts {
            [one] if !one.is_answer => {
                let end = one.start + u32::try_from(read).unwrap_or(0);
                measured.prefilled(&(one.start..end), took);
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
    fn take_step(&mut self, parts: Vec<Part>, rows: Vec<Vec<f32>>, took: Duration) {
        let all: usize = parts.iter().map(|p| p.tokens.len()).sum();
        let ids = parts.iter().filter(|p| p.logits).map(|p| p.id);
        let rows: BTreeMap<SequenceId, Vec<f32>> = ids.zip(rows).collect();
        for part in parts {
            if !part.is_answer {
                let count = u32::try_from(part.tokens.len()).unwrap_or(0);
                let share = f64::from(count) / f64::from(u32::try_from(all.max(1)).unwrap_or(1));
                self.has_read(&part, took.mul_f64(share.min(1.0)));
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

    /// A part of a prompt has been read.
    fn has_read(&mut self, part: &Part, took: Duration) {
        let Some(sequence) = self.sequences.get_mut(&part.id) else {
            return;
        };
        let end = part.start + u32::try_from(part.tokens.len()).unwrap_or(0);
        let kv_end = sequence.kv_end();
        // The last token counts as the first step of the answer.
        let computed = end.min(kv_end).saturating_sub(part.start);
        sequence.prefill_ms += took.as_secs_f64() * 1e3;
        sequence.computed_tokens += computed;
        let is_cut = sequence.cuts.first() == Some(&end);
        sequence.cuts.retain(|cut| *cut > end);
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        g.summary.local_tokens += computed;
        g.summary.local_prefill_ms = sequence.prefill_ms;
        g.stage = Stage::Prefilling { next: end };
        if part.logits {
            g.start_decoding(sequence.tokens[kv_end as usize], kv_end);
        } else if let Some(out) = CopyOut::of(self.engine.contract(), end).filter(|_| is_cut) {
            g.stage = Stage::Copying { out, next: end };
        }
    }
}

impl ActiveSequence {
    /// Where its prompt goes on to be read.
    fn next(&self) -> u32 {
        match &self.work {
            Work::Generate(g) => match g.stage {
                Stage::Prefilling { next } => next,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// How many tokens of its prompt are left to read.
    fn left(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - self.next()
    }

    /// The next tokens to read, at most so many, and no more than up to a cut.
    fn next_part(&self, most: u32) -> (u32, u32) {
        let start = self.next();
        let end = start + self.left().min(most);
        let cut = self.cuts.iter().find(|cut| **cut > start);
        (start, cut.map_or(end, |cut| end.min(*cut)))
    }
}
