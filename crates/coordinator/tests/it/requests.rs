//! Requests that go well: what the nodes are asked and what the client gets.

use std::time::Duration;

use serde_json::json;
use tandem_proto::{
    Format, GenerateEvent, PrefillEvent, PrefillMode, Prompt, Role, SamplingParams,
};

use crate::fake::{FakeNode, HANDOFF_PORT, status};
use crate::rig::{Rig, Sse, config, text_of, whole_of};

#[tokio::test]
async fn a_streamed_chat_is_prefilled_on_one_node_and_decoded_on_another() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let answer = rig.chat(
        json!({"stream": true, "stream_options": {"include_usage": true},
        "tandem": {"return_tokens": true}}),
    );
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prefill, PrefillMode::Remote);
    assert_eq!(asked.chunk, 512);
    decode.open(10, true).await;
    let (request, prefill) = p.prefill_call().await.accept();
    assert_eq!(request.request, asked.request);
    assert_eq!(request.tokens, (0..10).collect::<Vec<u32>>());
    assert_eq!(request.target, format!("127.0.0.1:{HANDOFF_PORT}"));
    assert_eq!(
        (&*request.ticket, request.handoff, request.chunk),
        ("5ec3e7", 99, 512)
    );
    prefill.send(&PrefillEvent::Accepted).await;
    decode.send(&GenerateEvent::Beat).await;
    let progress = PrefillEvent::Progress {
        tokens: 9,
        sent_bytes: 576,
    };
    prefill.send(&progress).await;
    prefill.send(&PrefillEvent::Beat).await;
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.token(7, "Hel").await;
    decode.token(9, "").await;
    // What is certain reaches the client while the node still generates.
    let mut sse = Sse::new(answer.await.unwrap());
    let first = sse.json().await;
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(sse.json().await["choices"][0]["delta"]["content"], "Hel");
    decode.token(8, "lo").await;
    decode.done(3).await;
    let (rest, done) = sse.rest().await;
    assert!(done);
    assert_eq!(text_of(&rest), "lo");
    assert_eq!(rest[1]["choices"][0]["finish_reason"], "stop");
    let last = &rest[2];
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 10);
    assert_eq!(last["usage"]["completion_tokens"], 3);
    assert_eq!(last["usage"]["total_tokens"], 13);
    let info = &last["tandem"];
    assert_eq!(info["request_id"], asked.request.as_str());
    assert_eq!(info["tokens"], json!([7, 9, 8]));
    assert_eq!(info["events"], json!([]));
    assert!(
        rest.iter()
            .all(|e| e["id"] == first["id"] && e["model"] == "m")
    );
}

#[tokio::test]
async fn a_whole_chat_tells_nodes_phases_and_usage() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let answer = rig.chat(json!({}));
    let (_, decode) = d.generate().await.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    // The decode node may be done before the prefill node has told its times.
    decode.prefilled(9, 0, None).await;
    decode.say_hello().await;
    prefill.prefill_done().await;
    let (text, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!(text, "Hello");
    assert_eq!(
        (&*info.mode, &*info.prefill_node, &*info.decode_node),
        ("remote", "p", "d")
    );
    assert_eq!(
        (
            info.prompt_tokens,
            info.cached_tokens,
            info.generated_tokens
        ),
        (10, 0, 2)
    );
    assert_eq!(info.handoff_bytes, 576);
    let phases = info.phases_ms;
    assert_eq!(
        (phases.tokenize, phases.prefill, phases.apply),
        (1.5, 20.0, 2.5)
    );
    assert_eq!((phases.transfer, phases.exposed_transfer), (10.0, 5.0));
    assert_eq!(phases.decode, 4.5);
    assert!(phases.queue >= 0.0 && phases.first_token > phases.queue);
    assert_eq!(info.events, Vec::<String>::new());
    assert_eq!(info.tokens, None);
}

#[tokio::test]
async fn the_local_route_asks_no_prefill_node() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let answer = rig.chat(json!({"tandem": {"route": "local"}}));
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prefill, PrefillMode::Local);
    decode.open(10, false).await;
    decode.prefilled(0, 9, None).await;
    decode.say_hello().await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!((&*info.mode, &*info.prefill_node), ("local", "d"));
    assert_eq!(info.phases_ms.prefill, 30.0);
    assert_eq!(info.phases_ms.transfer, 0.0);
}

