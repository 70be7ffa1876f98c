//! Fields that would change the answer and that this server cannot honour.
//!
//! Ignoring them would give a wrong answer without a word, so any value but the neutral one is
//! refused. Unknown fields that are not in this list (`user`, `metadata`, `store`, …) are accepted.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Value, json};

/// Which values of an unsupported field change nothing.
enum Neutral {
    /// Only null or absent.
    Never,
    /// An empty array or object.
    Empty,
    /// Exactly this value.
    Is(&'static str),
    /// This number.
    Number(f64),
    /// The boolean `false`.
    False,
}

const BOTH: &[(&str, Neutral)] = &[
    ("n", Neutral::Number(1.0)),
    ("logit_bias", Neutral::Empty),
    ("presence_penalty", Neutral::Number(0.0)),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("repeat_penalty", Neutral::Number(1.0)),
    ("ignore_eos", Neutral::False),
    ("min_tokens", Neutral::Number(0.0)),
    ("stop_token_ids", Neutral::Empty),
    ("grammar", Neutral::Never),
    ("guided_json", Neutral::Never),
    ("guided_regex", Neutral::Never),
    ("guided_choice", Neutral::Never),
    ("guided_grammar", Neutral::Never),
];

const CHAT: &[(&str, Neutral)] = &[
    ("tools", Neutral::Empty),
    ("tool_choice", Neutral::Is("none")),
    ("functions", Neutral::Empty),
    ("function_call", Neutral::Is("none")),
    ("logprobs", Neutral::False),
    ("top_logprobs", Neutral::Number(0.0)),
    ("audio", Neutral::Never),
    ("web_search_options", Neutral::Never),
    ("reasoning_effort", Neutral::Never),
    ("verbosity", Neutral::Is("medium")),
    ("chat_template", Neutral::Never),
    ("chat_template_kwargs", Neutral::Empty),
];

const COMPLETION: &[(&str, Neutral)] = &[
    ("logprobs", Neutral::Never),
    ("best_of", Neutral::Number(1.0)),
    ("echo", Neutral::False),
    ("suffix", Neutral::Is("")),
    ("response_format", Neutral::Never),
];

/// Refuses unsupported fields of a chat request.
pub(crate) fn check_chat(fields: &Fields) -> Result<(), ApiError> {
    check(fields, BOTH)?;
    check(fields, CHAT)?;
    match fields.get("modalities") {
        None => Ok(()),
        Some(value) if *value == json!(["text"]) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "modalities",
            "'modalities' may only be [\"text\"]",
        )),
    }
}

/// Refuses unsupported fields of a completion request.
pub(crate) fn check_completion(fields: &Fields) -> Result<(), ApiError> {
    check(fields, BOTH)?;
    check(fields, COMPLETION)
}

fn check(fields: &Fields, list: &[(&str, Neutral)]) -> Result<(), ApiError> {
    for (name, neutral) in list {
        if fields
            .get(name)
            .is_some_and(|value| !neutral.accepts(value))
        {
            let mend = neutral.mend();
            return Err(ApiError::invalid(
                name,
                format!("'{name}' is not supported here; {mend}"),
            ));
        }
    }
    Ok(())
}

impl Neutral {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::Empty => {
                value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(|o| o.is_empty())
            }
            Self::Is(word) => value.as_str() == Some(word),
            Self::Number(x) => value.as_f64() == Some(*x),
            Self::False => value.as_bool() == Some(false),
        }
    }

    fn mend(&self) -> String {
        match self {
            Self::Never => "leave it out".to_owned(),
            Self::Empty => "leave it out or empty".to_owned(),
            Self::Is(word) => format!("leave it out or set it to \"{word}\""),
            Self::Number(x) => format!("leave it out or set it to {x}"),
            Self::False => "leave it out or set it to false".to_owned(),
        }
    }
}
