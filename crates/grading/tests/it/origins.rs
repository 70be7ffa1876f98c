//! As many students come out of an export of a learning system as went in, whatever it made of their files.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use tandem_grading::{GradingError, Submission, System, load_submissions, load_submissions_for};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// Names in several scripts, with what makes them hard: numbers, lines below, signs.
const NAMES: &[&str] = &[
    "Nguyễn, Goran",
    "Müller-Lüdenscheidt, Änne",
    "Ōkubo, Ren",
    "O'Neil, Siobhán",
    "Smith, 3rd",
    "de la Cruz, María José",
    "王, 小明",
    "Иванова, Дарья",
];

const COUNT: usize = 30;

const NOTEBOOK: &str = r#"{"cells": [{"cell_type": "code", "source": ["x = 1"], "metadata": {}, "outputs": []}],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;

/// A student: the name as `Last, First`, and a number.
fn student(i: usize) -> (String, usize) {
    let name = NAMES[i % NAMES.len()];
    (format!("{name}{}", "x".repeat(i / NAMES.len())), 4000 + i)
}

fn first_last(name: &str) -> String {
    let (last, first) = name.split_once(", ").unwrap();
    format!("{first} {last}")
}

/// As Canvas writes it before the numbers.
fn compact(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.collect::<String>().to_lowercase()
}

fn load(members: &[(String, String)]) -> Vec<Submission> {
    try_load(&[("course submissions.zip", members)]).unwrap()
}

