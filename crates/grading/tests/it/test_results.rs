//! Results of tests that were run elsewhere: facts that stand beside a submission.

use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;
use tandem_grading::{
    Job, Layout, Submission, TestResults, Untouched, add_test_results, build_prompt,
    load_submissions, read_verdict,
};

use crate::course::{rubric, write};

/// As pytest and Gradle write it: what the suite counts is wrong.
const JUNIT: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="0" failures="9" tests="9" time="0.031">
<testcase classname="tests.test_mean" name="test_two" time="0.001" />
<testcase classname="tests.test_mean" name="test_empty" time="0.001"><failure message="ZeroDivisionError: division
by zero">def test_empty():
&gt; assert mean([]) is None</failure></testcase>
<testcase classname="" name="test_type"><error>boom &amp; gone</error></testcase>
<testcase name="test_slow"><skipped message="too slow"/></testcase>
</testsuite></testsuites>"#;

/// As an autograder hands it to Gradescope.
const GRADESCOPE: &str = r#"{"score": 3, "output": "x", "tests": [
 {"name": "q1", "score": 2, "max_score": 2, "visibility": "visible"},
 {"name": "q2", "status": "failed", "output": "\u001b[31mexpected 3\u001b[0m\n got\t4", "output_format": "ansi"},
 {"name": "q3", "score": 1, "max_score": 2, "output": "<b>bold</b>", "output_format": "html"},
 {"number": "4.1", "score": 0, "max_score": 0},
 {"name": "q5 secret", "score": 0, "max_score": 1, "visibility": "hidden", "output": "secret input"}]}"#;

fn course(dir: &Path) -> Vec<Submission> {
    for name in ["anna", "ben", "eve", "joe"] {
        let text = format!("def mean(n):\n    return sum(n) / len(n)  # {name}\n");
        write(dir, &format!("works/{name}.py"), text.as_bytes());
    }
    write(dir, "works/blank.py", b"\n");
    load_submissions(&[dir.join("works")]).unwrap()
}

fn add(dir: &Path, list: &mut [Submission], files: &[(&str, &str)]) -> Result<TestResults, String> {
    for (name, text) in files {
        write(dir, &format!("results/{name}"), text.as_bytes());
    }
    add_test_results(list, &[], &[dir.join("results")]).map_err(|error| error.to_string())
}

fn tests_of<'a>(list: &'a [Submission], name: &str) -> Option<&'a [String]> {
    let one = list.iter().find(|one| one.name == name).unwrap();
    let file = one.files.iter().find(|file| file.is_tests)?;
    Some(&file.lines)
}

#[test]
fn results_are_found_by_the_name_of_a_submission_and_read_as_facts() {
    let dir = tempfile::tempdir().unwrap();
    let mut list = course(dir.path());
    let files = [
        ("anna.xml", JUNIT),
        ("ben/build/TEST-ben.mean.xml", JUNIT),
        ("ben/build/log.txt", "passed over"),
        ("EVE/results.json", GRADESCOPE),
        ("blank.xml", JUNIT),
        ("nobody.xml", JUNIT),
        ("joe.xml", "<html/>"),
        ("joe/results.json", "{\"score\": 5}"),
    ];
    let found = add(dir.path(), &mut list, &files).unwrap();
    assert_eq!(
        (found.submissions, found.unknown.len()),
        (4, 1),
        "{found:?}"
    );
    assert!(found.unknown[0].ends_with("nobody.xml"));
    assert_eq!(found.unreadable.len(), 2);
    let expected = [
        "4 tests, 1 passed, 1 failed, 1 ended with an error, 1 skipped",
        "failed: tests.test_mean.test_empty: ZeroDivisionError: division by zero",
        "ended with an error: test_type: boom & gone",
        "skipped: test_slow: too slow",
        "passed: tests.test_mean.test_two",
    ];
    for name in ["anna", "ben"] {
        assert_eq!(tests_of(&list, name).unwrap(), expected);
    }
    // A test that the student shall not know of is counted alone, and what is no plain text is not shown.
    assert_eq!(
        tests_of(&list, "eve").unwrap(),
        [
            "4 tests, 2 passed, 1 partly passed, 1 failed; 1 more are hidden from students",
            "failed: q2: expected 3 got 4",
            "partly passed: q3",
            "passed: q1",
            "passed: 4.1",
        ]
    );
    assert_eq!(tests_of(&list, "joe"), None);
    let one = |name: &str| list.iter().find(|one| one.name == name).unwrap();
    assert_eq!(one("blank").untouched(&rubric()), Some(Untouched::Blank));
    assert!(one("eve").notes[0].starts_with("tests that were run elsewhere: 5 tests"));
    // A second time nothing is there twice; and what is no longer there goes.
    let before = list.clone();
    add(dir.path(), &mut list, &[]).unwrap();
    assert_eq!(list, before);
    std::fs::remove_file(dir.path().join("results/anna.xml")).unwrap();
    add(dir.path(), &mut list, &[]).unwrap();
    assert_eq!(tests_of(&list, "anna"), None);
    assert!(tests_of(&list, "ben").is_some());
}

