//! JSON-schema constrained decoding (llguidance).
//!
//! The answer is what the schema accepts, token by token, so it always parses. Two things are up
//! to the schema: strings and arrays without `maxLength` or `maxItems` may go on until
//! `max_tokens`, and numbers without bounds may be too large for a reader (`1e999` is JSON). Bounds
//! beyond 2^53 move inwards to the next f64, those beyond 64 bits to these.
//! Control tokens are never part of the JSON; an end token is allowed once it may end.

mod bounds;
mod budget;
mod check;

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use self::budget::Budget;
use crate::limits::MAX_COMPILING;
use crate::tokenizer::{Token, Tokenizer};

/// Why output cannot be constrained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The tokenizer cannot end an answer.
    #[error("the model's tokenizer has no end token, so constrained output could never end")]
    NoEndToken,
    /// The token trie could not be built.
    #[error("cannot prepare constrained decoding for this tokenizer: {0}")]
    Tokenizer(String),
    /// The schema is wrong or uses something unsupported.
    #[error("JSON schema refused: {0}")]
    Schema(String),
    /// The schema takes too much time or memory.
    #[error("JSON schema refused: {0}; make the schema simpler")]
    Budget(String),
    /// The library that compiles schemas has failed.
    #[error("JSON schema refused: it cannot be compiled")]
    Unknown,
    /// Too many schemas are being compiled.
    #[error("{MAX_COMPILING} other schemas are being compiled; try again")]
    Busy,
    /// The token does not fit; a bug of the caller, who must mask the logits.
    #[error("token {token} breaks the constraint: {reason}")]
    Token {
        /// The token.
        token: Token,
        /// What the parser says.
        reason: String,
    },
}

/// Which tokens may come next.
#[derive(Debug, Clone)]
pub struct TokenMask(SimpleVob);

impl TokenMask {
    /// True if the token may come next. False for ids beyond the vocabulary.
    #[must_use]
    pub fn allows(&self, token: Token) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// The logits, with negative infinity in place of those of tokens that may not come next.
    pub(crate) fn apply(&self, logits: &[f32], masked: &mut Vec<f32>) {
        const BITS: usize = u32::BITS as usize;
        masked.clear();
        masked.resize(logits.len(), f32::NEG_INFINITY);
        let known = logits.len().min(self.0.len());
        let words = self.0.as_slice().iter();
        let (from, to) = (
            logits[..known].chunks(BITS),
            masked[..known].chunks_mut(BITS),
        );
        for ((word, from), to) in words.zip(from).zip(to) {
            for (bit, (from, to)) in from.iter().zip(to).enumerate() {
                *to = if word >> bit & 1 == 1 {
                    *from
                } else {
                    f32::NEG_INFINITY
                };
            }
        }
    }
}

/// Makes constraints for one model. Building it walks the whole vocabulary, so keep one per model.
pub struct ConstraintFactory {
    factory: Arc<ParserFactory>,
    budget: Budget,
}

/// The constraint of one answer.
pub struct Constraint {
    matcher: Matcher,
    /// The first mask, which has been taken already.
    first: Option<TokenMask>,
}

impl ConstraintFactory {
    /// Builds the token trie of a model.
    ///
    /// # Errors
    /// If the tokenizer has no end token.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "keeps the callers' choice open"
    )]
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Result<Self, ConstraintError> {
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie(tokenizer.as_ref())?));
        let mut factory = ParserFactory::new(
            &environment,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::json_slices(),
        )
        .map_err(|e| ConstraintError::Tokenizer(format!("{e:#}")))?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Ok(Self {
            factory: Arc::new(factory),
            budget: Budget::default(),
        })
    }

    /// A constraint to JSON that a schema accepts.
    ///
    /// # Errors
    /// Names what is wrong or unsupported in the schema.
    pub fn json_schema(&self, schema: &Value) -> Result<Constraint, ConstraintError> {
        check::check_size(schema)?;
        let (factory, schema) = (Arc::clone(&self.factory), schema.clone());
        self.budget.run(move || compile(&factory, compact(schema)?))
    }

    /// A constraint to some JSON object.
    ///
    /// # Errors
    /// Not for a working build.
    pub fn json_object(&self) -> Result<Constraint, ConstraintError> {
        self.json_schema(&json!({"type": "object"}))
    }
}

