//! A handoff that breaks: the answer still comes, with the same tokens, and says so.

use std::time::{Duration, Instant};

use tandem_engine::fake::{CallKind, Failure, FakeConfig};
use tandem_handoff::frame::Kind;
use tandem_node::Limits;
use tandem_node::limits::MAX_RECONNECTS;
use tandem_proto::limits::MAX_GENERATED_TOKENS;
use tandem_proto::{ErrorCode, HandoffFailed, PrefillEvent, PrefillMode, Role};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::cluster::{
    Deal, PATIENCE, Reuse, SHORT, Setup, TestNode, endless, finish, hand_over, limits,
    local_tokens, node, opened, prefill_end, prompt, request,
};
use super::proxy::{Fault, Proxy};

#[tokio::test]
async fn a_prefill_that_fails_midway_costs_time_and_not_the_answer() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let chunk = config.microbatch_tokens;
        let tokens = prompt(chunk * 6 + 1);
        let expected = local_tokens(&config, &tokens, chunk).await;
        let mut broken = config.clone();
        broken.fail = Some(Failure {
            call: CallKind::Prefill,
            nth: 3,
            every: 0,
        });
        let prefill = node(Role::Prefill, broken, endless()).await;
        let decode = node(Role::Decode, config.clone(), endless()).await;
        let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
        let end = prefill_end(&mut sending).await;
        assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
        let answer = finish(&mut events).await;
        assert!(
            answer.done && answer.summary.fallback.is_some(),
            "{answer:?}"
        );
        // What came before the fault is kept; a window model cannot continue without its window.
        let kept = if config.window > 0 { 0 } else { chunk * 3 };
        assert_eq!(answer.summary.remote_tokens, kept);
        assert_eq!(answer.summary.local_tokens, chunk * 6 - kept);
        assert_eq!(answer.tokens, expected);
        prefill.clean().await;
        decode.clean().await;
    }
}

#[tokio::test]
async fn an_import_that_fails_is_made_good_by_a_local_prefill() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let tokens = prompt(chunk * 4 + 1);
    let expected = local_tokens(&config, &tokens, chunk).await;
    let mut broken = config.clone();
    broken.fail = Some(Failure {
        call: CallKind::Import,
        nth: 2,
        every: 0,
    });
    let prefill = node(Role::Prefill, config.clone(), endless()).await;
    let decode = node(Role::Decode, broken, endless()).await;
    let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    let answer = finish(&mut events).await;
    assert_eq!(answer.summary.remote_tokens, chunk * 2);
    assert_eq!(answer.tokens, expected);
    assert!(matches!(
        prefill_end(&mut sending).await,
        PrefillEvent::Failed(_)
    ));
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test]
async fn the_coordinator_can_say_that_no_kv_will_come() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let decode = node(Role::Decode, config.clone(), endless()).await;
    let tokens = prompt(chunk * 2);
    let request = request(&tokens, PrefillMode::Remote, chunk);
    let mut events = decode.generate(&request).await.unwrap();
    opened(&mut events).await.expect("ticket");
    let url = format!("{}/node/v1/requests/req-1/prefill-failed", decode.url);
    let body = HandoffFailed {
        reason: "the prefill node is gone".into(),
    };
    let response = reqwest::Client::new()
        .post(url)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 204);
    let answer = finish(&mut events).await;
    assert_eq!(
        answer.summary.fallback.as_deref(),
        Some("the prefill node is gone")
    );
    assert_eq!(answer.tokens, local_tokens(&config, &tokens, chunk).await);
    decode.clean().await;
}

#[tokio::test]
async fn an_engine_that_fails_to_decode_gives_an_error_and_frees_the_slot() {
    let config = FakeConfig {
        fail: Some(Failure {
            call: CallKind::Decode,
            nth: 2,
            every: 0,
        }),
        ..FakeConfig::default()
    };
    let both = node(Role::Both, config.clone(), limits()).await;
    let request = request(&prompt(5), PrefillMode::Local, config.microbatch_tokens);
    let answer = finish(&mut both.generate(&request).await.unwrap()).await;
    assert_eq!(answer.failed.expect("failed").code, ErrorCode::Engine);
    both.idle().await;
    let answer = finish(&mut both.generate(&request).await.unwrap()).await;
    assert!(answer.done);
    both.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_step_of_the_decoding_engine_is_not_taken_for_silence() {
    let (reached, at) = std::sync::mpsc::sync_channel(64);
    let (go, pass) = std::sync::mpsc::sync_channel::<()>(1);
    let pass = std::sync::Mutex::new(pass);
    let hold = move |call: &tandem_engine::fake::Call| {
        if call.kind() == CallKind::Import {
            let _ = reached.send(());
            let _ = pass.lock().unwrap().recv();
        }
    };
    let config = FakeConfig {
        gate: Some(std::sync::Arc::new(hold)),
        ..FakeConfig::default()
    };
    // The step lasts twice as long as silence may; beats come far more often.
    let mut short = limits();
    short.handoff_silence = std::time::Duration::from_millis(1500);
    short.handoff_beat = std::time::Duration::from_millis(20);
    let plain = FakeConfig::default();
    let prefill = node(Role::Prefill, plain.clone(), short).await;
    let decode = node(Role::Decode, config, short).await;
    let chunk = plain.microbatch_tokens;
    let tokens = prompt(chunk * 3);
    let (mut events, _sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    at.recv().unwrap();
    tokio::time::sleep(short.handoff_silence * 2).await;
    drop(go);
    let answer = finish(&mut events).await;
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, local_tokens(&plain, &tokens, chunk).await);
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_thread_that_panics_ends_the_node_with_an_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handoff = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = FakeConfig {
        gate: Some(std::sync::Arc::new(|call| {
            assert!(call.kind() != CallKind::Decode, "this engine cannot decode");
        })),
        ..FakeConfig::default()
    };
    let chunk = config.microbatch_tokens;
    let models: Vec<(String, Box<dyn tandem_engine::KvEngine>)> = vec![(
        super::cluster::MODEL.to_owned(),
        Box::new(tandem_engine::fake::FakeEngine::new(config)),
    )];
    let node_config = tandem_node::NodeConfig {
        role: Role::Both,
        version: "test".into(),
        security: tandem_cluster::Security::Plaintext,
        pages: super::cluster::pages(),
        limits: limits(),
    };
    let running = tokio::spawn(tandem_node::run(
        listener,
        handoff,
        node_config,
        models,
        || {},
        std::future::pending::<()>(),
    ));
    let body = request(&prompt(5), PrefillMode::Local, chunk);
    let url = format!("{url}/node/v1/generate");
    let _stream = reqwest::Client::new().post(url).json(&body).send().await;
    let ended = tokio::time::timeout(super::cluster::PATIENCE, running);
    let error = ended
        .await
        .expect("the node lives on")
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("engine thread"), "{error}");
}

