//! Hellos: what differs is named with both values, what is hostile is refused without overflow.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_handoff::frame::Kind;
use tandem_handoff::limits::{
    AHEAD_BYTES, CREDIT_BYTES, MAX_CONTINUATION, MAX_CONTROL_PAYLOAD, MAX_CREDIT_BYTES,
    MAX_DIFFERENCES, MAX_HEAD_DIM, MAX_KV_HEADS, MAX_LAYERS, MAX_STRING,
};
use tandem_handoff::message::{
    Abort, Accept, Commit, Committed, Hello, RefusalCode, Refuse, control_frame, parse,
};
use tandem_handoff::receipt::{Receipt, TokenScore};
use tandem_handoff::receiver::{Covers, Expectation, Receiver, credit_for};
use tandem_handoff::segment::{step_bytes, window_bytes};
use tandem_handoff::sender::{Offer, Sender, SenderError};
use tandem_handoff::{Contract, LayerKind, LayerSpec, Section};

use super::driver::{HANDOFF, contract, expectation, full, mixed, offer, prompt, split, windowed};

fn hello(contract: &Contract, kv_end: u32) -> Hello {
    let (_, frame) = Sender::new(offer(contract, kv_end)).unwrap();
    parse(Kind::Hello, split(&frame).1).unwrap()
}

fn refusal(hello: &Hello) -> Refuse {
    let result = Receiver::check_hello(hello, &expectation(&mixed(), 5));
    *result.expect_err("accepted")
}

#[test]
fn every_differing_field_is_named_with_both_values() {
    type Change = fn(&mut Contract);
    let table: [(&str, Change, &str, &str); 14] = [
        ("layout_version", |c| c.layout_version = 2, "1", "2"),
        ("engine", |c| c.engine = "fake 2".into(), "fake 1", "fake 2"),
        ("architecture", |c| c.architecture.clear(), "llama", ""),
        (
            "quantisation",
            |c| c.quantisation = "Q8_0".into(),
            "F16",
            "Q8_0",
        ),
        ("weights", |c| c.weights = "w".into(), WEIGHTS, "w"),
        ("tokenizer", |c| c.tokenizer = "t".into(), TOKENIZER, "t"),
        ("rope", |c| c.rope = "base=1".into(), "base=10000", "base=1"),
        ("rotation", |c| c.rotation = "h".into(), "none", "h"),
        ("window", |c| c.window = 8, "4", "8"),
        ("layers.len", |c| c.layers.truncate(2), "3", "2"),
        (
            "layers[0].kind",
            |c| c.layers[0].kind = LayerKind::Window,
            "Full",
            "Window",
        ),
        ("layers[1].kv_heads", |c| c.layers[1].kv_heads = 1, "2", "1"),
        ("layers[2].key_dim", |c| c.layers[2].key_dim = 9, "1", "9"),
        (
            "layers[2].value_dim",
            |c| c.layers[2].value_dim = 9,
            "2",
            "9",
        ),
    ];
    for (field, change, ours, theirs) in table {
        let mut hello = hello(&mixed(), 5);
        change(&mut hello.contract);
        let refuse = refusal(&hello);
        assert_eq!(refuse.code, RefusalCode::Contract);
        let [difference] = refuse.differences.as_slice() else {
            panic!("{field}: {:?}", refuse.differences);
        };
        assert_eq!(
            (
                difference.field.as_str(),
                &*difference.ours,
                &*difference.theirs
            ),
            (field, ours, theirs)
        );
        let message = format!("contract field `{field}` differs: ours {ours}, theirs {theirs}");
        assert_eq!(refuse.message, message);
    }
}

const WEIGHTS: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const TOKENIZER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// The table above must have a row for each field of the contract; element types have one value
/// in this version, and another one is refused by its name when the hello is read.
#[test]
fn the_contract_has_no_other_fields() {
    let value = serde_json::to_value(mixed()).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(|k| &**k).collect();
    assert_eq!(
        keys,
        [
            "layout_version",
            "engine",
            "architecture",
            "quantisation",
            "weights",
            "tokenizer",
            "rope",
            "rotation",
            "window",
            "key_type",
            "value_type",
            "layers",
        ]
    );
    let layer: Vec<&str> = value["layers"][0]
        .as_object()
        .unwrap()
        .keys()
        .map(|k| &**k)
        .collect();
    assert_eq!(layer, ["kind", "kv_heads", "key_dim", "value_dim"]);
}

