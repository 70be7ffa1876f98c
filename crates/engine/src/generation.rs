//! One answer: sampling, constraint, stop strings and limits together.

use std::sync::Arc;

use tandem_proto::generation::InvalidSampling;
use tandem_proto::{FinishReason, Format, GenerationParams};

use crate::constraint::{Constraint, ConstraintError, ConstraintFactory};
use crate::kv_cache::EngineError;
use crate::sampling::Sampler;
use crate::stop::{self, InvalidStop, StopMatcher};
use crate::tokenizer::{Token, Tokenizer};

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
                | Self::Constraint(
                    ConstraintError::Schema(_)
                        | ConstraintError::Budget(_)
                        | ConstraintError::Unknown
                )
        )
    }
}

/// One answer being generated: logits in, tokens and text out.
pub struct Generation {
    tokenizer: Arc<dyn Tokenizer>,
    sampler: Sampler,
    constraint: Option<Constraint>,
    stop: StopMatcher,
    max_tokens: usize,
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
        let sampling = &params.sampling;
        sampling.validate()?;
        stop::validate(&sampling.stop)?;
        let constraint = match &params.format {
            Format::Text => None,
            Format::JsonObject => Some(constraints.json_object()?),
            Format::JsonSchema { json_schema } => {
                Some(constraints.json_schema(&json_schema.schema)?)
            }
        };
        Ok(Self {
            tokenizer,
            sampler: Sampler::new(sampling),
            constraint,
            stop: StopMatcher::new(&sampling.stop),
            max_tokens: sampling.max_tokens.map_or(usize::MAX, |n| n as usize),
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
            } else if self.generated.len() >= self.max_tokens {
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
