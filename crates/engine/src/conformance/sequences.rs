//! Several sequences, side by side and one after the other.

use tandem_handoff::{KvBlock, Section};

use super::Measured;
use super::plan::Prompt;
use super::probe::{self, Answer};
use crate::compute::Item;
use crate::kv_cache::{EngineError, Sequence};
use crate::kv_engine::KvEngine;
use crate::tokenizer::Token;

/// Most sequences that run side by side in the suite.
const SIDE_BY_SIDE: usize = 3;

/// As many sequences as the capacity says can be open, and no more.
pub fn check_capacity(engine: &mut dyn KvEngine) {
    let count = engine.capacity().sequences + engine.capacity().cached;
    let open: Vec<Sequence> = (0..count)
        .map(|i| probe::open(engine, &format!("capacity, sequence {i} of {count}")))
        .collect();
    for (i, sequence) in open.iter().enumerate() {
        assert!(
            !open[..i].contains(sequence),
            "conformance: capacity: {sequence:?} was opened twice"
        );
    }
    let more = engine.open();
    assert!(
        matches!(more, Err(EngineError::Full(_))),
        "conformance: capacity: with {count} sequences open, `open` gave {more:?} instead of Full"
    );
    engine.release(open[0]);
    let again = probe::open(engine, "capacity, after a release");
    engine.release(again);
    for &sequence in &open[1..] {
        engine.release(sequence);
    }
}

/// A sequence that was released and opened, or cleared, knows nothing of its past.
pub fn check_reuse(engine: &mut dyn KvEngine, prompts: &[Prompt]) {
    let (first, second) = (&prompts[0], &prompts[1]);
    let expected = probe::compute(engine, "reuse", second, &probe::greedy());
    let what = "reuse after release";
    let sequence = probe::open(engine, what);
    probe::prefill_from(engine, what, sequence, first, 0);
    engine.release(sequence);
    let got = probe::compute(engine, what, second, &probe::greedy());
    probe::check_same(what, &expected, &got);

    let what = "reuse after clear";
    let sequence = probe::open(engine, what);
    probe::prefill_from(engine, what, sequence, first, 0);
    probe::generate(engine, what, sequence, first, &probe::greedy());
    engine.clear(sequence);
    probe::check_held(engine, what, sequence, 0);
    probe::prefill_from(engine, what, sequence, second, 0);
    let got = probe::generate(engine, what, sequence, second, &probe::greedy());
    probe::check_same(what, &expected, &got);
    engine.release(sequence);
}

/// A sequence that goes back to the end of a chunk, or to its beginning, and on from there, answers as one that did not.
pub fn check_truncate(engine: &mut dyn KvEngine, prompts: &[Prompt]) {
    for prompt in prompts.iter().filter(|prompt| prompt.chunks.len() > 1) {
        let what = format!("`{}`, back to a chunk", prompt.name);
        let expected = probe::compute(engine, &what, prompt, &probe::greedy());
        for end in prompt.chunks.iter().map(|chunk| chunk.end) {
            let sequence = probe::open(engine, &what);
            probe::prefill_from(engine, &what, sequence, prompt, 0);
            engine.truncate(sequence, end);
            let held = match engine.held(sequence) {
                0 => 0,
                _ => end,
            };
            probe::check_held(engine, &what, sequence, held);
            probe::prefill_from(engine, &what, sequence, prompt, held);
            let got = probe::generate(engine, &what, sequence, prompt, &probe::greedy());
            probe::check_same(&what, &expected, &got);
            engine.release(sequence);
        }
    }
}

/// Sequences prefilled, imported and decoded side by side answer as they do alone.
pub fn check_independence(
    source: &mut dyn KvEngine,
    receiver: &mut dyn KvEngine,
    prompts: &[Prompt],
    rounding: f32,
) -> Measured {
    let count = SIDE_BY_SIDE.min(source.capacity().sequences as usize);
    let mut chosen: Vec<&Prompt> = prompts.iter().filter(|p| p.chunks.len() > 1).collect();
    chosen.reverse();
    chosen.extend(prompts.iter().filter(|p| p.chunks.len() == 1));
    chosen.truncate(count);
    let alone: Vec<Answer> = chosen
        .iter()
        .map(|prompt| probe::compute(receiver, "side by side, alone", prompt, &probe::greedy()))
        .collect();

    let what = "side by side, prefilled";
    let (sequences, blocks) = prefill_round_robin(source, what, &chosen);
    let here = probe::generate_all(source, what, &sequences, &probe::greedy());
    release_all(source, &sequences);
    let mut measured = Measured {
        batch_difference: 0.0,
        close_calls: 0,
    };
    compare_all(what, [&alone, &here], rounding, &mut measured);

    let what = "side by side, imported";
    let sequences = import_round_robin(receiver, what, &chosen, &blocks);
    let there = probe::generate_all(receiver, what, &sequences, &probe::greedy());
    release_all(receiver, &sequences);
    compare_all(what, [&alone, &there], rounding, &mut measured);
    check_mixed(receiver, prompts, rounding, &mut measured);
    measured
}

