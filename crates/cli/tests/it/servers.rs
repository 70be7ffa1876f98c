//! Servers that are no nodes, as users run them: another `tandem serve` is one, and one that changes its mind is made here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{ask, get};
use super::daemon::{Daemon, TANDEM};
use super::grade::COURSE;
use super::tiny_http::{self, Answer};

fn model(name: &str) -> String {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    models.join(name).display().to_string()
}

/// A server with the coder or the writer.
fn server(home: &Path, name: &str) -> Daemon {
    let model = format!("{name}={}", model(&format!("nano-{name}.gguf")));
    Daemon::serve_from(home, &["--model", &model, "--threads", "1", "--slots", "2"])
}

fn grade(home: &Path, arguments: &[&str]) -> (Output, PathBuf) {
    let out = home.join("results");
    let output = Command::new(TANDEM)
        .arg("grade")
        .args(arguments)
        .args([
            "--rubric",
            &format!("{COURSE}/rubric.yaml"),
            "--replace",
            "--out",
        ])
        .arg(&out)
        .arg(format!("{COURSE}/submissions"))
        .env("HOME", home)
        .env("TANDEM_DATA", home.join("data"))
        .output();
    (output.expect("the binary runs"), out)
}

/// Status and score of each submission, and which server or nodes answered for each job.
fn graded(out: &Path) -> (Vec<String>, Vec<String>) {
    let results = std::fs::read(out.join("results.json")).expect("results");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let all = results["submissions"].as_array().expect("submissions");
    let status = |one: &Value| format!("{} {} {}", one["name"], one["status"], one["score"]);
    let mut by = Vec::new();
    for job in all
        .iter()
        .flat_map(|one| one["jobs"].as_array().expect("jobs"))
    {
        let info = &job["tandem"];
        let at = |key: &str| info[key].as_str().unwrap_or("?").to_owned();
        by.push(format!(
            "{} {} {}>{}",
            at_job(job),
            at("mode"),
            at("prefill_node"),
            at("decode_node")
        ));
    }
    by.sort();
    by.dedup();
    (all.iter().map(status).collect(), by)
}

fn at_job(job: &Value) -> &str {
    job["job"].as_str().expect("a job")
}

#[tokio::test]
async fn a_course_is_graded_by_servers_alone_and_beside_a_pair() {
    let home = tempfile::tempdir().expect("dir");
    let (coder, writer) = (server(home.path(), "coder"), server(home.path(), "writer"));
    let code = format!("code=http://{}", coder.address);
    let feedback = format!("feedback=http://{}/v1", writer.address);
    let (output, out) = grade(home.path(), &["--server", &code, "--server", &feedback]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // Some of the sample course needs a person.
    assert_eq!(output.status.code(), Some(3), "{told}");
    let (alone, by) = graded(&out);
    assert_eq!(
        by,
        [
            "code_analysis server code>code",
            "feedback server feedback>feedback"
        ]
    );
    assert!(alone[0].ends_with("10.0"), "{alone:?}");
    let report = std::fs::read_to_string(out.join("s01-complete.md")).expect("a report");
    assert!(report.contains("unverified"), "{report}");

    // One job by a pair of nodes, the other by the server as it is.
    let path = PathBuf::from(model("nano-coder.gguf"));
    let p = Daemon::node_of(&[("code", &path)], &[]);
    let d = Daemon::node_of(&[("code", &path)], &[]);
    let text = format!(
        "[[node]]\nname = \"p\"\naddress = \"{}\"\n[[node]]\nname = \"d\"\naddress = \"{}\"\n\
         [[server]]\nname = \"mac\"\nurl = \"http://{}\"\nmodels = {{ feedback = \"writer\" }}\n\
         [[model]]\nname = \"code\"\nprefill = [\"p\"]\ndecode = [\"d\"]\n\
         [[model]]\nname = \"feedback\"\nservers = [\"mac\"]\n\
         [grading.code_analysis]\nmodel = \"code\"\nmax_tokens = 6000\n\
         [grading.feedback]\nmodel = \"feedback\"\nmax_tokens = 400\n",
        p.address, d.address, writer.address
    );
    let config = home.path().join("tandem.toml");
    std::fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let (output, out) = grade(home.path(), &["--plaintext", "--config", &config]);
    assert_eq!(
        output.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (mixed, by) = graded(&out);
    assert_eq!(by, ["code_analysis remote p>d", "feedback server mac>mac"]);
    // Whoever computes it, the grades are the same.
    assert_eq!(alone, mixed);
}

#[tokio::test]
async fn a_model_of_this_machine_and_a_server_answer_side_by_side() {
    let home = tempfile::tempdir().expect("dir");
    let writer = server(home.path(), "writer");
    let local = format!("code={}", model("nano-coder.gguf"));
    let remote = format!("feedback=http://{}#writer", writer.address);
    let both = Daemon::serve_from(home.path(), &["--model", &local, "--server", &remote]);
    for (name, node, mode) in [
        ("code", "here", "local"),
        ("feedback", "feedback", "server"),
    ] {
        let body = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0});
        let answer = ask(both.address, &body).await;
        assert_eq!(
            (&answer["tandem"]["decode_node"], &answer["tandem"]["mode"]),
            (&json!(node), &json!(mode))
        );
    }
    let nodes: Value = get(both.address, "v1/nodes").await;
    assert_eq!(nodes["servers"][0]["models"][0]["model"], "writer");
}

