//! The gradebook: where courses, runs and values are kept, and the pages on which a person decides.
//!
//! [`Gradebook::open`] opens the store, [`Gradebook::router`] has the pages, below a path that is the gradebook's own. The
//! rules, such as totals and what is allowed, are in `tandem-grading`; the store keeps, the pages show.
//!
//! - [`store`]: the only SQL;
//! - `routes`: the table of paths; `paths`: every link;
//! - `pages`: what happens when a page is asked for, or a form is sent;
//! - `view`: what a page shows, as plain values for a template;
//! - `security`: who may ask, and what a browser may do with an answer.

mod activity;
mod assets;
mod bare;
mod batch;
mod erase;
mod error;
pub mod exports;
mod intake;
pub mod limits;
mod live;
mod machines;
mod pages;
mod paths;
mod platform;
mod routes;
mod runs;
mod sample;
mod security;
mod server;
pub mod store;
mod trial;
mod uploads;
mod view;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use tandem_grading::{Graded, GradingError, Rubric, Submission};

use activity::Activity;
pub use batch::Batch;
pub use erase::{Erasure, Scope};
pub use error::GradebookError;
use error::PageError;
use intake::Intakes;
use paths::Paths;
use runs::Runs;
pub use server::ModelServer;
use store::{Kept, Outcome, SheetFile, Store, StoreError};
use trial::Trials;
use uploads::Uploads;

/// A gradebook. Copies share it.
#[derive(Clone)]
pub struct Gradebook {
    shared: Arc<Shared>,
}

/// What the pages share.
struct Shared {
    store: Store,
    /// Where the pages are.
    paths: Paths,
    /// Name of the cookie of a session.
    cookie: String,
    /// Where files lie while they are read.
    uploads: Uploads,
    intakes: Intakes,
    /// Where models are asked, once that is known.
    server: OnceLock<ModelServer>,
    activity: Arc<Activity>,
    trials: Trials,
    runs: Runs,
    /// Browsers come by TLS alone.
    is_tls: AtomicBool,
}

impl Shared {
    /// Where models are asked.
    fn server(&self) -> Result<&ModelServer, PageError> {
        self.server.get().ok_or(PageError::NoModels)
    }
}

/// Name of the number that tells a gradebook from others on the same host, among the settings.
const NUMBER: &str = "number";
/// Name of the token that lets a browser in.
const TOKEN: &str = "token";
/// Name of the mark that the sample was put in once, so that it is not put in again.
const SAMPLE: &str = "sample";

impl Gradebook {
    /// Opens the gradebook in a file, or makes it with the sample course in it.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn open(path: &Path) -> Result<Self, GradebookError> {
        let gradebook = Self::open_alone(path)?;
        gradebook.put_sample()?;
        Ok(gradebook)
    }

    /// The same without the sample course.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn open_alone(path: &Path) -> Result<Self, GradebookError> {
        let store = Store::open(path)?;
        if let Err(error) = store.sweep() {
            tracing::warn!(%error, "bytes of what was deleted are still in the gradebook");
        }
        let number = store.write_now(|writer| -> rusqlite::Result<Result<_, StoreError>> {
            let known_or_new = |name| match writer.setting(name)? {
                Some(value) => Ok(value),
                None => {
                    let value = security::random_text();
                    writer.set(name, &value).map(|()| value)
                }
            };
            known_or_new(TOKEN)?;
            known_or_new(NUMBER).map(Ok)
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                store,
                paths: Paths::new(&number),
                cookie: format!("tandem_{number}"),
                uploads: Uploads::open(path),
                intakes: Intakes::default(),
                server: OnceLock::new(),
                activity: Arc::default(),
                trials: Trials::default(),
                runs: Runs::new(path),
                is_tls: AtomicBool::new(false),
            }),
        })
    }

    /// Says where models are asked; only the first time counts.
    pub fn connect(&self, server: ModelServer) {
        let _ = self.shared.server.set(server);
    }

    /// The address to open, below that of the server. Whoever has it may do everything.
    ///
    /// # Errors
    /// If the store fails.
    pub fn address(&self, server: &str) -> Result<String, GradebookError> {
        self.address_of(server, self.shared.paths.home())
    }

    /// The same for a page.
    ///
    /// # Errors
    /// If the store fails.
    pub fn address_of(&self, server: &str, path: &str) -> Result<String, GradebookError> {
        let server = server.trim_end_matches('/');
        let token = self.shared.store.read_now(|reader| reader.setting(TOKEN))?;
        Ok(format!(
            "{server}{path}?token={}",
            token.unwrap_or_default()
        ))
    }

    /// The path at which the pages begin.
    #[must_use]
    pub fn home(&self) -> &str {
        self.shared.paths.home()
    }

    /// The path of the sample course.
    #[must_use]
    pub fn sample_page(&self) -> String {
        // It is the first assignment of every gradebook.
        self.shared.paths.assignment(1)
    }

    /// Puts submissions into an assignment of a course, which is made if there is none; returns the path of the page on
    /// which they are graded. No model is shown who is in `roster`, the teacher's own gradebook.
    ///
    /// # Errors
    /// If the store fails.
    pub fn hand_in(
        &self,
        course: &str,
        rubric: &Rubric,
        submissions: &[Submission],
        roster: Option<&SheetFile>,
    ) -> Result<String, GradebookError> {
        let assignment = self.shared.store.write_now(|writer| {
            let taken = writer.take_in(course, rubric, submissions)?;
            if let Some(roster) = roster {
                writer.keep_sheet(taken, roster)?;
            }
            Ok(Ok::<_, StoreError>(taken))
        })?;
        Ok(self.shared.paths.runs(assignment))
    }

    /// The pages; `is_tls` says that browsers come by TLS alone.
    pub fn router(&self, is_tls: bool) -> Router {
        self.shared.is_tls.store(is_tls, Ordering::Relaxed);
        routes::router(Arc::clone(&self.shared))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Keeps the results of a run: `graded` has those of `submissions`, in their order. Returns the path of the page on
    /// which they are reviewed.
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
    ) -> Result<String, GradebookError> {
        let kept = self.shared.store.write_now(|writer| {
            let assignment = writer.keep_assignment(course, rubric)?;
            let works = writer.hand_in_all(assignment, submissions)?;
            let run = writer.start_run(assignment, &works, settings)?;
            for (work, graded) in works.into_iter().zip(graded) {
                let of = Kept {
                    run,
                    work,
                    inputs: None,
                };
                writer.keep_made(&of, weights, graded)?;
            }
            writer.end_run(run, Outcome::Done, None)?;
            Ok(Ok::<_, StoreError>(assignment))
        });
        Ok(self.shared.paths.assignment(kept?))
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
