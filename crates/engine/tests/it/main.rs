//! Tests of the engine layer, by subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

mod chat;
mod conformance;
mod constraint;
mod generation;
mod hostile;
mod paced;
mod sampling;
mod schemas;
mod stop;
mod vocabulary;
