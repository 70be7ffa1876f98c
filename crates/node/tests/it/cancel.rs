//! A request that nobody waits for stops, on both nodes.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tandem_engine::fake::{CallKind, FakeConfig};
use tandem_proto::{PrefillEvent, PrefillMode, Role};

use super::cluster::{hand_over, limits, node, opened, prompt, request};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_stops_within_one_step_when_the_coordinator_goes() {
    let mut config = FakeConfig::default();
    let (at, go) = gate(&mut config, CallKind::Decode);
    let both = node(Role::Both, config.clone(), limits()).await;
    let chunk = config.microbatch_tokens;
    let request = request(&prompt(4), PrefillMode::Local, chunk);
    let mut events = both.generate(&request).await.unwrap();
    opened(&mut events).await;
    at.recv().unwrap();
    drop(events);
    // The step in progress may end; the server must notice the closed connection before the next
    // is allowed, which the status shows by the ended request's absence.
    go.send(()).unwrap();
    drop(go);
    both.idle().await;
    let steps = at.try_iter().count();
    assert!(
        steps < 12,
        "all {steps} further steps were computed for nobody"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn both_nodes_stop_when_their_streams_are_dropped() {
    let mut slow = FakeConfig::default();
    let (at, go) = gate(&mut slow, CallKind::Prefill);
    let prefill = node(Role::Prefill, slow.clone(), limits()).await;
    let decode = node(Role::Decode, FakeConfig::default(), limits()).await;
    let chunk = slow.microbatch_tokens;
    let tokens = prompt(chunk * 8);
    let (events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    at.recv().unwrap();
    go.send(()).unwrap();
    while !matches!(sending.next().await, Some(PrefillEvent::Progress { .. })) {}
    drop(sending);
    drop(events);
    drop(go);
    prefill.idle().await;
    decode.idle().await;
}
