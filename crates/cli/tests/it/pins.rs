//! The name of a model stands for one model.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_testkit::{Architecture, Spec};

use super::client::{ask, ask_any, chat, get, text};
use super::daemon::{Daemon, TANDEM, data_beside, write_config};

const MODEL: Architecture = Architecture::Llama;

fn node(seed: u64, context: &str) -> Daemon {
    let spec = Spec {
        seed,
        ..Spec::new(MODEL)
    };
    Daemon::node_with("decode", &[spec], &["--context", context])
}

fn config(dir: &Path, first: &Daemon, second: &Daemon) -> std::path::PathBuf {
    let nodes = [("d0", first.address), ("d1", second.address)];
    write_config(dir, 512, &nodes, &[(MODEL, &[], &["d0", "d1"])])
}

fn repin(config: &Path, further: &[&str]) -> Output {
    let mut command = Command::new(TANDEM);
    command.args(["cluster", "repin", MODEL.name(), "--plaintext", "--config"]);
    command.arg(config).args(further);
    command.env("TANDEM_DATA", data_beside(config));
    command.output().expect("the binary runs")
}

/// The decode nodes of some requests that are asked at once.
async fn answered_by(coordinator: &Daemon) -> Vec<String> {
    let body = chat(MODEL.name(), "x", 8, "local");
    let asked = (0..4).map(|_| ask(coordinator.address, &body));
    let answers: Vec<Value> = futures_util::future::join_all(asked).await;
    let mut nodes: Vec<String> = answers
        .iter()
        .map(|a| a["tandem"]["decode_node"].to_string())
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

#[tokio::test]
async fn a_node_with_another_model_under_the_name_gets_nothing_until_it_is_meant() {
    let (usual, second) = (node(1, "2048"), node(1, "2048"));
    let dir = tempfile::tempdir().expect("dir");
    let path = config(dir.path(), &usual, &second);
    let coordinator = Daemon::serve(&path);
    assert_eq!(answered_by(&coordinator).await, ["\"d0\"", "\"d1\""]);
    drop(coordinator);

    // The first node comes back with other weights.
    let other = node(2, "2048");
    let path = config(dir.path(), &other, &second);
    let coordinator = Daemon::serve(&path);
    assert_eq!(answered_by(&coordinator).await, ["\"d1\""]);
    let health: Value = get(coordinator.address, "health").await;
    let warnings = health["warnings"].to_string();
    assert!(
        warnings.contains("`d0` holds another model") && warnings.contains("`weights`"),
        "{health}"
    );

    let refused = repin(&path, &[]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("--node"),
        "{told}"
    );
    let meant = repin(&path, &["--node", "d0"]);
    assert!(
        meant.status.success(),
        "{}",
        String::from_utf8_lossy(&meant.stderr)
    );
    // The coordinator takes notice.
    let since = Instant::now();
    while answered_by(&coordinator).await != ["\"d0\""] {
        assert!(since.elapsed() < Duration::from_secs(30), "it does not");
    }
}

#[tokio::test]
async fn a_request_goes_to_the_node_whose_context_it_fits() {
    let (short, long) = (node(1, "1024"), node(1, "4096"));
    let dir = tempfile::tempdir().expect("dir");
    let coordinator = Daemon::serve(&config(dir.path(), &short, &long));
    for _ in 0..2 {
        let answer = ask(
            coordinator.address,
            &chat(MODEL.name(), &text(2000), 4, "local"),
        )
        .await;
        assert_eq!(answer["tandem"]["decode_node"], "d1", "{answer}");
    }
    let (status, error) = ask_any(
        coordinator.address,
        &chat(MODEL.name(), &text(5000), 4, "local"),
    )
    .await;
    assert_eq!(status, 400);
    assert_eq!(error["error"]["code"], "context_length_exceeded", "{error}");
    assert!(
        error["error"]["message"].to_string().contains("4096"),
        "{error}"
    );
}
