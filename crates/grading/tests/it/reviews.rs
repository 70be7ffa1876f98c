//! What persons decide, against rules that hold whatever they do and in whatever order.

use proptest::prelude::*;
use tandem_grading::review::{Change, Decision, Rank, Refusal, Review, Standing, State};
use tandem_grading::{
    CriterionResult, Finding, FindingKind, Graded, Item, ItemKind, Points, Rubric, Status, items,
};

use crate::course::rubric;

fn points(value: f64) -> Points {
    Points::from_f64(value).unwrap()
}

/// A result with these points, in the order of the rubric's criteria; without any it failed.
fn graded(rubric: &Rubric, given: Option<&[f64]>) -> Graded {
    let criteria = given.map(|given| {
        let pairs = rubric.criteria.iter().zip(given);
        let criteria = pairs.map(|(c, p)| CriterionResult {
            id: c.id.clone(),
            title: c.title.clone(),
            evidence: vec![],
            rationale: "because".into(),
            level: None,
            points: points(*p),
            max_points: c.max_points,
        });
        criteria.collect::<Vec<_>>()
    });
    Graded {
        name: "s".into(),
        status: match given {
            Some(_) => Status::Graded,
            None => Status::Failed,
        },
        reasons: vec![],
        score: given.map(|given| given.iter().sum()),
        max_score: rubric.max_points.as_f64(),
        criteria: criteria.unwrap_or_default(),
        feedback: given.map(|_| "**What works:** It runs.\n\n**Next step:** Name it.".into()),
        flags: vec![],
        notes: vec![],
        jobs: vec![],
    }
}

fn lowest(rubric: &Rubric) -> Vec<f64> {
    let lowest = |c: &tandem_grading::Criterion| c.allowed()[0].as_f64();
    rubric.criteria.iter().map(lowest).collect()
}

#[test]
fn what_is_said_of_a_text_goes_with_it() {
    let rubric = rubric();
    let mut model = graded(&rubric, Some(&lowest(&rubric)));
    let kinds = [
        FindingKind::Evidence,
        FindingKind::UnknownCode,
        FindingKind::TextRule,
        FindingKind::Disclosed,
        FindingKind::NoText,
    ];
    model.reasons = kinds.map(|kind| Finding::new(kind, "x")).to_vec();
    let text = vec![Item {
        kind: ItemKind::Strength,
        text: "Plain words.".into(),
    }];
    for (text, left) in [(None, &kinds[..]), (Some(text), &kinds[..1])] {
        let review = Review {
            text,
            ..Review::default()
        };
        let standing = Standing::new(&rubric, Some(&model), &review);
        let found: Vec<FindingKind> = standing.findings().map(|finding| finding.kind).collect();
        assert_eq!(found, left);
    }
}

#[test]
fn points_without_a_word_are_asked_about_once() {
    let rubric = rubric();
    let zeros = vec![0.0; rubric.criteria.len()];
    let model = graded(&rubric, Some(&zeros));
    let approve = |confirmed| Change::Approve { confirmed };
    let silent = Graded {
        feedback: None,
        ..model.clone()
    };
    let standing_of = |review| Standing::new(&rubric, Some(&silent), review);
    let untouched = Review::default();
    let silence = standing_of(&untouched);
    assert_eq!(silence.after(&approve(false)), Err(Refusal::Textless));
    let wanted = silence.after(&approve(true)).unwrap();
    assert_eq!(wanted.decision, Decision::Approved);
    // Once it is settled so, it is not asked again.
    let again = standing_of(&wanted).after(&approve(false));
    assert_eq!(again.unwrap().decision, Decision::Approved);
}

#[test]
fn changed_points_mark_the_text_until_a_person_writes_it() {
    let rubric = rubric();
    let model = graded(&rubric, Some(&lowest(&rubric)));
    let first = &rubric.criteria[0];
    let give = Change::Points {
        criterion: first.id.clone(),
        points: Some(first.max_points),
    };
    let mut review = Review::default();
    let standing = |review: &Review| {
        let standing = Standing::new(&rubric, Some(&model), review);
        (
            standing.text_is_marked(),
            standing.total(),
            standing.state(),
        )
    };
    let after = |review: &Review, change: &Change| {
        let standing = Standing::new(&rubric, Some(&model), review);
        standing.after(change)
    };
    assert_eq!(
        standing(&review),
        (false, Some(points(0.0)), State::ToApprove)
    );
    review = after(&review, &give).unwrap();
    assert_eq!(
        standing(&review),
        (true, Some(first.max_points), State::ToApprove)
    );
    // Asked once, and not silently.
    let approve = |confirmed| Change::Approve { confirmed };
    assert_eq!(after(&review, &approve(false)), Err(Refusal::Marked));
    assert_eq!(
        after(&review, &approve(true)).unwrap().decision,
        Decision::Approved
    );
    let write = Change::Item {
        index: 1,
        was: "Name it.".into(),
        item: Item {
            kind: ItemKind::NextStep,
            text: "Well done.".into(),
        },
    };
    review = after(&review, &write).unwrap();
    assert!(!standing(&review).0, "a person wrote it for these points");
    review = after(&review, &approve(false)).unwrap();
    assert_eq!(standing(&review).2, State::Approved);
    // Another value opens it again, and the person's text stays.
    let back = Change::Points {
        criterion: first.id.clone(),
        points: None,
    };
    review = after(&review, &back).unwrap();
    assert_eq!(
        standing(&review),
        (true, Some(points(0.0)), State::ToApprove)
    );
    assert_eq!(review.text.as_ref().unwrap()[1].text, "Well done.");
}

