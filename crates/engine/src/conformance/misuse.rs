//! What must be refused, and that the sequence is of use afterwards.

use std::ops::Range;

use tandem_handoff::{KvBlock, Section};

use super::plan::Prompt;
use super::probe::{self, Answer};
use crate::compute::{DecodeStep, Item};
use crate::kv_cache::Sequence;
use crate::kv_engine::KvEngine;

/// All refusals, on a prompt of several chunks.
pub fn check(source: &mut dyn KvEngine, receiver: &mut dyn KvEngine, prompts: &[Prompt]) {
    let several = |prompt: &&Prompt| prompt.chunks.len() >= 3;
    // The longest one: with a window it is longer than that.
    let Some(prompt) = prompts.iter().rfind(several) else {
        panic!("conformance: no prompt of three chunks; make `prefill_tokens` smaller");
    };
    let here = probe::open(source, "misuse");
    let blocks = probe::prefill_and_export(source, "misuse", here, prompt);
    check_exports(source, here, prompt);
    let expected = probe::generate(source, "misuse", here, prompt, &probe::greedy());
    source.release(here);
    for (name, bad) in bad_blocks(&blocks) {
        let what = format!("misuse, import of {name}");
        check_import(receiver, &what, prompt, &blocks, &bad, &expected);
    }
    if let Some((name, bad)) = bad_window(&blocks) {
        let what = format!("misuse, import of {name}");
        check_window_import(receiver, &what, prompt, &blocks, &bad, &expected);
    }
    check_parts(receiver, prompt, &blocks, &expected);
    check_positions(receiver, prompt, &expected);
}

/// Ranges that are not held.
fn check_exports(engine: &mut dyn KvEngine, sequence: Sequence, prompt: &Prompt) {
    let end = prompt.prefilled();
    let past_end = engine.export(sequence, Section::Full, 0..end + 1);
    probe::refused("misuse, export past the end", past_end);
    let beyond = engine.export(sequence, Section::Full, end..end + 1);
    probe::refused("misuse, export beyond the end", beyond);
    let window = engine.contract().window;
    if window > 0 && end > window {
        let early = engine.export(sequence, Section::Window, 0..window);
        probe::refused("misuse, export of a window that has passed", early);
    }
    let empty = probe::open(engine, "misuse, export");
    let nothing = engine.export(empty, Section::Full, 0..1);
    probe::refused("misuse, export from an empty sequence", nothing);
    engine.release(empty);
}

/// Blocks that do not fit after the first block of `blocks`.
fn bad_blocks(blocks: &[KvBlock]) -> Vec<(&'static str, KvBlock)> {
    let (first, second, third) = (&blocks[0], &blocks[1], &blocks[2]);
    let change = |block: &KvBlock, change: &dyn Fn(&mut KvBlock)| {
        let mut block = block.clone();
        change(&mut block);
        block
    };
    vec![
        ("a block after a gap", third.clone()),
        ("a block that is there already", first.clone()),
        (
            "a block that overlaps by one token",
            change(second, &|b| {
                b.tokens.start -= 1;
                b.tokens.end -= 1;
            }),
        ),
        (
            "a block with one row too few",
            change(second, &|b| {
                let plane = &mut b.planes[0].data;
                let bytes = plane.len();
                plane.truncate(bytes - bytes / second.len() as usize);
            }),
        ),
        (
            "a block with one byte too many",
            change(second, &|b| b.planes[1].data.push(0)),
        ),
        (
            "a block with K and V swapped",
            change(second, &|b| b.planes.swap(0, 1)),
        ),
        (
            "a block with layers in the wrong order",
            change(second, &|b| {
                let last = b.planes.len() - 2;
                b.planes.swap(0, last);
                b.planes.swap(1, last + 1);
                // A model of one layer has no other order; then a foreign layer.
                b.planes[0].layer += u32::from(last == 0);
            }),
        ),
        (
            "a block without its last plane",
            change(second, &|b| {
                b.planes.pop();
            }),
        ),
    ]
}

/// A window that does not end where the sequence ends, if the model has window layers.
fn bad_window(blocks: &[KvBlock]) -> Option<(&'static str, KvBlock)> {
    let mut window = blocks
        .iter()
        .find(|b| b.section == Section::Window)?
        .clone();
    window.tokens.start += 1;
    window.tokens.end += 1;
    Some(("a window at the wrong place", window))
}

/// A refused block leaves what was held or nothing; the rest can be prefilled, and, after
/// `clear`, imported.
fn check_import(
    engine: &mut dyn KvEngine,
    what: &str,
    prompt: &Prompt,
    blocks: &[KvBlock],
    bad: &KvBlock,
    expected: &Answer,
) {
    let sequence = probe::open(engine, what);
    probe::import(engine, what, sequence, &blocks[0]);
    let before = engine.held(sequence);
    probe::refused(what, engine.import(sequence, bad));
    let held = engine.held(sequence);
    assert!(
        held == before || held == 0,
        "conformance: {what}: `held` is {held}, expected {before} as before, or 0"
    );
    check_recovery(engine, what, sequence, prompt, blocks, expected);
}

