//! `tandem demo`, as `make demo` calls it.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tandem_testkit::Architecture;

use super::daemon::{TANDEM, fixture, shared_dir};

/// The phases that every job tells.
const PHASES: [&str; 8] = [
    "queue",
    "tokenize",
    "prefill",
    "transfer",
    "exposed_transfer",
    "apply",
    "first_token",
    "decode",
];

fn demo() -> Command {
    let mut command = Command::new(TANDEM);
    command
        .arg("demo")
        .env("TANDEM_CACHE", shared_dir())
        // The sample course is found from here.
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    command
}

#[test]
fn both_runs_generate_the_same_tokens_and_the_summary_has_every_field() {
    let out = tempfile::tempdir().expect("dir");
    let model = |name, architecture| format!("{name}={}", fixture(architecture).display());
    let output = demo()
        .args(["--json", "--compare", "--out"])
        .arg(out.path())
        // Trained models, if the checkout has them, are not what is tested here.
        .args(["--model", &model("code", Architecture::Qwen3)])
        .args(["--model", &model("feedback", Architecture::Gemma3)])
        .output()
        .expect("the demo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let summary: Value = serde_json::from_str(&text).expect("one JSON object and nothing else");
    let submissions = summary["submissions"].as_array().expect("submissions");
    assert!(submissions.len() >= 8);
    for submission in submissions {
        check_submission(submission);
        let name = submission["name"].as_str().expect("name");
        for extension in ["json", "md"] {
            assert!(out.path().join(format!("{name}.{extension}")).is_file());
        }
    }
    assert_eq!(summary["totals"]["identical"], true, "{log}");
    assert!(summary["totals"]["wall_ms"].as_f64().expect("wall_ms") > 0.0);
    assert!(
        summary["totals"]["submissions_per_hour"]
            .as_f64()
            .expect("rate")
            > 0.0
    );
    assert!(out.path().join("results.csv").is_file());
}

fn check_submission(submission: &Value) {
    let status = submission["status"].as_str().expect("status");
    assert!(submission["max_score"].is_number(), "{submission}");
    let jobs = submission["jobs"].as_array().expect("jobs");
    if status == "not_attempted" {
        assert!(
            submission["score"].is_null() && jobs.is_empty(),
            "{submission}"
        );
        return;
    }
    assert!(submission["score"].is_number(), "{submission}");
    let names: Vec<_> = jobs
        .iter()
        .map(|j| j["job"].as_str().expect("job"))
        .collect();
    assert_eq!(names, ["code_analysis", "feedback"]);
    for (job, model) in jobs.iter().zip(["code", "feedback"]) {
        assert_eq!(job["model"], model);
        assert_eq!(job["mode"], "remote", "{job}");
        assert_eq!(job["prefill_node"], format!("{model}-prefill"));
        assert_eq!(job["decode_node"], format!("{model}-decode"));
        assert_eq!(job["identical"], true, "{job}");
        for count in ["prompt_tokens", "generated_tokens", "handoff_bytes"] {
            assert!(
                job[count].as_u64().is_some_and(|n| n > 0),
                "{count} in {job}"
            );
        }
        assert!(job["cached_tokens"].is_u64(), "{job}");
        for phase in PHASES {
            assert!(job["phases_ms"][phase].is_number(), "{phase} in {job}");
        }
        for phase in ["prefill", "first_token", "decode"] {
            let ms = job["phases_ms"][phase].as_f64();
            assert!(ms.is_some_and(|ms| ms > 0.0), "{phase} in {job}");
        }
    }
}

/// Starts the demo and waits until its four nodes are ready.
fn started(out: &std::path::Path) -> (Child, Vec<SocketAddr>, impl Sized) {
    let mut child = demo()
        .arg("--out")
        .arg(out)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the demo starts");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
    let mut nodes = Vec::new();
    while nodes.len() < 4 {
        let line = lines.next().expect("another line").expect("a line");
        if let Some((_, address)) = line.split_once("is ready at ") {
            nodes.push(address.parse().expect("an address"));
        }
    }
    (child, nodes, lines)
}

/// Waits until nothing listens there; the test's runner ends a wait that is in vain.
fn wait_until_gone(nodes: &[SocketAddr]) {
    for node in nodes {
        while TcpStream::connect(node).is_ok() {
            std::thread::yield_now();
        }
    }
}

#[cfg(unix)]
#[test]
fn told_to_stop_it_stops_everything_that_it_started() {
    for (signal, code) in [("TERM", Some(130)), ("INT", Some(130)), ("KILL", None)] {
        let out = tempfile::tempdir().expect("dir");
        let (mut child, nodes, _lines) = started(out.path());
        let sent = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
        assert_eq!(child.wait().expect("its end").code(), code, "{signal}");
        wait_until_gone(&nodes);
    }
}
