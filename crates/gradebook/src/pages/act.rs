//! What a person does to a work: each form is one change, kept at once.

use std::sync::Arc;

use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, extract::rejection::FormRejection};
use serde::Deserialize;
use tandem_grading::review::{Change, Comment, Correction, Refusal};
use tandem_grading::{Item, ItemKind, Points, Submission};

use super::review::{Asked, Loaded, load};
use super::{Id, PARTS, Viewer, fields};
use crate::Shared;
use crate::error::PageError;
use crate::limits::MAX_KEY_CHARS;
use crate::store::{By, Person, Seen, WriteError};
use crate::view::desk::Notice;

/// The fields of all forms of a work.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Act {
    /// What to do.
    #[serde(rename = "do")]
    act: String,
    /// What the page showed.
    version: String,
    /// Of this form alone, so that it counts once, however often it is sent.
    key: Option<String>,
    criterion: Option<String>,
    points: Option<String>,
    index: Option<usize>,
    kind: Option<String>,
    was: Option<String>,
    line: Option<String>,
    text: Option<String>,
    /// An earlier comment, which counts where there is no text.
    again: Option<String>,
    confirmed: Option<String>,
    /// How long the work had been shown, in milliseconds.
    shown: Option<u32>,
}

impl Act {
    /// The change that a form asks for.
    fn change(&self) -> Result<Change, PageError> {
        let text = || self.text.as_deref().ok_or_else(not_whole);
        Ok(match self.act.as_str() {
            "points" => Change::Points {
                criterion: self.criterion.clone().ok_or_else(not_whole)?,
                points: match self.points.as_deref().unwrap_or_default() {
                    "" => None,
                    number => Some(points(number)?),
                },
            },
            "item" => Change::Item {
                index: self.index.ok_or_else(not_whole)?,
                was: lines(self.was.as_deref().ok_or_else(not_whole)?),
                item: self.item(text()?),
            },
            "add" => Change::Add(self.item(text()?)),
            "recomment" => Change::Recomment {
                index: self.index.ok_or_else(not_whole)?,
                was: lines(self.was.as_deref().ok_or_else(not_whole)?),
                text: lines(text()?),
            },
            "model-text" => Change::ModelText,
            "approve" => Change::Approve {
                confirmed: self.confirmed.is_some(),
            },
            "without-points" => Change::WithoutPoints,
            "reopen" => Change::Reopen,
            "second-look" => Change::SecondLook(true),
            "no-second-look" => Change::SecondLook(false),
            "note" => Change::Note(lines(text()?)),
            "penalty" | "no-penalty" => Change::Penalty {
                id: self.criterion.clone().ok_or_else(not_whole)?,
                is_given: self.act == "penalty",
            },
            "adjust" => Change::Adjust(self.adjustment()?),
            "late" | "not-late" => Change::Late(Some(self.act == "late")),
            "reset" => Change::Reset,
            _ => return Err(not_whole()),
        })
    }

    /// A comment on a line that a work has.
    fn comment(&self, of: &Submission) -> Result<Change, PageError> {
        let file = self.index.and_then(|index| of.files.get(index));
        let file = file.ok_or_else(not_whole)?;
        let number = self.line.as_deref().unwrap_or_default().trim();
        let line = number.parse().ok();
        let line = line.filter(|line| (1..=file.lines.len()).contains(line));
        let line = line.ok_or_else(|| {
            let last = file.lines.len();
            PageError::Form(format!(
                "“{number}” is no line of {}: it has {last}.",
                file.name
            ))
        })?;
        let text = self
            .text
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let text = text.or(self.again.as_deref()).unwrap_or_default();
        Ok(Change::Comment(Comment {
            file: file.name.clone(),
            line,
            text: lines(text),
        }))
    }

    /// Points beside the rubric: with a minus they are taken off.
    fn adjustment(&self) -> Result<Option<Correction>, PageError> {
        let number = self.points.as_deref().unwrap_or_default().trim();
        let is_off = number.starts_with(['-', '−']);
        let bare = number.trim_start_matches(['-', '−', '+']);
        if bare.is_empty() {
            return Ok(None);
        }
        Ok(Some(Correction {
            title: self.text.as_deref().unwrap_or_default().trim().to_owned(),
            points: points(bare)?,
            is_on_top: !is_off,
        }))
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
            ("line", self.line.as_ref()),
            ("again", self.again.as_ref()),
            ("text", self.text.as_ref()),
        ];
        let some = all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        some.map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}

