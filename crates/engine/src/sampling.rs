//! Logits to a token.
//!
//! Own code, because `std::discrete_distribution` differs between C++ libraries and `exp` between
//! C libraries: with it the same logits and the same seed give the same token on Linux and macOS.
//! Nothing here depends on a hash order, sums are `f64` in order of falling logit (ties: of rising
//! id), `exp` is the plain-Rust one of `libm`, and the draw is ChaCha8 keyed by the seed.
//!
//! Order as in llama.cpp: top-k, top-p, min-p, then temperature, then the draw.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::constraint::TokenMask;
use crate::kv_engine::EngineError;
use crate::tokenizer::Token;

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

/// A token that may be chosen, and its logit.
type Candidate = (Token, f32);

/// Chooses tokens for one answer; owns the state of its random numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
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
        let candidates = candidates(logits, mask)?;
        if self.params.temperature <= 0.0 {
            return best(&candidates)
                .map(|(token, _)| token)
                .ok_or_else(nothing_left);
        }
        let kept = self.truncate(candidates);
        self.draw(&kept).ok_or_else(nothing_left)
    }

    /// Top-k, top-p, min-p. The result is in order of falling logit.
    fn truncate(&self, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        let k = self.params.top_k as usize;
        if k > 0 && k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, better_first);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(better_first);
        let Some(&(_, max)) = candidates.first() else {
            return candidates;
        };
        if self.params.top_p < 1.0 {
            candidates.truncate(top_p_count(&candidates, max, f64::from(self.params.top_p)));
        }
        if self.params.min_p > 0.0 {
            let min_p = f64::from(self.params.min_p);
            candidates.retain(|&(_, logit)| weight(logit, max, 1.0) >= min_p);
        }
        candidates
    }

    /// One draw from the softmax of `kept` at the temperature.
    fn draw(&mut self, kept: &[Candidate]) -> Option<Token> {
        let max = kept.first()?.1;
        let temperature = f64::from(self.params.temperature);
        let weights: Vec<f64> = kept
            .iter()
            .map(|&(_, logit)| weight(logit, max, temperature))
            .collect();
        let target = unit(self.rng.next_u64()) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        for (&(token, _), weight) in kept.iter().zip(&weights) {
            sum += weight;
            if target < sum {
                return Some(token);
            }
        }
        // Rounding can leave the target at the very end of the last interval.
        kept.last().map(|&(token, _)| token)
    }
}

/// Tokens that may be chosen, in order of id. Negative infinity means never.
fn candidates(logits: &[f32], mask: Option<&TokenMask>) -> Result<Vec<Candidate>, EngineError> {
    let mut out = Vec::with_capacity(if mask.is_some() { 0 } else { logits.len() });
    for (token, &logit) in (0..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(EngineError::Failed(format!(
                "the logit of token {token} is {logit}"
            )));
        }
        if logit > f32::NEG_INFINITY && mask.is_none_or(|mask| mask.allows(token)) {
            out.push((token, logit));
        }
    }
    if out.is_empty() {
        return Err(nothing_left());
    }
    Ok(out)
}

fn nothing_left() -> EngineError {
    EngineError::Failed("no token may be chosen: all are masked or impossible".to_owned())
}

/// Falling logit, then rising id: a total order, so an unstable sort is deterministic.
/// Adding zero makes -0 and 0 equal.
fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
}

fn best(candidates: &[Candidate]) -> Option<Candidate> {
    candidates.iter().copied().min_by(better_first)
}

/// Unnormalised softmax; 1 for the best token.
fn weight(logit: f32, max: f32, temperature: f64) -> f64 {
    libm::exp((f64::from(logit) - f64::from(max)) / temperature)
}

/// Number of sorted candidates whose probabilities first sum to `top_p`; at least one.
fn top_p_count(sorted: &[Candidate], max: f32, top_p: f64) -> usize {
    let total: f64 = sorted.iter().map(|&(_, l)| weight(l, max, 1.0)).sum();
    let mut sum = 0.0;
    for (i, &(_, logit)) in sorted.iter().enumerate() {
        sum += weight(logit, max, 1.0);
        if sum >= top_p * total {
            return i + 1;
        }
    }
    sorted.len()
}

/// 53 random bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    let numerator = (bits >> 11) as f64;
    numerator / 9_007_199_254_740_992.0
}
