//! Models are not shown who is in a course, and see the same program.

use proptest::prelude::*;
use serde_json::json;
use tandem_grading::{
    Job, Origin, Roster, Rubric, Student, Submission, System, build_prompt, read_verdict,
};

const GRADEBOOK: &str = "\
Student,ID,SIS User ID,SIS Login ID,Section,Task 1 (77)
    Points Possible,,,,,10
\"Lovelace, Ada\",1001,s0815471,alovelace,A,
\"van der Meer, Jörg\",1002,31415926,jm42,A,
\"O'Brien, Seán\",1003,99887766,sean.obrien@school.example,A,
\"King-Lovelace, Augusta Ada\",1004,77665544,rose,A,
\"王, 小明\",1005,55443322,wang_xm,A,
\"Long, Hope\",1006,123,hope,A,
\"Müller, Änne\",1007,44332211,amueller,A,
";

fn rubric() -> Rubric {
    Rubric::parse(include_str!(
        "../../../../examples/intro-course/rubric.yaml"
    ))
    .unwrap()
}

fn roster() -> Roster {
    Roster::new([], Some(GRADEBOOK.as_bytes()))
}

/// The lines that a model is shown of a file.
fn shown(submission: &Submission) -> Vec<String> {
    let prompt = build_prompt(Job::CodeAnalysis, &rubric(), submission, None);
    let lines = prompt.submission.lines();
    let numbered = lines.filter_map(|line| line.split_once('|'));
    numbered
        .filter(|(number, _)| number.parse::<usize>().is_ok())
        .map(|(_, line)| line.to_owned())
        .collect()
}

fn hidden(name: &str, text: &str) -> Submission {
    let mut submission = Submission::of_text(name, text);
    roster().hide(&mut submission);
    submission
}

#[test]
fn people_are_replaced_in_text() {
    for text in [
        "Ada Lovelace",
        "ada lovelace",
        "LOVELACE, ADA",
        "Lovelace Ada",
        "ada_lovelace",
        "ada.lovelace",
        "AdaLovelace",
        "alovelace",
        "s0815471",
        "Jörg van der Meer",
        "Joerg van der Meer",
        "Jorg van der Meer",
        "van der Meer, Jörg",
        "Jo\u{308}rg van der Meer",
        "31415926",
        "jm42",
        "Sean O'Brien",
        "Seán O’Brien",
        "sean.obrien@school.example",
        "SEAN.OBRIEN@School.example",
        "Augusta Lovelace",
        "Augusta Ada King-Lovelace",
        "王小明",
        "wang_xm",
        "Hope Long",
        "Änne Müller",
        "Aenne Mueller",
        "amueller",
    ] {
        for (file, line) in [
            ("a.py", format!("x = 1  # by {text}.")),
            ("a.py", format!("print(\"{text}\")")),
            ("a.py", format!("\"\"\" {text} \"\"\"")),
            ("a.java", format!("int x; // {text}")),
            ("a.java", format!("/* author: {text} */ int x;")),
            ("a.c", format!("char *s = \"{text}\";")),
            ("a.R", format!("x <- 1 # {text}")),
            ("a.sql", format!("-- {text}")),
            ("a.rs", format!("// {text}")),
            ("a.js", format!("const s = `{text}`;")),
            ("a.md", format!("Written by {text}")),
            ("a.txt", text.to_owned()),
            ("a.zig", format!("// {text}")),
        ] {
            let submission = hidden(file, &line);
            let lines = shown(&submission);
            assert_eq!(lines.len(), 1);
            assert!(!lines[0].contains(text), "{file}: {line} is {}", lines[0]);
            // The file is as it was, and what a model writes has the name again.
            assert_eq!(submission.files[0].lines, [line.clone()]);
            assert_eq!(submission.named(&lines[0]), line);
        }
    }
}

