//! Fields that would change the answer and that this server cannot honour.
//!
//! Ignoring them would give a wrong answer without a word, so any value but the neutral one is
//! refused. Fields in [`INERT`] change no answer. All others are not known.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::unknown::Unknown;
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
    /// This number or less.
    AtMost(f64),
    /// The boolean `false`.
    False,
    /// The boolean `true`.
    True,
    /// An array with exactly this value.
    Only(&'static str),
}

/// Fields that change no answer of this server: bookkeeping, hints, and settings of samplers that are off.
const INERT: &[&str] = &[
    // OpenAI.
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "prediction",
    // llama-server, Ollama, vLLM.
    "id_slot",
    "timings_per_token",
    "return_progress",
    "keep_alive",
    "guided_decoding_backend",
    "request_id",
    "priority",
    // What these set is off, or refused, by another field.
    "repeat_last_n",
    "mirostat_eta",
    "mirostat_tau",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
    "dynatemp_exponent",
];

const BOTH: &[(&str, Neutral)] = &[
    ("n", Neutral::Number(1.0)),
    ("logit_bias", Neutral::Empty),
    ("presence_penalty", Neutral::Number(0.0)),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("repeat_penalty", Neutral::Number(1.0)),
    ("length_penalty", Neutral::Number(1.0)),
    ("typical_p", Neutral::Number(1.0)),
    ("typ_p", Neutral::Number(1.0)),
    ("tfs_z", Neutral::Number(1.0)),
    ("top_a", Neutral::Number(0.0)),
    ("top_n_sigma", Neutral::AtMost(0.0)),
    ("mirostat", Neutral::Number(0.0)),
    ("dry_multiplier", Neutral::Number(0.0)),
    ("xtc_probability", Neutral::Number(0.0)),
    ("dynatemp_range", Neutral::Number(0.0)),
    ("min_keep", Neutral::Number(0.0)),
    ("n_probs", Neutral::Number(0.0)),
    ("use_beam_search", Neutral::False),
    ("ignore_eos", Neutral::False),
    ("min_tokens", Neutral::Number(0.0)),
    ("stop_token_ids", Neutral::Empty),
    ("bad_words", Neutral::Empty),
    ("include_stop_str_in_output", Neutral::False),
    ("skip_special_tokens", Neutral::True),
    ("spaces_between_special_tokens", Neutral::True),
    // vllm-router adds these to each request.
    ("no_stop_trim", Neutral::False),
    ("return_hidden_states", Neutral::False),
    // What is kept of earlier requests depends on the configuration and on the salt.
    ("cache_prompt", Neutral::True),
    ("n_keep", Neutral::Number(0.0)),
    ("n_discard", Neutral::Number(0.0)),
    ("lora", Neutral::Empty),
    ("backend_sampling", Neutral::False),
    ("post_sampling_probs", Neutral::False),
    ("grammar", Neutral::Is("")),
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
    ("add_generation_prompt", Neutral::True),
    ("continue_final_message", Neutral::False),
    ("add_special_tokens", Neutral::False),
    ("echo", Neutral::False),
    ("modalities", Neutral::Only("text")),
    // Thoughts stay in the text.
    ("reasoning_format", Neutral::Is("none")),
    ("reasoning_in_content", Neutral::False),
    // vllm-router adds these, too, whoever asks.
    ("separate_reasoning", Neutral::True),
    ("stream_reasoning", Neutral::True),
    ("include_reasoning", Neutral::True),
];

const COMPLETION: &[(&str, Neutral)] = &[
    ("logprobs", Neutral::Never),
    ("best_of", Neutral::Number(1.0)),
    ("echo", Neutral::False),
    ("suffix", Neutral::Is("")),
    ("response_format", Neutral::Never),
    ("add_special_tokens", Neutral::True),
];

/// Of a message.
const MESSAGE: &[(&str, Neutral)] = &[
    ("tool_calls", Neutral::Empty),
    ("function_call", Neutral::Never),
    ("audio", Neutral::Never),
    ("annotations", Neutral::Empty),
    ("reasoning_content", Neutral::Is("")),
    ("reasoning", Neutral::Is("")),
];

/// Of `stream_options`.
const STREAM_OPTIONS: &[(&str, Neutral)] = &[("continuous_usage_stats", Neutral::False)];

/// Of vLLM's `structured_outputs`.
const STRUCTURED_OUTPUTS: &[(&str, Neutral)] = &[
    ("disable_any_whitespace", Neutral::False),
    ("disable_additional_properties", Neutral::False),
];