#[test]
fn same_size_is_not_compatible() {
    // Two heads of one element are not one head of two.
    let a = contract(0, vec![full(2, 1, 1)]);
    let b = contract(0, vec![full(1, 2, 2)]);
    assert_eq!(a.token_bytes(&[0]), b.token_bytes(&[0]));
    assert_eq!(a.differences(&b).len(), 3);
}

/// Every field alone and with another quantisation, with the permission and without.
#[test]
fn another_quantisation_is_accepted_only_with_permission_and_nothing_else_with_it() {
    let ours = mixed();
    type Edit = fn(&mut Contract);
    let edits: [(&str, Edit); 9] = [
        ("layout_version", |c| c.layout_version += 1),
        ("engine", |c| c.engine.push('x')),
        ("architecture", |c| c.architecture.push('x')),
        ("weights", |c| c.weights.push('x')),
        ("tokenizer", |c| c.tokenizer.push('x')),
        ("rope", |c| c.rope.push('x')),
        ("rotation", |c| c.rotation.push('x')),
        ("window", |c| c.window += 1),
        ("layers[0].kv_heads", |c| c.layers[0].kv_heads += 1),
    ];
    let told = |hello: &Hello, mixed_quantisation| -> Result<u32, Vec<String>> {
        let expected = Expectation {
            mixed_quantisation,
            ..expectation(&ours, 5)
        };
        let checked = Receiver::check_hello(hello, &expected);
        checked.map_err(|refuse| {
            assert_eq!(refuse.code, RefusalCode::Contract);
            refuse.differences.into_iter().map(|d| d.field).collect()
        })
    };
    for (field, edit) in edits {
        let mut other = hello(&ours, 5);
        edit(&mut other.contract);
        // Other weights of the same quantisation are another model.
        for permitted in [false, true] {
            assert_eq!(told(&other, permitted), Err(vec![field.to_owned()]));
        }
        other.contract.quantisation.push('x');
        let refused = told(&other, false).unwrap_err();
        assert!(refused.contains(&"quantisation".to_owned()), "{refused:?}");
        let with = match field {
            "weights" => Ok(5),
            _ => Err(vec![field.to_owned()]),
        };
        assert_eq!(told(&other, true), with);
    }
}

#[test]
fn other_tokens_are_refused() {
    let mut other = hello(&mixed(), 5);
    other.kv_end = 4;
    let refuse = refusal(&other);
    assert_eq!(refuse.code, RefusalCode::Tokens);
    assert_eq!(
        refuse.message,
        "hello field `kv_end` differs: ours 5, theirs 4"
    );
    let mut other = hello(&mixed(), 5);
    other.token_digest = "00".repeat(32);
    let refuse = refusal(&other);
    assert_eq!(refuse.code, RefusalCode::Tokens);
    assert!(
        refuse
            .message
            .contains(&format!("theirs {}", "00".repeat(32)))
    );
    assert!(
        refuse
            .message
            .starts_with("hello field `token_digest` differs: ours ")
    );
}

