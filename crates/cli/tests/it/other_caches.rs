//! Models whose KV is not handed over, as users run them.

use std::process::{Command, Stdio};

use serde_json::Value;
use tandem_testkit::Architecture;

use super::client::{ask, chat, get, text};
use super::daemon::{Daemon, TANDEM, fixture, write_config};

#[tokio::test]
async fn they_answer_on_the_node_that_decodes_which_says_why() {
    let models = Architecture::OTHER_CACHES;
    let (p, d) = (
        Daemon::node("both", &models, &[]),
        Daemon::node("decode", &models, &[]),
    );
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", p.address), ("d", d.address)];
    let routes = models.map(|m| (m, &["p"][..], &["d"][..]));
    let coordinator = Daemon::serve(&write_config(dir.path(), 512, &nodes, &routes));
    for model in models {
        let ask = |route| {
            let body = chat(model.name(), &text(700), 8, route);
            async move { ask(coordinator.address, &body).await }
        };
        let first = ask("local").await;
        for route in ["auto", "remote"] {
            let answer = ask(route).await;
            let info = &answer["tandem"];
            assert_eq!(info["tokens"], first["tandem"]["tokens"], "{model}");
            assert!(info["tokens"].is_array(), "{info}");
            assert_eq!(info["mode"], "local", "{model}: {info}");
            assert_eq!(info["prefill_node"], "d", "{model}: {info}");
            // Nothing is reused, though it has been before.
            assert_eq!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0,
                "{answer}"
            );
            let told = info["events"].to_string();
            assert!(told.contains("is not handed over"), "{model}: {info}");
        }
    }
    let nodes: Value = get(coordinator.address, "v1/nodes").await;
    for model in nodes["data"][1]["models"].as_array().expect("models") {
        let stays = model["stays"].as_str().expect("a reason");
        assert!(stays.contains(" has "), "{stays}");
    }
}

#[test]
fn a_node_that_only_prefills_refuses_them_when_it_starts() {
    for model in Architecture::OTHER_CACHES {
        let path = fixture(model);
        let output = Command::new(TANDEM)
            .args(["node", "--role", "prefill", "--listen", "127.0.0.1:0"])
            .args(["--plaintext", "--threads", "1", "--model"])
            .arg(format!("code={}", path.display()))
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(
            told.contains("`code`") && told.contains("only prefills"),
            "{told}"
        );
    }
}
