//! Written results: safe names, no formulas, no number where there is no score.

use crate::course::rubric;
use serde_json::Value;
use tandem_grading::{CriterionResult, Evidence, Graded, Points, Status, write_results};

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
            vec!["=cmd|' /C calc'!A0, \"quoted\"".to_owned()]
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
        &"x".repeat(300),
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
            .all(|f| f.len() < 100 && f.is_ascii() && !f.starts_with('.')),
        "{files:?}"
    );
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
    let single: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("_bad.json")).unwrap()).unwrap();
    assert_eq!(
        (&single["name"], &single["assignment"]),
        (&Value::from("=bad"), &Value::from("demo"))
    );
    let mut csv = csv::Reader::from_path(dir.path().join("results.csv")).unwrap();
    let header = csv.headers().unwrap().clone();
    assert_eq!(
        &header.iter().collect::<Vec<_>>()[..6],
        ["name", "status", "score", "max_score", "works", "style"]
    );
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    assert_eq!(
        (&rows[0][0], &rows[0][2], &rows[0][4], &rows[0][5]),
        ("good", "2", "2", "")
    );
    assert_eq!((&rows[1][0], &rows[1][2], &rows[1][4]), ("'=bad", "", ""));
    assert_eq!(&rows[1][8], "'=cmd|' /C calc'!A0, \"quoted\"");
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
