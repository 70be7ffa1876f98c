//! Nodes that fail: the answer still comes, or an error does, never silence.

use std::time::{Duration, Instant};

use serde_json::json;
use tandem_api::TandemInfo;
use tandem_proto::{ErrorCode, GenerateEvent, NodeError, PrefillEvent, Role};

use crate::fake::{Events, FakeNode, status};
use crate::rig::{Rig, Sse, config, error_of, text_of, whole_of};

/// How the prefill node fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    RefusesCall,
    RefusesHandoff,
    EndsEarly,
    BreaksOff,
    FallsSilent,
    TalksNonsense,
    CannotBeReached,
}

/// Runs a request whose prefill fails in this way; the reason the decode node was told and the
/// extension of the answer.
async fn fall_back(way: Way, route: &str) -> (String, TandemInfo) {
    let (mut p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut config = config(&[&p], &[&d]);
    config.limits.missed_polls = u32::MAX;
    if way == Way::FallsSilent {
        config.limits.silence = Duration::from_secs(1);
    }
    let rig = Rig::start(config).await;
    let answer = rig.chat(json!({"tandem": {"route": route}}));
    let (asked, decode) = d.generate().await.accept();
    if way == Way::CannotBeReached {
        p.stop().await;
    }
    decode.open(10, true).await;
    let held = fail(way, &p).await;
    // The decode node is alive all the time; it waits only for the coordinator to read.
    let told = loop {
        tokio::select! {
            told = d.failure() => break told,
            () = decode.send(&GenerateEvent::Beat) => {}
        }
    };
    assert_eq!(told.0, asked.request);
    if let Some(events) = held {
        events.closed().await;
    }
    decode.prefilled(0, 9, Some(&told.1)).await;
    decode.say_hello().await;
    let (text, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!(text, "Hello");
    (told.1, info)
}

/// Fails the next prefill; the stream is returned if it stays open.
async fn fail(way: Way, p: &FakeNode) -> Option<Events> {
    if way == Way::CannotBeReached {
        return None;
    }
    let call = p.prefill_call().await;
    if way == Way::RefusesCall {
        call.refuse(ErrorCode::Busy, "all sequences are in use");
        return None;
    }
    let (_, events) = call.accept();
    events.send(&PrefillEvent::Accepted).await;
    match way {
        Way::RefusesHandoff => {
            let difference = "contract field `rope` differs: ours a, theirs b";
            let error = NodeError::new(ErrorCode::Refused, difference);
            events.send(&PrefillEvent::Failed(error)).await;
        }
        Way::BreaksOff => events.break_off().await,
        Way::TalksNonsense => events.send_raw("{\"event\":\"secret\"}\n").await,
        Way::FallsSilent => return Some(events),
        _ => {}
    }
    None
}

#[tokio::test]
async fn a_failed_prefill_costs_time_but_no_answer() {
    let table = [
        (Way::RefusesCall, "refused: all sequences are in use"),
        (Way::RefusesHandoff, "contract field `rope` differs"),
        (Way::EndsEarly, "ended before the last event"),
        (Way::BreaksOff, "broke the connection"),
        (Way::FallsSilent, "was silent for 1 s"),
        (Way::TalksNonsense, "sent a line that is no event"),
        (Way::CannotBeReached, "cannot be reached"),
    ];
    for (way, expected) in table {
        for route in ["auto", "remote"] {
            let (told, info) = fall_back(way, route).await;
            assert!(told.contains("prefill node `p`"), "{way:?}: {told}");
            assert!(told.contains(expected), "{way:?}: {told}");
            assert!(!told.contains("secret"), "{told}");
            assert!(info.events[0].contains(expected), "{:?}", info.events);
            assert!(info.events[1].contains("prefilled 9 tokens itself"));
            assert_eq!(
                (&*info.mode, &*info.prefill_node),
                ("local", "d"),
                "{way:?}"
            );
            assert_eq!(info.phases_ms.prefill, 30.0);
        }
    }
}

#[tokio::test]
async fn a_prefill_node_that_never_tells_its_times_does_not_hold_the_answer() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut config = config(&[&p], &[&d]);
    config.limits.prefill_report = Duration::from_millis(5);
    let rig = Rig::start(config).await;
    let answer = rig.chat(json!({}));
    let (_, decode) = d.generate().await.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    decode.prefilled(9, 0, None).await;
    decode.say_hello().await;
    let (text, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!((&*text, &*info.mode), ("Hello", "remote"));
    assert!(
        info.events[0].contains("had not told its times"),
        "{:?}",
        info.events
    );
    prefill.closed().await;
}

#[tokio::test]
async fn a_contract_that_differs_is_told_before_anything_moves() {
    let p = FakeNode::start("p", status(Role::Prefill, 8, "other")).await;
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[&p], &[&d])).await;
    for route in ["remote", "auto"] {
        let answer = rig.chat(json!({"tandem": {"route": route}}));
        answer_locally(&d).await;
        let (_, info) = whole_of(answer.await.unwrap()).await;
        assert_eq!(info.mode, "local");
        let told = "contract field `tokenizer` differs";
        assert!(info.events[0].contains(told), "{:?}", info.events);
    }
}

