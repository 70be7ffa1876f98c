//! Nodes that play other machines: as real processes, with real handoffs of their KV.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tandem_testkit::{Architecture, Spec};

use super::daemon::{Daemon, fixture_of};

const MODEL: &str = "qwen3-coder-30b";
/// Times that the nodes are faster than their profiles.
const SPEED: &str = "20";

fn node(profile: &str, further: &[&str]) -> Daemon {
    node_at(SPEED, profile, further)
}

fn node_at(speed: &str, profile: &str, further: &[&str]) -> Daemon {
    let engine = format!("paced:{profile}");
    let paced = [
        "--engine", &engine, "--speed", speed, "--chunk", "2048", "--ubatch", "2048",
    ];
    Daemon::node_of(&[("code", Path::new(MODEL))], &[&paced, further].concat())
}

/// A coordinator of two nodes, of which these decode.
fn serve(folder: &Path, [prefill, decode]: [&Daemon; 2], decoders: &[&str]) -> Daemon {
    let config = format!(
        "chunk = 2048\n[[node]]\nname = \"p\"\naddress = \"{}\"\n[[node]]\nname = \"d\"\naddress = \"{}\"\n\
         [[model]]\nname = \"code\"\nprefill = [\"p\"]\ndecode = {decoders:?}\n",
        prefill.address, decode.address
    );
    let path = folder.join("tandem.toml");
    std::fs::write(&path, config).expect("config");
    Daemon::serve(&path)
}

async fn ask(server: &Daemon, prompt: usize) -> Value {
    let http = reqwest::Client::new();
    let body = json!({
        "model": "code", "max_tokens": 40, "temperature": 0,
        "messages": [{"role": "user", "content": "x".repeat(prompt)}],
    });
    let url = format!("http://{}/v1/chat/completions", server.address);
    let answer = http.post(url).json(&body).send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn paced_nodes_hand_over_kv_of_the_real_size_in_the_time_of_their_profiles() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spark, mac) = (node("spark", &[]), node("m4-max", &[]));
    let server = serve(folder.path(), [&spark, &mac], &["d"]);
    // The first one pays for memory that is touched for the first time.
    ask(&server, 3000).await;
    let began = Instant::now();
    let answer = ask(&server, 5000).await;
    let took = began.elapsed().as_secs_f64();
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(text.contains("paced paced"), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let tandem = &answer["tandem"];
    assert_eq!(tandem["mode"], "remote", "{tandem}");
    // 96 KiB a token, divided by the speed; what is in the prefix cache already does not cross again.
    let bytes = tandem["handoff_bytes"].as_f64().expect("bytes");
    assert!((8e6..40e6).contains(&bytes), "{bytes}");
    // 5,000 tokens in 1.69 s and 40 in 0.49 s, divided by the speed, are the least that it can take.
    assert!(took >= (0.6 + 0.4) / 20.0, "{took}");
    let prefill = tandem["phases_ms"]["prefill"].as_f64().expect("a time");
    assert!(prefill >= 30.0, "{prefill}");
    let url = format!("http://{}/v1/nodes", server.address);
    let told = reqwest::get(url).await.expect("an answer").text().await;
    assert!(told.expect("text").contains("paced"));
}

/// The model's name stands for what was used first; the other node gets nothing, and is named.
#[tokio::test]
async fn a_paced_node_and_a_real_one_never_serve_the_same_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let mac = node("m4-max", &[]);
    let file = fixture_of(&Spec::new(Architecture::Llama));
    let sizes = ["--chunk", "2048", "--ubatch", "2048"];
    let real = Daemon::node_of(&[("code", &file)], &sizes);
    let server = serve(folder.path(), [&real, &mac], &["p", "d"]);
    let mut by = std::collections::BTreeSet::new();
    for i in 0..6 {
        let answer = ask(&server, 100 + i).await;
        assert_eq!(answer["tandem"]["mode"], "local", "{answer}");
        by.insert(answer["tandem"]["decode_node"].to_string());
    }
    assert_eq!(by.len(), 1, "{by:?}");
    let url = format!("http://{}/v1/nodes", server.address);
    let told = reqwest::get(url).await.expect("an answer").text().await;
    let told = told.expect("text");
    for architecture in ["paced", "llama"] {
        let named = format!("\"architecture\":\"{architecture}\"");
        assert!(told.contains(&named), "{told}");
    }
}

