//! Against llama.cpp itself, used directly and without any export or import.

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use tandem_engine::{Compute, DecodeStep, KvCache};
use tandem_handoff::Section;
use tandem_testkit::{Architecture, Spec};

use super::models::{CHUNK, IS_FOR_A_GPU, engine, fixture, options, prefill, prompt};

/// Logits after `tokens`, by llama.cpp alone: chunks, then the last token by itself; then greedy.
fn reference(architecture: Architecture, tokens: &[u32], steps: usize) -> Vec<Vec<f32>> {
    // The engine's backend is the process's only one; loading an engine initialises it.
    drop(engine(architecture));
    let backend = tandem_engine_llama::engine::shared_backend().expect("backend");
    let path = fixture(&Spec::new(architecture));
    let params = LlamaModelParams::default();
    let model = LlamaModel::load_from_file(backend, path, &params).expect("model");
    let capacity = options().capacity;
    let params = LlamaContextParams::default()
        .with_n_ctx(std::num::NonZeroU32::new(
            capacity.tokens_per_sequence * capacity.sequences,
        ))
        .with_n_batch(capacity.prefill_tokens)
        .with_n_ubatch(capacity.microbatch_tokens)
        .with_n_seq_max(capacity.sequences + 1)
        .with_n_threads(1)
        .with_n_threads_batch(1)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16)
        .with_kv_unified(true)
        .with_swa_full(false);
    let mut context = model.new_context(backend, params).expect("context");
    let kv_end = tokens.len() - 1;
    let mut batch = LlamaBatch::new(CHUNK as usize, 1);
    for (i, chunk) in tokens[..kv_end].chunks(CHUNK as usize).enumerate() {
        batch.clear();
        for (j, token) in chunk.iter().enumerate() {
            let position = i32::try_from(i * CHUNK as usize + j).unwrap();
            let token = LlamaToken(i32::try_from(*token).unwrap());
            batch.add(token, position, &[0], false).unwrap();
        }
        context.decode(&mut batch).expect("decode");
    }
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let mut next = tokens[kv_end];
    for step in 0..steps {
        batch.clear();
        let position = i32::try_from(kv_end + step).unwrap();
        let token = LlamaToken(i32::try_from(next).unwrap());
        batch.add(token, position, &[0], true).unwrap();
        context.decode(&mut batch).expect("decode");
        let row = context.get_logits_ith(0).to_vec();
        next = argmax(&row);
        rows.push(row);
    }
    rows
}

fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = i;
        }
    }
    u32::try_from(best).unwrap()
}

/// The same by two engines: one prefills, the other takes its KV and decodes.
fn handed_over(architecture: Architecture, tokens: &[u32], steps: usize) -> Vec<Vec<f32>> {
    let (mut from, mut to) = (engine(architecture), engine(architecture));
    let (source, target) = (from.open().unwrap(), to.open().unwrap());
    prefill(&mut from, source, tokens, CHUNK as usize);
    let kv_end = u32::try_from(tokens.len() - 1).unwrap();
    let mut at = 0;
    while at < kv_end {
        let end = (at + CHUNK).min(kv_end);
        let block = from.export(source, Section::Full, at..end).unwrap();
        to.import(target, &block).unwrap();
        at = end;
    }
    if from.contract().has_window() && kv_end > 0 {
        let window = from.contract().window_start(kv_end)..kv_end;
        let block = from.export(source, Section::Window, window).unwrap();
        to.import(target, &block).unwrap();
    }
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let mut next = tokens[kv_end as usize];
    for position in (kv_end..).take(steps) {
        let step = DecodeStep {
            sequence: target,
            token: next,
            position,
        };
        let row = to.decode(&[step]).unwrap().remove(0);
        next = argmax(&row);
        rows.push(row);
    }
    rows
}

/// Largest difference of a logit where another order of summing is to blame.
const BOUND: f32 = 0.02;

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn handed_over_logits_are_those_of_llama_cpp_to_the_bit() {
    for architecture in Architecture::ALL {
        for n in [1, 2, 17, CHUNK, CHUNK + 1, 301] {
            let tokens = prompt(n, n);
            let expected = reference(architecture, &tokens, 6);
            let found = handed_over(architecture, &tokens, 6);
            let has_window = architecture.shape().window.is_some();
            if IS_FOR_A_GPU && has_window {
                // A GPU sums in the order of the cells, which in a ring is another one after an import.
                let largest = largest_difference(&expected, &found);
                assert!(largest < BOUND, "{architecture}, {n} tokens: {largest}");
                continue;
            }
            assert!(found == expected, "{architecture}, prompt of {n} tokens");
        }
    }
}

/// A window cache is a ring. Where it has gone round inside the window, llama.cpp alone sums in
/// another order than after an import, so bits may differ; a wrong or missing row would differ by
/// far more. The ring has 512 cells for gemma3 and 256 for gpt-oss here: `PAD(window * sequences +
/// microbatch, 256)`.
#[test]
fn where_the_ring_of_a_window_cache_goes_round_logits_differ_by_rounding_only() {
    for (architecture, n) in [(Architecture::Gemma3, 541), (Architecture::GptOss, 270)] {
        let tokens = prompt(n, 3);
        let expected = reference(architecture, &tokens, 1);
        let found = handed_over(architecture, &tokens, 1);
        let largest = largest_difference(&expected, &found);
        // On a GPU it may be larger.
        let goes_round = largest > 0.0 || IS_FOR_A_GPU;
        assert!(goes_round, "{architecture}: the ring did not go round");
        assert!(largest < BOUND, "{architecture}: {largest}");
    }
}
