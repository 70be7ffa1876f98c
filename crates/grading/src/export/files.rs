//! Files of tandem's own forms.

use std::collections::HashSet;
use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde_json::json;

use super::{Export, Grade, Refusal, Row, student};
use crate::report::{cell, file_name};
use crate::review::Correction;

/// Form of an export that fills in no file of the teacher's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table with a row for each grade.
    Csv,
    /// The same with the feedback and all names, for programs.
    Json,
    /// A zip with Markdown and a page for each student.
    Feedback,
    /// A zip with `feedback.html` in the folders that Moodle gave; it is uploaded there as feedback files.
    Moodle,
    /// A zip with nbgrader's tree of feedback, and a table of grades.
    Nbgrader,
    /// A zip with a `results.json` for each submission, for an autograder that looks them up.
    Gradescope,
}

impl Format {
    /// All of them, in the order in which they are offered.
    pub const ALL: [Self; 6] = [
        Self::Csv,
        Self::Feedback,
        Self::Moodle,
        Self::Nbgrader,
        Self::Gradescope,
        Self::Json,
    ];

    /// As it stands in addresses and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Feedback => "feedback",
            Self::Moodle => "moodle-feedback",
            Self::Nbgrader => "nbgrader",
            Self::Gradescope => "gradescope",
        }
    }

    /// What the file is called, without what names the assignment.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Csv => "grades.csv",
            Self::Json => "grades.json",
            Self::Feedback => "feedback.zip",
            Self::Moodle => "moodle-feedback.zip",
            Self::Nbgrader => "nbgrader.zip",
            Self::Gradescope => "gradescope-results.zip",
        }
    }
}

/// Writes the approved grades of an assignment, which has this id and title.
///
/// # Errors
/// If a name cannot be one in a zip.
pub fn write(format: Format, (id, title): (&str, &str), rows: &[Row]) -> Result<Export, Refusal> {
    let approved: Vec<(&Row, &Grade)> = rows
        .iter()
        .filter_map(|row| Some((row, row.grade()?)))
        .collect();
    let bytes = match format {
        Format::Csv => table(&approved),
        Format::Json => whole((id, title), &approved),
        Format::Feedback => zip(feedback(title, &approved))?,
        Format::Moodle => zip(moodle(title, &approved))?,
        Format::Nbgrader => zip(nbgrader((id, title), &approved))?,
        Format::Gradescope => zip(gradescope(&approved))?,
    };
    Ok(Export {
        bytes,
        grades: approved.len(),
        ..Export::default()
    })
}

fn table(approved: &[(&Row, &Grade)]) -> Vec<u8> {
    // Excel takes a file without the mark for one in a code page of its own.
    let mut writer = csv::Writer::from_writer("\u{feff}".as_bytes().to_vec());
    let mut header = vec![
        "submission".to_owned(),
        "total".to_owned(),
        "maximum".to_owned(),
    ];
    let first = approved.first().map(|(_, grade)| grade.criteria.as_slice());
    header.extend(
        first
            .unwrap_or_default()
            .iter()
            .map(|one| format!("points: {}", one.id)),
    );
    let has_corrections = approved
        .iter()
        .any(|(_, grade)| !grade.corrections.is_empty());
    header.extend(has_corrections.then(|| "corrections".to_owned()));
    header.push("feedback".to_owned());
    let rows = approved.iter().map(|(row, grade)| {
        let mut cells = vec![
            id_cell(&row.name),
            grade.total.to_string(),
            grade.max.to_string(),
        ];
        cells.extend(grade.criteria.iter().map(|one| one.points.to_string()));
        let sum: f64 = grade.corrections.iter().map(Correction::signed).sum();
        // The sum of none is -0 in Rust.
        cells.extend(has_corrections.then(|| (sum + 0.0).to_string()));
        cells.push(cell(&student::text(grade)));
        cells
    });
    // Writing into memory, with as many cells in each row, cannot fail.
    for record in std::iter::once(header).chain(rows) {
        let _ = writer.write_record(record);
    }
    writer.into_inner().unwrap_or_default()
}

/// A name or a number as text: a spreadsheet would take zeros from its beginning, round it, or make a date of it.
fn id_cell(text: &str) -> String {
    let is_like_number = text.chars().any(|c| c.is_ascii_digit())
        && text.chars().all(|c| {
            c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '/' | ':' | 'e' | 'E' | ' ')
        });
    let is_plain =
        text.len() < 12 && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    match is_like_number && !is_plain {
        true => format!("=\"{text}\""),
        false => cell(text),
    }
}

