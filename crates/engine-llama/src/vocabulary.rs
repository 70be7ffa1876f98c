//! The tokenizer of a model, through llama.cpp.

use std::collections::HashSet;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
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
    marks: HashSet<String>,
    /// Finds texts of special tokens.
    specials: Option<AhoCorasick>,
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
        let texts = special_texts(&model)
            .into_iter()
            .chain(marks.iter().cloned());
        let specials = AhoCorasick::new(texts.filter(|text| !text.is_empty())).ok();
        Self {
            specials,
            model,
            special,
            chat_template,
            marks,
        }
    }

    fn encode_piece(&self, text: &str, special: bool) -> Vec<Token> {
        let specials = self.specials.as_ref().filter(|_| special);
        let pieces = cut_runs(text, specials)
            .into_iter()
            .filter(|p| !p.is_empty());
        pieces
            .flat_map(|p| self.model.vocab().tokenize(p.as_bytes(), false, special))
            .filter_map(|t| Token::try_from(t.0).ok())
            .collect()
    }
}

/// Most characters between two places where every pre-tokenizer cuts: before a space that stands
/// between letters or digits. Longer stretches are cut here. Some pre-tokenizers of llama.cpp
/// (`gpt-4o` of gpt-oss) use `std::regex`, which recurses once per character of a match: a line of
/// 8,000 letters overflowed a stack of 2 MiB and ended the process.
pub const MAX_RUN: usize = 1000;

/// Texts of tokens typed "user defined" that read like marks: llama.cpp splits text at them even with
/// special tokens disabled (gpt-oss: `<|start|>`, `<|message|>`, `<|channel|>`; Qwen3: `<think>`,
/// `<tool_call>`).
fn unconditional_marks(model: &LlamaModel) -> HashSet<String> {
    let vocab = model.vocab();
    vocab
        .tokens()
        .filter(|t| vocab.attr(*t).contains(LlamaTokenAttr::UserDefined))
        .filter_map(|t| Some(vocab.text(t)?.to_str().ok()?.to_owned()))
        .filter(|text| opening(text) && closing(text).is_some_and(|end| end == text.len()))
        .collect()
}

fn opening(text: &str) -> bool {
    text.starts_with(['<', '['])
}

/// Where the bracket that opens a text closes, exclusive.
fn closing(text: &str) -> Option<usize> {
    let close = if text.starts_with('<') { '>' } else { ']' };
    text.find(close).map(|at| at + 1)
}

/// Cuts a text after the first byte of every mark, so that no piece contains one.
fn cut_marks<'a>(text: &'a str, marks: &HashSet<String>) -> Vec<&'a str> {
    let longest = marks.iter().map(String::len).max().unwrap_or(0);
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(['<', '[']) {
        let mut end = (at + longest).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let candidate = &text[at..end];
        if closing(candidate).is_some_and(|end| marks.contains(&candidate[..end])) {
            pieces.push(&text[start..=at]);
            start = at + 1;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Texts of control tokens.
fn special_texts(model: &LlamaModel) -> Vec<String> {
    let vocab = model.vocab();
    let special = LlamaTokenAttr::Control | LlamaTokenAttr::Unknown;
    let tokens = vocab
        .tokens()
        .filter(|t| vocab.attr(*t).intersects(special));
    let texts = tokens.filter_map(|t| Some(vocab.text(t)?.to_str().ok()?.to_owned()));
    texts.collect()
}

/// Cuts a text so that no match of a pre-tokenizer is longer than [`MAX_RUN`], and a special token stays whole.
fn cut_runs<'a>(text: &'a str, specials: Option<&AhoCorasick>) -> Vec<&'a str> {
    // Ranges that must not be cut, in order; most texts have no run that long.
    let mut whole = Vec::new();
    if text.len() > MAX_RUN
        && let Some(specials) = specials
    {
        whole.extend(
            specials
                .find_overlapping_iter(text)
                .map(|found| found.range()),
        );
        whole.sort_by_key(|range| range.start);
    }
    let mut whole = whole.into_iter().peekable();
    let mut inside = 0;
    let mut pieces = Vec::new();
    let (mut start, mut run, mut previous) = (0, 0, ' ');
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let next = characters.peek().map_or(' ', |(_, next)| *next);
        run += 1;
        while let Some(range) = whole.next_if(|range| range.start < at) {
            inside = inside.max(range.end);
        }
        if c == ' ' && previous.is_alphanumeric() && next.is_alphanumeric() {
            run = 0;
        } else if run > MAX_RUN && at >= inside {
            pieces.push(&text[start..at]);
            (start, run) = (at, 1);
        }
        previous = c;
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

    fn special_texts(&self) -> Vec<String> {
        let texts = special_texts(&self.model).into_iter();
        texts.chain(self.marks.iter().cloned()).collect()
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
