//! Computing: chunks of prefill and steps of decoding.

use std::ops::Range;

use tandem_handoff::PlaneKind;

use crate::kv_cache::{EngineError, KvCache, Sequence};
use crate::tokenizer::Token;

/// Tokens of one sequence to evaluate in a call: a chunk of a prefill, or a step of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The sequence; no other item of the call has the same.
    pub sequence: Sequence,
    /// Position of the first token, which must be the number of tokens that the sequence holds.
    pub start: u32,
    /// The tokens, in order.
    pub tokens: &'a [Token],
    /// True if the logits after the last token are wanted.
    pub logits: bool,
}

/// One token to evaluate for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeStep {
    /// The sequence.
    pub sequence: Sequence,
    /// The token.
    pub token: Token,
    /// Its position, which must be the number of tokens the sequence holds.
    pub position: u32,
}

impl<'a> Item<'a> {
    /// A chunk of a prefill.
    #[must_use]
    pub const fn chunk(sequence: Sequence, start: u32, tokens: &'a [Token]) -> Self {
        Self {
            sequence,
            start,
            tokens,
            logits: false,
        }
    }

    /// One past the position of the last token.
    #[must_use]
    pub fn end(&self) -> u32 {
        let count = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        self.start.saturating_add(count)
    }
}

impl DecodeStep {
    /// The same as an item.
    #[must_use]
    pub const fn item(&self) -> Item<'_> {
        Item {
            sequence: self.sequence,
            start: self.position,
            tokens: std::slice::from_ref(&self.token),
            logits: true,
        }
    }
}

/// K or V of one layer, as soon as it has been computed.
pub struct LayerRows<'a> {
    /// The sequence of their item.
    pub sequence: Sequence,
    /// The layer.
    pub layer: u32,
    /// K or V.
    pub kind: PlaneKind,
    /// Whose rows they are.
    pub tokens: Range<u32>,
    /// Appends the rows of some of these tokens (what lies outside is left out).
    pub read: &'a dyn Fn(Range<u32>, &mut Vec<u8>),
}

/// Takes rows as they come, perhaps on another thread than the engine's.
pub type GiveRows<'a> = dyn FnMut(&LayerRows<'_>) + Send + 'a;

/// What evaluates tokens. Their KV goes into the cache.
///
/// The token contract: prefill covers tokens `[0, n-1)` of a prompt of `n` tokens; the decoding
/// side evaluates token `n-1` by [`Compute::decode`] and samples from its logits. So no logits
/// and no rollback cross from one engine to another.
pub trait Compute: KvCache {
    /// Tokens of a step in which the end of a prompt is computed (its last complete chunk and what follows), so
    /// that its KV leaves while the rest is computed; divides the chunk, or is larger than it. Both ends of a
    /// handoff compute in such steps, and so the same.
    fn tail_tokens(&self) -> u32;

    /// Threads of the processor that compute each step, the same until the end: results have equal bits only with
    /// equally many. `None` if something else computes.
    fn threads(&self) -> Option<u32> {
        None
    }

    /// A step begins whose results are used until [`Self::end_step`]: engines that share a processor wait so long, because
    /// choosing tokens takes a core, too. A step outside of the two is one by itself.
    fn begin_step(&mut self) {}

    /// The end of it.
    fn end_step(&mut self) {}

    /// Evaluates the tokens of all items in one go and keeps their KV. Gives the rows of `n_vocab` logits that are asked for, in
    /// the order of the items. Whatever a sequence has beyond [`KvCache::held`] is dropped first.
    ///
    /// A chunk that is to have the same bits on another engine goes alone, without logits: other items change the shape of
    /// the batch, and with it the rounding.
    ///
    /// With `give`, an engine that [gives layers](Compute::gives_layers) gives K and V of each layer while the next ones are
    /// computed: those of a layer and an item for the tokens in order, perhaps in several parts, and the same rows that
    /// [`KvCache::export`] would. `give` must not panic. It is not called any more when this returns.
    ///
    /// # Errors
    /// [`EngineError::Refused`], and nothing changes, if a `start` is not what is held, a sequence comes twice, a token is not
    /// in the vocabulary, or the tokens are more than [`Capacity::call_tokens`](crate::Capacity::call_tokens) together. [`EngineError::Failed`] if the engine fails or rows could not be given: what has
    /// been given is of no use then, but for [final rows](Compute::gives_final_rows), and the sequences are empty or as they were
    /// ([`KvCache::held`] tells).
    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        give: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError>;

