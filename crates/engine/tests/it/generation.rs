//! One answer from logits to text.

use std::sync::Arc;

use serde_json::{Value, json};
use tandem_engine::constraint::ConstraintFactory;
use tandem_engine::fake::{FAKE_BOS, FAKE_EOS, FakeTokenizer};
use tandem_engine::generation::{Generation, GenerationError};
use tandem_engine::{Token, Tokenizer};
use tandem_proto::{FinishReason, Format, GenerationParams, SamplingParams};

fn params(max_tokens: u32, stop: &[&str], format: Format) -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams {
            max_tokens: Some(max_tokens),
            stop: stop.iter().map(|s| (*s).to_owned()).collect(),
            ..SamplingParams::greedy()
        },
        format,
    }
}

fn generation(params: &GenerationParams) -> Result<Generation, GenerationError> {
    let factory = ConstraintFactory::new(Arc::new(FakeTokenizer)).unwrap();
    Generation::new(params, Arc::new(FakeTokenizer), &factory)
}

/// Logits of a model that wants this token, then any printable one.
fn wants(token: Token) -> Vec<f32> {
    let mut logits = vec![0.0; FakeTokenizer.len() as usize];
    logits[token as usize] = 9.0;
    logits
}

/// Generates from a model that wants these tokens; gives texts, number of tokens and the reason.
fn play(params: &GenerationParams, tokens: &[Token]) -> (Vec<String>, usize, Option<FinishReason>) {
    let mut generation = generation(params).unwrap();
    let mut texts = Vec::new();
    for &token in tokens {
        let step = generation.next(&wants(token)).unwrap();
        texts.push(step.text);
        if step.finished.is_some() {
            let again = generation.next(&wants(token));
            assert_eq!(again, Err(GenerationError::Finished));
            return (texts, generation.generated().len(), step.finished);
        }
    }
    (texts, generation.generated().len(), None)
}

fn bytes(text: &str) -> Vec<Token> {
    FakeTokenizer.encode(text, false)
}

/// What a model wants to say and the text, number of tokens and reason that come out.
fn check(
    params: &GenerationParams,
    tokens: &[Token],
    text: &str,
    count: usize,
    reason: FinishReason,
) {
    let (texts, generated, finished) = play(params, tokens);
    assert_eq!(texts.concat(), text, "{params:?}");
    assert_eq!((generated, finished), (count, Some(reason)), "{params:?}");
}

#[test]
fn text_ends_for_a_reason() {
    use FinishReason::{Length, Stop};
    let with_end = |text: &str, end: Token| [bytes(text), vec![end]].concat();
    let text = |max_tokens, stop| params(max_tokens, stop, Format::Text);
    check(&text(9, &[]), &with_end("hi", FAKE_EOS), "hi", 3, Stop);
    check(&text(9, &[]), &with_end("hi", FAKE_BOS), "hi", 3, Stop);
    check(&text(3, &[]), &with_end("hi", FAKE_EOS), "hi", 3, Stop);
    check(&text(2, &[]), &bytes("hello"), "he", 2, Length);
    check(&text(9, &["lo"]), &bytes("hello"), "hel", 5, Stop);
    check(&text(4, &["lo"]), &bytes("hello"), "hell", 4, Length);
    check(
        &text(9, &["lo"]),
        &with_end("hel", FAKE_EOS),
        "hel",
        4,
        Stop,
    );
    check(&text(2, &[]), &bytes("aé"), "a\u{fffd}", 2, Length);
    check(&text(3, &[]), &bytes("aé"), "aé", 3, Length);
}

#[test]
fn json_ends_when_it_is_complete() {
    use FinishReason::{Length, Stop};
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"], "additionalProperties": false});
    let format = Format::schema("s", schema);
    let json = |max_tokens| params(max_tokens, &[], format.clone());
    check(&json(9), &bytes("{\"a\":2}!"), "{\"a\":2}", 7, Stop);
    check(&json(7), &bytes("{\"a\":2}"), "{\"a\":2}", 7, Stop);
    check(&json(6), &bytes("{\"a\":2}"), "{\"a\":2", 6, Length);
    let object = params(9, &[], Format::JsonObject);
    check(&object, &bytes("{}!"), "{}", 2, Stop);
}

#[test]
fn a_constraint_overrules_the_model() {
    let format = Format::schema("s", json!({"const": {"ok": true}}));
    let (texts, _, finished) = play(&params(40, &[], format), &[u32::from(b'x'); 40]);
    let value: Value = serde_json::from_str(&texts.concat()).unwrap();
    assert_eq!(value, json!({"ok": true}));
    assert_eq!(finished, Some(FinishReason::Stop));
}

#[test]
fn bad_requests_name_the_field() {
    let sampling = SamplingParams {
        max_tokens: Some(1),
        top_p: Some(2.0),
        ..SamplingParams::default()
    };
    let cases = [
        (params(0, &[], Format::Text), "max_tokens"),
        (params(1, &[""], Format::Text), "stop[0]"),
        (
            GenerationParams {
                sampling,
                ..params(1, &[], Format::Text)
            },
            "top_p",
        ),
        (params(1, &[], Format::schema("s", json!([]))), "schema"),
    ];
    for (params, field) in cases {
        let error = generation(&params).err().unwrap();
        assert!(error.is_request(), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn parameters_travel_as_json() {
    let params = params(5, &["x"], Format::schema("s", json!({"type": "null"})));
    let text = serde_json::to_string(&params).unwrap();
    assert_eq!(
        serde_json::from_str::<GenerationParams>(&text).unwrap(),
        params
    );
    assert_eq!(
        serde_json::to_value(FinishReason::Length).unwrap(),
        json!("length")
    );
}