#[test]
fn what_is_no_person_stays() {
    for (file, line) in [
        // A word alone is any word.
        (
            "a.py",
            "# Ada is a language, rose is a flower, hope is long",
        ),
        ("a.py", "# king of the meer"),
        ("a.py", "# 123 and 1001 and 1005"),
        // Code, whatever it is called.
        ("a.py", "ada_lovelace = alovelace(jm42)"),
        ("a.py", "print(f\"{ada_lovelace} {alovelace}\")"),
        ("a.py", "x = 31415926"),
        ("a.java", "AdaLovelace alovelace = new AdaLovelace();"),
        ("a.js", "const s = `${adaLovelace}`;"),
        ("a.rb", "s = \"#{ada_lovelace}\""),
        ("a.sh", "echo \"$ada_lovelace ${alovelace}\""),
        ("a.c", "Ada Lovelace;"),
        ("a.R", "ada.lovelace <- 1"),
        ("a.txt", "https://example.org/123456789"),
        ("a.txt", "adalovelaces"),
        ("a.txt", "/home/user/x /Users/student/y"),
    ] {
        assert_eq!(shown(&hidden(file, line)), [line], "{file}");
    }
    // A string that is the name of something in the code.
    let code = "ada_lovelace = 1\nprint(globals()[\"ada_lovelace\"])  # Ada Lovelace";
    let lines = shown(&hidden("a.py", code));
    assert!(
        lines[1].starts_with("print(globals()[\"ada_lovelace\"])  # Student_"),
        "{lines:?}"
    );
}

#[test]
fn folders_of_users_are_replaced() {
    for (line, name) in [
        ("open(\"/home/jdoe7/data.csv\")", "jdoe7"),
        ("# C:\\Users\\Jane Doe\\x.py", "Jane Doe"),
        ("x = '/Users/jane.doe/x'", "jane.doe"),
        ("x = 'C:\\\\Users\\\\jane\\\\x'", "jane"),
    ] {
        let lines = shown(&hidden("a.py", line));
        assert!(
            !lines[0].contains(name) && lines[0].contains("user_"),
            "{}",
            lines[0]
        );
    }
}

#[test]
fn a_notebook_is_text_but_for_its_code() {
    let cell = |kind: &str, source: &str, outputs: serde_json::Value| json!({ "cell_type": kind, "source": source, "outputs": outputs, "metadata": {} });
    let output = json!([{ "output_type": "stream", "name": "stdout", "text": "/home/alovelace/x: Ada Lovelace\n" }]);
    let notebook = json!({ "cells": [
        cell("markdown", "# Homework of Ada Lovelace", json!([])),
        cell("code", "ada_lovelace = 1  # Ada Lovelace", output),
    ], "metadata": {} });
    let lines = shown(&hidden("a.ipynb", &notebook.to_string()));
    let all = lines.join("\n");
    assert_eq!(all.matches("Student_").count(), 3, "{all}");
    assert!(
        all.contains("ada_lovelace = 1  # Student_") && !all.contains("Lovelace"),
        "{all}"
    );
    assert!(!all.contains("alovelace"), "{all}");
}

/// A submission of several files, which a system says whose it is.
fn of_several() -> Submission {
    let mut submission = Submission::of_text("main.py", "def f():\n    return 1  # Ada Lovelace\n");
    let mut other = Submission::of_text("ada_lovelace.py", "x = 2\n");
    submission.files.append(&mut other.files);
    submission.name = "Lovelace, Ada".to_owned();
    submission.origin = Origin {
        system: System::Canvas,
        students: vec![Student {
            name: "lovelaceada".to_owned(),
            ids: vec!["1001".to_owned()],
        }],
        ..Origin::default()
    };
    submission
}

