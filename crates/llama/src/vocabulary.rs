//! The tokenizer of a model, through llama.cpp.

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use tandem_engine::{SpecialTokens, Token, Tokenizer};

/// The vocabulary of a loaded model.
#[derive(Debug)]
pub struct Vocabulary {
    model: Arc<LlamaModel>,
    special: SpecialTokens,
    chat_template: Option<String>,
    /// Texts of tokens that llama.cpp finds in any text, also where special tokens are disabled.
    marks: Vec<String>,
}

impl Vocabulary {
    /// The vocabulary of `model`.
    #[must_use]
    pub fn new(model: Arc<LlamaModel>, chat_template: Option<String>) -> Self {
        let vocab = model.vocab();
        let special = SpecialTokens {
            bos: Token::try_from(vocab.bos().0).ok(),
            eos: Token::try_from(vocab.eos().0).ok(),
            add_bos: vocab.should_add_bos(),
        };
        let marks = unconditional_marks(&model);
        Self {
            model,
            special,
            chat_template,
            marks,
        }
    }

    fn encode_piece(&self, text: &str, special: bool) -> Vec<Token> {
        if text.is_empty() {
            return Vec::new();
        }
        let tokens = self.model.vocab().tokenize(text.as_bytes(), false, special);
        tokens
            .into_iter()
            .filter_map(|t| Token::try_from(t.0).ok())
            .collect()
    }
}

/// Texts like `<|start|>` whose tokens are typed "user defined": llama.cpp splits text at them even
/// with special tokens disabled (gpt-oss: `<|start|>`, `<|message|>`, `<|channel|>`).
fn unconditional_marks(model: &LlamaModel) -> Vec<String> {
    let vocab = model.vocab();
    vocab
        .tokens()
        .filter(|t| vocab.attr(*t).contains(LlamaTokenAttr::UserDefined))
        .filter_map(|t| Some(vocab.text(t)?.to_str().ok()?.to_owned()))
        .filter(|text| text.len() > 4 && text.starts_with("<|") && text.ends_with("|>"))
        .collect()
}

/// Cuts a text after the first byte of every mark, so that no piece contains one.
fn cut_marks<'a>(text: &'a str, marks: &[String]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = marks
        .iter()
        .flat_map(|mark| text.match_indices(mark.as_str()).map(|(at, _)| at + 1))
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::new();
    let mut start = 0;
    for cut in cuts {
        pieces.push(&text[start..cut]);
        start = cut;
    }
    pieces.push(&text[start..]);
    pieces
}

/// llama.cpp's signed id of a token.
pub(crate) fn native(token: Token) -> LlamaToken {
    LlamaToken(i32::try_from(token).unwrap_or(-1))
}

impl Tokenizer for Vocabulary {
    fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        if special || self.marks.is_empty() {
            return self.encode_piece(text, special);
        }
        cut_marks(text, &self.marks)
            .into_iter()
            .flat_map(|piece| self.encode_piece(piece, false))
            .collect()
    }

    fn bytes(&self, token: Token) -> Vec<u8> {
        if token >= self.len() {
            return Vec::new();
        }
        self.model
            .vocab()
            .token_to_piece(native(token), false, None)
    }

    fn control_name(&self, token: Token) -> Option<String> {
        let vocab = self.model.vocab();
        if token >= self.len() || !vocab.is_control(native(token)) {
            return None;
        }
        Some(vocab.text(native(token))?.to_string_lossy().into_owned())
    }

    fn is_end(&self, token: Token) -> bool {
        token < self.len() && self.model.vocab().is_eog(native(token))
    }

    fn len(&self) -> u32 {
        u32::try_from(self.model.n_vocab()).unwrap_or(0)
    }

    fn special(&self) -> SpecialTokens {
        self.special.clone()
    }

    fn chat_template(&self) -> Option<String> {
        self.chat_template.clone()
    }
}
