//! How an answer is generated: one type for each, from the public API to the engine.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Temperature of a request that names none, as in the OpenAI reference.
pub const DEFAULT_TEMPERATURE: f64 = 1.0;
/// Seed of a request that names none. Fixed, so that the same request gives the same answer.
pub const DEFAULT_SEED: u64 = 0;
/// Highest temperature that is accepted; beyond it the choice is as good as uniform.
pub const MAX_TEMPERATURE: f64 = 100.0;

/// How tokens are chosen and when to stop. The names are those of OpenAI's API, `top_k` and `min_p` those of llama.cpp and
/// vLLM. `None` leaves the choice to whoever answers: a node takes the default that stands with the field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingParams {
    /// Most tokens of the answer, the end token included; at least 1. Default: until the context is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Divides the logits before the softmax; 0 takes the best token. Default: [`DEFAULT_TEMPERATURE`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Keep the fewest best tokens whose probabilities sum to at least this; 0 keeps the best one, 1 (the default) all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Keep the `top_k` best tokens; 0 (the default) keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Keep tokens at least this times as probable as the best; 0 (the default) keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Seed of the draw. The same seed and logits give the same tokens. Default: [`DEFAULT_SEED`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The answer ends before the first of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{field}` is {value}; allowed is {allowed}")]
pub struct InvalidSampling {
    /// Name of the field of [`SamplingParams`].
    pub field: &'static str,
    /// Its value.
    pub value: f64,
    /// What it may be.
    pub allowed: &'static str,
}

impl SamplingParams {
    /// The likeliest tokens.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: Some(0.0),
            ..Self::default()
        }
    }

    /// The temperature, or its default.
    #[must_use]
    pub fn temperature(&self) -> f64 {
        self.temperature.unwrap_or(DEFAULT_TEMPERATURE)
    }

    /// The seed, or its default.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(DEFAULT_SEED)
    }

    /// Checks every range.
    ///
    /// # Errors
    /// Names the first field out of range. NaN is out of every range.
    pub fn validate(&self) -> Result<(), InvalidSampling> {
        let checks = [
            (
                "max_tokens",
                self.max_tokens.map(f64::from),
                1.0..=f64::MAX,
                "at least 1",
            ),
            (
                "temperature",
                self.temperature,
                0.0..=MAX_TEMPERATURE,
                "0 (greedy) to 100",
            ),
            ("top_p", self.top_p, 0.0..=1.0, "0 to 1 (off)"),
            ("min_p", self.min_p, 0.0..=1.0, "0 (off) to 1"),
        ];
        for (field, value, range, allowed) in checks {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                return Err(InvalidSampling {
                    field,
                    value,
                    allowed,
                });
            }
        }
        Ok(())
    }
}

/// What the answer must look like, written as OpenAI's `response_format`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema accepts. Key order in the schema is the order of generation.
    JsonSchema {
        /// The schema and its name.
        json_schema: NamedSchema,
    },
}

/// A schema and its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSchema {
    /// Its name, for messages.
    pub name: String,
    /// The JSON schema, an object.
    pub schema: Value,
    /// Whether the caller relies on it; here the schema always binds.
    pub strict: bool,
}

impl Format {
    /// JSON that this schema accepts.
    #[must_use]
    pub fn schema(name: impl Into<String>, schema: Value) -> Self {
        let name = name.into();
        Self::JsonSchema {
            json_schema: NamedSchema {
                name,
                schema,
                strict: true,
            },
        }
    }

    /// True if anything will do.
    #[must_use]
    pub fn is_text(&self) -> bool {
        *self == Self::Text
    }
}

/// How one answer is generated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationParams {
    /// How tokens are chosen and when to stop.
    pub sampling: SamplingParams,
    /// What the answer must look like.
    pub format: Format,
}

/// Why an answer ended. Nodes give the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model or a stop text ended it, or the constrained answer is complete.
    Stop,
    /// `max_tokens` or the context ended it: the answer is cut.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// A filter of the server cut the answer.
    ContentFilter,
    /// A reason that is not known here.
    #[serde(other)]
    Other,
}
