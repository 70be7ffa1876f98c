//! Written results: safe names, no formulas, no number where there is no score.

use crate::course::{RUBRIC, rubric, submissions};
use proptest::prelude::*;
use serde_json::Value;
use std::path::Path;
use tandem_grading::{
    CriterionResult, EarlierRun, Evidence, Finding, FindingKind, Folder, Graded, GradingConfig,
    GradingError, JobConfig, Points, Rubric, Status, Submission, inputs,
};

fn graded(name: &str, score: Option<f64>) -> Graded {
    let points = |p| Points::from_f64(p).unwrap();
    let evidence = Evidence {
        file: "a.py".to_owned(),
        line_start: 1,
        line_end: 2,
        quote: "x = '```'\n<b>".to_owned(),
    };
    let criterion = CriterionResult {
        id: "works".to_owned(),
        title: "Works".to_owned(),
        evidence: vec![evidence],
        rationale: "One case is missing <script>.".to_owned(),
        level: Some("some".to_owned()),
        points: points(2.0),
        max_points: points(4.0),
    };
    Graded {
        name: name.to_owned(),
        status: if score.is_some() {
            Status::Graded
        } else {
            Status::Failed
        },
        reasons: if score.is_some() {
            vec![]
        } else {
            vec![Finding {
                kind: FindingKind::Other,
                text: "=cmd|' /C calc'!A0, \"quoted\"".to_owned(),
                place: None,
                criterion: None,
            }]
        },
        score,
        max_score: 5.0,
        criteria: if score.is_some() {
            vec![criterion]
        } else {
            vec![]
        },
        feedback: Some(
            "Look at ![x](http://example.org/a.png) and `List<String>`.\n# Score".to_owned(),
        ),
        flags: vec![],
        notes: Vec::new(),
        jobs: vec![],
    }
}

fn config() -> GradingConfig {
    let job = |model: &str| JobConfig {
        model: model.to_owned(),
        max_tokens: 100,
        temperature: 0.0,
        seed: None,
    };
    GradingConfig::new("http://127.0.0.1:1/v1", job("code"), job("words"))
}

fn named(list: &[Graded]) -> Vec<Submission> {
    let one = &submissions(&[("a.py", "x = 1")])[0];
    let called = |graded: &Graded| {
        let mut submission = one.clone();
        submission.name.clone_from(&graded.name);
        submission
    };
    list.iter().map(called).collect()
}

fn write_results(dir: &Path, rubric: &Rubric, list: &[Graded]) -> Result<(), GradingError> {
    let replace = EarlierRun::Replace;
    let folder = Folder::open(dir, rubric, &named(list), replace)?;
    for graded in list {
        folder.keep(graded)?;
    }
    folder.finish(list)
}

#[test]
fn a_result_is_written_when_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let list = [graded("a", Some(2.0)), graded("b", None)];
    let works = named(&list);
    let rubric = rubric();
    let open = |earlier| Folder::open(dir.path(), &rubric, &works, earlier);
    let folder = open(EarlierRun::Refuse).unwrap();
    folder.keep(&list[0]).unwrap();
    assert!(folder.has(&list[0]) && !folder.has(&list[1]));
    folder.keep(&list[1]).unwrap();
    folder.finish(&list).unwrap();
    let mut other = list[0].clone();
    other.score = Some(1.0);
    assert!(!folder.has(&other));
    let report = dir.path().join("a.md");
    let text = std::fs::read(&report).unwrap();
    std::fs::write(&report, "junk").unwrap();
    assert!(!folder.has(&list[0]));
    std::fs::write(&report, text).unwrap();
    let mut unknown = list[0].clone();
    unknown.name = "z".to_owned();
    assert!(folder.keep(&unknown).is_err() && !folder.has(&unknown));
    let bytes = std::fs::read(dir.path().join("a.json")).unwrap();
    // As after kill -9: half of the next one.
    std::fs::write(dir.path().join(".c.json.part"), &bytes[..40]).unwrap();

    let refused = open(EarlierRun::Refuse).unwrap_err();
    assert!(refused.to_string().contains("--resume"), "{refused}");
    // Another run may be there: opening touches nothing.
    let next = open(EarlierRun::Resume).unwrap();
    assert!(dir.path().join(".c.json.part").exists() && dir.path().join("results.json").exists());
    next.begin().unwrap();
    // Half of a file is gone, and what would not be that of the results beside it.
    for gone in [".c.json.part", "results.json", "results.csv"] {
        assert!(!dir.path().join(gone).exists(), "{gone}");
    }
    assert_eq!(std::fs::read(dir.path().join("a.json")).unwrap(), bytes);
}

