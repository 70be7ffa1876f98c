//! Integration tests: real GGUF files, real llama.cpp.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and may show what it measured"
)]

mod it {
    mod batches;
    mod codecs;
    mod conformance;
    mod contracts;
    mod models;
    mod nano;
    mod other_caches;
    mod reference;
    mod steps;
    mod vocabulary;
}
