//! Runs: what would be graded, a run that goes on, and what needs a person.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Extension;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::{FeedbackMode, GradingConfig, Layout, Rubric};

use super::{Id, StyleFields, fields, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::live::{self, Shown};
use crate::paths::Paths;
use crate::runs::{self, Choice, Settings};
use crate::store::{Assignment, Person, Reader, Role, RubricVersion, RunRow, now_ms};
use crate::view::queue::label;
use crate::view::run::{RunView, per_work_ms};
use crate::view::words;
use crate::view::{self, RunPage, StartPage, StyleView};

/// Between two looks at what has changed.
const LOOK: Duration = Duration::from_millis(500);
/// Works of the first try.
const FEW: usize = 5;

/// What is to be graded, and by whom.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Wanted {
    what: String,
    #[serde(default)]
    analysis: String,
    #[serde(default)]
    feedback: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    answers: String,
    /// The work, where one alone is graded again.
    work: Option<String>,
    #[serde(flatten)]
    style: StyleFields,
}

/// The settings that were used last, else the server's own.
fn last_settings(reader: &Reader<'_>, assignment: i64) -> rusqlite::Result<Option<Settings>> {
    let runs = reader.runs(assignment)?;
    Ok(runs
        .iter()
        .find_map(|run| serde_json::from_str(&run.settings).ok()))
}

/// What the page of an assignment's runs is made of.
struct Found {
    assignment: Assignment,
    rubric: Rubric,
    choice: Choice,
    /// Link, name and reason of works that no model is asked about.
    odd: Vec<(String, String, String)>,
    runs: Vec<RunRow>,
    /// Milliseconds that a work took.
    per_work: Option<u64>,
    /// How many grade, and whether they have shares.
    people: usize,
    is_divided: bool,
}

impl Found {
    fn new(
        reader: &Reader<'_>,
        id: i64,
        settings: Option<&Settings>,
        config: Option<&GradingConfig>,
        (paths, names_hidden): (Paths, bool),
    ) -> rusqlite::Result<Option<Self>> {
        let (Some(assignment), Some(held)) = (reader.assignment(id)?, reader.rubric(id)?) else {
            return Ok(None);
        };
        let rubric = match settings {
            Some(settings) => settings.applied(held.rubric),
            None => held.rubric,
        };
        let mut odd = Vec::new();
        for work in reader.works(id)? {
            let Some(submission) = reader.submission(work.id)? else {
                continue;
            };
            // The text of a problem has names of files.
            let problem = submission.problem.as_ref().map(|p| match names_hidden {
                true => words::finding(p.kind).to_owned(),
                false => p.text.clone(),
            });
            let untouched = submission.untouched(&rubric);
            let why = problem.or_else(|| untouched.map(|how| how.as_str().to_owned()));
            if let Some(why) = why {
                let label = label(&work.name, work.draw, names_hidden);
                odd.push((paths.work(work.id), label, why));
            }
        }
        let runs = reader.runs(id)?;
        Ok(Some(Self {
            people: reader.members_of(id)?.len(),
            is_divided: reader.works(id)?.iter().any(|work| work.share.is_some()),
            choice: match config {
                Some(config) => runs::choice(reader, id, &rubric, config)?,
                None => runs::choice_without_models(reader, id)?,
            },
            per_work: per_work_ms(reader, &runs)?,
            assignment,
            rubric,
            odd,
            runs,
        }))
    }
}

