//! The trained models that come with the project.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use tandem_engine::{Capacity, KvCache, KvEngine, Tokenizer};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};

const MODELS: [&str; 3] = ["nano-coder", "nano-writer", "nano-draft"];
/// Largest file, in bytes.
const MAX_FILE: u64 = 8_000_000;

pub fn path(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/{model}.gguf"))
}

fn load(model: &str) -> LlamaEngine {
    let options = LlamaOptions {
        capacity: Capacity {
            sequences: 1,
            cached: 0,
            tokens_per_sequence: 64,
            prefill_tokens: 64,
            microbatch_tokens: 64,
        },
        threads: 1,
        ..LlamaOptions::default()
    };
    LlamaEngine::load(&path(model), &options).unwrap()
}

static TOKENIZERS: LazyLock<Vec<Arc<dyn Tokenizer>>> =
    LazyLock::new(|| MODELS.iter().map(|m| load(m).tokenizer()).collect());

fn bytes_of(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u8> {
    let tokens = tokenizer.encode(text, false);
    tokens.iter().flat_map(|t| tokenizer.bytes(*t)).collect()
}

#[test]
fn each_is_small_and_its_heads_suit_every_backend() {
    for model in MODELS {
        assert!(std::fs::metadata(path(model)).unwrap().len() <= MAX_FILE);
        let engine = load(model);
        let contract = engine.contract();
        for layer in &contract.layers {
            assert!(layer.key_dim >= 64 && layer.value_dim >= 64, "{model}");
        }
        assert_eq!(contract.has_window(), model == "nano-writer");
    }
    let size = |model| std::fs::metadata(path(model)).unwrap().len();
    assert!(size("nano-draft") * 3 < size("nano-coder"));
}

#[test]
fn coder_and_draft_have_one_tokenizer_and_every_byte_is_a_token() {
    let digest = |model| load(model).contract().tokenizer.clone();
    assert_eq!(digest("nano-coder"), digest("nano-draft"));
    for tokenizer in TOKENIZERS.iter() {
        let all: Vec<Vec<u8>> = (0..tokenizer.len()).map(|t| tokenizer.bytes(t)).collect();
        for byte in 0..=u8::MAX {
            assert!(all.contains(&vec![byte]), "byte {byte:#04x} has no token");
        }
        assert!((2_000..=4_000).contains(&tokenizer.len()));
    }
}

proptest! {
    #[test]
    fn any_text_comes_back_byte_by_byte(text in "\\PC{0,200}|[ \\t\\r\\n\\x00-\\x1f<|>a-z]{0,200}") {
        for tokenizer in TOKENIZERS.iter() {
            prop_assert_eq!(bytes_of(tokenizer.as_ref(), &text), text.as_bytes());
        }
    }
}
