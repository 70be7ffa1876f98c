//! Whatever schema a client sends: the answer comes soon, takes bounded memory, and says nothing of
//! the library's insides.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandem_engine::constraint::{ConstraintError, ConstraintFactory};
use tandem_engine::limits::{
    MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_ENTRIES, MAX_SCHEMA_NODES, MAX_SCHEMA_PATTERNS,
};
use tandem_engine::{Token, Tokenizer};

use crate::schemas::{Dice, hostile};
use crate::vocabulary::Vocabulary;

/// Longest time of a schema: its compilation, and each mask.
const LONGEST: Duration = Duration::from_secs(5);
/// Most memory of a schema.
const MOST_MIB: u64 = 256;
const TOKENS: usize = 60;

/// As large as that of a small model, so that masks cost what they do there.
fn vocabulary() -> Vocabulary {
    let mut dice = Dice::new(7);
    let mut words = vec![
        "{\"", "\":", "\", \"", "\"}", "},{", "[]", "null", "true", "aa", "aaaa", "ab", "ba", "100",
    ];
    for _ in 0..20_000 {
        let letter = |_| char::from(b'a' + dice.below(26) as u8);
        let word: String = (0..6).map(letter).collect();
        words.push(Box::leak(word.into_boxed_str()));
    }
    Vocabulary {
        words,
        control: vec!["<|end|>"],
        ends: vec!["<|end|>"],
        ..Vocabulary::default()
    }
}

/// Compiles a schema and follows it for some tokens.
fn sample(
    factory: &ConstraintFactory,
    vocabulary: &Vocabulary,
    schema: &Value,
    seed: u64,
) -> Result<(), ConstraintError> {
    let mut dice = Dice::new(seed);
    let mut constraint = factory.json_schema(schema)?;
    for _ in 0..TOKENS {
        let since = Instant::now();
        let mask = constraint.mask()?;
        let start = dice.below(vocabulary.len() as usize) as Token;
        let mut all = (start..vocabulary.len()).chain(0..start);
        let token = all.find(|t| mask.allows(*t)).expect("a token");
        if vocabulary.is_end(token) {
            break;
        }
        constraint.accept(token)?;
        assert!(since.elapsed() < LONGEST, "seed {seed}: a mask");
        if constraint.is_complete() {
            break;
        }
    }
    Ok(())
}

/// Resident memory in MiB: now, and the most since the last [`forget_peak`].
#[cfg(target_os = "linux")]
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib / 1024
    };
    (field("VmRSS"), field("VmHWM"))
}

#[cfg(target_os = "linux")]
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[cfg(not(target_os = "linux"))]
fn resident() -> (u64, u64) {
    (0, 0)
}

#[cfg(not(target_os = "linux"))]
fn forget_peak() {}

/// The seeds of `cargo xtask schemas`, or those of a run of the tests.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let from = number("TANDEM_SCHEMAS_FROM").unwrap_or(0);
    from..from + number("TANDEM_SCHEMAS_COUNT").unwrap_or(200)
}

#[test]
fn hostile_schemas_take_bounded_time_and_memory() {
    let vocabulary = vocabulary();
    let factory = ConstraintFactory::new(Arc::new(vocabulary.clone())).unwrap();
    let mut followed = 0;
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        // A client's server holds it, too, within the limits of a body.
        let schema = hostile(seed);
        forget_peak();
        let (before, since) = (resident().0, Instant::now());
        let end = sample(&factory, &vocabulary, &schema, seed);
        let (time, memory) = (since.elapsed(), resident().1.saturating_sub(before));
        assert!(time < LONGEST, "seed {seed}: {time:?}");
        assert!(memory < MOST_MIB, "seed {seed}: {memory} MiB");
        let Err(error) = end else {
            followed += 1;
            continue;
        };
        assert!(
            !matches!(error, ConstraintError::Token { .. }),
            "seed {seed}: {error}"
        );
        let told = error.to_string();
        let inside = ["panic", "backtrace", "\n", "llguidance"]
            .iter()
            .find(|word| told.contains(**word));
        assert!(inside.is_none() && told.len() < 1000, "seed {seed}: {told}");
    }
    assert!(
        count < 50 || followed > count / 10,
        "only {followed} of {count} were followed"
    );
}

/// Why a schema is refused.
fn refusal(factory: &ConstraintFactory, schema: &Value) -> String {
    match factory.json_schema(schema) {
        Err(ConstraintError::Schema(reason)) => reason,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn each_limit_names_the_place() {
    let factory = ConstraintFactory::new(Arc::new(Vocabulary {
        control: vec!["<|end|>"],
        ends: vec!["<|end|>"],
        ..Vocabulary::default()
    }))
    .unwrap();
    let within = |inner: Value| json!({"type": "object", "properties": {"a/b": inner}});
    let many = |n: usize| {
        (0..n)
            .map(|i| (format!("p{i}"), json!(true)))
            .collect::<Value>()
    };
    let pattern = json!({"pattern": "a+"});
    let table = [
        (
            json!({"const": "x".repeat(MAX_SCHEMA_BYTES)}),
            "#: it has more than 262144",
        ),
        (
            json!({"examples": vec![json!([]); MAX_SCHEMA_NODES]}),
            "#: it has more",
        ),
        (
            within(json!({"properties": many(MAX_SCHEMA_ENTRIES + 1)})),
            "#/properties/a~1b/properties: it has 501",
        ),
        (
            within(json!({"allOf": vec![pattern; MAX_SCHEMA_PATTERNS + 1]})),
            "#/properties/a~1b: one value must",
        ),
        (json!({"$ref": "#"}), "#"),
    ];
    for (schema, expected) in table {
        let told = refusal(&factory, &schema);
        assert!(told.starts_with(expected), "{expected}: {told}");
    }
    let nest = |deep, _| json!({"items": deep});
    let deep = (0..MAX_SCHEMA_DEPTH).fold(json!({"type": "null"}), nest);
    assert!(refusal(&factory, &deep).contains("nested"));
    // What people write is far below.
    let tree = json!({"type": "object", "required": ["v"], "additionalProperties": false, "properties": {
        "v": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    }});
    assert!(factory.json_schema(&tree).is_ok());
    let wide = json!({"type": "object", "properties": many(MAX_SCHEMA_ENTRIES)});
    assert!(factory.json_schema(&wide).is_ok());
    let names: Vec<String> = (0..15_000).map(|i| format!("name {i}")).collect();
    assert!(
        factory
            .json_schema(&json!({"type": "string", "enum": names}))
            .is_ok()
    );
}
