//! The table of paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::limits::{MAX_FORM_BYTES, MAX_PASTED_BYTES, MAX_UPLOAD_BYTES};
use crate::paths::{HOME, ME, NAMES, PEOPLE};
use crate::{Shared, assets, pages, security};

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
        .route("/grading/w/{id}/rewrite", post(pages::rewrite::write))
        .route(
            "/grading/w/{id}/bare",
            post(pages::rewrite::without_comments),
        )
        .route(
            "/grading/w/{id}/picture/{digest}",
            get(pages::review::picture),
        )
        .route("/grading/w/{id}/prompt", get(pages::record::prompt))
        .route("/grading/w/{id}/record", get(pages::record::show))
        .route("/grading/r/{id}", get(pages::run::show))
        .route("/grading/r/{id}/events", get(pages::run::events))
        .route(NAMES, post(pages::home::names))
        .route("/grading/{*rest}", get(pages::home::nothing))
        .merge(of_teachers())
        .layer(from_fn_with_state(Arc::clone(&shared), security::let_in))
        .route("/grading/assets/{name}", get(assets::serve))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn(security::headers))
        .with_state(shared)
}

/// Those that ask models, and those about people.
fn of_teachers() -> Router<Arc<Shared>> {
    Router::new()
        .route(
            "/grading/a/{id}/run",
            get(pages::run::form).post(pages::run::start),
        )
        .route("/grading/r/{id}/stop", post(pages::run::stop))
        .route("/grading/r/{id}/continue", post(pages::run::go_on))
        .route(
            "/grading/try",
            get(pages::trial::form)
                .post(pages::trial::start)
                .layer(DefaultBodyLimit::max(MAX_PASTED_BYTES)),
        )
        .route("/grading/try/{trial}", get(pages::trial::show))
        .route("/grading/try/{trial}/stop", post(pages::trial::stop))
        .route("/grading/try/{trial}/events", get(pages::trial::events))
        .route(ME, post(pages::people::name))
        .route(
            "/grading/new",
            get(pages::upload::form)
                .post(pages::upload::take)
                .layer(DefaultBodyLimit::max(MAX_UPLOAD_BYTES)),
        )
        .route(PEOPLE, post(pages::people::invite))
        .route("/grading/people/{id}/dismiss", post(pages::people::dismiss))
        .route("/grading/a/{id}/shares", post(pages::people::divide))
        .route_layer(from_fn(security::teachers))
}
