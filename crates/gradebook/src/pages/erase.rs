//! Deleting: a page says what would go, and a button deletes it.

use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::{Id, fields, names_hidden};
use crate::erase::Scope;
use crate::error::{GradebookError, PageError};
use crate::view::{self, ErasePage, EraseView};
use crate::{Gradebook, Shared};

/// What is to go.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Wanted {
    what: String,
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

/// Deletes what was chosen.
pub(crate) async fn erase(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<Wanted>, FormRejection>,
) -> Result<Response, PageError> {
    let wanted = fields(form)?;
    let scope = scope(&wanted.what, id).ok_or(PageError::NotFound)?;
    let gradebook = Gradebook {
        shared: Arc::clone(&shared),
    };
    let erased = tokio::task::spawn_blocking(move || gradebook.erase(scope)).await;
    match erased {
        Ok(Ok(Some(_))) => Ok(Redirect::to(shared.paths.home()).into_response()),
        Ok(Ok(None)) => Err(PageError::NotFound),
        Ok(Err(GradebookError::Busy)) => Err(PageError::Busy),
        Ok(Err(error)) => {
            tracing::error!(%error, "nothing can be deleted");
            Err(PageError::Store)
        }
        Err(error) => {
            tracing::error!(%error, "nothing can be deleted");
            Err(PageError::Store)
        }
    }
}
