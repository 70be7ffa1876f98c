//! Rubrics as people have them: each becomes a draft, and a draft is the rubric that it came from.

use proptest::prelude::*;
use tandem_grading::{CriterionDraft, Draft, Kind, LevelDraft, Rubric};

/// What is graded by.
fn shown(rubric: &Rubric) -> String {
    let mut rubric = rubric.clone();
    rubric.source.clear();
    format!("{rubric:?}")
}

#[test]
fn a_rubric_is_what_its_draft_says() {
    let text = include_str!("../../../../examples/intro-course/rubric.yaml");
    let draft = Draft::read(text, "any").unwrap();
    let again = Rubric::parse(&draft.source()).unwrap();
    assert_eq!(shown(&again), shown(&Rubric::parse(text).unwrap()));
    assert_eq!(Draft::read(&draft.source(), "any").unwrap(), draft);
}

#[test]
fn rubrics_to_begin_with_need_a_title_and_a_task_alone() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradebook/assets/rubrics");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let mut draft = Draft::read(&text, "any").unwrap();
        assert!(Rubric::parse(&draft.source()).is_err());
        (draft.title, draft.task) = ("Lab 1".to_owned(), "Write it.".to_owned());
        draft.number();
        let rubric = Rubric::parse(&draft.source()).unwrap();
        assert_eq!(
            (rubric.id.as_str(), rubric.warnings.as_slice()),
            ("lab-1", &[][..])
        );
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn a_rubric_of_canvas_is_read() {
    let text = "\u{feff}Rubric Name,Criteria Name,Criteria Description,Criteria Enable Range,Rating Name,Rating Description,Rating Points,Rating Name,Rating Description,Rating Points\n\
        Lab 1,\"Result, right\",Each sum.,false,Full,All of them,\"4,00\",None,,0.00\n\
        ,Style,,true,Good names,Say what they hold,2.00,No names,None does,0\n";
    let draft = Draft::read(text, "file").unwrap();
    assert_eq!(
        (draft.id.as_str(), draft.title.as_str()),
        ("lab-1", "Lab 1")
    );
    let [result, style] = draft.criteria.as_slice() else {
        panic!("{draft:?}");
    };
    assert_eq!(
        (result.id.as_str(), result.max_points),
        ("result-right", 4.0)
    );
    assert_eq!(result.levels.as_ref().unwrap()[1].description, "None");
    assert_eq!(
        (style.description.as_str(), style.max_points),
        ("Style", 2.0)
    );
    let mut whole = draft.clone();
    whole.task = "Sum it.".to_owned();
    assert_eq!(
        Rubric::parse(&whole.source())
            .unwrap()
            .max_points
            .to_string(),
        "6"
    );
    for (bad, why) in [
        (
            text.replace("2.00", "two"),
            "row 3, rating “Good names”: 'two' is no number",
        ),
        (
            text.replace("\n,Style", "\nLab 2,Style"),
            "it has “Lab 1” and “Lab 2”",
        ),
        (text.lines().next().unwrap().to_owned(), "no criterion"),
    ] {
        let refused = Draft::read(&bad, "file").unwrap_err().to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }
}

#[test]
fn tables_in_markdown_are_read() {
    let levels = "# Lab 2\n\nText.\n\n| Criterion | Full (4 points) | Some (2) | None (0) |\n|---|:-:|---|---|\n\
        | **Result** | all sums | some sums | no sum |\n| Names | say it | | say nothing |\n| Total | 8 | | |\n";
    let draft = Draft::read(levels, "file").unwrap();
    let counts: Vec<usize> = draft
        .criteria
        .iter()
        .map(|c| c.levels.as_ref().unwrap().len())
        .collect();
    assert_eq!((draft.title.as_str(), counts), ("Lab 2", vec![3, 2]));
    assert_eq!(draft.criteria[0].title, "Result");
    let points = "| criterion | what | points |\n|---|---|---|\n| Result | all sums | 4 |\n| Names | say it | 2,5 |\n";
    let draft = Draft::read(points, "Lab 3").unwrap();
    let steps: Vec<(f64, Option<f64>)> = draft
        .criteria
        .iter()
        .map(|c| (c.max_points, c.step))
        .collect();
    assert_eq!(
        (draft.title.as_str(), steps),
        ("Lab 3", vec![(4.0, Some(1.0)), (2.5, Some(0.5))])
    );
    assert_eq!(draft.criteria[1].description, "say it");
    for bad in [
        "| a | b |\n|---|---|\n| x | y |\n",
        "| a | points |\n| x | y |\n",
        "| a |\n",
        "",
        "\0",
    ] {
        assert!(Draft::read(bad, "file").is_err(), "{bad}");
    }
}

fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zß東: #'\"{}\\[\\]&*!|>%@,\\-\n]{1,30}[a-z]").unwrap()
}

proptest! {
    /// Whatever somebody types: the YAML that is kept says the same.
    #[test]
    fn any_draft_comes_back(
        title in text(),
        task in text(),
        words in proptest::collection::vec((text(), text(), 0..=40u32), 1..4),
        question in proptest::option::of(text()),
    ) {
        let criteria = words.iter().enumerate().map(|(i, (title, description, points))| CriterionDraft {
            id: format!("c{i}"),
            title: title.clone(),
            kind: if question.is_some() { Kind::Reflection } else { Kind::Code },
            description: description.clone(),
            question: question.clone(),
            max_points: f64::from(*points) / 8.0,
            levels: Some(vec![LevelDraft {
                label: title.clone(),
                points: f64::from(*points) / 8.0,
                description: description.clone(),
            }]),
            ..CriterionDraft::default()
        });
        let draft = Draft { id: "x".to_owned(), title, task, criteria: criteria.collect(), ..Draft::default() };
        let source = draft.source();
        prop_assert_eq!(Draft::read(&source, "any").ok(), Some(draft), "{}", source);
    }
}
