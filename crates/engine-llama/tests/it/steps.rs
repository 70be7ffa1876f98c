//! The size of a batch, from 64 tokens on, changes no bit of a row on a CPU. Steps at the end of a prompt, and
//! pages that it shares with prompts that end elsewhere, rely on it.

use std::path::Path;

use tandem_engine::{Compute, KvCache};
use tandem_engine_llama::LlamaEngine;
use tandem_handoff::{KvBlock, Section};
use tandem_testkit::{Architecture, Spec};

use super::models::{IS_FOR_A_GPU, fixture, options, prompt};
use super::nano;

/// The rows of a prompt that is computed in batches that end there.
fn rows(path: &Path, threads: u32, tokens: &[u32], ends: &[u32]) -> Vec<KvBlock> {
    let mut options = options();
    options.capacity.prefill_tokens = 512;
    options.capacity.microbatch_tokens = 512;
    options.threads = threads;
    let mut engine = LlamaEngine::load(path, &options).expect("load");
    let sequence = engine.open().unwrap();
    let mut start = 0;
    for &end in ends {
        let batch = &tokens[start as usize..end as usize];
        engine.prefill(sequence, start, batch).expect("prefill");
        start = end;
    }
    let mut blocks = vec![engine.export(sequence, Section::Full, 0..start).unwrap()];
    if engine.contract().has_window() {
        let window = engine.contract().window_start(start)..start;
        blocks.push(engine.export(sequence, Section::Window, window).unwrap());
    }
    blocks
}

#[test]
fn rows_are_the_same_to_the_bit_whatever_batches_of_64_tokens_or_more_they_are_computed_in() {
    if IS_FOR_A_GPU {
        return;
    }
    let tokens = prompt(900, 5);
    let fixtures = Architecture::ALL.map(|a| fixture(&Spec::new(a)));
    let trained = ["nano-coder", "nano-writer"].map(nano::path);
    for path in fixtures.iter().chain(&trained) {
        for threads in [1, 2] {
            let rows = |ends: &[u32]| rows(path, threads, &tokens, ends);
            let at_once = rows(&[512, 836]);
            for ends in [
                &[512, 640, 768, 836][..],
                &[128, 256, 384, 512, 640, 768, 836],
                &[512, 576, 640, 704, 768, 836],
                &[64, 192, 256, 448, 512, 576, 704, 836],
                &[65, 130, 300, 369, 512, 700, 771, 836],
            ] {
                let same = rows(ends) == at_once;
                assert!(same, "{}, {threads} threads, {ends:?}", path.display());
            }
        }
    }
}
