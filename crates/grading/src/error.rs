//! What stops a whole run. What concerns one submission is in its record instead.

use std::io;
use std::path::PathBuf;

/// A fault that stops a run before, or after, its submissions are graded.
#[derive(Debug, thiserror::Error)]
pub enum GradingError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The rubric cannot be used.
    #[error("rubric: {field}: {problem}")]
    Rubric {
        /// The field at fault, as a path (`criteria[1].levels[0].points`).
        field: String,
        /// What is wrong and how to fix it.
        problem: String,
    },
    /// No submission was found, or there are too many.
    #[error("submissions: {0}")]
    Submissions(String),
    /// The configuration cannot be used.
    #[error("grading configuration: {field}: {problem}")]
    Config {
        /// The field at fault.
        field: &'static str,
        /// What is wrong and how to fix it.
        problem: String,
    },
    /// The server cannot be asked, or is away.
    #[error("{0}")]
    Server(String),
    /// The folder for the results has some of an earlier run.
    #[error("{path} holds results of an earlier run; {fix}", path = .path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
        /// What can be done.
        fix: &'static str,
    },
    /// A result could not be kept.
    #[error("a result cannot be kept: {0}")]
    Store(String),
    /// A result could not be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A rubric that cannot be used.
pub(crate) fn fault(field: impl Into<String>, problem: impl Into<String>) -> GradingError {
    GradingError::Rubric {
        field: field.into(),
        problem: problem.into(),
    }
}
