//! The table of paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::limits::{MAX_FORM_BYTES, MAX_PASTED_BYTES, MAX_SHEET_BYTES, MAX_UPLOAD_BYTES};
use crate::paths::OLD_HOME;
use crate::{Shared, assets, pages, security, view};

/// All pages, guarded.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let home = shared.paths.home();
    let old = get(security::enter_from_old);
    Router::new()
        .nest(home, guarded(&shared))
        .route(OLD_HOME, old.clone())
        .route(&format!("{OLD_HOME}/{{*rest}}"), old)
        .layer(from_fn_with_state(Arc::clone(&shared), view::problem))
        .route(&format!("{OLD_HOME}/assets/{{name}}"), get(assets::serve))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn(security::headers))
        .with_state(shared)
}

/// The pages, for browsers that were let in.
fn guarded(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(pages::home::show))
        .route("/a/{id}", get(pages::review::first))
        .route("/a/{id}/end", get(pages::review::end))
        .route("/a/{id}/undo", post(pages::act::undo))
        .route("/w/{id}", get(pages::review::show).post(pages::act::act))
        .route("/w/{id}/blind", post(pages::agreement::end_blind))
        .route("/w/{id}/rewrite", post(pages::rewrite::write))
        .route("/w/{id}/bare", post(pages::rewrite::without_comments))
        .route("/w/{id}/picture/{digest}", get(pages::review::picture))
        .route("/w/{id}/file/{place}", get(pages::review::original))
        .route("/w/{id}/prompt", get(pages::record::prompt))
        .route("/w/{id}/record", get(pages::record::show))
        .route("/r/{id}", get(pages::run::show))
        .route("/r/{id}/events", get(pages::run::events))
        .route("/names", post(pages::home::names))
        .route("/{*rest}", get(pages::home::nothing))
        .merge(of_teachers())
        .layer(from_fn_with_state(Arc::clone(shared), security::let_in))
}

/// Those that ask models, and those about people.
fn of_teachers() -> Router<Arc<Shared>> {
    Router::new()
        .route("/a/{id}/run", get(pages::run::form).post(pages::run::start))
        .route(
            "/a/{id}/export",
            get(pages::export::show).post(pages::export::write),
        )
        .route(
            "/a/{id}/sheet",
            post(pages::export::keep_sheet).layer(DefaultBodyLimit::max(MAX_SHEET_BYTES)),
        )
        .route("/a/{id}/agreement", get(pages::agreement::show))
        .route("/a/{id}/anchors", post(pages::agreement::draw))
        .route(
            "/a/{id}/rubric",
            get(pages::rubric::form).post(pages::rubric::keep),
        )
        .route("/a/{id}/rubric/file", get(pages::rubric::file))
        .route("/a/{id}/rubric/read", post(pages::rubric::read))
        .route(
            "/a/{id}/delete",
            get(pages::erase::assignment).post(pages::erase::erase_assignment),
        )
        .route(
            "/w/{id}/delete",
            get(pages::erase::work).post(pages::erase::erase_work),
        )
        .route("/r/{id}/stop", post(pages::run::stop))
        .route("/r/{id}/stop-now", post(pages::run::stop_now))
        .route("/r/{id}/continue", post(pages::run::go_on))
        .route(
            "/try",
            get(pages::trial::form)
                .post(pages::trial::start)
                .layer(DefaultBodyLimit::max(MAX_PASTED_BYTES)),
        )
        .route("/try/{trial}", get(pages::trial::show))
        .route("/try/{trial}/stop", post(pages::trial::stop))
        .route("/try/{trial}/events", get(pages::trial::events))
        .route("/me", post(pages::people::name))
        .route(
            "/new",
            get(pages::upload::form)
                .post(pages::upload::take)
                .layer(DefaultBodyLimit::max(MAX_UPLOAD_BYTES)),
        )
        .route(
            "/new/{id}",
            get(pages::intake::show).post(pages::intake::take),
        )
        .route("/link", post(pages::people::link))
        .route("/browsers/{id}/out", post(pages::people::let_out))
        .route("/people", post(pages::people::invite))
        .route("/people/{id}/courses", post(pages::people::see))
        .route("/people/{id}/dismiss", post(pages::people::dismiss))
        .route("/people/{id}/forget", post(pages::people::forget))
        .route("/a/{id}/shares", post(pages::people::divide))
        .route_layer(from_fn(security::teachers))
}
