//! The parity receipt: what the prefill node computed for the last prompt token, against what the
//! decode node computed from the KV that it was handed.
//!
//! The decode node evaluates that token anyway, so the comparison costs the prefill node one step
//! after its last segment and the decode node nothing. It tells whether two backends, or two
//! quantisations of one model, fit together.

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_STRING, RECEIPT_TOKENS};

/// Stands for the logarithm of zero, which JSON cannot carry: `exp` of it is 0 in f64 too.
const LOWEST: f64 = -1e4;
/// By how much probabilities of a receipt may miss what they should add up to: its numbers are f32.
const SLACK: f64 = 1e-3;

/// One token of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenScore {
    /// Its id.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Permission to hand the KV of the answer back.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnTicket {
    /// The secret, hex.
    pub ticket: String,
    /// Id of that handoff.
    pub handoff: u64,
    /// Port on which the prefill node takes KV in, on the host that this connection came from.
    pub port: u16,
}

impl std::fmt::Debug for ReturnTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReturnTicket")
            .field("handoff", &self.handoff)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// What the sender says after the commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The likeliest next tokens after the prompt, likeliest first; at most [`RECEIPT_TOKENS`].
    pub top: Vec<TokenScore>,
    /// Where the KV of the answer may be handed back to.
    pub hand_back: Option<ReturnTicket>,
}

/// A receipt that cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("receipt field `{field}`: {reason}")]
pub struct InvalidReceipt {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// How far two ends agree on the token after a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parity {
    /// Kullback-Leibler divergence in nats, `sum of p * ln(p / q)` with `p` theirs and `q` ours, over
    /// the tokens of the receipt and one more outcome for all others together. A lower bound of the
    /// divergence over the whole vocabulary (data-processing inequality).
    pub kl: f64,
    /// True if both find the same token likeliest.
    pub same_top: bool,
    /// Their likeliest token's lead over their second, as a difference of log-probabilities.
    pub margin: f64,
    /// Largest difference of a log-probability among the tokens of the receipt.
    pub max_difference: f64,
}

/// Beyond which a pair of nodes is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityBound {
    /// Largest divergence in nats.
    pub kl: f64,
    /// A different likeliest token is a fault if theirs leads by more than this.
    pub margin: f64,
}

impl Default for ParityBound {
    /// An estimate for equal weights on different backends; noise between backends was published as
    /// 0.16 in a logit and flips at margins near 0.03, a real defect as 0.3 to 1.3.
    fn default() -> Self {
        Self {
            kl: 0.1,
            margin: 0.5,
        }
    }
}

impl ParityBound {
    /// True if the ends fit together.
    #[must_use]
    pub fn holds(&self, parity: &Parity) -> bool {
        parity.kl <= self.kl && (parity.same_top || parity.margin <= self.margin)
    }
}

/// Log-probabilities of a row of logits.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|l| f64::from(*l) - f64::from(largest));
    let sum: f64 = shifted.clone().map(f64::exp).sum();
    let log_sum = sum.ln();
    shifted.map(|l| l - log_sum).collect()
}

impl Receipt {
    /// The receipt of a row of logits, `[n_vocab]`.
    #[must_use]
    pub fn of(logits: &[f32], hand_back: Option<ReturnTicket>) -> Self {
        let scores = log_softmax(logits);
        let mut order: Vec<u32> = (0..u32::try_from(scores.len()).unwrap_or(u32::MAX)).collect();
        let count = RECEIPT_TOKENS.min(order.len());
        let by_score = |a: &u32, b: &u32| {
            scores[*b as usize]
                .total_cmp(&scores[*a as usize])
                .then(a.cmp(b))
        };
        if count < order.len() {
            order.select_nth_unstable_by(count, by_score);
            order.truncate(count);
        }
        order.sort_unstable_by(by_score);
        #[expect(clippy::cast_possible_truncation, reason = "six digits are enough")]
        let top = order
            .into_iter()
            .map(|token| TokenScore {
                token,
                logprob: scores[token as usize].max(LOWEST) as f32,
            })
            .collect();
        Self { top, hand_back }
    }

