//! Invented student submissions with labelled defects, and the answers that the nano models are
//! trained to give.
//!
//! A [`Task`] is a selection (numbers above a limit, words that start with a letter) and an aggregate
//! (mean, count, longest). A [`Plan`] says what is wrong with one submission. [`generate`] writes the
//! code, the rubric and both reference answers; prompts come from the grading's own code, and every
//! answer passes the grading's own checks. All is a function of the seed.

mod analysis;
mod condition;
mod dice;
mod draft;
mod error;
mod feedback;
mod generate;
mod java;
mod names;
mod notes;
mod page;
mod plan;
mod python;
mod r;
mod rubric;
mod task;

pub use error::CorpusError;
pub use generate::{Example, GROUP, Order, generate};
pub use plan::{Correct, Empty, Language, Plan, Readable, Shown};
pub use rubric::Shape;
pub use task::{Aggregate, Select, Split, Task, Tier};