fn whole((id, title): (&str, &str), approved: &[(&Row, &Grade)]) -> Vec<u8> {
    let one = |(row, grade): &(&Row, &Grade)| {
        let criteria: Vec<_> = grade
            .criteria
            .iter()
            .map(|c| json!({"id": c.id, "title": c.title, "points": c.points, "max_points": c.max}))
            .collect();
        let corrections: Vec<_> = grade
            .corrections
            .iter()
            .map(|one| json!({"title": one.title, "points": one.signed()}))
            .collect();
        json!({"name": row.name, "total": grade.total, "max": grade.max, "criteria": criteria, "corrections": corrections, "comments": grade.comments,
            "feedback": student::text(grade)})
    };
    let submissions: Vec<_> = approved.iter().map(one).collect();
    pretty(
        &json!({"assignment": id, "title": title, "approved_by_a_person": true, "submissions": submissions}),
    )
}

fn pretty<T: Serialize>(value: &T) -> Vec<u8> {
    // Values with string keys always serialise.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

type File = (String, Vec<u8>);

fn feedback(title: &str, approved: &[(&Row, &Grade)]) -> Vec<File> {
    let mut taken = HashSet::new();
    let files = approved.iter().flat_map(|(row, grade)| {
        let name = file_name(&row.name, &mut taken);
        let markdown = student::markdown(title, &row.name, grade);
        let page = student::page(title, &row.name, grade);
        [
            (format!("{name}.md"), markdown.into_bytes()),
            (format!("{name}.html"), page.into_bytes()),
        ]
    });
    files.collect()
}

fn moodle(title: &str, approved: &[(&Row, &Grade)]) -> Vec<File> {
    let file = |(row, grade): &(&Row, &Grade)| {
        let page = student::page(title, &row.name, grade);
        (format!("{}/feedback.html", row.folder), page.into_bytes())
    };
    approved.iter().map(file).collect()
}

fn nbgrader((id, title): (&str, &str), approved: &[(&Row, &Grade)]) -> Vec<File> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let _ = writer.write_record(["assignment", "student_id", "score", "max_score"]);
    for (row, grade) in approved {
        let numbers = [grade.total.to_string(), grade.max.to_string()];
        let _ = writer.write_record([id, &cell(&row.folder), &numbers[0], &numbers[1]]);
    }
    let table = writer.into_inner().unwrap_or_default();
    let page = |(row, grade): &(&Row, &Grade)| {
        let page = student::page(title, &row.name, grade);
        (
            format!("feedback/{}/{id}/feedback.html", row.folder),
            page.into_bytes(),
        )
    };
    let mut files: Vec<File> = approved.iter().map(page).collect();
    files.push(("grades.csv".to_owned(), table));
    files
}

fn gradescope(approved: &[(&Row, &Grade)]) -> Vec<File> {
    let file = |(row, grade): &(&Row, &Grade)| {
        let tests = grade
            .criteria
            .iter()
            .map(|c| json!({"name": c.title, "score": c.points, "max_score": c.max, "visibility": "after_published"}));
        let off = grade.corrections.iter().map(|one| {
            let points = one.signed();
            json!({"name": one.title, "score": points, "max_score": 0, "visibility": "after_published"})
        });
        let tests: Vec<_> = tests.chain(off).collect();
        let results = json!({"score": grade.total, "output": student::shown(grade), "output_format": "md",
            "visibility": "after_published", "tests": tests});
        (format!("{}/results.json", row.folder), pretty(&results))
    };
    approved.iter().map(file).collect()
}

/// A zip of these files.
fn zip(files: Vec<File>) -> Result<Vec<u8>, Refusal> {
    let write = || -> Result<Vec<u8>, rawzip::Error> {
        let mut archive = rawzip::ZipArchiveWriter::new(Vec::new());
        for (path, bytes) in &files {
            let file = archive.new_file(path.as_str());
            let (mut entry, config) = file
                .compression_method(rawzip::CompressionMethod::DEFLATE)
                .start()?;
            let encoder = DeflateEncoder::new(&mut entry, Compression::default());
            let mut writer = config.wrap(encoder);
            writer.write_all(bytes)?;
            let (encoder, output) = writer.finish()?;
            encoder.finish()?;
            entry.finish(output)?;
        }
        archive.finish()
    };
    write().map_err(|error| Refusal::Unwritable(error.to_string()))
}
