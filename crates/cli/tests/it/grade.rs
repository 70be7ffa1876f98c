//! `tandem grade`, with two models on two nodes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tandem_fixtures::Architecture;

use super::daemon::{Daemon, TANDEM, write_config};

pub const COURSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/intro-course");
const MODELS: [Architecture; 2] = [Architecture::Qwen2, Architecture::GptOss];

/// A configuration with the jobs of a grading, the code analysis with so many tokens.
fn configure(
    dir: &Path,
    prefill: &Daemon,
    decode: &Daemon,
    code_tokens: u32,
) -> std::path::PathBuf {
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let routes = MODELS.map(|m| (m, &["p"][..], &["d"][..]));
    let path = write_config(dir, 512, &nodes, &routes);
    let mut file = std::fs::File::options()
        .append(true)
        .open(&path)
        .expect("config");
    let [code, feedback] = MODELS;
    write!(
        file,
        "[grading]\nparallel = 2\n\
         [grading.code_analysis]\nmodel = \"{code}\"\nmax_tokens = {code_tokens}\n\
         [grading.feedback]\nmodel = \"{feedback}\"\nmax_tokens = 50\n"
    )
    .expect("config");
    path
}

fn grade(config: &Path, out: &Path) -> Output {
    let mut command = Command::new(TANDEM);
    command
        .args(["grade", "--plaintext", "--config"])
        .arg(config);
    command
        .args(["--rubric", &format!("{COURSE}/rubric.yaml"), "--out"])
        .arg(out);
    for name in [
        "s01-complete.py",
        "s08-vectorised.R",
        "s10-template-only.py",
    ] {
        command.arg(format!("{COURSE}/submissions/{name}"));
    }
    command.output().expect("the binary runs")
}

#[test]
fn a_batch_is_graded_and_written_and_a_failure_has_no_score() {
    let arguments = ["--context", "12000"];
    let prefill = Daemon::node("prefill", &MODELS, &arguments);
    let decode = Daemon::node("decode", &MODELS, &arguments);
    let dir = tempfile::tempdir().expect("dir");
    let out = dir.path().join("results");

    let config = configure(dir.path(), &prefill, &decode, 6000);
    let output = grade(&config, &out);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    let results = std::fs::read(out.join("results.json")).expect("results.json");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let submissions = results["submissions"].as_array().expect("submissions");
    assert_eq!(submissions.len(), 3);
    for submission in &submissions[..2] {
        assert!(submission["score"].is_number(), "{submission}");
        assert_eq!(
            submission["jobs"][0]["tandem"]["mode"], "remote",
            "{submission}"
        );
    }
    assert_eq!(submissions[2]["status"], "not_attempted");
    for file in ["results.csv", "s01-complete.json", "s01-complete.md"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("s08-vectorised"), "{table}");

    // An answer that is cut has no score. One submission needs no answer, so the run goes on.
    let config = configure(dir.path(), &prefill, &decode, 20);
    let output = grade(&config, &out);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert!(
        log.contains("`s01-complete` failed") && log.contains("max_tokens"),
        "{log}"
    );
    let one = std::fs::read(out.join("s01-complete.json")).expect("result");
    let one: Value = serde_json::from_slice(&one).expect("JSON");
    assert!(one["status"] == "failed" && one["score"].is_null(), "{one}");
}

#[test]
fn without_a_node_nothing_is_graded_and_the_status_says_so() {
    let model = MODELS[0];
    let prefill = Daemon::node("prefill", &[model], &[]);
    let mut decode = Daemon::node("decode", &[model], &[]);
    decode.kill();
    let dir = tempfile::tempdir().expect("dir");
    let config = configure(dir.path(), &prefill, &decode, 100);
    let output = grade(&config, &dir.path().join("results"));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for part in ["node `d`", "nothing was graded"] {
        assert!(log.contains(part), "`{part}` is not in {log}");
    }
    assert!(!dir.path().join("results").exists());
}
