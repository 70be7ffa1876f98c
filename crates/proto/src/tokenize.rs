//! What a prompt is in tokens.

use serde::{Deserialize, Serialize};

use crate::generate::Prompt;

/// Asks a node what a prompt is in tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// Name of the model.
    pub model: String,
    /// The prompt; a chat is put into the model's template.
    pub prompt: Prompt,
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenized {
    /// The tokens, as a prefill would compute them.
    pub tokens: Vec<u32>,
    /// Most tokens of a prompt and its answer together on this node.
    pub context: u32,
}