/// Archives by name, with what is in them.
fn try_load(archives: &[(&str, &[(String, String)])]) -> Result<Vec<Submission>, GradingError> {
    let dir = tempfile::tempdir().unwrap();
    let paths = archives.iter().map(|(archive, members)| {
        let path: PathBuf = dir.path().join(archive);
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        for (name, content) in *members {
            zip.start_file(name.as_str(), SimpleFileOptions::default())
                .unwrap();
            zip.write_all(content.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        path
    });
    load_submissions(&paths.collect::<Vec<_>>())
}

/// What is known of each: number of the student, and how many files.
fn known(list: &[Submission], system: System) -> Vec<(String, usize)> {
    let one = |s: &Submission| {
        assert_eq!(s.origin.system, system, "{}", s.name);
        (s.origin.students[0].ids[0].clone(), s.files.len())
    };
    let mut all: Vec<(String, usize)> = list.iter().map(one).collect();
    all.sort();
    all
}

/// What they are called.
fn named(list: &[Submission]) -> Vec<String> {
    let mut names: Vec<String> = list.iter().map(|one| one.name.clone()).collect();
    names.sort();
    names
}

fn file(name: String) -> (String, String) {
    (name, "x = 1\n".to_owned())
}

#[test]
fn thirty_students_of_canvas_are_thirty() {
    let mut members = Vec::new();
    let mut expected = Vec::new();
    for i in 0..COUNT {
        let (name, id) = student(i);
        let late = if i % 5 == 0 { "_LATE" } else { "" };
        let own = format!("{}{late}_{id}", compact(&name));
        let mut files = vec![format!("{own}_9{i:03}_hw1.py")];
        match i % 4 {
            // A second file, one of the same name, one that cannot be read, a text.
            0 => files.push(format!("{own}_8{i:03}_team7_55_66_main.py")),
            1 => files.push(format!("{own}_8{i:03}_hw1-1.py")),
            2 => files.push(format!("{own}_8{i:03}_report.pdf")),
            _ => files.push(format!("{own}_text.html")),
        }
        members.extend(files.into_iter().map(file));
        expected.push((id.to_string(), if i % 4 == 2 { 1 } else { 2 }));
    }
    let list = load(&members);
    assert_eq!(known(&list, System::Canvas), expected);
    let late = list.iter().filter(|s| s.origin.is_late).count();
    assert_eq!(late, COUNT / 5);
    let noted = list
        .iter()
        .filter(|s| s.notes.iter().any(|note| note == "handed in late"));
    assert_eq!(noted.count(), late);
    let names: Vec<&str> = list.iter().map(|s| s.name.as_str()).collect();
    assert!(
        names
            .iter()
            .all(|name| !name.contains('_') && !name.contains("LATE")),
        "{names:?}"
    );
    // What is not read is said, and can still be graded by hand.
    let pdf = list
        .iter()
        .find(|s| s.origin.students[0].ids[0] == "4002")
        .unwrap();
    assert!(
        pdf.notes.iter().any(|note| note.contains("report.pdf")),
        "{:?}",
        pdf.notes
    );
    // What the teacher put beside them is nobody's, and stands by itself.
    let mut beside = members.clone();
    beside.push(file("notes for the class.txt".to_owned()));
    let list = load(&beside);
    assert_eq!(list.len(), COUNT + 1);
    assert_eq!(list[0].origin.system, System::Plain);
    let anonymous: Vec<(String, String)> = [
        "LATE_anon_Ab12_77_a.py",
        "anon_Cd34_78_a.py",
        "anon_Cd34_text.html",
    ]
    .into_iter()
    .map(|name| file(name.to_owned()))
    .collect();
    let list = load(&anonymous);
    assert_eq!(
        known(&list, System::Canvas),
        [("anon_Ab12".to_owned(), 1), ("anon_Cd34".to_owned(), 2)]
    );
}

#[test]
fn thirty_students_of_moodle_are_thirty_in_both_of_its_forms() {
    let (mut folders, mut flat, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..COUNT {
        let (name, id) = student(i);
        let name = first_last(&name);
        // Older versions end the folder with a line.
        let line = if i % 2 == 0 { "" } else { "_" };
        folders.push(format!("{name}_{id}_assignsubmission_file{line}/main.py"));
        folders.push(format!(
            "{name}_{id}_assignsubmission_file{line}/lib/util.py"
        ));
        flat.push(format!("{name}_{id}_assignsubmission_file_main.py"));
        flat.push(format!("{name}_{id}_assignsubmission_file_util_2.py"));
        if i % 3 == 0 {
            folders.push(format!(
                "{name}_{id}_assignsubmission_onlinetext/onlinetext.html"
            ));
            flat.push(format!(
                "{name}_{id}_assignsubmission_onlinetext_onlinetext.html"
            ));
        }
        expected.push((id.to_string(), if i % 3 == 0 { 3 } else { 2 }));
    }
    for members in [folders, flat] {
        let members: Vec<(String, String)> = members.into_iter().map(file).collect();
        let list = load(&members);
        assert_eq!(known(&list, System::Moodle), expected);
        for (i, one) in list.iter().enumerate() {
            assert!(!one.name.contains("assignsubmission"), "{i}: {}", one.name);
        }
    }
    let blind = load(&[
        file("Participant_17_assignsubmission_file/a.py".to_owned()),
        file("Participant_18_assignsubmission_file/a.py".to_owned()),
        file("Team A_assignsubmission_file/a.py".to_owned()),
    ]);
    assert_eq!(blind.len(), 3);
    let names: Vec<&str> = blind.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["Participant (17)", "Participant (18)", "Team A"]);
    assert_eq!(
        blind[0].origin.folder,
        "Participant_17_assignsubmission_file"
    );
}

#[test]
fn others_are_known_by_their_trees() {
    let (mut gradescope, mut nbgrader, mut submitty, mut classroom) =
        (vec![], vec![], vec![], vec![]);
    let mut list = String::from("---\n");
    for i in 0..COUNT {
        let (name, id) = student(i);
        list.push_str(&format!(
            "submission_{id}:\n  :submitters:\n  - :name: \"{name}\"\n    :sid: \"0{id}\"\n    :email: s{id}@x.org\n  :created_at: 2026-11-01\n  :score: 3.0\n"
        ));
        gradescope.push(file(format!("assignment_9_export/submission_{id}/main.py")));
        nbgrader.push(file(format!("course/submitted/s{id}/ps1/p1.py")));
        nbgrader.push(file(format!("course/submitted/s{id}/ps1/timestamp.txt")));
        let version = 1 + i % 3;
        for attempt in 1..=3 {
            submitty.push((
                format!("hw/s{id}/{attempt}/main.py"),
                format!("x = {attempt}\n"),
            ));
        }
        let settings = format!("{{\"active_version\": {version}, \"history\": []}}");
        submitty.push((format!("hw/s{id}/user_assignment_settings.json"), settings));
        classroom.push(file(format!("lab-one-submissions/lab-one-s{id}/main.py")));
    }
    gradescope.push((
        "assignment_9_export/submission_metadata.yml".to_owned(),
        list,
    ));
    nbgrader.push(file("course/source/ps1/p1.py".to_owned()));
    nbgrader.push(file("course/release/ps1/p1.py".to_owned()));
    nbgrader.push(file("course/gradebook.db".to_owned()));
    for (members, system, id) in [
        (gradescope, System::Gradescope, "0"),
        (nbgrader, System::Nbgrader, "s"),
        (submitty.clone(), System::Submitty, "s"),
        (classroom, System::Classroom, "s"),
    ] {
        let list = load(&members);
        let expected: Vec<String> = (0..COUNT).map(|i| format!("{id}{}", 4000 + i)).collect();
        let found: Vec<String> = known(&list, system).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, expected, "{system:?}");
    }
    // Of several attempts the one that counts is read.
    for one in load(&submitty) {
        let id: usize = one.origin.students[0].ids[0][1..].parse().unwrap();
        let version = 1 + (id - 4000) % 3;
        assert_eq!(
            one.files[0].lines,
            [format!("x = {version}")],
            "{}",
            one.name
        );
    }
}

/// Files of a course that look a little like those of a system stay what they are.
#[test]
fn a_plain_course_is_no_export() {
    for members in [
        &["lab_1_2_main.py", "anna.py"][..],
        // Alone, as one that comes late.
        &["exam_2024_08_max.py"],
        &["exam_2024_1105_max.py"],
        &["lab_3_1_ben.py"],
        &["exam_2024_1105_anna.py", "exam_2024_1106_ben.py"],
        &["week_3.py", "week_4.py"],
        &["ann_hw1.py", "bob_hw1.py"],
        &["lab-one/anna/a.py", "lab-one/ben/a.py"],
        &["exam_2024_05_anna.py", "exam_2024_05_ben.py"],
        &["hw_2024_1_anna.py", "hw_2024_1_ben.py"],
        &["cs_101_12345_main.py", "cs_101_12346_main.py"],
        &["lab_1_2_a.py", "lab_1_3_b.py", "lab_1_4_c.py"],
        &["submitted/anna/main.py", "submitted/ben/main.py"],
        &["submitted/anna/src/a.py", "submitted/ben/lib/a.py"],
        &[
            "hw_1_2_anna.py",
            "hw_1_2_ben.py",
            "hw_1_2_eve.py",
            "hw_1_2_joe.py",
            "hw_1_2_max.py",
        ],
    ] {
        let list: Vec<(String, String)> = members
            .iter()
            .map(|name| file((*name).to_owned()))
            .collect();
        let list = load(&list);
        assert_eq!(list.len(), members.len(), "{members:?}");
        assert!(
            list.iter().all(|s| s.origin.system == System::Plain),
            "{members:?}"
        );
    }
}

/// What one student handed in stops nobody, and nothing of it is lost for a name that a system has, too.
#[test]
fn one_student_does_not_stop_a_course() {
    let own = |name: &str, content: &str| (name.to_owned(), content.to_owned());
    let list = load(&[
        own("anna/user_assignment_settings.json", "{"),
        own("anna/1/main.py", "x = 1"),
        own("ben/main.py", "x = 1"),
        own("eve/submission_metadata.yml", "["),
        own("eve/main.py", "x = 1"),
    ]);
    assert_eq!(list.len(), 3);
    assert!(list[0].problem.is_some() && list[1].problem.is_none() && list[2].problem.is_none());
    let list = load(&[
        own("submitted/anna/main.py", "x = 1"),
        own("submitted/anna/src/util.py", "y = 1"),
        own("submitted/ben/main.py", "x = 1"),
    ]);
    let files: Vec<usize> = list.iter().map(|s| s.files.len()).collect();
    assert_eq!(files, [2, 1]);
    // A long list, as systems write it with a history for each.
    let mut text = String::from("---\n");
    let mut members = Vec::new();
    for i in 0..300 {
        text.push_str(&format!(
            "submission_{i}:\n  :submitters:\n  - :name: N{i}\n    :sid: \"{i}\"\n  :history:\n"
        ));
        text.push_str(&"  - :score: 1.0\n    :tests: [1, 2, 3]\n".repeat(150));
        members.push(file(format!("export/submission_{i}/a.py")));
    }
    members.push(own("export/submission_metadata.yml", &text));
    assert_eq!(known(&load(&members), System::Gradescope).len(), 300);
}

fn files(names: &[&str]) -> Vec<(String, String)> {
    let one = |name: &&str| ((*name).to_owned(), "x = 1".to_owned());
    names.iter().map(one).collect()
}

/// Students, each with the number of files, in the order of their numbers.
fn check(names: &[&str], system: System, expected: &[(&str, usize)]) {
    let list = load(&files(names));
    let mut found = known(&list, system);
    found.sort();
    let found: Vec<(&str, usize)> = found.iter().map(|(id, n)| (id.as_str(), *n)).collect();
    assert_eq!(found, expected, "{names:?}");
}

#[test]
fn students_are_whole_in_small_and_odd_courses() {
    // Names that are hidden, and names that several have.
    check(
        &[
            "Participant_17_assignsubmission_file/a.py",
            "Participant_17_assignsubmission_onlinetext/onlinetext.html",
            "Participant_18_assignsubmission_file/a.py",
            "Participant_19_assignsubmission_file/a.py",
        ],
        System::Moodle,
        &[("17", 2), ("18", 1), ("19", 1)],
    );
    check(
        &[
            "Kim Lee_1_assignsubmission_file_a.py",
            "Kim Lee_2_assignsubmission_file_a.py",
        ],
        System::Moodle,
        &[("1", 1), ("2", 1)],
    );
    let hidden = load(&files(&[
        "Participant_17_assignsubmission_file_a.py",
        "Participant_18_assignsubmission_file_a.py",
    ]));
    let names: Vec<&str> = hidden.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["Participant 17", "Participant 18"]);
    // One student alone.
    check(
        &["doejane_1234_5678_a.py", "doejane_1234_5679_b.py"],
        System::Canvas,
        &[("1234", 2)],
    );
    check(
        &[
            "Jane Doe_12_assignsubmission_file/a.py",
            "Jane Doe_12_assignsubmission_onlinetext/onlinetext.html",
        ],
        System::Moodle,
        &[("12", 2)],
    );
}

