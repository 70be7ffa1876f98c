//! The rubric of an assignment: written in a form, checked while it is written, taken over from tables, downloaded.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::multipart::MultipartError;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Multipart, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use tandem_grading::limits::MAX_RUBRIC_BYTES;
use tandem_grading::{Draft, Rubric};
use tokio::time::timeout;

use super::{Id, PARTS, attachment, fields};
use crate::Shared;
use crate::error::PageError;
use crate::limits::PROPOSAL_TIME;
use crate::store::{Assignment, Reader, RubricVersion, StoreError, Writer};
use crate::view;
use crate::view::rubric::{ChecksView, RubricForm, RubricPage};

/// What a form says that was made of an earlier version.
const CHANGED: &str = "The rubric was changed since this page was opened. Nothing was kept; look at the version that holds, \
    in another window, and keep this one over it if you want to.";

/// What a form says whose criteria are as a model wrote them.
const UNREAD: &str = "A model wrote these criteria, and nothing of them was changed. Go over each: change what you would judge \
    otherwise, or leave it out; then keep it.";

type Held = (Assignment, RubricVersion);

async fn held(shared: &Shared, id: i64) -> Result<Held, PageError> {
    let read = move |reader: &Reader<'_>| Ok(reader.assignment(id)?.zip(reader.rubric(id)?));
    shared.store.read(read).await?.ok_or(PageError::NotFound)
}

fn page(
    shared: &Shared,
    (assignment, version): &Held,
    (form, rubric): (RubricForm, &Result<Rubric, Vec<String>>),
    status: StatusCode,
) -> Response {
    let (paths, id) = (shared.paths, assignment.id);
    let page = RubricPage {
        paths,
        course: assignment.course.clone(),
        name: assignment.title.clone(),
        back: paths.runs(id),
        action: paths.rubric(id),
        file: paths.rubric_file(id),
        read: paths.read_rubric(id),
        number: version.number,
        digest: blake3::hash(version.rubric.source.as_bytes()).to_hex()[..12].to_owned(),
        checks: ChecksView::new(rubric),
        form: form.with_blanks(),
    };
    view::page(status, &page)
}

/// The rubric that holds, in a form.
pub(crate) async fn form(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    let held = held(&shared, id).await?;
    let draft = Draft::read(&held.1.rubric.source, "").map_err(|error| {
        tracing::error!(%error, "a rubric that was kept cannot be read");
        PageError::Store
    })?;
    let form = RubricForm::new(&draft);
    let rubric = form.rubric(&held.1.rubric.id);
    Ok(page(&shared, &held, (form, &rubric), StatusCode::OK))
}

/// Checks what is in the form, or makes it the next version. What is wrong stays in the form.
pub(crate) async fn keep(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    headers: HeaderMap,
    form: Result<Form<HashMap<String, String>>, FormRejection>,
) -> Result<Response, PageError> {
    let sent = fields(form)?;
    let held = held(&shared, id).await?;
    let form = RubricForm::read(&sent);
    let rubric = form.rubric(&held.1.rubric.id);
    if headers.contains_key(PARTS) {
        return Ok(view::page(StatusCode::OK, &ChecksView::new(&rubric)));
    }
    let version = sent.get("version").and_then(|version| version.parse().ok());
    if version != Some(held.1.number) {
        let changed = vec![CHANGED.to_owned()];
        return Ok(page(
            &shared,
            &held,
            (form, &Err(changed)),
            StatusCode::CONFLICT,
        ));
    }
    let act = sent.get("do").map(String::as_str);
    if act == Some("propose") {
        return propose(&shared, &held, form, &sent).await;
    }
    let is_unread = form.proposal.as_ref() == Some(&form.digest());
    if act == Some("keep") && is_unread {
        let unread = Err(vec![UNREAD.to_owned()]);
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Ok(page(&shared, &held, (form, &unread), status));
    }
    let (true, Ok(rubric)) = (act == Some("keep"), &rubric) else {
        let status = match rubric.is_err() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::OK,
        };
        return Ok(page(&shared, &held, (form, &rubric), status));
    };
    let before = Draft::read(&held.1.rubric.source, "").ok();
    let mut plain = form.clone();
    plain.proposal = None;
    if before.is_some_and(|before| RubricForm::new(&before) == plain) {
        return Ok(Redirect::to(&shared.paths.runs(id)).into_response());
    }
    let mut rubric = rubric.clone();
    let course = held.0.course;
    let keep = move |writer: &Writer<'_>| {
        // Template and solution stay.
        if let Some(now) = writer.rubric(id)? {
            rubric.templates = now.rubric.templates;
            rubric.solutions = now.rubric.solutions;
        }
        writer.keep_assignment(&course, &rubric).map(Ok)
    };
    shared.store.write::<i64, StoreError>(keep).await?;
    Ok(Redirect::to(&shared.paths.runs(id)).into_response())
}

