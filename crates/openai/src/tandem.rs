//! The extension under the key `tandem`: where a request may run, and how it ran.

use crate::error::ApiError;
use crate::fields::Fields;
use serde::{Deserialize, Serialize};

/// Where the prefill of a request may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteChoice {
    /// The coordinator decides.
    #[default]
    Auto,
    /// Prefill on one node, decode on another.
    Remote,
    /// Prefill and decode on the same node.
    Local,
}

/// `tandem` in a request. Unknown keys in it are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TandemOptions {
    /// Where the prefill may run.
    pub route: RouteChoice,
    /// Whether the answer carries the generated token ids.
    pub return_tokens: bool,
}

impl TandemOptions {
    /// Whether these are the defaults, which need not be sent.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn parse(fields: &mut Fields) -> Result<Self, ApiError> {
        let Some(value) = fields.take("tandem") else {
            return Ok(Self::default());
        };
        let mut inner = Fields::of(value, "tandem")?;
        let route = match inner.string("route")?.as_deref() {
            None | Some("auto") => RouteChoice::Auto,
            Some("remote") => RouteChoice::Remote,
            Some("local") => RouteChoice::Local,
            Some(_) => {
                return Err(ApiError::invalid(
                    "tandem.route",
                    "'tandem.route' must be \"auto\", \"remote\" or \"local\"",
                ));
            }
        };
        let return_tokens = inner.boolean("return_tokens")?.unwrap_or(false);
        inner.no_more()?;
        Ok(Self {
            route,
            return_tokens,
        })
    }
}

/// Milliseconds spent in each phase of a request. Phases overlap; they do not add up to the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PhasesMs {
    /// Waiting before any node started.
    pub queue: f64,
    /// Chat template and tokenizer.
    pub tokenize: f64,
    /// Evaluating the prompt, on the prefill node or, as far as it fell back, on the decode node.
    pub prefill: f64,
    /// During which KV was on its way: sent, but not yet acknowledged as applied.
    pub transfer: f64,
    /// The part of the transfer after the last prompt token was computed.
    pub exposed_transfer: f64,
    /// Writing received KV into the decode node's cache.
    pub apply: f64,
    /// From the request's arrival to the first generated token.
    pub first_token: f64,
    /// From the first generated token to the last.
    pub decode: f64,
}

/// `tandem` in an answer: which nodes served it, how long each phase took, what went wrong on the way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TandemInfo {
    /// Identifies the request in the logs.
    pub request_id: String,
    /// How it was served: `remote` or `local`.
    pub mode: String,
    /// Node that evaluated the prompt.
    pub prefill_node: String,
    /// Node that generated the answer.
    pub decode_node: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were already cached.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Time per phase.
    pub phases_ms: PhasesMs,
    /// Bytes of KV that passed between nodes.
    pub handoff_bytes: u64,
    /// Notes for a person, such as a fallback that was taken.
    #[serde(default)]
    pub events: Vec<String>,
    /// Generated token ids, if the request asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
}
