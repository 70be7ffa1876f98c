//! Remote prefill and decode equal local generation.

use super::plan::Prompt;
use super::probe;
use crate::kv_engine::KvEngine;

/// Hands a prompt over, chunk by chunk, and compares with the source going on by itself.
pub fn check(source: &mut dyn KvEngine, receiver: &mut dyn KvEngine, prompt: &Prompt) {
    for (name, sampling) in [("greedy", probe::greedy()), ("seeded", probe::seeded())] {
        let what = format!("handoff, {}, {name}", prompt.name);
        let here = probe::open(source, &what);
        let there = probe::open(receiver, &what);
        let blocks = probe::prefill_and_export(source, &what, here, prompt);
        for block in &blocks {
            probe::import(receiver, &what, there, block);
        }
        let expected = probe::generate(source, &what, here, prompt, &sampling);
        let got = probe::generate(receiver, &what, there, prompt, &sampling);
        probe::check_same(&what, &expected, &got);
        source.release(here);
        receiver.release(there);
        let what = format!("{what}, in parts");
        let there = probe::open(receiver, &what);
        for block in &blocks {
            for part in probe::parts(block) {
                probe::import_part(receiver, &what, there, block, &part);
            }
        }
        let got = probe::generate(receiver, &what, there, prompt, &sampling);
        probe::check_same(&what, &expected, &got);
        receiver.release(there);
        let alone = probe::compute(source, &what, prompt, &sampling);
        probe::check_same(&format!("{what}, without export"), &alone, &expected);
    }
}
