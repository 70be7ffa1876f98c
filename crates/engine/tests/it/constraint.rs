//! Constrained output, judged by the `jsonschema` crate.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use tandem_engine::constraint::{Constraint, ConstraintError, ConstraintFactory};
use tandem_engine::sampling::Sampler;
use tandem_engine::{Token, Tokenizer};
use tandem_proto::SamplingParams;

use crate::vocabulary::Vocabulary;

const WALKS: u64 = 25;
const MAX_TOKENS: usize = 20_000;

/// Bytes, some words as a real vocabulary has them, and control tokens.
fn vocabulary() -> Vocabulary {
    Vocabulary {
        words: vec![
            "{\"",
            "\":",
            "\": ",
            "\", \"",
            "\"}",
            "},{",
            "}]",
            "[]",
            "{}",
            " the",
            "point",
            "points",
            "line_start",
            "12",
            "100",
            "true",
            "null",
            "\\n",
            "\\\"",
            "é",
            "日本",
            "  ",
            "\n\n",
            "<|end|>",
        ],
        control: vec!["<|start|>", "<|end|>", "<|return|>", "{", "\"", "1"],
        ends: vec!["<|return|>", "<|end|>"],
        ..Vocabulary::default()
    }
}

fn grading() -> Value {
    let evidence = json!({
        "type": "array",
        "maxItems": 2,
        "items": {
            "type": "object",
            "properties": {
                "line_start": {"type": "integer", "minimum": 1, "maximum": 137},
                "line_end": {"type": "integer", "minimum": 1, "maximum": 137},
            },
            "required": ["line_start", "line_end"],
            "additionalProperties": false,
        },
    });
    let criterion = |points: Value| {
        json!({
            "type": "object",
            "properties": {
                "evidence": evidence,
                "rationale": {"type": "string", "maxLength": 200},
                "points": {"enum": points},
            },
            "required": ["evidence", "rationale", "points"],
            "additionalProperties": false,
        })
    };
    json!({
        "type": "object",
        "properties": {
            "correctness": criterion(json!([0, 1, 2, 3, 4, 5])),
            "style": criterion(json!([0, 0.5, 1])),
            "tests \"and\" more": criterion(json!([0, 2.5])),
        },
        "required": ["correctness", "style", "tests \"and\" more"],
        "additionalProperties": false,
    })
}

fn schemas() -> Vec<Value> {
    let object = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false})
    };
    vec![
        grading(),
        json!({"type": "integer", "minimum": -5, "maximum": 1200}),
        json!({"type": "number", "minimum": 0, "maximum": 10}),
        json!({"type": "string", "maxLength": 7}),
        json!({"type": "string", "minLength": 3, "maxLength": 5}),
        json!({"type": "string", "pattern": "^[a-c]{2,4}$"}),
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"enum": ["a", "ab", "é", 1, null, [1, 2], {"k": "v"}]}),
        json!({"const": {"fixed": [true, false]}}),
        json!({"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "boolean"}}),
        json!({"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}], "items": false,
            "minItems": 2}),
        json!({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}]}),
        object(
            json!({"a": {"type": "boolean"}, "b": {"type": "string", "maxLength": 3}}),
            json!([]),
        ),
        object(json!({"a": {"$ref": "#/$defs/leaf"}}), json!(["a"])),
        object(json!({}), json!([])),
        json!({"type": "string", "format": "date"}),
    ]
    .into_iter()
    .map(|mut schema| {
        if schema.to_string().contains("$defs") {
            schema["$defs"] = json!({"leaf": {"type": ["boolean", "null"]}});
        }
        schema
    })
    .collect()
}

fn factory(vocabulary: &Vocabulary) -> ConstraintFactory {
    ConstraintFactory::new(Arc::new(vocabulary.clone())).unwrap()
}

/// A model that knows nothing but the mask; `favourites` are tokens it likes.
fn walk(
    vocabulary: &Vocabulary,
    mut constraint: Constraint,
    seed: u64,
    favourites: &[Token],
) -> Vec<Token> {
    let mut sampler = Sampler::new(&SamplingParams {
        temperature: Some(1.0),
        seed: Some(seed),
        ..SamplingParams::default()
    });
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens = Vec::new();
    while !constraint.is_complete() {
        assert!(tokens.len() < MAX_TOKENS, "does not end");
        let mut logits: Vec<f32> = (0..vocabulary.len())
            .map(|_| (rng.next_u32() % 1000) as f32 / 250.0)
            .collect();
        favourites.iter().for_each(|&t| logits[t as usize] += 6.0);
        let mask = constraint.mask().unwrap();
        assert!(!mask.allows(vocabulary.len()), "beyond the vocabulary");
        let token = sampler.sample(&logits, Some(&mask)).unwrap();
        assert!(mask.allows(token));
        constraint.accept(token).unwrap();
        if vocabulary.is_end(token) {
            break;
        }
        tokens.push(token);
    }
    tokens
}

