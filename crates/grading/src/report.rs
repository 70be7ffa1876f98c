//! Writing results: one JSON and one Markdown per submission, and all of them as JSON and CSV.
//!
//! They are for other programs and for reading; what a run goes on with is in the gradebook. Up to form 2 the files were that
//! themselves, which [`Folder::earlier`] reads.

use crate::config::GradingConfig;
use crate::error::GradingError;
use crate::finding::joined;
use crate::grade::Store;
use crate::graded::{Graded, Job};
use crate::limits;
use crate::markdown;
use crate::request::inputs;
use crate::rubric::Rubric;
use crate::submission::Submission;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// All results, as `results.json` holds them.
#[derive(Serialize)]
struct Results<'a> {
    assignment: &'a str,
    title: &'a str,
    max_score: f64,
    /// Says that nothing in here was approved by a person.
    ai_suggested: bool,
    submissions: &'a [Graded],
}

/// Files of all results.
const TOGETHER: [&str; 2] = ["results.json", "results.csv"];

/// Number of the form of a result's file.
const FORM: u32 = 3;
/// The last form that a run went on with.
const LAST_KEPT: u32 = 2;

/// One submission's result, as its own JSON file holds it.
#[derive(Serialize)]
struct Single<'a> {
    form: u32,
    assignment: &'a str,
    ai_suggested: bool,
    #[serde(flatten)]
    graded: &'a Graded,
}

/// The same in an earlier form.
#[derive(Deserialize)]
struct Earlier {
    form: u32,
    /// A digest of all that the result depends on.
    inputs: String,
    #[serde(flatten)]
    graded: Graded,
}

/// What becomes of results of an earlier run in the same folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierRun {
    /// There must be none.
    Refuse,
    /// Those that would come out again are kept, but for failures.
    Resume,
    /// New ones are written over them.
    Replace,
}

/// A folder of results: each is written when it is made, then [`Folder::finish`] writes all together. Each file is complete
/// or absent.
#[derive(Debug)]
pub struct Folder<'a> {
    dir: PathBuf,
    rubric: &'a Rubric,
    /// Names of files by the submission's, which differ.
    files: HashMap<String, String>,
}

impl<'a> Folder<'a> {
    /// The folder of a run; it is made if it is not there. One run alone may write to it.
    ///
    /// # Errors
    /// A folder that cannot be made, or that has results of an earlier run where there must be none.
    pub fn open(
        dir: &Path,
        rubric: &'a Rubric,
        submissions: &[Submission],
        earlier_run: EarlierRun,
    ) -> Result<Self, GradingError> {
        fs::create_dir_all(dir).map_err(|source| GradingError::Write {
            path: dir.to_owned(),
            source,
        })?;
        // Names are compared without case: some file systems do not know it.
        let mut taken: HashSet<String> = HashSet::from(["results".to_owned()]);
        let mut file = |s: &Submission| (s.name.clone(), file_name(&s.name, &mut taken));
        let folder = Self {
            dir: dir.to_owned(),
            rubric,
            files: submissions.iter().map(&mut file).collect(),
        };
        let mut results = folder.files.values().map(|file| folder.json(file));
        let has_some = results.any(|file| file.exists())
            || TOGETHER.iter().any(|name| dir.join(name).exists());
        if earlier_run == EarlierRun::Refuse && has_some {
            return Err(folder.exists());
        }
        Ok(folder)
    }

