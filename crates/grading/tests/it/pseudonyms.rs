//! Models are not shown who is in a course, and see the same program.

use proptest::prelude::*;
use serde_json::json;
use tandem_grading::{
    Job, Layout, Origin, Roster, Rubric, Student, Submission, System, build_prompt, read_verdict,
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
\"山田, 太郎\",1008,33221100,yamada.t,A,
\"김, 철수\",1009,22110099,kim-1,A,
\"de la Cruz García del Río, María José\",1010,12121212,jane.o'doe@uni.example,A,
\"Strauß, Jürgen\",1011,13131313,j.strauss,A,
\"Großmann, Jörg\",1012,14141414,jgross1,A,
\"Wiśniewski, Łukasz\",1013,15151515,lukaszw1,A,
\"Ågård, Søren\",1014,16161616,soren1,A,
\"Doe, Jane\",1015,17171717,jg-1,A,
\"Mueller, Juergen\",1016,18181818,juergen1,A,
";

/// A text in which marks stand for the folders of users.
fn at_home(text: &str) -> String {
    let text = text.replace("{HOME}", concat!("/", "home"));
    text.replace("{USERS}", concat!("/", "Users"))
}

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
    let prompt = build_prompt(
        (Layout::JobFirst, Job::CodeAnalysis),
        &rubric(),
        submission,
        None,
    );
    let lines = prompt.submission.lines();
    let numbered = lines.filter_map(|line| line.split_once('|'));
    numbered
        .filter(|(number, _)| number.parse::<usize>().is_ok())
        .map(|(_, line)| line.to_owned())
        .collect()
}

fn hidden(name: &str, text: &str) -> Submission {
    let mut submission = Submission::of_text(name, &at_home(text));
    roster().hide(&mut submission);
    submission
}

/// Ways in which people of the gradebook are written.
const WRITTEN: &[&str] = &[
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
    "山田 太郎",
    "山田\u{3000}太郎",
    "김철수",
    "김 철수",
    "\u{1100}\u{1175}\u{11b7} \u{110e}\u{1165}\u{11af}\u{1109}\u{116e}",
    "María José de la Cruz García del Río",
    "Jürgen Strauss",
    "JÜRGEN STRAUSS",
    "Juergen Strauß",
    "JÖRG GROSSMANN",
    "Jorg Grossmann",
    "Jürgen Müller",
    "Lukasz Wisniewski",
    "Soren Agard",
    "Jane\u{a0}Doe",
    "Jane    Doe",
    "Doe | Jane",
    "Jane M. Doe",
    "j.strauss",
    "yamada.t",
    "jg-1",
];

