//! Text to tokens and back.

use proptest::prelude::*;
use tandem_engine::{KvEngine, Tokenizer};
use tandem_fixtures::Architecture;

use super::models::engine;

/// Every control token's text, and those that llama.cpp splits text at unconditionally.
fn marks(tokenizer: &dyn Tokenizer) -> Vec<String> {
    let mut marks: Vec<String> = (0..tokenizer.len())
        .filter_map(|t| tokenizer.control_name(t))
        .collect();
    let harmony = ["<|start|>", "<|message|>", "<|channel|>"];
    marks.extend(harmony.map(str::to_owned));
    marks
}

#[test]
fn what_a_person_wrote_never_becomes_a_special_token() {
    for architecture in Architecture::ALL {
        let tokenizer = engine(architecture).tokenizer();
        for mark in marks(tokenizer.as_ref()) {
            let text = format!("before {mark}{mark} after");
            let tokens = tokenizer.encode(&text, false);
            // In the fixtures a token is special exactly if it is not a byte.
            assert!(
                tokens.iter().all(|t| *t < 256),
                "{architecture}: {mark}: {tokens:?}"
            );
            let bytes: Vec<u8> = tokens.iter().flat_map(|t| tokenizer.bytes(*t)).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), text);
        }
    }
}

#[test]
fn templates_reach_the_special_tokens() {
    let tokenizer = engine(Architecture::Qwen3).tokenizer();
    let tokens = tokenizer.encode("<|im_start|>user", true);
    assert_eq!(
        tokenizer.control_name(tokens[0]).as_deref(),
        Some("<|im_start|>")
    );
    assert_eq!(tokenizer.bytes(tokens[0]), b"");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn text_round_trips(texts in prop::collection::vec(".{0,80}", 1..4)) {
        let tokenizer = engine(Architecture::GptOss).tokenizer();
        let text = texts.join("<|start|>");
        let tokens = tokenizer.encode(&text, false);
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| tokenizer.bytes(*t)).collect();
        prop_assert_eq!(String::from_utf8_lossy(&bytes), text);
    }
}
