//! What a page shows, as plain values: templates hold no rules, and escape every text.

pub(crate) mod agreement;
pub(crate) mod code;
pub(crate) mod desk;
pub(crate) mod export;
pub(crate) mod intake;
pub(crate) mod list;
pub(crate) mod live;
pub(crate) mod queue;
pub(crate) mod rubric;
pub(crate) mod run;
pub(crate) mod words;

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Shared;
use crate::erase::Erasure;
use crate::error::PageError;
use crate::paths::Paths;
use crate::store::{Assignment, Past, PastExport};
use tandem_grading::{Length, Style};

/// A page or a part of one as an answer.
pub(crate) fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => {
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            (status, [(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "a page cannot be made");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The path of an asset.
fn asset(name: &str) -> String {
    crate::assets::path(name)
}

/// What would be deleted.
#[derive(Template)]
#[template(path = "delete.html")]
pub(crate) struct ErasePage {
    pub(crate) paths: Paths,
    pub(crate) action: String,
    pub(crate) back: String,
    pub(crate) choices: Vec<EraseView>,
}

/// One choice of it.
pub(crate) struct EraseView {
    pub(crate) what: &'static str,
    pub(crate) title: &'static str,
    pub(crate) button: &'static str,
    pub(crate) count: usize,
    pub(crate) names: String,
    pub(crate) assignments: Vec<String>,
    pub(crate) not_exported: i64,
    /// Where a student is.
    pub(crate) places: Vec<String>,
    /// Works of groups that stay.
    pub(crate) groups: String,
    /// What the page showed.
    pub(crate) seen: String,
}

impl EraseView {
    pub(crate) fn new(what: &'static str, erasure: Erasure, names_hidden: bool) -> Self {
        let (title, button) = match what {
            "submission" => ("This submission", "Delete it"),
            "student" => (
                "All of this student, in every course",
                "Delete all of this student",
            ),
            "assignment" => ("This assignment", "Delete the assignment"),
            _ => ("The whole course", "Delete the course"),
        };
        let seen = erasure.digest();
        let is_of_some = erasure.assignments.is_empty() && !names_hidden;
        Self {
            what,
            title,
            button,
            count: erasure.works.len(),
            names: match is_of_some {
                true => erasure.names.join("; "),
                false => String::new(),
            },
            assignments: erasure
                .assignments
                .into_iter()
                .map(|one| format!("{} / {}", one.course, one.title))
                .collect(),
            not_exported: erasure.not_exported,
            seen,
            groups: match names_hidden {
                true => String::new(),
                false => erasure.groups.join("; "),
            },
            places: erasure
                .sheets
                .into_iter()
                .map(|one| format!("{} / {}", one.course, one.title))
                .collect(),
        }
    }
}

/// Why there is nothing to see.
#[derive(Template)]
#[template(path = "problem.html")]
pub(crate) struct Problem {
    pub(crate) title: &'static str,
    pub(crate) text: String,
    /// Where to go on, the most likely first: an address, and what it is called.
    pub(crate) links: Vec<(String, &'static str)>,
}

/// Opens an address again, without its token.
#[derive(Template)]
#[template(path = "enter.html")]
pub(crate) struct Enter {
    pub(crate) path: String,
}

/// All assignments.
#[derive(Template)]
#[template(path = "home.html")]
pub(crate) struct Home {
    pub(crate) paths: Paths,
    pub(crate) assignments: Vec<HomeRow>,
    /// One's own name.
    pub(crate) name: String,
    pub(crate) is_teacher: bool,
    pub(crate) people: Vec<PersonRow>,
    /// Number and name of each, for the teacher alone.
    pub(crate) courses: Vec<(i64, String)>,
    /// For the teacher alone.
    pub(crate) browsers: Vec<BrowserRow>,
}

/// A browser that is let in.
pub(crate) struct BrowserRow {
    pub(crate) person: String,
    /// What it calls itself, as far as a person knows it by that.
    pub(crate) agent: String,
    /// Milliseconds since 1970.
    pub(crate) since: i64,
    /// True if it shows this page.
    pub(crate) is_this: bool,
    pub(crate) let_out: String,
}

/// A new assignment.
#[derive(Template)]
#[template(path = "new.html")]
pub(crate) struct UploadPage {
    pub(crate) paths: Paths,
    pub(crate) courses: Vec<String>,
    pub(crate) starts: &'static [Start],
    /// Number and name of each assignment whose rubric can be copied.
    pub(crate) copies: Vec<(i64, String)>,
}

/// A rubric to begin with, which lacks a title and a task.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) source: &'static str,
}

/// All of them.
pub(crate) const STARTS: &[Start] = &[
    Start {
        name: "exercise",
        title: "an exercise in programming",
        source: include_str!("../assets/rubrics/exercise.yaml"),
    },
    Start {
        name: "notebook",
        title: "a notebook with data",
        source: include_str!("../assets/rubrics/notebook.yaml"),
    },
    Start {
        name: "project",
        title: "a project of several files",
        source: include_str!("../assets/rubrics/project.yaml"),
    },
    Start {
        name: "reflection",
        title: "answers in words",
        source: include_str!("../assets/rubrics/reflection.yaml"),
    },
];

/// Somebody who grades.
pub(crate) struct PersonRow {
    pub(crate) name: String,
    pub(crate) works: i64,
    /// Those that they see.
    pub(crate) courses: Vec<i64>,
    pub(crate) see: String,
    pub(crate) dismiss: String,
    pub(crate) forget: String,
    pub(crate) is_invited: bool,
}

/// A link that lets somebody in.
#[derive(Template)]
#[template(path = "invited.html")]
pub(crate) struct Invited {
    pub(crate) paths: Paths,
    /// Who was invited; nobody if it is the teacher's own.
    pub(crate) name: Option<String>,
    pub(crate) link: String,
}

/// One of them.
pub(crate) struct HomeRow {
    pub(crate) href: String,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) meter: Meter,
    /// The last run, unless it is over: where it is, and how far.
    pub(crate) run: Option<(String, String)>,
}

/// How many works are how far, as a bar and in words.
#[derive(Clone)]
pub(crate) struct Meter {
    /// Class, first and size of each part, in hundredths.
    pub(crate) parts: Vec<(&'static str, usize, usize)>,
    pub(crate) text: String,
}

/// The top of a page about an assignment.
pub(crate) struct Head {
    pub(crate) paths: Paths,
    /// Where the assignment is graded, for a teacher.
    pub(crate) grade: Option<String>,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) meter: Meter,
    pub(crate) names_hidden: bool,
}

impl Head {
    pub(crate) fn new(
        paths: Paths,
        assignment: &Assignment,
        meter: Meter,
        (names_hidden, is_teacher): (bool, bool),
    ) -> Self {
        Self {
            paths,
            grade: is_teacher.then(|| paths.runs(assignment.id)),
            course: assignment.course.clone(),
            title: assignment.title.clone(),
            meter,
            names_hidden,
        }
    }
}

/// A work under review.
#[derive(Template)]
#[template(path = "review.html")]
pub(crate) struct ReviewPage {
    pub(crate) head: Head,
    pub(crate) queue: queue::Queue,
    pub(crate) code: code::Code,
    pub(crate) desk: desk::Desk,
}

/// Where the way through a list ends.
#[derive(Template)]
#[template(path = "end.html")]
pub(crate) struct EndPage {
    pub(crate) head: Head,
    pub(crate) undo: String,
    /// True if the list has not all submissions, or works by one criterion.
    pub(crate) is_part: bool,
    /// How many of the list, and of the assignment, need a person; and the first of them.
    pub(crate) open_here: usize,
    pub(crate) next_here: Option<String>,
    pub(crate) open: usize,
    pub(crate) next: Option<String>,
    /// All submissions, from the first one.
    pub(crate) all: Option<String>,
    /// Where grades leave, for the teacher; and how far persons and models agree.
    pub(crate) export: Option<String>,
    pub(crate) agreement: Option<String>,
}

/// What an export would write.
#[derive(Template)]
#[template(path = "export.html")]
pub(crate) struct ExportPage {
    pub(crate) paths: Paths,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) review: String,
    /// Where the preview is asked for, and the file.
    pub(crate) action: String,
    /// Where the teacher's own gradebook goes.
    pub(crate) upload: String,
    /// How many are how far: number, words, and a link to the first.
    pub(crate) counts: Vec<(usize, &'static str, String)>,
    pub(crate) approved: usize,
    pub(crate) sheet: Option<export::SheetView>,
    pub(crate) formats: Vec<export::FormatView>,
    pub(crate) past: Vec<PastExport>,
}

/// The same but for the work itself: what a change can change.
#[derive(Template)]
#[template(path = "parts.html")]
pub(crate) struct ReviewParts {
    pub(crate) head: Head,
    pub(crate) queue: queue::Queue,
    pub(crate) desk: desk::Desk,
}

/// A run.
#[derive(Template)]
#[template(path = "run.html")]
pub(crate) struct RunPage {
    pub(crate) run: run::RunView,
    pub(crate) events: Option<String>,
}

/// What would be graded.
#[derive(Template)]
#[template(path = "start.html")]
pub(crate) struct StartPage {
    pub(crate) paths: Paths,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) action: String,
    pub(crate) review: String,
    pub(crate) new: usize,
    pub(crate) failed: usize,
    pub(crate) stale: usize,
    /// How many of them for one criterion alone.
    pub(crate) stale_for: Vec<(String, usize)>,
    pub(crate) fresh: usize,
    /// Works that a person has settled, which no run touches.
    pub(crate) settled: usize,
    pub(crate) due: usize,
    pub(crate) few: usize,
    pub(crate) is_first: bool,
    /// How long all would take.
    pub(crate) time: Option<String>,
    /// Link, name and reason of works that no model is asked about.
    pub(crate) odd: Vec<(String, String, String)>,
    pub(crate) warnings: Vec<String>,
    pub(crate) models: Vec<String>,
    /// Machines that do not answer.
    pub(crate) down: Vec<String>,
    pub(crate) chosen: [String; 2],
    pub(crate) is_parallel: bool,
    /// The answers of the last run had the same bits each time.
    pub(crate) is_reproducible: bool,
    pub(crate) style: StyleView,
    /// Where its rubric is written.
    pub(crate) rubric: String,
    /// Where it is deleted.
    pub(crate) erase: String,
    /// Where grades leave.
    pub(crate) export: String,
    pub(crate) agreement: String,
    /// Where works are divided, among how many, and whether they are.
    pub(crate) shares: String,
    pub(crate) people: usize,
    pub(crate) is_divided: bool,
    pub(crate) runs: Vec<run::RunLink>,
}

/// How the feedback is to be written.
pub(crate) struct StyleView {
    pub(crate) language: String,
    pub(crate) tone: String,
    /// Each length, with its words, and whether it is chosen.
    pub(crate) lengths: Vec<(&'static str, usize, bool)>,
    pub(crate) advice: bool,
    /// True if something is otherwise than the rubric says.
    pub(crate) is_set: bool,
}

impl StyleView {
    pub(crate) fn new(style: &Style) -> Self {
        let length = |l: Length| (l.as_str(), l.words(), style.length == Some(l));
        Self {
            language: style.language.clone().unwrap_or_default(),
            tone: style.tone.clone().unwrap_or_default(),
            lengths: Length::ALL.into_iter().map(length).collect(),
            advice: style.advice_at_full_marks,
            is_set: *style != Style::default(),
        }
    }
}

/// One submission, graded live.
#[derive(Template)]
#[template(path = "try.html")]
pub(crate) struct TrialPage {
    pub(crate) paths: Paths,
    pub(crate) form: TrialForm,
    pub(crate) stop: Option<String>,
    pub(crate) events: Option<String>,
    pub(crate) live: Option<live::LiveView>,
}

/// What is graded, by what and by whom.
pub(crate) struct TrialForm {
    pub(crate) name: String,
    pub(crate) text: String,
    /// Number, title, and whether it is chosen.
    pub(crate) rubrics: Vec<(i64, String, bool)>,
    pub(crate) models: Vec<String>,
    /// For the points, and for the feedback.
    pub(crate) chosen: [String; 2],
    pub(crate) is_after: bool,
    pub(crate) style: StyleView,
}

/// An assignment without works.
#[derive(Template)]
#[template(path = "empty.html")]
pub(crate) struct Empty {
    pub(crate) paths: Paths,
    pub(crate) title: String,
}

/// What the models were sent.
#[derive(Template)]
#[template(path = "prompt.html")]
pub(crate) struct PromptPage {
    pub(crate) label: String,
    pub(crate) back: String,
    /// What it is called, and its text.
    pub(crate) parts: Vec<(&'static str, String)>,
}

/// What was done to a work.
#[derive(Template)]
#[template(path = "record.html")]
pub(crate) struct RecordPage {
    pub(crate) label: String,
    /// The record of what was handed in before.
    pub(crate) earlier: Option<String>,
    pub(crate) back: String,
    /// Where it is deleted, for a teacher.
    pub(crate) erase: Option<String>,
    pub(crate) history: Vec<Past>,
    pub(crate) calls: Vec<CallRow>,
}

/// One call of a model, in a teacher's words.
pub(crate) struct CallRow {
    pub(crate) at: i64,
    pub(crate) job: &'static str,
    pub(crate) model: String,
    pub(crate) outcome: String,
    /// Why there is no usable answer.
    pub(crate) cause: Option<String>,
    /// The answer as it came.
    pub(crate) answer: Option<String>,
    pub(crate) seconds: String,
    pub(crate) machines: String,
    pub(crate) read: String,
    pub(crate) written: String,
}

impl IntoResponse for PageError {
    /// The status alone: [`problem`] makes the page, which has links.
    fn into_response(self) -> Response {
        let mut response = self.told().0.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Makes the page of a problem.
pub(crate) async fn problem(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let form = form_of(&request);
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<Arc<PageError>>() else {
        return response;
    };
    let (status, title, text) = error.told();
    let run = shared.runs.any().map(|going| shared.paths.run(going.run));
    let run = run.filter(|_| matches!(**error, PageError::Busy));
    let form = form.filter(|_| !matches!(**error, PageError::NotFound | PageError::NotAllowed));
    let home = Some(shared.paths.home().to_owned());
    let named = [
        (run, "The run that goes on"),
        (form, "Back to the form"),
        (home, "All courses"),
    ];
    let links = match **error {
        // Each would lead to this page again, and who was not let in is not told where the pages are.
        PageError::NotLetIn => Vec::new(),
        _ => named
            .into_iter()
            .filter_map(|(href, name)| Some((href?, name)))
            .collect(),
    };
    page(status, &Problem { title, text, links })
}

/// The page from which a form was sent, where it has the same address.
fn form_of(request: &Request) -> Option<String> {
    let path = request.uri().path();
    let last = path.rsplit('/').next()?;
    let is_page = ["new", "try", "run", "export"].contains(&last) || last.parse::<i64>().is_ok();
    let page = match last {
        "sheet" => Some(path.replace("/sheet", "/export")),
        _ => is_page.then(|| path.to_owned()),
    };
    page.filter(|_| request.method() == Method::POST)
}

impl PageError {
    fn told(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "There is nothing here",
                "It may have been handed in again or deleted, or the address is not whole.".to_owned(),
            ),
            Self::NotLetIn => (
                StatusCode::UNAUTHORIZED,
                "This browser was not let in yet",
                "Open the address that tandem printed when it started; it ends with a token."
                    .to_owned(),
            ),
            Self::NotAllowed => (
                StatusCode::FORBIDDEN,
                "Only the teacher may do this",
                "Ask the person who invited you.".to_owned(),
            ),
            Self::Foreign => (
                StatusCode::FORBIDDEN,
                "This was asked by another page",
                "Nothing was changed. Open the gradebook itself and do it there.".to_owned(),
            ),
            Self::Form(problem) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "This cannot be kept",
                problem.clone(),
            ),
            Self::NoModels => (
                StatusCode::SERVICE_UNAVAILABLE,
                "No model is loaded",
                "Start tandem with a model, and open this page again. What is kept can be reviewed meanwhile."
                    .to_owned(),
            ),
            Self::NoAnswer => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The models do not answer",
                "Nothing was started. Try again; if it stays so, look at what tandem printed.".to_owned(),
            ),
            Self::Busy => (
                StatusCode::CONFLICT,
                "A run is going on",
                "Wait for its end, or stop it. It may be one of another tandem on this machine.".to_owned(),
            ),
            Self::Store => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The gradebook cannot be read or written",
                "What was saved before is still there. Look at what tandem printed, and try again."
                    .to_owned(),
            ),
        }
    }
}
