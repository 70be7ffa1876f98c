//! Pairs of other engines, each half made here as its contract says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tandem_coordinator::{Dialect, PairConfig, PairKind, ServerConfig};

use crate::fake_server::{End, FakeServer, Reply, events, says};
use crate::rig::{Rig, Sse, error_of, whole_of};
use crate::servers::served;

fn pair(kind: PairKind, prefill: &[&FakeServer], decode: &FakeServer) -> ServerConfig {
    let mut config = decode.config("rack");
    config.silence = Some(5);
    config.dialect = Some(Dialect::OpenAi);
    config.pair = Some(PairConfig {
        kind,
        prefill: prefill
            .iter()
            .map(|server| server.url.clone() + "/v1")
            .collect(),
        bootstrap_port: None,
        from_tokens: None,
    });
    config
}

async fn rig(kind: PairKind, prefill: &[&FakeServer], decode: &FakeServer) -> Rig {
    Rig::start(served(vec![pair(kind, prefill, decode)])).await
}

fn long(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "word ".repeat(200)}], "max_tokens": 7,
        "kv_transfer_params": {"remote_host": "192.0.2.1"}, "bootstrap_room": 3});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

/// What the first leg returns: with a number that no type of ours holds, and in its own order.
const RETURNED: &str = r#"{"remote_block_ids":[["DUMMY_ID"]],"do_remote_prefill":true,"z":123456789012345678901234567890,"remote_engine_id":"e","a":1.10}"#;

#[tokio::test]
async fn vllm_is_asked_one_after_the_other_and_what_is_returned_stays_as_it_is() {
    let prefill = FakeServer::openai(|_| {
        Reply::Text(format!(
            "{{\"choices\": [], \"kv_transfer_params\": {RETURNED}}}"
        ))
    })
    .await;
    let decode = FakeServer::openai(|_| says("Hello")).await;
    let rig = rig(PairKind::Vllm, &[&prefill], &decode).await;
    let mut sse = Sse::new(
        rig.chat(long(json!({"stream": true, "min_tokens": 2,
            "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"})))
        .await
        .unwrap(),
    );
    let (events, done) = sse.rest().await;
    assert!(done);
    let info = &events.last().unwrap()["tandem"];
    assert_eq!(info["server"]["path"], "pd");
    assert_eq!(
        info["ignored"],
        json!(["kv_transfer_params", "bootstrap_room"])
    );
    let (first, second) = (
        &prefill.asked("completions")[0],
        &decode.asked("completions")[0],
    );
    assert_eq!(first.body["stream"], false);
    assert_eq!(first.body["max_tokens"], 1);
    assert_eq!(
        first.body["kv_transfer_params"],
        json!({"do_remote_decode": true, "do_remote_prefill": false})
    );
    assert!(first.body["min_tokens"].is_null() && first.body["stream_options"].is_null());
    // The tools are part of the prompt; the call is made where the answer is.
    assert_eq!(first.body["tools"], second.body["tools"]);
    let choices = (&first.body["tool_choice"], &second.body["tool_choice"]);
    assert_eq!(choices, (&json!("auto"), &json!("required")));
    assert!(
        second
            .text
            .ends_with(&format!(",\"kv_transfer_params\":{RETURNED}}}")),
        "{}",
        second.text
    );
    assert_eq!(
        (&second.body["max_tokens"], &second.body["min_tokens"]),
        (&json!(7), &json!(2))
    );
    assert_eq!(first.id, second.id);
    assert!(first.id.as_ref().is_some_and(|id| id.starts_with("req-")));
}

