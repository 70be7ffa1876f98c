//! Driving an engine and comparing what comes out.

use std::ops::Range;

use tandem_handoff::{KvBlock, PlaneKind, Section};
use tandem_proto::SamplingParams;

use super::GENERATED;
use super::plan::Prompt;
use crate::compute::{DecodeStep, Item, LayerRows};
use crate::kv_cache::{EngineError, Sequence};
use crate::kv_engine::KvEngine;
use crate::sampling::Sampler;
use crate::tokenizer::Token;

/// Takes the best token.
pub fn greedy() -> SamplingParams {
    SamplingParams::greedy()
}

/// Uses every sampling parameter.
pub fn seeded() -> SamplingParams {
    SamplingParams {
        temperature: Some(0.9),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.01),
        seed: Some(7),
        ..SamplingParams::default()
    }
}

/// What a sequence answered: the tokens, and the row of logits that each was chosen from.
#[derive(Debug, Clone)]
pub struct Answer {
    pub tokens: Vec<Token>,
    pub logits: Vec<Vec<f32>>,
}

/// Unwraps, or ends the suite saying what was expected to work.
pub fn ok<T>(what: &str, result: Result<T, EngineError>) -> T {
    result.unwrap_or_else(|error| panic!("conformance: {what}: should work, but: {error}"))
}

/// Ends the suite unless the engine refused.
pub fn refused<T>(what: &str, result: Result<T, EngineError>) {
    assert!(
        result.is_err(),
        "conformance: {what}: should be refused, but was accepted"
    );
}

/// Ends the suite if the engine's count differs.
pub fn check_held(engine: &dyn KvEngine, what: &str, sequence: Sequence, expected: u32) {
    let held = engine.held(sequence);
    assert!(
        held == expected,
        "conformance: {what}: `held` is {held}, expected {expected}"
    );
}

/// Contract, capacity and tokenizer make sense and are equal on both sides.
pub fn check_description(source: &dyn KvEngine, receiver: &dyn KvEngine) {
    if let Err(error) = source.contract().validate() {
        panic!("conformance: {error}");
    }
    let differences = source.contract().differences(receiver.contract());
    assert!(
        differences.is_empty(),
        "conformance: two engines of `make` differ: {differences:?}"
    );
    for engine in [source, receiver] {
        let capacity = engine.capacity();
        assert!(
            capacity.sequences >= 2,
            "conformance: the suite needs at least 2 sequences"
        );
        assert!(
            capacity.microbatch_tokens > 0
                && capacity.prefill_tokens >= capacity.microbatch_tokens
                && capacity
                    .prefill_tokens
                    .is_multiple_of(capacity.microbatch_tokens),
            "conformance: `prefill_tokens` must be a multiple of `microbatch_tokens`: {capacity:?}"
        );
        assert!(
            !engine.tokenizer().is_empty(),
            "conformance: the vocabulary is empty"
        );
    }
}

/// Opens a sequence, which must be empty.
pub fn open(engine: &mut dyn KvEngine, what: &str) -> Sequence {
    let sequence = ok(&format!("{what}: open"), engine.open());
    check_held(engine, &format!("{what}: after open"), sequence, 0);
    sequence
}

/// Prefills one chunk of a prompt.
pub fn prefill(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
    chunk: &Range<u32>,
) {
    let what = format!("{what}: prefill of {chunk:?}");
    let result = engine.prefill(sequence, chunk.start, prompt.chunk(chunk));
    ok(&what, result);
    check_held(engine, &what, sequence, chunk.end);
}

/// Prefills all chunks from `start` on, which must be where one begins, and settles.
pub fn prefill_from(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
    start: u32,
) {
    for chunk in prompt.chunks.iter().filter(|chunk| chunk.start >= start) {
        prefill(engine, what, sequence, prompt, chunk);
    }
    settle(engine, what, sequence, prompt);
}

