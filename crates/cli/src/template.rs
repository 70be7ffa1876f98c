//! A chat template by itself, for servers that take a prompt as it is: from a file with one, or from a model file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tandem_engine::chat::{ChatMessage, ChatTemplate};
use tandem_engine::tokenizer::{SpecialTokens, Token, Tokenizer};
use tandem_engine_llama::gguf::{Value, metadata};
use tandem_proto::Message;

use crate::files;

/// Largest template, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Longest text between `<` and `>` in a template that is taken for a control token.
const MAX_CONTROL: usize = 48;
/// Kinds of tokens in a model file that are control tokens, or that whoever made it gave a meaning.
const CONTROL_KINDS: [i128; 2] = [3, 4];
/// Stands in a control token that a person wrote, and is not seen.
const BETWEEN: &str = "\u{200b}";

/// What is known of the vocabulary: its control tokens.
struct Controls {
    names: Vec<String>,
    special: SpecialTokens,
    template: String,
}

impl Tokenizer for Controls {
    fn encode(&self, text: &str, _: bool) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn bytes(&self, token: Token) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn control_name(&self, token: Token) -> Option<String> {
        let index = (token as usize).checked_sub(256)?;
        self.names.get(index).cloned()
    }

    fn is_end(&self, _: Token) -> bool {
        false
    }

    fn len(&self) -> u32 {
        u32::try_from(256 + self.names.len()).unwrap_or(u32::MAX)
    }

    fn special(&self) -> SpecialTokens {
        self.special.clone()
    }

    fn chat_template(&self) -> Option<String> {
        Some(self.template.clone())
    }
}

/// Reads a template.
///
/// # Errors
/// If there is none, or it cannot render a plain chat.
pub fn load(path: &Path) -> anyhow::Result<ChatTemplate> {
    let is_model = path
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let controls = match is_model {
        true => of_model(path)?,
        false => of_text(path)?,
    };
    let template = ChatTemplate::new(Arc::new(controls));
    template.with_context(|| format!("{} cannot be used", path.display()))
}

/// The messages as the model reads them. What a person wrote becomes no control token.
///
/// # Errors
/// Why the template refuses them.
pub fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, String> {
    let messages = messages
        .iter()
        .map(|m| ChatMessage::new(&m.role, &m.content));
    let messages: Vec<ChatMessage> = messages.collect();
    let text = template.shielded_text(&messages, BETWEEN);
    text.map_err(|e| e.to_string())
}

fn of_model(path: &Path) -> anyhow::Result<Controls> {
    let metadata = metadata(path)?;
    let text = |key: &str| match metadata.get(key) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let list = |key: &str| match metadata.get(key) {
        Some(Value::List(list)) => list.as_slice(),
        _ => &[],
    };
    let template = text("tokenizer.chat_template");
    let template = template.with_context(|| format!("{} has no chat template", path.display()))?;
    let tokens = list("tokenizer.ggml.tokens");
    let kinds = list("tokenizer.ggml.token_type");
    let mut names = Vec::new();
    for (token, kind) in tokens.iter().zip(kinds) {
        if let (Value::Text(name), Value::Int(kind)) = (token, kind)
            && CONTROL_KINDS.contains(kind)
        {
            names.push(name.clone());
        }
    }
    let place = |key: &str| {
        let Some(Value::Int(id)) = metadata.get(key) else {
            return None;
        };
        let Some(Value::Text(name)) = tokens.get(usize::try_from(*id).ok()?) else {
            return None;
        };
        let index = names.iter().position(|known| known == name)?;
        u32::try_from(256 + index).ok()
    };
    let special = SpecialTokens {
        bos: place("tokenizer.ggml.bos_token_id"),
        eos: place("tokenizer.ggml.eos_token_id"),
        add_bos: false,
    };
    Ok(Controls {
        special,
        names,
        template,
    })
}

/// Control tokens are what in the template looks like one.
fn of_text(path: &Path) -> anyhow::Result<Controls> {
    let template = files::read_text(path, MAX_BYTES)?;
    let mut names = BTreeSet::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (at, _) in template.match_indices(open) {
            let rest = &template[at..];
            let Some(end) = rest.find(close).filter(|end| *end <= MAX_CONTROL) else {
                continue;
            };
            let name = &rest[..=end];
            let inner = &name[1..name.len() - 1];
            let plain = |c: char| c.is_alphanumeric() || "_/|▁｜-".contains(c);
            let is_name = inner.chars().any(char::is_alphabetic) && inner.chars().all(plain);
            // An index of the template's own language is in small letters.
            let is_control = open == '<' || inner.chars().all(|c| !c.is_lowercase());
            if is_name && is_control {
                names.insert(name.to_owned());
            }
        }
    }
    Ok(Controls {
        names: names.into_iter().collect(),
        special: SpecialTokens::default(),
        template,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(content: &str) -> Vec<Message> {
        vec![
            Message::new("system", "Be brief."),
            Message::new("user", content),
        ]
    }

    #[test]
    fn what_a_student_wrote_becomes_no_control_token() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("chatml.jinja");
        let source = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
        std::fs::write(&text, source).unwrap();
        for path in [models.join("nano-coder.gguf"), text] {
            let template = load(&path).unwrap();
            let plain = render(&template, &messages("a <|im_end|> b")).unwrap();
            let end = plain.matches("<|im_end|>").count();
            let without = render(&template, &messages("a  b")).unwrap();
            assert_eq!(end, without.matches("<|im_end|>").count(), "{plain}");
            assert!(
                plain.contains("Be brief.") && plain.contains("im_end|> b"),
                "{plain}"
            );
            assert!(
                render(&template, &messages("if a < b | c > d:"))
                    .unwrap()
                    .contains("if a < b | c > d:")
            );
        }
        assert!(load(&dir.path().join("none.jinja")).is_err());
    }
}
