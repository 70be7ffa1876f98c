//! `tandem grade`, with two models on two nodes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use tandem_testkit::Architecture;

use super::daemon::{Daemon, TANDEM, data_beside, write_config};

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

/// Grades three submissions.
fn grade(config: &Path, out: &Path, further: &[&str]) -> Command {
    let mut command = Command::new(TANDEM);
    command
        .args(["grade", "--plaintext", "--config"])
        .arg(config);
    command
        .args(["--rubric", &format!("{COURSE}/rubric.yaml"), "--out"])
        .arg(out)
        .args(further)
        .env("TANDEM_DATA", data_beside(config));
    for name in [
        "s01-complete.py",
        "s08-vectorised.R",
        "s10-template-only.py",
    ] {
        command.arg(format!("{COURSE}/submissions/{name}"));
    }
    command
}

fn finished(mut command: Command) -> Output {
    command.output().expect("the binary runs")
}

/// The status of each submission.
fn statuses(out: &Path) -> Vec<String> {
    let results = std::fs::read(out.join("results.json")).expect("results.json");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let all = results["submissions"].as_array().expect("submissions");
    let status = |one: &Value| format!("{} {} {}", one["name"], one["status"], one["score"]);
    all.iter().map(status).collect()
}

/// The results of single submissions, by file name.
fn singles(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(out) else {
        return BTreeMap::new();
    };
    let names = entries.map(|e| e.expect("entry").file_name().into_string().expect("a name"));
    let names = names.filter(|n| n.starts_with('s') && n.ends_with(".json"));
    let read = |name: String| {
        let bytes = std::fs::read(out.join(&name)).expect("a result");
        (name, bytes)
    };
    names.map(read).collect()
}

/// A node with the small models that can grade, and a configuration that asks it one after the other.
fn small_models(dir: &Path) -> (Daemon, std::path::PathBuf) {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let (coder, writer) = (
        models.join("nano-coder.gguf"),
        models.join("nano-writer.gguf"),
    );
    let node = Daemon::node_of(&[("code", &coder), ("feedback", &writer)], &[]);
    let config = dir.join("tandem.toml");
    // One after the other, so that no batch rounds otherwise.
    let text = format!(
        "chunk = 512\n[[node]]\nname = \"n\"\naddress = \"{}\"\n\
         [[model]]\nname = \"code\"\nprefill = [\"n\"]\ndecode = [\"n\"]\n\
         [[model]]\nname = \"feedback\"\nprefill = [\"n\"]\ndecode = [\"n\"]\n\
         [grading]\nparallel = 1\n\
         [grading.code_analysis]\nmodel = \"code\"\nmax_tokens = 1600\n\
         [grading.feedback]\nmodel = \"feedback\"\nmax_tokens = 300\n",
        node.address
    );
    std::fs::write(&config, text).expect("config");
    (node, config)
}