/// Ends a local prefill: puts the window to where an import puts it.
pub fn settle(engine: &mut dyn KvEngine, what: &str, sequence: Sequence, prompt: &Prompt) {
    let what = format!("{what}: settle");
    if let Some(window) = export_window(engine, &what, sequence, prompt) {
        for part in parts(&window) {
            import_part(engine, &what, sequence, &window, &part);
        }
        let again = export_window(engine, &what, sequence, prompt);
        assert!(
            again == Some(window),
            "conformance: {what}: the window is another than before"
        );
    }
    check_held(engine, &what, sequence, prompt.prefilled());
}

/// Exports a block, which must be what was asked for and fit the contract.
pub fn export(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    section: Section,
    tokens: Range<u32>,
) -> KvBlock {
    let what = format!("{what}: export of {tokens:?} {section:?}");
    let held = engine.held(sequence);
    let block = ok(&what, engine.export(sequence, section, tokens.clone()));
    assert!(
        block.section == section && block.tokens == tokens,
        "conformance: {what}: the block is of {:?} {:?}",
        block.tokens,
        block.section
    );
    if let Err(error) = block.validate(engine.contract()) {
        panic!("conformance: {what}: {error}");
    }
    check_held(engine, &what, sequence, held);
    block
}

/// Rows of a plane, as they were given.
pub struct Given {
    sequence: Sequence,
    layer: u32,
    kind: PlaneKind,
    /// The next token.
    next: u32,
    rows: Vec<u8>,
    /// True if they are the same read one by one and at once.
    is_read_alike: bool,
}

/// Evaluates items; gives their logits, and what an engine that gives layers has given meanwhile.
pub fn evaluate_by_layer(
    engine: &mut dyn KvEngine,
    what: &str,
    items: &[Item<'_>],
) -> (Vec<Vec<f32>>, Option<Vec<Given>>) {
    if !engine.gives_layers() {
        return (ok(what, engine.evaluate(items, None)), None);
    }
    let mut given: Vec<Given> = Vec::new();
    let mut give = |rows: &LayerRows<'_>| {
        let is_it =
            |g: &Given| (g.sequence, g.layer, g.kind) == (rows.sequence, rows.layer, rows.kind);
        let at = given.iter().position(is_it).unwrap_or_else(|| {
            let item = items.iter().find(|item| item.sequence == rows.sequence);
            given.push(Given {
                sequence: rows.sequence,
                layer: rows.layer,
                kind: rows.kind,
                next: item.map_or(u32::MAX, |item| item.start),
                rows: Vec::new(),
                is_read_alike: true,
            });
            given.len() - 1
        });
        let plane = &mut given[at];
        // One by one and at once, with what lies outside.
        let (before, mut whole) = (plane.rows.len(), Vec::new());
        for token in rows.tokens.clone() {
            (rows.read)(token..token + 1, &mut plane.rows);
        }
        (rows.read)(0..u32::MAX, &mut whole);
        plane.is_read_alike &= plane.rows[before..] == whole;
        if rows.tokens.start == plane.next {
            plane.next = rows.tokens.end;
        }
    };
    let logits = ok(what, engine.evaluate(items, Some(&mut give)));
    (logits, Some(given))
}

/// Prefills one chunk of a prompt; gives what an engine that gives layers has given meanwhile.
fn prefill_by_layer(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
    chunk: &Range<u32>,
) -> Option<Vec<Given>> {
    let what = format!("{what}: prefill of {chunk:?} by layer");
    let item = Item::chunk(sequence, chunk.start, prompt.chunk(chunk));
    let (_, given) = evaluate_by_layer(engine, &what, &[item]);
    check_held(engine, &what, sequence, chunk.end);
    given
}

