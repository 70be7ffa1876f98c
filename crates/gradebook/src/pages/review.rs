//! A work under review.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::{Rubric, Submission};

use super::names_hidden;
use crate::Shared;
use crate::error::PageError;
use crate::routes;
use crate::store::{Assignment, Reader, Work};
use crate::view::code::Code;
use crate::view::desk::{Desk, DeskOf, Notice};
use crate::view::queue::Ordered;
use crate::view::{self, Empty, Head, ReviewPage, ReviewParts};

/// What an address says besides the work.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Asked {
    /// `all` lists settled works, too.
    pub(crate) list: Option<String>,
    /// The criterion that is open.
    pub(crate) c: Option<String>,
}

impl Asked {
    fn shows_all(&self) -> bool {
        self.list.as_deref() == Some("all")
    }
}

/// All that a review shows.
pub(crate) struct Loaded {
    assignment: Assignment,
    rubric: Rubric,
    works: Vec<Work>,
    work: Work,
    submission: Submission,
}

/// Reads a work with its assignment.
pub(crate) fn load(reader: &Reader<'_>, id: i64) -> rusqlite::Result<Option<Loaded>> {
    let Some(work) = reader.work(id)? else {
        return Ok(None);
    };
    let assignment = reader.assignment(work.assignment)?;
    let held = reader.rubric(work.assignment)?;
    let submission = reader.submission(id)?;
    let (Some(assignment), Some(held), Some(submission)) = (assignment, held, submission) else {
        return Ok(None);
    };
    Ok(Some(Loaded {
        works: reader.works(work.assignment)?,
        assignment,
        rubric: held.rubric,
        work,
        submission,
    }))
}

impl Loaded {
    /// The page, or its parts but for the work itself.
    pub(crate) fn show(
        &self,
        (status, is_part): (StatusCode, bool),
        asked: &Asked,
        names_hidden: bool,
        notice: Option<Notice>,
    ) -> Response {
        let order = Ordered::new(&self.works, &self.rubric, names_hidden);
        let shows_all = asked.shows_all();
        let of = DeskOf {
            work: &self.work,
            rubric: &self.rubric,
            submission: &self.submission,
            order: &order,
            names_hidden,
            shows_all,
            open: asked.c.as_deref(),
        };
        let desk = Desk::new(&of, notice);
        let head = Head::new(&self.assignment, order.meter(), names_hidden);
        let queue = order.queue(self.assignment.id, self.work.id, shows_all);
        if is_part {
            return view::page(status, &ReviewParts { head, queue, desk });
        }
        let graded = self.work.graded.as_ref();
        let code = Code::new(self.work.id, &self.submission, &self.rubric, graded);
        let page = ReviewPage {
            head,
            queue,
            code,
            desk,
        };
        view::page(status, &page)
    }

    /// The next work that needs a person.
    pub(crate) fn next_open(&self) -> Option<i64> {
        Ordered::new(&self.works, &self.rubric, true).next_open(self.work.id)
    }
}

/// Goes to the first work of an assignment.
pub(crate) async fn first(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<i64>,
) -> Result<Response, PageError> {
    let found = shared
        .store
        .read(move |reader| {
            let (Some(assignment), Some(held)) = (reader.assignment(id)?, reader.rubric(id)?)
            else {
                return Ok(None);
            };
            let works = reader.works(id)?;
            let first = Ordered::new(&works, &held.rubric, true).first();
            Ok(Some((assignment, first)))
        })
        .await?;
    match found {
        None => Err(PageError::NotFound),
        Some((_, Some(first))) => Ok(Redirect::to(&routes::work(first)).into_response()),
        Some((assignment, None)) => Ok(view::page(
            StatusCode::OK,
            &Empty {
                title: assignment.title,
            },
        )),
    }
}

/// Shows a work.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let loaded = shared.store.read(move |reader| load(reader, id)).await?;
    let loaded = loaded.ok_or(PageError::NotFound)?;
    let hidden = names_hidden(&headers);
    Ok(loaded.show((StatusCode::OK, false), &asked, hidden, None))
}