/// KV of an answer comes back: the tokens after the prompt are named in the hello, and only where
/// the ticket permits them.
#[test]
fn a_continuation_only_where_it_is_expected() {
    let tokens = prompt(9);
    let back = |continuation: u32, kv_end: u32| {
        let (_, frame) = Sender::new(Offer {
            tokens: tokens.clone(),
            continuation,
            kv_end,
            ..offer(&mixed(), 0)
        })
        .unwrap();
        parse::<Hello>(Kind::Hello, split(&frame).1).unwrap()
    };
    let expected = |covers| Expectation {
        covers,
        // The first six tokens, of which KV of five exists.
        ..expectation(&mixed(), 5)
    };
    for (continuation, kv_end) in [(4, 5), (4, 6), (4, 9), (4, 10)] {
        let kv = Receiver::check_hello(&back(continuation, kv_end), &expected(Covers::Beyond));
        assert_eq!(kv, Ok(kv_end));
        let hello = back(continuation, kv_end);
        let refuse = Receiver::check_hello(&hello, &expected(Covers::All)).unwrap_err();
        assert_eq!(refuse.code, RefusalCode::Tokens);
        assert!(
            refuse
                .message
                .contains("`continuation` has 4 tokens, limit 0")
        );
    }
    for (continuation, kv_end, field) in [
        (4, 4, "`kv_end` differs: ours 5, theirs 4"),
        (3, 9, "`token_digest` differs"),
        (5, 9, "`token_digest` differs"),
    ] {
        let hello = back(continuation, kv_end);
        let refuse = Receiver::check_hello(&hello, &expected(Covers::Beyond)).unwrap_err();
        assert!(refuse.message.contains(field), "{}", refuse.message);
    }
    let mut beyond = back(4, 10);
    beyond.kv_end = 11;
    let refuse = Receiver::check_hello(&beyond, &expected(Covers::Beyond)).unwrap_err();
    assert!(refuse.message.contains("theirs 11"), "{}", refuse.message);
    let mut other = back(4, 9);
    other.continuation[0] ^= 1;
    let refuse = Receiver::check_hello(&other, &expected(Covers::Beyond)).unwrap_err();
    assert!(refuse.message.contains("`token_digest`"));
    other.continuation = vec![0; MAX_CONTINUATION + 1];
    let refuse = Receiver::check_hello(&other, &expected(Covers::Beyond)).unwrap_err();
    assert!(
        refuse.message.contains("65537 tokens, limit 65536"),
        "{}",
        refuse.message
    );
}

/// For each end that a hello may name of a prompt of six tokens, of which there can be KV of five.
#[test]
fn how_much_of_a_prompt_may_come() {
    let hello = |kv_end: u32| {
        let tokens = prompt(5);
        let offer = offer(&mixed(), kv_end);
        let (_, frame) = Sender::new(Offer { tokens, ..offer }).unwrap();
        parse::<Hello>(Kind::Hello, split(&frame).1).unwrap()
    };
    for (covers, allowed) in [(Covers::All, 5..=5), (Covers::Beyond, 5..=6)] {
        let expected = Expectation {
            covers,
            ..expectation(&mixed(), 5)
        };
        for kv_end in 0..=6 {
            let found = Receiver::check_hello(&hello(kv_end), &expected);
            if allowed.contains(&kv_end) {
                assert_eq!(found, Ok(kv_end), "{covers:?}");
                continue;
            }
            let refuse = found.unwrap_err();
            let told = format!("`kv_end` differs: ours 5, theirs {kv_end}");
            assert!(refuse.message.contains(&told), "{}", refuse.message);
        }
    }
}

#[test]
fn contracts_out_of_bounds_name_the_field() {
    type Change = fn(&mut Contract);
    let table: [(&str, Change); 20] = [
        ("layers", |c| c.layers.clear()),
        ("layers", |c| c.layers = vec![full(1, 1, 1); MAX_LAYERS + 1]),
        ("layers", |c| c.layers = vec![full(1, 1, 1); 1_000_000]),
        ("layers[1].kv_heads", |c| c.layers[1].kv_heads = 0),
        ("layers[1].kv_heads", |c| {
            c.layers[1].kv_heads = MAX_KV_HEADS + 1
        }),
        ("layers[1].kv_heads", |c| c.layers[1].kv_heads = u32::MAX),
        ("layers[2].key_dim", |c| c.layers[2].key_dim = 0),
        ("layers[2].key_dim", |c| {
            c.layers[2].key_dim = MAX_HEAD_DIM + 1
        }),
        ("layers[2].key_dim", |c| c.layers[2].key_dim = u32::MAX),
        ("layers[0].value_dim", |c| c.layers[0].value_dim = 0),
        ("layers[0].value_dim", |c| c.layers[0].value_dim = u32::MAX),
        ("window", |c| c.window = 0),
        ("window", |c| c.layers = vec![full(1, 1, 1)]),
        ("engine", |c| c.engine = "x".repeat(MAX_STRING + 1)),
        ("architecture", |c| {
            c.architecture = "x".repeat(MAX_STRING + 1)
        }),
        ("quantisation", |c| {
            c.quantisation = "x".repeat(MAX_STRING + 1)
        }),
        ("tokenizer", |c| c.tokenizer = "x".repeat(MAX_STRING + 1)),
        ("weights", |c| c.weights = "x".repeat(MAX_STRING + 1)),
        ("rope", |c| c.rope = "x".repeat(MAX_STRING + 1)),
        ("rotation", |c| c.rotation = "x".repeat(MAX_STRING + 1)),
    ];
    for (field, change) in table {
        let mut hello = hello(&mixed(), 5);
        change(&mut hello.contract);
        let refuse = refusal(&hello);
        assert_eq!(refuse.code, RefusalCode::Contract);
        let start = format!("contract field `{field}` is invalid: ");
        assert!(refuse.message.starts_with(&start), "{}", refuse.message);
        // Our own contract is checked as well, before a frame is built from it.
        let own = Sender::new(Offer {
            contract: Arc::new(hello.contract),
            ..offer(&mixed(), 5)
        });
        assert!(matches!(own, Err(SenderError::Contract(e)) if e.field == field));
    }
}