/// What a version before the gradebook left: the file had the digest of all that the result depends on.
#[test]
fn the_result_of_an_earlier_version_is_found_by_what_it_depends_on() {
    let dir = tempfile::tempdir().unwrap();
    let result = graded("a", Some(2.0));
    let works = named(std::slice::from_ref(&result));
    let rubric = rubric();
    let mut then = config();
    then.served_by = "code=a words=b".to_owned();
    let mut file = serde_json::to_value(&result).unwrap();
    file["form"] = 2.into();
    file["inputs"] = inputs(&then, &rubric, &works[0]).into();
    let write = |file: &Value| std::fs::write(dir.path().join("a.json"), file.to_string()).unwrap();
    let folder = Folder::open(dir.path(), &rubric, &works, EarlierRun::Resume).unwrap();
    let mut now = config();
    now.served_by = "code=a; words=b".to_owned();
    assert!(folder.earlier(&now, &works[0]).is_none());
    write(&file);
    let found = folder.earlier(&now, &works[0]).unwrap();
    assert_eq!(
        serde_json::to_value(found).unwrap(),
        serde_json::to_value(&result).unwrap()
    );
    // What depends on something else is made anew: other weights, another model, or another work.
    let mut served = now.clone();
    served.served_by = "code=a; words=c".to_owned();
    let mut asked = now.clone();
    asked.code_analysis.model = "other".to_owned();
    let mut changed = works[0].clone();
    changed.files[0].lines[0].push('2');
    assert!(folder.earlier(&served, &works[0]).is_none());
    assert!(folder.earlier(&asked, &works[0]).is_none());
    assert!(folder.earlier(&now, &changed).is_none());
    // What this version writes is not what a run goes on with.
    file["form"] = 3.into();
    write(&file);
    assert!(folder.earlier(&now, &works[0]).is_none());
    std::fs::write(dir.path().join("a.json"), "{\"form\": 2, ").unwrap();
    assert!(folder.earlier(&now, &works[0]).is_none());
}

#[test]
fn names_are_safe_and_do_not_collide() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "a b",
        "a/b",
        "A_B",
        "../../etc",
        "results",
        "",
        "ünï",
        "u\u{308}ni\u{308}",
        "con.py",
        "заданіе 1",
        "作业/二",
        &"x".repeat(300),
        &"作".repeat(300),
    ];
    let list: Vec<Graded> = names.iter().map(|n| graded(n, Some(2.0))).collect();
    write_results(dir.path(), &rubric(), &list).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files.len(), names.len() * 2 + 2, "{files:?}");
    let lower: std::collections::HashSet<String> = files.iter().map(|f| f.to_lowercase()).collect();
    assert_eq!(lower.len(), files.len(), "{files:?}");
    assert!(
        files
            .iter()
            .all(|f| f.len() < 220 && f.chars().count() < 100 && !f.starts_with('.')),
        "{files:?}"
    );
    // In any script; both ways to write an accent are the same name.
    assert!(files.contains(&"ünï.json".to_owned()), "{files:?}");
    assert!(files.contains(&"ünï-2.json".to_owned()), "{files:?}");
    for begins in ["заданіе_1-", "作业_二-", "submission-"] {
        assert!(files.iter().any(|f| f.starts_with(begins)), "{files:?}");
    }
    let forbidden = |c: char| c.is_control() || r#"<>:"/\|?* "#.contains(c);
    assert!(!files.iter().any(|f| f.contains(forbidden)), "{files:?}");
    // Written again, the same files.
    write_results(dir.path(), &rubric(), &list).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), files.len());
}

#[test]
fn no_score_is_null_and_an_empty_cell() {
    let dir = tempfile::tempdir().unwrap();
    write_results(
        dir.path(),
        &rubric(),
        &[graded("good", Some(2.0)), graded("=bad", None)],
    )
    .unwrap();
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("results.json")).unwrap()).unwrap();
    assert_eq!(json["ai_suggested"], true);
    assert_eq!(json["submissions"][0]["score"], 2.0);
    assert_eq!(json["submissions"][0]["criteria"][0]["points"], 2);
    assert!(json["submissions"][1]["score"].is_null());
    assert_eq!(json["submissions"][1]["status"], "failed");
    // A name that is not portable has a mark of its own, whatever others are there.
    let bad = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path());
    let is_bad = |p: &std::path::PathBuf| {
        let name = p.file_name().unwrap().to_str().unwrap();
        name.starts_with("_bad-") && name.ends_with(".json")
    };
    let bad = bad.into_iter().find(is_bad).unwrap();
    let single: Value = serde_json::from_slice(&std::fs::read(&bad).unwrap()).unwrap();
    assert_eq!(
        (&single["name"], &single["assignment"]),
        (&Value::from("=bad"), &Value::from("demo"))
    );
    let mut csv = csv::Reader::from_path(dir.path().join("results.csv")).unwrap();
    let header = csv.headers().unwrap().clone();
    assert_eq!(
        &header.iter().collect::<Vec<_>>()[..7],
        [
            "name",
            "file",
            "status",
            "score",
            "max_score",
            "works",
            "style"
        ]
    );
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    assert_eq!(
        (
            &rows[0][0],
            &rows[0][1],
            &rows[0][3],
            &rows[0][5],
            &rows[0][6]
        ),
        ("good", "good", "2", "2", "")
    );
    assert_eq!((&rows[1][0], &rows[1][3], &rows[1][5]), ("'=bad", "", ""));
    assert!(rows[1][1].starts_with("_bad-"));
    assert_eq!(&rows[1][9], "'=cmd|' /C calc'!A0, \"quoted\"");
}