fn not_whole() -> PageError {
    PageError::Form(
        "The form is not whole. Open the page again, and send it from there.".to_owned(),
    )
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
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    form: Result<Form<Act>, FormRejection>,
) -> Result<Response, PageError> {
    let act = fields(form)?;
    let change = match act.act.as_str() {
        "comment" => {
            let of = shared
                .store
                .read(move |reader| reader.submission(id))
                .await?;
            act.comment(&of.ok_or(PageError::NotFound)?)?
        }
        _ => act.change()?,
    };
    let seen: Seen = act.version.parse().map_err(|_| not_whole())?;
    let key = act.key.clone().filter(|key| key.len() <= MAX_KEY_CHARS);
    let viewer = Viewer::new(&shared, &headers, &person);
    let (kept, shown) = (change.clone(), act.shown);
    let done = shared
        .store
        .write(move |writer| {
            let by = By {
                person: person.id,
                session: &person.session,
                key: key.as_deref(),
            };
            let changed = writer.change((id, seen), &by, &kept)?;
            if let (Ok(()), Some(shown), Some(key)) = (&changed, shown, by.key) {
                writer.keep_shown(id, key, shown)?;
            }
            Ok(changed)
        })
        .await;
    let (status, notice) = match done {
        Ok(()) => (StatusCode::OK, None),
        Err(WriteError::Unknown) => return Err(PageError::NotFound),
        Err(WriteError::Store(e)) => return Err(e.into()),
        Err(error) => told(&error, &act),
    };
    let is_settling = matches!(change, Change::Approve { .. } | Change::WithoutPoints);
    let asked = Asked {
        c: asked.c.or(act.criterion.filter(|_| act.act == "points")),
        ..asked
    };
    answer(
        &shared,
        (id, viewer),
        (status, &headers),
        (&asked, is_settling),
        notice,
    )
    .await
}

/// Shows a work after something was done to it: parts of the page for a script, else the page that comes next.
pub(super) async fn answer(
    shared: &Shared,
    (id, viewer): (i64, Viewer),
    (status, headers): (StatusCode, &HeaderMap),
    (asked, is_settling): (&Asked, bool),
    notice: Option<Notice>,
) -> Result<Response, PageError> {
    let whose = (id, viewer.person);
    let loaded = shared.store.read(move |reader| load(reader, whose)).await?;
    let loaded: Loaded = loaded.ok_or(PageError::NotFound)?;
    let is_part = headers.contains_key(PARTS);
    if !is_part && status == StatusCode::OK {
        let next = match (is_settling, loaded.next_open(&viewer.list(&asked.list))) {
            (false, _) => asked.list.href(shared.paths, id),
            (true, Some(next)) => asked.list.href(shared.paths, next),
            (true, None) => asked.list.on(shared.paths.end(loaded.assignment())),
        };
        return Ok(Redirect::to(&next).into_response());
    }
    Ok(loaded.show((status, is_part), asked, viewer, notice))
}

/// What is said of a change that was not made.
fn told(error: &WriteError, act: &Act) -> (StatusCode, Option<Notice>) {
    let (status, text, again, is_conflict) = match error {
        WriteError::Conflict { is_own } => (
            StatusCode::CONFLICT,
            format!(
                "{} What is shown is new. Yours was: {}.",
                match is_own {
                    true => "You changed this submission meanwhile, in another tab or browser.",
                    false => "Somebody else changed this submission meanwhile.",
                },
                act.in_words()
            ),
            Some(("Take mine", act.fields())),
            true,
        ),
        WriteError::Outdated => (
            StatusCode::CONFLICT,
            format!(
                "A run or another rubric has changed this submission meanwhile. What is shown is new. Yours was: {}.",
                act.in_words()
            ),
            Some(("Take mine", act.fields())),
            true,
        ),
        WriteError::Replaced(_) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "This submission was handed in again. Nothing was kept; open the new one from the queue."
                .to_owned(),
            None,
            false,
        ),
        WriteError::Refused(refusal @ (Refusal::Marked | Refusal::Textless)) => {
            let mut fields = act.fields();
            fields.push(("confirmed".to_owned(), "yes".to_owned()));
            let text = match refusal {
                Refusal::Marked => "The feedback was written for other points. Look at it once more.",
                _ => "There is no feedback: the student would get points alone.",
            };
            (
                StatusCode::UNPROCESSABLE_ENTITY,
                text.to_owned(),
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
    Id(assignment): Id<i64>,
    Query(asked): Query<Asked>,
) -> Result<Response, PageError> {
    let undone = shared
        .store
        .write(move |writer| {
            let by = By {
                person: person.id,
                session: &person.session,
                key: None,
            };
            writer.undo(assignment, &by)
        })
        .await;
    match undone {
        Ok(undone) => Ok(Redirect::to(&asked.list.href(shared.paths, undone.work)).into_response()),
        Err(WriteError::NothingToUndo) => Err(PageError::Form(
            "There is nothing to undo that this browser did here, or somebody changed it since."
                .to_owned(),
        )),
        Err(WriteError::Store(e)) => Err(e.into()),
        Err(_) => Err(PageError::NotFound),
    }
}
