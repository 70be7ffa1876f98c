//! What was found in an upload, in words that a teacher knows.

use askama::Template;
use tandem_grading::{FindingKind, Submission, System};

use crate::intake::Intake;
use crate::limits::MAX_LISTED_FILES;
use crate::paths::Paths;
use crate::store::Reader;

/// What was found.
#[derive(Template)]
#[template(path = "intake.html")]
pub(crate) struct IntakePage {
    pub(crate) paths: Paths,
    pub(crate) action: String,
    pub(crate) course: String,
    pub(crate) title: String,
    /// `30 students, 2 with several files, 1 late`.
    pub(crate) summary: String,
    /// What the names come from, where that is known.
    pub(crate) system: Option<&'static str>,
    /// Those that want a look first.
    pub(crate) odd: Vec<IntakeRow>,
    pub(crate) others: Vec<IntakeRow>,
    /// Name of the teacher's own gradebook.
    pub(crate) sheet: Option<String>,
    /// How many have results of tests, and which files are nobody's.
    pub(crate) tests: Option<(usize, Vec<String>)>,
    /// Who of it handed nothing in.
    pub(crate) absent: Vec<String>,
}

/// One submission.
pub(crate) struct IntakeRow {
    pub(crate) index: usize,
    pub(crate) name: String,
    /// What the name of the file or folder says, where the student is called otherwise.
    pub(crate) from: Option<String>,
    pub(crate) files: String,
    /// What is to be known of it.
    pub(crate) remarks: Vec<String>,
}

impl IntakePage {
    pub(crate) fn new(
        paths: Paths,
        id: &str,
        intake: &Intake,
        reader: &Reader<'_>,
    ) -> rusqlite::Result<Self> {
        let (mut odd, mut others) = (Vec::new(), Vec::new());
        for (index, submission) in intake.submissions.iter().enumerate() {
            let of = (intake.course.as_str(), &intake.rubric);
            let earlier = reader.earlier_of(of, submission)?;
            let (row, is_odd) = IntakeRow::new(intake, index, earlier);
            match is_odd {
                true => odd.push(row),
                false => others.push(row),
            }
        }
        let mut systems = intake.submissions.iter().map(|one| one.origin.system);
        let system = systems.find(|system| *system != System::Plain);
        Ok(Self {
            paths,
            action: paths.intake(id),
            course: intake.course.clone(),
            title: intake.rubric.title.clone(),
            summary: summary(intake),
            system: system.map(System::as_str),
            odd,
            others,
            sheet: intake.sheet.as_ref().map(|(sheet, _)| sheet.name.clone()),
            tests: intake.tests.as_ref().map(|found| {
                let unknown = found
                    .unknown
                    .iter()
                    .map(|file| format!("{file}: of no student"));
                let odd = unknown.chain(found.unreadable.iter().cloned());
                (found.submissions, odd.take(MAX_LISTED_FILES).collect())
            }),
            absent: intake
                .sheet
                .as_ref()
                .map_or_else(Vec::new, |(_, found)| found.absent.clone()),
        })
    }
}

/// How many there are of what.
fn summary(intake: &Intake) -> String {
    let all = &intake.submissions;
    let count = |is: &dyn Fn(&Submission) -> bool| all.iter().filter(|one| is(one)).count();
    let groups = count(&|one| one.origin.students.len() > 1);
    let mut parts = vec![match (all.len(), groups) {
        (1, 0) => "1 student".to_owned(),
        (n, 0) => format!("{n} students"),
        (n, groups) => format!("{n} submissions, {groups} of groups"),
    }];
    let absent = intake
        .sheet
        .as_ref()
        .map_or(0, |(_, found)| found.absent.len());
    for (count, what) in [
        (
            count(&|one| one.files.iter().filter(|f| !f.is_tests).count() > 1),
            "with several files",
        ),
        (count(&|one| one.origin.is_late), "late"),
        (count(&|one| one.problem.is_some()), "to grade by hand"),
        (
            count(&|one| one.untouched(&intake.rubric).is_some()),
            "with nothing written",
        ),
        (absent, "who handed nothing in"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ")
}

impl IntakeRow {
    /// With whether it wants a look.
    fn new(intake: &Intake, index: usize, earlier: Option<bool>) -> (Self, bool) {
        let submission = &intake.submissions[index];
        let mut remarks = Vec::new();
        if let Some(problem) = &submission.problem {
            remarks.push(format!("{}: to be graded by hand", problem.text));
        }
        if let Some(how) = submission.untouched(&intake.rubric) {
            remarks.push(format!("{}: no model is asked", how.as_str()));
        }
        let doubt = intake
            .sheet
            .as_ref()
            .and_then(|(_, found)| found.doubts[index].as_deref());
        remarks.extend(doubt.map(str::to_owned));
        if earlier == Some(false) {
            remarks.push("takes the place of what was handed in before".to_owned());
        }
        let lacks_something = submission
            .flags
            .iter()
            .any(|flag| flag.kind == FindingKind::LeftOut);
        let is_odd = !remarks.is_empty() || lacks_something;
        if earlier == Some(true) {
            remarks.push("is there already".to_owned());
        }
        let flags = submission.flags.iter().map(|flag| flag.text.clone());
        remarks.extend(flags.chain(submission.notes.iter().cloned()));
        let name = intake.name(index);
        let students = intake
            .sheet
            .as_ref()
            .map(|(_, found)| found.students[index].as_slice());
        let from = match students {
            Some([_, _, ..]) => students.map(|all| all.join("; ")),
            Some([one]) if one != name => Some(one.clone()),
            // Two of one name are told apart by their numbers.
            _ if intake.has_namesake(index) => submission.origin.key(),
            _ => (name != submission.name).then(|| submission.name.clone()),
        };
        let row = Self {
            index,
            name: name.to_owned(),
            from,
            files: files(submission),
            remarks,
        };
        (row, is_odd)
    }
}

/// Names of files, the first of many.
fn files(submission: &Submission) -> String {
    let names: Vec<&str> = submission
        .files
        .iter()
        .map(|file| file.name.as_str())
        .collect();
    match names.len().checked_sub(MAX_LISTED_FILES) {
        Some(more @ 1..) => format!("{} and {more} more", names[..MAX_LISTED_FILES].join(", ")),
        _ => names.join(", "),
    }
}