#[test]
fn people_are_replaced_in_text() {
    for text in WRITTEN {
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
            ("a.txt", (*text).to_owned()),
            ("a.zig", format!("// {text}")),
            ("a.swift", format!("let a = \"{text}\" // it")),
            ("a.swift", format!("let a = 1 // {text}")),
            ("a.vb", format!("Dim x ' {text}")),
            ("a.f90", format!("x = 1 ! {text}")),
            ("a.f90", format!("print *, \"{text}\"")),
            ("a.dart", format!("/* {text} */ int x;")),
            ("a.fs", format!("(* {text} *) let x = 1")),
            ("a.jl", format!("x = 1 # {text}")),
            ("Makefile", format!("all: # {text}")),
            ("a.py", format!("x = r\"{text}\"")),
            (
                "a.py",
                format!("\"\"\"{} {text} {}\"\"\"", "long ".repeat(120), "end"),
            ),
        ] {
            let submission = hidden(file, &line);
            let lines = shown(&submission);
            assert_eq!(lines.len(), 1);
            assert!(!lines[0].contains(text), "{file}: {line} is {}", lines[0]);
            // The file is as it was, and what a model writes has the name again.
            assert_eq!(submission.files[0].lines, std::slice::from_ref(&line));
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
        ("a.txt", "{HOME}/user/x {USERS}/student/y"),
    ] {
        assert_eq!(shown(&hidden(file, line)), [at_home(line)], "{file}");
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
        ("open(\"{HOME}/jdoe7/data.csv\")", "jdoe7"),
        ("# C:\\Users\\Jane Doe\\x.py", "Jane Doe"),
        ("x = '{USERS}/jane.doe/x'", "jane.doe"),
        ("x = 'C:\\\\Users\\\\jane\\\\x'", "jane"),
        ("open(r\"C:\\Users\\Jane Roe\\x.csv\")", "Jane Roe"),
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
    let text = at_home("{HOME}/alovelace/x: Ada Lovelace\n");
    let output = json!([{ "output_type": "stream", "name": "stdout", "text": text }]);
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
    let prompt = build_prompt(
        (Layout::JobFirst, Job::CodeAnalysis),
        &rubric,
        &submission,
        None,
    );
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
    let prompt = build_prompt(
        (Layout::JobFirst, Job::Feedback),
        &rubric,
        &submission,
        Some(&verdict.criteria),
    );
    assert!(
        !prompt.submission.to_lowercase().contains("lovelace"),
        "{}",
        prompt.submission
    );
    assert!(prompt.submission.contains(&person));
}

/// The tokens of two Python programs but for comments and strings, as Python itself tells them, with their lines.
fn tokens(texts: &[&str; 2]) -> [String; 2] {
    const SCRIPT: &str = "import io, json, sys, tokenize as t\n\
        def of(s):\n\
        \x20   for k in t.generate_tokens(io.StringIO(s).readline):\n\
        \x20       yield k.start[0], t.tok_name[k.type], k.string if k.type in (t.NAME, t.OP, t.NUMBER) else ''\n\
        print(json.dumps([str(list(of(s))) for s in json.load(sys.stdin)]))";
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = serde_json::to_vec(texts).unwrap();
    child.stdin.take().unwrap().write_all(&sent).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{texts:?}");
    serde_json::from_slice(&output.stdout).unwrap()
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
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_program_keeps_its_tokens(lines in proptest::collection::vec(line(), 1..12)) {
        let text = lines.join("\n") + "\n";
        let submission = hidden("a.py", &text);
        let shown = shown(&submission).join("\n") + "\n";
        let [after, before] = tokens(&[&shown, &text]);
        prop_assert_eq!(after, before);
        prop_assert_eq!(submission.named(&shown).lines().count(), text.lines().count());
    }
}

#[test]
fn a_student_of_a_plain_folder_is_hidden_and_a_plain_word_is_not() {
    for (name, is_hidden) in [
        ("Jane Roe", true),
        ("Roe, Jane", true),
        ("Jane_Roe", true),
        ("王小明", true),
        ("template-only", false),
        ("s01-complete", false),
        ("Jane", false),
    ] {
        let text = name.replace(['_', ','], " ");
        let mut one = Submission::of_text("a.py", &format!("# {text}"));
        one.name = name.to_owned();
        let roster = Roster::new([(name, &one.origin)], None);
        roster.hide(&mut one);
        assert_eq!(!shown(&one)[0].contains(&text), is_hidden, "{name}");
    }
}

/// A submission of files with these names and texts.
fn of_files(files: &[(&str, &str)]) -> Submission {
    let mut all = files
        .iter()
        .map(|(name, text)| Submission::of_text(name, text));
    let mut submission = all.next().unwrap();
    all.for_each(|mut one| submission.files.append(&mut one.files));
    roster().hide(&mut submission);
    submission
}

#[test]
fn each_spelling_comes_back_as_it_was() {
    let submission = of_files(&[
        ("Jane Doe.py", "x = 1  # Jane Doe, JANE DOE\n"),
        (
            "jane_doe.txt",
            "by jane_doe, jg-1 and JG-1, jane.o'doe@uni.example, Jane.O'Doe@uni.example",
        ),
        ("Main.java", "// Jane Doe\nclass Main {}\n"),
    ]);
    let prompt = build_prompt(
        (Layout::JobFirst, Job::CodeAnalysis),
        &rubric(),
        &submission,
        None,
    );
    let body = prompt.submission;
    assert!(
        !body.to_lowercase().contains("doe") && !body.to_lowercase().contains("jg-1"),
        "{body}"
    );
    let names: Vec<&str> = body
        .lines()
        .filter_map(|line| line.strip_prefix("[file "))
        .collect();
    let distinct: std::collections::HashSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), 3, "{names:?}");
    // All that a model can repeat is restored to the letter.
    let back = submission.named(&body);
    for text in [
        "Jane Doe.py",
        "# Jane Doe, JANE DOE",
        "jane_doe.txt",
        "by jane_doe, jg-1 and JG-1",
        "Jane.O'Doe@uni.example",
    ] {
        assert!(back.contains(text), "{text}: {back}");
    }
}