/// Fields of a message that change no answer: openai-python puts `parsed` there, what `content` says.
pub(crate) const INERT_OF_MESSAGE: &[&str] = &["parsed", "cache_control"];

/// What both kinds of request may say, for those who wrote nearly that.
const KNOWN: &[&str] = &[
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "tandem",
];

/// What the answer of another server cannot bring through this one.
const UNANSWERED: &[(&str, Neutral)] = &[
    ("n", Neutral::Number(1.0)),
    ("best_of", Neutral::Number(1.0)),
    ("logprobs", Neutral::False),
    ("top_logprobs", Neutral::Number(0.0)),
    ("n_probs", Neutral::Number(0.0)),
    ("echo", Neutral::False),
    ("audio", Neutral::Never),
    ("modalities", Neutral::Only("text")),
    ("functions", Neutral::Empty),
    ("function_call", Neutral::Is("none")),
];

/// Looks for fields of a request to another server that ask for something that its answer could not bring here.
pub(crate) fn check_answerable(fields: &Fields) -> Result<(), ApiError> {
    for (name, neutral) in UNANSWERED {
        if fields
            .get(name)
            .is_some_and(|value| !neutral.accepts(value))
        {
            let message = format!("'{name}' is not supported here{}", neutral.in_words());
            return Err(ApiError::invalid(name, format!("{message}; leave it out")));
        }
    }
    Ok(())
}

/// True for a field of a chat or a completion that changes no answer, at least with this value.
pub fn changes_nothing(name: &str, value: &Value) -> bool {
    let lists = [BOTH, CHAT, COMPLETION].into_iter().flatten();
    let mut known = lists.filter(|(known, _)| *known == name);
    value.is_null() || INERT.contains(&name) || known.any(|(_, neutral)| neutral.accepts(value))
}

/// Looks at what is left of a request, which has fields of its own beside those that both kinds have.
pub(crate) fn finish(fields: Fields, own: &[&str], unknown: &mut Unknown) -> Result<(), ApiError> {
    fields.finish(&[own, KNOWN].concat(), INERT, unknown)
}

/// Takes unsupported fields out of a chat request.
pub(crate) fn check_chat(fields: &mut Fields, unknown: &mut Unknown) -> Result<(), ApiError> {
    check(fields, BOTH, unknown)?;
    check(fields, CHAT, unknown)
}

/// Takes unsupported fields out of a completion request.
pub(crate) fn check_completion(fields: &mut Fields, unknown: &mut Unknown) -> Result<(), ApiError> {
    check(fields, BOTH, unknown)?;
    check(fields, COMPLETION, unknown)
}

/// Takes unsupported fields out of a message.
pub(crate) fn check_message(fields: &mut Fields, unknown: &mut Unknown) -> Result<(), ApiError> {
    check(fields, MESSAGE, unknown)
}

/// Takes unsupported fields out of the options of a stream.
pub(crate) fn check_stream_options(
    fields: &mut Fields,
    unknown: &mut Unknown,
) -> Result<(), ApiError> {
    check(fields, STREAM_OPTIONS, unknown)
}

/// Takes unsupported fields out of `structured_outputs`.
pub(crate) fn check_structured_outputs(
    fields: &mut Fields,
    unknown: &mut Unknown,
) -> Result<(), ApiError> {
    check(fields, STRUCTURED_OUTPUTS, unknown)
}

fn check(
    fields: &mut Fields,
    list: &[(&str, Neutral)],
    unknown: &mut Unknown,
) -> Result<(), ApiError> {
    for (name, neutral) in list {
        if fields.take(name).is_some_and(|v| !neutral.accepts(&v)) {
            let path = fields.path_of(name);
            let which = neutral.in_words();
            unknown.refuses(&path, || format!("'{path}' is not supported here{which}"))?;
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
            Self::AtMost(x) => value.as_f64().is_some_and(|value| value <= *x),
            Self::False => value.as_bool() == Some(false),
            Self::True => value.as_bool() == Some(true),
            Self::Only(word) => *value == json!([word]),
        }
    }

    /// What it may be, as the end of a sentence.
    fn in_words(&self) -> String {
        match self {
            Self::Never => String::new(),
            Self::Empty => ", unless empty".to_owned(),
            Self::Is(word) => format!(", unless it is \"{word}\""),
            Self::Number(x) => format!(", unless it is {x}"),
            Self::AtMost(x) => format!(", unless it is {x} or less"),
            Self::False => ", unless it is false".to_owned(),
            Self::True => ", unless it is true".to_owned(),
            Self::Only(word) => format!(", unless it is [\"{word}\"]"),
        }
    }
}
