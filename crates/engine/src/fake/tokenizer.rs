//! The tokenizer of the fake: one token per byte and three control tokens.

use crate::tokenizer::{SpecialTokens, Token, Tokenizer};

/// `<|endoftext|>`: begin of sequence, and an end token too, as in many ChatML models.
pub const FAKE_BOS: Token = 256;
/// `<|im_start|>`.
pub const FAKE_IM_START: Token = 257;
/// `<|im_end|>`: the end token.
pub const FAKE_EOS: Token = 258;

const CONTROL: [(Token, &str); 3] = [
    (FAKE_BOS, "<|endoftext|>"),
    (FAKE_IM_START, "<|im_start|>"),
    (FAKE_EOS, "<|im_end|>"),
];

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// True for tokens that are printable ASCII.
pub fn is_printable(token: Token) -> bool {
    (32..127).contains(&token)
}

/// Tokens 0 to 255 are bytes, then come the control tokens; the chat template is ChatML.
#[derive(Debug, Clone, Copy, Default)]
pub struct FakeTokenizer;

impl Tokenizer for FakeTokenizer {
    fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(&byte) = rest.as_bytes().first() {
            let control = CONTROL
                .iter()
                .find(|(_, name)| special && rest.starts_with(name));
            if let Some((token, name)) = control {
                out.push(*token);
                rest = &rest[name.len()..];
                continue;
            }
            let width = rest.chars().next().map_or(1, char::len_utf8);
            out.push(Token::from(byte));
            out.extend(rest.as_bytes()[1..width].iter().map(|&b| Token::from(b)));
            rest = &rest[width..];
        }
        out
    }

    fn bytes(&self, token: Token) -> Vec<u8> {
        u8::try_from(token).map_or(Vec::new(), |byte| vec![byte])
    }

    fn control_name(&self, token: Token) -> Option<String> {
        let found = CONTROL.iter().find(|(id, _)| *id == token);
        found.map(|(_, name)| (*name).to_owned())
    }

    fn is_end(&self, token: Token) -> bool {
        token == FAKE_EOS || token == FAKE_BOS
    }

    fn len(&self) -> u32 {
        259
    }

    fn special(&self) -> SpecialTokens {
        SpecialTokens {
            bos: Some(FAKE_BOS),
            eos: Some(FAKE_EOS),
            add_bos: false,
        }
    }

    fn chat_template(&self) -> Option<String> {
        Some(CHATML.to_owned())
    }
}