/// A criterion may be called as a column is.
#[test]
fn columns_of_criteria_have_names_of_their_own() {
    let text = RUBRIC
        .replace("id: works", "id: score")
        .replace("id: style", "id: flags");
    let rubric = Rubric::parse(&text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_results(dir.path(), &rubric, &[graded("a", None)]).unwrap();
    let mut csv = csv::Reader::from_path(dir.path().join("results.csv")).unwrap();
    let header = csv.headers().unwrap().clone();
    let distinct: std::collections::HashSet<&str> = header.iter().collect();
    assert_eq!(distinct.len(), header.len(), "{header:?}");
    assert_eq!(
        (&header[5], &header[6]),
        ("criterion_score", "criterion_flags")
    );
}

#[test]
fn cells_that_spreadsheets_would_run_are_quoted() {
    let dir = tempfile::tempdir().unwrap();
    for (i, start) in ["=", "+", "-", "@", "\t", " =", "x"].iter().enumerate() {
        let dir = dir.path().join(i.to_string());
        let name = format!("{start}1+1");
        write_results(&dir, &rubric(), &[graded(&name, None)]).unwrap();
        let mut csv = csv::Reader::from_path(dir.join("results.csv")).unwrap();
        let row = csv.records().next().unwrap().unwrap();
        let expected = if *start == "x" {
            name
        } else {
            format!("'{name}")
        };
        assert_eq!(&row[0], expected.as_str());
    }
}

#[test]
fn the_report_is_for_a_teacher() {
    let dir = tempfile::tempdir().unwrap();
    write_results(dir.path(), &rubric(), &[graded("one", Some(2.0))]).unwrap();
    let text = std::fs::read_to_string(dir.path().join("one.md")).unwrap();
    for part in [
        "AI-suggested",
        "Status: **graded**",
        "Score: **2** of 5",
        "### Works: 2 of 4 — points lost",
        "Level: some",
        "lines 1 to 2",
        "````\nx = '```'\n<b>\n````",
        "missing &lt;script>",
        "> Look at !\\[x]",
        "`List<String>`",
        "> # Score",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_file_has_a_score_for_what_was_not_graded(
        works in proptest::collection::vec((proptest::option::of(0..=4u8), 0..3usize), 1..6)
    ) {
        let list: Vec<Graded> = works
            .iter()
            .enumerate()
            .map(|(i, (score, status))| {
                let mut one = graded(&format!("w{i}"), score.map(f64::from));
                if score.is_none() {
                    one.status = [Status::Failed, Status::NotAttempted, Status::NeedsReview][*status];
                }
                one
            })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        write_results(dir.path(), &rubric(), &list).unwrap();
        let all = std::fs::read(dir.path().join("results.json")).unwrap();
        let all: Value = serde_json::from_slice(&all).unwrap();
        let mut csv = csv::Reader::from_path(dir.path().join("results.csv")).unwrap();
        let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
        for (i, one) in list.iter().enumerate() {
            let text = std::fs::read_to_string(dir.path().join(format!("w{i}.md"))).unwrap();
            let single = std::fs::read(dir.path().join(format!("w{i}.json"))).unwrap();
            let single: Value = serde_json::from_slice(&single).unwrap();
            let has_score = one.score.is_some();
            prop_assert_eq!(all["submissions"][i]["score"].is_null(), !has_score);
            prop_assert_eq!(single["score"].is_null(), !has_score);
            prop_assert_eq!(rows[i][3].is_empty(), !has_score);
            prop_assert_eq!(text.contains("- Score: **none** of 5"), !has_score, "{}", text);
            prop_assert_eq!(text.contains("### Works: "), has_score, "{}", text);
            if !has_score {
                prop_assert!(rows[i][5].is_empty() && rows[i][6].is_empty());
                prop_assert_eq!(&single["criteria"], &Value::Array(vec![]));
            }
        }
    }
}