#[test]
fn what_was_not_graded_has_no_total_before_a_person_gives_all_points() {
    let rubric = rubric();
    let failed = graded(&rubric, None);
    for model in [None, Some(&failed)] {
        let mut review = Review::default();
        for criterion in &rubric.criteria {
            let standing = Standing::new(&rubric, model, &review);
            assert_eq!((standing.total(), standing.model_total()), (None, None));
            let refused = standing.after(&Change::Approve { confirmed: true });
            assert!(matches!(refused, Err(Refusal::Missing(_))));
            let give = Change::Points {
                criterion: criterion.id.clone(),
                points: Some(criterion.max_points),
            };
            review = standing.after(&give).unwrap();
        }
        let standing = Standing::new(&rubric, model, &review);
        assert_eq!(standing.total(), Some(rubric.max_points));
        let settled = standing.after(&Change::WithoutPoints).unwrap();
        let standing = Standing {
            review: &settled,
            ..standing
        };
        assert_eq!(
            (standing.total(), standing.state()),
            (None, State::WithoutPoints)
        );
    }
}

fn change(rubric: &Rubric) -> impl Strategy<Value = Change> + use<> {
    let ids: Vec<String> = rubric.criteria.iter().map(|c| c.id.clone()).collect();
    let points = prop::option::of((0u32..12_000).prop_map(Points::from_thousandths));
    prop_oneof![
        4 => (prop::sample::select(ids), points)
            .prop_map(|(criterion, points)| Change::Points { criterion, points }),
        1 => (0usize..6, "[a-z ]{0,9}").prop_map(|(index, text)| Change::Item {
            index,
            was: "It runs.".into(),
            item: Item { kind: ItemKind::NextStep, text },
        }),
        1 => "[a-z ]{0,9}".prop_map(|text| Change::Add(Item { kind: ItemKind::NextStep, text })),
        1 => Just(Change::ModelText),
        2 => any::<bool>().prop_map(|confirmed| Change::Approve { confirmed }),
        1 => Just(Change::WithoutPoints),
        1 => Just(Change::Reopen),
        1 => any::<bool>().prop_map(Change::SecondLook),
        1 => "[a-z]{0,9}".prop_map(Change::Note),
        1 => Just(Change::Reset),
    ]
}

proptest! {
    #[test]
    fn whatever_persons_do_the_rules_hold(
        is_graded in any::<bool>(),
        changes in prop::collection::vec(change(&rubric()), 0..30),
    ) {
        let rubric = rubric();
        let given = lowest(&rubric);
        let model = graded(&rubric, is_graded.then_some(given.as_slice()));
        let mut review = Review::default();
        for change in &changes {
            let standing = Standing::new(&rubric, Some(&model), &review);
            let Ok(next) = standing.after(change) else { continue };
            review = next;
            let standing = Standing::new(&rubric, Some(&model), &review);
            // Points are the rubric's, and the total is their sum or nothing.
            for criterion in &rubric.criteria {
                if let Some(points) = standing.points(criterion) {
                    prop_assert!(criterion.allowed().contains(&points));
                }
            }
            let all: Option<Vec<Points>> = rubric.criteria.iter().map(|c| standing.points(c)).collect();
            let expected = all.map(|all| all.into_iter().sum::<Points>());
            match review.decision {
                Decision::WithoutPoints => prop_assert_eq!(standing.total(), None),
                _ => prop_assert_eq!(standing.total(), expected),
            }
            // Nothing is approved without a total.
            if review.decision == Decision::Approved {
                prop_assert!(standing.total().is_some());
            }
            // What the model said stays as it was.
            prop_assert_eq!(standing.model_total().is_some(), is_graded);
            if review.text.is_none() {
                prop_assert_eq!(standing.text(), standing.model_text());
            }
        }
    }
}

#[test]
fn the_queue_begins_with_what_needs_a_person() {
    let rank = |state, kind, draw| Rank::new(state, kind, false, draw);
    let orders = rank(State::ToReview, Some(FindingKind::Orders), 9);
    let failed = rank(State::Failed, Some(FindingKind::NoAnswer), 1);
    let second = Rank::new(State::ToApprove, None, true, 7);
    let plain = rank(State::ToApprove, None, 3);
    let later = rank(State::ToApprove, None, 4);
    let done = rank(State::Approved, Some(FindingKind::Orders), 0);
    let mut all = [done, later, plain, failed, orders, second];
    all.sort();
    assert_eq!(all, [second, orders, failed, plain, later, done]);
}

#[test]
fn a_text_becomes_items() {
    let strength = |text: &str| (ItemKind::Strength, text.to_owned());
    let next = |text: &str| (ItemKind::NextStep, text.to_owned());
    let table: [(&str, Vec<(ItemKind, String)>); 8] = [
        ("", vec![]),
        ("Nice.\nReally.", vec![strength("Nice. Really.")]),
        ("One.\n\nTwo.", vec![strength("One."), strength("Two.")]),
        (
            "**What works:** It runs.\n\n**Next step:** Test it.",
            vec![strength("It runs."), next("Test it.")],
        ),
        (
            "## Strengths\n- clear\n- short\n  and sweet\n## To improve\n1. names\n2) tests",
            vec![
                strength("clear"),
                strength("short and sweet"),
                next("names"),
                next("tests"),
            ],
        ),
        ("**Suggestions**\n* use `a - b`", vec![next("use `a - b`")]),
        (
            "Look:\n```\nx = 1\n\n- no item\n```\nDone.",
            vec![
                strength("Look:\n```\nx = 1\n\n- no item\n```"),
                strength("Done."),
            ],
        ),
        (
            "**bold** begins a line",
            vec![strength("**bold** begins a line")],
        ),
    ];
    for (markdown, expected) in table {
        let found: Vec<_> = items(markdown)
            .into_iter()
            .map(|i| (i.kind, i.text))
            .collect();
        assert_eq!(found, expected, "{markdown}");
    }
}
