//! The suite of the engine crate, for every architecture.

use std::cell::Cell;

use tandem_engine::conformance::{F16_ROUNDING, F32_ROUNDING};
use tandem_engine::{Compute, KvEngine, conformance};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};
use tandem_testkit::{Architecture, Spec};

use super::models::{IS_FOR_A_GPU, fixture, load, options};

fn run(architecture: Architecture) {
    let routed = Spec::new(architecture);
    let every_expert = architecture.shape().experts.is_some();
    if every_expert {
        conformance::run_one_by_one(&|| Box::new(load(&routed)) as Box<dyn KvEngine>);
    }
    let spec = Spec {
        every_expert,
        ..routed
    };
    let rounding = if IS_FOR_A_GPU {
        F16_ROUNDING
    } else {
        F32_ROUNDING
    };
    // The receiver is none that gives layers: watching a graph changes no bit of what it computes.
    let by_layer = Cell::new(true);
    let make = || {
        let options = LlamaOptions {
            by_layer: by_layer.replace(false),
            ..options()
        };
        let engine = LlamaEngine::load(&fixture(&spec), &options).expect("load");
        assert_eq!(engine.gives_layers(), options.by_layer);
        Box::new(engine) as Box<dyn KvEngine>
    };
    let measured = conformance::run(&make, rounding);
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