/// What was given of a chunk is what is exported.
pub fn check_given(
    what: &str,
    (sequence, chunk): (Sequence, &Range<u32>),
    given: &Option<Vec<Given>>,
    block: &KvBlock,
) {
    let Some(given) = given else {
        return;
    };
    for plane in &block.planes {
        let (layer, kind) = (plane.layer, plane.kind);
        let what = format!("{what}: layer {layer} {kind:?} of {chunk:?} as it was given");
        let mut all = given.iter();
        let it = all.find(|g| (g.sequence, g.layer, g.kind) == (sequence, layer, kind));
        let it = it.unwrap_or_else(|| panic!("conformance: {what}: is missing"));
        assert!(
            it.next == chunk.end,
            "conformance: {what}: ends at {} or has gaps",
            it.next
        );
        assert!(
            it.is_read_alike,
            "conformance: {what}: rows read one by one are others than those read at once"
        );
        // Of the window the last tokens of the chunk.
        assert!(
            it.rows.ends_with(&plane.data)
                && it.rows.len() / chunk.len() == plane.data.len() / block.len() as usize,
            "conformance: {what}: other rows than those that are exported"
        );
    }
}

/// Prefills a prompt and exports each chunk as it is done, with its rows of the window, which are those that
/// the window has in the end; then settles.
pub fn prefill_and_export(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
) -> Vec<KvBlock> {
    let (mut blocks, mut early) = (Vec::new(), Vec::new());
    let start = engine.contract().window_start(prompt.prefilled());
    for chunk in &prompt.chunks {
        let given = prefill_by_layer(engine, what, sequence, prompt, chunk);
        let full = export(engine, what, sequence, Section::Full, chunk.clone());
        check_given(what, (sequence, chunk), &given, &full);
        blocks.push(full);
        let rows = start.max(chunk.start)..chunk.end;
        if engine.contract().has_window() && !rows.is_empty() {
            let window = export(engine, what, sequence, Section::Window, rows);
            check_given(what, (sequence, chunk), &given, &window);
            early.push(window);
        }
    }
    let window = export_window(engine, what, sequence, prompt);
    for rows in early {
        let there = window
            .as_ref()
            .map(|window| window.part(rows.tokens.clone()));
        assert!(
            there.as_ref() == Some(&rows),
            "conformance: {what}: rows {:?} of the window are others in the end",
            rows.tokens
        );
    }
    blocks.extend(window);
    settle(engine, what, sequence, prompt);
    blocks
}

/// Exports the blocks of a prompt that is prefilled, the window last.
pub fn export_all(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
) -> Vec<KvBlock> {
    let chunks = prompt.chunks.iter().cloned();
    let mut blocks: Vec<KvBlock> = chunks
        .map(|chunk| export(engine, what, sequence, Section::Full, chunk))
        .collect();
    blocks.extend(export_window(engine, what, sequence, prompt));
    blocks
}

fn export_window(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
) -> Option<KvBlock> {
    let end = prompt.prefilled();
    if !engine.contract().has_window() || end == 0 {
        return None;
    }
    let window = engine.contract().window_start(end)..end;
    let block = export(engine, what, sequence, Section::Window, window);
    for part in parts(&block) {
        let rows = export(engine, what, sequence, Section::Window, part.clone());
        assert!(
            rows == block.part(part),
            "conformance: {what}: a part of the window is not that of the whole"
        );
    }
    Some(block)
}

/// Imports a block that fits. A model with window layers holds nothing until the window is in.
pub fn import(engine: &mut dyn KvEngine, what: &str, sequence: Sequence, block: &KvBlock) {
    let what = format!("{what}: import of {:?} {:?}", block.tokens, block.section);
    ok(&what, engine.import(sequence, block));
    let complete = block.section == Section::Window || !engine.contract().has_window();
    let held = if complete { block.tokens.end } else { 0 };
    check_held(engine, &what, sequence, held);
}

/// Three parts of a block, or fewer of a short one.
pub fn parts(block: &KvBlock) -> Vec<Range<u32>> {
    let Range { start, end } = block.tokens;
    let step = block.len().div_ceil(3).max(1);
    (0..block.len().div_ceil(step))
        .map(|i| start + i * step..end.min(start + (i + 1) * step))
        .collect()
}

