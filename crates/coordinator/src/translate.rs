//! From the public API's words to the nodes' and back.

use tandem_api::{ApiError, ChatRequest, CompletionRequest, RouteChoice};
use tandem_proto::{ErrorCode, Message, NodeError, Prompt};
use tandem_sched::{Rejection, Route};

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

/// The conversation; `developer` is the newer name of `system`, which templates know.
pub(crate) fn chat_prompt(request: &ChatRequest) -> Prompt {
    let message = |m: &tandem_api::Message| {
        let role = match m.role {
            tandem_api::Role::Developer => "system",
            role => role.as_str(),
        };
        Message {
            name: m.name.clone(),
            ..Message::new(role, m.content.clone())
        }
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

/// Where the prefill may run.
pub(crate) const fn route(choice: RouteChoice) -> Route {
    match choice {
        RouteChoice::Auto => Route::Auto,
        RouteChoice::Remote => Route::Remote,
        RouteChoice::Local => Route::Local,
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
