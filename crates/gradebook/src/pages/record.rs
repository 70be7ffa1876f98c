//! How a work's values came about: what the models were sent, what they answered, what persons did.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use tandem_grading::{FeedbackMode, Job, JobRecord, Layout, build_prompt};

use super::{Id, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::runs::Settings;
use crate::store::{Person, Role, StoreError, Work, Writer};
use crate::view::queue::label;
use crate::view::{self, CallRow, PromptPage, RecordPage, words};

/// What the models are sent for a work, word by word.
pub(crate) async fn prompt(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let found = shared
        .store
        .read(move |reader| {
            let (Some(work), Some(submission)) =
                (reader.work_for(id, person.id)?, reader.submission(id)?)
            else {
                return Ok(None);
            };
            let Some(held) = reader.rubric(work.assignment)? else {
                return Ok(None);
            };
            let run = reader.run_of_result(id)?;
            let settings = run.and_then(|run| serde_json::from_str(&run.settings).ok());
            Ok(Some((work, submission, held.rubric, settings)))
        })
        .await?;
    let (work, submission, rubric, settings) = found.ok_or(PageError::NotFound)?;
    open(&shared, &work, person.id).await?;
    let settings: Option<Settings> = settings;
    let is_after = settings
        .as_ref()
        .is_none_or(|settings| settings.feedback_mode == FeedbackMode::After);
    let layout = settings
        .as_ref()
        .map_or_else(Layout::default, |settings| settings.layout);
    let rubric = match &settings {
        Some(settings) => settings.applied(rubric),
        None => rubric,
    };
    let graded = work
        .graded
        .as_ref()
        .filter(|graded| graded.score.is_some() && is_after);
    let assessment = graded.map(|graded| graded.criteria.as_slice());
    let mut parts = Vec::new();
    for (job, title) in [
        (Job::CodeAnalysis, "To the model that gives points"),
        (Job::Feedback, "To the model that writes the feedback"),
    ] {
        let assessment = assessment.filter(|_| job == Job::Feedback);
        let prompt = build_prompt((layout, job), &rubric, &submission, assessment);
        let text = format!(
            "{}\n\n{}{}",
            prompt.system, prompt.shared, prompt.submission
        );
        parts.push((title, text));
    }
    let page = PromptPage {
        label: label(&work.name, work.draw, names_hidden(&headers)),
        back: shared.paths.work(id),
        parts,
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// Remembers that a person was shown what models made of a work, if they made something.
pub(super) async fn open(shared: &Shared, work: &Work, person: i64) -> Result<(), PageError> {
    if work.graded.is_none() {
        return Ok(());
    }
    let id = work.id;
    let open = move |writer: &Writer<'_>| match writer.is_opened(id, person)? {
        true => Ok(Ok(())),
        false => writer.open_to(id, person).map(Ok),
    };
    shared
        .store
        .write::<(), StoreError>(open)
        .await
        .map_err(PageError::from)
}

/// What was done to a work.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let found = shared
        .store
        .read(move |reader| {
            let Some(work) = reader.work_for(id, person.id)? else {
                return Ok(None);
            };
            Ok(Some((work, reader.history(id)?, reader.calls(id)?)))
        })
        .await?;
    let (work, history, calls) = found.ok_or(PageError::NotFound)?;
    if work.is_blind {
        return Ok(Redirect::to(&shared.paths.work(id)).into_response());
    }
    open(&shared, &work, person.id).await?;
    let page = RecordPage {
        label: label(&work.name, work.draw, names_hidden(&headers)),
        back: shared.paths.work(id),
        erase: (person.role == Role::Teacher).then(|| shared.paths.erase_work(id)),
        earlier: work.earlier.map(|earlier| shared.paths.record(earlier)),
        history,
        calls: calls
            .into_iter()
            .map(|(at, record)| call(at, &record))
            .collect(),
    };
    Ok(view::page(StatusCode::OK, &page))
}

fn call(at: i64, record: &JobRecord) -> CallRow {
    let machines = record.tandem.as_ref().map(|t| {
        match (t.server.is_some(), t.prefill_node == t.decode_node) {
            (true, _) | (_, true) => t.decode_node.clone(),
            _ => format!("read on {}, written on {}", t.prefill_node, t.decode_node),
        }
    });
    let count = |n: Option<u32>| n.map_or_else(|| "–".to_owned(), |n| n.to_string());
    let usage = record.usage.as_ref();
    CallRow {
        at,
        job: match (record.job, record.without_comments) {
            (Job::CodeAnalysis, false) => "points",
            (Job::CodeAnalysis, true) => "points, read without the comments",
            (Job::Feedback, _) => "feedback",
        },
        model: record.model.clone(),
        outcome: match &record.error {
            Some(error) => words::finding(error.kind).to_owned(),
            None => "answered".to_owned(),
        },
        cause: record.error.as_ref().map(|error| error.text.clone()),
        answer: record.answer.clone(),
        seconds: format!("{:.1} s", record.wall_ms / 1e3),
        machines: machines.unwrap_or_default(),
        read: count(usage.map(|u| u.prompt_tokens)),
        written: count(usage.map(|u| u.completion_tokens)),
    }
}
