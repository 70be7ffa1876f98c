//! Text to tokens and back.

use proptest::prelude::*;
use tandem_engine::{KvEngine, Tokenizer};
use tandem_testkit::Architecture;

use super::models::engine;

/// Every control token's text, and those that llama.cpp splits text at unconditionally.
fn marks(tokenizer: &dyn Tokenizer) -> Vec<String> {
    let mut marks: Vec<String> = (0..tokenizer.len())
        .filter_map(|t| tokenizer.control_name(t))
        .collect();
    let user_defined = [
        "<|start|>",
        "<|message|>",
        "<|channel|>",
        "<think>",
        "</think>",
        "<tool_call>",
    ];
    marks.extend(user_defined.map(str::to_owned));
    marks
}

#[test]
fn what_a_person_wrote_never_becomes_a_special_token() {
    for architecture in Architecture::ALL {
        let tokenizer = engine(architecture).tokenizer();
        for mark in marks(tokenizer.as_ref()) {
            let text = format!("before <{mark}{mark} <| [after]");
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

/// Long runs are cut, which must not cut a template's control tokens.
#[test]
fn a_special_token_behind_a_long_run_stays_whole() {
    for architecture in [Architecture::Qwen3, Architecture::GptOss] {
        let tokenizer = engine(architecture).tokenizer();
        let mark = marks(tokenizer.as_ref()).remove(0);
        let special = tokenizer.encode(&mark, true);
        assert_eq!(special.len(), 1, "{mark}");
        for run in (0..2050).filter(|run| run % 1000 < 40 || run % 1000 > 960) {
            let text = format!("{}{mark}", "=".repeat(run));
            let tokens = tokenizer.encode(&text, true);
            assert_eq!(tokens.last(), special.first(), "{architecture}: {run}");
            assert!(
                tokens[..tokens.len() - 1].iter().all(|t| *t < 256),
                "{architecture}: {run}"
            );
        }
    }
}

/// llama.cpp splits text by `std::regex` for gpt-oss, which recurses for each character of a match.
/// A thread with a small stack stands for the threads that tokenise.
#[test]
fn long_runs_of_one_character_do_not_overflow_the_stack() {
    for architecture in [Architecture::GptOss, Architecture::Qwen3] {
        let tokenizer = engine(architecture).tokenizer();
        let encode = move || {
            for run in ["a", " ", "=", "\n", "1", "é\u{301}", "/\n", "A"] {
                let text = run.repeat(100_000);
                let tokens = tokenizer.encode(&text, false);
                let bytes: Vec<u8> = tokens.iter().flat_map(|t| tokenizer.bytes(*t)).collect();
                assert!(bytes == text.as_bytes(), "{architecture}: {run:?}");
            }
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn(encode).unwrap().join().unwrap();
    }
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
