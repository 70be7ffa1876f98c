//! Bonuses, penalties and late submissions: computed in code, in the total alone.

use proptest::prelude::*;
use tandem_grading::export::{Choice, Format, Row, fill, write};
use tandem_grading::review::{Change, Decision, Refusal, Review, Standing};
use tandem_grading::revision::carried_review;
use tandem_grading::{Item, ItemKind, Origin, Points, Rubric};

const RUBRIC: &str = "\
id: sum
title: Sum
task: Sum the numbers.
criteria:
  - {id: a, title: Works, description: It works., max_points: 6, step: 0.5}
  - {id: b, title: Names, description: It has names., max_points: 4, step: 1}
  - {id: more, title: More, description: It does more., max_points: 2, step: 1, bonus: true}
penalties:
  - {id: file, title: Wrong name of the file, points: 1.5}
  - {id: zip, title: Not in a zip, points: 1}
late: {percent: 20}
";

fn points(value: f64) -> Points {
    Points::from_f64(value).unwrap()
}

fn rubric() -> Rubric {
    Rubric::parse(RUBRIC).unwrap()
}

#[test]
fn a_bonus_is_on_top_and_lateness_a_share_of_the_rest() {
    let rubric = rubric();
    assert_eq!(rubric.max_points, points(10.0));
    assert!(rubric.criteria[2].is_bonus && !rubric.criteria[0].is_bonus);
    assert_eq!(rubric.late.unwrap().points, points(2.0));
    let stated = RUBRIC.replace("late: {percent: 20}", "late: {points: 0.5}\nmax_points: 10");
    assert_eq!(
        Rubric::parse(&stated).unwrap().late.unwrap().points,
        points(0.5)
    );
}

#[test]
fn rules_that_cannot_hold_name_the_field() {
    for (from, to, field) in [
        ("percent: 20", "percent: 0", "late.percent"),
        ("percent: 20", "percent: 101", "late.percent"),
        ("percent: 20", "percent: -5", "late.percent"),
        ("percent: 20", "percent: .nan", "late.percent"),
        ("percent: 20", "points: 0", "late.points"),
        ("percent: 20", "points: -1", "late.points"),
        ("percent: 20", "points: 1, percent: 1", "late"),
        ("percent: 20", "title: x", "late"),
        ("points: 1.5", "points: 0", "penalties[0].points"),
        ("points: 1.5", "points: -2", "penalties[0].points"),
        ("id: zip", "id: file", "penalties[1].id"),
        ("id: zip", "id: a b", "penalties[1].id"),
        ("title: Not in a zip", "title: \"\"", "penalties[1].title"),
    ] {
        assert!(RUBRIC.contains(from), "{from}");
        let error = Rubric::parse(&RUBRIC.replacen(from, to, 1)).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{field}:")),
            "{to}: {error}"
        );
    }
    let all = RUBRIC.replace("step: 0.5", "step: 0.5, bonus: true");
    let all = all.replace(
        "max_points: 4, step: 1",
        "max_points: 4, step: 1, bonus: true",
    );
    assert!(
        Rubric::parse(&all)
            .unwrap_err()
            .to_string()
            .contains("all are bonuses")
    );
}

/// What a person does to a submission.
fn change() -> impl Strategy<Value = Change> {
    let ids = ["file", "zip"];
    let penalty = (0..2_usize, any::<bool>()).prop_map(move |(i, is_given)| Change::Penalty {
        id: ids[i].to_owned(),
        is_given,
    });
    let late = proptest::option::of(any::<bool>()).prop_map(Change::Late);
    let given = (0..3_usize, 0..13_u32).prop_map(|(i, half)| Change::Points {
        criterion: ["a", "b", "more"][i].to_owned(),
        points: Points::from_f64(f64::from(half) / 2.0),
    });
    prop_oneof![
        penalty,
        late,
        given,
        Just(Change::Approve { confirmed: true }),
        Just(Change::Reopen)
    ]
}

