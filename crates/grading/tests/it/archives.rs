//! Courses that come as zip archives.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use tandem_grading::{Submission, load_submissions};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::text;

fn archive(path: &Path, members: &[(&str, &[u8])]) -> PathBuf {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    for (name, content) in members {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap();
    path.to_owned()
}

fn names(list: &[Submission]) -> Vec<(&str, usize)> {
    list.iter()
        .map(|s| (s.name.as_str(), s.files.len()))
        .collect()
}

#[test]
fn an_archive_is_a_course_whatever_folder_it_is_in() {
    let dir = tempfile::tempdir().unwrap();
    let members: [(&str, &[u8]); 4] = [
        ("ann/Main.java", b"class Main {}"),
        ("ann/Help.java", b"class Help {}"),
        ("bob.py", b"x = 1"),
        ("__MACOSX/._bob.py", b"junk"),
    ];
    let flat = archive(&dir.path().join("flat.zip"), &members);
    let expected = [("ann", 2), ("bob", 1)];
    assert_eq!(names(&load_submissions(&[flat]).unwrap()), expected);
    let deep: Vec<(String, &[u8])> = members
        .iter()
        .map(|(name, content)| (format!("export/course/{name}"), *content))
        .collect();
    let deep: Vec<(&str, &[u8])> = deep.iter().map(|(n, c)| (n.as_str(), *c)).collect();
    let deep = archive(&dir.path().join("Deep.ZIP"), &deep);
    assert_eq!(names(&load_submissions(&[deep]).unwrap()), expected);
}

#[test]
fn an_archive_in_it_is_a_work_and_a_bad_one_is_its_owners_problem_alone() {
    let dir = tempfile::tempdir().unwrap();
    let inner = archive(
        &dir.path().join("i.zip"),
        &[("a.py", b"x = 1"), ("b.py", b"y = 2")],
    );
    let slip = archive(&dir.path().join("s.zip"), &[("../../evil.py", b"x = 1")]);
    let bomb = archive(
        &dir.path().join("b.zip"),
        &[
            ("a.txt", &vec![b'x'; 40 << 20]),
            ("b.txt", &vec![b'x'; 40 << 20]),
        ],
    );
    let read = |path: &Path| std::fs::read(path).unwrap();
    let outer = archive(
        &dir.path().join("outer.zip"),
        &[
            ("ann.zip", &read(&inner)),
            ("bad.zip", b"no archive"),
            ("bob.py", b"x = 1"),
            ("bomb.zip", &read(&bomb)),
            ("slip.zip", &read(&slip)),
        ],
    );
    let list = load_submissions(&[outer]).unwrap();
    assert_eq!(list.len(), 5);
    for one in &list {
        let problem = text(one.problem.as_ref());
        match one.name.as_str() {
            "ann" => assert_eq!((one.files.len(), problem), (2, "none")),
            "bob" => assert_eq!((one.files.len(), problem), (1, "none")),
            // Each of its files is cut at the limit, which makes it unreadable, and nothing else.
            "bomb" => assert!(problem.contains("larger than"), "{problem}"),
            _ => assert!(problem.contains("not supported"), "{}: {problem}", one.name),
        }
    }
}

#[test]
fn an_archive_that_names_files_outside_of_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["../evil.py", "/etc/evil.py", "a/../../evil.py"] {
        let path = archive(&dir.path().join("x.zip"), &[("ok.py", b"x"), (name, b"x")]);
        let Err(refused) = load_submissions(&[path]).map_err(|e| e.to_string()) else {
            // An absolute name may be taken as one inside.
            assert!(name.starts_with('/'), "{name}");
            continue;
        };
        assert!(refused.contains("outside of itself"), "{refused}");
    }
    assert!(!dir.path().join("evil.py").exists() && !Path::new("/etc/evil.py").exists());
    let none = dir.path().join("n.zip");
    std::fs::write(&none, b"PK").unwrap();
    let refused = load_submissions(&[none]).unwrap_err().to_string();
    assert!(refused.contains("no archive that can be read"), "{refused}");
}
