//! What a person has a model do for one work: the feedback written once more, for points that a person gave; and the work
//! assessed without its comments.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use tandem_grading::review::{Change, PointsOf};
use tandem_grading::{CriterionResult, Rewritten, Rubric, Submission, items, rewrite};

use super::act::answer;
use super::review::Asked;
use super::{Id, Viewer};
use crate::Shared;
use crate::bare::{self, Unread};
use crate::error::PageError;
use crate::runs::Settings;
use crate::store::{By, Person, Reader, StoreError, WriteError, Writer};
use crate::view::desk::Notice;
use crate::view::words;

/// What is needed to write it.
struct Wanted {
    /// The run that made the result, which keeps the call.
    run: i64,
    settings: Settings,
    rubric: Rubric,
    submission: Submission,
    criteria: Vec<CriterionResult>,
    points: PointsOf,
}

fn wanted(
    reader: &Reader<'_>,
    (id, person): (i64, i64),
    default: Settings,
) -> rusqlite::Result<Option<Wanted>> {
    let (Some(work), Some(submission)) = (reader.work_for(id, person)?, reader.submission(id)?)
    else {
        return Ok(None);
    };
    let (Some(held), Some(run)) = (reader.rubric(work.assignment)?, reader.run_of_result(id)?)
    else {
        return Ok(None);
    };
    let standing = work.standing(&held.rubric);
    if !standing.may_rewrite() || work.is_blind {
        return Ok(None);
    }
    let Some(criteria) = standing.assessment() else {
        return Ok(None);
    };
    let points = standing.all_points();
    // The sample course has no settings of a run.
    let settings: Settings = serde_json::from_str(&run.settings).unwrap_or(default);
    Ok(Some(Wanted {
        run: run.id,
        rubric: settings.applied(held.rubric),
        settings,
        submission,
        criteria,
        points,
    }))
}

/// Has it written, and shows the work after it.
pub(crate) async fn write(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let server = shared.server()?;
    let default = Settings::of(server);
    let whose = (id, person.id);
    let read = move |reader: &Reader<'_>| wanted(reader, whose, default);
    let wanted = shared.store.read(read).await?.ok_or_else(|| {
        let why =
            "The model writes only while a submission is open, each criterion has points, and no person has written.";
        PageError::Form(why.to_owned())
    })?;
    let config = wanted.settings.config(server).await?;
    let written = rewrite(
        &config,
        &wanted.rubric,
        &wanted.submission,
        &wanted.criteria,
    )
    .await;
    let written = written.map_err(|error| {
        tracing::error!(%error, "a feedback cannot be written anew");
        PageError::NoAnswer
    })?;
    let (record, run) = (written.record.clone(), wanted.run);
    let keep = move |writer: &Writer<'_>| {
        writer
            .keep_call((run, id), &config.served_by, &record)
            .map(Ok)
    };
    shared.store.write::<(), StoreError>(keep).await?;
    let viewer = Viewer::new(&shared, &headers, &person);
    let (status, notice) = match take(&shared, (id, person), &written, wanted.points).await? {
        Some(problem) => (StatusCode::UNPROCESSABLE_ENTITY, Some(problem)),
        None => (StatusCode::OK, None),
    };
    answer(
        &shared,
        (id, viewer),
        (status, &headers),
        (&asked, false),
        notice,
    )
    .await
}

/// Has a work assessed without its comments, and shows what came of it.
pub(crate) async fn without_comments(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let server = shared.server()?;
    let default = Settings::of(server);
    let read = move |reader: &Reader<'_>| {
        let (Some(work), Some(submission)) = (reader.work(id)?, reader.submission(id)?) else {
            return Ok(None);
        };
        let (held, run) = (reader.rubric(work.assignment)?, reader.run_of_result(id)?);
        Ok(held
            .zip(run)
            .map(|(held, run)| (submission, held.rubric, run)))
    };
    let found = shared.store.read(read).await?;
    let (submission, rubric, run) = found.ok_or(PageError::NotFound)?;
    let settings: Settings = serde_json::from_str(&run.settings).unwrap_or(default);
    let config = settings.config(server).await?;
    let of = (id, run.id);
    let read = bare::read(&shared.store, of, (&config, &rubric), &submission).await;
    let notice = match read {
        Ok(()) => None,
        Err(Unread::HasNone) => Some(problem(bare::HAS_NONE.to_owned())),
        Err(Unread::Store(error)) => return Err(error.into()),
        Err(Unread::Away(_) | Unread::NoAnswer) => return Err(PageError::NoAnswer),
    };
    let viewer = Viewer::new(&shared, &headers, &person);
    let of = (&asked, false);
    answer(
        &shared,
        (id, viewer),
        (StatusCode::OK, &headers),
        of,
        notice,
    )
    .await
}

fn problem(text: String) -> Notice {
    Notice {
        text,
        again: None,
        is_conflict: false,
    }
}

/// Takes the text over, or says why not.
async fn take(
    shared: &Shared,
    (id, person): (i64, Person),
    written: &Rewritten,
    points: PointsOf,
) -> Result<Option<Notice>, PageError> {
    let Some(text) = &written.text else {
        let why = written
            .findings
            .first()
            .map_or("", |f| words::finding(f.kind));
        return Ok(Some(problem(format!(
            "The model wrote nothing that can be used ({why})."
        ))));
    };
    let change = Change::Rewrite {
        text: items(text),
        points,
        is_doubtful: !written.findings.is_empty(),
    };
    let done = shared.store.write(move |writer| {
        let Some(held) = writer.work(id)? else {
            return Ok(Err(WriteError::Unknown));
        };
        let by = By {
            person: person.id,
            session: &person.session,
            key: None,
        };
        writer.change((id, held.seen), &by, &change)
    });
    match done.await {
        Ok(()) => Ok(written
            .findings
            .first()
            .map(|f| problem(format!("Look at the text: {}.", words::finding(f.kind))))),
        Err(WriteError::Refused(_)) => Ok(Some(problem(
            "The points or the text were changed meanwhile. Nothing was written over.".to_owned(),
        ))),
        Err(WriteError::Store(error)) => Err(error.into()),
        Err(_) => Err(PageError::NotFound),
    }
}