fn text(vocabulary: &Vocabulary, tokens: &[Token]) -> String {
    assert_eq!(vocabulary.control_tokens(tokens), Vec::<String>::new());
    let bytes = tokens.iter().flat_map(|&t| vocabulary.bytes(t)).collect();
    String::from_utf8(bytes).expect("valid UTF-8")
}

#[test]
fn random_walks_end_in_json_that_the_schema_accepts() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let controls: Vec<Token> = (0..6)
        .map(|i| vocabulary.len() - 1 - i)
        .filter(|&t| !vocabulary.is_end(t))
        .collect();
    let blanks: Vec<Token> = [b' ', b'\n', b'\t', b'"'].map(Token::from).to_vec();
    for schema in schemas() {
        let judge = jsonschema::validator_for(&schema).unwrap();
        for seed in 0..WALKS {
            let constraint = factory.json_schema(&schema).unwrap();
            let favourites = [&[][..], &controls, &blanks][seed as usize % 3];
            let tokens = walk(&vocabulary, constraint, seed, favourites);
            let text = text(&vocabulary, &tokens);
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|e| panic!("{schema}, seed {seed}: {e}: {text}"));
            assert!(judge.is_valid(&value), "{schema}, seed {seed}: {text}");
        }
    }
}

#[test]
fn any_object_is_an_object() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    // A model that likes to close what is open; otherwise a random object need not end.
    let closing: Vec<Token> = [b'}', b']', b'"', b'1'].map(Token::from).to_vec();
    for seed in 0..WALKS {
        let constraint = factory.json_object().unwrap();
        let text = text(&vocabulary, &walk(&vocabulary, constraint, seed, &closing));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value.is_object(), "{text}");
    }
}

/// Follows a text byte by byte; gives the number of bytes that were allowed.
fn follow(factory: &ConstraintFactory, schema: &Value, text: &str) -> (usize, bool) {
    let mut constraint = factory.json_schema(schema).unwrap();
    for (i, byte) in text.bytes().enumerate() {
        if constraint.is_complete() || !constraint.mask().unwrap().allows(Token::from(byte)) {
            return (i, constraint.is_complete());
        }
        constraint.accept(Token::from(byte)).unwrap();
    }
    (text.len(), constraint.is_complete())
}

#[test]
fn whitespace_is_one_space_after_a_separator_at_most() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"},
        "b": {"type": "null"}}, "required": ["a", "b"], "additionalProperties": false});
    let cases = [
        (r#"{"a":true,"b":null}"#, None),
        (r#"{"a": true, "b": null}"#, None),
        (r#"{"a":true, "b":null}"#, None),
        (r#"{ "a":true}"#, Some(1)),
        ("{\n\"a\":true}", Some(1)),
        (r#"{"a":  true}"#, Some(6)),
        (r#"{"a" :true}"#, Some(4)),
        (r#"{"a":true ,"#, Some(9)),
        (r#"{"a":true,"b":null }"#, Some(18)),
        (r#" {"a""#, Some(0)),
    ];
    for (text, stop) in cases {
        let expected = (stop.unwrap_or(text.len()), stop.is_none());
        assert_eq!(follow(&factory, &schema, text), expected, "{text}");
    }
}

#[test]
fn the_end_token_is_allowed_exactly_when_the_json_may_end() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let ends = [vocabulary.id("<|return|>"), vocabulary.id("<|end|>")];
    let mut constraint = factory
        .json_schema(&json!({"type": "integer", "minimum": 0, "maximum": 99}))
        .unwrap();
    let steps = [("", false, false), ("4", true, false), ("2", true, true)];
    for (text, may_end, complete) in steps {
        text.bytes()
            .for_each(|b| constraint.accept(Token::from(b)).unwrap());
        let mask = constraint.mask().unwrap();
        for end in ends {
            assert_eq!(mask.allows(end), may_end, "after {text:?}");
        }
        assert_eq!(constraint.is_complete(), complete, "after {text:?}");
    }
}

#[test]
fn lengths_are_in_characters() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let schema = json!({"type": "string", "maxLength": 3});
    let cases = [
        ("\"日本語\"", true),
        ("\"日本語だ\"", false),
        ("\"a\\n\\\"\"", true),
        ("\"🦀🦀🦀\"", true),
    ];
    for (text, fits) in cases {
        assert_eq!(follow(&factory, &schema, text).1, fits, "{text}");
    }
}

#[test]
fn a_token_that_does_not_fit_is_an_error() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let mut constraint = factory.json_object().unwrap();
    let error = constraint.accept(Token::from(b'x')).unwrap_err();
    assert!(
        matches!(error, ConstraintError::Token { token: 120, .. }),
        "{error}"
    );
    assert!(constraint.mask().is_err());
    assert!(!constraint.is_complete());
}

#[test]
fn schemas_that_cannot_be_kept_are_refused() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let cases = [
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            "dependentRequired",
        ),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "frog"}), "frog"),
        (json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
        (json!("object"), "object"),
        (json!(false), "object"),
        (
            json!({"type": "integer", "minimum": 5, "maximum": 4}),
            "minimum",
        ),
    ];
    for (schema, word) in cases {
        let error = factory.json_schema(&schema).err().expect("refused");
        assert!(matches!(error, ConstraintError::Schema(_)), "{error:?}");
        assert!(error.to_string().contains(word), "{schema}: {error}");
    }
    let long = json!({"const": "x".repeat(tandem_engine::limits::MAX_SCHEMA_BYTES)});
    assert!(factory.json_schema(&long).is_err());
}

#[test]
fn a_request_cannot_change_the_whitespace() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let schema = json!({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2,
        "x-guidance": {"whitespace_flexible": true}});
    assert_eq!(follow(&factory, &schema, "[ 1,1]"), (1, false));
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    let vocabulary = Vocabulary {
        ends: vec![],
        ..vocabulary()
    };
    let error = ConstraintFactory::new(Arc::new(vocabulary)).err();
    assert_eq!(error, Some(ConstraintError::NoEndToken));
}

