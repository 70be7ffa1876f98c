//! What several tests share: a small rubric and submissions made on the spot.

use std::path::Path;
use tandem_grading::{Rubric, Submission, load_submissions};

/// Two criteria, one with levels and one with steps; 5 points.
pub const RUBRIC: &str = "
id: demo
title: Demo
task: Write a function.
guidelines: Be fair.
max_points: 5
criteria:
  - id: works
    title: Works
    description: It does what was asked.
    max_points: 4
    levels:
      - {label: all, points: 4, description: In every case.}
      - {label: some, points: 2, description: In one case.}
      - {label: none, points: 0, description: In no case.}
  - id: style
    title: Style
    description: Names say what they hold.
    max_points: 1
    step: 0.5
";

pub fn rubric() -> Rubric {
    Rubric::parse(RUBRIC).expect("the rubric of the tests")
}

/// Writes files and loads them as submissions.
pub fn submissions(files: &[(&str, &str)]) -> Vec<Submission> {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (name, text) in files {
        write(dir.path(), name, text.as_bytes());
    }
    load_submissions(&[dir.path().to_owned()]).expect("submissions")
}

pub fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
    std::fs::write(path, bytes).expect("file");
}

/// The folder of the example course.
pub fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/intro-course")
}