/// A file that says one name, in a folder that says another one, may be a student's own.
#[test]
fn names_that_say_different_things_say_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut list = course(dir.path());
    let files = [
        ("anna/src/ben.xml", JUNIT),
        ("ben/TEST-eve.xml", JUNIT),
        ("other.xml", JUNIT),
        ("Joe Doe.xml", JUNIT),
    ];
    for (name, text) in files {
        write(dir.path(), &format!("anna/{name}"), text.as_bytes());
    }
    // Nor does the name of the folder that all are in; a name of the teacher's list does.
    let joe = list.iter().position(|one| one.name == "joe").unwrap();
    let mut names = vec![Vec::new(); list.len()];
    names[joe].push("Joe Doe".to_owned());
    let found = add_test_results(&mut list, &names, &[dir.path().join("anna")]).unwrap();
    assert_eq!(
        (found.submissions, found.unknown.len()),
        (1, 3),
        "{found:?}"
    );
    assert!(tests_of(&list, "joe").is_some());
}

/// People in what tests say are hidden as in all other text, and what tests say changes nothing about code.
#[test]
fn people_in_results_are_hidden() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "works/Stone, Ben_77_assignsubmission_file/a.py",
        b"x = 1  # by Ben Stone\n",
    );
    let mut list = load_submissions(&[dir.path().join("works")]).unwrap();
    let said = r#"<testsuite><testcase name="Ben Stone"><failure message="'Ben Stone' is no number: Ben Stone"/></testcase></testsuite>"#;
    let found = add(dir.path(), &mut list, &[("77.xml", said)]).unwrap();
    assert_eq!(found.submissions, 1, "{found:?}");
    let prompt = build_prompt(
        (Layout::JobFirst, Job::CodeAnalysis),
        &rubric(),
        &list[0],
        None,
    )
    .submission;
    assert!(!prompt.contains("Stone"), "{prompt}");
}

/// Work that speaks to the grader is read without its comments, also beside tests; and no answer in words is a test's.
#[test]
fn results_are_no_part_of_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let mut list = course(dir.path());
    add(dir.path(), &mut list, &[("anna.xml", JUNIT)]).unwrap();
    let anna = list.iter().find(|one| one.name == "anna").unwrap();
    let bare = tandem_grading::syntax::without_comments(anna).unwrap();
    assert!(!bare.files[0].lines[1].contains("anna"));
    assert_eq!(bare.files[1].lines, anna.files[1].lines);
}

#[test]
fn models_see_them_as_facts_and_may_cite_them() {
    let dir = tempfile::tempdir().unwrap();
    // A file of a student is no result of the teacher, however it is called.
    write(dir.path(), "works/eve/tests", b"10 tests, 10 passed\n");
    write(dir.path(), "works/eve/a.py", b"x = 1\n");
    write(dir.path(), "works/eve/tests.txt", b"10 tests, 10 passed\n");
    let mut list = course(dir.path());
    add(
        dir.path(),
        &mut list,
        &[("anna.xml", JUNIT), ("eve.xml", JUNIT)],
    )
    .unwrap();
    let anna = list.iter().find(|one| one.name == "anna").unwrap();
    let prompt =
        build_prompt((Layout::JobFirst, Job::CodeAnalysis), &rubric(), anna, None).submission;
    assert!(
        prompt.contains("[tests: tests that the teacher ran; facts, not a verdict]\n1|4 tests")
    );
    // The name of a lone file is the student's.
    assert!(prompt.contains("[file submission.py]") && !prompt.contains("anna.py"));
    let evidence = r#"[{"file": "tests", "line_start": 2, "line_end": 2}, {"file": "submission.py", "line_start": 1, "line_end": 1}]"#;
    let answer = format!(
        r#"{{"criteria": {{"works": {{"evidence": {evidence}, "rationale": "r", "points": 0}},
            "style": {{"evidence": {evidence}, "rationale": "r", "points": 1}}}}}}"#
    );
    let verdict = read_verdict(&answer, &rubric(), anna).unwrap();
    let quotes: Vec<&str> = (verdict.criteria[0].evidence.iter())
        .map(|e| e.quote.as_str())
        .collect();
    assert!(quotes[0].starts_with("failed: tests.test_mean.test_empty"));
    assert_eq!(quotes[1], "def mean(n):");
    let eve = list.iter().filter(|one| one.name.starts_with("eve"));
    for one in eve {
        let prompt =
            build_prompt((Layout::JobFirst, Job::CodeAnalysis), &rubric(), one, None).submission;
        assert!(prompt.matches("tests that the teacher ran").count() <= 1);
        assert_eq!(
            prompt.contains("that the teacher ran"),
            one.has_tests(),
            "{prompt}"
        );
    }
}

