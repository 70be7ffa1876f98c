//! Verdicts: the schema against an independent validator, and the checks in code.

use crate::course::{RUBRIC, rubric, submissions};
use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_grading::{
    FindingKind, Rubric, Submission, VerdictError, read_verdict, verdict_schema, worst_case_bytes,
};

const CHARS: u32 = 50;

fn single() -> Submission {
    submissions(&[("a.py", "def f():\n    return 1\n\nprint(f())\n")]).remove(0)
}

fn double() -> Submission {
    submissions(&[("s/A.java", "class A {}\n"), ("s/B.java", "class B {\n}\n")]).remove(0)
}

fn good() -> Value {
    json!({"criteria": {
        "works": {"evidence": [{"line_start": 1, "line_end": 2}], "rationale": "It returns 1.", "points": 4},
        "style": {"evidence": [{"line_start": 4, "line_end": 4}], "rationale": "Short names.", "points": 0.5},
    }})
}

/// `good` with one value changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut verdict = good();
    *verdict.pointer_mut(pointer).expect(pointer) = value;
    verdict
}

#[test]
fn schema_and_code_agree() {
    let (rubric, submission) = (rubric(), single());
    let schema = jsonschema::validator_for(&verdict_schema(&rubric, &submission, CHARS))
        .expect("a valid schema");
    assert!(schema.is_valid(&good()));
    let verdict = read_verdict(&good().to_string(), &rubric, &submission).expect("verdict");
    assert_eq!(verdict.total.as_f64(), 4.5);
    assert_eq!(verdict.doubts, []);
    assert_eq!(
        verdict.criteria[0].evidence[0].quote,
        "def f():\n    return 1"
    );
    assert_eq!(verdict.criteria[0].level.as_deref(), Some("all"));
    let refused = [
        with("/criteria/works/points", json!(3)),
        with("/criteria/works/points", json!(400)),
        with("/criteria/works/points", json!(-2)),
        with("/criteria/works/points", json!("4")),
        with("/criteria/style/points", json!(0.25)),
        with("/criteria/works/rationale", json!(7)),
        with("/criteria/works/evidence", json!("line 1")),
        with("/criteria/works/evidence/0", json!({"line_start": 1})),
        with(
            "/criteria/works/evidence/0",
            json!({"line_start": 1, "line_end": 1, "quote": "invented"}),
        ),
        with("/criteria/works", json!(null)),
        with("/criteria", json!({"works": good()["criteria"]["works"]})),
        with(
            "/criteria",
            json!({"works": good()["criteria"]["works"], "style": good()["criteria"]["style"], "bonus": {}}),
        ),
        json!({"criteria": good()["criteria"], "total": 5}),
        json!({}),
        json!([]),
    ];
    for verdict in refused {
        assert!(!schema.is_valid(&verdict), "schema accepts {verdict}");
        assert!(
            read_verdict(&verdict.to_string(), &rubric, &submission).is_err(),
            "code accepts {verdict}"
        );
    }
    for (pointer, value) in [
        ("/criteria/works/evidence/0/line_end", json!(5)),
        ("/criteria/works/evidence/0/line_start", json!(0)),
        ("/criteria/works/rationale", json!("x".repeat(51))),
        (
            "/criteria/works/evidence",
            json!([{"line_start": 1, "line_end": 1}, {"line_start": 1, "line_end": 1}, {"line_start": 1, "line_end": 1}]),
        ),
    ] {
        assert!(
            !schema.is_valid(&with(pointer, value.clone())),
            "schema accepts {pointer} = {value}"
        );
    }
}

#[test]
fn doubtful_evidence_is_dropped_and_named() {
    let (rubric, submission) = (rubric(), single());
    let table = [
        (
            json!([{"file": "a.py", "line_start": 1, "line_end": 9}]),
            "evidence at lines 1 to 9 of a.py does not exist",
        ),
        (json!([{"line_start": 0, "line_end": 1}]), "does not exist"),
        (json!([{"line_start": 3, "line_end": 2}]), "does not exist"),
        (json!([]), "points without evidence"),
    ];
    for (evidence, expected) in table {
        let answer = with("/criteria/works/evidence", evidence.clone()).to_string();
        let verdict = read_verdict(&answer, &rubric, &submission).expect("a score all the same");
        assert_eq!(verdict.total.as_f64(), 4.5);
        assert!(
            verdict
                .doubts
                .iter()
                .any(|d| d.text.contains("'works'") && d.text.contains(expected)),
            "{evidence}: {:?}",
            verdict.doubts
        );
        assert!(verdict.criteria[0].evidence.is_empty());
    }
}

#[test]
fn what_is_said_to_be_missing_is_looked_at() {
    let (rubric, submission) = (rubric(), single());
    let cited = json!([{"line_start": 1, "line_end": 1}]);
    let table = [
        (json!([]), "Nothing there.", 0, true),
        (cited.clone(), "Wrong result.", 0, true),
        (cited.clone(), "The empty case is missing.", 4, true),
        (cited.clone(), "Der leere Fall fehlt.", 4, true),
        (cited.clone(), "Nothing at all is missing.", 4, false),
        (cited.clone(), "Es fehlt nichts.", 4, false),
        (cited.clone(), "Il ne manque rien.", 4, false),
        (cited.clone(), "It handles missing values.", 4, false),
        (cited.clone(), "The empty case is missing.", 2, false),
        (cited, "It does what was asked.", 4, false),
    ];
    for (evidence, rationale, points, is_doubted) in table {
        let answer = json!({"evidence": evidence, "rationale": rationale, "points": points});
        let answer = with("/criteria/works", answer).to_string();
        let verdict = read_verdict(&answer, &rubric, &submission).unwrap();
        let kinds: Vec<FindingKind> = verdict.doubts.iter().map(|d| d.kind).collect();
        let expected = if is_doubted {
            vec![FindingKind::Absence]
        } else {
            vec![]
        };
        assert_eq!(kinds, expected, "{answer}");
    }
}

