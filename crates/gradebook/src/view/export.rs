//! What an export would write.

use tandem_grading::export::{Choice, Format, Left, Outline, Refusal, SheetKind};
use tandem_grading::review::State;

use crate::exports::{Rows, Written};
use crate::paths::Paths;

/// Letters of a cell that a preview shows.
const SHOWN: usize = 40;

/// What would change in the teacher's own gradebook.
pub(crate) struct SheetView {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// Place and title of each column that may take the grades, and whether it is the one.
    pub(crate) columns: Vec<(usize, String, bool)>,
    pub(crate) takes_feedback: bool,
    pub(crate) with_feedback: bool,
    pub(crate) scales: bool,
    /// True if the maxima differ.
    pub(crate) can_scale: bool,
    /// Why nothing can be written.
    pub(crate) problem: Option<String>,
    pub(crate) changes: Vec<ChangeView>,
    /// Grades that stand there already.
    pub(crate) same: usize,
    /// Link, name and reason.
    pub(crate) left: Vec<(String, String, String)>,
    /// The same of what is not approved, and has a grade in the file.
    pub(crate) unapproved: Vec<(String, String, String)>,
    /// The same of what is not approved, and is not found in the file.
    pub(crate) unknown: Vec<(String, String, String)>,
    pub(crate) absent: Vec<String>,
    /// How many are absent, also where their names are hidden.
    pub(crate) absent_count: usize,
    pub(crate) digest: String,
}

/// A cell that changes.
pub(crate) struct ChangeView {
    pub(crate) href: String,
    pub(crate) student: String,
    pub(crate) column: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

/// A form of tandem's own.
#[derive(Clone)]
pub(crate) struct FormatView {
    pub(crate) value: &'static str,
    pub(crate) name: &'static str,
    pub(crate) note: &'static str,
}

/// What a form is for, in a teacher's words.
pub(crate) const fn format(format: Format) -> FormatView {
    let (name, note) = match format {
        Format::Csv => (
            "A table of grades",
            "CSV, which Excel and LibreOffice open; a row for each approved submission",
        ),
        Format::Feedback => (
            "Feedback files",
            "a zip with a page to print and a Markdown file for each student",
        ),
        Format::Moodle => (
            "Feedback for Moodle",
            "a zip for “Upload multiple feedback files”, in the folders that Moodle gave",
        ),
        Format::Nbgrader => (
            "nbgrader",
            "a zip with its tree of feedback, and a table of grades",
        ),
        Format::Gradescope => (
            "Gradescope",
            "a zip with the results of each submission, for an autograder that looks them up",
        ),
        Format::Json => ("For programs", "everything that was approved, in one file"),
    };
    FormatView {
        value: format.as_str(),
        name,
        note,
    }
}

/// Of what a preview showed.
pub(crate) fn digest(written: &Written) -> String {
    blake3::hash(&written.export.bytes).to_hex().to_string()
}

fn short(cell: &str) -> String {
    let count = cell.chars().count();
    match count > SHOWN {
        true => {
            let first: String = cell.chars().take(SHOWN).collect();
            format!("{first} … ({count} letters)")
        }
        false => cell.to_owned(),
    }
}

impl SheetView {
    pub(crate) fn new(
        (paths, names_hidden): (Paths, bool),
        name: String,
        (known, written): (Result<Outline, Refusal>, Result<Written, Refusal>),
        choice: &Choice,
    ) -> Self {
        let known = known.ok();
        let suggested = known.as_ref().and_then(|known| known.suggested);
        let chosen = choice.column.or(suggested);
        let can_scale = choice.scales || matches!(written, Err(Refusal::Maximum { .. }));
        let mut view = Self {
            name,
            kind: match known.as_ref().map(|known| known.kind) {
                Some(SheetKind::Canvas) => "a Canvas gradebook",
                Some(SheetKind::Moodle) => "a Moodle grading worksheet",
                _ => "a table",
            },
            takes_feedback: known.as_ref().is_some_and(|known| known.takes_feedback),
            columns: known.map_or_else(Vec::new, |known| {
                let columns = known.columns.into_iter();
                let columns = columns.map(|c| (c.index, c.title, Some(c.index) == chosen));
                columns.collect()
            }),
            with_feedback: choice.with_feedback,
            scales: choice.scales,
            can_scale,
            problem: None,
            changes: Vec::new(),
            same: 0,
            left: Vec::new(),
            unapproved: Vec::new(),
            unknown: Vec::new(),
            absent: Vec::new(),
            absent_count: 0,
            digest: String::new(),
        };
        match written {
            Ok(written) => view.fill((paths, names_hidden), written),
            Err(refusal) => view.problem = Some(refusal.to_string()),
        }
        view
    }

