//! The gradebook: where courses, runs and values are kept, and the pages on which a person decides.
//!
//! [`Gradebook::open`] opens the store, [`Gradebook::router`] has the pages below `/grading`. The rules, such as totals and
//! what is allowed, are in `tandem-grading`; the store keeps, the pages show.
//!
//! - [`store`]: the only SQL;
//! - `routes`: the table of paths, and every link;
//! - `pages`: what happens when a page is asked for, or a form is sent;
//! - `view`: what a page shows, as plain values for a template;
//! - `security`: who may ask, and what a browser may do with an answer.

mod assets;
mod error;
pub mod limits;
mod pages;
mod routes;
mod sample;
mod security;
pub mod store;
mod view;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use tandem_grading::{Graded, GradingError, Rubric, Submission};

pub use error::GradebookError;
use store::{Kept, Store, StoreError};

/// A gradebook. Copies share it.
#[derive(Clone)]
pub struct Gradebook {
    shared: Arc<Shared>,
}

/// What the pages share.
struct Shared {
    store: Store,
    /// Lets a browser in.
    token: String,
}

/// Name of the token among the settings.
const TOKEN: &str = "token";
/// Name of the mark that the sample was put in once, so that it is not put in again.
const SAMPLE: &str = "sample";

impl Gradebook {
    /// Opens the gradebook in a file, or makes it with the sample course in it.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn open(path: &Path) -> Result<Self, GradebookError> {
        let store = Store::open(path)?;
        let token = store.write_now(|writer| -> rusqlite::Result<Result<_, StoreError>> {
            let token = match writer.setting(TOKEN)? {
                Some(token) => token,
                None => {
                    let token = security::random_text();
                    writer.set(TOKEN, &token)?;
                    token
                }
            };
            Ok(Ok(token))
        })?;
        let gradebook = Self {
            shared: Arc::new(Shared { store, token }),
        };
        gradebook.put_sample()?;
        Ok(gradebook)
    }

    /// The address to open, below that of the server. Whoever has it may do everything.
    #[must_use]
    pub fn address(&self, server: &str) -> String {
        let server = server.trim_end_matches('/');
        format!("{server}{}?token={}", routes::HOME, self.shared.token)
    }

    /// The pages.
    pub fn router(&self) -> Router {
        routes::router(Arc::clone(&self.shared))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Keeps the results of a run: `graded` has those of `submissions`, in their order.
    ///
    /// # Errors
    /// If the store fails.
    pub fn keep_run(
        &self,
        course: &str,
        rubric: &Rubric,
        submissions: &[Submission],
        graded: &[Graded],
        (settings, weights): (&str, &str),
    ) -> Result<i64, GradebookError> {
        let kept = self.shared.store.write_now(|writer| {
            let assignment = writer.keep_assignment(course, rubric)?;
            let run = writer.start_run(assignment, settings)?;
            for (submission, graded) in submissions.iter().zip(graded) {
                let work = writer.hand_in(assignment, submission)?.id();
                let of = Kept {
                    run,
                    work,
                    weights,
                    inputs: "",
                };
                writer.keep_result(&of, graded)?;
            }
            Ok(Ok::<_, StoreError>(assignment))
        });
        Ok(kept?)
    }

    fn put_sample(&self) -> Result<(), GradebookError> {
        let is_there = self
            .shared
            .store
            .read_now(|reader| reader.setting(SAMPLE))?
            .is_some();
        if is_there {
            return Ok(());
        }
        let sample = sample::read().map_err(|e: GradingError| GradebookError::Sample {
            problem: e.to_string(),
        })?;
        self.keep_run(
            sample::COURSE,
            &sample.rubric,
            &sample.submissions,
            &sample.results,
            (&sample.made_by, &sample.made_by),
        )?;
        let mark = |writer: &store::Writer<'_>| writer.set(SAMPLE, "1").map(Ok::<_, StoreError>);
        Ok(self.shared.store.write_now(mark)?)
    }
}
