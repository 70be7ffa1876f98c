//! Whether an answer has the shape that was asked for, and whether the server read the whole prompt.

use std::hash::{DefaultHasher, Hash, Hasher};

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use tandem_api::ApiError;
use tandem_proto::{Format, Prompt};

/// Bytes of a path into an answer that are shown.
const MAX_PATH: usize = 120;
/// Fewest words of a prompt for which it is checked that they were read.
const MIN_WORDS: usize = 64;

/// A kind of shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Object,
    Schema,
}

/// The shape of an answer.
pub(crate) enum Shape {
    /// Any JSON object.
    Object,
    /// What the schema accepts.
    Schema(Box<Validator>, Value),
}

impl Shape {
    /// That of a request; none for free text. Regular expressions are those that take linear time.
    pub(crate) fn of(format: &Format) -> Result<Option<Self>, ApiError> {
        let schema = match format {
            Format::Text => return Ok(None),
            Format::JsonObject => return Ok(Some(Self::Object)),
            Format::JsonSchema { json_schema } => &json_schema.schema,
        };
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        let validator = options.build(schema).map_err(|e| {
            let message = format!(
                "the schema cannot be used: {}",
                super::http::shown(&e.to_string())
            );
            ApiError::invalid("response_format", message)
        })?;
        Ok(Some(Self::Schema(Box::new(validator), schema.clone())))
    }

    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Object => Kind::Object,
            Self::Schema(..) => Kind::Schema,
        }
    }

    /// What to tell a model that is not bound to it.
    pub(crate) fn instruction(&self) -> String {
        match self {
            Self::Object => "Answer with one JSON object and nothing else.".to_owned(),
            Self::Schema(_, schema) => format!(
                "Answer with JSON and nothing else: no other text, no code fence. The JSON must fit this schema:\n{schema}"
            ),
        }
    }

    /// The JSON of an answer: all of it, what a code fence has, or the only object between words.
    ///
    /// # Errors
    /// Where it does not fit; nothing of the answer itself.
    pub(crate) fn check<'a>(&self, text: &'a str) -> Result<&'a str, String> {
        let text = text.trim();
        let whole = self.fits(text);
        let parts = [without_fence(text), only_fence(text), only_object(text)];
        let part = || {
            parts
                .into_iter()
                .flatten()
                .find(|part| self.fits(part).is_ok())
        };
        match whole {
            Ok(()) => Ok(text),
            Err(why) => part().ok_or(why),
        }
    }

    fn fits(&self, text: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| format!("it is no JSON ({:?} error)", e.classify()))?;
        match self {
            Self::Object if value.is_object() => Ok(()),
            Self::Object => Err("it is no JSON object".to_owned()),
            Self::Schema(validator, _) => validator.validate(&value).map_err(|error| {
                let at = error.schema_path().to_string();
                let at: String = at.chars().take(MAX_PATH).collect();
                format!("it does not fit the schema at `{at}`")
            }),
        }
    }

    /// A digest of it, which tells one from another.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Self::Schema(_, schema) = self {
            schema.to_string().hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// A text without the code fence around it.
fn without_fence(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("```")?.strip_suffix("```")?;
    Some(without_language(inner))
}

/// What stands in the only code fence of a text.
fn only_fence(text: &str) -> Option<&str> {
    let mut parts = text.split("```");
    let inside = parts.nth(1)?;
    let is_only = parts.next().is_some() && parts.next().is_none();
    is_only.then(|| without_language(inside))
}

fn without_language(inner: &str) -> &str {
    let body = inner.strip_prefix("json").or(inner.strip_prefix("JSON"));
    body.unwrap_or(inner).trim()
}

/// The only object of a text, from the first brace to the last one. What is between them is read as one value, so that of
/// two objects none is taken.
fn only_object(text: &str) -> Option<&str> {
    let (from, to) = (text.find('{')?, text.rfind('}')?);
    let object = text.get(from..=to)?;
    // Words alone may stand around it: it is no part of another value.
    let is_words = |part: &str| !part.contains(['[', ']', '"']);
    (is_words(&text[..from]) && is_words(&text[to + 1..])).then_some(object)
}

/// Fewest tokens that a prompt has: no tokenizer joins words that are apart, and half of them are left for those that do.
/// `None` for one of which that is not known.
pub(crate) fn fewest_tokens(prompt: &Prompt) -> Option<usize> {
    let words = match prompt {
        Prompt::Chat(messages) => messages.iter().map(|m| words(&m.content)).sum(),
        Prompt::Text(text) => words(text),
        Prompt::Tokens(tokens) => tokens.len() * 2,
    };
    (words >= MIN_WORDS).then_some(words / 2)
}

fn words(text: &str) -> usize {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts.filter(|part| !part.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_checked_and_never_repeated() {
        let schema =
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}});
        let shape = Shape::of(&Format::schema("s", schema)).unwrap().unwrap();
        for text in [
            "{\"a\": 1}",
            " \n{\"a\":1}\n",
            "```json\n{\"a\": 1}\n```",
            "```{\"a\": 1}```",
            "Here it is:\n\n```json\n{\"a\": 1}\n```\n\nLet me know.",
            "I say {\"a\": 1}, and nothing more.",
        ] {
            assert!(
                shape.check(text).is_ok_and(|t| t.starts_with("{\"a\"")),
                "{text}"
            );
        }
        for text in [
            "",
            "secret",
            "{\"a\": \"secret\"}",
            "{\"secret\": 1}",
            "[1]",
            "{\"a\": 1} or {\"a\": 2}, secret",
            "```\n{\"a\": \"secret\"}\n```\n```\n{}\n```",
            "the secret {\"a\":1",
            "[{\"a\": 1}]",
        ] {
            let why = shape.check(text).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
        let object = Shape::of(&Format::JsonObject).unwrap().unwrap();
        assert!(object.check("{}").is_ok() && object.check("[]").is_err());
        assert!(Shape::of(&Format::Text).unwrap().is_none());
    }

    #[test]
    fn schemas_that_would_take_for_ever_or_lead_elsewhere_are_refused() {
        for schema in [
            json!({"type": 3}),
            json!({"$ref": "http://192.0.2.1/schema.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"pattern": "(?=a)b"}),
        ] {
            let error = Shape::of(&Format::schema("s", schema.clone()));
            assert!(error.is_err_and(|e| e.status == 400), "{schema}");
        }
        // What backtracks elsewhere.
        let slow = json!({"pattern": "^(a+)+$"});
        let shape = Shape::of(&Format::schema("s", slow)).unwrap().unwrap();
        let text = format!("\"{}!\"", "a".repeat(50_000));
        assert!(shape.check(&text).is_err());
    }

    #[test]
    fn a_prompt_has_at_least_half_as_many_tokens_as_words() {
        let text = |n: usize| Prompt::Text("word ".repeat(n));
        assert_eq!(fewest_tokens(&text(10)), None);
        assert_eq!(fewest_tokens(&text(1000)), Some(500));
    }
}
