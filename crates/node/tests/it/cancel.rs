//! A request that nobody waits for stops, on both nodes.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tandem_engine::fake::{CallKind, FakeConfig};
use tandem_proto::{HandoffFailed, PrefillEvent, PrefillMode, Role};

use super::cluster::{
    PATIENCE, TestNode, endless, finish, hand_over, node, opened, prompt, request,
};

/// A gate that lets calls of one kind pass one by one, as the test says, and reports each.
fn gate(
    config: &mut FakeConfig,
    kind: CallKind,
) -> (
    std::sync::mpsc::Receiver<()>,
    std::sync::mpsc::SyncSender<()>,
) {
    let (reached, at) = sync_channel(64);
    let (go, pass) = sync_channel::<()>(64);
    let pass = std::sync::Mutex::new(pass);
    config.gate = Some(Arc::new(move |call| {
        if call.kind() == kind {
            let _ = reached.send(());
            // The test may have dropped its end: then nothing is held back any more.
            let _ = pass.lock().unwrap().recv();
        }
    }));
    (at, go)
}

/// Waits until a node no longer knows a request: it has seen the closed connection.
async fn forgotten(node: &TestNode, request: &str) {
    let url = format!("{}/node/v1/requests/{request}/prefill-failed", node.url);
    let body = HandoffFailed {
        reason: "asking".into(),
    };
    let http = reqwest::Client::new();
    let wait = async {
        while http.post(&url).json(&body).send().await.unwrap().status() != 400 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the request lives on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_stops_within_one_step_when_the_coordinator_goes() {
    let mut config = FakeConfig::default();
    let (at, go) = gate(&mut config, CallKind::Decode);
    let both = node(Role::Both, config.clone(), endless()).await;
    let chunk = config.microbatch_tokens;
    let mut request = request(&prompt(4), PrefillMode::Local, chunk);
    request.generation.sampling.max_tokens = Some(config.tokens_per_sequence / 2);
    let mut events = both.generate(&request).await.unwrap();
    opened(&mut events).await;
    at.recv().unwrap();
    drop(events);
    forgotten(&both, "req-1").await;
    // Nothing is held back from here on; the step in progress ends, and no other begins.
    drop(go);
    both.clean().await;
    assert_eq!(at.try_iter().count(), 0, "steps were computed for nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_stops_within_one_chunk_when_the_coordinator_goes() {
    let mut slow = FakeConfig::default();
    let (at, go) = gate(&mut slow, CallKind::Prefill);
    let prefill = node(Role::Prefill, slow.clone(), endless()).await;
    let decode = node(Role::Decode, FakeConfig::default(), endless()).await;
    let chunk = slow.microbatch_tokens;
    let tokens = prompt(chunk * 8);
    let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    at.recv().unwrap();
    go.send(()).unwrap();
    while !matches!(sending.next().await, Some(PrefillEvent::Progress { .. })) {}
    // The second chunk has begun and is held back, and the first has arrived.
    at.recv().unwrap();
    let arrived = async {
        while decode.status().await.models[0].sequences[0].held_tokens < chunk {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, arrived)
        .await
        .expect("the first chunk is lost");
    drop(sending);
    // The decode node sees the handoff end, which the prefill node does when it stops for good.
    let answer = finish(&mut events).await;
    assert!(answer.summary.fallback.is_some(), "{answer:?}");
    assert_eq!(answer.summary.remote_tokens, chunk);
    drop(go);
    prefill.clean().await;
    decode.clean().await;
    assert_eq!(at.try_iter().count(), 0, "chunks were computed for nobody");
}

/// Longest time until both ends of a cancelled handoff have let go of it.
pub const CANCEL: std::time::Duration = std::time::Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_frees_both_ends_though_the_decoding_engine_is_busy() {
    let mut slow = FakeConfig::default();
    let (at, go) = gate(&mut slow, CallKind::Import);
    let prefill = node(Role::Prefill, FakeConfig::default(), endless()).await;
    let decode = node(Role::Decode, slow.clone(), endless()).await;
    let chunk = slow.microbatch_tokens;
    let (events, mut sending) = hand_over(&prefill, &decode, &prompt(chunk * 8), chunk).await;
    at.recv().unwrap();
    let busy = decode.handoffs().await;
    assert_eq!((busy.receiving, busy.secrets), (1, 1), "{busy:?}");
    assert!(busy.staging_bytes > 0);
    decode.until("kept", |s| s.pages == 1).await;
    let start = std::time::Instant::now();
    drop(events);
    // The engine is still in the middle of its step.
    decode.until("freed", super::cluster::is_clean).await;
    assert_eq!(decode.handoffs().await.pages, 1);
    let end = super::cluster::prefill_end(&mut sending).await;
    assert!(
        matches!(&end, PrefillEvent::Failed(e) if e.message.contains("ended")),
        "{end:?}"
    );
    prefill.idle().await;
    assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
    drop(go);
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_prefill_tells_the_decode_node_though_its_engine_is_busy() {
    let mut slow = FakeConfig::default();
    let (at, go) = gate(&mut slow, CallKind::Prefill);
    let prefill = node(Role::Prefill, slow.clone(), endless()).await;
    let decode = node(Role::Decode, FakeConfig::default(), endless()).await;
    let chunk = slow.microbatch_tokens;
    let tokens = prompt(chunk * 8);
    let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    at.recv().unwrap();
    while !matches!(sending.next().await, Some(PrefillEvent::Accepted)) {}
    let start = std::time::Instant::now();
    drop(sending);
    let answer = finish(&mut events).await;
    assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
    let reason = answer.summary.fallback.expect("fallback");
    assert!(reason.contains("coordinator has gone"), "{reason}");
    let expected = super::cluster::local_tokens(&FakeConfig::default(), &tokens, chunk).await;
    assert_eq!(answer.tokens, expected);
    decode.clean().await;
    drop(go);
    prefill.clean().await;
}