/// The same for a window block after all full blocks.
fn check_window_import(
    engine: &mut dyn KvEngine,
    what: &str,
    prompt: &Prompt,
    blocks: &[KvBlock],
    bad: &KvBlock,
    expected: &Answer,
) {
    let sequence = probe::open(engine, what);
    for block in blocks.iter().filter(|b| b.section == Section::Full) {
        probe::import(engine, what, sequence, block);
    }
    probe::refused(what, engine.import(sequence, bad));
    probe::check_held(engine, what, sequence, 0);
    check_recovery(engine, what, sequence, prompt, blocks, expected);
}

/// Parts that do not go on, of the second block and of the window; and a window that stays
/// incomplete.
fn check_parts(engine: &mut dyn KvEngine, prompt: &Prompt, blocks: &[KvBlock], expected: &Answer) {
    let window = (1..blocks.len()).find(|&i| blocks[i].section == Section::Window);
    for at in [Some(1), window].into_iter().flatten() {
        let block = &blocks[at];
        let parts = probe::parts(block);
        let [first, second, third] = parts.as_slice() else {
            continue;
        };
        let section = block.section;
        let before = |engine: &mut dyn KvEngine, what: &str, taken: &[&Range<u32>]| {
            let sequence = probe::open(engine, what);
            for block in &blocks[..at] {
                probe::import(engine, what, sequence, block);
            }
            for part in taken {
                probe::import_part(engine, what, sequence, block, part);
            }
            sequence
        };
        for (name, taken, bad) in [
            ("the second part first", vec![], second.clone()),
            ("the third part after the first", vec![first], third.clone()),
            ("the second part again", vec![first, second], second.clone()),
            (
                "a part beyond the block",
                vec![first, second],
                third.start..third.end + 1,
            ),
            ("an empty part", vec![first], second.start..second.start),
        ] {
            let what = format!("misuse, import of {name} of {section:?}");
            let sequence = before(engine, &what, &taken);
            let held = engine.held(sequence);
            probe::refused(&what, engine.import_part(sequence, block, bad));
            let now = engine.held(sequence);
            assert!(
                now == held || now == 0,
                "conformance: {what}: `held` is {now}, expected {held} as before, or 0"
            );
            // A prefill that begins inside a chunk would give other bits.
            if section == Section::Full {
                engine.clear(sequence);
            }
            check_recovery(engine, &what, sequence, prompt, blocks, expected);
        }
        if section == Section::Window {
            let what = "misuse, a window without its last part";
            let sequence = before(engine, what, &[first, second]);
            check_recovery(engine, what, sequence, prompt, blocks, expected);

            let what = "a window that begins anew";
            let sequence = before(engine, what, &[first, second]);
            probe::import(engine, what, sequence, block);
            let got = probe::generate(engine, what, sequence, prompt, &probe::greedy());
            probe::check_same(what, expected, &got);
            engine.release(sequence);
        }
    }
}

/// Prefills from what is held on; then clears and imports everything.
fn check_recovery(
    engine: &mut dyn KvEngine,
    what: &str,
    sequence: Sequence,
    prompt: &Prompt,
    blocks: &[KvBlock],
    expected: &Answer,
) {
    let prefilling = format!("{what}, then prefill of the rest");
    let held = engine.held(sequence);
    probe::prefill_from(engine, &prefilling, sequence, prompt, held);
    let got = probe::generate(engine, &prefilling, sequence, prompt, &probe::greedy());
    probe::check_same(&prefilling, expected, &got);

    let importing = format!("{what}, then clear and import");
    engine.clear(sequence);
    probe::check_held(engine, &importing, sequence, 0);
    for block in blocks {
        probe::import(engine, &importing, sequence, block);
    }
    let got = probe::generate(engine, &importing, sequence, prompt, &probe::greedy());
    probe::check_same(&importing, expected, &got);
    engine.release(sequence);
}

/// Positions that do not continue the sequence.
fn check_positions(engine: &mut dyn KvEngine, prompt: &Prompt, expected: &Answer) {
    let what = "misuse, positions";
    let sequence = probe::open(engine, what);
    probe::prefill_from(engine, what, sequence, prompt, 0);
    let end = prompt.prefilled();
    for position in [0, end - 1, end + 1] {
        let step = DecodeStep {
            sequence,
            token: prompt.tokens[0],
            position,
        };
        let name = format!("misuse, decode at {position} of {end}");
        probe::refused(&name, engine.decode(&[step]));
        probe::check_held(engine, &name, sequence, end);
        let name = format!("misuse, prefill at {position} of {end}");
        probe::refused(
            &name,
            engine.prefill(sequence, position, &prompt.tokens[..1]),
        );
        probe::check_held(engine, &name, sequence, end);
    }
    let (token, vocabulary) = (&prompt.tokens[..1], engine.tokenizer().len());
    let many = vec![prompt.tokens[0]; engine.capacity().call_tokens() as usize + 1];
    let chunk = |tokens| Item::chunk(sequence, end, tokens);
    let (twice, nothing) = (
        [chunk(token); 2],
        Item {
            logits: true,
            ..chunk(&[])
        },
    );
    for (name, items) in [
        ("a sequence twice", &twice[..]),
        ("logits of nothing", &[nothing]),
        ("too many tokens", &[chunk(&many)]),
        ("a token of no vocabulary", &[chunk(&[vocabulary])]),
    ] {
        let name = format!("misuse, {name}");
        probe::refused(&name, engine.evaluate(items, None));
        probe::check_held(engine, &name, sequence, end);
    }
    let got = probe::generate(engine, what, sequence, prompt, &probe::greedy());
    probe::check_same(what, expected, &got);
    engine.release(sequence);
}