/// A coordinator in front of two decode nodes that have room for one sequence each.
async fn two_nodes() -> (FakeNode, FakeNode, Rig) {
    let (d0, d1) = (
        FakeNode::decode("d0", 1).await,
        FakeNode::decode("d1", 1).await,
    );
    let rig = Rig::start(config(&[], &[&d0, &d1])).await;
    (d0, d1, rig)
}

/// The node's next request, opened for a prefill by the node itself.
async fn open_locally(node: &FakeNode) -> Events {
    let (_, decode) = node.generate().await.accept();
    decode.open(10, false).await;
    decode
}

/// The same, prefilled.
async fn prefill_locally(node: &FakeNode) -> Events {
    let decode = open_locally(node).await;
    decode.prefilled(0, 9, None).await;
    decode
}

/// Lets the node answer a local request.
async fn answer_locally(node: &FakeNode) {
    prefill_locally(node).await.say_hello().await;
}

#[tokio::test]
async fn a_decode_node_lost_before_any_text_is_replaced() {
    let (d0, d1, rig) = two_nodes().await;
    let answer = rig.chat(json!({"stream": true, "tandem": {"return_tokens": true}}));
    let decode = open_locally(&d0).await;
    let mut sse = Sse::new(answer.await.unwrap());
    assert_eq!(sse.json().await["choices"][0]["delta"]["role"], "assistant");
    decode.prefilled(0, 9, None).await;
    // A token without certain text has not reached the client.
    decode.token(1, "").await;
    decode.break_off().await;
    answer_locally(&d1).await;
    let (events, done) = sse.rest().await;
    assert!(done);
    assert_eq!(text_of(&events), "Hello");
    // The role is not told again.
    let role = |e: &serde_json::Value| e["choices"][0]["delta"]["role"].is_string();
    assert!(!events.iter().any(role));
    let info = events.last().unwrap()["tandem"].clone();
    let info: TandemInfo = serde_json::from_value(info).unwrap();
    assert_eq!((&*info.mode, &*info.decode_node), ("local", "d1"));
    assert_eq!(info.tokens, Some(vec![7, 8]));
    let event = &info.events[0];
    assert!(
        event.contains("decode node `d0` broke the connection"),
        "{event}"
    );
}

#[tokio::test]
async fn a_whole_answer_starts_over_even_after_text() {
    let (d0, d1, rig) = two_nodes().await;
    let answer = rig.chat(json!({}));
    let decode = prefill_locally(&d0).await;
    decode.token(1, "Never ").await;
    drop(decode);
    answer_locally(&d1).await;
    let (text, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!(text, "Hello");
    assert!(info.events[0].contains("ended before the last event"));
}

#[tokio::test]
async fn a_decode_node_lost_after_text_ends_the_stream_with_an_error() {
    let (d0, d1, rig) = two_nodes().await;
    let answer = rig.chat(json!({"stream": true}));
    let decode = prefill_locally(&d0).await;
    decode.token(1, "Hel").await;
    let mut sse = Sse::new(answer.await.unwrap());
    sse.next().await.unwrap();
    assert_eq!(sse.json().await["choices"][0]["delta"]["content"], "Hel");
    decode.break_off().await;
    let (events, done) = sse.rest().await;
    assert!(!done);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["error"]["code"], "node_failed");
    assert!(!d1.has_generate().await);
}

