//! What a contract says about a file, and that it tells files apart.

use tandem_engine::KvCache;
use tandem_engine_llama::{LlamaEngine, LlamaError};
use tandem_handoff::{Contract, LayerKind};
use tandem_testkit::{Architecture, Spec, TokenizerVariant, WeightType};

use super::models::{dir, engine, fixture, load, options};

fn differing(a: &Contract, b: &Contract) -> Vec<String> {
    a.differences(b).into_iter().map(|d| d.field).collect()
}

#[test]
fn window_layers_are_where_the_architecture_puts_them() {
    let kinds = |architecture| -> String {
        let engine = engine(architecture);
        let layers = engine.contract().layers.iter();
        layers
            .map(|l| {
                if l.kind == LayerKind::Window {
                    'w'
                } else {
                    'F'
                }
            })
            .collect()
    };
    let expected = [
        (Architecture::Llama, "FFF"),
        (Architecture::Qwen2, "FFF"),
        (Architecture::Qwen3, "FFF"),
        (Architecture::Qwen3Moe, "FFF"),
        (Architecture::Gemma3, "wwwwwF"),
        (Architecture::GptOss, "wFwF"),
    ];
    for (architecture, layers) in expected {
        assert_eq!(kinds(architecture), layers, "{architecture}");
    }
}

#[test]
fn the_same_file_gives_the_same_contract() {
    let (a, b) = (engine(Architecture::Qwen3), engine(Architecture::Qwen3));
    assert_eq!(differing(a.contract(), b.contract()), Vec::<String>::new());
}

#[test]
fn other_weights_quantisation_and_tokenizer_are_told_apart_by_name() {
    let base = Spec::new(Architecture::Qwen3);
    let ours = load(&base);
    let mut seed = base.clone();
    seed.seed += 1;
    let mut quantised = base.clone();
    quantised.weights = WeightType::Q8_0;
    let mut shifted = base.clone();
    shifted.tokenizer = TokenizerVariant::Shifted;
    let cases = [
        (seed, vec!["weights"]),
        (quantised, vec!["quantisation", "weights"]),
        (shifted, vec!["tokenizer"]),
    ];
    for (spec, fields) in cases {
        let theirs = load(&spec);
        assert_eq!(differing(ours.contract(), theirs.contract()), fields);
    }
}

#[test]
fn equal_byte_counts_of_two_architectures_are_not_compatible() {
    let (a, b) = (engine(Architecture::Llama), engine(Architecture::Qwen3));
    let bytes = |c: &Contract| c.token_bytes(&c.section_layers(tandem_handoff::Section::Full));
    assert_eq!(bytes(a.contract()), bytes(b.contract()));
    assert!(differing(a.contract(), b.contract()).contains(&"architecture".to_owned()));
}

#[test]
fn a_file_that_is_not_a_model_is_refused_with_its_name() {
    std::fs::create_dir_all(dir()).unwrap();
    let whole = std::fs::read(fixture(&Spec::new(Architecture::Llama))).unwrap();
    let cases: [(&str, &[u8]); 4] = [
        ("empty.gguf", b""),
        ("text.gguf", b"this is not a model at all"),
        ("header.gguf", &whole[..100]),
        ("half.gguf", &whole[..whole.len() / 2]),
    ];
    for (name, bytes) in cases {
        let path = dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = LlamaEngine::load(&path, &options()).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
    let missing = LlamaEngine::load(&dir().join("missing.gguf"), &options());
    assert!(matches!(missing, Err(LlamaError::File(_))));
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let path = fixture(&Spec::new(Architecture::Llama));
    let mut sequences = options();
    sequences.capacity.sequences = 256;
    let mut chunk = options();
    chunk.capacity.prefill_tokens = chunk.capacity.microbatch_tokens + 1;
    let mut threads = options();
    threads.threads = 0;
    let mut context = options();
    context.capacity.tokens_per_sequence = 1;
    for (options, name) in [
        (sequences, "sequences"),
        (chunk, "chunk"),
        (threads, "threads"),
        (context, "context"),
    ] {
        let error = LlamaEngine::load(&path, &options).expect_err(name);
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
    }
}
