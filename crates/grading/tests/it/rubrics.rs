//! Every check of a rubric, and the message that names the field.

use crate::course::{RUBRIC, example};
use tandem_grading::{Points, Rubric};

#[test]
fn a_good_rubric_is_read() {
    let rubric = Rubric::parse(RUBRIC).expect("rubric");
    assert_eq!(rubric.max_points, Points::from_f64(5.0).unwrap());
    let allowed: Vec<f64> = rubric.criteria[1]
        .allowed()
        .iter()
        .map(|p| p.as_f64())
        .collect();
    assert_eq!(allowed, [0.0, 0.5, 1.0]);
    assert_eq!(
        rubric.criteria[0].level_of(Points::from_f64(2.0).unwrap()),
        Some("some")
    );
    assert!(rubric.warnings.is_empty());
}

/// Replaces the first text by the second; the message must contain the third.
fn refused(table: &[(&str, &str, &str)]) {
    for (from, to, expected) in table {
        assert!(RUBRIC.contains(from), "{from}");
        let text = RUBRIC.replacen(from, to, 1);
        let error = Rubric::parse(&text).expect_err(to).to_string();
        assert!(
            error.contains(expected),
            "{to:?} gave {error:?}, expected {expected:?}"
        );
    }
}

#[test]
fn reflections_and_answers_are_read_and_checked() {
    let with = |more: &str| {
        Rubric::parse(&RUBRIC.replace("    title: Style", &format!("    title: Style\n{more}")))
    };
    let rubric = with(
        "    kind: reflection\n    question: Why?\n    min_words: 30\n    answer: Because it says so.",
    );
    let style = rubric.unwrap().criteria.remove(1);
    let reflection = style.reflection.unwrap();
    assert_eq!(
        (reflection.question.as_str(), reflection.min_words),
        ("Why?", Some(30))
    );
    assert_eq!(style.answer.as_deref(), Some("Because it says so."));
    for (more, expected) in [
        (
            "    kind: reflection",
            "criteria[1].question: a reflection needs one",
        ),
        (
            "    question: Why?",
            "criteria[1].question: is for reflections",
        ),
        (
            "    min_words: 3",
            "criteria[1].min_words: is for reflections",
        ),
        (
            "    kind: reflection\n    question: Why?\n    min_words: 0",
            "criteria[1].min_words",
        ),
        ("    kind: essay", "essay"),
        ("    answer: ''", "criteria[1].answer: must not be empty"),
    ] {
        let error = with(more).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
    let long = RUBRIC.replace("title: Demo", "title: Demo\nlength: endless");
    assert!(
        Rubric::parse(&long)
            .unwrap_err()
            .to_string()
            .contains("endless")
    );
}

#[test]
fn mistakes_in_texts_and_levels_name_the_field() {
    let long = "x".repeat(3000);
    let table: &[(&str, &str, &str)] = &[
        ("id: demo", "id: a b", "id: must have"),
        ("id: demo", "identity: demo", "identity"),
        (
            "task: Write a function.",
            "task: ''",
            "task: must not be empty",
        ),
        ("title: Demo", "title: Demo\ncolour: red", "colour"),
        (
            "max_points: 5",
            "max_points: 6",
            "max_points: it is 6, but the criteria add up to 5",
        ),
        (
            "id: style",
            "id: works",
            "criteria[1].id: 'works' occurs twice",
        ),
        (
            "points: 2,",
            "points: 5,",
            "criteria[0].levels[1].points: 5 is above",
        ),
        (
            "points: 2,",
            "points: 4,",
            "criteria[0].levels[1]: label and points must differ",
        ),
        ("points: 2,", "points: -1,", "criteria[0].levels[1].points"),
        ("points: 2,", "points: two,", "two"),
        (
            "points: 4,",
            "points: 3,",
            "criteria[0].levels: none gives the maximum of 4",
        ),
        (
            "description: In one case.",
            "description: ' '",
            "criteria[0].levels[1].description: must not be empty",
        ),
        ("description: In one case.", "descr: x", "descr"),
        (
            "description: In one case.",
            &format!("description: {long}"),
            "criteria[0].levels[1].description: longer",
        ),
    ];
    refused(table);
}

#[test]
fn mistakes_in_points_and_steps_name_the_field() {
    let table: &[(&str, &str, &str)] = &[
        (
            "step: 0.5",
            "step: 0.3",
            "criteria[1].step: must be above 0 and divide",
        ),
        ("step: 0.5", "step: 0", "criteria[1].step"),
        (
            "step: 0.5",
            "step: 0.001",
            "criteria[1].step: gives more than",
        ),
        ("step: 0.5", "stepp: 0.5", "stepp"),
        (
            "    step: 0.5",
            "",
            "criteria[1]: has neither levels nor step",
        ),
        (
            "    max_points: 4\n",
            "    max_points: 4\n    step: 1\n",
            "criteria[0]: has both levels and step",
        ),
        (
            "    max_points: 1\n",
            "    max_points: 0\n",
            "criteria[1].max_points: must be above 0",
        ),
        (
            "    max_points: 1\n",
            "    max_points: .nan\n",
            "criteria[1].max_points",
        ),
    ];
    refused(table);
}

#[test]
fn vague_words_are_a_warning() {
    let text = RUBRIC.replacen("In one case.", "Good and appropriate code.", 1);
    let warnings = Rubric::parse(&text).expect("still usable").warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("'works'")
            && warnings[0].contains("'some'")
            && warnings[0].contains("'good'")
    );
}

#[test]
fn points_add_up_exactly() {
    let tenth = Points::from_f64(0.1).unwrap();
    assert_eq!((0..30).map(|_| tenth).sum::<Points>().as_f64(), 3.0);
    for bad in [-0.1, f64::NAN, f64::INFINITY, 0.0001, 1e9] {
        assert_eq!(Points::from_f64(bad), None, "{bad}");
    }
    assert_eq!(
        serde_json::to_string(&[Points::from_f64(4.0).unwrap(), tenth]).unwrap(),
        "[4,0.1]"
    );
}

#[test]
fn templates_named_in_the_rubric_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rubric.yaml");
    std::fs::write(&path, format!("{RUBRIC}template: [gone.py]\n")).unwrap();
    let error = Rubric::load(&path)
        .expect_err("no such template")
        .to_string();
    assert!(error.contains("gone.py"), "{error}");
    let error = Rubric::load(&dir.path().join("none.yaml"))
        .expect_err("no such rubric")
        .to_string();
    assert!(error.contains("none.yaml"), "{error}");
}

#[test]
fn the_example_rubric_is_good() {
    let rubric = Rubric::load(&example().join("rubric.yaml")).expect("example");
    assert_eq!(rubric.max_points.as_f64(), 10.0);
    assert_eq!(rubric.warnings, Vec::<String>::new());
}
