//! Who may speak to a node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tandem_cluster::{Authority, Link, Security};
use tandem_engine::KvEngine;
use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_node::{Limits, NodeConfig, RunError};
use tandem_proto::{PrefillMode, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::it::cluster::{MODEL, PATIENCE, limits, prompt, request};

/// How long connections to the nodes here may be silent, and how long bodies may take.
const HEAD: Duration = Duration::from_secs(2);

struct Node {
    address: String,
    _stop: oneshot::Sender<()>,
}

async fn start(security: Security) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handoff = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let shutdown = async move {
            let _ = stopped.await;
        };
        tandem_node::run(
            listener,
            handoff,
            config(security),
            models(),
            || {},
            shutdown,
        )
        .await
    });
    Node {
        address,
        _stop: stop,
    }
}

fn config(security: Security) -> NodeConfig {
    NodeConfig {
        role: Role::Both,
        version: "test".into(),
        security,
        pages: super::cluster::pages(),
        limits: Limits {
            head: HEAD,
            body: HEAD,
            ..limits()
        },
    }
}

fn models() -> Vec<(String, Box<dyn KvEngine>)> {
    let engine: Box<dyn KvEngine> = Box::new(FakeEngine::new(FakeConfig::default()));
    vec![(MODEL.to_owned(), engine)]
}

fn member(authority: &Authority) -> Security {
    Security::Tls(Arc::new(authority.issue().unwrap()))
}

/// The answer to one request, head and body, over TLS.
async fn call(from: &Security, node: &Node, path: &str, body: &Value) -> (String, Value) {
    let mut link = from.connect(&node.address, PATIENCE).await.unwrap();
    let (method, body) = match body {
        Value::Null => ("GET", String::new()),
        body => ("POST", body.to_string()),
    };
    let request = format!(
        "{method} /node/v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    link.write_all(request.as_bytes()).await.unwrap();
    link.flush().await.unwrap();
    let mut answer = String::new();
    link.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn a_machine_of_the_cluster_is_told_who_the_node_is() {
    let cluster = Authority::create().unwrap();
    let (security, caller) = (member(&cluster), member(&cluster));
    let node = start(security.clone()).await;
    let (head, status) = call(&caller, &node, "status", &Value::Null).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let id = security.own_id().unwrap();
    assert_eq!(status["identity"], id.as_str());
}

#[tokio::test]
async fn nobody_else_is_answered() {
    let (cluster, other) = (Authority::create().unwrap(), Authority::create().unwrap());
    let node = start(member(&cluster)).await;
    // Silent ones, which do not hold up those that follow.
    let _silent: Vec<TcpStream> = {
        let connecting = (0..20).map(|_| TcpStream::connect(&node.address));
        let connected = futures_util::future::join_all(connecting).await;
        connected.into_iter().map(Result::unwrap).collect()
    };
    let stranger = member(&other).connect(&node.address, PATIENCE).await;
    assert!(
        stranger
            .unwrap_err()
            .to_string()
            .contains("another cluster")
    );
    let mut plain = TcpStream::connect(&node.address).await.unwrap();
    let question = b"GET /node/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n";
    plain.write_all(question).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await;
    // At most an alert of TLS, then the end.
    let _ = read.expect("the connection stays open");
    assert!(!answer.starts_with(b"HTTP"));
    let (head, _) = call(&member(&cluster), &node, "status", &Value::Null).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

/// Waits until the node has closed a connection: without a word, or with one about a body that did not come in time, where
/// the machine is so busy that the time is over first.
async fn given_way(link: &mut Link) {
    let mut told = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, link.read_to_end(&mut told));
    let _ = reading.await.expect("the connection stays open");
    let told = String::from_utf8(told).unwrap();
    assert!(
        told.is_empty() || told.contains("body did not come"),
        "{told}"
    );
}

#[tokio::test]
async fn a_thousand_silent_connections_to_the_control_port_hold_nobody_up() {
    let cluster = Authority::create().unwrap();
    for (own, caller) in [
        (member(&cluster), member(&cluster)),
        (Security::Plaintext, Security::Plaintext),
    ] {
        let node = start(own).await;
        let mut silent = VecDeque::new();
        for i in 0..1000 {
            let link = caller.connect(&node.address, PATIENCE).await;
            let mut link = link.unwrap();
            // Some begin a request and do not end it.
            let begun: &[u8] = match i % 3 {
                0 => b"GET /node/v1/st",
                1 => b"POST /node/v1/generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{",
                _ => b"",
            };
            let _ = link.write_all(begun).await;
            let _ = link.flush().await;
            silent.push_back(link);
            if i % 100 == 99 {
                let (head, _) = call(&caller, &node, "status", &Value::Null).await;
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            }
        }
        let start = std::time::Instant::now();
        for link in &mut silent {
            given_way(link).await;
        }
        assert!(start.elapsed() < 2 * HEAD + PATIENCE);
        let (head, _) = call(&caller, &node, "status", &Value::Null).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

#[tokio::test]
async fn a_ticket_is_given_only_for_a_machine_that_is_named() {
    let cluster = Authority::create().unwrap();
    let caller = member(&cluster);
    let node = start(member(&cluster)).await;
    let chunk = FakeConfig::default().microbatch_tokens;
    let ask = |peer: Option<String>| {
        let mut request = request(&prompt(20), PrefillMode::Remote, chunk);
        request.prefill_peer = peer;
        serde_json::to_value(request).unwrap()
    };
    for (peer, told) in [
        (None, "`prefill_peer` is missing"),
        (Some("me".to_owned()), "`prefill_peer`: an identity is 64"),
    ] {
        let (head, error) = call(&caller, &node, "generate", &ask(peer)).await;
        assert!(head.starts_with("HTTP/1.1 400"), "{head}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(told), "{message}");
    }
    // Without TLS nobody can be checked.
    let plain = crate::it::cluster::node(Role::Both, FakeConfig::default(), limits()).await;
    let mut named = request(&prompt(20), PrefillMode::Remote, chunk);
    named.prefill_peer = Some("a".repeat(64));
    let error = plain.generate(&named).await.err().expect("a refusal");
    assert!(error.message.contains("--plaintext"), "{error}");
}

#[tokio::test]
async fn without_tls_a_node_that_others_reach_does_not_start() {
    for (control, handoff) in [("0.0.0.0:0", "127.0.0.1:0"), ("127.0.0.1:0", "0.0.0.0:0")] {
        let control = TcpListener::bind(control).await.unwrap();
        let handoff = TcpListener::bind(handoff).await.unwrap();
        let shutdown = std::future::pending::<()>();
        let config = config(Security::Plaintext);
        let running = tandem_node::run(control, handoff, config, models(), || {}, shutdown);
        let ended = tokio::time::timeout(PATIENCE, running).await.unwrap();
        assert!(matches!(ended, Err(RunError::Security(_))), "{ended:?}");
    }
}
