//! The table of paths, and every link.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::limits::{MAX_FORM_BYTES, MAX_PASTED_BYTES, MAX_UPLOAD_BYTES};
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

/// Has a model write its feedback once more.
pub(crate) fn rewrite(work: i64) -> String {
    format!("{HOME}/w/{work}/rewrite")
}

/// Has a work assessed without its comments.
pub(crate) fn bare(work: i64) -> String {
    format!("{HOME}/w/{work}/bare")
}

/// What the models were sent.
pub(crate) fn prompt(work: i64) -> String {
    format!("{HOME}/w/{work}/prompt")
}

/// A picture in a work.
pub(crate) fn picture(work: i64, digest: &str) -> String {
    format!("{HOME}/w/{work}/picture/{digest}")
}

/// What was done to a work, and how its values were made.
pub(crate) fn record(work: i64) -> String {
    format!("{HOME}/w/{work}/record")
}

/// One submission, graded live.
pub(crate) fn trial(id: u64) -> String {
    format!("{HOME}/try/{id}")
}

/// What comes of it.
pub(crate) fn trial_events(id: u64) -> String {
    format!("{HOME}/try/{id}/events")
}

/// Ends it.
pub(crate) fn stop_trial(id: u64) -> String {
    format!("{HOME}/try/{id}/stop")
}

/// What would be graded of an assignment, and where runs are started.
pub(crate) fn runs(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/run")
}

/// A run.
pub(crate) fn run(id: i64) -> String {
    format!("{HOME}/r/{id}")
}

/// What changes of it.
pub(crate) fn run_events(id: i64) -> String {
    format!("{HOME}/r/{id}/events")
}

/// Tells it to stop.
pub(crate) fn stop_run(id: i64) -> String {
    format!("{HOME}/r/{id}/stop")
}

/// Goes on with it.
pub(crate) fn continue_run(id: i64) -> String {
    format!("{HOME}/r/{id}/continue")
}

/// Hides or shows names.
pub(crate) const NAMES: &str = "/grading/names";

/// Tells one's name.
pub(crate) const ME: &str = "/grading/me";

/// Invites somebody.
pub(crate) const PEOPLE: &str = "/grading/people";

/// Lets somebody in no more.
pub(crate) fn dismiss(person: i64) -> String {
    format!("{PEOPLE}/{person}/dismiss")
}

/// Divides the works of an assignment.
pub(crate) fn shares(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/shares")
}

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
