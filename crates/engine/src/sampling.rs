//! Logits to a token.
//!
//! Own code, because `std::discrete_distribution` differs between C++ libraries and `exp` between
//! C libraries: with it the same logits and the same seed give the same token on Linux and macOS.
//! Nothing here depends on a hash order. Weights are made of additions, multiplications and divisions alone
//! (`weights.rs`), and summed as `f64` in an order that does not depend on the machine. The draw is ChaCha8
//! keyed by the seed.
//!
//! Order as in llama.cpp: top-k, top-p, min-p, then temperature, then the draw.
//!
//! A vocabulary may have 262,144 tokens, of which a few hundred are in question. So passes over all are such that
//! compilers vectorise, and only tokens near the best one are copied and sorted.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tandem_proto::SamplingParams;

use crate::constraint::TokenMask;
use crate::kv_cache::EngineError;
use crate::tokenizer::Token;
use crate::weights::{Candidate, above, block_sums, draw, draw_of_all, highest, weight};

/// How far below the best logit tokens are looked for, in turn, until enough are found.
const REACHES: [f32; 3] = [8.0, 24.0, f32::INFINITY];

/// Chooses tokens for one answer; owns the state of its random numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    kept: Kept,
    rng: ChaCha8Rng,
    /// Logits under a mask; kept, because the system takes long to give memory of that size.
    masked: Vec<f32>,
}

impl Sampler {
    /// A sampler at the beginning of an answer. The parameters should be
    /// [valid](SamplingParams::validate).
    #[must_use]
    pub fn new(params: &SamplingParams) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&params.seed().to_le_bytes());
        Self {
            temperature: narrow(params.temperature()),
            kept: Kept {
                top_k: params.top_k.unwrap_or(0) as usize,
                top_p: narrow(params.top_p.unwrap_or(1.0)),
                min_p: narrow(params.min_p.unwrap_or(0.0)),
            },
            rng: ChaCha8Rng::from_seed(key),
            masked: Vec::new(),
        }
    }

    /// The next token. `logits` has one value per token id; `mask` says which may be chosen.
    ///
    /// With temperature 0 no random number is used and the lowest id wins a tie; otherwise one is
    /// used per call.
    ///
    /// # Errors
    /// [`EngineError::Failed`] if a logit is NaN or positive infinity, or no token is left.
    pub fn sample(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
    ) -> Result<Token, EngineError> {
        let max = highest(logits).map_err(|token| {
            let logit = logits[token];
            EngineError::Failed(format!("the logit of token {token} is {logit}"))
        })?;
        let Some(mask) = mask else {
            return self.choose(logits, max);
        };
        let mut masked = std::mem::take(&mut self.masked);
        mask.apply(logits, &mut masked);
        let max = highest(&masked).unwrap_or(f32::NEG_INFINITY);
        let chosen = self.choose(&masked, max);
        self.masked = masked;
        chosen
    }

    /// Chooses among tokens of which the best has the logit `max`. Negative infinity means never.
    fn choose(&mut self, logits: &[f32], max: f32) -> Result<Token, EngineError> {
        if max == f32::NEG_INFINITY {
            return Err(nothing_left());
        }
        let temperature = self.temperature;
        if temperature <= 0.0 {
            let best = above(logits, max).next();
            return best.map(|(token, _)| token).ok_or_else(nothing_left);
        }
        let target = unit(self.rng.next_u64());
        let chosen = if self.kept.is_all() {
            draw_of_all(logits, max, temperature, target).map(token)
        } else {
            let kept = self.kept.truncate(logits, max);
            let weights = kept.iter().map(|c| weight(c.1, max, temperature));
            draw(&weights.collect::<Vec<_>>(), target).map(|index| kept[index].0)
        };
        chosen.ok_or_else(nothing_left)
    }
}

/// Which tokens may be drawn, as [`SamplingParams`] say.
#[derive(Debug, Clone, Copy)]
struct Kept {
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

impl Kept {
    fn is_all(self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Top-k, top-p, min-p. The result is in order of falling logit.
    fn truncate(self, logits: &[f32], max: f32) -> Vec<Candidate> {
        let min_p = self.min_p;
        // As many as there are is all.
        let k = Some(self.top_k).filter(|k| *k < logits.len());
        let k = k.unwrap_or_default();
        let weight = |c: &Candidate| weight(c.1, max, 1.0);
        // Without top-k all tokens count, also those that are not looked at.
        let all = (k == 0 && self.top_p < 1.0).then(|| block_sums(logits, max, 1.0).iter().sum());
        let mut found = Vec::new();
        for reach in REACHES {
            found = above(logits, max - reach).collect::<Vec<Candidate>>();
            let mut is_whole = k > 0 && found.len() >= k;
            if k > 0 && k < found.len() {
                found.select_nth_unstable_by(k - 1, better_first);
                found.truncate(k);
            }
            if k > 0 && !is_whole && reach < f32::INFINITY {
                continue;
            }
            found.sort_unstable_by(better_first);
            if self.top_p < 1.0 {
                let sum = || found.iter().map(|c| f64::from(weight(c))).sum::<f64>();
                let enough = f64::from(self.top_p) * all.unwrap_or_else(sum);
                if let Some(last) = first_sum(&found, weight, enough) {
                    found.truncate(last + 1);
                    is_whole |= k == 0;
                }
            }
            if min_p > 0.0 {
                // What is farther away weighs less than that.
                is_whole |= k == 0 && weight(&(0, max - reach)) < min_p;
                found.retain(|c| weight(c) >= min_p);
            }
            if is_whole {
                break;
            }
        }
        found
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers, checked before"
)]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// The first candidate with which the sum of the weights is enough.
fn first_sum(
    found: &[Candidate],
    weight: impl Fn(&Candidate) -> f32,
    enough: f64,
) -> Option<usize> {
    let mut sum = 0.0;
    found.iter().position(|c| {
        sum += f64::from(weight(c));
        sum >= enough
    })
}

fn token(index: usize) -> Token {
    Token::try_from(index).unwrap_or(Token::MAX)
}

fn nothing_left() -> EngineError {
    EngineError::Failed("no token may be chosen: all are masked or impossible".to_owned())
}

/// Falling logit, then rising id: a total order, so an unstable sort is deterministic.
/// Adding zero makes -0 and 0 equal.
fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
}

/// 53 random bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    let numerator = (bits >> 11) as f64;
    numerator / 9_007_199_254_740_992.0
}
