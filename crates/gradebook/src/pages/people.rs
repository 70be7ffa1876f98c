//! Who is there: one's own name, assistants, and shares of the work.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::{Id, blocking, fields};
use crate::error::PageError;
use crate::limits::MAX_NAME_CHARS;
use crate::security::{digest, random_text};
use crate::store::{Person, StoreError, Writer};
use crate::view::{self, Invited};
use crate::{Shared, TOKEN};

/// A name.
#[derive(Debug, Deserialize)]
pub(crate) struct Name {
    name: String,
}

impl Name {
    fn checked(&self) -> Result<String, PageError> {
        let name = self.name.trim();
        match name.chars().count() {
            0 => Err(PageError::Form("The name is empty.".to_owned())),
            n if n > MAX_NAME_CHARS || name.chars().any(char::is_control) => Err(PageError::Form(
                format!("A name has at most {MAX_NAME_CHARS} letters, in one line."),
            )),
            _ => Ok(name.to_owned()),
        }
    }
}

async fn write<T: Send + 'static>(
    shared: &Shared,
    task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, PageError> {
    let task = move |writer: &Writer<'_>| task(writer).map(Ok);
    Ok(shared.store.write::<T, StoreError>(task).await?)
}

/// Tells one's name, which the history shows from then on.
pub(crate) async fn name(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    form: Result<Form<Name>, FormRejection>,
) -> Result<Response, PageError> {
    let name = fields(form)?.checked()?;
    write(&shared, move |writer| writer.name_person(person.id, &name)).await?;
    Ok(Redirect::to(shared.paths.home()).into_response())
}

/// Invites an assistant: the link is shown this once.
pub(crate) async fn invite(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    form: Result<Form<HashMap<String, String>>, FormRejection>,
) -> Result<Response, PageError> {
    let sent = fields(form)?;
    let name = sent.get("name").cloned().unwrap_or_default();
    let name = Name { name }.checked()?;
    let courses = courses(&sent)?;
    let token = random_text();
    let (kept, given) = (digest(&token), name.clone());
    write(&shared, move |writer| {
        writer.invite(&given, &kept, &courses)
    })
    .await?;
    Ok(link_page(&shared, &headers, Some(name), &token))
}

/// The courses that are ticked in a form.
fn courses(sent: &HashMap<String, String>) -> Result<Vec<i64>, PageError> {
    let ticked = sent.keys().filter_map(|name| name.strip_prefix("course-"));
    let courses: Result<Vec<i64>, _> = ticked.map(str::parse).collect();
    match courses {
        Ok(courses) if !courses.is_empty() => Ok(courses),
        Ok(_) => {
            let problem = "Choose a course: an assistant sees no other one.";
            Err(PageError::Form(problem.to_owned()))
        }
        Err(_) => Err(PageError::NotFound),
    }
}

/// Lets an assistant see other courses.
pub(crate) async fn see(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<HashMap<String, String>>, FormRejection>,
) -> Result<Response, PageError> {
    let courses = courses(&fields(form)?)?;
    write(&shared, move |writer| writer.set_courses(id, &courses)).await?;
    Ok(Redirect::to(shared.paths.home()).into_response())
}

/// The link with a token, as the browser that asks reaches this server.
fn link_page(shared: &Shared, headers: &HeaderMap, name: Option<String>, token: &str) -> Response {
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    let scheme = match shared.is_tls.load(std::sync::atomic::Ordering::Relaxed) {
        true => "https",
        false => "http",
    };
    let home = shared.paths.home();
    let link = format!(
        "{scheme}://{}{home}?token={token}",
        host.unwrap_or_default()
    );
    let paths = shared.paths;
    view::page(StatusCode::OK, &Invited { paths, name, link })
}

/// Makes the teacher's link anew: the one before it lets nobody in any more.
pub(crate) async fn link(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let token = random_text();
    let kept = token.clone();
    write(&shared, move |writer| writer.set(TOKEN, &kept)).await?;
    Ok(link_page(&shared, &headers, None, &token))
}

/// Lets a browser out.
pub(crate) async fn let_out(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    write(&shared, move |writer| writer.let_out(id)).await?;
    Ok(Redirect::to(shared.paths.home()).into_response())
}

/// Lets an assistant in no more.
pub(crate) async fn dismiss(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    write(&shared, move |writer| writer.dismiss(id)).await?;
    Ok(Redirect::to(shared.paths.home()).into_response())
}

/// Takes an assistant's name out of the history, and lets them in no more.
pub(crate) async fn forget(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
) -> Result<Response, PageError> {
    write(&shared, move |writer| writer.forget_person(id)).await?;
    let store = shared.store.clone();
    if let Err(error) = blocking(move || store.sweep()).await? {
        tracing::warn!(%error, "a name is still in the file");
    }
    Ok(Redirect::to(shared.paths.home()).into_response())
}

/// Whether works are divided.
#[derive(Debug, Deserialize)]
pub(crate) struct Division {
    divided: String,
}

/// Divides the works of an assignment among all who see its course, or takes the shares back.
pub(crate) async fn divide(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    form: Result<Form<Division>, FormRejection>,
) -> Result<Response, PageError> {
    let is_divided = fields(form)?.divided == "yes";
    let divide = move |writer: &Writer<'_>| {
        let members = match is_divided {
            true => writer.members_of(id)?,
            false => Vec::new(),
        };
        let persons: Vec<i64> = members.iter().map(|m| m.id).collect();
        writer.divide(id, &persons)
    };
    write(&shared, divide).await?;
    Ok(Redirect::to(&shared.paths.runs(id)).into_response())
}
