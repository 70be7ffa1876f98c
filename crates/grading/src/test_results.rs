//! Results of tests that a teacher ran elsewhere: facts beside a submission, for a person and for models, without a verdict.
//! Nothing of a student is run here.
//!
//! [`add_test_results`] puts them into each submission as one more file, so that lines of it can be cited as evidence, and
//! people in it are hidden like in all others. What a test printed may come from a student: it is data like the rest.

use crate::archive::Budget;
use crate::error::GradingError;
use crate::files;
use crate::hidden::strip_ansi;
use crate::limits;
use crate::pseudonym::Roster;
use crate::source::{Kind, is_litter, read_source};
use crate::submission::Submission;
use crate::tree::{Entry, Shape, stem};
use roxmltree::{Document, Node, ParsingOptions};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use unicode_normalization::UnicodeNormalization;

/// What came of the results under some paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TestResults {
    /// How many submissions have some.
    pub submissions: usize,
    /// Files that are of no submission, or could be of several.
    pub unknown: Vec<String>,
    /// Files of a submission that cannot be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// What stands before the counts in the note of a submission.
const NOTE: &str = "tests that were run elsewhere: ";
/// What the file is called.
const NAME: &str = "tests";

/// How a test ended; what asks for a look comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Failed,
    Broke,
    Partly,
    Skipped,
    Told,
    Passed,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Passed,
        Self::Partly,
        Self::Failed,
        Self::Broke,
        Self::Skipped,
        Self::Told,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Broke => "ended with an error",
            Self::Partly => "partly passed",
            Self::Skipped => "skipped",
            Self::Told => "without a result",
            Self::Passed => "passed",
        }
    }
}

struct Case {
    outcome: Outcome,
    name: String,
    /// What it said, such as what was expected.
    said: String,
    /// The student shall not know of it.
    is_hidden: bool,
}

/// Puts results beside the submissions that they are of. A path is a file, a folder or an archive with files in JUnit's XML
/// and Gradescope's `results.json`; a file, or a folder that it is in, is named by the submission, by who handed it in, or by
/// the folder that a learning system made; or by a student of a teacher's own list, of which `names` has those of each
/// submission. Other files are passed over. Results that were there before go.
///
/// # Errors
/// A path that does not exist, or more files or bytes than the limits allow.
pub fn add_test_results(
    submissions: &mut [Submission],
    names: &[Vec<String>],
    paths: &[PathBuf],
) -> Result<TestResults, GradingError> {
    let budget = Budget::new();
    let mut results = TestResults::default();
    let mut found = Vec::new();
    for path in paths {
        let fault =
            |problem: String| GradingError::Submissions(format!("{}: {problem}", path.display()));
        std::fs::metadata(path).map_err(|source| GradingError::Read {
            path: path.clone(),
            source,
        })?;
        // A folder may be named by a link.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let root = Entry::of(&real);
        let walked = walk(&root, &[], (&mut found, &mut results.unreadable), &budget);
        walked.map_err(fault)?;
    }
    let owners = owners(submissions, names);
    let mut of: BTreeMap<usize, Vec<Case>> = BTreeMap::new();
    for (path, entry) in found {
        let shown = path.join("/");
        let Some(owner) = owner(&owners, &path) else {
            results.unknown.push(shown);
            continue;
        };
        let read = entry.read(limits::MAX_SOURCE_BYTES, &budget);
        match read.and_then(|bytes| cases(&entry.name, &bytes)) {
            Ok(cases) => of.entry(owner).or_default().extend(cases),
            Err(problem) => results.unreadable.push(format!("{shown}: {problem}")),
        }
        if let Some(problem) = budget.exceeded() {
            return Err(GradingError::Submissions(format!("{shown}: {problem}")));
        }
    }
    results.submissions = of.len();
    let known = submissions
        .iter()
        .map(|one| (one.name.as_str(), &one.origin));
    let roster = Roster::new(known, None);
    for (index, one) in submissions.iter_mut().enumerate() {
        one.forget_tests();
        if let Some(mut cases) = of.remove(&index) {
            cases.sort_by_key(|case| case.outcome);
            if let Err(problem) = one.put_tests(&cases) {
                results.unreadable.push(format!("{}: {problem}", one.name));
            }
        }
        one.tests_are_known = true;
        roster.hide(one);
    }
    Ok(results)
}