proptest! {
    #[test]
    fn the_total_is_the_points_less_what_is_taken_off(
        changes in proptest::collection::vec(change(), 0..20), is_late: bool,
    ) {
        let rubric = rubric();
        let mut review = Review::default();
        // What should come out, in half points.
        let (mut given, mut off, mut late) = ([None; 3], [false; 2], is_late);
        for change in &changes {
            let standing = Standing { is_late, ..Standing::new(&rubric, None, &review) };
            let before = standing.total();
            let Ok(next) = standing.after(change) else { continue };
            match change {
                Change::Points { criterion, points } => {
                    let i = ["a", "b", "more"].iter().position(|id| id == criterion).unwrap();
                    given[i] = *points;
                }
                Change::Penalty { id, is_given } => off[usize::from(id == "zip")] = *is_given,
                Change::Late(said) => late = said.unwrap_or(is_late),
                _ => {}
            }
            // Whatever changes the total opens it again.
            let after = Standing { is_late, ..Standing::new(&rubric, None, &next) };
            if after.total() != before {
                prop_assert_eq!(next.decision, Decision::Open);
            }
            review = next;
        }
        let standing = Standing { is_late, ..Standing::new(&rubric, None, &review) };
        let sum: Option<f64> = given.iter().map(|points| points.map(Points::as_f64)).sum();
        let taken = f64::from(u8::from(off[0])) * 1.5 + f64::from(u8::from(off[1])) + f64::from(u8::from(late)) * 2.0;
        let expected = sum.map(|sum| (sum - taken).max(0.0));
        prop_assert_eq!(standing.total().map(Points::as_f64), expected);
        prop_assert_eq!(standing.counts_as_late(), late);
    }
}

#[test]
fn what_a_rubric_does_not_have_is_not_taken_off() {
    let rubric = Rubric::parse(&RUBRIC.replace("late: {percent: 20}\n", "")).unwrap();
    let review = Review::default();
    let standing = Standing {
        is_late: true,
        ..Standing::new(&rubric, None, &review)
    };
    assert!(!standing.counts_as_late() && standing.corrections().is_empty());
    let late = standing.after(&Change::Late(Some(true)));
    assert!(matches!(late, Err(Refusal::Rule(_))));
    let penalty = Change::Penalty {
        id: "other".to_owned(),
        is_given: true,
    };
    assert!(matches!(standing.after(&penalty), Err(Refusal::Rule(_))));
}

#[test]
fn a_student_reads_what_was_taken_off() {
    let rubric = rubric();
    let mut review = Review {
        decision: Decision::Approved,
        text: Some(Vec::new()),
        ..Review::default()
    };
    for (id, value) in [("a", 6.0), ("b", 3.0), ("more", 2.0)] {
        review.points.insert(id.to_owned(), points(value));
    }
    review.penalties.insert("file".to_owned());
    let standing = Standing {
        is_late: true,
        ..Standing::new(&rubric, None, &review)
    };
    let row = Row::new("ada", &Origin::default(), &standing);
    let grade = row.grade().unwrap();
    assert_eq!((grade.total, grade.max), (points(7.5), points(10.0)));
    let text = |format| {
        let export = write(format, ("sum", "Sum"), std::slice::from_ref(&row)).unwrap();
        String::from_utf8_lossy(&export.bytes).into_owned()
    };
    let table = text(Format::Csv);
    assert!(
        table.contains("points: more,corrections,feedback"),
        "{table}"
    );
    assert!(table.contains("ada,7.5,10,6,3,2,-3.5,"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&text(Format::Json)).unwrap();
    assert_eq!(
        json["submissions"][0]["corrections"][1]["title"],
        "Handed in late"
    );
    // In the files of the zip, which `exports` reads byte by byte.
    let zip = write(Format::Feedback, ("sum", "Sum"), &[row]).unwrap();
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(zip.bytes)).unwrap();
    for name in ["ada.md", "ada.html"] {
        let mut file = zip.by_name(name).unwrap();
        let text = std::io::read_to_string(&mut file).unwrap();
        for part in [
            "7.5 of 10 points",
            "Wrong name of the file",
            "−1.5",
            "Handed in late",
            "−2",
        ] {
            assert!(text.contains(part), "{name}: {part}: {text}");
        }
    }
}