#[test]
fn what_several_have_or_lies_beside_makes_no_other_course() {
    check(
        &[
            "doejane_1234_5678_a.py",
            "roejim_1235_5681_b.py",
            "roejim_1235_5681_b.py.txt",
        ],
        System::Canvas,
        &[("1234", 1), ("1235", 2)],
    );
    check(
        &[
            "doejane_1_77_team.py",
            "roejim_2_77_team.py",
            "leekim_3_78_b.py",
        ],
        System::Canvas,
        &[("1", 1), ("2", 1), ("3", 1)],
    );
    // What lies beside the folders of a tree.
    check(
        &[
            "submitted/ann/ps1/a.py",
            "submitted/ann/.DS_Store",
            "submitted/ben/ps1/a.py",
            "gradebook.db",
        ],
        System::Nbgrader,
        &[("ann", 1), ("ben", 1)],
    );
    check(
        &[
            "eve/user_assignment_settings.json",
            "ann/user_assignment_settings.json",
        ],
        System::Submitty,
        &[("ann", 0), ("eve", 0)],
    );
}

#[test]
fn what_is_beside_a_system_or_of_no_kind_is_somebodys() {
    let list = load(&files(&[
        "submitted/anna/a.py",
        "submitted/ben/a.py",
        "eve.py",
    ]));
    assert_eq!(named(&list), ["anna", "ben", "eve"]);
    let list = load(&files(&[
        "doejane_1234_5678_Main.class",
        "roejim_1235_5679_a.py",
    ]));
    assert_eq!(named(&list), ["doejane", "roejim"]);
    assert_eq!(
        named(&load(&files(&["anna.class", "ben.py"]))),
        ["anna", "ben"]
    );
    let list = load(&files(&[
        "lab-one-submissions/lab-one-anna/a.py",
        "lab-one-submissions/lab-one-ben/a.py",
        "lab-one-submissions/lab-one-eve/a.py",
        "lab-one-submissions/lab-one-joe/a.py",
        "lab-one-submissions/README.md",
    ]));
    assert_eq!(named(&list), ["README", "anna", "ben", "eve", "joe"]);
    // Several assignments are refused, however few students there are.
    for students in [&["a", "b"][..], &["a", "b", "c"]] {
        let names: Vec<String> = students
            .iter()
            .flat_map(|one| [1, 2, 3].map(|ps| format!("submitted/{one}/ps{ps}/x.py")))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let refused = try_load(&[("all.zip", &files(&names))]).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("several assignments: ps1, ps2, ps3")
        );
    }
}