#[tokio::test]
async fn a_lost_decode_node_without_replacement_is_an_error_with_status() {
    let mut d = FakeNode::decode("d", 1).await;
    let mut config = config(&[], &[&d]);
    config.limits.poll = Duration::from_millis(300);
    let rig = Rig::start(config).await;
    assert_eq!(rig.get("/health").await.0, 200);
    d.stop().await;
    // Its last status was good, so it is asked.
    let (status, error) = error_of(rig.chat(json!({"stream": true})).await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (503, Some("no_node")));
    let message = error.message;
    assert!(message.contains("`d` cannot be reached"), "{message}");
}

/// A request that comes while the only node starts again is answered when it has.
#[tokio::test]
async fn a_node_that_starts_again_is_waited_for_and_for_no_longer_than_allowed() {
    let mut d = FakeNode::decode("d", 2).await;
    let mut config = config(&[], &[&d]);
    config.limits.may_return = Duration::from_secs(5);
    let rig = Rig::start(config).await;
    assert_eq!(rig.get("/health").await.0, 200);
    d.stop().await;
    while rig.get("/health").await.0 == 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = rig.chat(json!({}));
    tokio::time::sleep(Duration::from_millis(100)).await;
    d.start_again().await;
    answer_locally(&d).await;
    whole_of(answer.await.unwrap()).await;
    // It goes for good.
    d.stop().await;
    let since = Instant::now();
    let (status, error) = error_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (503, Some("no_node")));
    let waited = since.elapsed();
    assert!((4..8).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test]
async fn a_silent_decode_node_is_given_up() {
    let (d0, d1) = (
        FakeNode::decode("d0", 1).await,
        FakeNode::decode("d1", 1).await,
    );
    let mut config = config(&[], &[&d0, &d1]);
    config.limits.silence = Duration::from_secs(1);
    let rig = Rig::start(config).await;
    let answer = rig.chat(json!({}));
    let silent = open_locally(&d0).await;
    silent.closed().await;
    answer_locally(&d1).await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert!(
        info.events[0].contains("was silent for 1 s"),
        "{:?}",
        info.events
    );
}

#[tokio::test]
async fn a_busy_node_is_asked_again() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let answer = rig.chat(json!({}));
    for _ in 0..3 {
        d.generate()
            .await
            .refuse(ErrorCode::Busy, "all sequences are in use");
    }
    answer_locally(&d).await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!(
        info.events,
        ["waited because a decode node was busy, 3 times"]
    );
}

#[tokio::test]
async fn a_node_that_cannot_is_replaced_and_a_request_that_cannot_is_refused() {
    let (d0, d1, rig) = two_nodes().await;
    let answer = rig.chat(json!({}));
    let decode = open_locally(&d0).await;
    let error = NodeError::new(ErrorCode::Engine, "out of memory");
    decode.send(&GenerateEvent::Failed(error)).await;
    answer_locally(&d1).await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert!(
        info.events[0].contains("out of memory"),
        "{:?}",
        info.events
    );

    let too_long = "the prompt has 2000 tokens, the context 1024";
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, param, prompt, stream) in [
        ("/v1/chat/completions", "messages", messages, false),
        ("/v1/completions", "prompt", json!("x"), true),
    ] {
        let body = json!({"model": "m", "stream": stream, param: prompt});
        let answer = rig.post(path, body);
        d0.generate()
            .await
            .refuse(ErrorCode::ContextLength, too_long);
        let (status, error) = error_of(answer.await.unwrap()).await;
        assert_eq!(status, 400);
        assert_eq!(error.code.as_deref(), Some("context_length_exceeded"));
        assert_eq!(error.param.as_deref(), Some(param));
        assert_eq!(error.message, too_long);
    }
    assert!(!d1.has_generate().await);
}

