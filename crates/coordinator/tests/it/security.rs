//! Who the coordinator speaks to, and what it tells nodes about each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tandem_cluster::{Authority, PeerId, Public, Security};
use tandem_coordinator::{Config, CoordinatorError, run};
use tandem_proto::{PrefillEvent, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake::{FakeNode, status};
use crate::rig::{Rig, config, whole_of};

fn member(authority: &Authority) -> Security {
    Security::Tls(Arc::new(authority.issue().unwrap()))
}

/// A node that tells the identity it has.
async fn node(name: &str, role: Role, authority: &Authority) -> (FakeNode, PeerId) {
    let security = member(authority);
    let id = security.own_id().unwrap();
    let mut told = status(role, 1, "t");
    told.identity = Some(id.to_string());
    (FakeNode::start_as(name, told, security).await, id)
}

/// Why the only model cannot be served.
async fn reasons(config: Config, security: Security) -> String {
    let rig = Rig::start_as(config, security).await;
    let (code, health) = rig.get("/health").await;
    assert_eq!(code, 503, "{health}");
    health["reasons"].to_string()
}

#[tokio::test]
async fn both_ends_of_a_handoff_are_told_who_the_other_is() {
    let cluster = Authority::create().unwrap();
    let (p, prefill_id) = node("p", Role::Prefill, &cluster).await;
    let (d, decode_id) = node("d", Role::Decode, &cluster).await;
    let mut config = config(&[&p], &[&d]);
    // One is pinned, the other is not.
    config.nodes[1].identity = Some(decode_id.to_string());
    let rig = Rig::start_as(config, member(&cluster)).await;
    let answer = rig.chat(json!({}));
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prefill_peer, Some(prefill_id.to_string()));
    decode.open(10, true).await;
    let (asked, prefill) = p.prefill_call().await.accept();
    assert_eq!(asked.target_peer, Some(decode_id.to_string()));
    prefill.send(&PrefillEvent::Accepted).await;
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.token(7, "Hello").await;
    decode.done(1).await;
    let (text, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!((text.as_str(), info.mode.as_str()), ("Hello", "remote"));
}

#[tokio::test]
async fn without_tls_nobody_is_named() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let _answer = rig.chat(json!({}));
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prefill_peer, None);
    decode.open(10, true).await;
    let (asked, _prefill) = p.prefill_call().await.accept();
    assert_eq!(asked.target_peer, None);
}

#[tokio::test]
async fn a_node_that_is_not_who_it_should_be_is_not_used() {
    let (cluster, other) = (Authority::create().unwrap(), Authority::create().unwrap());
    // Of another cluster.
    let (d, _) = node("d", Role::Decode, &other).await;
    let told = reasons(config(&[], &[&d]), member(&cluster)).await;
    assert!(told.contains("another cluster"), "{told}");

    // Another machine of the cluster than the configuration names.
    let (d, found) = node("d", Role::Decode, &cluster).await;
    let expected = member(&cluster).own_id().unwrap();
    let mut pinned = config(&[], &[&d]);
    pinned.nodes[0].identity = Some(expected.to_string());
    let told = reasons(pinned, member(&cluster)).await;
    let both = [expected.as_str(), found.as_str()];
    assert!(both.iter().all(|id| told.contains(id)), "{told}");

    // One that says that it is another machine than it proves to be.
    let mut lying = status(Role::Decode, 1, "t");
    lying.identity = Some(expected.to_string());
    let d = FakeNode::start_as("d", lying, member(&cluster)).await;
    let told = reasons(config(&[], &[&d]), member(&cluster)).await;
    assert!(told.contains("than its certificate"), "{told}");

    // One without TLS, and one with TLS for a coordinator without.
    let d = FakeNode::decode("d", 1).await;
    let told = reasons(config(&[], &[&d]), member(&cluster)).await;
    assert!(told.contains("does not speak TLS"), "{told}");
    let (d, _) = node("d", Role::Decode, &cluster).await;
    reasons(config(&[], &[&d]), Security::Plaintext).await;
}

#[tokio::test]
async fn without_tls_only_clients_on_this_machine_are_listened_to() {
    let d = FakeNode::decode("d", 1).await;
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listeners = vec![(listener, Public::plaintext())];
    let security = Security::Plaintext;
    let running = run(
        listeners,
        config(&[], &[&d]),
        security,
        std::future::pending::<()>(),
    );
    match running.await {
        Err(CoordinatorError::Listener(error)) => {
            assert!(error.to_string().contains("--tls-cert"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_tls_only_nodes_on_this_machine_are_spoken_to() {
    let d = FakeNode::decode("d", 1).await;
    let start = |config: Config| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let running = run(
            vec![(listener, Public::plaintext())],
            config,
            Security::Plaintext,
            std::future::pending::<()>(),
        );
        match running.await {
            Err(CoordinatorError::Config(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let mut elsewhere = config(&[], &[&d]);
    elsewhere.nodes[0].address = "192.0.2.1:7001".into();
    let told = start(elsewhere).await;
    assert!(told.starts_with("`node[0].address`"), "{told}");
    assert!(told.contains("tandem cluster init"), "{told}");
    let mut pinned = config(&[], &[&d]);
    pinned.nodes[0].identity = Some("a".repeat(64));
    let told = start(pinned).await;
    assert!(told.starts_with("`node[0].identity`"), "{told}");
}

/// Fails a test that hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_thousand_silent_clients_hold_nobody_up_and_disturb_no_stream() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut config = config(&[&p], &[&d]);
    config.limits.head = Duration::from_secs(1);
    config.limits.body = Duration::from_secs(1);
    let rig = Rig::start(config).await;
    let address = rig.base.strip_prefix("http://").unwrap();
    // An answer that goes on all the time.
    let answer = rig.chat(json!({}));
    let (_, decode) = d.generate().await.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    let mut silent = VecDeque::new();
    for i in 0..1000 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let begun: &[u8] = match i % 3 {
            0 => b"POST /v1/chat/comp",
            1 => b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{",
            _ => b"",
        };
        // Fails if it has given way already.
        let _ = connection.write_all(begun).await;
        silent.push_back(connection);
        if i % 100 == 99 {
            assert_eq!(rig.get("/health").await.0, 200);
        }
    }
    for connection in &mut silent {
        let mut told = Vec::new();
        let reading = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut told));
        let _ = reading.await.expect("the connection stays open");
        let told = String::from_utf8(told).unwrap();
        assert!(
            told.is_empty() || told.starts_with("HTTP/1.1 408"),
            "{told}"
        );
    }
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.token(7, "Hello").await;
    decode.done(1).await;
    assert_eq!(whole_of(answer.await.unwrap()).await.0, "Hello");
}
