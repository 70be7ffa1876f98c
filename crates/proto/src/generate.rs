//! A request to a decode node, and what it tells while it works.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use tandem_handoff::codec::Codec;
use tandem_handoff::receipt::Parity;

use crate::generation::{FinishReason, GenerationParams};
use crate::limits::{MAX_GENERATED_TOKENS, MAX_REQUEST_ID};
use crate::status::{ErrorCode, NodeError};
use crate::terms::HandoffTerms;

/// One message of a chat.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// `system`, `user` or `assistant`; the model's template decides what it accepts.
    pub role: String,
    /// What was written. Nothing in it becomes a control token.
    pub content: String,
    /// Which participant of that role wrote it: for templates that have a place for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tokens that a node generated it as, if that is known: used as far as they give this content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
}

impl Message {
    /// A message whose tokens are those of its content.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            name: None,
            tokens: Vec::new(),
        }
    }
}

/// What people write is private: it does not get into logs by way of a debug format.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} bytes)", self.content.len())
    }
}

/// What to continue.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// A chat, put into the model's template.
    Chat(Vec<Message>),
    /// Plain text, tokenised with special tokens disabled.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

impl std::fmt::Debug for Prompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chat(messages) => f.debug_tuple("Chat").field(messages).finish(),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Tokens(tokens) => write!(f, "Tokens({})", tokens.len()),
        }
    }
}

/// Who prefills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillMode {
    /// The decode node itself.
    Local,
    /// Another node, which will use the ticket.
    Remote,
}

/// Body of `POST /node/v1/generate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    /// Unique id; letters, digits, `-` and `_`.
    pub request: String,
    /// Name of the model.
    pub model: String,
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub generation: GenerationParams,
    /// Who prefills.
    pub prefill: PrefillMode,
    /// The only machine that may use the ticket: its [`crate::NodeStatus::identity`]. Needed where
    /// nodes have identities and another node prefills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_peer: Option<String>,
    /// If no more than this part of the prompt's tokens, in percent, is missing here, this node computes it itself. If
    /// more is, it gives a ticket where another node is to prefill (always with 0), and refuses with
    /// [`crate::ErrorCode::Lacks`] where it is to prefill itself (never with 100).
    #[serde(default)]
    pub alone_percent: u8,
    /// Tokens per chunk of the prefill, also of a local one, so that batch shapes are equal.
    pub chunk: u32,
    /// How a handoff is made, and which KV of earlier requests may be used.
    #[serde(default)]
    pub terms: HandoffTerms,
}

/// Permission for one handoff. Single use; expires with the request, or when the node that it is from has
/// waited for [`crate::limits::HANDOFF_SILENCE`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// The secret, hex.
    pub secret: String,
    /// Id of the handoff.
    pub handoff: u64,
    /// Where that node takes KV in; `None`: on the address in the coordinator's configuration, because it does
    /// so on each of its own, or on one that only means something on a link.
    pub ip: Option<IpAddr>,
    /// TCP port for it.
    pub port: u16,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Ticket {{ handoff: {}, port: {}, .. }}",
            self.handoff, self.port
        )
    }
}

/// How the prompt's KV came to be, told when it is complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillSummary {
    /// Tokens whose KV came from the prefill node.
    pub remote_tokens: u32,
    /// Tokens whose KV was computed here.
    pub local_tokens: u32,
    /// Time spent computing here, in milliseconds.
    pub local_prefill_ms: f64,
    /// Time spent putting received KV into the cache, in milliseconds.
    pub apply_ms: f64,
    /// Tokens whose KV was on this node already.
    pub cached_tokens: u32,
    /// Bytes of KV rows received and put into the cache.
    pub handoff_bytes: u64,
    /// Bytes on the wire for them, with headers.
    pub wire_bytes: u64,
    /// The lossiest codec in which rows came, now or in an earlier handoff whose pages this one began with;
    /// `None` where nothing came, and all that was there was exact.
    pub codec: Option<Codec>,
    /// Connections of the handoff that broke and were replaced.
    pub reconnects: u32,
    /// Why the node prefilled (a part) itself though another node should have.
    pub fallback: Option<String>,
}

/// A comparison of both ends of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityReport {
    /// The figures.
    pub parity: Parity,
    /// False if they are beyond the bound.
    pub holds: bool,
}