#[test]
fn a_file_keeps_the_name_that_the_code_uses() {
    let submission = of_files(&[
        ("JaneDoe.java", "public class JaneDoe {}\n"),
        ("jane_doe.py", "x = 1\n"),
        ("main.py", "import jane_doe\n"),
    ]);
    let prompt = build_prompt(
        (Layout::JobFirst, Job::CodeAnalysis),
        &rubric(),
        &submission,
        None,
    );
    for name in ["[file JaneDoe.java]", "[file jane_doe.py]"] {
        assert!(prompt.submission.contains(name), "{}", prompt.submission);
    }
}

#[test]
fn words_of_an_assessment_stay_where_they_name_nobody() {
    let mut submission = Submission::of_text(
        "a.py",
        &at_home("open('{HOME}/max/x')\nopen('{HOME}/test/y')  # Jane Doe\n"),
    );
    roster().hide(&mut submission);
    let criteria: Vec<_> = rubric()
        .criteria
        .iter()
        .map(|c| tandem_grading::CriterionResult {
            id: c.id.clone(),
            title: c.title.clone(),
            evidence: Vec::new(),
            rationale: "The test of max in Jane Doe's work; test it.".to_owned(),
            level: None,
            points: c.max_points,
            max_points: c.max_points,
        })
        .collect();
    let prompt = build_prompt(
        (Layout::JobFirst, Job::Feedback),
        &rubric(),
        &submission,
        Some(&criteria),
    );
    assert!(
        prompt.submission.contains("The test of max in Student_"),
        "{}",
        prompt.submission
    );
    assert!(!prompt.submission.contains("Jane Doe"));
}

#[test]
fn hostile_texts_and_large_courses_take_no_time() {
    let mut gradebook = "Student,ID,SIS Login ID,Section,Task (1)\n".to_owned();
    let letter = |i: u32| char::from_u32(0x4E00 + i).unwrap();
    for i in 0..2000 {
        gradebook += &format!(
            "\"{}, {}{}\",{i},u{i},A,\n",
            letter(i % 97),
            letter(i),
            letter(i / 7)
        );
        gradebook += &format!("\"Last{i}, First\",{},v{i},A,\n", 90_000 + i);
    }
    let roster = Roster::new([], Some(gradebook.as_bytes()));
    let many = "x=1\n".repeat(60_000);
    let one_line = format!("{}\n", "u0 First Last0 ".repeat(30_000));
    let solid = format!("{}\n", letter(5).to_string().repeat(100_000));
    for (name, text) in [("a.py", &many), ("a.md", &one_line), ("a.md", &solid)] {
        let mut submission = Submission::of_text(name, text);
        let since = std::time::Instant::now();
        roster.hide(&mut submission);
        assert!(
            since.elapsed().as_secs() < 10,
            "{name}: {:?}",
            since.elapsed()
        );
    }
}