/// Begins a request with so many bytes, over a connection with little room for its answer.
async fn begin(node: &TestNode, length: usize, body: &str) -> TcpStream {
    let address = node.url.trim_start_matches("http://").parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    // With less, packets that find no room are sent again later and later once somebody reads.
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let head = "POST /node/v1/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close";
    let request = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// All of its answer.
async fn heard(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer));
    reading.await.expect("the answer does not end").unwrap();
    answer
}

#[tokio::test]
async fn a_request_whose_body_never_ends_does_not_keep_the_node_alive() {
    let mut short = endless();
    short.stop = std::time::Duration::from_millis(100);
    let node = node(Role::Both, FakeConfig::default(), short).await;
    let _stream = begin(&node, 1000, "{").await;
    node.end().await;
}

#[tokio::test]
async fn a_request_whose_body_does_not_come_is_refused() {
    let waits = Limits {
        body: SHORT,
        ..endless()
    };
    let node = node(Role::Both, FakeConfig::default(), waits).await;
    let start = Instant::now();
    let answer = heard(begin(&node, 1000, "{").await).await;
    assert!(start.elapsed() >= SHORT);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("did not come within 0.3 s"), "{answer}");
    node.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_takes_no_event_is_given_up() {
    let config = FakeConfig {
        sequences: 1,
        tokens_per_sequence: MAX_GENERATED_TOKENS + 5,
        ..FakeConfig::default()
    };
    let waits = Limits {
        event_stall: SHORT,
        ..endless()
    };
    let node = node(Role::Both, config.clone(), waits).await;
    let mut request = request(&prompt(5), PrefillMode::Local, config.microbatch_tokens);
    let short = serde_json::to_string(&request).unwrap();
    request.generation.sampling.max_tokens = Some(MAX_GENERATED_TOKENS);
    // Nothing ends it early.
    request.generation.sampling.temperature = Some(0.0);
    let long = serde_json::to_string(&request).unwrap();
    let start = Instant::now();
    let stream = begin(&node, long.len(), &long).await;
    stream.readable().await.unwrap();
    node.clean().await;
    assert!(start.elapsed() >= SHORT);
    let done = "\"done\"";
    let next = heard(begin(&node, short.len(), &short).await).await;
    assert!(next.contains(done), "{next}");
    // What was on the way comes, and not the end.
    let answer = heard(stream).await;
    assert!(answer.contains("\"token\"") && !answer.contains(done));
    node.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_which_a_byte_comes_now_and_then_is_given_up() {
    let config = FakeConfig::default();
    let setup = |role| Setup {
        limits: Limits {
            handoff_silence: Duration::from_millis(400),
            handoff_beat: Duration::from_millis(50),
            ..endless()
        },
        ..Setup::new(role, &config)
    };
    let prefill = setup(Role::Prefill).start().await;
    let decode = setup(Role::Decode).start().await;
    let proxy = Proxy::to(decode.port).await;
    let mut deal = Deal::new(&prompt(32 * 3 + 5), 32);
    Reuse::Off.set(&mut deal.terms);
    deal.via = Some(proxy.port);
    let expected = deal.expected(&config).await;
    proxy.next(&[]);
    deal.run(&prefill, &decode).await.whole(&expected, "whole");
    let [sent, _] = proxy.frames(0);
    let (_, segment) = sent.iter().find(|(k, _)| *k == Kind::Segment).unwrap();
    // In the header, and in the rows.
    for at in [segment.start + 3, segment.start + 70] {
        proxy.next(&[Fault::Drip(at)]);
        let outcome = deal.run(&prefill, &decode).await;
        outcome.whole(&expected, "once");
        assert!(outcome.done().3 >= 1, "{outcome:?}");
    }
    // It never gets better.
    proxy.next(&[Fault::Drip(segment.start + 70); MAX_RECONNECTS as usize + 8]);
    let outcome = deal.run(&prefill, &decode).await;
    outcome.made_good(&expected, "always");
    assert_eq!(proxy.connections(), MAX_RECONNECTS as usize + 1);
    decode.settled().await;
    prefill.clean().await;
}