#[test]
fn the_largest_contract_does_not_overflow() {
    let mut layers = vec![full(MAX_KV_HEADS, MAX_HEAD_DIM, MAX_HEAD_DIM); MAX_LAYERS - 1];
    layers.push(windowed(MAX_KV_HEADS, MAX_HEAD_DIM, MAX_HEAD_DIM));
    let largest = contract(u32::MAX, layers);
    largest.validate().unwrap();
    assert_eq!(largest.window_start(7), 0);
    let all: Vec<u32> = (0u32..).take(MAX_LAYERS).collect();
    assert_eq!(largest.token_bytes(&all), 1 << 32);
    assert_eq!(window_bytes(&largest, u32::MAX), u64::from(u32::MAX) << 22);
    assert_eq!(largest.section_layers(Section::Window), [1023]);
}

#[test]
fn strings_of_the_hello_are_bounded() {
    for field in ["ticket", "token_digest"] {
        let mut hello = hello(&mixed(), 5);
        let text = match field {
            "ticket" => &mut hello.ticket,
            _ => &mut hello.token_digest,
        };
        *text = "x".repeat(MAX_STRING + 1);
        let refuse = refusal(&hello);
        assert_eq!(refuse.code, RefusalCode::Hello);
        assert!(refuse.message.contains(&format!("`{field}`")));
    }
}

/// The worst that a valid contract can make a receiver say still fits a frame.
#[test]
fn any_refusal_fits_a_frame() {
    let text = |c: char| c.to_string().repeat(MAX_STRING);
    let make = |c: char, heads: u32| {
        let mut out = contract(0, vec![full(heads, heads, heads); MAX_LAYERS]);
        out.engine = text(c);
        out.architecture = text(c);
        out.quantisation = text(c);
        out.tokenizer = text(c);
        out.weights = text(c);
        out.rope = text(c);
        out.rotation = text(c);
        out
    };
    // Control characters take six bytes each in JSON.
    let (ours, theirs) = (make('\u{1}', 1023), make('\u{2}', 1022));
    let mut hello = hello(&mixed(), 5);
    hello.contract = theirs;
    let refuse = Receiver::check_hello(&hello, &expectation(&ours, 5)).unwrap_err();
    assert_eq!(refuse.differences.len(), MAX_DIFFERENCES);
    assert_eq!(refuse.differences[0].field, "engine");
    let frame = control_frame(Kind::Refuse, HANDOFF, 0, &refuse).unwrap();
    assert!(frame.len() <= MAX_CONTROL_PAYLOAD as usize);
}

fn hello_json() -> Value {
    serde_json::to_value(hello(&mixed(), 5)).unwrap()
}

fn read(value: &Value) -> Result<Hello, String> {
    parse(Kind::Hello, &serde_json::to_vec(value).unwrap()).map_err(|e| e.reason)
}

