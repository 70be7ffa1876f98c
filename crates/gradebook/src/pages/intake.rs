//! What was found in an upload: a person looks at it, says who is no student, and takes it in.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};

use super::{blocking, fields};
use crate::Shared;
use crate::error::PageError;
use crate::intake::Untaken;
use crate::store::{Reader, StoreError};
use crate::view::intake::IntakePage;
use crate::view::{self};

fn gone() -> PageError {
    PageError::Form("This upload is not here any more. Send the files once more.".to_owned())
}

/// What was found.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    if let Some(page) = shared.intakes.page_of(&id) {
        return Ok(Redirect::to(&page).into_response());
    }
    let intake = shared.intakes.get(&id).ok_or_else(gone)?;
    let paths = shared.paths;
    let read = move |reader: &Reader<'_>| IntakePage::new(paths, &id, &intake, reader);
    let page = shared.store.read(read).await?;
    Ok(view::page(StatusCode::OK, &page))
}

/// Takes it in, but for what is no student's.
pub(crate) async fn take(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    form: Result<Form<HashMap<String, String>>, FormRejection>,
) -> Result<Response, PageError> {
    let form = fields(form)?;
    if let Some(page) = shared.intakes.page_of(&id) {
        return Ok(Redirect::to(&page).into_response());
    }
    let intake = shared.intakes.get(&id).ok_or_else(gone)?;
    let is_left_out = |index: &usize| form.contains_key(&format!("leave-{index}"));
    if (0..intake.submissions.len()).all(|index| is_left_out(&index)) {
        let none = "All are left out, so there is nothing to take in. Go back, and keep those that are students.";
        return Err(PageError::Form(none.to_owned()));
    }
    let is_begun = intake.is_begun;
    let store = shared.store.clone();
    // What fails can be tried again: the upload is still there.
    let task = move || {
        let is_left_out = |index| form.contains_key(&format!("leave-{index}"));
        let (assignment, ids) =
            store.write_now(|writer| intake.keep(writer, &is_left_out).map(Ok::<_, StoreError>))?;
        intake.keep_originals(&store, &ids)?;
        Ok::<_, Untaken>(assignment)
    };
    let assignment = blocking(task).await?.map_err(|error| {
        tracing::error!(%error, "an upload cannot be taken in");
        PageError::Store
    })?;
    let next = match is_begun {
        true => shared.paths.rubric(assignment),
        false => shared.paths.runs(assignment),
    };
    shared.intakes.taken(&id, &next);
    Ok(Redirect::to(&next).into_response())
}
