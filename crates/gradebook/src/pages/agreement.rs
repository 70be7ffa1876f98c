//! How far persons and models agree: anchors that are graded blind, and two runs side by side.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::review::{Decision, PointsOf};

use super::{Id, Viewer, fields};
use crate::Shared;
use crate::error::PageError;
use crate::limits::MAX_ANCHORS;
use crate::store::{
    BlindReading, By, Person, Reader, RubricVersion, RunRow, StoreError, Work, WriteError, Writer,
};
use crate::view;
use crate::view::agreement::{AgreementPage, Of};
use crate::view::list::List;

/// Which two runs are compared, by their numbers among all.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Asked {
    first: Option<i64>,
    second: Option<i64>,
}

/// All that the page shows.
struct Found {
    assignment: crate::store::Assignment,
    version: RubricVersion,
    works: Vec<Work>,
    /// Works that are approved, with what models wrote.
    approved: Vec<Work>,
    readings: Vec<BlindReading>,
    drawn: usize,
    blind_here: Option<i64>,
    possible: usize,
    /// The latest first, with the number of the rubric's version of each.
    runs: Vec<(RunRow, i64)>,
    chosen: [Option<i64>; 2],
    sides: Option<[HashMap<i64, PointsOf>; 2]>,
}

impl Found {
    fn new(
        reader: &Reader<'_>,
        (id, person): (i64, i64),
        asked: &Asked,
    ) -> rusqlite::Result<Option<Self>> {
        let (Some(assignment), Some(version)) = (reader.assignment(id)?, reader.rubric(id)?) else {
            return Ok(None);
        };
        let seen = reader.works_for(id, person)?;
        let works = reader.works(id)?;
        let mut approved = Vec::new();
        for work in &works {
            if work.review.decision == Decision::Approved && work.graded.is_some() {
                approved.extend(reader.work(work.id)?);
            }
        }
        let mut runs = Vec::new();
        for run in reader.runs(id)? {
            let version = reader.rubric_of_run(run.id)?;
            runs.push((run, version.map_or(0, |version| version.number)));
        }
        let hidden: Vec<i64> = seen.iter().filter(|w| w.is_blind).map(|w| w.id).collect();
        let side = |run: Option<i64>| -> rusqlite::Result<Option<HashMap<i64, PointsOf>>> {
            let Some((row, _)) = runs.iter().find(|(row, _)| Some(row.id) == run) else {
                return Ok(None);
            };
            let mut points = reader.points_after(id, row.id)?;
            points.retain(|work, _| !hidden.contains(work));
            Ok(Some(points))
        };
        let sides = side(asked.first)?.zip(side(asked.second)?);
        // The last two, unless somebody chooses.
        let last = |back: usize| runs.get(back).map(|(run, _)| run.id);
        let chosen = [asked.first.or(last(1)), asked.second.or(last(0))];
        Ok(Some(Self {
            blind_here: hidden.first().copied(),
            readings: reader.blind_readings(id)?,
            drawn: reader.count_anchors(id)?,
            possible: reader.possible_anchors(id)?.len(),
            sides: sides.map(|(first, second)| [first, second]),
            assignment,
            version,
            works,
            approved,
            runs,
            chosen,
        }))
    }
}

/// The page.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let viewer = Viewer::new(&shared, &headers, &person);
    let whose = (id, person.id);
    let found = shared
        .store
        .read(move |reader| Found::new(reader, whose, &asked))
        .await?;
    let found = found.ok_or(PageError::NotFound)?;
    let of = Of {
        paths: shared.paths,
        names_hidden: viewer.names_hidden,
        assignment: &found.assignment,
        version: &found.version,
        works: &found.works,
        approved: &found.approved,
        readings: &found.readings,
        drawn: found.drawn,
        blind_here: found.blind_here,
        possible: found.possible,
        runs: &found.runs,
        chosen: found.chosen,
        sides: found.sides.as_ref(),
    };
    Ok(view::page(StatusCode::OK, &AgreementPage::new(&of)))
}

/// How many works are to be graded blind.
#[derive(Debug, Deserialize)]
pub(crate) struct Draw {
    count: String,
}

/// Chooses works that are graded blind, at random, and goes to the first one.
pub(crate) async fn draw(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    form: Result<Form<Draw>, FormRejection>,
) -> Result<Response, PageError> {
    let text = fields(form)?.count;
    let count: usize = text.trim().parse().unwrap_or_default();
    if !(1..=MAX_ANCHORS).contains(&count) {
        return Err(PageError::Form(format!(
            "“{text}” is no number from 1 to {MAX_ANCHORS}."
        )));
    }
    let task = move |writer: &Writer<'_>| {
        let Some(version) = writer.rubric(id)? else {
            return Ok(Ok(None));
        };
        let mut chosen = Vec::new();
        for work in writer.possible_anchors(id)? {
            let submission = writer.submission(work)?;
            // What no model is asked about tells nothing of models.
            let is_gradable = submission
                .is_some_and(|s| s.problem.is_none() && s.untouched(&version.rubric).is_none());
            if is_gradable && chosen.len() < count {
                chosen.push(work);
            }
        }
        writer.draw_anchors(&chosen)?;
        let mut seen = writer.works_for(id, person.id)?;
        seen.retain(|work| work.is_blind);
        Ok(Ok(Some((chosen.len(), seen.first().map(|work| work.id)))))
    };
    let drawn = shared
        .store
        .write::<Option<(usize, Option<i64>)>, StoreError>(task);
    match drawn.await?.ok_or(PageError::NotFound)? {
        (1.., Some(first)) => {
            let list = List::default().with("blind");
            Ok(Redirect::to(&list.href(shared.paths, first)).into_response())
        }
        _ => Err(PageError::Form(
            "There is none to choose: of all that a model can grade, somebody has opened each with its points, or has graded it."
                .to_owned(),
        )),
    }
}

/// How it ends that a work is graded blind.
#[derive(Debug, Deserialize)]
pub(crate) struct End {
    /// `save`, or `show` what others gave instead.
    #[serde(rename = "do")]
    act: String,
}

/// Saves what a person gave a work blind, or gives that up; then what others gave is shown.
pub(crate) async fn end_blind(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(list): Query<List>,
    form: Result<Form<End>, FormRejection>,
) -> Result<Response, PageError> {
    let saves = fields(form)?.act == "save";
    let ended = shared
        .store
        .write(move |writer| {
            let by = By {
                person: person.id,
                session: &person.session,
                key: None,
            };
            match (writer.work(id)?, saves) {
                (None, _) => Ok(Err(WriteError::Unknown)),
                (Some(_), true) => writer.save_blind(id, &by),
                (Some(_), false) => writer.open_to(id, by.person).map(Ok),
            }
        })
        .await;
    match ended {
        Ok(()) => Ok(Redirect::to(&list.href(shared.paths, id)).into_response()),
        Err(WriteError::Unknown) => Err(PageError::NotFound),
        Err(WriteError::Store(error)) => Err(error.into()),
        Err(refused) => Err(PageError::Form(format!("This was not kept: {refused}."))),
    }
}
