//! Sequences that share the rows of their beginning.

use std::collections::BTreeSet;

use tandem_handoff::{KvBlock, Section};

use super::Measured;
use super::plan::Prompt;
use super::probe::{self, Answer};
use crate::kv_cache::Sequence;
use crate::kv_engine::KvEngine;

/// A prompt of more chunks is shared at one position only.
const MANY_CHUNKS: usize = 8;

/// Sequences that begin with the rows of another one answer as they do alone, whichever of them ends first.
pub fn check(
    engine: &mut dyn KvEngine,
    prompts: &[Prompt],
    rounding: f32,
    measured: &mut Measured,
) {
    for prompt in prompts.iter().filter(|prompt| prompt.chunks.len() > 1) {
        let what = format!("`{}`, shared", prompt.name);
        let alone = probe::compute(engine, &what, prompt, &probe::greedy());
        // Behind the first chunk, in the middle, and all.
        let count = prompt.chunks.len();
        let chunks = match count > MANY_CHUNKS {
            true => [count / 2; 3],
            false => [0, count / 2, count - 1],
        };
        let ends = chunks.map(|chunk| prompt.chunks[chunk].end);
        for end in BTreeSet::from(ends) {
            let window = window_at(engine, &what, prompt, end);
            let from = probe::open(engine, &what);
            probe::prefill_from(engine, &what, from, prompt, 0);
            let to = share(engine, &what, from, end, window.as_ref());
            check_misuse(engine, &what, from, to);
            probe::prefill_from(engine, &what, to, prompt, end);
            let there = probe::generate(engine, &what, to, prompt, &probe::greedy());
            engine.release(to);
            let here = probe::generate(engine, &what, from, prompt, &probe::greedy());
            measured.take_answers(&format!("{what}, from"), &alone, &here, rounding);
            measured.take_answers(&format!("{what}, to"), &alone, &there, rounding);

            // Who shares has the rows when the other one has ended.
            engine.release(from);
            let from = probe::open(engine, &what);
            probe::prefill_from(engine, &what, from, prompt, 0);
            let to = share(engine, &what, from, end, window.as_ref());
            engine.release(from);
            probe::prefill_from(engine, &what, to, prompt, end);
            let there = probe::generate(engine, &what, to, prompt, &probe::greedy());
            measured.take_answers(&format!("{what}, left"), &alone, &there, rounding);
            engine.release(to);
            let received = receive_rest(engine, &what, prompt, end);
            measured.take_answers(&format!("{what}, received"), &alone, &received, rounding);
        }
    }
}

/// The answer of a sequence that begins like another one, and gets the rest of its rows and its window from elsewhere.
fn receive_rest(engine: &mut dyn KvEngine, what: &str, prompt: &Prompt, end: u32) -> Answer {
    let what = format!("{what}, and the rest received");
    let from = probe::open(engine, &what);
    probe::prefill_from(engine, &what, from, prompt, 0);
    let blocks = probe::export_all(engine, &what, from, prompt);
    let to = probe::open(engine, &what);
    probe::ok(&what, engine.share(from, to, end));
    let is_here = |block: &&KvBlock| match block.section {
        Section::Full => block.tokens.end <= end,
        Section::Window => end == prompt.prefilled(),
    };
    for block in blocks.iter().filter(|block| !is_here(block)) {
        probe::import(engine, &what, to, block);
    }
    engine.release(from);
    let answer = probe::generate(engine, &what, to, prompt, &probe::greedy());
    engine.release(to);
    answer
}

/// The window of a prompt at a position, if the model has windows.
fn window_at(engine: &mut dyn KvEngine, what: &str, prompt: &Prompt, end: u32) -> Option<KvBlock> {
    if !engine.contract().has_window() {
        return None;
    }
    let sequence = probe::open(engine, what);
    for chunk in prompt.chunks.iter().filter(|chunk| chunk.end <= end) {
        probe::prefill(engine, what, sequence, prompt, chunk);
    }
    let tokens = engine.contract().window_start(end)..end;
    let window = probe::ok(what, engine.export(sequence, Section::Window, tokens));
    engine.release(sequence);
    Some(window)
}

/// A sequence that begins like another one, with its window.
fn share(
    engine: &mut dyn KvEngine,
    what: &str,
    from: Sequence,
    end: u32,
    window: Option<&KvBlock>,
) -> Sequence {
    let to = probe::open(engine, what);
    let held = engine.held(from);
    probe::ok(what, engine.share(from, to, end));
    probe::check_held(engine, what, from, held);
    if let Some(window) = window.filter(|_| end < held) {
        probe::check_held(engine, &format!("{what}, without its window"), to, 0);
        probe::ok(what, engine.import(to, window));
    }
    probe::check_held(engine, what, to, end);
    to
}

/// What cannot be shared, and changes nothing.
fn check_misuse(engine: &mut dyn KvEngine, what: &str, from: Sequence, to: Sequence) {
    let (held, there) = (engine.held(from), engine.held(to));
    let closed = probe::open(engine, what);
    let too_many = engine.share(from, closed, held + 1);
    probe::refused(&format!("{what}, more than is held"), too_many);
    engine.release(closed);
    let not_open = engine.share(from, closed, there);
    probe::refused(&format!("{what}, for one that is not open"), not_open);
    let full = engine.share(from, to, there);
    probe::refused(&format!("{what}, for one that holds some"), full);
    let itself = engine.share(from, from, there);
    probe::refused(&format!("{what}, with itself"), itself);
    probe::check_held(engine, what, from, held);
    probe::check_held(engine, what, to, there);
}

impl Measured {
    fn take_answers(&mut self, what: &str, alone: &Answer, together: &Answer, rounding: f32) {
        super::sequences::compare(what, [alone, together], rounding, self);
    }
}