#[test]
fn a_short_reflection_is_looked_at() {
    let rubric = RUBRIC.replace(
        "    title: Style",
        "    title: Style\n    kind: reflection\n    question: Why these names?\n    min_words: 6",
    );
    let rubric = Rubric::parse(&rubric).unwrap();
    let text = "# Names\nThey say\nwhat the values hold.\n\n";
    let submission = submissions(&[("a.md", text)]).remove(0);
    let doubts = |evidence: Value, points: f64| {
        let answer = json!({"evidence": evidence, "rationale": "Seen.", "points": points});
        let verdict = with("/criteria/style", answer).to_string();
        let verdict = read_verdict(&verdict, &rubric, &submission).unwrap();
        let doubts = verdict
            .doubts
            .into_iter()
            .filter(|d| d.kind == FindingKind::TooShort);
        doubts.map(|d| d.text).collect::<Vec<_>>()
    };
    let lines = |first: u32, last: u32| json!({"line_start": first, "line_end": last});
    assert_eq!(doubts(json!([lines(2, 3)]), 1.0), Vec::<String>::new());
    // A line that is cited twice has its words once.
    for cited in [json!([lines(2, 2)]), json!([lines(3, 3), lines(3, 4)])] {
        assert!(doubts(cited, 1.0)[0].contains("at least 6"));
    }
    assert_eq!(doubts(json!([]), 0.0), Vec::<String>::new());
}

#[test]
fn several_files_are_named() {
    let (rubric, submission) = (rubric(), double());
    let schema = jsonschema::validator_for(&verdict_schema(&rubric, &submission, CHARS))
        .expect("a valid schema");
    let cite = |file: &str, line: usize| {
        let evidence = json!([{"file": file, "line_start": line, "line_end": line}]);
        let mut verdict = with("/criteria/works/evidence", evidence.clone());
        verdict["criteria"]["style"]["evidence"] = evidence;
        verdict
    };
    assert!(schema.is_valid(&cite("B.java", 2)));
    assert!(!schema.is_valid(&cite("C.java", 1)));
    assert!(!schema.is_valid(&good()), "the file must be named");
    let verdict = read_verdict(&cite("B.java", 2).to_string(), &rubric, &submission).unwrap();
    assert_eq!(
        (
            verdict.criteria[0].evidence[0].quote.as_str(),
            verdict.doubts.len()
        ),
        ("}", 0)
    );
    // The schema knows the longest file only; the code knows each.
    assert!(schema.is_valid(&cite("A.java", 2)));
    assert_eq!(
        read_verdict(&cite("A.java", 2).to_string(), &rubric, &submission)
            .unwrap()
            .doubts
            .len(),
        4
    );
}

#[test]
fn answers_that_are_no_verdict() {
    let (rubric, submission) = (rubric(), single());
    for answer in [
        "",
        "null",
        "I give 4 points.",
        "{\"criteria\": {\"works\": ",
        "[]",
    ] {
        assert!(
            matches!(
                read_verdict(answer, &rubric, &submission),
                Err(VerdictError::Shape(_))
            ),
            "{answer}"
        );
    }
    let fenced = format!("```json\n{}\n```", good());
    assert!(read_verdict(&fenced, &rubric, &submission).is_ok());
}

#[test]
fn generation_order_is_evidence_rationale_points() {
    let text = verdict_schema(&rubric(), &double(), CHARS).to_string();
    let at = |key: &str| text.find(&format!("\"{key}\":")).expect(key);
    assert!(at("evidence") < at("rationale") && at("rationale") < at("points"));
    assert!(
        at("works") < at("style")
            && at("file") < at("line_start")
            && at("line_start") < at("line_end")
    );
}

/// Any value that the schema of the tests allows, built without looking at the schema.
fn any_verdict() -> impl Strategy<Value = Value> {
    let piece = (1..=4u32, 1..=4u32).prop_map(|(a, b)| json!({"line_start": a, "line_end": b}));
    let evidence = proptest::collection::vec(piece, 0..=2);
    let criterion = move |points: Vec<Value>| {
        (
            evidence.clone(),
            "[\\x00-\\u{10FFFF}]{0,50}",
            proptest::sample::select(points),
        )
            .prop_map(|(e, r, p)| json!({"evidence": e, "rationale": r, "points": p}))
    };
    let works = criterion(vec![json!(0), json!(2), json!(4)]);
    let style = criterion(vec![json!(0), json!(0.5), json!(1)]);
    (works, style).prop_map(|(works, style)| json!({"criteria": {"works": works, "style": style}}))
}

proptest! {
    #[test]
    fn every_generated_verdict_is_valid_bounded_and_scored(verdict in any_verdict()) {
        let (rubric, submission) = (rubric(), single());
        let schema = jsonschema::validator_for(&verdict_schema(&rubric, &submission, CHARS)).unwrap();
        prop_assert!(schema.is_valid(&verdict));
        let text = verdict.to_string();
        prop_assert!(text.len() <= worst_case_bytes(&rubric, &submission, CHARS));
        let read = read_verdict(&text, &rubric, &submission).unwrap();
        let sum = verdict["criteria"]["works"]["points"].as_f64().unwrap() + verdict["criteria"]["style"]["points"].as_f64().unwrap();
        prop_assert_eq!(read.total.as_f64(), sum);
    }

    #[test]
    fn no_answer_panics(answer in "\\PC{0,60}") {
        let _ = read_verdict(&answer, &rubric(), &single());
    }
}