/// One line of the answer to `POST /node/v1/generate`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum GenerateEvent {
    /// First: the prompt is tokenised and a sequence is reserved.
    Opened {
        /// Number of tokens of the prompt.
        prompt_tokens: u32,
        /// The tokens, if another node is to prefill them.
        tokens: Option<Vec<u32>>,
        /// The permission for that node; `None` if there is nothing to prefill.
        ticket: Option<Ticket>,
        /// Time spent on template and tokenizer, in milliseconds.
        tokenize_ms: f64,
        /// Text of the last few tokens of a chat: a template may have begun the answer, such as with `<think>`. Empty for
        /// other prompts.
        prompt_end: String,
    },
    /// KV of all prompt tokens but the last is here.
    Prefilled(PrefillSummary),
    /// A token. Its text may be empty while a character or stop text is incomplete.
    Token {
        /// Its id.
        id: u32,
        /// Text that is now certain.
        text: String,
    },
    /// Last: the answer is complete.
    Done {
        /// Why.
        finish_reason: FinishReason,
        /// Number of generated tokens.
        generated_tokens: u32,
        /// From the first token to the last, in milliseconds.
        decode_ms: f64,
        /// How far both ends of the handoff compute the same; absent if they were not compared.
        parity: Option<ParityReport>,
    },
    /// Last: the request failed.
    Failed(NodeError),
    /// Nothing new, but the node is alive.
    Beat,
}

impl std::fmt::Debug for GenerateEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Opened { prompt_tokens, .. } => write!(f, "Opened({prompt_tokens} tokens)"),
            Self::Prefilled(summary) => f.debug_tuple("Prefilled").field(summary).finish(),
            Self::Token { .. } => f.write_str("Token"),
            Self::Done {
                finish_reason,
                generated_tokens,
                parity,
                ..
            } => f
                .debug_struct("Done")
                .field("finish_reason", finish_reason)
                .field("generated_tokens", generated_tokens)
                .field("parity", parity)
                .finish_non_exhaustive(),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
            Self::Beat => f.write_str("Beat"),
        }
    }
}

impl GenerateRequest {
    /// Checks ids and ranges.
    ///
    /// # Errors
    /// Names the field and what is allowed.
    pub fn validate(&self) -> Result<(), NodeError> {
        let fail = |message: String| Err(NodeError::new(ErrorCode::InvalidRequest, message));
        check_request_id(&self.request)?;
        let sampling = &self.generation.sampling;
        if let Err(error) = sampling.validate() {
            return fail(error.to_string());
        }
        if let Some(n) = sampling.max_tokens.filter(|n| *n > MAX_GENERATED_TOKENS) {
            return fail(format!(
                "`max_tokens` is {n}, allowed 1..={MAX_GENERATED_TOKENS}"
            ));
        }
        if self.alone_percent > 100 {
            return fail(format!(
                "`alone_percent` is {}, allowed 0..=100",
                self.alone_percent
            ));
        }
        if self.chunk == 0 || self.chunk > tandem_handoff::limits::MAX_CHUNK_TOKENS {
            return fail(format!(
                "`chunk` is {}, allowed 1..={}",
                self.chunk,
                tandem_handoff::limits::MAX_CHUNK_TOKENS
            ));
        }
        Ok(())
    }
}

/// Checks a request id.
///
/// # Errors
/// If it is empty, too long, or has other characters than letters, digits, `-` and `_`.
pub fn check_request_id(id: &str) -> Result<(), NodeError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if id.is_empty() || id.len() > MAX_REQUEST_ID || !id.bytes().all(plain) {
        return Err(NodeError::new(
            ErrorCode::InvalidRequest,
            format!("`request` must be 1 to {MAX_REQUEST_ID} letters, digits, `-` or `_`"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_formats_tell_nothing_of_what_people_write() {
        let text = || "private".to_owned();
        let ticket = Ticket {
            secret: text(),
            handoff: 1,
            ip: None,
            port: 2,
        };
        let message = Message::new("user", text());
        let prompts = [
            Prompt::Chat(vec![message]),
            Prompt::Text(text()),
            Prompt::Tokens(vec![4321]),
        ];
        let events = [
            GenerateEvent::Token {
                id: 4321,
                text: text(),
            },
            GenerateEvent::Opened {
                prompt_tokens: 1,
                tokens: Some(vec![4321]),
                ticket: Some(ticket),
                tokenize_ms: 0.0,
                prompt_end: text(),
            },
        ];
        let told = format!("{prompts:?} {events:?}");
        assert!(
            !told.contains("private") && !told.contains("4321"),
            "{told}"
        );
    }
}
