//! The prompts of the suite and how they are cut into chunks.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::GENERATED;
use crate::kv_engine::KvEngine;
use crate::tokenizer::{Token, Tokenizer};

/// Seed of all prompts.
const SEED: u64 = 20_260_117;

/// Draws before the suite gives up looking for an ordinary token.
const MAX_DRAWS: u32 = 100_000;

/// A prompt and the chunks in which its first `n - 1` tokens are prefilled.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub name: &'static str,
    pub tokens: Vec<Token>,
    pub chunks: Vec<Range<u32>>,
}

impl Prompt {
    /// Tokens covered by the prefill: all but the last.
    pub fn prefilled(&self) -> u32 {
        self.chunks.last().map_or(0, |chunk| chunk.end)
    }

    /// The tokens of a chunk.
    pub fn chunk(&self, chunk: &Range<u32>) -> &[Token] {
        &self.tokens[chunk.start as usize..chunk.end as usize]
    }
}

/// One prompt per chunking.
pub fn prompts(engine: &dyn KvEngine) -> Vec<Prompt> {
    let capacity = engine.capacity();
    let micro = capacity.microbatch_tokens;
    let chunk = (capacity.prefill_tokens / micro).min(4) * micro;
    let step = (chunk / 2 / micro).max(1) * micro;
    let odd = micro / 2 + 1;
    let mut plans = vec![
        ("one chunk", vec![chunk]),
        ("even chunks", vec![step; 3]),
        ("uneven chunks", vec![chunk, step, odd]),
        ("shorter than a chunk", vec![odd]),
        ("two tokens", vec![1]),
        ("one token", vec![]),
    ];
    let window = engine.contract().window;
    if window > 0 {
        plans.push(("exactly the window", cut(window, chunk)));
        plans.push(("longer than the window", cut(2 * window + odd, chunk)));
    }
    // Long enough for caches that are rings to have gone round.
    let room = capacity.tokens_per_sequence.saturating_sub(1 + GENERATED);
    plans.push(("as long as fits", cut(room, chunk)));
    let tokenizer = engine.tokenizer();
    let mut seeds = SEED..;
    plans
        .into_iter()
        .zip(seeds.by_ref())
        .map(|((name, sizes), seed)| prompt(name, &sizes, seed, tokenizer.as_ref()))
        .inspect(|prompt| check_room(prompt, capacity.tokens_per_sequence))
        .collect()
}

fn check_room(prompt: &Prompt, room: u32) {
    let needed = prompt.prefilled() + 1 + GENERATED;
    assert!(
        needed <= room,
        "conformance: the prompt `{}` needs {needed} tokens per sequence, the engine has {room}; \
         give it more, or a smaller micro-batch",
        prompt.name
    );
}

/// Sizes of chunks that sum to `total`.
fn cut(total: u32, chunk: u32) -> Vec<u32> {
    let mut sizes = vec![chunk; (total / chunk) as usize];
    sizes.extend(Some(total % chunk).filter(|&rest| rest > 0));
    sizes
}

fn prompt(name: &'static str, sizes: &[u32], seed: u64, tokenizer: &dyn Tokenizer) -> Prompt {
    let mut end = 0;
    let chunks: Vec<Range<u32>> = sizes
        .iter()
        .map(|size| {
            let start = end;
            end += size;
            start..end
        })
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Prompt {
        name,
        tokens: (0..=end).map(|_| ordinary(&mut rng, tokenizer)).collect(),
        chunks,
    }
}

/// A token that stands for text.
fn ordinary(rng: &mut ChaCha8Rng, tokenizer: &dyn Tokenizer) -> Token {
    for _ in 0..MAX_DRAWS {
        let token = rng.next_u32() % tokenizer.len();
        if tokenizer.control_name(token).is_none()
            && !tokenizer.is_end(token)
            && !tokenizer.bytes(token).is_empty()
        {
            return token;
        }
    }
    panic!("conformance: the tokenizer has no tokens that stand for text");
}
