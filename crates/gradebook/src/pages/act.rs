//! What a person does to a work: each form is one change, kept at once.

use std::sync::Arc;

use axum::extract::{Form, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, extract::rejection::FormRejection};
use serde::Deserialize;
use tandem_grading::review::{Change, Refusal};
use tandem_grading::{Item, ItemKind, Points};

use super::names_hidden;
use super::review::{Asked, Loaded, load};
use crate::Shared;
use crate::error::PageError;
use crate::routes;
use crate::store::{Person, WriteError};
use crate::view::desk::Notice;

/// The header with which a script asks for parts of a page.
const PARTS: &str = "x-parts";

/// The fields of all forms of a work.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Act {
    /// What to do.
    #[serde(rename = "do")]
    act: String,
    version: i64,
    criterion: Option<String>,
    points: Option<String>,
    index: Option<usize>,
    kind: Option<String>,
    was: Option<String>,
    text: Option<String>,
    confirmed: Option<String>,
}

impl Act {
    /// The change that a form asks for.
    fn change(&self) -> Result<Change, PageError> {
        let missing = |field| PageError::Form(format!("The form lacks the field `{field}`."));
        let text = || self.text.as_deref().ok_or_else(|| missing("text"));
        Ok(match self.act.as_str() {
            "points" => Change::Points {
                criterion: self.criterion.clone().ok_or_else(|| missing("criterion"))?,
                points: match self.points.as_deref().unwrap_or_default() {
                    "" => None,
                    number => Some(points(number)?),
                },
            },
            "item" => Change::Item {
                index: self.index.ok_or_else(|| missing("index"))?,
                was: lines(self.was.as_deref().ok_or_else(|| missing("was"))?),
                item: self.item(text()?),
            },
            "add" => Change::Add(self.item(text()?)),
            "model-text" => Change::ModelText,
            "approve" => Change::Approve {
                confirmed: self.confirmed.is_some(),
            },
            "without-points" => Change::WithoutPoints,
            "reopen" => Change::Reopen,
            "second-look" => Change::SecondLook(true),
            "no-second-look" => Change::SecondLook(false),
            "note" => Change::Note(lines(text()?)),
            "reset" => Change::Reset,
            _ => return Err(missing("do")),
        })
    }

    fn item(&self, text: &str) -> Item {
        Item {
            kind: match self.kind.as_deref() {
                Some("strength") => ItemKind::Strength,
                _ => ItemKind::NextStep,
            },
            text: lines(text),
        }
    }

    /// The fields, to send them again.
    fn fields(&self) -> Vec<(String, String)> {
        let index = self.index.map(|index| index.to_string());
        let all = [
            ("do", Some(&self.act)),
            ("criterion", self.criterion.as_ref()),
            ("points", self.points.as_ref()),
            ("index", index.as_ref()),
            ("kind", self.kind.as_ref()),
            ("was", self.was.as_ref()),
            ("text", self.text.as_ref()),
        ];
        let some = all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        some.map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}

/// Browsers send line breaks as CR LF.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n")
}

fn points(text: &str) -> Result<Points, PageError> {
    let number: Option<f64> = text.trim().replace(',', ".").parse().ok();
    let points = number.and_then(Points::from_f64);
    points.ok_or_else(|| PageError::Form(format!("“{text}” is no number of points.")))
}

/// Makes a change, and shows the work after it; without a script the next one after an approval.
pub(crate) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Path(id): Path<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    form: Result<Form<Act>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(act) = form.map_err(|e| PageError::Form(e.body_text()))?;
    let change = act.change()?;
    let (version, by, kept) = (act.version, person.id, change.clone());
    let done = shared
        .store
        .write(move |writer| writer.change((id, version), by, &kept))
        .await;
    let (status, notice) = match done {
        Ok(()) => (StatusCode::OK, None),
        Err(WriteError::Unknown) => return Err(PageError::NotFound),
        Err(WriteError::Store(e)) => return Err(e.into()),
        Err(error) => told(&error, &act),
    };
    let loaded = shared.store.read(move |reader| load(reader, id)).await?;
    let loaded: Loaded = loaded.ok_or(PageError::NotFound)?;
    let is_part = headers.contains_key(PARTS);
    if !is_part && status == StatusCode::OK {
        let is_settling = matches!(change, Change::Approve { .. } | Change::WithoutPoints);
        let next = loaded.next_open().filter(|_| is_settling).unwrap_or(id);
        return Ok(Redirect::to(&routes::work(next)).into_response());
    }
    let asked = Asked {
        c: asked.c.or(act.criterion),
        ..asked
    };
    let hidden = names_hidden(&headers);
    Ok(loaded.show((status, is_part), &asked, hidden, notice))
}

/// What is said of a change that was not made.
fn told(error: &WriteError, act: &Act) -> (StatusCode, Option<Notice>) {
    let (status, text, again, is_conflict) = match error {
        WriteError::Conflict => (
            StatusCode::CONFLICT,
            format!(
                "Somebody else changed this work meanwhile. What is shown is theirs. Yours was: {}.",
                act.in_words()
            ),
            Some(("Take mine", act.fields())),
            true,
        ),
        WriteError::Refused(Refusal::Marked) => {
            let mut fields = act.fields();
            fields.push(("confirmed".to_owned(), "yes".to_owned()));
            (
                StatusCode::UNPROCESSABLE_ENTITY,
                "The feedback was written for other points. Look at it once more.".to_owned(),
                Some(("Approve all the same", fields)),
                false,
            )
        }
        WriteError::Refused(Refusal::Missing(titles)) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("There are no points yet for: {titles}."),
            None,
            false,
        ),
        other => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("This was not kept: {other}."),
            None,
            false,
        ),
    };
    let notice = Notice {
        text,
        again,
        is_conflict,
    };
    (status, Some(notice))
}

impl Act {
    /// What was asked for, for the person who asked.
    fn in_words(&self) -> String {
        match self.act.as_str() {
            "points" => match self.points.as_deref().unwrap_or_default() {
                "" => "the model's points".to_owned(),
                points => format!("{points} points"),
            },
            "item" | "add" | "note" => format!("“{}”", self.text.as_deref().unwrap_or_default()),
            "approve" => "approved".to_owned(),
            other => other.replace('-', " "),
        }
    }
}

/// Takes the last change back, and goes to its work.
pub(crate) async fn undo(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Path(assignment): Path<i64>,
) -> Result<Response, PageError> {
    let undone = shared
        .store
        .write(move |writer| writer.undo(assignment, person.id))
        .await;
    match undone {
        Ok(undone) => Ok(Redirect::to(&routes::work(undone.work)).into_response()),
        Err(WriteError::NothingToUndo) => Err(PageError::Form(
            "There is nothing of yours to undo here.".to_owned(),
        )),
        Err(WriteError::Conflict) => Err(PageError::Form(
            "Somebody else changed that work since. It was left as it is.".to_owned(),
        )),
        Err(WriteError::Store(e)) => Err(e.into()),
        Err(WriteError::Unknown | WriteError::Refused(_)) => Err(PageError::NotFound),
    }
}