    /// Begins a run, which nobody else may be in: removes what would not belong to the results beside it if a run did not come to its end, and what one that was killed
    /// has left half written.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn begin(&self) -> Result<(), GradingError> {
        let together = TOGETHER.map(|name| self.dir.join(name));
        let write = |path: &Path, source| GradingError::Write {
            path: path.to_owned(),
            source,
        };
        let entries = fs::read_dir(&self.dir).map_err(|e| write(&self.dir, e))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_half = name.starts_with('.') && name.ends_with(".part");
            if is_half || together.contains(&path) {
                fs::remove_file(&path).map_err(|e| write(&path, e))?;
            }
        }
        Ok(())
    }

    /// That it has results of an earlier run.
    #[must_use]
    pub fn exists(&self) -> GradingError {
        GradingError::Exists {
            path: self.dir.clone(),
            fix: "--resume goes on with them, --replace writes over them, another --out keeps them",
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn json(&self, file: &str) -> PathBuf {
        self.dir.join(format!("{file}.json"))
    }

    fn file(&self, submission: &str) -> Option<&str> {
        self.files.get(submission).map(String::as_str)
    }

    /// Whether both files of a result are there as they are now.
    #[must_use]
    pub fn has(&self, graded: &Graded) -> bool {
        let Some(file) = self.file(&graded.name) else {
            return false;
        };
        let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
        let there = fs::read(self.json(file))
            .ok()
            .and_then(|bytes| value(&bytes));
        let report = fs::read(self.dir.join(format!("{file}.md"))).ok();
        there.is_some()
            && there == value(&json(&self.single(graded)))
            && report == Some(markdown::report(self.rubric, graded).into_bytes())
    }

    fn single<'b>(&'b self, graded: &'b Graded) -> Single<'b> {
        Single {
            form: FORM,
            assignment: &self.rubric.id,
            ai_suggested: true,
            graded,
        }
    }

    /// The result of a submission that an earlier version of tandem left there, if it depends on the same as this run's.
    #[must_use]
    pub fn earlier(&self, config: &GradingConfig, submission: &Submission) -> Option<Graded> {
        let bytes = fs::read(self.json(self.file(&submission.name)?)).ok()?;
        let earlier: Earlier = serde_json::from_slice(&bytes).ok()?;
        let mut then = config.clone();
        // As it was told then.
        then.served_by = config.served_by.replace("; ", " ");
        let same = (1..=LAST_KEPT).contains(&earlier.form)
            && earlier.graded.name == submission.name
            && earlier.inputs == inputs(&then, self.rubric, submission);
        same.then_some(earlier.graded)
    }

    /// Writes a result. The report first: where the JSON is, the result is complete.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep(&self, graded: &Graded) -> Result<(), GradingError> {
        let unknown = || GradingError::Store(format!("`{}` is not of this run", graded.name));
        let file = self.file(&graded.name).ok_or_else(unknown)?;
        let single = self.single(graded);
        let report = markdown::report(self.rubric, graded);
        write_atomically(&self.dir, &format!("{file}.md"), report.as_bytes())?;
        write_atomically(&self.dir, &format!("{file}.json"), &json(&single))
    }

    /// Writes all results together: `results.json` and `results.csv`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(&self, graded: &[Graded]) -> Result<(), GradingError> {
        let files: Vec<&str> = graded
            .iter()
            .map(|one| self.file(&one.name).unwrap_or_default())
            .collect();
        write_all(&self.dir, self.rubric, graded, &files)
    }
}

impl Store for Folder<'_> {
    fn keep(&self, _index: usize, graded: &Graded) -> Result<(), GradingError> {
        self.keep(graded)
    }
}