    /// The same without the values of works, by their links: this person grades them blind.
    pub(crate) fn without(mut self, blind: &[String]) -> Self {
        for change in self
            .changes
            .iter_mut()
            .filter(|one| blind.contains(&one.href))
        {
            change.before = "you grade it blind".to_owned();
            change.after = "hidden until then".to_owned();
        }
        self
    }

    fn fill(&mut self, (paths, names_hidden): (Paths, bool), written: Written) {
        self.digest = digest(&written);
        let works = &written.works;
        let of = |row: usize| works.get(row).map_or(0, |work| work.0);
        let name = |row: usize, name: &str| match names_hidden {
            true => format!("submission {}", of(row)),
            false => name.to_owned(),
        };
        let export = written.export;
        let grades = export.changes.iter().filter(|c| !c.is_feedback).count();
        self.same = export.grades - grades;
        self.changes = export
            .changes
            .iter()
            .map(|change| ChangeView {
                href: paths.work(of(change.row)),
                student: name(change.row, &change.student),
                column: change.column.clone(),
                before: short(&change.before),
                after: short(&change.after),
            })
            .collect();
        let named = |left: &Left| {
            let called = works.get(left.row).map_or("", |work| work.1.as_str());
            (
                paths.work(of(left.row)),
                name(left.row, called),
                left.why.clone(),
            )
        };
        self.left = export.left.iter().map(named).collect();
        self.unapproved = export.unapproved.iter().map(named).collect();
        self.unknown = export.unknown.iter().map(named).collect();
        self.absent_count = export.absent.len();
        self.absent = match names_hidden {
            true => Vec::new(),
            false => export.absent,
        };
    }
}

/// How many submissions are how far, in words, each with a link to the first of them.
pub(crate) fn counts(
    paths: Paths,
    rows: &Rows,
    sheet: Option<&SheetView>,
) -> Vec<(usize, &'static str, String)> {
    let of = |states: &[State]| {
        let first = rows.first(|state| states.contains(&state));
        first.map_or_else(String::new, |work| paths.work(work))
    };
    let counts = &rows.counts;
    let [failed, by_hand] = rows
        .first_failed()
        .map(|first| first.map_or_else(String::new, |work| paths.work(work)));
    let mut all = vec![
        (counts.approved, "approved", of(&[State::Approved])),
        (
            counts.open,
            "not approved yet",
            of(&[State::ToReview, State::ToApprove]),
        ),
        (counts.failed, "failed", failed),
        (counts.by_hand, "to grade by hand", by_hand),
        (counts.ungraded, "not graded yet", of(&[State::Ungraded])),
        (
            counts.not_attempted,
            "with nothing in them",
            of(&[State::NotAttempted]),
        ),
        (
            counts.without_points,
            "settled without points",
            of(&[State::WithoutPoints]),
        ),
    ];
    let again = rows
        .first_again()
        .map_or_else(String::new, |work| paths.work(work));
    all.push((
        counts.again,
        "handed in again since they were approved",
        again,
    ));
    let quick = rows.first_quick();
    let quick = quick.map_or_else(String::new, |work| paths.work(work));
    all.push((counts.quick, "approved within two seconds", quick));
    let absent = sheet.map_or(0, |sheet| sheet.absent_count);
    all.push((absent, "not submitted", "#absent".to_owned()));
    all.retain(|(count, _, _)| *count > 0);
    all
}