#[tokio::test]
async fn where_nothing_is_prefilled_vllm_decodes_alone_and_says_why() {
    for (reply, part) in [
        (Reply::Json(500, json!({"error": "x"})), "status 500"),
        (
            Reply::Json(200, json!({"choices": []})),
            "returned no `kv_transfer_params`",
        ),
        (
            Reply::Json(200, json!({"kv_transfer_params": null})),
            "returned no `kv_transfer_params`",
        ),
        (Reply::Text("oops".into()), "no JSON"),
        (Reply::Json(503, json!({})), "status 503"),
    ] {
        let reply = std::sync::Mutex::new(Some(reply));
        let tries = AtomicUsize::new(0);
        let prefill = FakeServer::openai(move |_| {
            tries.fetch_add(1, Ordering::SeqCst);
            let mut reply = reply.lock().unwrap();
            match &*reply {
                // It is asked once more where somebody between may have failed.
                Some(Reply::Json(503, _)) => Reply::Json(503, json!({})),
                _ => reply.take().unwrap(),
            }
        })
        .await;
        let decode = FakeServer::openai(|_| says("Hello")).await;
        let rig = rig(PairKind::Vllm, &[&prefill], &decode).await;
        let (text, info) = whole_of(rig.chat(long(json!({}))).await.unwrap()).await;
        assert_eq!(text, "Hello");
        assert_eq!(info.server.unwrap().path.as_deref(), Some("fallback"));
        assert!(info.events[0].contains(part), "{part}: {:?}", info.events);
        let again = if part == "status 503" { 2 } else { 1 };
        assert_eq!(prefill.asked("completions").len(), again, "{part}");
        assert!(decode.asked("completions")[0].body["kv_transfer_params"].is_null());
    }
    // A short prompt is not worth it.
    let prefill = FakeServer::openai(|_| Reply::Hang).await;
    let decode = FakeServer::openai(|_| says("Hello")).await;
    let rig = rig(PairKind::Vllm, &[&prefill], &decode).await;
    let (_, info) = whole_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(info.server.unwrap().path.as_deref(), Some("local"));
    let nodes = rig.get("/v1/nodes").await.1;
    assert_eq!(
        nodes["servers"][0]["paths"],
        json!({"pd": 0, "local": 1, "fallback": 0})
    );
}