#[test]
fn constraints_move_between_threads() {
    fn check<T: Send>() {}
    check::<Constraint>();
    check::<ConstraintFactory>();
    fn share<T: Sync>() {}
    share::<ConstraintFactory>();
}

/// Numbers around those where f64 and i64 end, and anywhere between.
fn edge(rng: &mut ChaCha8Rng) -> i128 {
    let power = [0, 31, 53, 60, 62, 63, 64, 70][rng.next_u32() as usize % 8];
    let width = [4, 2050][rng.next_u32() as usize % 2];
    let around = i128::from(rng.next_u32() % width) - i128::from(width / 2);
    let value = (1_i128 << power) + around;
    if rng.next_u32().is_multiple_of(2) {
        value
    } else {
        -value
    }
}

/// A bound as JSON has it: beyond 64 bits, as its text.
fn literal(value: i128) -> Value {
    serde_json::from_str(&value.to_string()).unwrap()
}

/// True if a number lies in a range, to the last digit: the judge computes with 128 bits.
fn lies_in(text: &str, least: i128, most: i128) -> bool {
    assert!(!text.contains(['e', 'E']), "{text}");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let has_fraction = fraction.contains(|digit| digit != '0');
    let (below, above) = match text.starts_with('-') {
        true => (has_fraction, false),
        false => (false, has_fraction),
    };
    match whole.parse::<i128>() {
        Ok(value) => least + i128::from(below) <= value && value <= most - i128::from(above),
        // Beyond 128 bits, where only a bound on the other side stands.
        Err(_) if text.starts_with('-') => least < -(1 << 100),
        Err(_) => most > 1 << 100,
    }
}

#[test]
fn numbers_keep_to_bounds_of_any_size() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..800 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bounds = [edge(&mut rng), edge(&mut rng)];
        bounds.sort_unstable();
        let [low, high] = bounds;
        let types = [
            json!("integer"),
            json!("number"),
            json!(["integer", "null"]),
        ];
        let mut schema = json!({"type": types[rng.next_u32() as usize % 3]});
        let (mut least, mut most) = (i128::MIN, i128::MAX);
        let words = rng.next_u32();
        match words % 4 {
            0 => least = low,
            1 if schema["type"] == "integer" => {
                (schema["exclusiveMinimum"], least) = (literal(low), low + 1);
            }
            _ => {}
        }
        match words / 4 % 4 {
            0 => most = high,
            1 if schema["type"] == "integer" => {
                (schema["exclusiveMaximum"], most) = (literal(high), high - 1);
            }
            _ => {}
        }
        if least == low {
            schema["minimum"] = literal(low);
        }
        if most == high {
            schema["maximum"] = literal(high);
        }
        let constraint = match factory.json_schema(&schema) {
            Ok(constraint) => constraint,
            Err(error) => {
                // Far enough inside f64 and i64 nothing is refused.
                let is_small = |v: i128| v.abs() < 1 << 53;
                let holds = least.max(-(1 << 53)) <= most.min(1 << 53);
                assert!(
                    !(holds && is_small(low) && is_small(high)),
                    "{schema}: {error}"
                );
                assert!(
                    matches!(error, ConstraintError::Schema(_)),
                    "{schema}: {error}"
                );
                refused += 1;
                continue;
            }
        };
        let text = text(&vocabulary, &walk(&vocabulary, constraint, seed, &[]));
        let is_open = least == i128::MIN && most == i128::MAX;
        let is_in = is_open || text == "null" || lies_in(&text, least, most);
        assert!(is_in, "{schema}: {text}");
        answered += usize::from(!is_open);
    }
    assert!(answered > 150 && refused > 10, "{answered}, {refused}");
}

