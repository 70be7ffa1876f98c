//! OpenAI-shaped errors.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An error that a request is answered with: the HTTP status and what goes into the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status: 400, 403, 404, 413, 415, 429, 500, 502 or 503.
    pub status: u16,
    /// What the body says.
    pub detail: ErrorDetail,
}

/// The inner object of an error body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What is wrong and how to fix it; never holds prompt text.
    pub message: String,
    /// Class, such as `invalid_request_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request field at fault, as a path (`messages[0].content`).
    pub param: Option<String>,
    /// Machine-readable reason, such as `model_not_found`.
    pub code: Option<String>,
}

/// `{"error": {...}}`, the whole body of an error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// Code of [`ApiError::other_shape`].
pub const OTHER_SHAPE: &str = "other_shape";

impl ApiError {
    /// An error from its parts, for statuses that no constructor below covers.
    pub fn new(
        status: u16,
        kind: &str,
        param: Option<&str>,
        code: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        let detail = ErrorDetail {
            message: message.into(),
            kind: kind.to_owned(),
            param: param.map(str::to_owned),
            code: code.map(str::to_owned),
        };
        Self { status, detail }
    }

    /// 400: the value of one field cannot be served.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(400, INVALID, Some(param), None, message)
    }

    /// 400: the body is not a JSON object.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(400, INVALID, None, Some("invalid_json"), message)
    }

    /// 400: prompt and requested output do not fit into the context. All counts in tokens.
    pub fn context_length(param: &str, prompt: usize, max_output: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens and max_tokens is {max_output}, but the context holds {context}; shorten the \
             prompt or lower max_tokens"
        );
        Self::new(
            400,
            INVALID,
            Some(param),
            Some("context_length_exceeded"),
            message,
        )
    }

    /// 404: no such model.
    pub fn model_not_found(model: &str) -> Self {
        let shown: String = model.chars().take(64).collect();
        let message =
            format!("the model '{shown}' does not exist here; GET /v1/models lists those that do");
        Self::new(
            404,
            INVALID,
            Some("model"),
            Some("model_not_found"),
            message,
        )
    }

    /// 413: the body is longer than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request body is longer than {limit} bytes");
        Self::new(413, INVALID, None, Some("request_too_large"), message)
    }

    /// 429: a queue is full; the same request may be sent again later.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(429, "rate_limit_error", None, Some("queue_full"), message)
    }

    /// 500: a fault of this server.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, SERVER, None, None, message)
    }

    /// 502: a node gave an answer that cannot be used, or was lost on the way.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(502, SERVER, None, Some("node_failed"), message)
    }

    /// 502: a server's answers had another shape than the request asked for, as often as it was asked; it will not be
    /// otherwise when the request is sent again.
    pub fn other_shape(message: impl Into<String>) -> Self {
        Self::new(502, SERVER, None, Some(OTHER_SHAPE), message)
    }

    /// 503: no node can serve this now; the same request may be sent again later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, SERVER, None, Some("no_node"), message)
    }

    /// 503: this server is stopping; the same request may be sent again later, to another one or when it is back.
    pub fn stopping() -> Self {
        let message = "the coordinator is stopping";
        Self::new(503, SERVER, None, Some("stopping"), message)
    }

    /// Whether the same request may succeed when it is sent again.
    pub fn is_retryable(&self) -> bool {
        self.status == 429 || self.status >= 500
    }

    /// The body to send.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: self.detail.clone(),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.detail.message)?;
        match &self.detail.param {
            Some(param) => write!(f, " (field '{param}')"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApiError {}
