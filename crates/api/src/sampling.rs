//! What both kinds of request share: sampling, stopping, streaming.

use crate::error::ApiError;
use crate::fields::{Fields, whole, wrong_type};
use crate::limits;
use crate::refused;
use crate::unknown::Unknown;
use serde::Serialize;
use serde_json::Value;
use tandem_proto::SamplingParams;

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StreamOptions {
    /// Send one more chunk, without choices, that carries the usage.
    pub include_usage: bool,
}

impl StreamOptions {
    /// Whether these are the defaults, which need not be sent.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn parse(fields: &mut Fields, unknown: &mut Unknown) -> Result<Self, ApiError> {
        let Some(value) = fields.take("stream_options") else {
            return Ok(Self::default());
        };
        let mut inner = Fields::of(value, "stream_options")?;
        let include_usage = inner.boolean("include_usage")?.unwrap_or(false);
        refused::check_stream_options(&mut inner, unknown)?;
        // Padding of events, which no client needs.
        inner.finish(&["include_usage"], &["include_obfuscation"], unknown)?;
        Ok(Self { include_usage })
    }
}

/// Takes the sampling parameters out of a request. `max_completion_tokens` and llama-server's `n_predict` are read as
/// `max_tokens`, -1 as no limit of it and of `top_k`, and a negative seed as its two's complement.
pub(crate) fn sampling(fields: &mut Fields) -> Result<SamplingParams, ApiError> {
    Ok(SamplingParams {
        max_tokens: max_tokens(fields)?,
        temperature: fields.number("temperature", 0.0, limits::MAX_TEMPERATURE)?,
        top_p: fields.number("top_p", 0.0, 1.0)?,
        top_k: fields
            .integer("top_k", -1, limits::MAX_TOP_K)?
            .map(|k| u32::try_from(k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0, 1.0)?,
        seed: seed(fields)?,
        stop: stop(fields)?,
    })
}

fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut found: Option<(&str, i64)> = None;
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let n = fields.integer(name, -1, limits::MAX_GENERATED_TOKENS)?;
        // For llama-server and LM Studio, -1 is no limit.
        let Some(n) = n.filter(|n| *n != -1) else {
            continue;
        };
        match found {
            Some((other, m)) if m != n => {
                return Err(ApiError::invalid(
                    name,
                    format!("'{other}' is {m} and '{name}' is {n}; give one of them"),
                ));
            }
            _ if n == 0 => {
                let message = format!("'{name}' must be at least 1, or -1 for no limit");
                return Err(ApiError::invalid(name, message));
            }
            _ => found = Some((name, n)),
        }
    }
    Ok(found.and_then(|(_, n)| u32::try_from(n).ok()))
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take("seed") else {
        return Ok(None);
    };
    match (
        value.as_u64(),
        value.as_i64().or_else(|| whole(value.as_f64()?)),
    ) {
        (Some(n), _) => Ok(Some(n)),
        (None, Some(n)) => Ok(Some(n.cast_unsigned())),
        (None, None) => Err(wrong_type("seed", "an integer of at most 64 bits", &value)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(s)) => vec![Value::String(s)],
        Some(Value::Array(items)) => items,
        Some(other) => {
            return Err(wrong_type(
                "stop",
                "a string or an array of strings",
                &other,
            ));
        }
    };
    if items.len() > limits::MAX_STOP_STRINGS {
        return Err(ApiError::invalid(
            "stop",
            format!(
                "'stop' may hold at most {} strings",
                limits::MAX_STOP_STRINGS
            ),
        ));
    }
    items
        .into_iter()
        .enumerate()
        .map(|(i, item)| stop_string(i, item))
        .collect()
}

fn stop_string(index: usize, item: Value) -> Result<String, ApiError> {
    let path = format!("stop[{index}]");
    let Value::String(text) = item else {
        return Err(wrong_type(&path, "a string", &item));
    };
    if text.is_empty() || text.len() > limits::MAX_STOP_BYTES {
        let limit = limits::MAX_STOP_BYTES;
        return Err(ApiError::invalid(
            &path,
            format!("'{path}' must have 1 to {limit} bytes"),
        ));
    }
    Ok(text)
}
