//! From the public API's words to the nodes' and back.

use tandem_api::{ApiError, ChatRequest, CompletionRequest, RouteChoice, Sampling};
use tandem_proto::{ErrorCode, Format, Generation, Message, NodeError, Prompt};
use tandem_sched::{Rejection, Route};

/// Temperature of a request that names none, as in the OpenAI reference.
const DEFAULT_TEMPERATURE: f64 = 1.0;
/// Seed of a request that names none. Fixed, so that the same request gives the same answer.
const DEFAULT_SEED: u64 = 0;
/// Fields of a request that a node may name in a refusal.
const FIELDS: [&str; 7] = [
    "max_tokens",
    "temperature",
    "top_p",
    "min_p",
    "messages",
    "prompt",
    "response_format",
];

/// The sampling of a request; what it leaves open gets the documented defaults.
pub(crate) fn generation(sampling: &Sampling, format: Format) -> Generation {
    // A node wants `top_p` above 0; the smallest one keeps just the likeliest token, like 0.
    let top_p = narrow(sampling.top_p.unwrap_or(1.0)).max(f32::MIN_POSITIVE);
    Generation {
        max_tokens: sampling.max_tokens,
        temperature: narrow(sampling.temperature.unwrap_or(DEFAULT_TEMPERATURE)),
        top_k: sampling.top_k.unwrap_or(0),
        top_p,
        min_p: narrow(sampling.min_p.unwrap_or(0.0)),
        seed: sampling.seed.unwrap_or(DEFAULT_SEED),
        stop: sampling.stop.clone(),
        format,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "sampling parameters are small numbers, checked before"
)]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// The conversation; `developer` is the newer name of `system`, which templates know.
pub(crate) fn chat_prompt(request: &ChatRequest) -> Prompt {
    let message = |m: &tandem_api::Message| {
        let role = match m.role {
            tandem_api::Role::Developer => "system",
            role => role.as_str(),
        };
        Message::new(role, m.content.clone())
    };
    Prompt::Chat(request.messages.iter().map(message).collect())
}

/// The text or tokens to continue.
pub(crate) fn completion_prompt(request: &CompletionRequest) -> Prompt {
    match &request.prompt {
        tandem_api::Prompt::Text(text) => Prompt::Text(text.clone()),
        tandem_api::Prompt::Tokens(tokens) => Prompt::Tokens(tokens.clone()),
    }
}

/// The shape of the answer.
pub(crate) fn format(format: &tandem_api::ResponseFormat) -> Format {
    match format {
        tandem_api::ResponseFormat::Text => Format::Text,
        tandem_api::ResponseFormat::JsonObject => Format::JsonObject,
        tandem_api::ResponseFormat::JsonSchema { schema, .. } => Format::JsonSchema(schema.clone()),
    }
}

/// Where the prefill may run.
pub(crate) const fn route(choice: RouteChoice) -> Route {
    match choice {
        RouteChoice::Auto => Route::Auto,
        RouteChoice::Remote => Route::Remote,
        RouteChoice::Local => Route::Local,
    }
}

/// Why generation ended.
pub(crate) const fn finish(reason: tandem_proto::FinishReason) -> tandem_api::FinishReason {
    match reason {
        tandem_proto::FinishReason::Stop => tandem_api::FinishReason::Stop,
        tandem_proto::FinishReason::Length => tandem_api::FinishReason::Length,
    }
}

/// The answer to a request that the scheduler rejects.
pub(crate) fn rejection(reason: &Rejection) -> ApiError {
    match reason {
        Rejection::UnknownModel { model } => ApiError::model_not_found(model),
        Rejection::QueueFull { .. } => ApiError::busy(reason.to_string()),
        Rejection::NoDecodeNode { .. } => ApiError::unavailable(reason.to_string()),
        Rejection::RetriesExhausted { .. } => ApiError::bad_gateway(reason.to_string()),
        Rejection::DuplicateRequest { .. } => ApiError::internal(reason.to_string()),
    }
}

/// The answer to a request that is at fault itself; `prompt` is the field that holds its prompt.
pub(crate) fn bad_request(error: &NodeError, prompt: &str) -> ApiError {
    let (param, code) = match error.code {
        ErrorCode::ContextLength => (Some(prompt), Some("context_length_exceeded")),
        ErrorCode::SchemaBudget => (Some("response_format"), Some("schema_budget")),
        _ => (named_field(&error.message), None),
    };
    ApiError::new(
        400,
        "invalid_request_error",
        param,
        code,
        error.message.clone(),
    )
}

/// The field that a message begins with, as in "`top_p` is 2".
fn named_field(message: &str) -> Option<&'static str> {
    let name = message.strip_prefix('`')?.split('`').next()?;
    FIELDS.into_iter().find(|f| *f == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_leaves_open_is_fixed() {
        let open = generation(&Sampling::default(), Format::Text);
        assert_eq!((open.temperature, open.seed), (1.0, 0));
        assert_eq!((open.top_k, open.top_p, open.min_p), (0, 1.0, 0.0));
        assert_eq!(open.max_tokens, None);
        let zero = Sampling {
            top_p: Some(0.0),
            ..Sampling::default()
        };
        assert!(generation(&zero, Format::Text).top_p > 0.0);
    }

    #[test]
    fn a_named_field_becomes_the_param() {
        for (message, param) in [
            ("`top_p` is 2, allowed above 0", Some("top_p")),
            ("`chunk` is 7", None),
            ("the `top_p`", None),
        ] {
            let error = NodeError::new(ErrorCode::InvalidRequest, message);
            let found = bad_request(&error, "messages").detail.param;
            assert_eq!(found.as_deref(), param, "{message}");
        }
    }
}