impl Constraint {
    /// Which tokens may come next; only the end token once the JSON is complete.
    ///
    /// # Errors
    /// If the schema is too complex for a step, or nothing that it accepts can follow.
    pub fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let mask = self.matcher.compute_mask_or_eos();
        mask.map(TokenMask).map_err(|e| match told(&e) {
            reason if reason.starts_with("NoExtension") => {
                ConstraintError::Schema("#: no answer satisfies it".to_owned())
            }
            _ => spent(),
        })
    }

    /// Takes the chosen token in.
    ///
    /// # Errors
    /// If the mask does not allow it, or the schema is too complex to go on. The constraint is of no use then.
    pub fn accept(&mut self, token: Token) -> Result<(), ConstraintError> {
        self.first = None;
        self.matcher
            .consume_token(token)
            .map_err(|e| match told(&e) {
                reason if reason.contains(NOT_ALLOWED) => ConstraintError::Token { token, reason },
                _ => spent(),
            })
    }

    /// True if nothing but the end token can follow.
    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

/// What the library says of a token that does not fit.
const NOT_ALLOWED: &str = "doesn't satisfy the grammar";

/// What the library may spend. Speeds are those that it names: a mask takes at most a few 10 ms.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    // 50,000 of fuel take 1 ms.
    initial_lexer_fuel: 1_000_000,
    // 14,000 of fuel take 1 ms.
    step_lexer_fuel: 200_000,
    // 20,000 items take 1 ms.
    step_max_items: 50_000,
    // 1 to 2 kB each.
    max_lexer_states: 50_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// Compiles a schema, and takes the first mask, as much of the work is put off until then.
fn compile(factory: &ParserFactory, schema: Value) -> Result<Constraint, ConstraintError> {
    let parser = factory
        .create_parser(TopLevelGrammar::from_json_schema(schema))
        .map_err(|e| match told(&e) {
            reason if reason.is_empty() => ConstraintError::Unknown,
            reason => ConstraintError::Schema(reason),
        })?;
    let mut constraint = Constraint {
        matcher: Matcher::new(Ok(parser)),
        first: None,
    };
    constraint.first = Some(constraint.mask()?);
    Ok(constraint)
}

/// The library has spent what it may.
fn spent() -> ConstraintError {
    ConstraintError::Budget("it is too complex to follow".to_owned())
}

/// What the library says, without what it says of itself when it panics.
fn told(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    match text.contains("panic: ") {
        true => String::new(),
        // It may quote what the client sent, at any length.
        false => text
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(300)
            .collect(),
    }
}

/// The schema with our whitespace: none but an optional space after `,` and `:`, so that a model
/// cannot fill the answer with blanks.
fn compact(mut schema: Value) -> Result<Value, ConstraintError> {
    check::check(&mut schema)?;
    let mut schema = match schema {
        Value::Object(map) => map,
        Value::Bool(true) => serde_json::Map::new(),
        _ => {
            return Err(ConstraintError::Schema(
                "it must be a JSON object".to_owned(),
            ));
        }
    };
    // References are paths in this schema, whatever its name.
    schema.remove("$id");
    schema.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"}),
    );
    Ok(Value::Object(schema))
}

/// The bytes of every token as llguidance wants them.
fn trie(tokenizer: &dyn Tokenizer) -> Result<TokTrie, ConstraintError> {
    let ends = end_tokens(tokenizer);
    let &first = ends.first().ok_or(ConstraintError::NoEndToken)?;
    let words: Vec<Vec<u8>> = (0..tokenizer.len())
        .map(|token| word(tokenizer, token, ends.contains(&token)))
        .collect();
    let info = TokRxInfo::new(tokenizer.len(), first);
    Ok(TokTrie::from(&info, &words).with_eos_tokens(&ends))
}

/// The end token of the model first, then all others that end an answer.
fn end_tokens(tokenizer: &dyn Tokenizer) -> Vec<Token> {
    let size = tokenizer.len();
    let mut ends: Vec<Token> = tokenizer.special().eos.into_iter().collect();
    ends.extend((0..size).filter(|&t| tokenizer.is_end(t) && Some(t) != tokenizer.special().eos));
    ends.retain(|&t| t < size);
    ends
}

/// Control tokens carry llguidance's marker byte, which no JSON contains.
fn word(tokenizer: &dyn Tokenizer, token: Token, is_end: bool) -> Vec<u8> {
    match tokenizer.control_name(token) {
        Some(name) => marked(&name),
        None if is_end => marked(&format!("<end {token}>")),
        None => tokenizer.bytes(token),
    }
}

fn marked(name: &str) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(name.as_bytes());
    word
}