#[test]
fn fields_of_the_wrong_type_are_named() {
    let table: [(&str, &str, Value); 22] = [
        ("/continuation", "continuation: ", json!(null)),
        ("/continuation", "continuation[1]: ", json!([1, -1])),
        (
            "/continuation",
            "continuation[0]: ",
            json!([4_294_967_296_u64]),
        ),
        ("/kv_end", "kv_end: ", json!("5")),
        ("/kv_end", "kv_end: ", json!(-1)),
        ("/kv_end", "kv_end: ", json!(4_294_967_296_u64)),
        ("/kv_end", "kv_end: ", json!(5.0)),
        ("/ticket", "ticket: ", json!(1)),
        ("/token_digest", "token_digest: ", json!(null)),
        ("/step_bytes", "step_bytes: ", json!(-1)),
        ("/exact_end", "exact_end: ", json!(-1)),
        ("/contract", "contract: ", json!(true)),
        ("/contract/window", "contract.window: ", json!(1e300)),
        ("/contract/engine", "contract.engine: ", json!(["x"])),
        (
            "/contract/key_type",
            "contract.key_type: unknown variant `f32`, expected `f16`",
            json!("f32"),
        ),
        (
            "/contract/value_type",
            "contract.value_type: unknown variant `q8_0`, expected `f16`",
            json!("q8_0"),
        ),
        ("/contract/key_type", "contract.key_type: ", json!(1)),
        ("/contract/layers", "contract.layers: ", json!({})),
        ("/contract/layers/1", "contract.layers[1]: ", json!(7)),
        (
            "/contract/layers/1/kind",
            "contract.layers[1].kind: unknown variant `linear`",
            json!("linear"),
        ),
        (
            "/contract/layers/1/kv_heads",
            "contract.layers[1].kv_heads: ",
            json!(-1),
        ),
        (
            "/contract/layers/2/key_dim",
            "contract.layers[2].key_dim: ",
            json!(1e30),
        ),
    ];
    assert_eq!(read(&hello_json()), Ok(hello(&mixed(), 5)));
    for (pointer, start, value) in table {
        let mut json = hello_json();
        *json.pointer_mut(pointer).unwrap() = value;
        let error = read(&json).expect_err(pointer);
        assert!(error.starts_with(start), "{pointer}: {error}");
    }
}

#[test]
fn unknown_missing_and_repeated_keys_are_refused() {
    for pointer in ["", "/contract", "/contract/layers/0"] {
        let mut json = hello_json();
        let object = json.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        object.insert("extra".into(), json!(1));
        let error = read(&json).expect_err(pointer);
        assert!(error.contains("unknown field `extra`"), "{error}");
        let keys: Vec<String> = object_keys(&hello_json(), pointer);
        for key in keys {
            let mut json = hello_json();
            let object = json.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            object.shift_remove(&key);
            let error = read(&json).expect_err(&key);
            assert!(error.contains(&format!("missing field `{key}`")), "{error}");
        }
    }
    let text = hello_json().to_string();
    let twice = text.replacen("\"kv_end\":5", "\"kv_end\":5,\"kv_end\":5", 1);
    let error = parse::<Hello>(Kind::Hello, twice.as_bytes()).unwrap_err();
    assert!(error.reason.contains("duplicate field `kv_end`"), "{error}");
}

fn object_keys(json: &Value, pointer: &str) -> Vec<String> {
    let object = json.pointer(pointer).unwrap().as_object().unwrap();
    object.keys().cloned().collect()
}

