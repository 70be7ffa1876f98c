//! A work under review.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::review::PointsOf;
use tandem_grading::{Rubric, Submission};

use super::{Id, Viewer};
use crate::Shared;
use crate::error::PageError;
use crate::store::{Assignment, Person, Reader, Work};
use crate::view::code::Code;
use crate::view::desk::{Desk, DeskOf, Notice};
use crate::view::list::List;
use crate::view::queue::{ListOf, Ordered};
use crate::view::{self, Empty, Head, ReviewPage, ReviewParts};

/// What an address says besides the work.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Asked {
    #[serde(flatten)]
    pub(crate) list: List,
    /// The criterion that is open.
    pub(crate) c: Option<String>,
}

/// All that a review shows.
pub(crate) struct Loaded {
    assignment: Assignment,
    rubric: Rubric,
    works: Vec<Work>,
    work: Work,
    submission: Submission,
    bare: Option<PointsOf>,
}

/// A picture in a work.
pub(crate) async fn picture(
    State(shared): State<Arc<Shared>>,
    Id((work, digest)): Id<(i64, String)>,
) -> Result<Response, PageError> {
    let read = move |reader: &Reader<'_>| reader.picture(work, &digest);
    let found = shared.store.read(read).await?;
    let (media_type, bytes) = found.ok_or(PageError::NotFound)?;
    Ok(([(header::CONTENT_TYPE, media_type)], bytes).into_response())
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
        bare: reader.bare_reading(work.seen.result)?,
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
        viewer: Viewer,
        notice: Option<Notice>,
    ) -> Response {
        let names_hidden = viewer.names_hidden;
        let list = viewer.list(&asked.list);
        let order = Ordered::new(&self.works, &self.rubric, &list);
        let of = DeskOf {
            work: &self.work,
            rubric: &self.rubric,
            submission: &self.submission,
            bare: self.bare.as_ref(),
            order: &order,
            list: &asked.list,
            names_hidden,
            may_run: viewer.is_teacher,
            open: asked.c.as_deref().or(asked.list.by.as_deref()),
        };
        let desk = Desk::new(&of, notice);
        let head = Head::new(
            &self.assignment,
            order.meter(),
            (names_hidden, viewer.is_teacher),
        );
        let queue = order.queue(self.assignment.id, self.work.id);
        if is_part {
            return view::page(status, &ReviewParts { head, queue, desk });
        }
        let graded = self.work.graded.as_ref();
        let code = Code::new(
            self.work.id,
            &self.submission,
            &self.rubric,
            graded,
            names_hidden,
        );
        let page = ReviewPage {
            head,
            queue,
            code,
            desk,
        };
        view::page(status, &page)
    }

    /// The next work of a list that needs a person.
    pub(crate) fn next_open(&self, list: &ListOf<'_>) -> Option<i64> {
        Ordered::new(&self.works, &self.rubric, list).next_open(self.work.id)
    }
}

impl Loaded {
    /// The first work that a search finds, if it does not find the one that is shown.
    fn found(&self, list: &List, viewer: Viewer) -> Option<i64> {
        list.finds()?;
        let of = viewer.list(list);
        let order = Ordered::new(&self.works, &self.rubric, &of);
        order.first().filter(|_| !order.has(self.work.id))
    }
}

/// Goes to the first work of an assignment.
pub(crate) async fn first(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let viewer = Viewer::new(&headers, &person);
    let found = shared
        .store
        .read(move |reader| {
            let (Some(assignment), Some(held)) = (reader.assignment(id)?, reader.rubric(id)?)
            else {
                return Ok(None);
            };
            let works = reader.works(id)?;
            // One's own share, while there is something to do in it.
            let first = ["mine", "open"].map(|name| {
                let list = List::default().with(name);
                let of = viewer.list(&list);
                let order = Ordered::new(&works, &held.rubric, &of);
                let is_worth_it = name == "open" || order.has_open();
                order
                    .first()
                    .filter(|_| is_worth_it)
                    .map(|first| list.href(first))
            });
            Ok(Some((assignment, first.into_iter().flatten().next())))
        })
        .await?;
    match found {
        None => Err(PageError::NotFound),
        Some((_, Some(first))) => Ok(Redirect::to(&first).into_response()),
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
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let loaded = shared.store.read(move |reader| load(reader, id)).await?;
    let loaded = loaded.ok_or(PageError::NotFound)?;
    let viewer = Viewer::new(&headers, &person);
    if let Some(found) = loaded.found(&asked.list, viewer) {
        return Ok(Redirect::to(&asked.list.href(found)).into_response());
    }
    Ok(loaded.show((StatusCode::OK, false), &asked, viewer, None))
}
