//! The vocabulary and the chat template, as llama.cpp reads them.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use minijinja::{Environment, context};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tandem_testkit::{Architecture, Spec, TokenizerVariant};

use crate::loaded::load;

fn ids(tokens: &[LlamaToken]) -> Vec<i32> {
    tokens.iter().map(|t| t.0).collect()
}

fn byte_ids(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}

fn plain(model: &LlamaModel, text: &str) -> Vec<i32> {
    ids(&model.vocab().tokenize(text.as_bytes(), false, false))
}

/// The marks of the chat formats.
fn marks(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::Gemma3 => &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        Architecture::GptOss => &[
            "<|start|>",
            "<|message|>",
            "<|end|>",
            "<|return|>",
            "<|channel|>",
        ],
        _ => &["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    }
}

#[test]
fn every_byte_has_its_token() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        for byte in 0..=u8::MAX {
            let token = LlamaToken::new(i32::from(byte));
            let piece = model.vocab().token_to_piece(token, false, None);
            assert_eq!(piece, [byte], "{architecture}");
        }
    }
}

#[test]
fn any_text_is_its_bytes_and_comes_back() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(Config::with_cases(128), rng);
        let texts = prop_oneof![any::<String>(), "[ \\n\\t'.,?!a-zA-Z0-9]{0,200}"];
        runner
            .run(&texts, |text| {
                prop_assume!(!text.is_empty());
                let tokens = model.vocab().tokenize(text.as_bytes(), false, false);
                prop_assert_eq!(ids(&tokens), byte_ids(&text));
                let bytes = model.vocab().detokenize(&tokens, false, false);
                prop_assert_eq!(bytes, text.as_bytes());
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn marks_are_special_tokens() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        for mark in marks(architecture) {
            let tokens = model.vocab().tokenize(mark.as_bytes(), false, true);
            assert_eq!(tokens.len(), 1, "{architecture} {mark}");
            assert!(tokens[0].0 >= 256, "{architecture} {mark}");
        }
    }
}

/// llama.cpp retypes these three marks of gpt-oss, by their text, to user-defined tokens, which it
/// recognises even where special tokens are not to be parsed. Whoever tokenises foreign text for such
/// a model must break the marks up.
const ALWAYS_PARSED: [&str; 3] = ["<|start|>", "<|message|>", "<|channel|>"];

#[test]
fn marks_in_foreign_text_are_plain_bytes() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        for mark in marks(architecture) {
            let text = format!("print('{mark}')");
            let is_plain = plain(&model, &text) == byte_ids(&text);
            assert_eq!(
                is_plain,
                !ALWAYS_PARSED.contains(mark),
                "{architecture} {mark}"
            );
            // Broken up, every mark is plain.
            let (head, tail) = mark.split_at(1);
            let parts = [plain(&model, head), plain(&model, tail)].concat();
            assert_eq!(parts, byte_ids(mark), "{architecture} {mark}");
        }
    }
}

#[test]
fn shifted_is_the_same_size_but_for_two_tokens() {
    for architecture in Architecture::ALL {
        let standard = load(&Spec::new(architecture));
        let shifted = load(&Spec {
            tokenizer: TokenizerVariant::Shifted,
            ..Spec::new(architecture)
        });
        assert_eq!(standard.n_vocab(), shifted.n_vocab());
        assert_eq!(plain(&standard, "cab"), [99, 97, 98]);
        assert_eq!(plain(&shifted, "cab"), [99, 98, 97]);
    }
}

fn rendered(model: &LlamaModel) -> String {
    let template = model.chat_template(None).unwrap();
    let bos = model.vocab().bos();
    let bos_token = String::from_utf8(model.vocab().token_to_piece(bos, true, None)).unwrap();
    let messages = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
    ]
    .map(|(role, content)| context! { role, content });
    Environment::new()
        .render_str(
            template.to_str().unwrap(),
            context! { messages, bos_token, add_generation_prompt => true },
        )
        .unwrap()
}

#[test]
fn templates_write_the_format_of_their_family() {
    let chatml = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
        <|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
        <|im_start|>assistant\n";
    let gemma = "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n\
        <start_of_turn>model\nHello<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n\
        <start_of_turn>model\n";
    let harmony = "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Hi<|end|>\
        <|start|>assistant<|channel|>final<|message|>Hello<|end|>\
        <|start|>user<|message|>Bye<|end|><|start|>assistant<|channel|>final<|message|>";
    for architecture in Architecture::ALL {
        let expected = match architecture {
            Architecture::Gemma3 => gemma,
            Architecture::GptOss => harmony,
            _ => chatml,
        };
        let model = load(&Spec::new(architecture));
        assert_eq!(rendered(&model), expected, "{architecture}");
    }
}

#[test]
fn a_prompt_begins_with_one_bos() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        let text = rendered(&model);
        let tokens = model.vocab().tokenize(text.as_bytes(), true, true);
        let bos = model.vocab().bos();
        assert_eq!(tokens[0], bos, "{architecture}");
        assert_eq!(
            tokens.iter().filter(|t| **t == bos).count(),
            1,
            "{architecture}"
        );
    }
}

#[test]
fn the_answer_ends_with_an_end_token() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        let vocab = model.vocab();
        for token in [vocab.eos(), vocab.eot()] {
            assert!(vocab.is_eog(token), "{architecture}");
            assert!(vocab.is_control(token), "{architecture}");
        }
    }
}
