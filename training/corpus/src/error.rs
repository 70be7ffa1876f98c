//! Why examples cannot be made.

/// An error of the corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// Files of a submission cannot be written for the grading to read.
    #[error("cannot write a submission to a temporary folder: {0}")]
    Io(#[from] std::io::Error),
    /// The grading refuses what the generator made: a bug of the generator.
    #[error("the grading refuses an example of task {task}: {reason}")]
    Refused {
        /// The task.
        task: String,
        /// In the grading's words.
        reason: String,
    },
}
