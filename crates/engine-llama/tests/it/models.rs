//! Fixture models and engines over them.

use std::path::{Path, PathBuf};

use tandem_engine::{Capacity, KvEngine, Sequence, Token};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};
use tandem_testkit::{Architecture, Spec};

/// Chunk and microbatch of the engines here: small, so that prompts have many chunks.
pub const CHUNK: u32 = 64;

/// True in a build for a GPU: then it has all layers, so that the tests are its own.
pub const IS_FOR_A_GPU: bool = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));

pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures")
}

pub fn fixture(spec: &Spec) -> PathBuf {
    tandem_testkit::ensure(&dir(), spec).expect("fixture")
}

pub fn load(spec: &Spec) -> LlamaEngine {
    LlamaEngine::load(&fixture(spec), &options()).expect("load")
}

pub fn options() -> LlamaOptions {
    LlamaOptions {
        capacity: Capacity {
            sequences: 4,
            cached: 2,
            tokens_per_sequence: 1024,
            prefill_tokens: CHUNK,
            microbatch_tokens: CHUNK / 4,
        },
        threads: 1,
        gpu_layers: if IS_FOR_A_GPU { 999 } else { 0 },
        ..LlamaOptions::default()
    }
}

pub fn engine(architecture: Architecture) -> LlamaEngine {
    load(&Spec::new(architecture))
}

/// A prompt of `n` ordinary tokens, different for each seed.
pub fn prompt(n: u32, seed: u32) -> Vec<Token> {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            32 + state % 95
        })
        .collect()
}

/// Prefills `[0, n-1)` in chunks.
pub fn prefill(engine: &mut dyn KvEngine, sequence: Sequence, tokens: &[Token], chunk: usize) {
    let kv_end = tokens.len() - 1;
    let mut at = 0;
    while at < kv_end {
        let end = (at + chunk).min(kv_end);
        let start = u32::try_from(at).unwrap();
        engine
            .prefill(sequence, start, &tokens[at..end])
            .expect("prefill");
        at = end;
    }
}