/// As generators for .NET, Java and Go write them, and what is close to it.
#[test]
fn bounds_of_64_bits_and_beyond_are_taken() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let long = json!({"type": "object", "properties": {"id": {"type": "integer", "format": "int64",
        "minimum": i64::MIN, "maximum": i64::MAX}}, "required": ["id"], "additionalProperties": false});
    for (id, fits) in [
        ("0", true),
        ("9223372036854775807", true),
        ("7205759403792793601", true),
        ("-9223372036854774784", true),
        ("9223372036854775808", false),
        ("-9223372036854775809", false),
        ("18446744073709551615", false),
    ] {
        let text = format!("{{\"id\":{id}}}");
        assert_eq!(follow(&factory, &long, &text).0 == text.len(), fits, "{id}");
    }
    let unsigned = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    assert_eq!(follow(&factory, &unsigned, "9223372036854775807").0, 19);
    // What generators write for numbers, and one long bound alone.
    for (schema, text) in [
        (
            json!({"type": "number", "minimum": 0, "maximum": f64::MAX}),
            "9000000000000000000.5",
        ),
        (
            json!({"type": "number", "minimum": -3.402_823_5e38, "maximum": 3.402_823_5e38}),
            "-1234567890123456789.5",
        ),
        (
            json!({"minimum": 0, "maximum": i64::MAX}),
            "1234567890123456789",
        ),
        (
            json!({"type": "integer", "minimum": 1_000_000_000_000_000_000_u64}),
            "9223372036854775807",
        ),
        (
            json!({"type": "integer", "maximum": -1_000_000_000_000_000_000_i64}),
            "-9223372036854774784",
        ),
    ] {
        assert_eq!(follow(&factory, &schema, text).0, text.len(), "{schema}");
    }
}

/// Wherever a reference leads, and whatever the place is called.
#[test]
fn bounds_are_held_to_in_all_places_or_refused_with_their_path() {
    let vocabulary = vocabulary();
    let factory = factory(&vocabulary);
    let near = 9_007_199_254_740_993_u64;
    let at = |name: &str, schema: Value| json!({"$ref": format!("#/components/schemas/{name}"), "components": {"schemas": {name: schema}}});
    for name in ["properties", "const", "enum", "default", "type", "x"] {
        let long = at(
            name,
            json!({"type": "integer", "minimum": -9_007_199_254_740_999_i64, "maximum": -9_007_199_254_740_993_i64}),
        );
        assert_eq!(follow(&factory, &long, "-9007199254740992").0, 16, "{name}");
        assert_eq!(follow(&factory, &long, "-9007199254740994").0, 17, "{name}");
    }
    for (schema, path) in [
        (json!({"type": "integer", "minimum": 1.0e21}), "#/minimum"),
        (json!({"items": {"maximum": -1.0e21}}), "#/items/maximum"),
        (
            json!({"properties": {"const": {"const": 9_007_199_254_740_993_u64}}}),
            "#/properties/const/const",
        ),
        (json!({"enum": [1, [u64::MAX]]}), "#/enum/1/0"),
        (json!({"const": i64::MIN}), "#/const"),
        (
            json!({"type": "integer", "minimum": near, "maximum": near}),
            "#/minimum",
        ),
        (
            json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"minimum": near, "maximum": near}}}),
            "#/$defs/a~1b/minimum",
        ),
        (
            at("default", json!({"minimum": near, "maximum": near})),
            "#/components/schemas/default/minimum",
        ),
        (
            at("const", json!({"const": near})),
            "#/components/schemas/const/const",
        ),
    ] {
        let error = factory.json_schema(&schema).err().map(|e| e.to_string());
        assert!(
            error
                .as_ref()
                .is_some_and(|e| e.contains(&format!("{path}: "))),
            "{schema}: {error:?}"
        );
    }
    // Data is nobody's bound.
    let data = json!({"const": {"minimum": 5, "maximum": 4}, "default": {"maximum": 1.0e300}});
    assert_eq!(
        follow(&factory, &data, r#"{"minimum":5,"maximum":4}"#),
        (25, true)
    );
}