#[tokio::test]
async fn when_every_node_fails_the_error_names_the_last_one() {
    let (d0, d1, rig) = two_nodes().await;
    let answer = rig.chat(json!({}));
    d0.generate().await.refuse(ErrorCode::Engine, "broken");
    d1.generate()
        .await
        .refuse(ErrorCode::Stopping, "going down");
    let (status, error) = error_of(answer.await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (503, Some("no_node")));
    assert!(
        error
            .message
            .contains("decode node `d1` refused: going down"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn events_in_the_wrong_order_are_a_failure() {
    let (d0, d1, rig) = two_nodes().await;
    for twice in [false, true] {
        let answer = rig.chat(json!({}));
        let (_, decode) = d0.generate().await.accept();
        if twice {
            decode.open(10, false).await;
            decode.open(10, false).await;
        } else {
            decode.prefilled(0, 9, None).await;
        }
        decode.closed().await;
        answer_locally(&d1).await;
        let (_, info) = whole_of(answer.await.unwrap()).await;
        let event = &info.events[0];
        assert!(event.contains("in the wrong order"), "{event}");
        // The scheduler leaves a node alone that failed, until its next status.
        let status = serde_json::to_value(status(Role::Decode, 1, "t")).unwrap();
        d0.become_status(status).await;
    }
}

/// Three nodes of which each that gets the request dies of it: with or without having opened it.
async fn three_nodes() -> ([FakeNode; 3], Rig) {
    let nodes = [
        FakeNode::decode("d0", 1).await,
        FakeNode::decode("d1", 1).await,
        FakeNode::decode("d2", 1).await,
    ];
    let rig = Rig::start(config(&[], &[&nodes[0], &nodes[1], &nodes[2]])).await;
    (nodes, rig)
}

/// Whichever node the next request goes to answers it.
async fn answered_by_any([d0, d1, d2]: [&FakeNode; 3]) {
    tokio::select! {
        () = answer_locally(d0) => {}
        () = answer_locally(d1) => {}
        () = answer_locally(d2) => {}
    }
}

#[tokio::test]
async fn a_request_that_kills_nodes_gets_no_third_one() {
    let ([d0, d1, d2], rig) = three_nodes().await;
    let answer = rig.chat(json!({"seed": 7}));
    for node in [&d0, &d1] {
        node.generate().await.accept().1.break_off().await;
    }
    let (status, error) = error_of(answer.await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (502, Some("node_failed")));
    // Nor later, in another form.
    let again = rig.chat(json!({"seed": 7, "stream": true}));
    let (status, error) = error_of(again.await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (400, Some("nodes_lost")));
    assert!(!d2.has_generate().await);
    // Another one is not meant.
    let other = rig.chat(json!({"seed": 8}));
    answered_by_any([&d0, &d1, &d2]).await;
    assert_eq!(other.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_body_that_kills_the_only_node_twice_is_refused() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    for _ in 0..2 {
        let answer = rig.chat(json!({}));
        d.generate().await.accept().1.break_off().await;
        let (code, error) = error_of(answer.await.unwrap()).await;
        assert_eq!((code, error.code.as_deref()), (502, Some("node_failed")));
        // It is back.
        let status = serde_json::to_value(status(Role::Decode, 1, "t")).unwrap();
        d.become_status(status).await;
    }
    let (status, error) = error_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!((status, error.code.as_deref()), (400, Some("nodes_lost")));
    assert!(!d.has_generate().await);
}

#[tokio::test]
async fn a_power_cut_outlaws_no_request() {
    let ([d0, d1, d2], rig) = three_nodes().await;
    let answer = rig.chat(json!({"stream": true}));
    let decode = open_locally(&d0).await;
    let mut sse = Sse::new(answer.await.unwrap());
    assert_eq!(sse.json().await["choices"][0]["delta"]["role"], "assistant");
    decode.break_off().await;
    open_locally(&d1).await.break_off().await;
    let (events, _) = sse.rest().await;
    assert_eq!(events.last().unwrap()["error"]["code"], "node_failed");
    assert!(!d2.has_generate().await);
    let again = rig.chat(json!({}));
    answered_by_any([&d0, &d1, &d2]).await;
    assert_eq!(again.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_schema_beyond_its_budget_is_the_requests_fault() {
    let (d0, d1, rig) = two_nodes().await;
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "string"}}});
    let error = NodeError::new(ErrorCode::SchemaBudget, "JSON schema refused: too complex");
    for begun in [false, true] {
        let answer = rig.chat(json!({"response_format": schema, "stream": true}));
        let error = error.clone();
        if begun {
            let decode = prefill_locally(&d0).await;
            decode.token(1, "Hel").await;
            decode.send(&GenerateEvent::Failed(error)).await;
            let (events, done) = Sse::new(answer.await.unwrap()).rest().await;
            assert!(!done);
            assert_eq!(events.last().unwrap()["error"]["code"], "schema_budget");
        } else {
            d0.generate().await.refuse(error.code, &error.message);
            let (status, error) = error_of(answer.await.unwrap()).await;
            assert_eq!(
                (status, error.code.as_deref()),
                (400, Some("schema_budget"))
            );
            assert_eq!(error.param.as_deref(), Some("response_format"));
        }
        assert!(!d1.has_generate().await);
    }
}