#[test]
fn what_no_profile_has_is_refused() {
    for (arguments, named) in [
        (
            ["--engine", "paced:abacus", "--model", "code=gpt-oss-120b"],
            "no machine is called `abacus`",
        ),
        (
            ["--engine", "paced:spark", "--model", "code=gpt-5"],
            "no model is called `gpt-5`",
        ),
        (
            [
                "--engine",
                "paced:m5-max",
                "--model",
                "code=qwen3-coder-30b",
            ],
            "no figures of prefill",
        ),
        (
            ["--engine", "steam", "--model", "code=gpt-oss-120b"],
            "paced:spark",
        ),
    ] {
        let mut command = std::process::Command::new(super::daemon::TANDEM);
        command.args([
            "node",
            "--role",
            "both",
            "--plaintext",
            "--listen",
            "127.0.0.1:0",
        ]);
        let refused = command.args(arguments).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(named), "{said}");
    }
}

/// Each way of a plan runs as it was predicted: never faster than the machines, and not later by what a lost place or a
/// missed wake-up would cost.
#[test]
fn ways_of_a_plan_run_as_predicted() {
    const TIMES: f64 = 4.0;
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = folder.path().join("timeline.svg");
    let mut command = std::process::Command::new(super::daemon::TANDEM);
    command.args([
        "plan",
        "--machine",
        "spark",
        "--machine",
        "m4-max",
        "--link",
        "1gbit",
    ]);
    command.args([
        "--model",
        "qwen3-coder-30b:40",
        "--prompt",
        "5000",
        "--works",
        "8",
        "--batch",
        "1",
    ]);
    command.args(["--paced", "--speed", "4", "--json", "--out"]);
    command.arg(folder.path()).arg("--svg").arg(&drawn);
    let ran = command.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    let answer: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let runs = answer["paced"]["runs"].as_array().expect("runs");
    // Two machines alone and a pair for one answer; alone, servers and a pair for the course.
    assert_eq!(runs.len(), 6, "{said}");
    for run in runs {
        let seconds = |of: &str, what: &str| run[of][what].as_f64().expect("a figure");
        let (predicted, measured) = (seconds("predicted", "end_s"), seconds("measured", "end_s"));
        assert!(measured >= predicted * 0.98, "{run}");
        // Each work of a course once waited a second.
        assert!((measured - predicted) / TIMES < 3.0, "{run}");
        let requests = run["measured_requests"].as_array().expect("requests");
        assert_eq!(Some(requests.len() as u64), run["works"].as_u64());
        assert_eq!(run["served_otherwise"], 0, "{run}");
    }
    let pair = runs
        .iter()
        .find(|run| run["way"] == "pair")
        .expect("a pair");
    // 491 MB cross a link of 117 MB/s: it is the link that the first token waits for, not the prefill.
    let first = pair["measured"]["first_token_s"].as_f64().expect("a time");
    assert!(first > 4.1, "{pair}");
    let drawn = std::fs::read_to_string(drawn).expect("a drawing");
    assert!(drawn.contains("class=\"decode\"") && drawn.contains("pair, 1 at once"));
}

#[test]
fn the_paced_demo_compares_machines_alone_servers_and_pairs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = std::process::Command::new(super::daemon::TANDEM);
    command.args(["demo", "--paced", "--speed", "50", "--works", "1", "--out"]);
    let ran = command
        .arg(folder.path())
        .output()
        .expect("the binary runs");
    let (told, said) = (
        String::from_utf8_lossy(&ran.stdout).into_owned(),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    );
    assert!(ran.status.success(), "{said}");
    for part in [
        "alone",
        "a server",
        "pair",
        "spark-2",
        "50 times",
        "timeline.svg",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(folder.path().join("timeline.svg").exists());
}