#[tokio::test]
async fn a_prompt_of_one_token_leaves_nothing_to_hand_over() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let answer = rig.chat(json!({"tandem": {"route": "remote"}}));
    let (_, decode) = d.generate().await.accept();
    decode.open(1, false).await;
    decode.prefilled(0, 0, None).await;
    decode.say_hello().await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!((&*info.mode, &*info.prefill_node), ("local", "d"));
    assert_eq!(info.handoff_bytes, 0);
}

#[tokio::test]
async fn a_completion_passes_everything_on() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let body = json!({"model": "m", "prompt": [3, 1, 4], "max_tokens": 5, "temperature": 0.5,
        "top_p": 0.25, "top_k": 40, "min_p": 0.125, "seed": 11, "stop": ["\n", "END"]});
    let answer = rig.post("/v1/completions", body);
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prompt, Prompt::Tokens(vec![3, 1, 4]));
    let expected = SamplingParams {
        max_tokens: Some(5),
        temperature: Some(0.5),
        top_p: Some(0.25),
        top_k: Some(40),
        min_p: Some(0.125),
        seed: Some(11),
        stop: vec!["\n".into(), "END".into()],
    };
    assert_eq!(asked.generation.sampling, expected);
    decode.open(3, false).await;
    decode.prefilled(0, 2, None).await;
    decode.say_hello().await;
    let answer: tandem_api::Completion = answer.await.unwrap().json().await.unwrap();
    assert_eq!(answer.object, "text_completion");
    assert_eq!(answer.choices[0].text, "Hello");
    assert_eq!(answer.usage.unwrap().total_tokens, 5);
    assert_eq!(answer.tandem.unwrap().mode, "local");
}

#[tokio::test]
async fn a_streamed_completion_carries_the_extension_in_its_last_chunk() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let body = json!({"model": "m", "prompt": "once", "stream": true});
    let answer = rig.post("/v1/completions", body);
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prompt, Prompt::Text("once".into()));
    decode.open(3, false).await;
    decode.prefilled(0, 2, None).await;
    decode.say_hello().await;
    let (events, done) = Sse::new(answer.await.unwrap()).rest().await;
    assert!(done);
    let texts: Vec<&str> = events
        .iter()
        .map(|e| e["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["Hel", "lo", ""]);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2]["tandem"]["decode_node"], "d");
    assert!(events[2].get("usage").is_none());
}

#[tokio::test]
async fn a_schema_and_all_roles_reach_the_node() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
    let answer = rig.chat(json!({
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "what?"},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}},
    }));
    let call = d.generate().await;
    let Prompt::Chat(messages) = &call.request.prompt else {
        panic!("a chat")
    };
    let roles: Vec<&str> = messages.iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    let Format::JsonSchema { json_schema } = &call.request.generation.format else {
        panic!("a schema")
    };
    // Key order is the order of generation.
    assert_eq!(json_schema.schema.to_string(), schema.to_string());
    let (_, decode) = call.accept();
    decode.open(2, false).await;
    decode.prefilled(0, 1, None).await;
    decode.say_hello().await;
    assert_eq!(answer.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_waiting_client_sees_signs_of_life() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut config = config(&[&p], &[&d]);
    config.limits.keep_alive = Duration::from_millis(5);
    let rig = Rig::start(config).await;
    let answer = rig.chat(json!({"stream": true}));
    let call = d.generate().await;
    // Before a node has taken the request on, ...
    let mut sse = Sse::new(answer.await.unwrap());
    for _ in 0..3 {
        assert_eq!(sse.raw().await.unwrap(), ": keep-alive");
    }
    let (_, decode) = call.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    // ... and while it prefills.
    assert_eq!(sse.json().await["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(sse.raw().await.unwrap(), ": keep-alive");
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.say_hello().await;
    let (events, done) = sse.rest().await;
    assert!(done);
    assert_eq!(text_of(&events), "Hello");
}

#[tokio::test]
async fn requests_are_spread_over_nodes() {
    let d0 = FakeNode::start("d0", status(Role::Both, 2, "t")).await;
    let d1 = FakeNode::start("d1", status(Role::Both, 2, "t")).await;
    let rig = Rig::start(config(&[], &[&d0, &d1])).await;
    let first = rig.chat(json!({}));
    let held = d0.generate().await;
    let second = rig.chat(json!({}));
    for (node, call, answer) in [("d1", d1.generate().await, second), ("d0", held, first)] {
        let (_, decode) = call.accept();
        decode.open(2, false).await;
        decode.prefilled(0, 1, None).await;
        decode.say_hello().await;
        let (_, info) = whole_of(answer.await.unwrap()).await;
        assert_eq!(info.decode_node, node);
    }
}
