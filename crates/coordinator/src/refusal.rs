//! An error as an answer.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tandem_api::ApiError;

use crate::limits::{RETRY_BUSY_S, RETRY_UNAVAILABLE_S};

/// An error as an answer.
pub(crate) struct Refusal(pub(crate) ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = match self.0.status {
            429 => Some(RETRY_BUSY_S),
            503 => Some(RETRY_UNAVAILABLE_S),
            _ => None,
        };
        let mut response = (status, Json(self.0.body())).into_response();
        if let Some(seconds) = retry {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