#[test]
fn names_of_files_are_replaced_and_evidence_finds_them() {
    let mut submission = of_several();
    let roster = Roster::new([(submission.name.as_str(), &submission.origin)], None);
    roster.hide(&mut submission);
    let rubric = rubric();
    let prompt = build_prompt(Job::CodeAnalysis, &rubric, &submission, None);
    assert!(
        !prompt.submission.to_lowercase().contains("lovelace"),
        "{}",
        prompt.submission
    );
    let file = prompt
        .submission
        .lines()
        .find_map(|line| line.strip_prefix("[file Student_"));
    let file = format!("Student_{}", file.unwrap().trim_end_matches(']'));
    let person = file.trim_end_matches(".py").to_owned();
    let one = |id: &str| {
        let points = rubric
            .criteria
            .iter()
            .find(|c| c.id == id)
            .unwrap()
            .allowed()[0];
        json!({ "evidence": [{ "file": file, "line_start": 1, "line_end": 1 }],
                "rationale": format!("{person} wrote it."), "points": points.as_f64() })
    };
    let verdict: serde_json::Map<_, _> = rubric
        .criteria
        .iter()
        .map(|c| (c.id.clone(), one(&c.id)))
        .collect();
    let verdict = read_verdict(
        &json!({ "criteria": verdict }).to_string(),
        &rubric,
        &submission,
    )
    .unwrap();
    let first = &verdict.criteria[0];
    assert_eq!(first.evidence[0].file, "ada_lovelace.py");
    assert_eq!(first.evidence[0].quote, "x = 2");
    assert!(
        first.rationale.to_lowercase().contains("lovelace"),
        "{}",
        first.rationale
    );
    // What is sent to the one who writes has no name again.
    let prompt = build_prompt(Job::Feedback, &rubric, &submission, Some(&verdict.criteria));
    assert!(
        !prompt.submission.to_lowercase().contains("lovelace"),
        "{}",
        prompt.submission
    );
    assert!(prompt.submission.contains(&person));
}

/// The tokens of a Python program but for comments and strings, as Python itself tells them, with their lines.
fn tokens(text: &str) -> String {
    const SCRIPT: &str = "import io, sys, tokenize as t\n\
        for k in t.generate_tokens(io.StringIO(sys.stdin.read()).readline):\n\
        \x20   print(k.start[0], t.tok_name[k.type], k.string if k.type in (t.NAME, t.OP, t.NUMBER) else '')";
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Somebody of the course, in one of the ways in which people write.
fn person() -> impl Strategy<Value = String> {
    let names = [
        "Ada Lovelace",
        "ada_lovelace",
        "AdaLovelace",
        "alovelace",
        "jm42",
        "王小明",
        "s0815471",
        "Jörg van der Meer",
        "sean.obrien@school.example",
        "Hope Long",
        "wang_xm",
        "amueller",
    ];
    proptest::sample::select(names.to_vec()).prop_map(str::to_owned)
}

/// A line of Python with somebody in it.
fn line() -> impl Strategy<Value = String> {
    let identifier = |name: &str| {
        name.chars()
            .filter(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    (0..9_u8, person(), person()).prop_map(move |(kind, one, other)| {
        let name = identifier(&one);
        match kind {
            0 => format!("{name} = 1  # {other}"),
            1 => format!("print(\"{one}\", {name})"),
            2 => format!("x = f\"{other} {{{name}}}\""),
            3 => format!("def {name}(a):\n    \"\"\"{other}\"\"\"\n    return a"),
            4 => format!("x = '''{one}\n{other}\n'''"),
            5 => format!("class {name}:\n    pass  # {one}"),
            6 => format!("x = r'{other}' + 'it\\'s {one}'"),
            7 => format!("# {one}: {other}"),
            _ => format!("x = {name}.{name}(\"{one}\")"),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_program_keeps_its_tokens(lines in proptest::collection::vec(line(), 1..12)) {
        let text = lines.join("\n") + "\n";
        let submission = hidden("a.py", &text);
        let shown = shown(&submission).join("\n") + "\n";
        prop_assert_eq!(tokens(&shown), tokens(&text));
        prop_assert_eq!(submission.named(&shown).lines().count(), text.lines().count());
    }
}
