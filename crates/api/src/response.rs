//! Answers: whole, in chunks, and the list of models.

use crate::tandem::TandemInfo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_proto::FinishReason;

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    #[serde(default)]
    pub completion_tokens: u32,
    /// Sum of both.
    pub total_tokens: u32,
    /// Where the prompt tokens came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Part of [`Usage`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens that were already cached.
    #[serde(default)]
    pub cached_tokens: u32,
}

impl Usage {
    /// The counts of one request, with their sum.
    pub fn new(prompt_tokens: u32, cached_tokens: u32, completion_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: Some(PromptTokensDetails { cached_tokens }),
        }
    }
}

/// A whole chat answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatCompletion {
    /// Identifies the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub created: u64,
    /// The model that answered.
    #[serde(default)]
    pub model: String,
    /// One choice.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem: Option<TandemInfo>,
}

/// The choice of a whole chat answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// Always 0.
    pub index: u32,
    /// What the model said.
    pub message: ChatMessage,
    /// Always null; clients expect the key.
    #[serde(default, deserialize_with = "ignored")]
    pub logprobs: (),
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
}

/// The message of a whole chat answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: String,
    /// The text.
    pub content: Option<String>,
    /// What the model thought before, where that comes apart from the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that the model calls, as the server gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
}

impl ChatMessage {
    /// A message of the model with this text.
    pub fn new(text: String) -> Self {
        Self {
            role: "assistant".to_owned(),
            content: Some(text),
            reasoning_content: None,
            tool_calls: None,
        }
    }
}

impl ChatCompletion {
    /// The object for one finished answer.
    pub fn new(
        id: &str,
        created: u64,
        model: &str,
        text: String,
        finish: FinishReason,
        usage: Usage,
    ) -> Self {
        let message = ChatMessage::new(text);
        Self {
            id: id.to_owned(),
            object: "chat.completion".to_owned(),
            created,
            model: model.to_owned(),
            choices: vec![ChatChoice {
                index: 0,
                message,
                logprobs: (),
                finish_reason: Some(finish),
            }],
            usage: Some(usage),
            tandem: None,
        }
    }
}

/// One chunk of a streamed chat answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatCompletionChunk {
    /// Identifies the answer; the same in all its chunks.
    #[serde(default)]
    pub id: String,
    /// `chat.completion.chunk`.
    #[serde(default)]
    pub object: String,
    /// Seconds since 1970; the same in all chunks.
    #[serde(default)]
    pub created: u64,
    /// The model that answers.
    #[serde(default)]
    pub model: String,
    /// One choice, or none in the chunk that carries the usage.
    #[serde(default)]
    pub choices: Vec<ChatChunkChoice>,
    /// Token counts, in the last chunk if the request asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Extension, in the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem: Option<TandemInfo>,
}

/// The choice of a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatChunkChoice {
    /// Always 0.
    #[serde(default)]
    pub index: u32,
    /// What came since the chunk before.
    #[serde(default)]
    pub delta: Delta,
    /// Always null; clients expect the key.
    #[serde(default, deserialize_with = "ignored")]
    pub logprobs: (),
    /// Why it ended; null until it has.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
}

/// What one chunk adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text that came since the chunk before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Thoughts that came since the chunk before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Parts of calls of tools that came since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
}

impl ChatCompletionChunk {
    /// A chunk with one choice.
    pub fn new(
        id: &str,
        created: u64,
        model: &str,
        delta: Delta,
        finish: Option<FinishReason>,
    ) -> Self {
        let choice = ChatChunkChoice {
            index: 0,
            delta,
            logprobs: (),
            finish_reason: finish,
        };
        Self {
            choices: vec![choice],
            ..Self::empty(id, created, model)
        }
    }

    /// The first chunk, which names the role.
    pub fn first(id: &str, created: u64, model: &str) -> Self {
        let delta = Delta {
            role: Some("assistant".to_owned()),
            content: Some(String::new()),
            ..Delta::default()
        };
        Self::new(id, created, model, delta, None)
    }

    /// A chunk of text.
    pub fn text(id: &str, created: u64, model: &str, text: String) -> Self {
        Self::new(
            id,
            created,
            model,
            Delta {
                content: Some(text),
                ..Delta::default()
            },
            None,
        )
    }

    /// A chunk without choices, to carry usage or the extension.
    pub fn empty(id: &str, created: u64, model: &str) -> Self {
        Self {
            id: id.to_owned(),
            object: "chat.completion.chunk".to_owned(),
            created,
            model: model.to_owned(),
            choices: Vec::new(),
            usage: None,
            tandem: None,
        }
    }
}

/// An answer to a completion request; streamed chunks have the same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Identifies the answer.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub created: u64,
    /// The model that answered.
    #[serde(default)]
    pub model: String,
    /// One choice, or none in the chunk that carries the usage.
    pub choices: Vec<CompletionChoice>,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Extension, in the whole answer and in the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tandem: Option<TandemInfo>,
}

/// The choice of a [`Completion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// Always 0.
    pub index: u32,
    /// The text, or what came since the chunk before.
    pub text: String,
    /// Always null; clients expect the key.
    #[serde(default, deserialize_with = "ignored")]
    pub logprobs: (),
    /// Why it ended; null in a chunk until it has.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
}

impl Completion {
    /// A whole answer, or one chunk of it (`finish` is `None` until the last).
    pub fn new(
        id: &str,
        created: u64,
        model: &str,
        text: String,
        finish: Option<FinishReason>,
    ) -> Self {
        let choice = CompletionChoice {
            index: 0,
            text,
            logprobs: (),
            finish_reason: finish,
        };
        Self {
            choices: vec![choice],
            ..Self::empty(id, created, model)
        }
    }

    /// A chunk without choices, to carry usage or the extension.
    pub fn empty(id: &str, created: u64, model: &str) -> Self {
        Self {
            id: id.to_owned(),
            object: "text_completion".to_owned(),
            created,
            model: model.to_owned(),
            choices: Vec::new(),
            usage: None,
            tandem: None,
        }
    }
}

/// `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
}

/// One model in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// The name to ask for.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub created: u64,
    /// Who offers it.
    #[serde(default)]
    pub owned_by: String,
    /// Extension, as in vLLM: tokens of a prompt and its answer together, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
}

impl ModelList {
    /// The list of these names; `created` is in seconds since 1970.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>, created: u64) -> Self {
        let model = |name: &str| Model {
            id: name.to_owned(),
            object: "model".to_owned(),
            created,
            owned_by: "tandem".to_owned(),
            max_model_len: None,
        };
        Self {
            object: "list".to_owned(),
            data: names.into_iter().map(model).collect(),
        }
    }
}

/// Other servers may send log probabilities; they are not used here.
fn ignored<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| ())
}
