//! What happens when a page is asked for, or a form is sent: read, decide, show.

pub(crate) mod act;
pub(crate) mod agreement;
pub(crate) mod erase;
pub(crate) mod export;
pub(crate) mod home;
pub(crate) mod intake;
pub(crate) mod people;
pub(crate) mod record;
pub(crate) mod review;
pub(crate) mod rewrite;
pub(crate) mod rubric;
pub(crate) mod run;
pub(crate) mod trial;
pub(crate) mod upload;

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tandem_grading::{Length, Style};

use crate::Shared;
use crate::error::PageError;
use crate::paths::Paths;
use crate::security::cookie;
use crate::store::{Person, Role};
use crate::view::list::List;
use crate::view::queue::ListOf;

/// The header with which a script asks for parts of a page.
const PARTS: &str = "x-parts";

/// Name of the cookie that hides names.
const NAMES: &str = "tandem_names";

/// The number in an address, or what else names something there.
pub(crate) struct Id<T>(pub(crate) T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned + Send> FromRequestParts<S> for Id<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id))
            .map_err(|_| PageError::NotFound)
    }
}

/// Does what blocks on a thread for that.
async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PageError> {
    let done = tokio::task::spawn_blocking(task).await;
    done.map_err(|error| {
        tracing::error!(%error, "a task ended in the middle");
        PageError::Store
    })
}

/// The fields of a form.
fn fields<T>(form: Result<Form<T>, FormRejection>) -> Result<T, PageError> {
    form.map(|Form(fields)| fields).map_err(|rejection| {
        tracing::info!(reason = %rejection.body_text(), "a form cannot be read");
        PageError::Form(match rejection.status().as_u16() {
            413 => "It is too large. Nothing was kept.".to_owned(),
            _ => "The form is not whole. Open the page again, and send it from there.".to_owned(),
        })
    })
}

/// How the feedback is to be written, as a form has it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct StyleFields {
    language: Option<String>,
    tone: Option<String>,
    length: Option<String>,
    advice: Option<String>,
}

impl StyleFields {
    /// The style, if the form asks for one; what is left empty is as the rubric says.
    fn style(&self) -> Result<Option<Style>, PageError> {
        let Some(language) = &self.language else {
            return Ok(None);
        };
        let text = |what: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text if text.chars().count() > tandem_grading::limits::MAX_TITLE_CHARS => {
                Err(PageError::Form(format!("The {what} has too many letters.")))
            }
            text => Ok(Some(text.to_owned())),
        };
        let length = self.length.as_deref().unwrap_or_default();
        Ok(Some(Style {
            language: text("language", language)?,
            tone: text("tone", self.tone.as_deref().unwrap_or_default())?,
            length: Length::ALL.into_iter().find(|l| l.as_str() == length),
            advice_at_full_marks: self.advice.is_some(),
        }))
    }
}

/// Who looks at a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Viewer {
    paths: Paths,
    person: i64,
    is_teacher: bool,
    names_hidden: bool,
}

impl Viewer {
    fn new(shared: &Shared, headers: &HeaderMap, person: &Person) -> Self {
        Self {
            paths: shared.paths,
            person: person.id,
            is_teacher: person.role == Role::Teacher,
            names_hidden: names_hidden(headers),
        }
    }

    /// A list as it is for them.
    const fn list<'a>(&self, list: &'a List) -> ListOf<'a> {
        ListOf {
            paths: self.paths,
            list,
            names_hidden: self.names_hidden,
            person: self.person,
        }
    }
}

/// True if this browser does not show names of students.
fn names_hidden(headers: &HeaderMap) -> bool {
    cookie(headers, NAMES) == Some("hidden")
}

/// A file for the browser to keep.
fn attachment(name: &str, bytes: Vec<u8>) -> Response {
    let plain = |c: char| match c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' {
        true => c,
        false => '_',
    };
    let ascii: String = name.chars().map(plain).collect();
    let encoded: String = name
        .bytes()
        .map(
            |byte| match byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            },
        )
        .collect();
    let disposition = format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}");
    let disposition = HeaderValue::from_str(&disposition);
    let disposition = disposition.unwrap_or(HeaderValue::from_static("attachment"));
    let kind = HeaderValue::from_static("application/octet-stream");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    (headers, bytes).into_response()
}