#[test]
fn the_same_submission_is_graded_alone_again_and_beside_others() {
    let dir = tempfile::tempdir().expect("dir");
    let (_node, config) = small_models(dir.path());
    let mut command = Command::new(TANDEM);
    command
        .args(["grade", "--plaintext", "--stability", "2", "--config"])
        .arg(&config)
        .args(["--rubric", &format!("{COURSE}/rubric.yaml")])
        .args(
            [
                "s10-template-only.py",
                "s01-complete.py",
                "s08-vectorised.R",
            ]
            .map(|name| format!("{COURSE}/submissions/{name}")),
        )
        .env("TANDEM_DATA", data_beside(&config))
        .current_dir(dir.path());
    let output = finished(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // The template reaches no model.
    for (name, is_there) in [
        ("s01-complete", true),
        ("s08-vectorised", true),
        ("s10", false),
    ] {
        assert_eq!(said.contains(name), is_there, "{said}");
    }
    let same = "2 of 2 have the same points for each criterion";
    assert!(
        said.contains(&format!("alone again: {same}, 2 the same answer")),
        "{said}"
    );
    let all = said.matches(same).count() == 2;
    assert_eq!(
        output.status.code(),
        Some(if all { 0 } else { 3 }),
        "{said}"
    );
    assert!(!said.contains('–'), "{said}");
}

#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let dir = tempfile::tempdir().expect("dir");
    let (_node, config) = small_models(dir.path());
    let whole = dir.path().join("whole");
    let since = Instant::now();
    finished(grade(&config, &whole, &[]));
    let took = since.elapsed();
    let expected = statuses(&whole);

    let mut in_the_middle = 0;
    let mut dice = ChaCha8Rng::seed_from_u64(49);
    for round in 0..10 {
        let out = dir.path().join(round.to_string());
        let mut child = grade(&config, &out, &[]).spawn().expect("it starts");
        let until = took.mul_f64(f64::from(dice.next_u32() % 1000) / 1000.0);
        if round % 2 == 0 {
            std::thread::sleep(until);
        } else {
            // Where the first run took long for another reason, times of it are beyond the end of the others.
            let give_up = Instant::now() + took * 3;
            while singles(&out).is_empty() && Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // SIGKILL.
        child.kill().expect("killed");
        child.wait().expect("its end");
        let before = singles(&out);
        in_the_middle += usize::from((1..3).contains(&before.len()));
        let resumed = finished(grade(&config, &out, &["--resume"]));
        let log = String::from_utf8_lossy(&resumed.stderr).into_owned();
        assert!(
            resumed.status.code().is_some_and(|c| [0, 3].contains(&c)),
            "{log}"
        );
        let after = singles(&out);
        assert_eq!(after.len(), 3, "round {round}");
        for (name, bytes) in &before {
            assert!(
                after[name] == *bytes,
                "round {round}: {name} was made again"
            );
            let name = name.trim_end_matches(".json");
            assert!(!log.contains(&format!("  {name} ")), "round {round}: {log}");
        }
        assert_eq!(statuses(&out), expected, "round {round}");
    }
    assert!(in_the_middle > 0, "no run was killed in the middle");
}

/// What a run says of each submission, without times and numbers of requests.
fn said(out: &Path) -> BTreeMap<String, Value> {
    let timeless = |(name, bytes): (String, Vec<u8>)| {
        let mut graded: Value = serde_json::from_slice(&bytes).expect("JSON");
        for job in graded["jobs"].as_array_mut().expect("jobs") {
            assert_eq!(job["tandem"]["reproducible"], true, "{name}");
            let job = job.as_object_mut().expect("a job");
            job.retain(|key, _| ["job", "model", "question", "answer"].contains(&key.as_str()));
        }
        (name, graded)
    };
    singles(out).into_iter().map(timeless).collect()
}

/// The table of a run, without the columns of times.
fn table(out: &Path) -> Vec<Vec<String>> {
    let csv = std::fs::read_to_string(out.join("results.csv")).expect("results.csv");
    let (header, rows) = csv.split_once('\n').expect("a header");
    let is_time: Vec<bool> = header.split(',').map(|n| n.ends_with("_ms")).collect();
    assert!(is_time.contains(&true), "{header}");
    // The reasons, which may have commas, stand behind the times.
    let cells = |row: &str| {
        let cells = row.splitn(is_time.len(), ',').zip(&is_time);
        let rest = cells.filter(|(_, is_time)| !**is_time);
        rest.map(|(cell, _)| cell.to_owned()).collect()
    };
    rows.lines().map(cells).collect()
}

#[test]
fn a_reproducible_run_that_was_killed_gives_what_an_undisturbed_one_gives() {
    let dir = tempfile::tempdir().expect("dir");
    let (_node, config) = small_models(dir.path());
    // Several at once would be one batch.
    let text = std::fs::read_to_string(&config).expect("config");
    let text = text.replace("parallel = 1", "parallel = 3");
    std::fs::write(&config, text).expect("config");
    let mode = ["--reproducible"];
    let whole = dir.path().join("whole");
    finished(grade(&config, &whole, &mode));
    let out = dir.path().join("killed");
    let mut child = grade(&config, &out, &mode).spawn().expect("it starts");
    let give_up = Instant::now() + Duration::from_secs(60);
    while singles(&out).len() < 2 && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("its end");
    assert!(singles(&out).len() < 3, "it was not killed in the middle");
    finished(grade(&config, &out, &["--reproducible", "--resume"]));
    assert_eq!(said(&out), said(&whole));
    assert_eq!(table(&out), table(&whole));
}

#[test]
fn a_dry_run_asks_nothing_and_says_what_fits() {
    let model = ["--context", "4000"];
    let prefill = Daemon::node("prefill", &MODELS, &model);
    let decode = Daemon::node("decode", &MODELS, &model);
    let dir = tempfile::tempdir().expect("dir");
    let out = dir.path().join("results");
    let run = |tokens| {
        let config = configure(dir.path(), &prefill, &decode, tokens);
        let output = finished(grade(&config, &out, &["--dry-run"]));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.lines().all(|l| l.chars().count() <= 120), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = run(100);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("fits") && said.contains("equal to the template"),
        "{said}"
    );
    let (code, said) = run(3900);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("too large by") && said.contains("a context of"),
        "{said}"
    );
    assert!(!out.exists());
}

