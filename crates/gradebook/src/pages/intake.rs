//! What was found in an upload: a person looks at it, says who is no student, and takes it in.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};

use super::fields;
use crate::Shared;
use crate::error::PageError;
use crate::intake::Untaken;
use crate::store::{Reader, Writer};
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
    let intake = shared.intakes.take(&id).ok_or_else(gone)?;
    let is_begun = intake.is_begun;
    let keep = move |writer: &Writer<'_>| {
        intake.keep(writer, &|index| {
            form.contains_key(&format!("leave-{index}"))
        })
    };
    match shared.store.write::<i64, Untaken>(keep).await {
        Ok(assignment) => {
            let next = match is_begun {
                true => shared.paths.rubric(assignment),
                false => shared.paths.runs(assignment),
            };
            Ok(Redirect::to(&next).into_response())
        }
        Err(error) => {
            tracing::error!(%error, "an upload cannot be taken in");
            Err(PageError::Store)
        }
    }
}