/// All files that may be results, each with its path from the root on, and what cannot be looked into.
fn walk(
    entry: &Entry,
    path: &[String],
    (found, faults): (&mut Vec<(Vec<String>, Entry)>, &mut Vec<String>),
    budget: &Budget,
) -> Result<(), String> {
    let path = [path, std::slice::from_ref(&entry.name)].concat();
    let is_root = path.len() == 1;
    match entry.shape() {
        Shape::Folder | Shape::Archive if path.len() > limits::MAX_TEST_DEPTH => {
            faults.push(format!("{}: too deep a folder", path.join("/")));
        }
        Shape::Folder | Shape::Archive => match entry.entries(budget) {
            Ok(entries) => {
                for inside in entries.iter().filter(|inside| !is_litter(&inside.name)) {
                    walk(inside, &path, (found, faults), budget)?;
                }
            }
            Err(problem) if is_root => return Err(problem),
            Err(problem) => faults.push(format!("{}: {problem}", path.join("/"))),
        },
        Shape::File => {
            let extension = entry.name.rsplit_once('.').map(|(_, e)| e.to_lowercase());
            if matches!(extension.as_deref(), Some("xml" | "json")) {
                found.push((path, entry.clone()));
            }
            if found.len() > limits::MAX_TEST_FILES {
                return Err(format!("more than {} files", limits::MAX_TEST_FILES));
            }
        }
        Shape::Problem => {}
    }
    Ok(())
}

/// Which submission a name means; none where several have it.
fn owners(submissions: &[Submission], names: &[Vec<String>]) -> BTreeMap<String, Option<usize>> {
    let mut owners: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for (index, one) in submissions.iter().enumerate() {
        let students = one.origin.students.iter();
        let students = students.flat_map(|s| s.ids.iter().chain([&s.name]));
        let listed = names.get(index).into_iter().flatten();
        for name in students
            .chain([&one.name, &one.origin.folder])
            .chain(listed)
        {
            let owner = owners.entry(folded(name)).or_insert(Some(index));
            *owner = owner.filter(|other| *other == index);
        }
    }
    owners.remove("");
    owners
}

/// Whose a file is: its name and the folders that it is in say the same, as far as they say something. The folder that holds
/// all of them is called as somebody likes.
fn owner(owners: &BTreeMap<String, Option<usize>>, path: &[String]) -> Option<usize> {
    let (file, folders) = path.split_last()?;
    let file = stem(file);
    // As Ant writes it before a name.
    let bare = file.strip_prefix("TEST-").unwrap_or(&file).to_owned();
    let folders = folders.iter().skip(1);
    let archives = folders.clone().map(|folder| stem(folder));
    let names = [file, bare]
        .into_iter()
        .chain(folders.cloned())
        .chain(archives);
    let said = names.filter_map(|name| owners.get(&folded(&name)).copied());
    let said: BTreeSet<Option<usize>> = said.collect();
    match said.len() {
        1 => said.into_iter().next().flatten(),
        _ => None,
    }
}

fn folded(name: &str) -> String {
    name.trim().nfc().collect::<String>().to_lowercase()
}

fn cases(name: &str, bytes: &[u8]) -> Result<Vec<Case>, String> {
    let text = files::decode(bytes)?.text;
    match name.to_lowercase().ends_with(".xml") {
        true => of_junit(&text),
        false => of_gradescope(&text),
    }
}

