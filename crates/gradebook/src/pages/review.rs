//! A work under review.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::review::PointsOf;
use tandem_grading::{Rubric, Submission};

use super::{Id, PARTS, Viewer, attachment, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::limits::MAX_EARLIER_COMMENTS;
use crate::store::{Assignment, Person, Reader, StoreError, Work, Writer};
use crate::view::code::Code;
use crate::view::desk::{Desk, DeskOf, Notice};
use crate::view::list::List;
use crate::view::queue::{ListOf, Ordered};
use crate::view::{self, Empty, EndPage, Head, ReviewPage, ReviewParts};

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
    originals: Vec<(String, Option<u64>)>,
    is_opened: bool,
    comments: Vec<String>,
    bare: Option<PointsOf>,
    earlier: Option<Work>,
    /// The work that counts, if this one does not.
    later: Option<i64>,
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

/// A file as it was handed in, for a person to open with another program.
pub(crate) async fn original(
    State(shared): State<Arc<Shared>>,
    Id((work, place)): Id<(i64, i64)>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let read = move |reader: &Reader<'_>| reader.original(work, place);
    let found = shared.store.read(read).await?;
    let (name, bytes) = found.ok_or(PageError::NotFound)?;
    let name = match names_hidden(&headers) {
        true => view::code::nameless(&name, place),
        false => name.rsplit('/').next().unwrap_or_default().to_owned(),
    };
    Ok(attachment(&name, bytes))
}

/// Reads a work with its assignment, as a person may see it.
pub(crate) fn load(
    reader: &Reader<'_>,
    (id, person): (i64, i64),
) -> rusqlite::Result<Option<Loaded>> {
    let Some(work) = reader.work_for(id, person)? else {
        return Ok(None);
    };
    let assignment = reader.assignment(work.assignment)?;
    let held = reader.rubric(work.assignment)?;
    let submission = reader.submission(id)?;
    let (Some(assignment), Some(held), Some(submission)) = (assignment, held, submission) else {
        return Ok(None);
    };
    Ok(Some(Loaded {
        works: reader.works_for(work.assignment, person)?,
        originals: reader.originals(id)?,
        is_opened: work.graded.is_none() || reader.is_opened(id, person)?,
        comments: reader.comments(work.assignment, MAX_EARLIER_COMMENTS)?,
        bare: match work.is_blind {
            false => reader.bare_reading(work.seen.result)?,
            true => None,
        },
        earlier: match work.earlier {
            Some(earlier) if !work.is_blind => reader.work(earlier)?,
            _ => None,
        },
        later: match work.replaced_by {
            Some(_) => reader.current(work.assignment, &work.name)?,
            None => None,
        },
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
            comments: &self.comments,
            order: &order,
            list: &asked.list,
            names_hidden,
            may_run: viewer.is_teacher,
            open: asked.c.as_deref().or(asked.list.by.as_deref()),
        };
        let desk = Desk::new(&of, notice);
        let head = Head::new(
            viewer.paths,
            &self.assignment,
            order.meter(),
            (names_hidden, viewer.is_teacher),
        );
        let queue = order.queue(self.assignment.id, self.work.id);
        if is_part {
            return view::page(status, &ReviewParts { head, queue, desk });
        }
        let code = Code::new(
            viewer.paths,
            &self.work,
            &self.submission,
            &self.rubric,
            (self.earlier.as_ref(), self.later),
            names_hidden,
        )
        .with_originals(viewer.paths, &self.originals, names_hidden);
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

    /// The assignment that it belongs to.
    pub(crate) const fn assignment(&self) -> i64 {
        self.assignment.id
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

/// Goes to the first work of an assignment that needs a person, else to the end.
pub(crate) async fn first(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let viewer = Viewer::new(&shared, &headers, &person);
    let paths = shared.paths;
    let found = shared
        .store
        .read(move |reader| {
            let (Some(assignment), Some(held)) = (reader.assignment(id)?, reader.rubric(id)?)
            else {
                return Ok(None);
            };
            let works = reader.works_for(id, viewer.person)?;
            // One's own share, while there is something to do in it.
            let first = ["mine", "open"].into_iter().find_map(|name| {
                let list = List::default().with(name);
                let of = viewer.list(&list);
                let first = Ordered::new(&works, &held.rubric, &of).first_open();
                first.map(|first| list.href(paths, first))
            });
            let end = (!works.is_empty()).then(|| paths.end(id));
            Ok(Some((assignment, first.or(end))))
        })
        .await?;
    match found {
        None => Err(PageError::NotFound),
        Some((_, Some(first))) => Ok(Redirect::to(&first).into_response()),
        Some((assignment, None)) => Ok(view::page(
            StatusCode::OK,
            &Empty {
                paths,
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
    let viewer = Viewer::new(&shared, &headers, &person);
    let whose = (id, person.id);
    let loaded = shared.store.read(move |reader| load(reader, whose)).await?;
    let loaded = loaded.ok_or(PageError::NotFound)?;
    if let Some(found) = loaded.found(&asked.list, viewer) {
        return Ok(Redirect::to(&asked.list.href(shared.paths, found)).into_response());
    }
    if !loaded.is_opened {
        let open = move |writer: &Writer<'_>| writer.open_to(id, person.id).map(Ok);
        shared.store.write::<_, StoreError>(open).await?;
    }
    let is_part = headers.contains_key(PARTS);
    Ok(loaded.show((StatusCode::OK, is_part), &asked, viewer, None))
}

/// Says how far an assignment is where a list has no more that needs a person.
pub(crate) async fn end(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let viewer = Viewer::new(&shared, &headers, &person);
    let paths = shared.paths;
    let read = move |reader: &Reader<'_>| {
        let (Some(assignment), Some(held)) = (reader.assignment(id)?, reader.rubric(id)?) else {
            return Ok(None);
        };
        let works = reader.works_for(id, viewer.person)?;
        let list = &asked.list;
        let whole = List::default();
        let (of_list, of_all) = (viewer.list(list), viewer.list(&whole));
        let listed = Ordered::new(&works, &held.rubric, &of_list);
        let all = Ordered::new(&works, &held.rubric, &of_all);
        let every = whole.with("all");
        Ok(Some(EndPage {
            head: Head::new(
                paths,
                &assignment,
                all.meter(),
                (viewer.names_hidden, viewer.is_teacher),
            ),
            undo: list.on(paths.undo(id)),
            is_part: *list != whole,
            open_here: listed.open(),
            next_here: listed.first_open().map(|work| list.href(paths, work)),
            open: all.open(),
            next: all.first_open().map(|work| whole.href(paths, work)),
            all: all.first().map(|work| every.href(paths, work)),
            export: viewer.is_teacher.then(|| paths.export(id)),
            agreement: viewer.is_teacher.then(|| paths.agreement(id)),
        }))
    };
    let page = shared.store.read(read).await?;
    let page = page.ok_or(PageError::NotFound)?;
    Ok(view::page(StatusCode::OK, &page))
}
