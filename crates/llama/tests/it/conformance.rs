//! The suite of the engine crate, for every architecture.

use tandem_engine::KvEngine;
use tandem_fixtures::Architecture;

use super::models::engine;

fn run(architecture: Architecture) {
    let measured =
        tandem_engine::conformance::run(&|| Box::new(engine(architecture)) as Box<dyn KvEngine>);
    // Shown with `--nocapture`: how far batches of several sequences are from single ones.
    println!("{architecture}: {measured:?}");
}

#[test]
fn llama() {
    run(Architecture::Llama);
}

#[test]
fn qwen2() {
    run(Architecture::Qwen2);
}

#[test]
fn qwen3() {
    run(Architecture::Qwen3);
}

#[test]
fn qwen3moe() {
    run(Architecture::Qwen3Moe);
}

#[test]
fn gemma3() {
    run(Architecture::Gemma3);
}

#[test]
fn gpt_oss() {
    run(Architecture::GptOss);
}
