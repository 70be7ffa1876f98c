//! One submission, graded live.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::{FeedbackMode, Submission};

use super::{Id, StyleFields, fields};
use crate::Shared;
use crate::error::PageError;
use crate::live::{self, Shown};
use crate::store::{Assignment, Reader, now_ms};
use crate::trial::Trial;
use crate::view::live::LiveView;
use crate::view::{self, StyleView, TrialForm, TrialPage};

/// Between two looks at what has changed.
const LOOK: Duration = Duration::from_millis(100);

/// What is pasted, and who reads it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Pasted {
    text: String,
    #[serde(default)]
    name: String,
    assignment: i64,
    analysis: String,
    feedback: String,
    #[serde(default)]
    mode: String,
    #[serde(flatten)]
    style: StyleFields,
}

/// The form alone.
pub(crate) async fn form(State(shared): State<Arc<Shared>>) -> Result<Response, PageError> {
    page(&shared, None).await
}

/// Starts one.
pub(crate) async fn start(
    State(shared): State<Arc<Shared>>,
    form: Result<Form<Pasted>, FormRejection>,
) -> Result<Response, PageError> {
    let pasted = fields(form)?;
    let server = shared.server()?;
    let id = pasted.assignment;
    let read = move |reader: &Reader<'_>| Ok(reader.rubric(id)?.zip(Some(reader.roster(id)?)));
    let held = shared.store.read(read).await?;
    let (held, roster) =
        held.ok_or_else(|| PageError::Form("There is no such rubric.".to_owned()))?;
    let name = match pasted.name.trim() {
        "" => "work.txt".to_owned(),
        name => name.to_owned(),
    };
    let text = pasted.text.replace("\r\n", "\n");
    let mut submission = Submission::of_text(&name, &text);
    // What is pasted may be a student's.
    roster.hide(&mut submission);
    if let Some(problem) = &submission.problem {
        return Err(PageError::Form(format!("“{name}”: {problem}.")));
    }
    let mut config = server.config();
    config.code_analysis.model = pasted.analysis;
    config.feedback.model = pasted.feedback;
    config.feedback_mode = match pasted.mode.as_str() {
        "after" => FeedbackMode::After,
        _ => FeedbackMode::Parallel,
    };
    let mut rubric = held.rubric;
    let style = pasted.style.style()?.unwrap_or_default();
    rubric.style = style.or(&rubric.style);
    let trial = shared.trials.start(
        (id, rubric, style),
        ((name, text), submission),
        config,
        Arc::clone(&shared.activity),
    );
    Ok(Redirect::to(&shared.paths.trial(trial.id)).into_response())
}

/// One that was started.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<u64>,
) -> Result<Response, PageError> {
    let trial = shared.trials.get(id).ok_or(PageError::NotFound)?;
    page(&shared, Some(trial)).await
}

/// Ends one.
pub(crate) async fn stop(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<u64>,
) -> Result<Response, PageError> {
    let trial = shared.trials.get(id).ok_or(PageError::NotFound)?;
    trial.stop(&shared.activity);
    Ok(Redirect::to(&shared.paths.trial(id)).into_response())
}

/// What comes of it, as it comes.
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<u64>,
) -> Result<Response, PageError> {
    let trial = shared.trials.get(id).ok_or(PageError::NotFound)?;
    Ok(live::stream(LOOK, move || {
        let (trial, shared) = (Arc::clone(&trial), Arc::clone(&shared));
        async move {
            let is_final = trial.is_over();
            let html = LiveView::new(&trial, &shared.activity, now_ms()).render();
            Some(Shown {
                html: html.ok()?,
                is_final,
            })
        }
    }))
}

async fn page(shared: &Shared, trial: Option<Arc<Trial>>) -> Result<Response, PageError> {
    let assignments = shared.store.read(|reader| reader.assignments()).await?;
    let models = match shared.server() {
        Ok(server) => server.models().await.0,
        Err(_) => Vec::new(),
    };
    let defaults = shared.server().map(|server| {
        [
            server.code_analysis.model.clone(),
            server.feedback.model.clone(),
        ]
    });
    let chosen = match &trial {
        Some(trial) => trial.models.clone(),
        None => defaults.unwrap_or_default(),
    };
    let option = |a: &Assignment| {
        let is_chosen = trial.as_ref().is_some_and(|t| t.assignment == a.id);
        (a.id, format!("{} ({})", a.title, a.course), is_chosen)
    };
    let (name, text) = trial.as_ref().map(|t| t.pasted.clone()).unwrap_or_default();
    let style = trial.as_ref().map(|t| t.style.clone()).unwrap_or_default();
    let form = TrialForm {
        name,
        text,
        style: StyleView::new(&style),
        rubrics: assignments.iter().map(option).collect(),
        models,
        chosen,
        is_after: trial
            .as_ref()
            .is_some_and(|t| t.mode == FeedbackMode::After),
    };
    let live = trial
        .as_ref()
        .map(|trial| LiveView::new(trial, &shared.activity, now_ms()));
    let page = TrialPage {
        paths: shared.paths,
        form,
        stop: trial.as_ref().map(|t| shared.paths.stop_trial(t.id)),
        events: trial.as_ref().map(|t| shared.paths.trial_events(t.id)),
        live,
    };
    Ok(view::page(StatusCode::OK, &page))
}
