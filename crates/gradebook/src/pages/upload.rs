//! A new assignment: the rubric and the submissions, as files that a browser sends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use tandem_grading::export::{Attendance, attendance};
use tandem_grading::limits::{
    MAX_FILE_NAME_BYTES, MAX_TABLE_BYTES, MAX_TASK_CHARS, MAX_TITLE_CHARS,
};
use tandem_grading::{GradingError, Rubric, Submission, add_test_results, load_submissions_for};
use tokio::io::AsyncWriteExt;

use super::blocking;
use super::rubric::read_draft;
use crate::Shared;
use crate::error::PageError;
use crate::intake::Intake;
use crate::limits::{MAX_NAME_CHARS, MAX_UPLOADED_FILES};
use crate::security::random_text;
use crate::store::SheetFile;
use crate::uploads::Upload;
use crate::view::{self, UploadPage};

/// What a form sent, in a folder that is gone with it.
struct Uploaded {
    folder: Upload,
    course: String,
    rubric: Option<PathBuf>,
    /// Where there is no file of a rubric: what it begins with, a template or the number of an assignment.
    start: String,
    /// What a rubric without them is called, and what it asks for.
    title: String,
    task: String,
    /// The teacher's own gradebook.
    sheet: Option<PathBuf>,
    /// Files and folders of submissions, files of the template, and of the solution.
    works: Vec<PathBuf>,
    template: Vec<PathBuf>,
    solution: Vec<PathBuf>,
    /// Results of tests.
    tests: Vec<PathBuf>,
}

impl Uploaded {
    /// The text of this name, and its most letters.
    fn text(&mut self, name: &str) -> Option<(&mut String, usize)> {
        match name {
            "course" => Some((&mut self.course, MAX_NAME_CHARS)),
            "start" => Some((&mut self.start, MAX_NAME_CHARS)),
            "title" => Some((&mut self.title, MAX_TITLE_CHARS)),
            "task" => Some((&mut self.task, MAX_TASK_CHARS)),
            _ => None,
        }
    }
}

/// The form.
pub(crate) async fn form(State(shared): State<Arc<Shared>>) -> Result<Response, PageError> {
    let all = shared.store.read(|reader| reader.assignments()).await?;
    let mut courses: Vec<String> = all.iter().map(|a| a.course.clone()).collect();
    courses.dedup();
    let copies = all
        .into_iter()
        .map(|a| (a.id, format!("{} / {}", a.course, a.title)));
    Ok(view::page(
        StatusCode::OK,
        &UploadPage {
            paths: shared.paths,
            courses,
            starts: view::STARTS,
            copies: copies.collect(),
        },
    ))
}

/// Reads what was sent, and shows what is in it.
pub(crate) async fn take(
    State(shared): State<Arc<Shared>>,
    form: Multipart,
) -> Result<Response, PageError> {
    let folder = shared.uploads.begin().map_err(unkept)?;
    let uploaded = receive(form, folder).await?;
    let copied = match uploaded.start.parse::<i64>() {
        Ok(id) => shared.store.read(move |reader| reader.rubric(id)).await?,
        Err(_) => None,
    };
    let copied = copied.map(|version| version.rubric);
    let intake = blocking(move || read(uploaded, copied)).await??;
    let id = random_text();
    shared.intakes.add(&id, intake);
    Ok(Redirect::to(&shared.paths.intake(&id)).into_response())
}

fn broken(error: MultipartError) -> PageError {
    let is_large = error.status() == StatusCode::PAYLOAD_TOO_LARGE;
    tracing::info!(%error, "what a browser sends cannot be taken");
    PageError::Form(match is_large {
        true => "The files are too large. Use `tandem grade --web` with their folder.".to_owned(),
        false => "The files did not come whole. Send them once more.".to_owned(),
    })
}

fn unkept(error: std::io::Error) -> PageError {
    tracing::error!(%error, "an uploaded file cannot be kept");
    PageError::Store
}