    /// Compares with our own logits for the same position, `[n_vocab]`.
    ///
    /// # Errors
    /// If the receipt is not a distribution over our vocabulary, or our logits are none: NaN, or
    /// infinite but for tokens that are ruled out.
    pub fn compare(&self, logits: &[f32]) -> Result<Parity, InvalidReceipt> {
        self.check(logits.len())?;
        let mut ours = log_softmax(logits);
        if ours.iter().any(|o| o.is_nan()) {
            return invalid("top", "our own logits are no numbers".into());
        }
        // Differences stay finite, as JSON needs them.
        ours.iter_mut().for_each(|o| *o = o.max(LOWEST));
        let (mut kl, mut max_difference) = (0.0, 0.0f64);
        let (mut left_theirs, mut left_ours) = (1.0, 1.0);
        for score in &self.top {
            let (theirs, ours) = (f64::from(score.logprob), ours[score.token as usize]);
            let p = theirs.exp();
            left_theirs -= p;
            left_ours -= ours.exp();
            if p > 0.0 {
                kl += p * (theirs - ours);
            }
            max_difference = max_difference.max((theirs - ours).abs());
        }
        // What is left may be a rounding error below zero.
        const SMALLEST: f64 = 1e-9;
        if left_theirs > SMALLEST {
            kl += left_theirs * (left_theirs / left_ours.max(SMALLEST)).ln();
        }
        let best = self.top[0].token as usize;
        let same_top = ours.iter().all(|o| *o <= ours[best]);
        let margin = match self.top.get(1) {
            Some(second) => f64::from(self.top[0].logprob) - f64::from(second.logprob),
            None => f64::MAX,
        };
        Ok(Parity {
            kl: kl.max(0.0),
            same_top,
            margin,
            max_difference,
        })
    }

    /// Checks what can be checked without a vocabulary.
    ///
    /// # Errors
    /// If it names too many tokens, or a string is too long.
    pub fn check_lengths(&self) -> Result<(), InvalidReceipt> {
        let count = self.top.len();
        if !(1..=RECEIPT_TOKENS).contains(&count) {
            return invalid(
                "top",
                format!("{count} tokens, allowed 1..={RECEIPT_TOKENS}"),
            );
        }
        match &self.hand_back {
            Some(back) if back.ticket.len() > MAX_STRING => invalid(
                "hand_back.ticket",
                format!("longer than {MAX_STRING} bytes"),
            ),
            _ => Ok(()),
        }
    }

    fn check(&self, vocabulary: usize) -> Result<(), InvalidReceipt> {
        self.check_lengths()?;
        let fail = |reason: String| invalid("top", reason);
        let mut seen = std::collections::BTreeSet::new();
        let mut sum = 0.0;
        for pair in self.top.windows(2) {
            if pair[0].logprob < pair[1].logprob {
                return fail("not in order".into());
            }
        }
        for score in &self.top {
            if score.token as usize >= vocabulary {
                return fail(format!("token {} is not in the vocabulary", score.token));
            }
            if !seen.insert(score.token) {
                return fail(format!("token {} twice", score.token));
            }
            let logprob = f64::from(score.logprob);
            if !(LOWEST..=SLACK).contains(&logprob) {
                return fail(format!("{logprob} is no log-probability"));
            }
            sum += logprob.exp();
        }
        // No token that is left out is likelier than the last one that is named. This also finds the
        // receipt of logits that were no numbers.
        let last = self.top.last().map_or(0.0, |s| f64::from(s.logprob).exp());
        #[expect(clippy::cast_precision_loss, reason = "a vocabulary is far below 2^52")]
        let most = sum + last * (vocabulary - self.top.len()) as f64;
        if sum > 1.0 + SLACK || most < 1.0 - SLACK {
            let range = format!("{sum:.3} to {most:.3}");
            return fail(format!("probabilities add up to {range}, not 1"));
        }
        Ok(())
    }
}

fn invalid<T>(field: &'static str, reason: String) -> Result<T, InvalidReceipt> {
    Err(InvalidReceipt { field, reason })
}