/// The usual tree of nbgrader has all assignments: the rubric says which one is meant, or a path does.
#[test]
fn of_a_tree_of_several_assignments_one_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    for path in [
        "submitted/anna/ps1/a.ipynb",
        "submitted/anna/ps2/a.ipynb",
        "submitted/ben/ps2/a.ipynb",
        "submitted/eve/ps1/a.ipynb",
        "submitted/eve/ps1/timestamp.txt",
        "other/submitted/week1/a.py",
        "other/submitted/week1/b.py",
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, NOTEBOOK).unwrap();
    }
    let all = [dir.path().join("submitted")];
    let refused = load_submissions(&all).unwrap_err().to_string();
    assert!(refused.contains("ps1, ps2; give the rubric the title of one"));
    let mut rubric = crate::course::rubric();
    "PS2".clone_into(&mut rubric.title);
    let list = load_submissions_for(&all, &rubric).unwrap();
    assert_eq!(known(&list, System::Nbgrader).len(), 3);
    let missing: Vec<&str> = (list.iter().filter(|s| s.problem.is_some()))
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(missing, ["eve"]);

    let path = |path: &str| dir.path().join(path);
    let list = load_submissions(&[path("submitted/anna/ps1"), path("submitted/eve/ps1")]).unwrap();
    assert_eq!(known(&list, System::Nbgrader).len(), 2);
    assert_eq!(named(&list), ["anna", "eve"]);
    let list = load_submissions(&[path("submitted/ben")]).unwrap();
    assert_eq!(named(&list), ["ben"]);
    // One student's folder that is called as the rubric decides for nobody else, and who hands in loose files is one student.
    let mut called = crate::course::rubric();
    "Loops".clone_into(&mut called.title);
    for name in ["submitted/zoe/Loops/a.ipynb", "submitted/kim/notes.txt"] {
        crate::course::write(dir.path(), name, NOTEBOOK.as_bytes());
    }
    assert!(load_submissions_for(&all, &called).is_err());
    let list = load_submissions_for(&all, &rubric).unwrap();
    assert_eq!(named(&list), ["anna", "ben", "eve", "kim", "zoe"]);
    let missing = list.iter().filter(|s| s.problem.is_some()).count();
    assert_eq!(missing, 3);
    // The same where the folder is called otherwise.
    std::fs::rename(path("submitted"), path("renamed")).unwrap();
    let list = load_submissions_for(&[path("renamed")], &rubric).unwrap();
    assert_eq!(known(&list[..0], System::Nbgrader).len(), 0);
    std::fs::rename(path("renamed"), path("submitted")).unwrap();
    // Folders of several students that are called the same are an assignment, whatever is in them.
    for name in [
        "submitted/anna/ps9/x.py",
        "submitted/anna/ps9/y.py",
        "submitted/ben/ps9/x.py",
    ] {
        crate::course::write(dir.path(), name, b"x = 1\n");
    }
    let list = load_submissions(&[path("submitted/anna/ps9"), path("submitted/ben/ps9")]).unwrap();
    assert_eq!(known(&list, System::Nbgrader).len(), 2);
    // A folder of that name may have another course.
    let list = load_submissions(&[path("other/submitted/week1")]).unwrap();
    assert_eq!(named(&list), ["a", "b"]);
}