/// JUnit's XML as Ant began it: what the suites count is not trusted, their cases are.
fn of_junit(text: &str) -> Result<Vec<Case>, String> {
    let options = ParsingOptions {
        // No entities, and no files of this machine.
        allow_dtd: false,
        nodes_limit: limits::MAX_TEST_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text.trim_start(), options)
        .map_err(|error| format!("it is no XML that is read: {error}"))?;
    let root = document.root_element();
    if !matches!(root.tag_name().name(), "testsuites" | "testsuite") {
        return Err("it has no test suites of JUnit".to_owned());
    }
    let is_case = |node: &Node<'_, '_>| node.tag_name().name() == "testcase";
    let cases: Vec<Case> = root.descendants().filter(is_case).map(of_case).collect();
    match cases.is_empty() {
        true => Err("it has no test case".to_owned()),
        false => Ok(cases),
    }
}

fn of_case(node: Node<'_, '_>) -> Case {
    let inside = |name: &str| node.children().find(|n| n.tag_name().name() == name);
    let (outcome, why) = [
        (Outcome::Failed, inside("failure")),
        (Outcome::Broke, inside("error")),
        (Outcome::Skipped, inside("skipped")),
    ]
    .into_iter()
    .find(|(_, why)| why.is_some())
    .unwrap_or(match node.attribute("status") {
        // As GoogleTest and others write it.
        Some("notrun" | "disabled" | "skipped") => (Outcome::Skipped, None),
        _ => (Outcome::Passed, None),
    });
    let attribute = |name| node.attribute(name).unwrap_or_default();
    let name = match (attribute("classname"), attribute("name")) {
        ("", name) => name.to_owned(),
        (class, name) => format!("{class}.{name}"),
    };
    let message = why.and_then(|n| {
        let message = n
            .attribute("message")
            .filter(|text| !text.trim().is_empty());
        message.or(n.text())
    });
    Case {
        outcome,
        name,
        said: message.unwrap_or_default().to_owned(),
        is_hidden: false,
    }
}

/// Of Gradescope's results the parts that are needed here.
#[derive(Deserialize)]
struct Gradescope {
    tests: Vec<GradescopeTest>,
    #[serde(default)]
    visibility: Option<String>,
}

#[derive(Deserialize)]
struct GradescopeTest {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    number: Option<serde_json::Value>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    score: Option<f64>,
    #[serde(default)]
    max_score: Option<f64>,
    #[serde(default)]
    output: Option<String>,
    #[serde(default)]
    output_format: Option<String>,
    #[serde(default)]
    visibility: Option<String>,
}

