//! One answer: sampling, constraint, stop strings and limits together.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::constraint::{Constraint, ConstraintError, ConstraintFactory};
use crate::kv_engine::EngineError;
use crate::sampling::{InvalidSampling, Sampler, SamplingParams};
use crate::stop::{self, InvalidStop, StopMatcher};
use crate::tokenizer::{Token, Tokenizer};

/// What the answer must look like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// Some JSON object.
    JsonObject,
    /// JSON that this schema accepts.
    JsonSchema(Value),
}

/// How one answer is generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationParams {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens of the answer, the end token included; at least 1.
    pub max_tokens: u32,
    /// The answer ends before the first of these.
    pub stop: Vec<String>,
    /// What the answer must look like.
    pub format: Format,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end token, a stop string, or the JSON is complete.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The token; evaluate it next unless `finished`.
    pub token: Token,
    /// Text that became certain with it; may be empty, may hold text of earlier tokens.
    pub text: String,
    /// Set on the last step.
    pub finished: Option<FinishReason>,
}

/// Why an answer cannot begin or go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GenerationError {
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] InvalidSampling),
    /// The stop strings cannot be used.
    #[error(transparent)]
    Stop(#[from] InvalidStop),
    /// Nothing to generate.
    #[error("`max_tokens` is 0; it must be at least 1")]
    MaxTokens,
    /// The format cannot be had.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The logits are unusable.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The answer has ended already; a bug of the caller.
    #[error("the answer has ended; no further token can be generated")]
    Finished,
}

impl GenerationError {
    /// True if the request is at fault rather than the model or this program.
    #[must_use]
    pub fn is_request(&self) -> bool {
        matches!(
            self,
            Self::Sampling(_)
                | Self::Stop(_)
                | Self::MaxTokens
                | Self::Constraint(
                    ConstraintError::Schema(_)
                        | ConstraintError::Budget(_)
                        | ConstraintError::Unknown
                )
        )
    }
}

impl GenerationParams {
    /// Checks everything that needs no model.
    ///
    /// # Errors
    /// Names the field at fault.
    pub fn validate(&self) -> Result<(), GenerationError> {
        self.sampling.validate()?;
        stop::validate(&self.stop)?;
        if self.max_tokens == 0 {
            return Err(GenerationError::MaxTokens);
        }
        Ok(())
    }
}

/// One answer being generated: logits in, tokens and text out.
pub struct Generation {
    tokenizer: Arc<dyn Tokenizer>,
    sampler: Sampler,
    constraint: Option<Constraint>,
    stop: StopMatcher,
    max_tokens: u32,
    generated: Vec<Token>,
    finished: bool,
}

impl Generation {
    /// A new answer.
    ///
    /// # Errors
    /// Names the parameter that is out of range, or what the schema has that is not supported.
    pub fn new(
        params: &GenerationParams,
        tokenizer: Arc<dyn Tokenizer>,
        constraints: &ConstraintFactory,
    ) -> Result<Self, GenerationError> {
        params.validate()?;
        let constraint = match &params.format {
            Format::Text => None,
            Format::JsonObject => Some(constraints.json_object()?),
            Format::JsonSchema(schema) => Some(constraints.json_schema(schema)?),
        };
        Ok(Self {
            tokenizer,
            sampler: Sampler::new(&params.sampling),
            constraint,
            stop: StopMatcher::new(&params.stop),
            max_tokens: params.max_tokens,
            generated: Vec::new(),
            finished: false,
        })
    }

    /// Chooses the next token from a row of logits.
    ///
    /// # Errors
    /// If the logits are unusable, the constraint gave up, or the answer has ended.
    pub fn next(&mut self, logits: &[f32]) -> Result<Step, GenerationError> {
        if self.finished {
            return Err(GenerationError::Finished);
        }
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?;
        let token = self.sampler.sample(logits, mask.as_ref())?;
        self.generated.push(token);
        let (mut text, mut finished) = (String::new(), None);
        if self.tokenizer.is_end(token) {
            finished = Some(FinishReason::Stop);
        } else {
            let pushed = self.stop.push(&self.tokenizer.bytes(token));
            text = pushed.text;
            if pushed.stopped || self.accept(token)? {
                finished = Some(FinishReason::Stop);
            } else if self.generated.len() >= self.max_tokens as usize {
                finished = Some(FinishReason::Length);
            }
        }
        if finished.is_some() {
            self.finished = true;
            text.push_str(&self.stop.finish());
        }
        Ok(Step {
            token,
            text,
            finished,
        })
    }

    /// Takes the token into the constraint; true if the JSON is complete.
    fn accept(&mut self, token: Token) -> Result<bool, ConstraintError> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(false);
        };
        constraint.accept(token)?;
        Ok(constraint.is_complete())
    }

    /// All tokens so far, the end token included.
    #[must_use]
    pub fn generated(&self) -> &[Token] {
        &self.generated
    }
}
