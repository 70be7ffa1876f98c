//! Integration tests: real GGUF files, real llama.cpp.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod it {
    mod conformance;
    mod contracts;
    mod models;
    mod reference;
    mod vocabulary;
}
