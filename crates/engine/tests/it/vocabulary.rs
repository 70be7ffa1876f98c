//! A tokenizer whose control tokens and chat template each test chooses.

use tandem_engine::{SpecialTokens, Token, Tokenizer};

/// Bytes 0 to 255, then some words, then control tokens.
#[derive(Clone, Default)]
pub struct Vocabulary {
    pub words: Vec<&'static str>,
    pub control: Vec<&'static str>,
    pub ends: Vec<&'static str>,
    pub bos: Option<&'static str>,
    pub add_bos: bool,
    pub template: Option<String>,
}

impl Vocabulary {
    pub fn id(&self, name: &str) -> Token {
        let found = self.control.iter().position(|control| *control == name);
        (256 + self.words.len() + found.expect("a control token")) as Token
    }

    /// Text of tokens, with the names of control tokens.
    pub fn show(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&t| {
                self.control_name(t)
                    .map_or_else(|| self.bytes(t), String::into_bytes)
            })
            .collect();
        String::from_utf8(bytes).expect("text")
    }

    pub fn control_tokens(&self, tokens: &[Token]) -> Vec<String> {
        tokens
            .iter()
            .filter_map(|&t| self.control_name(t))
            .collect()
    }
}

impl Tokenizer for Vocabulary {
    fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        let mut out = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&first, after)) = rest.split_first() {
            let control = self
                .control
                .iter()
                .filter(|name| special && rest.starts_with(name.as_bytes()))
                .max_by_key(|name| name.len());
            if let Some(name) = control {
                out.push(self.id(name));
                rest = &rest[name.len()..];
            } else {
                out.push(Token::from(first));
                rest = after;
            }
        }
        out
    }

    fn bytes(&self, token: Token) -> Vec<u8> {
        match (u8::try_from(token), token.checked_sub(256)) {
            (Ok(byte), _) => vec![byte],
            (_, Some(n)) => self
                .words
                .get(n as usize)
                .map_or(Vec::new(), |word| word.as_bytes().to_vec()),
            _ => Vec::new(),
        }
    }

    fn control_name(&self, token: Token) -> Option<String> {
        let n = (token as usize).checked_sub(256 + self.words.len())?;
        self.control.get(n).map(|name| (*name).to_owned())
    }

    fn is_end(&self, token: Token) -> bool {
        self.ends.iter().any(|end| self.id(end) == token)
    }

    fn len(&self) -> u32 {
        (256 + self.words.len() + self.control.len()) as u32
    }

    fn special(&self) -> SpecialTokens {
        SpecialTokens {
            bos: self.bos.map(|name| self.id(name)),
            eos: self.ends.first().map(|name| self.id(name)),
            add_bos: self.add_bos,
        }
    }

    fn chat_template(&self) -> Option<String> {
        self.template.clone()
    }
}
