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
use serde::{Deserialize, Serialize};

use crate::constraint::TokenMask;
use crate::kv_engine::EngineError;
use crate::tokenizer::Token;
use crate::weights::{Candidate, above, block_sums, draw, draw_of_all, highest, weight};

/// Highest temperature that is accepted; beyond it the choice is as good as uniform.
pub const MAX_TEMPERATURE: f32 = 100.0;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingParams {
    /// Divides the logits before the softmax; 0 takes the best token.
    pub temperature: f32,
    /// Keep the `top_k` best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest best tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Seed of the draw. The same seed and logits give the same tokens.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{field}` is {value}; allowed is {allowed}")]
pub struct InvalidSampling {
    /// Name of the field of [`SamplingParams`].
    pub field: &'static str,
    /// Its value.
    pub value: f32,
    /// What it may be.
    pub allowed: &'static str,
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// Names the first field out of range. NaN is out of every range.
    pub fn validate(&self) -> Result<(), InvalidSampling> {
        let checks = [
            (
                "temperature",
                self.temperature,
                (0.0..=MAX_TEMPERATURE).contains(&self.temperature),
                "0 (greedy) to 100",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0, at most 1 (off)",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "0 (off) to 1",
            ),
        ];
        match checks.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((field, value, _, allowed)) => Err(InvalidSampling {
                field,
                value,
                allowed,
            }),
            None => Ok(()),
        }
    }
}

/// How far below the best logit tokens are looked for, in turn, until enough are found.
const REACHES: [f32; 3] = [8.0, 24.0, f32::INFINITY];

/// Chooses tokens for one answer; owns the state of its random numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
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
        key[..8].copy_from_slice(&params.seed.to_le_bytes());
        Self {
            params: params.clone(),
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
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.params;
        if temperature <= 0.0 {
            let best = above(logits, max).next();
            return best.map(|(token, _)| token).ok_or_else(nothing_left);
        }
        let target = unit(self.rng.next_u64());
        let keeps_all = top_k == 0 && top_p >= 1.0 && min_p <= 0.0;
        let chosen = if keeps_all {
            draw_of_all(logits, max, temperature, target).map(token)
        } else {
            let kept = self.params.truncate(logits, max);
            let weights = kept.iter().map(|c| weight(c.1, max, temperature));
            draw(&weights.collect::<Vec<_>>(), target).map(|index| kept[index].0)
        };
        chosen.ok_or_else(nothing_left)
    }
}

impl SamplingParams {
    /// Top-k, top-p, min-p. The result is in order of falling logit.
    fn truncate(&self, logits: &[f32], max: f32) -> Vec<Candidate> {
        let min_p = self.min_p;
        // As many as there are is all.
        let k = Some(self.top_k as usize).filter(|k| *k < logits.len());
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
