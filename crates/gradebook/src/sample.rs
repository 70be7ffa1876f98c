//! The sample course, graded: so that there is something to see before a model is loaded.
//!
//! `cargo xtask sample` makes the file from `examples/intro-course` and the results of a run of it.

use serde::Deserialize;
use tandem_grading::{Graded, GradingError, Material, Rubric, Submission};

/// Name of the course.
pub(crate) const COURSE: &str = "Sample course";

const FILE: &str = include_str!("../assets/sample.json");

/// The course with its results.
pub(crate) struct Sample {
    pub(crate) rubric: Rubric,
    pub(crate) submissions: Vec<Submission>,
    pub(crate) results: Vec<Graded>,
    /// Which models made the results.
    pub(crate) made_by: String,
}

#[derive(Deserialize)]
struct File {
    rubric: String,
    templates: Vec<Material>,
    submissions: Vec<Submission>,
    results: Vec<Graded>,
    made_by: String,
}

pub(crate) fn read() -> Result<Sample, GradingError> {
    let file: File = serde_json::from_str(FILE)
        .map_err(|e| GradingError::Submissions(format!("the sample course cannot be read: {e}")))?;
    let mut rubric = Rubric::parse(&file.rubric)?;
    rubric.templates = file.templates;
    Ok(Sample {
        rubric,
        submissions: file.submissions,
        results: file.results,
        made_by: file.made_by,
    })
}