async fn receive(mut form: Multipart, folder: Upload) -> Result<Uploaded, PageError> {
    let mut uploaded = Uploaded {
        folder,
        course: String::new(),
        rubric: None,
        start: String::new(),
        title: String::new(),
        task: String::new(),
        sheet: None,
        works: Vec::new(),
        template: Vec::new(),
        solution: Vec::new(),
        tests: Vec::new(),
    };
    let root = uploaded.folder.path().to_owned();
    let mut count = 0;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        if let Some((text, most)) = uploaded.text(&name) {
            *text = read_text(field, &name, most).await?;
            continue;
        }
        // A browser sends a file without a name where none was chosen.
        let is_folder = name == "folder";
        let Some(file) = file_name(&field, is_folder) else {
            continue;
        };
        count += 1;
        if count > MAX_UPLOADED_FILES {
            let problem = format!("More than {MAX_UPLOADED_FILES} files; put them into a zip.");
            return Err(PageError::Form(problem));
        }
        if !FILES.contains(&name.as_str()) {
            continue;
        }
        if file.iter().any(|part| part.len() > MAX_FILE_NAME_BYTES) {
            let problem = "The name of a file is too long. Give it a shorter one.";
            return Err(PageError::Form(problem.to_owned()));
        }
        let first = root
            .join(&name)
            .join(file.first().map_or("", String::as_str));
        let path = root.join(&name).join(file.iter().collect::<PathBuf>());
        if path.exists() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let problem =
                format!("Two files are called “{name}”. Put them into a zip, in folders.");
            return Err(PageError::Form(problem));
        }
        keep(field, &path).await?;
        match name.as_str() {
            "works" => uploaded.works.push(path),
            "template" => uploaded.template.push(path),
            "solution" => uploaded.solution.push(path),
            "tests" => uploaded.tests.push(path),
            "sheet" => uploaded.sheet = Some(path),
            "folder" if !uploaded.works.contains(&first) => uploaded.works.push(first),
            "folder" => {}
            _ => uploaded.rubric = Some(path),
        }
    }
    let letters = uploaded.course.chars().count();
    if letters == 0 || letters > MAX_NAME_CHARS {
        let problem = format!("The course needs a name of 1 to {MAX_NAME_CHARS} letters.");
        return Err(PageError::Form(problem));
    }
    Ok(uploaded)
}