#[test]
fn several_archives_are_courses_where_a_system_made_them() {
    let canvas = [
        files(&["doejane_1234_5678_a.py", "roejim_1235_5679_a.py"]),
        files(&["leekim_1236_5680_a.py", "poeann_1237_5681_a.py"]),
    ];
    let list = try_load(&[("a.zip", &canvas[0]), ("b.zip", &canvas[1])]).unwrap();
    assert_eq!(known(&list, System::Canvas).len(), 4);
    let moodle = [
        files(&[
            "Jane Doe_12_assignsubmission_file/a.py",
            "Jim Roe_13_assignsubmission_file/a.py",
        ]),
        files(&["Kim Lee_14_assignsubmission_file/a.py"]),
    ];
    let list = try_load(&[("a.zip", &moodle[0]), ("b.zip", &moodle[1])]).unwrap();
    assert_eq!(known(&list, System::Moodle).len(), 3);
    // Two of one name are told apart, and neither is the one that has it.
    let plain = [
        files(&["anna/a.py", "ben/a.py"]),
        files(&["anna/a.py", "eve/a.py"]),
    ];
    let list = try_load(&[("a.zip", &plain[0]), ("b.zip", &plain[1])]).unwrap();
    let names: Vec<&str> = list.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["anna (1)", "ben", "anna (2)", "eve"]);
}
