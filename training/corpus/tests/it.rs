//! The corpus keeps its promises: it repeats, its labels agree with its answers, the grading accepts
//! what it says, and held-out tasks stay out.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashSet;
use tandem_corpus::{Example, GROUP, Order, Shape, Split, Task, Tier};
use tandem_grading::{FindingKind, Points, check_feedback, read_verdict};

const COUNT: usize = 50 * GROUP;

fn generate(seed: u64, count: usize, split: Split, shape: Option<Shape>) -> Vec<Example> {
    let order = |varied| Order {
        seed,
        count: count / 2,
        group: GROUP,
        split,
        shape,
        varied,
        notes: varied,
    };
    let mut all = tandem_corpus::generate(&order(0)).unwrap();
    all.extend(tandem_corpus::generate(&order(60)).unwrap());
    all
}

fn both_sides() -> Vec<Example> {
    let mut all = generate(3, COUNT, Split::Train, None);
    all.extend(generate(3, COUNT, Split::Heldout, None));
    all
}

#[test]
fn the_same_seed_gives_the_same_examples() {
    let lines = |seed| -> Vec<String> {
        let examples = generate(seed, 4 * GROUP, Split::Train, None);
        examples.iter().map(|e| e.to_json().to_string()).collect()
    };
    assert_eq!(lines(1), lines(1));
    assert_ne!(lines(1), lines(2));
}

#[test]
fn the_grading_accepts_every_analysis_and_its_points_are_the_labels() {
    for example in both_sides() {
        let verdict = read_verdict(&example.analysis, &example.rubric, &example.submission)
            .unwrap_or_else(|e| panic!("{e}: {}", example.analysis));
        // What has no points is looked at by a person, and nothing else.
        let zeros = verdict.criteria.iter().filter(|c| c.points == Points::ZERO);
        let doubted: Vec<_> = verdict
            .doubts
            .iter()
            .map(|d| (d.kind, d.criterion.clone()))
            .collect();
        let expected: Vec<_> = zeros
            .map(|c| (FindingKind::Absence, Some(c.id.clone())))
            .collect();
        assert_eq!(doubted, expected, "{}", example.analysis);
        let relative: Vec<(&str, f64)> = verdict
            .criteria
            .iter()
            .map(|c| (c.id.as_str(), c.points.as_f64() / c.max_points.as_f64()))
            .collect();
        assert_eq!(relative, example.relative_points());
        assert!(verdict.criteria.iter().all(|c| c.rationale.len() < 200));
        let compact: serde_json::Value = serde_json::from_str(&example.analysis).unwrap();
        assert_eq!(compact.to_string(), example.analysis, "not compact");
    }
}

#[test]
fn a_defect_costs_points_and_nothing_else_does() {
    for example in both_sides() {
        let lost = example
            .relative_points()
            .iter()
            .any(|(_, share)| *share < 1.0);
        assert_eq!(
            lost,
            !example.plan.defects().is_empty(),
            "{:?}",
            example.plan
        );
    }
}

#[test]
fn feedback_has_no_scores_and_names_something_of_the_submission() {
    for example in both_sides() {
        assert_eq!(check_feedback(&example.feedback), Vec::<String>::new());
        let code: String = example
            .submission
            .files
            .iter()
            .flat_map(|f| f.lines.join("\n").chars().collect::<Vec<_>>())
            .collect();
        let quoted: Vec<&str> = example.feedback.split('`').skip(1).step_by(2).collect();
        assert!(
            quoted.iter().any(|name| code.contains(name)),
            "{}\n{code}",
            example.feedback
        );
    }
}

#[test]
fn held_out_tasks_are_disjoint_from_the_training() {
    let ids = |split| -> HashSet<String> { Task::of(split).into_iter().map(Task::id).collect() };
    let (train, heldout) = (ids(Split::Train), ids(Split::Heldout));
    assert!(train.is_disjoint(&heldout));
    assert_eq!(train.len() + heldout.len(), Task::all().len());
    assert!(
        train.len() >= 40 && heldout.len() >= 10,
        "{} {}",
        train.len(),
        heldout.len()
    );
    assert!(heldout.contains("mean-above"));
    for example in generate(5, COUNT, Split::Train, None) {
        assert_eq!(example.task.tier(), Tier::Trained);
        assert!(!heldout.contains(&example.task.id()));
    }
}

#[test]
fn every_kind_of_defect_occurs() {
    let found: HashSet<&str> = both_sides().iter().flat_map(|e| e.plan.defects()).collect();
    for kind in [
        "off_by_one",
        "missing_edge_case",
        "wrong_return",
        "poor_naming",
        "no_tests",
        "hard_coded",
        "style",
    ] {
        assert!(found.contains(kind), "{kind}");
    }
}

#[test]
fn the_standard_rubric_is_the_example_courses() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/intro-course/rubric.yaml"
    );
    let course = tandem_grading::Rubric::load(std::path::Path::new(path)).unwrap();
    let ours = generate(1, 2, Split::Heldout, Some(Shape::standard()));
    let ours = &ours[0].rubric;
    let shape = |r: &tandem_grading::Rubric| -> Vec<(String, Vec<tandem_grading::Points>)> {
        r.criteria
            .iter()
            .map(|c| (c.id.clone(), c.allowed()))
            .collect()
    };
    assert_eq!(shape(ours), shape(&course));
    assert_eq!(
        (&ours.guidelines, &ours.style.tone),
        (&course.guidelines, &course.style.tone)
    );
}