#[test]
fn unknown_keys_of_the_other_messages_are_refused() {
    fn check<T: serde::de::DeserializeOwned + std::fmt::Debug>(kind: Kind, good: Value) {
        let read = |v: &Value| parse::<T>(kind, v.to_string().as_bytes());
        read(&good).unwrap();
        let mut bad = good;
        bad["extra"] = json!(1);
        let error = read(&bad).unwrap_err();
        assert!(error.reason.contains("unknown field `extra`"), "{error}");
    }
    let accept = json!({
        "session": "a", "credit_bytes": 4,
        "have_tokens": 0, "have_page": null, "have_window": 0,
    });
    check::<Accept>(Kind::Accept, accept);
    let back = json!({"ticket": "a", "handoff": 1, "port": 2});
    let score = json!({"token": 1, "logprob": -0.5});
    check::<Receipt>(Kind::Receipt, json!({"top": [score], "hand_back": back}));
    check::<Committed>(Kind::Committed, json!({"apply_ms": 1}));
    check::<TokenScore>(Kind::Receipt, score);
    check::<tandem_handoff::receipt::ReturnTicket>(Kind::Receipt, back);
    check::<Commit>(
        Kind::Commit,
        json!({"segments": 1, "raw_bytes": 2, "manifest": ""}),
    );
    check::<Abort>(Kind::Abort, json!({"reason": ""}));
    let refuse =
        |difference: Value| json!({"code": "contract", "message": "", "differences": [difference]});
    let difference = json!({"field": "a", "ours": "b", "theirs": "c"});
    check::<Refuse>(Kind::Refuse, refuse(difference.clone()));
    let mut bad = difference;
    bad["extra"] = json!(1);
    let error = parse::<Refuse>(Kind::Refuse, refuse(bad).to_string().as_bytes()).unwrap_err();
    assert!(error.reason.starts_with("differences[0]"), "{error}");
}

#[test]
fn what_is_not_json_is_refused() {
    let text = hello_json().to_string();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from));
        text.replacen(from, to, 1)
    };
    let payloads = [
        changed("\"kv_end\":5", "\"kv_end\":NaN"),
        changed("\"kv_end\":5", "\"kv_end\":Infinity"),
        changed("\"kv_end\":5", "\"kv_end\":1e999"),
        changed("\"kv_end\":5", "\"kv_end\":05"),
        changed("\"kv_end\":5", "\"kv_end\":5,"),
        changed("\"llama\"", "\"ll\\ud800ama\""),
        format!("{text}{text}"),
        format!("{text}\0"),
        format!("\u{feff}{text}"),
        "[".repeat(1 << 19),
        "{\"contract\":".repeat(1 << 16),
    ];
    for payload in payloads {
        let result = parse::<Hello>(Kind::Hello, payload.as_bytes());
        let error = result.expect_err(payload.get(..80).unwrap_or(&payload));
        assert!(error.reason.len() <= MAX_STRING);
    }
    let mut bytes = text.into_bytes();
    let at = bytes.iter().position(|b| *b == b'l').unwrap();
    bytes[at] = 0xFF;
    parse::<Hello>(Kind::Hello, &bytes).unwrap_err();
}

#[test]
fn what_a_peer_sent_is_not_repeated_at_length() {
    let mut json = hello_json();
    json["x".repeat(500_000)] = json!(1);
    let error = read(&json).unwrap_err();
    assert!(error.starts_with("xxx"), "{error}");
    assert!(error.len() <= MAX_STRING);
}

/// What a peer says goes to logs and terminals: no line of its own, no escape sequence.
#[test]
fn what_a_peer_says_is_harmless_where_it_is_read() {
    let evil = "a\u{1b}[2J\nb\u{9b}c\rd\0";
    let told = |text: &str| {
        assert!(!text.chars().any(char::is_control), "{text:?}");
        for part in ["a", "[2J", "b", "c", "d"] {
            assert!(text.contains(part), "{text:?}");
        }
    };
    let payload = |value: Value| serde_json::to_vec(&value).unwrap();
    let abort: Abort = parse(Kind::Abort, &payload(json!({"reason": evil}))).unwrap();
    told(&abort.reason);
    let difference = json!({"field": evil, "ours": evil, "theirs": evil});
    let refuse = json!({"code": "contract", "message": evil, "differences": [difference]});
    let refuse: Refuse = parse(Kind::Refuse, &payload(refuse)).unwrap();
    told(&refuse.message);
    let difference = &refuse.differences[0];
    for text in [&difference.field, &difference.ours, &difference.theirs] {
        told(text);
    }
    // Values of a contract and of a hello are repeated in the refusal.
    let mut other = hello(&mixed(), 5);
    other.contract.rope = evil.to_owned();
    let refuse = refusal(&other);
    told(&refuse.message);
    told(&refuse.differences[0].theirs);
    let mut other = hello(&mixed(), 5);
    other.token_digest = evil.to_owned();
    told(&refusal(&other).message);
    let mut json = hello_json();
    json[evil] = json!(1);
    told(&read(&json).unwrap_err());
}