/// A server that says it has another model after so many answers, of which each takes so long.
fn fickle(after: usize, pause: Duration) -> SocketAddr {
    let answers = AtomicUsize::new(0);
    tiny_http::listen(move |asked| {
        let (status, body) = match asked.path.as_str() {
            "/v1/models" => {
                let has_changed = answers.load(Ordering::SeqCst) >= after;
                let id = if has_changed { "second" } else { "first" };
                (200, json!({"data": [{"id": id}]}))
            }
            "/v1/chat/completions" => {
                answers.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(pause);
                let message = json!({"role": "assistant", "content": "no JSON"});
                let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
                (200, json!({"choices": [choice]}))
            }
            _ => (404, json!({})),
        };
        Answer::new(status, body.to_string()).with("content-type", "application/json")
    })
}

#[test]
fn a_server_that_changes_its_model_stops_the_run() {
    let home = tempfile::tempdir().expect("dir");
    let code = format!("code=http://{}", fickle(4, Duration::from_secs(1)));
    let (output, out) = grade(home.path(), &["--server", &code]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in ["stopped", "`second`", "was `first`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!out.join("results.json").exists());
}

#[test]
fn answers_without_a_shape_give_no_score_and_one_message() {
    let home = tempfile::tempdir().expect("dir");
    let code = format!("code=http://{}", fickle(usize::MAX, Duration::ZERO));
    let (output, out) = grade(home.path(), &["--server", &code]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{told}");
    let causes: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("tandem: "))
        .collect();
    let failed = causes.iter().filter(|line| line.contains("failed")).count();
    assert_eq!(failed, 1, "{told}");
    let (statuses, _) = graded(&out);
    assert!(statuses.iter().all(|s| s.contains("null")), "{statuses:?}");
}

/// What the doctor says, as JSON, and how it ends.
fn doctor(home: &Path, arguments: &[&str]) -> (Value, Option<i32>) {
    let output = Command::new(TANDEM)
        .args(["doctor", "--json"])
        .args(arguments)
        .env("HOME", home)
        .env("TANDEM_DATA", home.join("data"))
        .output()
        .expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).expect(&told);
    (report, output.status.code())
}

/// How a check of a subject ended, and what was found.
fn check<'a>(report: &'a Value, subject: &str, what: &str) -> (&'a str, &'a str) {
    let subjects = report["subjects"].as_array().expect("subjects").iter();
    let named = |s: &&Value| {
        s["name"]
            .as_str()
            .is_some_and(|name| name.contains(subject))
    };
    let mut checks = subjects
        .filter(named)
        .flat_map(|s| s["checks"].as_array().expect("checks"));
    let check = checks.rfind(|c| c["what"] == what);
    let check = check.unwrap_or_else(|| panic!("no `{what}` of `{subject}` in {report:#}"));
    (
        check["state"].as_str().expect("a state"),
        check["found"].as_str().expect("a text"),
    )
}

#[test]
fn the_doctor_tries_what_it_is_told() {
    let home = tempfile::tempdir().expect("dir");
    let coder = server(home.path(), "coder");
    let good = format!("coder=http://{}", coder.address);
    let bad = format!("bad=http://{}", fickle(usize::MAX, Duration::ZERO));
    let local = format!("here={}", model("nano-coder.gguf"));
    let servers = [
        "--server",
        &good,
        "--server",
        &bad,
        "--server",
        "gone=http://127.0.0.1:1",
    ];
    let (report, code) = doctor(home.path(), &[&servers[..], &["--model", &local]].concat());
    assert_eq!(code, Some(4), "{report:#}");
    for (subject, what, state, found) in [
        ("model `coder` on server", "prefill", "ok", "tokens/s"),
        (
            "model `coder` on server",
            "schema",
            "ok",
            "enforced (tried)",
        ),
        ("server `coder`", "model", "ok", "unverified"),
        ("model `here` on nodes", "schema", "ok", "enforced (tried)"),
        ("node `here`", "model", "ok", "weights"),
        ("model `bad` on server", "prefill", "note", "not measured"),
        (
            "model `bad` on server",
            "schema",
            "note",
            "had not the shape",
        ),
        ("server `gone`", "reached", "fails", "cannot be reached"),
    ] {
        let (is, text) = check(&report, subject, what);
        assert!(
            is == state && text.contains(found),
            "{subject} {what}: {is} {text}"
        );
    }
}

#[test]
fn an_earlier_set_up_becomes_a_configuration_that_works() {
    let home = tempfile::tempdir().expect("dir");
    let (coder, writer) = (server(home.path(), "coder"), server(home.path(), "writer"));
    let machine = |daemon: &Daemon, purpose: &str| {
        let port = daemon.address.port();
        json!({"ip": "127.0.0.1", "port": port, "model": "org/other", "purpose": purpose, "max_tokens": 1500, "temperature": 0.0})
    };
    let old = json!({"distributed_mode": true, "mac_2": machine(&coder, "code_analysis"),
        "mac_1": machine(&writer, "feedback_generation"), "urls": {"qwen_server": "http://192.0.2.1:1"}});
    let path = home.path().join("distributed_config.json");
    std::fs::write(&path, old.to_string()).expect("written");
    let import = |further: &[&str]| {
        let mut command = Command::new(TANDEM);
        command.arg("import").arg(&path).args(further);
        command.output().expect("the binary runs")
    };
    let output = import(&[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("urls.qwen_server"),
        "{told}"
    );
    let made = home.path().join("tandem.toml");
    let text = std::fs::read_to_string(&made).expect("a configuration");
    assert!(
        text.contains("dialect = \"openai\"") && text.contains("by its own account"),
        "{text}"
    );
    assert!(!import(&[]).status.success(), "it is there already");
    assert!(import(&["--replace"]).status.success());
    let made = made.display().to_string();
    let (output, out) = grade(home.path(), &["--config", &made]);
    assert_eq!(
        output.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, by) = graded(&out);
    assert_eq!(
        by,
        [
            "code_analysis server mac_2>mac_2",
            "feedback server mac_1>mac_1"
        ]
    );
}