fn of_gradescope(text: &str) -> Result<Vec<Case>, String> {
    let results: Gradescope = serde_json::from_str(text)
        .map_err(|error| format!("it has no list of tests as Gradescope writes it: {error}"))?;
    let visibility = results.visibility;
    let case = |(index, test): (usize, GradescopeTest)| {
        let number = match &test.number {
            Some(serde_json::Value::String(text)) => Some(text.clone()),
            Some(serde_json::Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let outcome = match (test.status.as_deref(), test.score, test.max_score) {
            (Some("passed"), ..) => Outcome::Passed,
            (Some("failed"), ..) => Outcome::Failed,
            (_, Some(score), Some(max)) if score >= max => Outcome::Passed,
            (_, Some(score), Some(_)) if score > 0.0 => Outcome::Partly,
            (_, Some(_), Some(_)) => Outcome::Failed,
            // Something to read, such as how the rest came about.
            _ => Outcome::Told,
        };
        let visibility = test.visibility.as_ref().or(visibility.as_ref());
        let is_text = test.output_format.as_deref() != Some("html");
        Case {
            outcome,
            name: test
                .name
                .or(number)
                .unwrap_or_else(|| format!("test {}", index + 1)),
            said: test.output.filter(|_| is_text).unwrap_or_default(),
            is_hidden: visibility.is_some_and(|visibility| visibility != "visible"),
        }
    };
    Ok(results.tests.into_iter().enumerate().map(case).collect())
}

/// `7 tests, 5 passed, 2 failed`.
fn counts<'a>(cases: impl Iterator<Item = &'a Case> + Clone) -> String {
    let mut text = match cases.clone().count() {
        1 => "1 test".to_owned(),
        count => format!("{count} tests"),
    };
    for outcome in Outcome::ALL {
        let count = cases.clone().filter(|case| case.outcome == outcome).count();
        if count > 0 {
            // Writing into a `String` cannot fail.
            let _ = write!(text, ", {count} {}", outcome.as_str());
        }
    }
    text
}

/// One line for each test. Of those that a student shall not know of, only how many there are: models would tell.
fn report(cases: &[Case]) -> String {
    let named: Vec<&Case> = cases.iter().filter(|case| !case.is_hidden).collect();
    let mut text = counts(named.iter().copied());
    if cases.len() > named.len() {
        let hidden = cases.len() - named.len();
        let _ = write!(text, "; {hidden} more are hidden from students");
    }
    text.push('\n');
    for case in named.iter().take(limits::MAX_TESTS) {
        let _ = write!(text, "{}: {}", case.outcome.as_str(), short(&case.name));
        let said = strip_ansi(&case.said);
        if case.outcome != Outcome::Passed && !said.trim().is_empty() {
            let _ = write!(text, ": {}", short(&said));
        }
        text.push('\n');
    }
    if named.len() > limits::MAX_TESTS {
        let _ = writeln!(text, "and {} more", named.len() - limits::MAX_TESTS);
    }
    text
}

/// In one line, which says if it is cut.
fn short(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    // A text has no such sign.
    let mut line = words.join(" ").replace('\0', "\u{FFFD}");
    if let Some((at, _)) = line.char_indices().nth(limits::MAX_TEST_CHARS) {
        line.truncate(at);
        line.push_str(" […]");
    }
    line
}

impl Submission {
    /// Whether results of tests stand beside it.
    #[must_use]
    pub fn has_tests(&self) -> bool {
        self.files.iter().any(|file| file.is_tests)
    }

    fn put_tests(&mut self, cases: &[Case]) -> Result<(), String> {
        let names: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        let mut name = NAME.to_owned();
        while names.contains(&name.as_str()) {
            name.push('_');
        }
        let mut file = read_source(&name, Kind::Text, report(cases).as_bytes())?;
        let bytes: usize = file.lines.iter().map(|line| line.len() + 1).sum();
        if self.text_bytes() + bytes > limits::MAX_PROMPT_TEXT_BYTES {
            return Err("the submission is too large for results of tests beside it".to_owned());
        }
        file.is_tests = true;
        // Nobody wrote it.
        file.written.clear();
        self.flags.extend(file.flags.iter().cloned());
        self.notes.push(format!("{NOTE}{}", counts(cases.iter())));
        self.files.push(file);
        Ok(())
    }

    /// The same as it was handed in.
    pub fn forget_tests(&mut self) {
        let is_tests = |name: &str| {
            let mut files = self.files.iter();
            files.any(|file| file.is_tests && file.name == name)
        };
        self.flags
            .retain(|flag| !(flag.place.as_ref()).is_some_and(|place| is_tests(&place.file)));
        self.notes.retain(|note| !note.starts_with(NOTE));
        self.files.retain(|file| !file.is_tests);
        self.tests_are_known = false;
    }

    /// With the results of tests of the same work: where nobody says what this one's are, and where those were seen by whoever
    /// settled it.
    pub fn keep_tests(&mut self, known: &Self, is_settled: bool) {
        let tests = known.files.iter().find(|file| file.is_tests);
        let Some(tests) = tests.filter(|_| is_settled || !self.tests_are_known) else {
            return;
        };
        self.forget_tests();
        self.flags.extend(tests.flags.iter().cloned());
        let notes = known.notes.iter().filter(|note| note.starts_with(NOTE));
        self.notes.extend(notes.cloned());
        self.files.push(tests.clone());
    }
}
