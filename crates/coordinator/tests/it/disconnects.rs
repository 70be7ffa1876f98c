//! Clients that go away, queues, and the end of the coordinator.

use std::time::Duration;

use serde_json::json;
use tandem_proto::PrefillEvent;

use crate::fake::FakeNode;
use crate::rig::{Rig, Sse, config, error_of, text_of, whole_of};

#[tokio::test]
async fn a_client_that_leaves_stops_both_nodes_and_frees_the_sequence() {
    for stream in [true, false] {
        let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
        // The nodes are not given up for their silence, only because the client has gone.
        let mut config = config(&[&p], &[&d]);
        config.limits.silence = Duration::from_secs(3600);
        let rig = Rig::start(config).await;
        let answer = rig.chat(json!({"stream": stream}));
        let (_, decode) = d.generate().await.accept();
        decode.open(10, true).await;
        let (_, prefill) = p.prefill_call().await.accept();
        prefill.send(&PrefillEvent::Accepted).await;
        if stream {
            let mut sse = Sse::new(answer.await.unwrap());
            sse.next().await.unwrap();
            drop(sse);
        } else {
            answer.abort();
        }
        decode.closed().await;
        prefill.closed().await;
        // The only sequence is free again.
        let answer = rig.chat(json!({"tandem": {"route": "local"}}));
        let (_, decode) = d.generate().await.accept();
        decode.open(10, false).await;
        decode.prefilled(0, 9, None).await;
        decode.say_hello().await;
        assert_eq!(whole_of(answer.await.unwrap()).await.0, "Hello");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_node_answers_stops_it_too() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let answer = rig.chat(json!({}));
    let call = d.generate().await;
    answer.abort();
    call.given_up().await;
}

/// Waits until this many requests are in the queue.
async fn queued(rig: &Rig, expected: usize) {
    loop {
        let (_, nodes) = rig.get("/v1/nodes").await;
        if nodes["queued"][0]["requests"] == expected {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn requests_wait_in_order_for_a_full_node() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let ask = |n: u32| rig.chat(json!({"seed": n, "stream": n == 3}));
    let first = ask(0);
    let call = d.generate().await;
    let mut waiting = Vec::new();
    for n in 1..=4 {
        waiting.push(ask(n));
        queued(&rig, n as usize).await;
    }
    // One of those that wait goes away.
    waiting.remove(1).abort();
    queued(&rig, 3).await;
    let mut answers = vec![first];
    answers.append(&mut waiting);
    let mut call = Some(call);
    for (seed, answer) in [0, 1, 3, 4].into_iter().zip(answers) {
        let current = match call.take() {
            Some(call) => call,
            None => d.generate().await,
        };
        assert_eq!(current.request.generation.sampling.seed(), seed);
        let (_, decode) = current.accept();
        decode.open(10, false).await;
        assert!(!d.has_generate().await);
        decode.prefilled(0, 9, None).await;
        decode.say_hello().await;
        let answer = answer.await.unwrap();
        if seed == 3 {
            let (events, done) = Sse::new(answer).rest().await;
            assert!(done);
            assert_eq!(text_of(&events), "Hello");
        } else {
            assert_eq!(whole_of(answer).await.0, "Hello");
        }
    }
}

#[tokio::test]
async fn a_full_queue_is_told_with_429() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let running = rig.chat(json!({}));
    let _call = d.generate().await;
    let limit = tandem_sched::limits::MAX_QUEUED;
    let waiting: Vec<_> = (0..limit).map(|_| rig.chat(json!({}))).collect();
    queued(&rig, limit).await;
    let (status, error) = error_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (429, Some("queue_full")));
    for request in waiting {
        request.abort();
    }
    queued(&rig, 0).await;
    running.abort();
}

#[tokio::test]
async fn a_coordinator_that_stops_ends_open_answers_with_an_error() {
    let d = FakeNode::decode("d", 2).await;
    let mut config = config(&[], &[&d]);
    config.limits.shutdown = Duration::from_millis(200);
    let mut rig = Rig::start(config).await;
    let streamed = rig.chat(json!({"stream": true}));
    let (_, decode) = d.generate().await.accept();
    decode.open(10, false).await;
    let mut sse = Sse::new(streamed.await.unwrap());
    sse.next().await.unwrap();
    let whole = rig.chat(json!({}));
    let (_, other) = d.generate().await.accept();
    other.open(10, false).await;
    rig.stop();
    let (events, done) = sse.rest().await;
    assert!(!done);
    assert!(
        events[0]["error"]["message"]
            .as_str()
            .unwrap()
            .contains("stopping")
    );
    let (status, error) = error_of(whole.await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (503, Some("stopping")));
    decode.closed().await;
    other.closed().await;
    rig.task.await.unwrap().unwrap();
}