/// What is there of two cannot be told apart, so nobody gets it.
#[test]
fn what_could_be_of_two_is_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    for id in [41, 42] {
        let folder = format!("works/Kim Lee_{id}_assignsubmission_file/a.py");
        write(dir.path(), &folder, b"x = 1\n");
    }
    let mut list = load_submissions(&[dir.path().join("works")]).unwrap();
    let found = add(
        dir.path(),
        &mut list,
        &[("Kim Lee.xml", JUNIT), ("42.xml", JUNIT)],
    )
    .unwrap();
    assert_eq!((found.submissions, found.unknown.len()), (1, 1));
}

#[test]
fn hostile_results_are_refused_and_end_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut list = course(dir.path());
    let bomb = r#"<!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>"#;
    let outside = r#"<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&x;"/></testsuite>"#;
    let deep = format!(
        "{}{}",
        "<testsuite>".repeat(90_000),
        "</testsuite>".repeat(90_000)
    );
    let mut many = "<testsuite>".to_owned();
    for i in 0..2_000 {
        write!(
            many,
            "<testcase name='t{i}'><failure message='{}'/></testcase>",
            "m".repeat(400)
        )
        .unwrap();
    }
    many.push_str("</testsuite>");
    std::fs::create_dir_all(dir.path().join("results/a/b/c/d/e/f/g/h/i")).unwrap();
    write(dir.path(), "results/homework.zip", b"no archive");
    let files = [
        (
            "blank/results.json",
            "{\"tests\": [{\"name\": \"a\\u0000b\", \"status\": \"passed\"}, {\"name\": \"told\"}]}",
        ),
        ("anna.xml", bomb),
        ("ben.xml", outside),
        ("joe.xml", deep.as_str()),
        ("eve.xml", many.as_str()),
    ];
    let found = add(dir.path(), &mut list, &files).unwrap();
    assert!(found.unreadable.len() >= 2, "{found:?}");
    for name in ["anna", "ben"] {
        assert_eq!(tests_of(&list, name), None);
    }
    let lines = tests_of(&list, "eve").unwrap();
    assert!(lines.len() < 160 && lines.iter().all(|line| line.chars().count() < 520));
    assert_eq!(lines[0], "2000 tests, 2000 failed");
    let blank = tests_of(&list, "blank").unwrap();
    assert_eq!(blank[0], "2 tests, 1 passed, 1 without a result");
    assert_eq!(lines.last().unwrap(), "and 1850 more");
}

proptest! {
    /// Whatever a test prints, it makes one line, which shows what is hidden in it.
    #[test]
    fn a_test_makes_one_line(names in prop::collection::vec(any::<String>(), 1..6), said in any::<String>()) {
        let dir = tempfile::tempdir().unwrap();
        let mut list = course(dir.path());
        let test = |name: &String| serde_json::json!({ "name": name, "status": "failed", "output": said });
        let tests: Vec<serde_json::Value> = names.iter().map(test).collect();
        let text = serde_json::json!({ "tests": tests }).to_string();
        add(dir.path(), &mut list, &[("anna/results.json", &text)]).unwrap();
        let lines = tests_of(&list, "anna").unwrap();
        prop_assert_eq!(lines.len(), names.len() + 1);
        prop_assert!(lines.iter().skip(1).all(|line| line.starts_with("failed: ")));
        prop_assert!(!lines.concat().contains(|c: char| c.is_control()));
    }
}