/// What would be graded.
pub(crate) async fn form(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let (paths, hidden) = (shared.paths, names_hidden(&headers));
    let server = shared.server().ok();
    let last = shared.store.read(move |r| last_settings(r, id)).await?;
    let settings = last.or_else(|| server.map(Settings::of));
    let config = match (&settings, server) {
        (Some(settings), Some(server)) => settings.config(server).await.ok(),
        _ => None,
    };
    let of = settings.clone();
    let read = move |reader: &Reader<'_>| {
        Found::new(reader, id, of.as_ref(), config.as_ref(), (paths, hidden))
    };
    let found = shared.store.read(read).await?.ok_or(PageError::NotFound)?;
    let (models, down) = match server {
        Some(server) => server.models().await,
        None => Default::default(),
    };
    let choice = &found.choice;
    let due = choice.due().len();
    let style = settings
        .as_ref()
        .map(|s| s.style.clone())
        .unwrap_or_default();
    let page = StartPage {
        paths,
        course: found.assignment.course,
        title: found.assignment.title,
        action: shared.paths.runs(id),
        review: shared.paths.assignment(id),
        new: choice.new.len(),
        failed: choice.failed.len(),
        stale: choice.stale.len(),
        stale_for: choice.stale_for.clone().into_iter().collect(),
        fresh: choice.fresh.len(),
        settled: choice.settled,
        due,
        few: due.min(FEW),
        is_first: choice.fresh.is_empty() && choice.stale.is_empty(),
        time: found
            .per_work
            .map(|ms| view::run::about(ms * u64::try_from(due).unwrap_or(u64::MAX))),
        odd: found.odd,
        warnings: found.rubric.warnings,
        style: StyleView::new(&style),
        shares: shared.paths.shares(id),
        export: shared.paths.export(id),
        agreement: shared.paths.agreement(id),
        rubric: shared.paths.rubric(id),
        erase: shared.paths.erase_assignment(id),
        people: found.people,
        is_divided: found.is_divided,
        models,
        down,
        chosen: settings.as_ref().map_or_else(Default::default, |s| {
            [s.code_analysis.model.clone(), s.feedback.model.clone()]
        }),
        is_parallel: (settings.as_ref()).is_some_and(|s| s.feedback_mode == FeedbackMode::Parallel),
        is_reproducible: settings.is_some_and(|s| s.reproducible),
        runs: found
            .runs
            .iter()
            .map(|run| view::run::RunLink::new(paths, run, shared.runs.going(run.id).is_some()))
            .collect(),
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// Starts a run.
pub(crate) async fn start(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<Wanted>, FormRejection>,
) -> Result<Response, PageError> {
    let wanted = fields(form)?;
    let server = shared.server()?;
    let last = shared.store.read(move |r| last_settings(r, id)).await?;
    let mut settings = last.unwrap_or_else(|| Settings::of(server));
    for (model, job) in [
        (&wanted.analysis, &mut settings.code_analysis),
        (&wanted.feedback, &mut settings.feedback),
    ] {
        if !model.is_empty() {
            job.model.clone_from(model);
        }
    }
    settings.layout = Layout::of(&settings.code_analysis, &settings.feedback);
    match wanted.mode.as_str() {
        "parallel" => settings.feedback_mode = FeedbackMode::Parallel,
        "after" => settings.feedback_mode = FeedbackMode::After,
        _ => {}
    }
    match wanted.answers.as_str() {
        "reproducible" => settings.reproducible = true,
        "throughput" => settings.reproducible = false,
        _ => {}
    }
    if let Some(style) = wanted.style.style()? {
        settings.style = style;
    }
    let config = settings.config(server).await?;
    let of = settings.clone();
    let choice = shared
        .store
        .read(move |reader| {
            let held = reader.rubric(id)?;
            let choice =
                |held: RubricVersion| runs::choice(reader, id, &of.applied(held.rubric), &config);
            held.map(choice).transpose()
        })
        .await?;
    let choice = choice.ok_or(PageError::NotFound)?;
    let one: Option<i64> = wanted.work.as_deref().and_then(|work| work.parse().ok());
    settings.asks_anew = wanted.what == "one";
    let works = match wanted.what.as_str() {
        "one" => one.filter(|work| choice.has(*work)).into_iter().collect(),
        // The new ones first: they stand in a random order.
        "few" => [choice.new.as_slice(), &choice.failed, &choice.stale]
            .concat()
            .into_iter()
            .take(FEW)
            .collect(),
        "failed" => choice.failed,
        "stale" => choice.stale,
        _ => choice.due(),
    };
    if works.is_empty() {
        return Err(PageError::Form("There is nothing to grade.".to_owned()));
    }
    let run = runs::start(&shared, id, works, &settings).await?;
    Ok(Redirect::to(&shared.paths.run(run)).into_response())
}

/// A run.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    let view = look(&shared, id, &person)
        .await?
        .ok_or(PageError::NotFound)?;
    let page = RunPage {
        events: (!view.is_over).then(|| shared.paths.run_events(id)),
        run: view,
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// What changes of it, as it changes.
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    Ok(live::stream(LOOK, move || {
        let (shared, person) = (Arc::clone(&shared), person.clone());
        async move {
            let view = look(&shared, id, &person).await.ok().flatten()?;
            let is_final = view.is_over;
            let html = view.render().ok()?;
            Some(Shown { html, is_final })
        }
    }))
}

async fn look(
    shared: &Arc<Shared>,
    id: i64,
    person: &Person,
) -> Result<Option<RunView>, PageError> {
    let (is_teacher, person) = (person.role == Role::Teacher, person.id);
    let (paths, going) = (shared.paths, shared.runs.going(id));
    let activity = Arc::clone(&shared.activity);
    let read = move |reader: &Reader<'_>| {
        RunView::new(
            paths,
            reader,
            (id, person),
            going.as_deref(),
            &activity,
            now_ms(),
        )
    };
    let view = shared.store.read(read).await?;
    Ok(view.map(|view| RunView { is_teacher, ..view }))
}

/// Tells a run to stop.
pub(crate) async fn stop(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    shared.runs.stop(id, false);
    Ok(Redirect::to(&shared.paths.run(id)).into_response())
}

/// Stops a run at once.
pub(crate) async fn stop_now(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    shared.runs.stop(id, true);
    Ok(Redirect::to(&shared.paths.run(id)).into_response())
}

/// Goes on with a run.
pub(crate) async fn go_on(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    runs::go_on(&shared, id).await?;
    Ok(Redirect::to(&shared.paths.run(id)).into_response())
}
