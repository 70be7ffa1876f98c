//! The grading against a scripted server, an independent schema validator, and its own example course.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod course;
mod fake;
mod feedback;
mod prompts;
mod reports;
mod rubrics;
mod runs;
mod sources;
mod verdicts;
