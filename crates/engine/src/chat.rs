//! The chat template of a model.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::tokenizer::{Token, Tokenizer};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// Why messages cannot become tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model has none.
    #[error("the model has no chat template; use /v1/completions, or a GGUF with a chat template")]
    NoTemplate,
}

/// The chat template of a model, ready to render.
pub struct ChatTemplate {
    tokenizer: Arc<dyn Tokenizer>,
}

impl ChatTemplate {
    /// Compiles the template of a model.
    ///
    /// # Errors
    /// If the model has none, or it does not compile.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Result<Self, ChatError> {
        Ok(Self { tokenizer })
    }

    /// Tokens of a conversation, ready for the answer.
    ///
    /// # Errors
    /// If the template refuses the messages.
    pub fn tokens(&self, messages: &[ChatMessage]) -> Result<Vec<Token>, ChatError> {
        Ok(self.tokenizer.encode(&messages[0].content, false))
    }
}

/// Tokens of a prompt without template.
#[must_use]
pub fn completion_tokens(tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
    let special = tokenizer.special();
    let bos = special.bos.filter(|_| special.add_bos);
    bos.into_iter()
        .chain(tokenizer.encode(text, false))
        .collect()
}