#[test]
fn a_million_layers_do_not_fit_a_hello() {
    let layer = r#"{"kind":"full","kv_heads":1,"key_dim":1,"value_dim":1}"#;
    assert!(layer.len() * 1_000_000 > MAX_CONTROL_PAYLOAD as usize);
    let mut large = mixed();
    large.layers = vec![full(1, 1, 1); 1_000_000];
    let message = Hello {
        contract: large,
        ..hello(&mixed(), 5)
    };
    let error = control_frame(Kind::Hello, HANDOFF, 0, &message).unwrap_err();
    assert!(error.reason.contains("exceed the limit"), "{error}");
    // As many as fit are read and then refused by their number.
    let mut json = hello_json();
    json["contract"]["layers"] = json!(vec![json!(full(1, 1, 1)); 17_000]);
    assert!(json.to_string().len() <= MAX_CONTROL_PAYLOAD as usize);
    let refuse = refusal(&read(&json).unwrap());
    assert!(refuse.message.contains("17000 layers, allowed 1..=1024"));
}

#[test]
fn no_more_is_exact_than_there_is() {
    let offered = |exact_end| {
        let offer = Offer {
            exact_end,
            ..offer(&mixed(), 5)
        };
        let (_, frame) = Sender::new(offer).unwrap();
        parse::<Hello>(Kind::Hello, split(&frame).1).unwrap()
    };
    for exact_end in [0, 3, 5] {
        let hello = offered(exact_end);
        assert_eq!(hello.exact_end, exact_end);
        let result = Receiver::check_hello(&hello, &expectation(&mixed(), 5));
        assert_eq!(result, Ok(5));
    }
    let refuse = refusal(&offered(6));
    assert_eq!(refuse.code, RefusalCode::Hello);
    assert_eq!(
        refuse.message,
        "hello field `exact_end` is 6, at most `kv_end`: 5"
    );
}

#[test]
fn credit_follows_the_step() {
    let (_, frame) = Sender::new(Offer {
        step_bytes: 77,
        ..offer(&mixed(), 5)
    })
    .unwrap();
    let hello: Hello = parse(Kind::Hello, split(&frame).1).unwrap();
    assert_eq!(hello.step_bytes, 77);
    for (step, credit) in [
        (0, CREDIT_BYTES),
        (CREDIT_BYTES - AHEAD_BYTES, CREDIT_BYTES),
        (CREDIT_BYTES, CREDIT_BYTES + AHEAD_BYTES),
        (MAX_CREDIT_BYTES - AHEAD_BYTES, MAX_CREDIT_BYTES),
        (MAX_CREDIT_BYTES, MAX_CREDIT_BYTES),
        (u64::MAX, MAX_CREDIT_BYTES),
    ] {
        assert_eq!(credit_for(step), credit, "{step}");
    }
}

proptest! {
    /// The most rows that as many tokens at once have, of those that are sent.
    #[test]
    fn the_bytes_of_a_step_are_those_of_its_largest(
        window in 1u32..20,
        kv_end in 0u32..40,
        tokens in 0u32..50,
    ) {
        let contract = contract(window, vec![full(1, 2, 3), windowed(2, 1, 1), full(1, 1, 1)]);
        let row = |layer: usize| contract.token_bytes(&[u32::try_from(layer).unwrap()]);
        let is_sent = |position: u32, layer: &LayerSpec| {
            layer.kind == LayerKind::Full || position + window >= kv_end
        };
        let bytes = |position: u32| -> u64 {
            let layers = contract.layers.iter().enumerate();
            let sent = layers.filter(|(_, layer)| is_sent(position, layer));
            sent.map(|(at, _)| row(at)).sum()
        };
        let starts = 0..=kv_end.saturating_sub(tokens);
        let steps = starts.map(|from| (from..kv_end.min(from + tokens)).map(bytes).sum::<u64>());
        prop_assert_eq!(step_bytes(&contract, kv_end, tokens), steps.max().unwrap());
    }
}