/// Has a model propose criteria for what is in the form, in place of those that are there; nothing is kept.
async fn propose(
    shared: &Shared,
    held: &Held,
    form: RubricForm,
    sent: &HashMap<String, String>,
) -> Result<Response, PageError> {
    let refused = |form: RubricForm, status, why: String| {
        Ok(page(shared, held, (form, &Err(vec![why])), status))
    };
    let points = sent.get("proposal-points").map_or("", |text| text.trim());
    let Some(points) = points
        .parse()
        .ok()
        .filter(|points| (1..=1000).contains(points))
    else {
        let why = format!("“{points}” is no whole number of points from 1 to 1000");
        return refused(form, StatusCode::UNPROCESSABLE_ENTITY, why);
    };
    if form.title.trim().is_empty() || form.task.trim().is_empty() {
        let why = "The task and a title are needed: a model has nothing else to go by".to_owned();
        return refused(form, StatusCode::UNPROCESSABLE_ENTITY, why);
    }
    let Ok(server) = shared.server() else {
        let why = "No model is loaded: start tandem with one, or write the criteria yourself";
        return refused(form, StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    };
    let draft = Draft {
        title: form.title.clone(),
        task: form.task.clone(),
        guidelines: form.guidelines.clone(),
        ..Draft::default()
    };
    let solutions = &held.1.rubric.solutions;
    let config = server.config();
    let proposed = tandem_grading::propose(&config, &draft, solutions, points);
    let Ok(proposed) = timeout(PROPOSAL_TIME, proposed).await else {
        let why = "Nothing was proposed: the model takes too long. Write the criteria yourself";
        return refused(form, StatusCode::GATEWAY_TIMEOUT, why.to_owned());
    };
    match proposed {
        Ok(criteria) => {
            let form = form.with_proposal(&criteria);
            let rubric = form.rubric(&held.1.rubric.id);
            Ok(page(shared, held, (form, &rubric), StatusCode::OK))
        }
        Err(error) => {
            tracing::warn!(%error, "a model proposes no rubric");
            let why =
                format!("Nothing was proposed: {error}. Try again, or write the criteria yourself");
            refused(form, StatusCode::BAD_GATEWAY, why)
        }
    }
}

/// Reads a rubric from a file into the form; nothing is kept.
pub(crate) async fn read(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    mut form: Multipart,
) -> Result<Response, PageError> {
    let broken = |error: MultipartError| {
        tracing::info!(%error, "what a browser sends cannot be taken");
        PageError::Form("The file did not come whole, or is too large.".to_owned())
    };
    let held = held(&shared, id).await?;
    let mut draft = None;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.file_name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(broken)?;
        if !name.is_empty() {
            draft = Some(read_draft(&name, &bytes)?);
        }
    }
    let mut draft = draft.ok_or_else(|| PageError::Form("There is no file.".to_owned()))?;
    // A table has no task.
    if draft.task.trim().is_empty() {
        draft.task.clone_from(&held.1.rubric.task);
    }
    if draft.title.trim().is_empty() {
        draft.title.clone_from(&held.1.rubric.title);
    }
    let form = RubricForm::new(&draft);
    let rubric = form.rubric(&held.1.rubric.id);
    Ok(page(&shared, &held, (form, &rubric), StatusCode::OK))
}

/// A rubric in a file, in any form.
pub(crate) fn read_draft(name: &str, bytes: &[u8]) -> Result<Draft, PageError> {
    let told = |problem: String| PageError::Form(format!("{name}: {problem}."));
    let most = usize::try_from(MAX_RUBRIC_BYTES).unwrap_or(usize::MAX);
    if bytes.len() > most {
        return Err(told(format!("it is larger than {most} bytes")));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| told("it is no text in UTF-8; save it as YAML, CSV or Markdown".to_owned()))?;
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    Draft::read(text, stem).map_err(|error| told(error.to_string()))
}

/// The rubric that holds, as a file.
pub(crate) async fn file(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    let (_, version) = held(&shared, id).await?;
    let name = format!("{}.yaml", version.rubric.id);
    Ok(attachment(&name, version.rubric.source.into_bytes()))
}