    /// True if [`Compute::evaluate`] gives rows.
    fn gives_layers(&self) -> bool {
        false
    }

    /// True if rows that [`Compute::evaluate`] has given are right whether or not it fails after that. Those of
    /// all layers may be used then before it returns.
    fn gives_final_rows(&self) -> bool {
        false
    }

    /// Evaluates a chunk of one sequence, without logits.
    ///
    /// # Errors
    /// As [`Compute::evaluate`].
    fn prefill(
        &mut self,
        sequence: Sequence,
        start: u32,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        self.evaluate(&[Item::chunk(sequence, start, tokens)], None)
            .map(drop)
    }

    /// Evaluates one token for each of several sequences; one row of logits per step.
    ///
    /// # Errors
    /// As [`Compute::evaluate`].
    fn decode(&mut self, steps: &[DecodeStep]) -> Result<Vec<Vec<f32>>, EngineError> {
        let items: Vec<Item<'_>> = steps.iter().map(DecodeStep::item).collect();
        self.evaluate(&items, None)
    }
}

/// That [`KvCache::share`] can be done. Engines ask this first.
///
/// # Errors
/// [`EngineError::Refused`], with what does not fit.
pub fn check_share(
    cache: &(impl KvCache + ?Sized),
    from: Sequence,
    to: Sequence,
    tokens: u32,
) -> Result<(), EngineError> {
    let refused = |reason: String| Err(EngineError::Refused(reason));
    if let Some(closed) = [from, to].into_iter().find(|s| !cache.is_open(*s)) {
        return refused(format!("{closed:?} is not open"));
    }
    let (held, there) = (cache.held(from), cache.held(to));
    if from == to || there > 0 || tokens > held {
        return refused(format!(
            "{tokens} tokens of {from:?}, which holds {held}, for {to:?}, which holds {there}"
        ));
    }
    Ok(())
}

/// That items fit what is held and the limits. Engines ask this first, so that a call that is refused changes nothing.
///
/// # Errors
/// [`EngineError::Refused`], with what does not fit.
pub fn check_items(
    cache: &(impl KvCache + ?Sized),
    vocabulary: u32,
    items: &[Item<'_>],
) -> Result<(), EngineError> {
    let refused = |reason: String| Err(EngineError::Refused(reason));
    let capacity = cache.capacity();
    for (i, item) in items.iter().enumerate() {
        let Item {
            sequence, start, ..
        } = *item;
        if !cache.is_open(sequence) {
            return refused(format!("{sequence:?} is not open"));
        }
        if items[..i].iter().any(|other| other.sequence == sequence) {
            return refused(format!("{sequence:?} twice in one batch"));
        }
        let held = cache.held(sequence);
        if start != held {
            return refused(format!(
                "position {start} of {sequence:?}, which holds {held} tokens"
            ));
        }
        let (end, limit) = (item.end(), capacity.tokens_per_sequence);
        if end > limit {
            return refused(format!("{end} tokens in a sequence of at most {limit}"));
        }
        if let Some(token) = item.tokens.iter().find(|token| **token >= vocabulary) {
            return refused(format!(
                "token {token} is not in the vocabulary of {vocabulary}"
            ));
        }
        if item.logits && item.tokens.is_empty() {
            return refused(format!("logits of no token of {sequence:?}"));
        }
    }
    let tokens: usize = items.iter().map(|item| item.tokens.len()).sum();
    if tokens > capacity.call_tokens() as usize {
        return refused(format!(
            "{tokens} tokens in a call of at most {}",
            capacity.call_tokens()
        ));
    }
    Ok(())
}