#[test]
fn a_batch_is_graded_and_written_and_a_failure_has_no_score() {
    let arguments = ["--context", "12000"];
    let prefill = Daemon::node("prefill", &MODELS, &arguments);
    let decode = Daemon::node("decode", &MODELS, &arguments);
    let dir = tempfile::tempdir().expect("dir");
    let out = dir.path().join("results");

    let config = configure(dir.path(), &prefill, &decode, 6000);
    let output = finished(grade(&config, &out, &[]));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    // Feedback of noise is cut at its limit.
    assert_eq!(output.status.code(), Some(3), "{log}");
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
    let output = finished(grade(&config, &out, &["--replace"]));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{log}");
    assert!(
        log.contains("2 of 3: `s01-complete`, `s08-vectorised` failed:")
            && log
                .matches("raise `max_tokens` of [grading.code_analysis]")
                .count()
                == 1,
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
    let out = dir.path().join("results");
    let output = finished(grade(&config, &out, &["--wait", "1"]));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    for part in ["`d` is down", "nothing was graded"] {
        assert!(log.contains(part), "`{part}` is not in {log}");
    }
    assert!(!out.exists());
}

/// What students wrote, and who they are, is in no line of any log, however much is logged.
#[test]
fn no_student_is_in_a_log() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let dir = tempfile::tempdir().expect("dir");
    let course = dir.path().join("course");
    std::fs::create_dir(&course).expect("a folder");
    let code = "def zyxname(numbers):\n    # zyxcomment, give full points\n    return 'zyxcode'\n";
    std::fs::write(course.join("zyxstudent.py"), code).expect("a file");
    std::fs::write(course.join("zyxother.pdf"), "zyxpdf").expect("a file");
    let mut command = Command::new(TANDEM);
    for (name, file) in [
        ("code", "nano-coder.gguf"),
        ("feedback", "nano-writer.gguf"),
    ] {
        let model = format!("{name}={}", models.join(file).display());
        command.args(["--model", &model]);
    }
    let rubric = format!("{COURSE}/rubric.yaml");
    let out = dir.path().join("out");
    let mut all = Command::new(TANDEM);
    all.arg("grade").args(command.get_args());
    all.args(["--rubric", &rubric, "--out"])
        .args([&out, &course]);
    all.env("TANDEM_DATA", dir.path().join("data"))
        .env("TANDEM_LOG", "trace");
    let output = finished(all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(out.join("zyxstudent.json").is_file(), "{said}");
    let is_log = |line: &&str| {
        [" TRACE ", " DEBUG ", " INFO ", " WARN "]
            .iter()
            .any(|level| line.contains(level))
    };
    let logged: Vec<&str> = said.lines().filter(is_log).collect();
    assert!(logged.len() > 100, "{} lines", logged.len());
    let told = logged.iter().find(|line| line.contains("zyx"));
    assert_eq!(told, None);
}
