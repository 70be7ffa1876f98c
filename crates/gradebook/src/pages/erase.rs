//! Deleting: a page says what would go, and a button deletes it.

use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::{Id, blocking, fields, names_hidden};
use crate::erase::Scope;
use crate::error::{GradebookError, PageError};
use crate::store::StoreError;
use crate::view::{self, ErasePage, EraseView};
use crate::{Gradebook, Shared};

/// What is to go.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Wanted {
    what: String,
    seen: String,
}

fn scope(what: &str, id: i64) -> Option<Scope> {
    match what {
        "submission" => Some(Scope::Submission(id)),
        "student" => Some(Scope::Student(id)),
        "assignment" => Some(Scope::Assignment(id)),
        "course" => Some(Scope::Course(id)),
        _ => None,
    }
}

/// What each scope would delete, the narrower first; the wider only where it is more.
fn page(
    shared: &Shared,
    id: i64,
    scopes: [&'static str; 2],
    (action, back): (String, String),
    names_hidden: bool,
) -> Result<Response, PageError> {
    let mut choices: Vec<EraseView> = Vec::new();
    let mut before = None;
    for what in scopes {
        let erasure = match scope(what, id) {
            Some(scope) => shared.would_erase(scope)?,
            None => None,
        };
        let Some(erasure) = erasure else {
            continue;
        };
        let is_more = before.as_ref() != Some(&(erasure.works.clone(), erasure.assignments.len()));
        before = Some((erasure.works.clone(), erasure.assignments.len()));
        if is_more {
            choices.push(EraseView::new(what, erasure, names_hidden));
        }
    }
    if choices.is_empty() {
        return Err(PageError::NotFound);
    }
    let paths = shared.paths;
    let page = ErasePage {
        paths,
        action,
        back,
        choices,
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// What would go with a submission.
pub(crate) async fn work(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let of = (shared.paths.erase_work(id), shared.paths.record(id));
    page(
        &shared,
        id,
        ["submission", "student"],
        of,
        names_hidden(&headers),
    )
}

/// What would go with an assignment.
pub(crate) async fn assignment(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let of = (shared.paths.erase_assignment(id), shared.paths.runs(id));
    page(
        &shared,
        id,
        ["assignment", "course"],
        of,
        names_hidden(&headers),
    )
}

/// Deletes what was chosen of a work's page.
pub(crate) async fn erase_work(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<Wanted>, FormRejection>,
) -> Result<Response, PageError> {
    erase(shared, id, ["submission", "student"], fields(form)?).await
}

/// The same of an assignment's.
pub(crate) async fn erase_assignment(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<Wanted>, FormRejection>,
) -> Result<Response, PageError> {
    erase(shared, id, ["assignment", "course"], fields(form)?).await
}

async fn erase(
    shared: Arc<Shared>,
    id: i64,
    scopes: [&str; 2],
    wanted: Wanted,
) -> Result<Response, PageError> {
    let what = scopes.into_iter().find(|what| *what == wanted.what);
    let scope = what
        .and_then(|what| scope(what, id))
        .ok_or(PageError::NotFound)?;
    let gradebook = Gradebook {
        shared: Arc::clone(&shared),
    };
    let task = move || gradebook.erase_seen(scope, Some(&wanted.seen));
    match blocking(task).await? {
        Ok(Some(_)) => Ok(Redirect::to(shared.paths.home()).into_response()),
        Ok(None) => Err(PageError::NotFound),
        Err(GradebookError::Busy) => Err(PageError::Busy),
        Err(GradebookError::Seen) => Err(PageError::Form(
            "Something came since this page was opened. Nothing was deleted; open it again."
                .to_owned(),
        )),
        Err(GradebookError::Store(StoreError::Busy)) => Err(PageError::Form(
            "It is deleted. Its bytes are still in the file, as another program has that open or the disk is full; they \
             go when tandem opens it next."
                .to_owned(),
        )),
        Err(error) => {
            tracing::error!(%error, "nothing can be deleted");
            Err(PageError::Store)
        }
    }
}