#[tokio::test]
async fn both_halves_of_sglang_meet_in_a_room() {
    let prefill = FakeServer::openai(|_| says("dropped")).await;
    let decode = FakeServer::openai(|_| says("Hello")).await;
    let rig = rig(PairKind::Sglang, &[&prefill], &decode).await;
    let mut rooms = Vec::new();
    for _ in 0..3 {
        let (text, info) = whole_of(rig.chat(long(json!({}))).await.unwrap()).await;
        assert_eq!(
            (&*text, info.server.unwrap().path.as_deref()),
            ("Hello", Some("pd"))
        );
        let second = decode.asked("completions").pop().unwrap();
        let room = second.body["bootstrap_room"].as_u64().unwrap();
        assert!(i64::try_from(room).is_ok() && !rooms.contains(&room));
        rooms.push(room);
        assert_eq!(
            (
                &second.body["bootstrap_host"],
                &second.body["bootstrap_port"]
            ),
            (&json!("127.0.0.1"), &json!(8998))
        );
        let first = loop {
            let asked = prefill.asked("completions");
            if asked.len() == rooms.len() {
                break asked.into_iter().last().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // The same body, to the last byte, and the same id.
        assert_eq!((&first.text, &first.id), (&second.text, &second.id));
    }
}

#[tokio::test]
async fn the_end_of_one_half_of_sglang_ends_the_other_one_way_only() {
    // A prefill that fails ends the decode, which would wait for ever.
    let prefill = FakeServer::openai(|_| Reply::Json(500, json!({"error": "no memory"}))).await;
    let decode = FakeServer::openai(|_| {
        let pieces = vec![": waiting\n\n".to_owned()];
        Reply::Pieces("text/event-stream", pieces, End::Silent)
    })
    .await;
    let failing = rig(PairKind::Sglang, &[&prefill], &decode).await;
    let answer = tokio::time::timeout(Duration::from_secs(4), failing.chat(long(json!({}))));
    let (status, error) = error_of(answer.await.expect("before its time-out").unwrap()).await;
    assert_eq!(status, 502);
    assert!(
        error
            .message
            .contains("its engine that prefills answered with status 500"),
        "{error:?}"
    );
    tokio::time::timeout(Duration::from_secs(4), decode.idle())
        .await
        .expect("closed");

    // A decode that ends does not end the prefill, which others may need.
    let prefill = FakeServer::openai(|_| {
        let pieces = events("late");
        Reply::Slow(pieces, Duration::from_millis(200))
    })
    .await;
    let decode = FakeServer::openai(|_| says("Hello")).await;
    let early = rig(PairKind::Sglang, &[&prefill], &decode).await;
    let (text, _) = whole_of(early.chat(long(json!({}))).await.unwrap()).await;
    assert_eq!(text, "Hello");
    tokio::time::timeout(Duration::from_secs(4), prefill.idle())
        .await
        .expect("read to its end");
    assert_eq!(prefill.finished(), 1);
}

#[tokio::test]
async fn llm_d_is_told_in_one_header() {
    let (a, b) = (
        FakeServer::openai(|_| Reply::Hang).await,
        FakeServer::openai(|_| Reply::Hang).await,
    );
    let decode = FakeServer::openai(|_| says("Hello")).await;
    let rig = rig(PairKind::LlmD, &[&a, &b], &decode).await;
    for _ in 0..2 {
        let (_, info) = whole_of(rig.chat(long(json!({}))).await.unwrap()).await;
        assert_eq!(info.server.unwrap().path.as_deref(), Some("pd"));
    }
    let asked = decode.asked("completions");
    let prefillers: Vec<_> = asked.iter().map(|a| a.prefiller.clone().unwrap()).collect();
    let expected = [&a, &b].map(|server| server.url.replace("http://", ""));
    assert_eq!(prefillers, expected);
    let (_, info) = whole_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(info.server.unwrap().path.as_deref(), Some("local"));
    assert_eq!(decode.asked("completions")[2].prefiller, None);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_by_the_half_that_decodes() {
    let wrong = |_: &_| {
        Reply::Json(
            400,
            json!({"error": {"message": "maximum context length is 3 tokens"}}),
        )
    };
    let prefill = FakeServer::openai(wrong).await;
    let decode = FakeServer::openai(move |_| {
        std::thread::sleep(Duration::from_millis(100));
        Reply::Json(
            400,
            json!({"error": {"message": "maximum context length is 3 tokens"}}),
        )
    })
    .await;
    let rig = rig(PairKind::Sglang, &[&prefill], &decode).await;
    let (status, error) = error_of(rig.chat(long(json!({}))).await.unwrap()).await;
    assert_eq!(
        (status, error.code.as_deref()),
        (400, Some("context_length_exceeded")),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_engine_that_failed_to_prefill_is_avoided_for_a_while() {
    let bad = FakeServer::openai(|_| Reply::Json(500, json!({"error": "x"}))).await;
    let good = FakeServer::openai(|_| says("dropped")).await;
    let decode = FakeServer::openai(|_| {
        let pieces = events("Hello");
        Reply::Slow(pieces, Duration::from_millis(50))
    })
    .await;
    let rig = rig(PairKind::Sglang, &[&bad, &good], &decode).await;
    assert_eq!(rig.chat(long(json!({}))).await.unwrap().status(), 502);
    for _ in 0..3 {
        whole_of(rig.chat(long(json!({}))).await.unwrap()).await;
    }
    assert_eq!(bad.asked("completions").len(), 1);
}

#[tokio::test]
async fn a_client_that_goes_ends_both_halves() {
    let silent = |_: &_| {
        let pieces = vec![": waiting\n\n".to_owned()];
        Reply::Pieces("text/event-stream", pieces, End::Silent)
    };
    let (prefill, decode) = (
        FakeServer::openai(silent).await,
        FakeServer::openai(silent).await,
    );
    let rig = rig(PairKind::Sglang, &[&prefill], &decode).await;
    let asking = rig.chat(long(json!({"stream": true})));
    while prefill.asked("completions").is_empty() || decode.asked("completions").is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    asking.abort();
    drop(asking);
    for half in [&prefill, &decode] {
        tokio::time::timeout(Duration::from_secs(4), half.idle())
            .await
            .expect("closed");
    }
}
