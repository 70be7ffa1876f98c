//! Framing of server-sent events, as OpenAI streams use it: `data: <one line of JSON>`, blank line.

use crate::error::ApiError;
use serde::Serialize;

/// Ends every stream that did not fail.
pub const SSE_DONE: &str = "data: [DONE]\n\n";

/// One event. JSON text has no raw line breaks, so one `data:` line always holds it.
pub fn sse_event<T: Serialize>(value: &T) -> String {
    match serde_json::to_string(value) {
        Ok(json) => format!("data: {json}\n\n"),
        Err(e) => sse_error(&ApiError::internal(format!(
            "the answer could not be serialised: {e}"
        ))),
    }
}

/// The event that reports a failure after the stream has begun. The stream ends after it, without
/// [`SSE_DONE`]; official clients raise an error on it.
pub fn sse_error(error: &ApiError) -> String {
    let body = serde_json::to_string(&error.body());
    // A body of strings always serialises; the literal keeps the client informed all the same.
    let json = body.unwrap_or_else(|_| {
        r#"{"error":{"message":"internal error","type":"server_error"}}"#.to_owned()
    });
    format!("data: {json}\n\n")
}