/// A text of the form; what is longer is refused while it comes.
async fn read_text(
    mut field: Field<'_>,
    name: &str,
    most_letters: usize,
) -> Result<String, PageError> {
    let mut bytes = Vec::new();
    while let Some(part) = field.chunk().await.map_err(broken)? {
        if bytes.len() + part.len() <= most_letters * 8 {
            bytes.extend(part);
        } else {
            return Err(PageError::Form(format!("The {name} is too long.")));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Parts of the form that are files.
const FILES: [&str; 7] = [
    "rubric", "template", "solution", "works", "folder", "sheet", "tests",
];

/// The last part of a file's name, or of a file in a folder all of them; nothing if a part would lead elsewhere or is hidden.
/// Signs that a system has no files with are lines.
fn file_name(field: &Field<'_>, is_in_folder: bool) -> Option<Vec<String>> {
    let name = field.file_name()?;
    let parts: Vec<&str> = match is_in_folder {
        true => name.split('/').collect(),
        false => name.rsplit(['/', '\\']).take(1).collect(),
    };
    let is_fine = |part: &&str| !part.is_empty() && !part.starts_with('.');
    let is_plain = !parts.is_empty() && parts.iter().all(is_fine);
    let odd = if cfg!(windows) { "\\:*?\"<>|\0" } else { "\0" };
    let plain = |part: &str| part.replace(|c| odd.contains(c), "_");
    is_plain.then(|| parts.into_iter().map(plain).collect())
}

async fn keep(mut field: Field<'_>, path: &Path) -> Result<(), PageError> {
    if let Some(folder) = path.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(unkept)?;
    }
    let mut file = tokio::fs::File::create(path).await.map_err(unkept)?;
    while let Some(part) = field.chunk().await.map_err(broken)? {
        file.write_all(&part).await.map_err(unkept)?;
    }
    file.flush().await.map_err(unkept)
}

fn read(uploaded: Uploaded, copied: Option<Rubric>) -> Result<Intake, PageError> {
    // A message names files as the person knows them.
    let told = |error: GradingError| {
        let mut text = error.to_string();
        for field in FILES {
            let folder = uploaded.folder.path().join(field).join("");
            text = text.replace(&folder.display().to_string(), "");
        }
        PageError::Form(format!("{text}."))
    };
    let path = rubric_file(&uploaded, copied.as_ref())?;
    // A rubric is what people pass on: it opens nothing on this machine but what came with it.
    let mut rubric =
        Rubric::load_with(&path, &uploaded.template, &uploaded.solution).map_err(told)?;
    if let Some(copied) = copied.filter(|_| uploaded.rubric.is_none()) {
        if rubric.templates.is_empty() {
            rubric.templates = copied.templates;
        }
        if rubric.solutions.is_empty() {
            rubric.solutions = copied.solutions;
        }
    }
    let mut submissions = load_submissions_for(&uploaded.works, &rubric).map_err(told)?;
    let sheet = uploaded.sheet.as_ref();
    let sheet = sheet
        .map(|path| read_sheet(path, &submissions))
        .transpose()?;
    let names = sheet.as_ref().map_or(&[][..], |(_, found)| &found.students);
    let tests = (!uploaded.tests.is_empty())
        .then(|| add_test_results(&mut submissions, names, &uploaded.tests))
        .transpose()
        .map_err(told)?;
    Ok(Intake {
        is_begun: uploaded.rubric.is_none(),
        course: uploaded.course,
        rubric,
        submissions,
        sheet,
        tests,
        works: uploaded.works,
        _folder: uploaded.folder,
    })
}

/// The file of the rubric: the one that was sent, or one that is made of a template, another assignment or a table.
fn rubric_file(uploaded: &Uploaded, copied: Option<&Rubric>) -> Result<PathBuf, PageError> {
    let mut draft = match (&uploaded.rubric, copied) {
        (Some(path), _) => {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let draft = read_draft(&name, &std::fs::read(path).map_err(unkept)?)?;
            if !draft.title.trim().is_empty() && !draft.task.trim().is_empty() {
                // With its comments, and all that it names.
                return Ok(path.clone());
            }
            draft
        }
        (None, Some(copied)) => {
            let mut draft = read_draft("the rubric", copied.source.as_bytes())?;
            // Its files are copied, not read again.
            (draft.template, draft.solution) = (Vec::new(), Vec::new());
            draft
        }
        (None, None) => {
            let found = view::STARTS
                .iter()
                .find(|start| start.name == uploaded.start);
            let Some(found) = found else {
                return Err(PageError::Form("There is no rubric.".to_owned()));
            };
            read_draft(found.title, found.source.as_bytes())?
        }
    };
    if !uploaded.title.is_empty() && uploaded.title != draft.title {
        draft.title.clone_from(&uploaded.title);
        draft.id.clear();
    }
    if draft.task.trim().is_empty() || copied.is_some() && !uploaded.task.is_empty() {
        draft.task.clone_from(&uploaded.task);
    }
    if draft.title.trim().is_empty() || draft.task.trim().is_empty() {
        let problem = "This rubric needs a title, and what the students were asked to do.";
        return Err(PageError::Form(problem.to_owned()));
    }
    draft.number();
    let path = uploaded.folder.path().join("rubric.yaml");
    std::fs::write(&path, draft.source()).map_err(unkept)?;
    Ok(path)
}

/// The teacher's own gradebook, and who of it handed something in.
fn read_sheet(
    path: &Path,
    submissions: &[Submission],
) -> Result<(SheetFile, Attendance), PageError> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let length = std::fs::metadata(path).map_err(unkept)?.len();
    let most = u64::try_from(MAX_TABLE_BYTES).unwrap_or(u64::MAX);
    if length > most {
        let problem = format!("{name} is no gradebook: it is larger than {most} bytes.");
        return Err(PageError::Form(problem));
    }
    let bytes = std::fs::read(path).map_err(unkept)?;
    let all: Vec<_> = submissions
        .iter()
        .map(|s| (s.name.as_str(), &s.origin))
        .collect();
    let found = attendance(&bytes, &all)
        .map_err(|error| PageError::Form(format!("{name} is no gradebook: {error}.")))?;
    Ok((SheetFile { name, bytes }, found))
}