/// Chunks of one sequence and steps of another in the same calls compute what each computes alone, but for rounding, and
/// give the rows of each.
fn check_mixed(
    engine: &mut dyn KvEngine,
    prompts: &[Prompt],
    rounding: f32,
    measured: &mut Measured,
) {
    let what = "a chunk and a step in one call";
    let (decoding, prefilling) = (&prompts[0], &prompts[1]);
    let alone =
        [decoding, prefilling].map(|prompt| probe::compute(engine, what, prompt, &probe::greedy()));
    let (one, other) = (probe::open(engine, what), probe::open(engine, what));
    probe::prefill_from(engine, what, one, decoding, 0);
    let capacity = engine.capacity();
    let size = (capacity.microbatch_tokens).min(capacity.call_tokens() - 1);
    let first = decoding.tokens[decoding.prefilled() as usize];
    let tokens: Vec<Token> = [first].into_iter().chain(alone[0].tokens.clone()).collect();
    let mut start = 0;
    for (step, chunk) in prefilling.tokens.chunks(size as usize).enumerate() {
        let position = decoding.prefilled() + u32::try_from(step).unwrap_or(u32::MAX);
        let items = [
            Item {
                sequence: other,
                start,
                tokens: chunk,
                logits: true,
            },
            Item {
                sequence: one,
                start: position,
                tokens: &tokens[step..=step],
                logits: true,
            },
        ];
        let (rows, given) = probe::evaluate_by_layer(engine, what, &items);
        for item in &items {
            let tokens = item.start..item.end();
            let full = Section::Full;
            let full = probe::export(engine, what, item.sequence, full, tokens.clone());
            probe::check_given(what, (item.sequence, &tokens), &given, &full);
        }
        start = items[0].end();
        probe::check_held(engine, what, other, start);
        probe::check_held(engine, what, one, position + 1);
        let [chunk, stepped] = &rows[..] else {
            panic!(
                "conformance: {what}: {} rows of logits, expected 2",
                rows.len()
            );
        };
        let what = format!("{what}, step {step}");
        measured.take(&what, &alone[0].logits[step], stepped, rounding);
        if start as usize == prefilling.tokens.len() {
            measured.take(&what, &alone[1].logits[0], chunk, rounding);
            break;
        }
    }
    engine.release(one);
    engine.release(other);
}

impl Measured {
    /// Rows of logits that are the same but for rounding.
    fn take(&mut self, what: &str, alone: &[f32], together: &[f32], rounding: f32) {
        let difference = largest_difference(alone, together);
        assert!(
            difference <= rounding,
            "conformance: {what}: logits differ by {difference} from those of the sequence alone; \
             at most {rounding} is rounding"
        );
        self.batch_difference = self.batch_difference.max(difference);
    }
}

type Opened<'a> = Vec<(Sequence, &'a Prompt)>;

fn open_all<'a>(engine: &mut dyn KvEngine, what: &str, prompts: &[&'a Prompt]) -> Opened<'a> {
    let open = |prompt: &&'a Prompt| (probe::open(engine, what), *prompt);
    prompts.iter().map(open).collect()
}

fn release_all(engine: &mut dyn KvEngine, sequences: &Opened<'_>) {
    for &(sequence, _) in sequences {
        engine.release(sequence);
    }
}

/// One chunk of each sequence in turn; the blocks are exported when all are done.
fn prefill_round_robin<'a>(
    engine: &mut dyn KvEngine,
    what: &str,
    prompts: &[&'a Prompt],
) -> (Opened<'a>, Vec<Vec<KvBlock>>) {
    let sequences = open_all(engine, what, prompts);
    let rounds = prompts.iter().map(|p| p.chunks.len()).max().unwrap_or(0);
    for round in 0..rounds {
        for &(sequence, prompt) in &sequences {
            if let Some(chunk) = prompt.chunks.get(round) {
                probe::prefill(engine, what, sequence, prompt, chunk);
            }
        }
    }
    let blocks = sequences
        .iter()
        .map(|&(sequence, prompt)| probe::export_all(engine, what, sequence, prompt))
        .collect();
    (sequences, blocks)
}

/// One part of a block of each sequence in turn.
fn import_round_robin<'a>(
    engine: &mut dyn KvEngine,
    what: &str,
    prompts: &[&'a Prompt],
    blocks: &[Vec<KvBlock>],
) -> Opened<'a> {
    let sequences = open_all(engine, what, prompts);
    let of_block = |block| {
        probe::parts(block)
            .into_iter()
            .map(move |part| (block, part))
    };
    let parts: Vec<Vec<_>> = blocks
        .iter()
        .map(|blocks| blocks.iter().flat_map(of_block).collect())
        .collect();
    let rounds = parts.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        for (&(sequence, _), parts) in sequences.iter().zip(&parts) {
            if let Some((block, part)) = parts.get(round) {
                probe::import_part(engine, what, sequence, block, part);
            }
        }
    }
    sequences
}

fn compare_all(what: &str, both: [&[Answer]; 2], rounding: f32, measured: &mut Measured) {
    for (i, (alone, together)) in both[0].iter().zip(both[1]).enumerate() {
        let what = format!("{what}, sequence {i}");
        compare(&what, [alone, together], rounding, measured);
    }
}

/// Equal tokens, or different ones only where the best logits are too close to call.
pub fn compare(
    what: &str,
    [alone, together]: [&Answer; 2],
    rounding: f32,
    measured: &mut Measured,
) {
    for step in 0..alone.tokens.len() {
        let what = format!("{what}, token {step}");
        let rows = [&alone.logits[step], &together.logits[step]];
        measured.take(&what, rows[0], rows[1], rounding);
        if alone.tokens[step] != together.tokens[step] {
            let gap = gap_of_best(&alone.logits[step]);
            assert!(
                gap <= 2.0 * rounding,
                "conformance: {what}: {} instead of {}, though the best logits \
                 are {gap} apart",
                together.tokens[step],
                alone.tokens[step]
            );
            measured.close_calls += 1;
            break;
        }
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |largest, d| {
        if d > largest || d.is_nan() {
            d
        } else {
            largest
        }
    })
}

/// Distance between the two best logits.
fn gap_of_best(logits: &[f32]) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &logit in logits {
        if logit > best {
            (best, second) = (logit, best);
        } else if logit > second {
            second = logit;
        }
    }
    best - second
}
