//! The extension under the key `tandem`: where a request may run, and how it ran.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::MAX_SALT_BYTES;
use crate::unknown::Unknown;
use serde::{Deserialize, Serialize};

/// Where the prefill of a request may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteChoice {
    /// The coordinator decides.
    #[default]
    Auto,
    /// Prefill on one node, decode on another, unless no node can prefill for another.
    Remote,
    /// Prefill and decode on the same node.
    Local,
}

/// `tandem` in a request. Unknown keys in it are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TandemOptions {
    /// Where the prefill may run.
    pub route: RouteChoice,
    /// Whether the answer carries the generated token ids.
    pub return_tokens: bool,
    /// KV of earlier requests is used only if they had the same salt; empty: those without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cache_salt: String,
    /// False: the chat does not go on, so the KV of this answer is not kept for a next turn.
    #[serde(skip_serializing_if = "bool::clone")]
    pub keep: bool,
    /// True: the answer has the same bits whatever else the nodes do, and takes longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reproducible: bool,
    /// True: what this server does not know or do is ignored, and the answer lists it. Unset: as the server has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lenient: Option<bool>,
}

impl Default for TandemOptions {
    fn default() -> Self {
        Self {
            route: RouteChoice::default(),
            return_tokens: false,
            cache_salt: String::new(),
            keep: true,
            reproducible: false,
            lenient: None,
        }
    }
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
        let cache_salt = inner.string("cache_salt")?.unwrap_or_default();
        check_salt(&cache_salt, "tandem.cache_salt")?;
        let keep = inner.boolean("keep")?.unwrap_or(true);
        let reproducible = inner.boolean("reproducible")?.unwrap_or(false);
        let lenient = inner.boolean("lenient")?;
        // Nobody else's client sets these, so one that is not known is a mistake.
        let known = [
            "route",
            "return_tokens",
            "cache_salt",
            "keep",
            "reproducible",
            "lenient",
        ];
        inner.finish(&known, &[], &mut Unknown::new(false))?;
        Ok(Self {
            route,
            return_tokens,
            cache_salt,
            keep,
            reproducible,
            lenient,
        })
    }

    /// vLLM has the salt beside the other fields.
    pub(crate) fn take_salt(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        if let Some(salt) = fields.string("cache_salt")? {
            if !self.cache_salt.is_empty() && self.cache_salt != salt {
                let message = "'cache_salt' and 'tandem.cache_salt' differ; give one of them";
                return Err(ApiError::invalid("cache_salt", message));
            }
            check_salt(&salt, "cache_salt")?;
            self.cache_salt = salt;
        }
        Ok(())
    }
}

fn check_salt(salt: &str, path: &str) -> Result<(), ApiError> {
    if salt.len() > MAX_SALT_BYTES {
        let message = format!("'{path}' is longer than {MAX_SALT_BYTES} bytes");
        return Err(ApiError::invalid(path, message));
    }
    Ok(())
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
    /// During which KV was on its way: sent, but not yet acknowledged.
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

/// What two nodes computed for the last token of the prompt, compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ParityInfo {
    /// Kullback-Leibler divergence over the likeliest tokens, in nats.
    pub kl: f64,
    /// Largest difference of a log-probability among them.
    pub max_difference: f64,
    /// Whether both find the same token likeliest.
    pub same_top: bool,
    /// Whether that is within the configured bound.
    pub holds: bool,
}

/// What the decode node would have taken for an answer alone, by the profile of its machine: calculated, not measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AloneInfo {
    /// The machine, by its name in profiles.
    pub machine: String,
    /// From leaving the queue to the last token, in milliseconds, if it had answered nothing else meanwhile.
    pub predicted_ms: f64,
    /// How many times as fast the answer was; below 1 it was slower.
    pub speed_up: f64,
}

/// A server that is no node of tandem, and what it did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// How it is spoken to: `openai`, `ollama` or `generate`.
    pub dialect: String,
    /// The model, by the name that the server has for it.
    pub model: String,
    /// What the server tells of the model beside its name, such as a digest; empty if it tells nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reported: String,
    /// True if that includes a digest of the model. Otherwise nobody knows whether it is the model of that name.
    #[serde(default)]
    pub verified: bool,
    /// Who put the messages into the form that the model knows: `server`, `template` or `plain text`.
    pub prompt: String,
    /// What was done about the shape of the answer: `enforced` by the server as far as it is known, or `instructed` and
    /// checked; absent for free text. Both are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Which path it took through a pair of other engines: `pd`, `local` because the prompt is short, or `fallback` because
    /// the one that prefills failed; absent for a single server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// `tandem` in an answer: which nodes served it, how long each phase took, what went wrong on the way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TandemInfo {
    /// Identifies the request in the logs.
    pub request_id: String,
    /// How it was served: `remote` or `local` by nodes, or by a `server`.
    pub mode: String,
    /// It ran alone on its nodes, and gets the same bits each time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reproducible: bool,
    /// Node that evaluated the prompt, or the server.
    pub prefill_node: String,
    /// Node that generated the answer, or the server.
    pub decode_node: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that no node computed for this request.
    pub cached_tokens: u32,
    /// Prompt tokens whose KV was on the decode node already, and was not sent.
    #[serde(default)]
    pub held_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Time per phase.
    pub phases_ms: PhasesMs,
    /// Bytes of KV that passed between nodes, decoded.
    pub handoff_bytes: u64,
    /// Bytes on the wire for them.
    #[serde(default)]
    pub wire_bytes: u64,
    /// The lossiest codec they travelled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec: Option<String>,
    /// Connections between the nodes that broke and were replaced.
    #[serde(default)]
    pub reconnects: u32,
    /// How far both nodes compute the same; absent if they were not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity: Option<ParityInfo>,
    /// What the decode node would have taken alone; absent without a profile of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<AloneInfo>,
    /// Which server answered, if it was no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerInfo>,
    /// Notes for a person, such as a fallback that was taken.
    #[serde(default)]
    pub events: Vec<String>,
    /// Fields of the request that were ignored, because it or the server permits that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Generated token ids, if the request asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
}
