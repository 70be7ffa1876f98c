//! The table of paths, and every link.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::limits::MAX_FORM_BYTES;
use crate::{Shared, assets, pages, security};

/// Where the pages begin.
pub(crate) const HOME: &str = "/grading";

/// An assignment: its first work that needs a person.
pub(crate) fn assignment(id: i64) -> String {
    format!("{HOME}/a/{id}")
}

/// Takes back the last change in an assignment.
pub(crate) fn undo(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/undo")
}

/// A work under review, and where its forms go.
pub(crate) fn work(id: i64) -> String {
    format!("{HOME}/w/{id}")
}

/// What the models were sent.
pub(crate) fn prompt(work: i64) -> String {
    format!("{HOME}/w/{work}/prompt")
}

/// What was done to a work, and how its values were made.
pub(crate) fn record(work: i64) -> String {
    format!("{HOME}/w/{work}/record")
}

/// Hides or shows names.
pub(crate) const NAMES: &str = "/grading/names";

/// All pages, guarded.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(HOME, get(pages::home::show))
        .route("/grading/a/{id}", get(pages::review::first))
        .route("/grading/a/{id}/undo", post(pages::act::undo))
        .route(
            "/grading/w/{id}",
            get(pages::review::show).post(pages::act::act),
        )
        .route("/grading/w/{id}/prompt", get(pages::record::prompt))
        .route("/grading/w/{id}/record", get(pages::record::show))
        .route(NAMES, post(pages::home::names))
        .route("/grading/{*rest}", get(pages::home::nothing))
        .layer(from_fn_with_state(Arc::clone(&shared), security::let_in))
        .route("/grading/assets/{name}", get(assets::serve))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(axum::middleware::from_fn(security::headers))
        .with_state(shared)
}