/// The link between two nodes, by the doctor and by hand.
#[test]
fn links_are_tried_and_compared_with_what_they_should_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spark, mac) = (node("spark", &[]), node("m4-max", &[]));
    let server = serve(folder.path(), [&spark, &mac], &["d"]);
    drop(server);
    let tandem = |arguments: &[&str]| {
        let mut command = std::process::Command::new(super::daemon::TANDEM);
        command
            .args(arguments)
            .env("TANDEM_DATA", folder.path().join("data"));
        let ran = command.output().expect("the binary runs");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let config = folder.path().join("tandem.toml");
    let config = config.to_str().expect("a path");
    let told = tandem(&[
        "doctor",
        "--config",
        config,
        "--plaintext",
        "--link",
        "200gbit",
    ]);
    assert!(told.contains("link `p` to `d`"), "{told}");
    assert!(told.contains("B/s there"), "{told}");
    // Nothing on a loopback of two cores is that fast.
    assert!(told.contains("slower than 200 Gbit"), "{told}");
    let told = tandem(&["probe", "--plaintext", "--to", &mac.address.to_string()]);
    assert!(told.contains("round trip"), "{told}");
}

/// The plan of a running cluster beside that of the profiles which its nodes play.
#[test]
fn a_plan_of_what_nodes_measured_is_that_of_their_profiles() {
    const TIMES: f64 = 4.0;
    let folder = tempfile::tempdir().expect("a folder");
    let node = |profile| node_at("4", profile, &["--slots", "2"]);
    let (spark, mac) = (node("spark"), node("m4-max"));
    drop(serve(folder.path(), [&spark, &mac], &["d", "p"]));
    let config = folder.path().join("tandem.toml");
    let plan = |arguments: &[&str]| -> Value {
        let mut command = std::process::Command::new(super::daemon::TANDEM);
        command.args(["plan", "--prompt", "1500", "--answer", "100", "--json"]);
        let ran = command.args(arguments).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{said}");
        serde_json::from_slice(&ran.stdout).expect("JSON")
    };
    let config = config.to_str().expect("a path");
    let explain = ["--explain", "--config", config, "--plaintext"];
    let measured = plan(&explain);
    let profiles = ["--machine", "spark", "--machine", "m4-max"];
    let known = plan(&[&profiles[..], &["--model", MODEL]].concat());
    let alone = |plan: &Value, machine: &str, times: f64| {
        let ways = plan["requests"][0]["ways"].as_array().expect("ways").iter();
        let mut ways = ways.filter(|way| way["way"] == "alone" && way["machines"][0] == machine);
        let way = ways.next().expect("alone");
        ["first_token_s", "end_s"].map(|key| way[key].as_f64().expect("a time") * times)
    };
    for (node, machine) in [("p", "spark"), ("d", "m4-max")] {
        let (found, played) = (alone(&measured, node, TIMES), alone(&known, machine, 1.0));
        for (found, played) in found.into_iter().zip(played) {
            let ratio = found / played;
            assert!((0.9..1.25).contains(&ratio), "{node}: {found} of {played}");
        }
    }
    // No course is planned with more answers at once than nodes have places.
    let batches = measured["courses"].as_array().expect("courses").iter();
    let batches: Vec<u64> = batches.filter_map(|run| run["batch"].as_u64()).collect();
    assert_eq!(batches, [1, 2], "{measured}");
    assert_eq!(measured["link"]["name"], "measured");
    let words = "what the nodes measured";
    assert_eq!(measured["figures"], words);
    // Nothing is asked a second time.
    let mut command = std::process::Command::new(super::daemon::TANDEM);
    let ran = command
        .arg("plan")
        .args(explain)
        .output()
        .expect("the binary runs");
    let (told, said) = (
        String::from_utf8_lossy(&ran.stdout).into_owned(),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    );
    assert!(!said.contains("it is asked"), "{said}");
    assert!(told.contains(words), "{told}{said}");
}
