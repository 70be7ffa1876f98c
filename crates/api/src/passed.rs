//! Requests that another server answers: what is known here is read, and all of it goes on, but for what would steer that
//! server or whatever is behind it.

use crate::chat::{ChatRequest, chat};
use crate::completion::{CompletionRequest, completion};
use crate::error::ApiError;
use crate::fields::{Fields, parse_body};
use crate::refused;
use crate::tandem::TandemOptions;
use crate::unknown::Unknown;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields of a request that go on as they came. Model, stream, shape of the answer and length are not among them: who
/// asks sets them.
pub type Passed = Map<String, Value>;

/// Fields with which a client could choose machines, transfers or places of other engines.
const STEERING: &[&str] = &[
    "kv_transfer_params",
    "remote_decoder",
    "remote_prefiller",
    "remote_kv_source",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "nvext",
    "rid",
    "request_id",
    "id_slot",
    "priority",
    "cache_hit_threshold",
    // vLLM takes parameters of transfers from here, too.
    "vllm_xargs",
    "extra_args",
];
/// What the names of others begin with.
const STEERING_PREFIXES: &[&str] = &["bootstrap_", "x-", "x_override"];

/// What is asked anew for the other server.
const OWN: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "cache_salt",
];

/// What gives the shape of an answer, in the words of several servers. Where it is understood here it is asked anew, else it
/// goes on as it came.
const SHAPES: &[&str] = &[
    "response_format",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "format",
];

#[derive(Deserialize)]
struct Model {
    model: Option<String>,
}

/// The model that a body names, if it can be read.
pub fn model_of(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<Model>(body).ok()?.model
}

/// Reads the body of a chat request for another server.
///
/// # Errors
/// As [`crate::parse_chat`], but for fields that are not known here.
pub fn pass_chat(body: &[u8]) -> Result<(ChatRequest, Passed), ApiError> {
    let (fields, tandem, mut passed, removed) = split(body)?;
    let mut request = chat(fields, tandem, Unknown::passing())?;
    if passed
        .get("response_format")
        .is_some_and(|f| f["type"] == "text")
    {
        passed.shift_remove("response_format");
    }
    if !request.response_format.is_text() {
        for name in SHAPES {
            passed.shift_remove(*name);
        }
    }
    request.ignored = removed;
    Ok((request, passed))
}

/// Reads the body of a completion request for another server.
///
/// # Errors
/// As [`pass_chat`].
pub fn pass_completion(body: &[u8]) -> Result<(CompletionRequest, Passed), ApiError> {
    let (fields, tandem, passed, removed) = split(body)?;
    let mut request = completion(fields, tandem, Unknown::passing())?;
    request.ignored = removed;
    Ok((request, passed))
}

type Split = (Fields, TandemOptions, Passed, Vec<String>);

fn split(body: &[u8]) -> Result<Split, ApiError> {
    let mut fields = parse_body(body)?;
    let tandem = TandemOptions::parse(&mut fields)?;
    refused::check_answerable(&fields)?;
    let steers = |name: &String| {
        let lower = name.to_ascii_lowercase();
        STEERING.contains(&lower.as_str())
            || STEERING_PREFIXES
                .iter()
                .any(|prefix| lower.starts_with(prefix))
    };
    let names = fields.rest().keys().filter(|name| steers(name));
    let removed: Vec<String> = names.cloned().collect();
    for name in &removed {
        fields.take(name);
    }
    let mut passed = fields.rest().clone();
    for name in OWN {
        passed.shift_remove(*name);
    }
    Ok((fields, tandem, passed, removed))
}
