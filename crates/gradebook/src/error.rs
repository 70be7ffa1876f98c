//! What can go wrong, for the process and for a page.

use tandem_grading::GradingError;

use crate::store::StoreError;

/// The gradebook cannot be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum GradebookError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sample course that comes with tandem cannot be read.
    #[error("the sample course cannot be read: {problem}")]
    Sample {
        /// Why.
        problem: String,
    },
    /// A backup cannot be written.
    #[error("cannot write {file}: {problem}", file = .file.display())]
    Backup {
        /// The file.
        file: std::path::PathBuf,
        /// Why.
        problem: String,
    },
    /// Another run writes to the gradebook.
    #[error("another run is going on in this gradebook; wait for its end")]
    Busy,
    /// What is to be deleted is not what a page showed.
    #[error("something came since the page was opened")]
    Seen,
    /// A run did not come to its end.
    #[error("{0}")]
    Run(String),
    /// What a run goes by cannot be used, or its results cannot be written.
    #[error(transparent)]
    Grading(#[from] GradingError),
}

/// Why a page is not shown: what happened, and the one thing to do next.
#[derive(Debug)]
pub(crate) enum PageError {
    /// There is nothing at this address.
    NotFound,
    /// The browser has not been let in.
    NotLetIn,
    /// Only the teacher may do it.
    NotAllowed,
    /// The request comes from elsewhere.
    Foreign,
    /// The form cannot be read.
    Form(String),
    /// There is no model to ask.
    NoModels,
    /// The server of the models does not say which ones it has.
    NoAnswer,
    /// A run goes on already.
    Busy,
    /// The store failed; the log has why.
    Store,
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "a page cannot be shown");
        Self::Store
    }
}
