//! Submissions, rubrics, prompts, verdicts and reports: a client of the OpenAI API.
//!
//! [`Rubric::load`] and [`load_submissions`] read what the teacher has, [`grade`] sends two jobs per
//! submission to any OpenAI-compatible server, and a [`Folder`] keeps what came back. Every score
//! is a suggestion for a person to approve; what could not be graded has no score.

mod agreement;
mod archive;
mod attempt;
mod client;
mod code_page;
mod config;
mod disclosure;
mod draft;
mod elision;
mod error;
pub mod export;
mod feedback;
mod files;
mod finding;
mod grade;
mod graded;
mod hidden;
mod intake;
pub mod limits;
mod markdown;
mod notebook;
mod origin;
mod picture;
mod points;
mod prompt;
mod proposal;
mod pseudonym;
mod report;
mod request;
pub mod review;
pub mod revision;
mod roster;
mod rubric;
mod schema;
mod size;
mod source;
mod strict_json;
mod style;
mod submission;
mod suspicion;
pub mod syntax;
mod tarball;
mod tree;
mod verdict;

pub use agreement::{Agreement, Changed, Comparison, CriterionAgreement, Given};
pub use attempt::{Material, Untouched};
pub use config::{FeedbackMode, GradingConfig, JobConfig};
pub use draft::{CriterionDraft, Draft, Kind, LateDraft, LevelDraft, PenaltyDraft};
pub use elision::Shown;
pub use error::GradingError;
pub use feedback::{Item, ItemKind, check_feedback, items};
pub use finding::{Finding, FindingKind, Place};
pub use grade::{Held, Progress, Rewritten, Store, assess, grade, rewrite};
pub use graded::{CriterionResult, Evidence, Graded, Job, JobRecord, Status};
pub use hidden::mark_hidden;
pub use notebook::{NotebookCell, read_notebook};
pub use origin::{Origin, Student, System, key_of_name};
pub use picture::{Picture, PictureKind};
pub use points::Points;
pub use prompt::{Prompt, build_prompt};
pub use proposal::propose;
pub use pseudonym::{Roster, load_submissions, load_submissions_for};
pub use report::{EarlierRun, Folder};
pub use request::inputs;
pub use rubric::{Criterion, Late, Level, Penalty, Reflection, Rubric, Scale};
pub use schema::{verdict_schema, worst_case_bytes};
pub use size::{Forecast, PromptSize, forecast};
pub use source::SourceFile;
pub use style::{Length, Style};
pub use submission::{Original, Submission, read_originals};
pub use verdict::{Verdict, VerdictError, read_verdict};