/// Imports one of the [`parts`] of a block.
pub fn import_part(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    block: &KvBlock,
    part: &Range<u32>,
) {
    let what = format!(
        "{what}: import of {part:?} of {:?} {:?}",
        block.tokens, block.section
    );
    ok(&what, engine.import_part(sequence, block, part.clone()));
    let held = match block.section {
        Section::Window if part.end == block.tokens.end => part.end,
        Section::Full if !engine.contract().has_window() => part.end,
        _ => 0,
    };
    check_held(engine, &what, sequence, held);
}

/// Evaluates one token of each sequence.
pub fn decode(engine: &mut dyn KvEngine, what: &str, steps: &[DecodeStep]) -> Vec<Vec<f32>> {
    let what = format!("{what}: decode of {steps:?}");
    let rows = ok(&what, engine.decode(steps));
    assert!(
        rows.len() == steps.len(),
        "conformance: {what}: one row of logits per step"
    );
    let size = engine.tokenizer().len() as usize;
    for (row, step) in rows.iter().zip(steps) {
        assert!(
            row.len() == size,
            "conformance: {what}: one logit per token of the vocabulary"
        );
        check_held(engine, &what, step.sequence, step.position + 1);
    }
    rows
}

/// Generates tokens for a prompt whose first `n - 1` tokens are held.
pub fn generate(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
    sampling: &SamplingParams,
) -> Answer {
    let mut answers = generate_all(engine, what, &[(sequence, prompt)], sampling);
    answers.swap_remove(0)
}

/// Generates tokens for several sequences, all in one batch per step.
pub fn generate_all(
    engine: &mut dyn KvEngine,
    what: &str,
    sequences: &[(Sequence, &Prompt)],
    sampling: &SamplingParams,
) -> Vec<Answer> {
    let mut samplers = vec![Sampler::new(sampling); sequences.len()];
    let empty = Answer {
        tokens: Vec::new(),
        logits: Vec::new(),
    };
    let mut answers = vec![empty; sequences.len()];
    let mut steps: Vec<DecodeStep> = sequences
        .iter()
        .map(|&(sequence, prompt)| DecodeStep {
            sequence,
            token: prompt.tokens[prompt.prefilled() as usize],
            position: prompt.prefilled(),
        })
        .collect();
    for _ in 0..GENERATED {
        let rows = decode(engine, what, &steps);
        for (i, row) in rows.into_iter().enumerate() {
            let token = ok(&format!("{what}: sampling"), samplers[i].sample(&row, None));
            answers[i].tokens.push(token);
            answers[i].logits.push(row);
            steps[i].token = token;
            steps[i].position += 1;
        }
    }
    answers
}

/// The answer of an engine that computes everything by itself.
pub fn compute(
    engine: &mut dyn KvEngine,
    what: &str,
    prompt: &Prompt,
    sampling: &SamplingParams,
) -> Answer {
    let sequence = open(engine, what);
    prefill_from(engine, what, sequence, prompt, 0);
    let answer = generate(engine, what, sequence, prompt, sampling);
    engine.release(sequence);
    answer
}

/// Bitwise equal logits at the first generated position, and equal tokens.
pub fn check_same(what: &str, expected: &Answer, got: &Answer) {
    let rows = expected.logits.first().zip(got.logits.first());
    let (expected_row, got_row) =
        rows.unwrap_or_else(|| panic!("conformance: {what}: nothing was generated"));
    let different = expected_row
        .iter()
        .zip(got_row)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(token) = different {
        panic!(
            "conformance: {what}: the first logits differ: token {token} has {}, expected {}",
            got_row[token], expected_row[token]
        );
    }
    assert!(
        got.tokens == expected.tokens,
        "conformance: {what}: the tokens differ"
    );
}
