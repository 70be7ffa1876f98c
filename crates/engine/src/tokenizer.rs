//! Text to tokens and back.

/// A token id.
pub type Token = u32;

/// Ids of the tokens with a meaning of their own, where the model has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begin of sequence.
    pub bos: Option<Token>,
    /// End of sequence.
    pub eos: Option<Token>,
    /// True if a prompt without template starts with `bos`.
    pub add_bos: bool,
}

/// The tokenizer of a model, shared between threads.
pub trait Tokenizer: Send + Sync {
    /// Tokens of a text. With `special` false, the text of a control token (`<|im_end|>`) becomes
    /// ordinary tokens: use that for everything a person wrote. Never adds `bos`.
    fn encode(&self, text: &str, special: bool) -> Vec<Token>;

    /// The bytes of a token as they appear in the answer; empty for control tokens.
    fn bytes(&self, token: Token) -> Vec<u8>;

    /// The name of a control token, such as `<|im_end|>`; `None` for ordinary tokens.
    fn control_name(&self, token: Token) -> Option<String>;

    /// Every text that [`Self::encode`] with `special` may turn into a token with a meaning of its own.
    fn special_texts(&self) -> Vec<String> {
        (0..self.len())
            .filter_map(|token| self.control_name(token))
            .collect()
    }

    /// True if generation ends with this token.
    fn is_end(&self, token: Token) -> bool;

    /// Number of tokens; the length of a row of logits.
    fn len(&self) -> u32;

    /// True for a vocabulary without tokens, which no model has.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The special tokens.
    fn special(&self) -> SpecialTokens;

    /// The chat template (Jinja), if the model has one.
    fn chat_template(&self) -> Option<String>;
}
