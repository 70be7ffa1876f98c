//! Processes that are told to stop: what runs is finished, what is new goes elsewhere or comes later.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tandem_testkit::Architecture;
use tokio::task::JoinHandle;

use super::client::{ask, chat, http, node_status, text};
use super::daemon::{Daemon, write_config};

/// Streams on one node.
const STREAMS: usize = 14;
const MODEL: Architecture = Architecture::Llama;
/// Of an answer; long enough for a signal to come in the middle.
const TOKENS: u32 = 600;
/// Of one that would take much longer than a test.
const ENDLESS: u32 = 15_000;

fn decode(slots: &str) -> Daemon {
    Daemon::node(
        "decode",
        &[MODEL],
        &["--context", "16384", "--slots", slots],
    )
}

fn coordinator(dir: &tempfile::TempDir, nodes: &[(&str, SocketAddr)]) -> Daemon {
    let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
    Daemon::serve(&write_config(
        dir.path(),
        512,
        nodes,
        &[(MODEL, &[], &names)],
    ))
}

/// A streamed answer to its end; all that came.
fn streaming(coordinator: SocketAddr, seed: usize, tokens: u32) -> JoinHandle<String> {
    let mut body = chat(MODEL.name(), &text(40 + seed), tokens, "local");
    body["stream"] = json!(true);
    body["seed"] = json!(seed);
    tokio::spawn(async move {
        let url = format!("http://{coordinator}/v1/chat/completions");
        let answer = http().post(url).json(&body).send().await.expect("a stream");
        assert_eq!(answer.status().as_u16(), 200);
        let mut stream = answer.bytes_stream();
        let mut seen = String::new();
        while let Some(bytes) = stream.next().await {
            seen += &String::from_utf8_lossy(&bytes.expect("the stream goes on"));
        }
        seen
    })
}

/// Waits until so many sequences generate on a node.
async fn generating(node: SocketAddr, count: usize) {
    let since = Instant::now();
    while node_status(node).await.models[0].sequences.len() < count {
        assert!(since.elapsed() < Duration::from_secs(60), "never {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Status, `Retry-After` and body of a short request.
async fn short(coordinator: SocketAddr) -> (u16, bool, Value) {
    let url = format!("http://{coordinator}/v1/chat/completions");
    let body = chat(MODEL.name(), "x", 1, "local");
    let answer = http()
        .post(url)
        .json(&body)
        .send()
        .await
        .expect("an answer");
    let retry = answer.headers().contains_key("retry-after");
    (
        answer.status().as_u16(),
        retry,
        answer.json().await.expect("JSON"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_is_told_to_stop_breaks_no_stream() {
    let slots = STREAMS.to_string();
    let (first, second) = (decode(&slots), decode(&slots));
    let dir = tempfile::tempdir().expect("dir");
    let coordinator = coordinator(&dir, &[("d0", first.address), ("d1", second.address)]);
    let streams = (0..STREAMS * 2).map(|seed| streaming(coordinator.address, seed, TOKENS));
    let streams: Vec<_> = streams.collect();
    generating(first.address, STREAMS).await;
    first.signal("HUP");
    coordinator.signal("HUP");
    first.signal("TERM");
    // What is new goes to the other one, at once and when the coordinator has been told.
    for _ in 0..3 {
        let told = ask(coordinator.address, &chat(MODEL.name(), "x", 1, "local")).await;
        assert_eq!(told["tandem"]["decode_node"], "d1", "{told}");
    }
    for stream in streams {
        let seen = stream.await.expect("an answer");
        assert!(
            seen.trim_end().ends_with("data: [DONE]"),
            "{} bytes",
            seen.len()
        );
    }
    assert!(first.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_told_to_stop_finishes_its_answers_and_refuses_new_ones() {
    let node = decode("2");
    let dir = tempfile::tempdir().expect("dir");
    let coordinator = coordinator(&dir, &[("d", node.address)]);
    let stream = streaming(coordinator.address, 1, TOKENS);
    generating(node.address, 1).await;
    coordinator.signal("TERM");
    let since = Instant::now();
    let refused = loop {
        let told = short(coordinator.address).await;
        // The signal may not have come yet.
        if told.0 != 200 {
            break told;
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it does not drain"
        );
    };
    assert_eq!((refused.0, refused.1), (503, true), "{}", refused.2);
    assert_eq!(refused.2["error"]["code"], "stopping");
    let seen = stream.await.expect("an answer");
    assert!(
        seen.trim_end().ends_with("data: [DONE]"),
        "{} bytes",
        seen.len()
    );
    assert!(coordinator.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_node_at_once() {
    let node = decode("1");
    let dir = tempfile::tempdir().expect("dir");
    let coordinator = coordinator(&dir, &[("d", node.address)]);
    let stream = streaming(coordinator.address, 1, ENDLESS);
    generating(node.address, 1).await;
    node.signal("TERM");
    let since = Instant::now();
    while !node_status(node.address).await.draining {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it does not drain"
        );
    }
    // The only node takes nothing new, whether the coordinator knows or is told so.
    let (status, retry, body) = short(coordinator.address).await;
    assert_eq!((status, retry), (503, true), "{body}");
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(130));
    let seen = stream.await.expect("an answer");
    assert!(!seen.contains("[DONE]"), "{} bytes", seen.len());
}