#[test]
fn what_stands_around_a_feedback_is_in_its_language() {
    for (language, total, title, label) in [
        ("English", "7.5 of 10 points", "## Strengths", "AI-assisted"),
        (
            "German",
            "7,5 von 10 Punkten",
            "## Stärken",
            "Mit KI erstellt",
        ),
        (
            "de-CH",
            "7,5 von 10 Punkten",
            "## Stärken",
            "Mit KI erstellt",
        ),
        (
            "Français",
            "7,5 points sur 10",
            "## Points forts",
            "Avec l’aide d’une IA",
        ),
        (
            "spanish",
            "7,5 de 10 puntos",
            "## Puntos fuertes",
            "Con ayuda de IA",
        ),
        (
            "it",
            "7,5 punti su 10",
            "## Punti di forza",
            "Con l’aiuto dell’IA",
        ),
        ("Klingon", "7.5 of 10 points", "## Strengths", "AI-assisted"),
    ] {
        let rubric = Rubric::parse(&format!("language: {language}\n{RUBRIC}")).unwrap();
        let strength = Item {
            kind: ItemKind::Strength,
            text: "x".to_owned(),
        };
        let mut review = Review {
            decision: Decision::Approved,
            text: Some(vec![strength]),
            text_is_models: true,
            ..Review::default()
        };
        for (id, value) in [("a", 5.5), ("b", 2.0), ("more", 0.0)] {
            review.points.insert(id.to_owned(), points(value));
        }
        let row = Row::new(
            "ada",
            &Origin::default(),
            &Standing::new(&rubric, None, &review),
        );
        let zip = write(Format::Feedback, ("sum", "Sum"), &[row]).unwrap();
        let mut zip = zip::ZipArchive::new(std::io::Cursor::new(zip.bytes)).unwrap();
        let text = std::io::read_to_string(zip.by_name("ada.md").unwrap()).unwrap();
        for part in [total, title, label] {
            assert!(text.contains(part), "{language}: {part}: {text}");
        }
    }
}

#[test]
fn an_approved_total_changes_by_no_rule_unseen() {
    let with = |from: &str, to: &str| Rubric::parse(&RUBRIC.replace(from, to)).unwrap();
    let rubric = rubric();
    let mut review = Review {
        decision: Decision::Approved,
        ..Review::default()
    };
    for (id, value) in [("a", 6.0), ("b", 3.0), ("more", 2.0)] {
        review.points.insert(id.to_owned(), points(value));
    }
    review.penalties.insert("file".to_owned());
    for (next, is_late, is_open) in [
        (with("title: Sum\n", "title: Sums\n"), true, false),
        (with("points: 1}", "points: 3}"), true, false),
        (with("points: 1.5", "points: 1"), false, true),
        (
            with(
                "  - {id: file, title: Wrong name of the file, points: 1.5}\n",
                "",
            ),
            false,
            true,
        ),
        (with("percent: 20", "percent: 10"), false, false),
        (with("percent: 20", "percent: 10"), true, true),
        (with("late: {percent: 20}\n", ""), true, true),
    ] {
        let carried = carried_review(&review, &rubric, &next, is_late);
        let total = |rubric, review| {
            Standing {
                is_late,
                ..Standing::new(rubric, None, review)
            }
            .total()
        };
        assert_eq!(
            carried.decision == Decision::Open,
            is_open,
            "{}",
            next.source
        );
        assert_eq!(carried.second_look, is_open);
        if !is_open {
            assert_eq!(total(&next, &carried), total(&rubric, &review));
        }
    }
}

proptest! {
    #[test]
    fn full_marks_are_never_above_the_maximum_of_moodle(max in 1..300_u32, possible in 1..300_u32) {
        let source = format!(
            "id: m\ntitle: M\ntask: T\ncriteria:\n  - {{id: a, title: A, description: D, max_points: {max}, step: {max}}}\n"
        );
        let rubric = Rubric::parse(&source).unwrap();
        let mut review = Review { decision: Decision::Approved, text: Some(Vec::new()), ..Review::default() };
        review.points.insert("a".to_owned(), points(f64::from(max)));
        let row = Row::new("Ada Lovelace", &Origin::default(), &Standing::new(&rubric, None, &review));
        let sheet = format!(
            "Identifier,Full name,Status,Grade,Maximum Grade,Grade can be changed\nParticipant 1,Ada Lovelace,Submitted,,{possible}.00,Yes\n"
        );
        let choice = Choice { scales: true, ..Choice::default() };
        let export = fill(sheet.as_bytes(), "M", &[row], &choice).unwrap();
        prop_assert!(export.left.is_empty(), "{:?}", export.left);
        prop_assert_eq!(&export.changes[0].after, &format!("{possible}.00"));
    }
}
