//! The way out: what an export would write, and the file that it writes.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Multipart, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tandem_grading::export::{Choice, Format, Outline, outline};

use super::{Id, attachment, fields, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::exports::{Rows, Target, Written};
use crate::store::{Assignment, PastExport, Person, Reader, SheetFile, StoreError, Writer};
use crate::view::export::{SheetView, counts};
use crate::view::{self, ExportPage};

/// What is chosen of the teacher's own gradebook.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Asked {
    column: Option<String>,
    scales: Option<String>,
    feedback: Option<String>,
}

impl Asked {
    fn choice(&self) -> Choice {
        Choice {
            column: self.column.as_ref().and_then(|column| column.parse().ok()),
            scales: self.scales.is_some(),
            with_feedback: self.feedback.is_some(),
        }
    }
}

/// What is to be written, and what the page showed of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Wanted {
    /// `sheet`, or the name of a form.
    to: String,
    /// Digest of the preview.
    digest: Option<String>,
    column: Option<String>,
    scales: Option<String>,
    feedback: Option<String>,
}

/// What a page and a file are made of.
struct Found {
    assignment: Assignment,
    rows: Rows,
    sheet: Option<SheetFile>,
    past: Vec<PastExport>,
}

impl Found {
    fn new(reader: &Reader<'_>, id: i64) -> rusqlite::Result<Option<Self>> {
        let (Some(assignment), Some(rows)) = (reader.assignment(id)?, Rows::new(reader, id)?)
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            assignment,
            rows,
            sheet: reader.sheet(id)?,
            past: reader.exports(id)?,
        }))
    }
}

/// The preview.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let read = move |reader: &Reader<'_>| {
        let works = reader.works_for(id, person.id)?;
        let blind = works.iter().filter(|work| work.is_blind);
        let blind: Vec<i64> = blind.map(|work| work.id).collect();
        Ok(Found::new(reader, id)?.map(|found| (found, blind)))
    };
    let found = shared.store.read(read).await?;
    let (found, blind) = found.ok_or(PageError::NotFound)?;
    let (paths, hidden) = (shared.paths, names_hidden(&headers));
    let choice = asked.choice();
    let sheet = found.sheet.map(|file| {
        let known: Result<Outline, _> = outline(&file.bytes, found.rows.title());
        let name = file.name.clone();
        let written = found.rows.write(&Target::Sheet(file, choice.clone()));
        let blind: Vec<String> = blind.iter().map(|work| paths.work(*work)).collect();
        SheetView::new((paths, hidden), name, (known, written), &choice).without(&blind)
    });
    let page = ExportPage {
        paths,
        review: paths.assignment(id),
        action: paths.export(id),
        upload: paths.sheet(id),
        course: found.assignment.course,
        title: found.assignment.title,
        counts: counts(paths, &found.rows, sheet.as_ref()),
        approved: found.rows.counts.approved,
        sheet,
        formats: Format::ALL.map(view::export::format).to_vec(),
        past: found.past,
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// Keeps the teacher's own gradebook, and shows what would change in it.
pub(crate) async fn keep_sheet(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<i64>,
    mut form: Multipart,
) -> Result<Response, PageError> {
    let broken = |error: axum::extract::multipart::MultipartError| {
        tracing::info!(%error, "what a browser sends cannot be taken");
        PageError::Form("The file did not come whole, or is too large.".to_owned())
    };
    let mut sheet = None;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.file_name().unwrap_or_default();
        let name = name
            .rsplit(['/', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned();
        let bytes = field.bytes().await.map_err(broken)?;
        if !name.is_empty() {
            let bytes = bytes.to_vec();
            sheet = Some(SheetFile { name, bytes });
        }
    }
    let sheet = sheet.ok_or_else(|| PageError::Form("There is no file.".to_owned()))?;
    // What cannot be read is said at once, and takes the place of nothing.
    outline(&sheet.bytes, "")
        .map_err(|error| PageError::Form(format!("{} is no gradebook: {error}.", sheet.name)))?;
    let keep = move |writer: &Writer<'_>| match writer.assignment(id)? {
        Some(_) => writer.keep_sheet(id, &sheet).map(|()| Ok(true)),
        None => Ok(Ok(false)),
    };
    match shared.store.write::<bool, StoreError>(keep).await? {
        true => Ok(Redirect::to(&shared.paths.export(id)).into_response()),
        false => Err(PageError::NotFound),
    }
}

/// Writes the file that the preview showed.
pub(crate) async fn write(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
    Id(id): Id<i64>,
    form: Result<Form<Wanted>, FormRejection>,
) -> Result<Response, PageError> {
    let wanted = fields(form)?;
    let task = move |writer: &Writer<'_>| {
        let Some(found) = Found::new(writer, id)? else {
            return Ok(Err(Unwritten::Page(PageError::NotFound)));
        };
        let target = match (wanted.to.as_str(), found.sheet) {
            ("sheet", Some(file)) => {
                let asked = Asked {
                    column: wanted.column,
                    scales: wanted.scales,
                    feedback: wanted.feedback,
                };
                Some(Target::Sheet(file, asked.choice()))
            }
            (name, _) => Format::ALL
                .into_iter()
                .find(|format| format.as_str() == name)
                .map(Target::File),
        };
        let Some(target) = target else {
            return Ok(Err(Unwritten::Page(PageError::NotFound)));
        };
        let written = match found.rows.write(&target) {
            Ok(written) => written,
            Err(refusal) => return Ok(Err(Unwritten::form(&refusal.to_string()))),
        };
        let is_sheet = matches!(target, Target::Sheet(..));
        let shown = view::export::digest(&written);
        if is_sheet && wanted.digest.as_ref() != Some(&shown) {
            let text = "Something changed since the preview; open it again, and look at it";
            return Ok(Err(Unwritten::form(text)));
        }
        let what = (written.name.as_str(), written.export.grades);
        writer.keep_export((id, person.id), what, &written.export.bytes)?;
        Ok(Ok(written))
    };
    let written = shared.store.write::<Written, Unwritten>(task).await;
    written
        .map(|written| attachment(&written.name, written.export.bytes))
        .map_err(|unwritten| match unwritten {
            Unwritten::Page(error) => error,
            Unwritten::Store(error) => error.into(),
        })
}

/// Why there is no file.
enum Unwritten {
    Page(PageError),
    Store(StoreError),
}

impl From<StoreError> for Unwritten {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Unwritten {
    fn form(text: &str) -> Self {
        Self::Page(PageError::Form(format!("{text}.")))
    }
}
