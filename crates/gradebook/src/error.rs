//! What can go wrong, for the process and for a page.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::store::StoreError;
use crate::view;

/// The gradebook cannot be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum GradebookError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sample course that comes with tandem cannot be read.
    #[error("the sample course cannot be read: {problem}")]
    Sample {
        /// Why.
        problem: String,
    },
}

/// Why a page is not shown: what happened, and the one thing to do next.
#[derive(Debug)]
pub(crate) enum PageError {
    /// There is nothing at this address.
    NotFound,
    /// The browser has not been let in.
    NotLetIn,
    /// Only the teacher may do it.
    NotAllowed,
    /// The request comes from elsewhere.
    Foreign,
    /// The form cannot be read.
    Form(String),
    /// There is no model to ask.
    NoModels,
    /// The server of the models does not say which ones it has.
    NoAnswer,
    /// A run goes on already.
    Busy,
    /// The store failed; the log has why.
    Store,
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "a page cannot be shown");
        Self::Store
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let (status, title, text) = match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "There is nothing here",
                "It may have been handed in again, or the address is not whole.".to_owned(),
            ),
            Self::NotLetIn => (
                StatusCode::UNAUTHORIZED,
                "This browser was not let in yet",
                "Open the address that tandem printed when it started; it ends with a token."
                    .to_owned(),
            ),
            Self::NotAllowed => (
                StatusCode::FORBIDDEN,
                "Only the teacher may do this",
                "Ask the person who invited you.".to_owned(),
            ),
            Self::Foreign => (
                StatusCode::FORBIDDEN,
                "This was asked by another page",
                "Nothing was changed. Open the gradebook itself and do it there.".to_owned(),
            ),
            Self::Form(problem) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "This cannot be kept",
                problem,
            ),
            Self::NoModels => (
                StatusCode::SERVICE_UNAVAILABLE,
                "No model is loaded",
                "Start tandem with a model, and open this page again. What is kept can be reviewed meanwhile."
                    .to_owned(),
            ),
            Self::NoAnswer => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The models do not answer",
                "Nothing was started. Try again; if it stays so, look at what tandem printed.".to_owned(),
            ),
            Self::Busy => (
                StatusCode::CONFLICT,
                "Another run is going on",
                "Wait for its end, or stop it. It may be one of another tandem on this machine.".to_owned(),
            ),
            Self::Store => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The gradebook cannot be read or written",
                "What was saved before is still there. Look at what tandem printed, and try again."
                    .to_owned(),
            ),
        };
        view::page(status, &view::Problem { title, text })
    }
}
