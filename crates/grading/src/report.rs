//! Writing results: one JSON and one Markdown per submission, and all of them as JSON and CSV.

use crate::error::GradingError;
use crate::graded::{Graded, Job};
use crate::limits;
use crate::markdown;
use crate::rubric::Rubric;
use serde::Serialize;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

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

/// One submission's result, as its own JSON file holds it.
#[derive(Serialize)]
struct Single<'a> {
    assignment: &'a str,
    ai_suggested: bool,
    #[serde(flatten)]
    graded: &'a Graded,
}

/// Writes all results into a folder, which is made if it is not there. Each file is complete or absent.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write_results(dir: &Path, rubric: &Rubric, graded: &[Graded]) -> Result<(), GradingError> {
    fs::create_dir_all(dir).map_err(|source| GradingError::Write {
        path: dir.to_owned(),
        source,
    })?;
    // Names are compared without case: some file systems do not know it.
    let mut taken: HashSet<String> = HashSet::from(["results".to_owned()]);
    for one in graded {
        let name = file_name(&one.name, &mut taken);
        let single = Single {
            assignment: &rubric.id,
            ai_suggested: true,
            graded: one,
        };
        write_atomically(dir, &format!("{name}.json"), &json(&single))?;
        write_atomically(
            dir,
            &format!("{name}.md"),
            markdown::report(rubric, one).as_bytes(),
        )?;
    }
    let results = Results {
        assignment: &rubric.id,
        title: &rubric.title,
        max_score: rubric.max_points.as_f64(),
        ai_suggested: true,
        submissions: graded,
    };
    write_atomically(dir, "results.json", &json(&results))?;
    let csv = csv(rubric, graded).map_err(|source| GradingError::Write {
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

/// A file name from a submission's name: portable characters only, no two alike.
fn file_name(name: &str, taken: &mut HashSet<String>) -> String {
    let portable = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
            c
        } else {
            '_'
        }
    };
    let safe: String = name
        .chars()
        .take(limits::MAX_FILE_NAME_CHARS)
        .map(portable)
        .collect();
    let safe = safe.trim_matches('.');
    let base = if safe.is_empty() { "submission" } else { safe };
    let mut candidate = base.to_owned();
    let mut number = 1;
    while !taken.insert(candidate.to_lowercase()) {
        number += 1;
        candidate = format!("{base}-{number}");
    }
    candidate
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

fn csv(rubric: &Rubric, graded: &[Graded]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut header: Vec<String> = ["name", "status", "score", "max_score"]
        .map(str::to_owned)
        .to_vec();
    header.extend(rubric.criteria.iter().map(|c| cell(&c.id)));
    header.extend(["code_analysis_ms", "feedback_ms", "reasons", "flags"].map(str::to_owned));
    writer.write_record(&header)?;
    for one in graded {
        writer.write_record(row(rubric, one))?;
    }
    writer.into_inner().map_err(|e| e.into_error().into())
}

/// Numbers stay numbers; what is not there is an empty cell, never 0.
fn row(rubric: &Rubric, one: &Graded) -> Vec<String> {
    let mut row = vec![cell(&one.name), one.status.as_str().to_owned()];
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
    row.push(cell(&one.reasons.join("; ")));
    row.push(cell(&one.flags.join("; ")));
    row
}

/// A text cell that no spreadsheet takes for a formula.
fn cell(text: &str) -> String {
    if text
        .trim_start_matches(' ')
        .starts_with(['=', '+', '-', '@', '\t', '\r', '\n'])
    {
        return format!("'{text}");
    }
    text.to_owned()
}