fn write_all(
    dir: &Path,
    rubric: &Rubric,
    graded: &[Graded],
    files: &[&str],
) -> Result<(), GradingError> {
    let results = Results {
        assignment: &rubric.id,
        title: &rubric.title,
        max_score: rubric.max_points.as_f64(),
        ai_suggested: true,
        submissions: graded,
    };
    write_atomically(dir, "results.json", &json(&results))?;
    let csv = csv(rubric, graded, files).map_err(|source| GradingError::Write {
        path: dir.join("results.csv"),
        source: io::Error::other(source),
    })?;
    write_atomically(dir, "results.csv", &csv)
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain structs with string keys always serialise.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// A file name from a submission's name: letters and digits of any script, no two alike.
pub(crate) fn file_name(name: &str, taken: &mut HashSet<String>) -> String {
    let portable = |c: char| {
        let is_letter = c.is_alphanumeric() || (!c.is_ascii() && is_combining_mark(c));
        if is_letter || matches!(c, '-' | '_' | '.') {
            c
        } else {
            '_'
        }
    };
    let name: String = name.nfc().collect();
    let mut safe: String = name
        .chars()
        .take(limits::MAX_FILE_NAME_CHARS)
        .map(portable)
        .collect();
    while safe.len() > limits::MAX_FILE_NAME_BYTES {
        safe.pop();
    }
    let safe = safe.trim_matches('.');
    // Windows takes them for devices, whatever follows.
    let stem = safe.split('.').next().unwrap_or_default();
    let safe = if is_device(stem) { "" } else { safe };
    // A name that is not its own gets a mark that depends on it alone, so that others do not change it.
    let base = match safe == name && !safe.is_empty() {
        true => name.clone(),
        false => {
            let mark = blake3::hash(name.as_bytes()).to_hex();
            format!(
                "{}-{}",
                if safe.is_empty() { "submission" } else { safe },
                &mark[..8]
            )
        }
    };
    let mut candidate = base.clone();
    let mut number = 1;
    while !taken.insert(candidate.to_lowercase()) {
        number += 1;
        candidate = format!("{base}-{number}");
    }
    candidate
}

fn is_device(stem: &str) -> bool {
    let stem = stem.to_ascii_uppercase();
    let numbered = |kind: &str| {
        let number = stem.strip_prefix(kind);
        number.is_some_and(|n| n.len() == 1 && n.as_bytes()[0].is_ascii_digit())
    };
    ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered("COM") || numbered("LPT")
}

fn write_atomically(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), GradingError> {
    let path = dir.join(name);
    let part = dir.join(format!(".{name}.part"));
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, &path)
    };
    write().map_err(|source| GradingError::Write {
        path: path.clone(),
        source,
    })
}

/// Columns before and behind those of the criteria.
const COLUMNS: [&str; 9] = [
    "name",
    "file",
    "status",
    "score",
    "max_score",
    "code_analysis_ms",
    "feedback_ms",
    "reasons",
    "flags",
];

/// The column of a criterion: its id, or one that no other column has.
fn column(rubric: &Rubric, id: &str) -> String {
    let mut name = id.to_owned();
    let is_other = |name: &str| name != id && rubric.criteria.iter().any(|c| c.id == name);
    while COLUMNS.contains(&name.as_str()) || is_other(&name) {
        name = format!("criterion_{name}");
    }
    name
}

fn csv(rubric: &Rubric, graded: &[Graded], files: &[&str]) -> Result<Vec<u8>, csv::Error> {
    // Excel takes a file without the mark for one in a code page of its own.
    let mut writer = csv::Writer::from_writer("\u{feff}".as_bytes().to_vec());
    let (before, behind) = COLUMNS.split_at(5);
    let mut header: Vec<String> = before.iter().map(|c| (*c).to_owned()).collect();
    header.extend(rubric.criteria.iter().map(|c| cell(&column(rubric, &c.id))));
    header.extend(behind.iter().map(|c| (*c).to_owned()));
    writer.write_record(&header)?;
    for (one, file) in graded.iter().zip(files) {
        writer.write_record(row(rubric, one, file))?;
    }
    writer.into_inner().map_err(|e| e.into_error().into())
}

/// Numbers stay numbers; what is not there is an empty cell, never 0.
fn row(rubric: &Rubric, one: &Graded, file: &str) -> Vec<String> {
    let mut row = vec![cell(&one.name), cell(file), one.status.as_str().to_owned()];
    row.push(one.score.map(|s| s.to_string()).unwrap_or_default());
    row.push(one.max_score.to_string());
    for criterion in &rubric.criteria {
        let found = one.criteria.iter().find(|c| c.id == criterion.id);
        row.push(found.map(|c| c.points.to_string()).unwrap_or_default());
    }
    for job in [Job::CodeAnalysis, Job::Feedback] {
        let found = one.jobs.iter().find(|j| j.job == job);
        row.push(
            found
                .map(|j| format!("{:.0}", j.wall_ms))
                .unwrap_or_default(),
        );
    }
    row.push(cell(&joined(&one.reasons)));
    row.push(cell(&joined(&one.flags)));
    row
}

/// A text cell that no spreadsheet takes for a formula.
pub(crate) fn cell(text: &str) -> String {
    if text
        .trim_start_matches(' ')
        .starts_with(['=', '+', '-', '@', '\t', '\r', '\n'])
    {
        return format!("'{text}");
    }
    text.to_owned()
}
