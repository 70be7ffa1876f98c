//! Servers that are no nodes: each dialect, what they get wrong, and what becomes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tandem_api::{ChatCompletion, FinishReason};
use tandem_coordinator::{Config, ModelConfig, Secret, ServerConfig};

use crate::fake::{FakeNode, MODEL};
use crate::fake_server::{End, FakeServer, Reply, events, says};
use crate::rig::{Rig, Sse, chat_body, config, error_of, text_of, whole_of};

/// The model with these servers only.
pub fn served(servers: Vec<ServerConfig>) -> Config {
    let mut config = Config::new(
        Vec::new(),
        vec![ModelConfig {
            name: MODEL.into(),
            prefill: Vec::new(),
            decode: Vec::new(),
            servers: servers.iter().map(|s| s.name.clone()).collect(),
            mixed_quantisation: false,
            profile: None,
        }],
    );
    config.servers = servers;
    config.limits.server_poll = Duration::from_millis(20);
    config.limits.may_return = Duration::ZERO;
    config
}

async fn rig(servers: Vec<ServerConfig>) -> Rig {
    Rig::start(served(servers)).await
}

/// An answer with thoughts, text and the call of a tool.
fn says_all() -> Reply {
    let mut pieces = events("Hello");
    let piece = |delta: Value| {
        let event = json!({"choices": [{"index": 0, "delta": delta}]});
        format!("data: {event}\n\n")
    };
    pieces.insert(0, piece(json!({"reasoning": "Hm."})));
    let function = json!({"name": "f", "arguments": "{\"a\""});
    let first = json!({"index": 0, "id": "c1", "type": "function", "function": function});
    let second = json!({"index": 0, "function": {"arguments": ": 1}"}});
    pieces.insert(2, piece(json!({"tool_calls": [first]})));
    pieces.insert(3, piece(json!({"tool_calls": [second]})));
    Reply::Pieces("text/event-stream; charset=utf-8", pieces, End::Whole)
}

#[tokio::test]
async fn a_chat_goes_on_as_it_came_and_comes_back_as_it_is() {
    let server = FakeServer::openai(|_| says_all()).await;
    let mut config = server.config("s");
    config.key = Some(Secret::new("secret\n"));
    config.url += "/v1/";
    let rig = rig(vec![config]).await;
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let asked = json!({"tools": tools, "temperature": 0.5, "repetition_penalty": 1.1, "max_tokens": 9,
        "kv_transfer_params": {"remote_host": "x"}, "bootstrap_room": 1, "tandem": {"keep": false}});
    let answer = rig.chat(asked.clone()).await.unwrap();
    let whole: ChatCompletion = answer.json().await.unwrap();
    let message = &whole.choices[0].message;
    assert_eq!(message.content.as_deref(), Some("Hello"));
    assert_eq!(message.reasoning_content.as_deref(), Some("Hm."));
    let calls = message.tool_calls.as_ref().unwrap();
    assert_eq!(
        calls[0]["function"],
        json!({"name": "f", "arguments": "{\"a\": 1}"})
    );
    let usage = whole.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (900, 5));
    let info = whole.tandem.unwrap();
    assert_eq!(
        (&*info.mode, &*info.decode_node, info.cached_tokens),
        ("server", "s", 3)
    );
    let about = info.server.unwrap();
    assert_eq!(
        (&*about.dialect, &*about.model, about.verified),
        ("openai", "theirs", false)
    );
    assert_eq!(info.ignored, ["kv_transfer_params", "bootstrap_room"]);

    let sent = server.asked("/v1/chat/completions").remove(0);
    assert_eq!(sent.key.as_deref(), Some("Bearer secret"));
    let expected = json!({"messages": [{"role": "user", "content": "hi"}], "tools": tools, "temperature": 0.5,
        "repetition_penalty": 1.1, "model": "theirs", "stream": true,
        "stream_options": {"include_usage": true}, "max_tokens": 9});
    assert_eq!(sent.body, expected);

    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let mut sse = Sse::new(rig.chat(streamed).await.unwrap());
    let (events, done) = sse.rest().await;
    assert!(done);
    let deltas: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    assert_eq!(deltas[1]["reasoning_content"], "Hm.");
    assert_eq!(deltas[2]["content"], "Hello");
    assert_eq!(deltas[4]["tool_calls"][0]["function"]["arguments"], ": 1}");
    let list = rig.get("/v1/nodes").await.1;
    let report = &list["servers"][0];
    assert_eq!(
        (&report["up"], &report["models"][0]["context"]),
        (&json!(true), &json!(4096))
    );
    assert!(!list.to_string().contains("secret"));
    assert_eq!(rig.get("/health").await.0, 200);
}

#[tokio::test]
async fn what_no_answer_could_bring_is_refused() {
    let server = FakeServer::openai(|_| says("x")).await;
    let rig = rig(vec![server.config("s")]).await;
    for (field, value) in [
        ("n", json!(2)),
        ("logprobs", json!(true)),
        ("audio", json!({})),
    ] {
        let (status, error) = error_of(rig.chat(json!({field: value})).await.unwrap()).await;
        assert_eq!((status, error.param.as_deref()), (400, Some(field)));
    }
    assert!(server.asked("completions").is_empty());
}

/// What a broken server does, and what is said of it.
type Fault = (&'static str, fn() -> Reply, &'static str);

fn hostile() -> Vec<Fault> {
    fn pieces(pieces: &[&str], end: End) -> Reply {
        let pieces = pieces.iter().map(|p| (*p).to_owned()).collect();
        Reply::Pieces("text/event-stream", pieces, end)
    }
    vec![
        ("hangs", || Reply::Hang, "was silent for 1 s"),
        (
            "is silent",
            || pieces(&[": hi\n\n"], End::Silent),
            "was silent for 1 s",
        ),
        (
            "closes",
            || pieces(&[], End::Whole),
            "before the last event",
        ),
        (
            "breaks",
            || pieces(&[": hi\n\n"], End::Broken),
            "broke the connection",
        ),
        (
            "sends no JSON",
            || pieces(&["data: {oops\n\n"], End::Whole),
            "no JSON",
        ),
        (
            "sends no object",
            || pieces(&["data: 3\n\n"], End::Whole),
            "no object",
        ),
        (
            "answers 200 with an error",
            || Reply::Json(200, json!({"error": {"message": "no memory"}})),
            "no memory",
        ),
        (
            "tells an error in an event",
            || pieces(&["data: {\"error\": \"boom\"}\n\n"], End::Whole),
            "boom",
        ),
        (
            "fails",
            || Reply::Json(500, json!({"detail": "kaput"})),
            "kaput",
        ),
        (
            "redirects",
            || Reply::Redirect("http://192.0.2.1/".into()),
            "redirects to http://192.0.2.1/",
        ),
        (
            "wants a key",
            || Reply::Json(401, json!({"error": "who?"})),
            "key_env",
        ),
        (
            "cuts the prompt",
            || {
                let usage = json!({"prompt_tokens": 512, "completion_tokens": 1});
                let choice =
                    json!({"index": 0, "message": {"content": "cut"}, "finish_reason": "stop"});
                Reply::Json(200, json!({"choices": [choice], "usage": usage}))
            },
            "it cuts prompts",
        ),
    ]
}

#[tokio::test]
async fn a_server_that_fails_is_named_or_another_one_answers() {
    let prompt = json!({"messages": [{"role": "user", "content": "word ".repeat(1200)}]});
    for (what, reply, said) in hostile() {
        let bad = FakeServer::openai(move |_| reply()).await;
        let alone = rig(vec![bad.config("bad")]).await;
        let answer = tokio::time::timeout(Duration::from_secs(10), alone.chat(prompt.clone()));
        let (status, error) = error_of(answer.await.expect(what).unwrap()).await;
        assert_eq!(status, 502, "{what}: {}", error.message);
        for part in [said, "server `bad`"] {
            assert!(error.message.contains(part), "{what}: {}", error.message);
        }
        assert!(!error.message.contains("word word"), "{what}");

        let good = FakeServer::openai(|_| says("fine")).await;
        let both = rig(vec![bad.config("bad"), good.config("good")]).await;
        let mut streamed = prompt.clone();
        streamed["stream"] = json!(true);
        if what == "cuts the prompt" {
            // That is seen at the end; what was told of it until then cannot be taken back.
            streamed["stream"] = json!(false);
            let (text, info) = whole_of(both.chat(streamed).await.unwrap()).await;
            assert_eq!((&*text, &*info.decode_node), ("fine", "good"));
            continue;
        }
        let mut sse = Sse::new(both.chat(streamed).await.unwrap());
        let (events, done) = sse.rest().await;
        assert!(done, "{what}");
        let info = &events.last().unwrap()["tandem"];
        assert_eq!(info["decode_node"], "good", "{what}");
        assert!(
            info["events"][0].as_str().unwrap().contains("`bad`"),
            "{what}: {info}"
        );
    }
}

#[tokio::test]
async fn nothing_starts_over_once_the_client_has_seen_text() {
    let bad = FakeServer::openai(|_| {
        let first = events("some").remove(0);
        Reply::Pieces("text/event-stream", vec![first], End::Broken)
    })
    .await;
    let good = FakeServer::openai(|_| says("fine")).await;
    let rig = rig(vec![bad.config("bad"), good.config("good")]).await;
    let mut sse = Sse::new(rig.chat(json!({"stream": true})).await.unwrap());
    let (events, done) = sse.rest().await;
    assert!(!done);
    assert_eq!(events[1]["choices"][0]["delta"]["content"], "some");
    assert!(
        events[2]["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`bad`")
    );
    assert!(good.asked("completions").is_empty());
    // Whole, nobody has seen anything.
    let (text, _) = whole_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(text, "fine");
}

#[tokio::test]
async fn a_client_that_goes_closes_the_connection_to_the_server() {
    let server = FakeServer::openai(|_| {
        let first = events("some").remove(0);
        Reply::Pieces("text/event-stream", vec![first], End::Silent)
    })
    .await;
    let mut config = server.config("s");
    config.silence = Some(60);
    let rig = rig(vec![config]).await;
    let mut sse = Sse::new(rig.chat(json!({"stream": true})).await.unwrap());
    sse.json().await;
    sse.json().await;
    drop(sse);
    tokio::time::timeout(Duration::from_secs(5), server.idle())
        .await
        .expect("closed");
}

/// A request for JSON with a number in it.
fn shaped(stream: bool) -> Value {
    let schema = json!({"type": "object", "required": ["score"], "properties": {"score": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    json!({"stream": stream, "response_format": format})
}

#[tokio::test]
async fn a_shape_that_a_server_does_not_enforce_is_told_and_asked_for_again() {
    let times = AtomicUsize::new(0);
    let server = FakeServer::openai(move |_| match times.fetch_add(1, Ordering::SeqCst) {
        0 => says("I would say 7."),
        1 => says("{\"score\": \"7\"}"),
        _ => says("<think>Just JSON.</think>```json\n{\"score\": 7}\n```"),
    })
    .await;
    let rig = rig(vec![server.config("s")]).await;
    let (text, info) = whole_of(rig.chat(shaped(false)).await.unwrap()).await;
    assert_eq!(text, "{\"score\": 7}");
    assert_eq!(info.events.len(), 2);
    assert_eq!(info.server.unwrap().shape.as_deref(), Some("instructed"));
    let asked = server.asked("completions");
    let format = &asked[0].body["response_format"]["json_schema"];
    assert_eq!(
        (&format["name"], &format["strict"]),
        (&json!("answer"), &json!(true))
    );
    let told = &asked[1].body["messages"];
    assert!(asked[1].body["response_format"].is_null());
    assert!(
        told[0]["content"].as_str().unwrap().contains("\"score\""),
        "{told}"
    );
    assert_eq!(
        asked[2].body["messages"][3]["content"],
        "{\"score\": \"7\"}"
    );
    // From now on it is told at once, and what it says is held until it is checked.
    let mut sse = Sse::new(rig.chat(shaped(true)).await.unwrap());
    let (events, done) = sse.rest().await;
    assert!(done);
    let texts: Vec<_> = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(texts, ["", "{\"score\": 7}"]);
}

#[tokio::test]
async fn an_answer_that_was_cut_proves_nothing() {
    let times = AtomicUsize::new(0);
    let server = FakeServer::openai(move |_| match times.fetch_add(1, Ordering::SeqCst) {
        0 => {
            let choice =
                json!({"index": 0, "message": {"content": "{\"sco"}, "finish_reason": "length"});
            Reply::Json(200, json!({"choices": [choice]}))
        }
        1 => says("no JSON"),
        _ => says("{\"score\": 1}"),
    })
    .await;
    let rig = rig(vec![server.config("s")]).await;
    assert_eq!(
        whole_of(rig.chat(shaped(false)).await.unwrap()).await.0,
        "{\"sco"
    );
    // What follows is held until it is checked, so that it can be asked for again.
    let (events, done) = Sse::new(rig.chat(shaped(true)).await.unwrap()).rest().await;
    assert!(done, "{events:?}");
    assert_eq!(text_of(&events), "{\"score\": 1}");
}

#[tokio::test]
async fn an_answer_of_another_shape_is_no_answer() {
    let server = FakeServer::openai(|_| says("private words")).await;
    let rig = rig(vec![server.config("s")]).await;
    let (status, error) = error_of(rig.chat(shaped(false)).await.unwrap()).await;
    assert_eq!(status, 502);
    assert!(
        error.message.contains("no JSON") && !error.message.contains("private"),
        "{error:?}"
    );
    assert_eq!(server.asked("completions").len(), 3);
    // One that says that it knows no schemas is told them.
    let picky = FakeServer::openai(|asked| match asked.body.get("response_format") {
        Some(_) => Reply::Json(400, json!({"error": "response_format is not supported"})),
        None => says("{\"score\": 1}"),
    })
    .await;
    let rig = Rig::start(served(vec![picky.config("s")])).await;
    assert_eq!(
        whole_of(rig.chat(shaped(false)).await.unwrap()).await.0,
        "{\"score\": 1}"
    );
    // A schema that cannot be checked is refused.
    let bad = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}});
    let (status, error) = error_of(rig.chat(bad).await.unwrap()).await;
    assert_eq!(
        (status, error.param.as_deref()),
        (400, Some("response_format"))
    );
}

/// A server with Ollama's own API.
async fn ollama(digest: &'static str) -> FakeServer {
    FakeServer::start(move |asked| match asked.path.as_str() {
        "/api/version" => Reply::Json(200, json!({"version": "0.30.0"})),
        "/api/tags" => {
            let model = |name: &str| json!({"name": name, "digest": digest.repeat(32), "details": {"quantization_level": "Q4_K_M"}});
            Reply::Json(200, json!({"models": [model("coder:30b"), model("m:latest")]}))
        }
        "/api/show" => Reply::Json(200, json!({"model_info": {"qwen3moe.context_length": 40_000}})),
        "/api/chat" => {
            let lines = [
                json!({"message": {"role": "assistant", "content": "", "thinking": "Hm."}, "done": false}),
                json!({"message": {"role": "assistant", "content": "Hel"}, "done": false}),
                json!({"message": {"content": "lo", "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {"a": 1}}}]}, "done": false}),
                json!({"message": {"content": "", "tool_calls": [{"function": {"index": 0, "name": "g", "arguments": {}}}]}, "done": false}),
                json!({"message": {"content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 20_000,
                       "prompt_eval_duration": 2_000_000, "eval_count": 4, "eval_duration": 8_000_000}),
            ];
            let lines = lines.iter().map(|line| format!("{line}\n")).collect();
            Reply::Pieces("application/x-ndjson", lines, End::Whole)
        }
        "/api/generate" => Reply::Json(200, json!({"response": "raw", "done": true, "done_reason": "length"})),
        _ => Reply::Json(404, json!({"error": "page not found"})),
    })
    .await
}

#[tokio::test]
async fn ollama_is_spoken_to_in_its_own_words() {
    let server = ollama("ab").await;
    let mut config = server.config("s");
    config.keep_alive = Some("-1".into());
    config.models.insert(MODEL.into(), "coder:30b".into());
    let rig = rig(vec![config]).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = json!({"temperature": 0, "seed": 7, "stop": "END", "n": 1, "logprobs": false, "max_tokens": 50, "tools": tools,
        "reasoning_effort": "low", "presence_penalty": 0.5});
    let answer = rig.chat(body).await.unwrap();
    let whole: ChatCompletion = answer.json().await.unwrap();
    let message = &whole.choices[0].message;
    assert_eq!(message.content.as_deref(), Some("Hello"));
    assert_eq!(message.reasoning_content.as_deref(), Some("Hm."));
    // Both say that they are the first.
    let calls = message.tool_calls.as_ref().unwrap();
    let of = |call: &Value| {
        (
            call["index"].clone(),
            call["function"]["name"].clone(),
            call["function"]["arguments"].clone(),
        )
    };
    assert_eq!(of(&calls[0]), (json!(0), json!("f"), json!("{\"a\":1}")));
    assert_eq!(of(&calls[1]), (json!(1), json!("g"), json!("{}")));
    assert_eq!(
        whole.choices[0].finish_reason,
        Some(FinishReason::ToolCalls)
    );
    let info = whole.tandem.unwrap();
    assert_eq!((info.prompt_tokens, info.generated_tokens), (20_000, 4));
    assert!(
        (info.phases_ms.prefill - 2.0).abs() < 1e-9 && (info.phases_ms.decode - 8.0).abs() < 1e-9
    );
    let about = info.server.unwrap();
    assert_eq!((&*about.dialect, about.verified), ("ollama", true));
    assert!(about.reported.contains("abab"));
    let sent = &server.asked("/api/chat")[0].body;
    let options = json!({"temperature": 0, "seed": 7, "stop": ["END"], "presence_penalty": 0.5, "num_ctx": 8192, "num_predict": 50});
    assert_eq!(sent["options"], options);
    assert_eq!(
        (&sent["think"], &sent["keep_alive"], &sent["model"]),
        (&json!("low"), &json!(-1), &json!("coder:30b"))
    );

    // A longer prompt gets a longer context, which is not made shorter again, and never one beyond what was trained.
    for (words, context) in [(10_000, 16_384), (1, 16_384), (36_000, 40_000)] {
        let long =
            json!({"messages": [{"role": "user", "content": "a ".repeat(words)}], "max_tokens": 5});
        rig.chat(long).await.unwrap();
        let sent = server.asked("/api/chat").pop().unwrap().body;
        assert_eq!(sent["options"]["num_ctx"], context, "{words}");
    }
    let (status, error) = error_of(rig.chat(json!({"grammar": "root ::= x"})).await.unwrap()).await;
    assert_eq!((status, error.param.as_deref()), (400, Some("grammar")));
}

#[tokio::test]
async fn what_ollama_does_not_read_is_refused_or_changed() {
    let server = ollama("ab").await;
    let mut config = server.config("s");
    config.models.insert(MODEL.into(), "coder:30b".into());
    let rig = rig(vec![config]).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    // A tool that is not to be called is not told of, wherever that is said; what has another form than it should harms nobody.
    let odd = json!({"tool_choice": "none", "tools": tools,
        "messages": [{"role": "assistant", "content": "x", "tool_calls": ["y"]}, {"role": "developer", "content": "z"}]});
    assert_eq!(rig.chat(odd).await.unwrap().status(), 200);
    let sent = server.asked("/api/chat").pop().unwrap().body;
    assert!(
        sent["tools"].is_null() && sent["messages"][1]["role"] == "system",
        "{sent}"
    );
    let picture = json!([{"type": "image_url", "image_url": {"url": "https://192.0.2.1/a.png"}}]);
    let answer = rig.chat(json!({"messages": [{"role": "user", "content": picture}]}));
    assert_eq!(error_of(answer.await.unwrap()).await.0, 400);
    let completion = json!({"model": MODEL, "prompt": "a"});
    let answer: Value = rig
        .post("/v1/completions", completion)
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["choices"][0]["text"], "raw");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(server.asked("/api/generate")[0].body["raw"], true);
}

/// A small server around MLX that echoes and thinks aloud.
async fn generate() -> FakeServer {
    FakeServer::start(|asked| match asked.path.as_str() {
        "/health" => Reply::Json(200, json!({"status": "healthy", "model": "org/real-name", "loaded": true})),
        "/generate" => {
            let prompt = asked.body["prompt"].as_str().unwrap();
            let text = format!("{prompt}<think>Hm.</think>\n\nHello END more");
            Reply::Json(200, json!({"response": text, "tokens": 3, "model": "org/real-name", "generation_time": 0.1}))
        }
        _ => Reply::Json(404, json!({"error": "not found"})),
    })
    .await
}

#[tokio::test]
async fn a_prompt_for_a_plain_server_is_rendered_and_its_answer_taken_apart() {
    let server = generate().await;
    let mut config = server.config("s");
    let plain = rig(vec![config.clone()]).await;
    let body = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stop": ["END"], "max_tokens": 80, "temperature": 0.25});
    let answer: ChatCompletion = plain
        .chat(body.clone())
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let message = &answer.choices[0].message;
    assert_eq!(message.content.as_deref(), Some("Hello "));
    assert_eq!(message.reasoning_content.as_deref(), Some("Hm."));
    let info = answer.tandem.unwrap();
    let about = info.server.unwrap();
    assert_eq!(
        (&*about.model, &*about.prompt, about.verified),
        ("org/real-name", "plain text", false)
    );
    let notes = info.events.join("\n");
    for part in ["repeated the prompt", "how many tokens", "complete"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let sent = &server.asked("/generate")[0].body;
    assert_eq!(
        *sent,
        json!({"prompt": "Be brief.\n\nHi", "max_tokens": 80, "temperature": 0.25})
    );
    config.render = Some(tandem_coordinator::Render::new(|messages| {
        Ok(format!("<{}>", messages.len()))
    }));
    let rendered = rig(vec![config]).await;
    let (_, info) = whole_of(rendered.chat(body).await.unwrap()).await;
    assert_eq!(info.server.unwrap().prompt, "template");
    assert_eq!(server.asked("/generate")[1].body["prompt"], "<2>");
    let (status, error) = error_of(rendered.chat(json!({"tools": [{}]})).await.unwrap()).await;
    assert_eq!((status, error.param.as_deref()), (400, Some("tools")));
    let lacks = &rendered.get("/v1/nodes").await.1["servers"][0]["lacks"];
    assert!(lacks.to_string().contains("chat template"), "{lacks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_cancel_gets_one_request_at_a_time() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let server = FakeServer::start(|asked| match asked.path.as_str() {
        "/health" => Reply::Json(
            200,
            json!({"status": "healthy", "model": "x", "loaded": true}),
        ),
        "/generate" => {
            MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(100)));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            Reply::Json(200, json!({"response": "done"}))
        }
        _ => Reply::Json(404, json!({})),
    });
    let server = server.await;
    let mut config = server.config("s");
    config.silence = Some(30);
    let rig = rig(vec![config]).await;
    let gone: Vec<_> = (0..3).map(|_| rig.chat(json!({"stream": true}))).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for request in gone {
        request.abort();
    }
    let (text, _) = whole_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(text, "done");
    assert_eq!(MOST.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_model_may_have_nodes_and_servers() {
    let node = FakeNode::decode("d", 1).await;
    let server = FakeServer::openai(|_| says("by server")).await;
    let mut config = config(&[], &[&node]);
    config.servers = vec![server.config("s")];
    config.models[0].servers = vec!["s".into()];
    let rig = Rig::start(config).await;
    let first = rig.chat(json!({"max_tokens": 3, "temperature": 0}));
    let (_, decode) = node.generate().await.accept();
    decode.open(3, false).await;
    let (text, info) = whole_of(
        rig.chat(json!({"max_tokens": 3, "temperature": 0}))
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        (&*text, &*info.mode, &*info.decode_node),
        ("by server", "server", "s")
    );
    let sent = &server.asked("completions")[0].body;
    assert_eq!(
        (&sent["max_tokens"], &sent["temperature"]),
        (&json!(3), &json!(0.0))
    );
    decode.prefilled(0, 2, None).await;
    decode.token(7, "by node").await;
    decode.done(1).await;
    let (text, info) = whole_of(first.await.unwrap()).await;
    assert_eq!((&*text, &*info.mode), ("by node", "local"));
    // What nodes cannot do is refused, because it might go to one.
    let (status, _) = error_of(
        rig.chat(json!({"tools": [{"type": "function"}]}))
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn another_model_under_the_same_name_gets_nothing() {
    static CHANGED: AtomicUsize = AtomicUsize::new(0);
    let server = FakeServer::start(|asked| match asked.path.as_str() {
        "/v1/models" => {
            let id = ["a", "b"][CHANGED.load(Ordering::SeqCst)];
            Reply::Json(200, json!({"data": [{"id": id}]}))
        }
        "/v1/chat/completions" => says("fine"),
        _ => Reply::Json(404, json!({})),
    })
    .await;
    let rig = rig(vec![server.config("s")]).await;
    whole_of(rig.chat(json!({})).await.unwrap()).await;
    CHANGED.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (status, error) = error_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(status, 503);
    assert!(
        error.message.contains("another model than before"),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_a_server_is_not_is_said() {
    let other = FakeServer::start(|_| Reply::Json(200, json!({"hello": "world"}))).await;
    let several = FakeServer::start(|asked| match asked.path.as_str() {
        "/v1/models" => Reply::Json(200, json!({"data": [{"id": "one"}, {"id": "two"}]})),
        _ => Reply::Json(404, json!({})),
    })
    .await;
    let locked = FakeServer::start(|_| Reply::Json(401, json!({"error": "no"}))).await;
    let loading = FakeServer::start(|asked| match asked.path.as_str() {
        "/health" => Reply::Json(
            200,
            json!({"status": "loading", "model": "x", "loaded": false}),
        ),
        _ => Reply::Json(404, json!({})),
    })
    .await;
    let mut gone = other.config("s");
    gone.url = "http://127.0.0.1:1".into();
    for (config, parts) in [
        (other.config("s"), &["speaks no dialect", "openai"][..]),
        (several.config("s"), &["`one`, `two`", "models = { \"m\""]),
        (locked.config("s"), &["another key", "key_file"]),
        (loading.config("s"), &["still loading"]),
        (gone, &["cannot be reached"]),
    ] {
        let rig = rig(vec![config]).await;
        let (status, health) = rig.get("/health").await;
        let told = health["reasons"].to_string().replace("\\\"", "\"");
        assert_eq!(status, 503);
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    let tokens = json!({"model": MODEL, "messages": chat_body(json!({}))["messages"]});
    let good = FakeServer::openai(|_| says("x")).await;
    let rig = rig(vec![good.config("s")]).await;
    let answer = rig.post("/tokenize", tokens).await.unwrap();
    assert_eq!(answer.status(), 501);
}

#[tokio::test]
async fn a_server_that_is_busy_with_an_answer_is_not_gone() {
    let open = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&open);
    let server = FakeServer::start(move |request| match request.path.as_str() {
        // It does one thing at a time.
        "/health" if asked.load(Ordering::SeqCst) > 0 => Reply::Hang,
        "/health" => Reply::Json(
            200,
            json!({"status": "healthy", "model": "x", "loaded": true}),
        ),
        "/generate" => {
            asked.fetch_add(1, Ordering::SeqCst);
            Reply::Hang
        }
        _ => Reply::Json(404, json!({})),
    })
    .await;
    let mut server_config = server.config("s");
    server_config.silence = Some(3);
    server_config.dialect = Some(tandem_coordinator::Dialect::Generate);
    let mut config = served(vec![server_config]);
    config.limits.connect = Duration::from_millis(50);
    let rig = Rig::start(config).await;
    let answer = rig.chat(json!({}));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(open.load(Ordering::SeqCst), 1);
    assert_eq!(rig.get("/health").await.0, 200, "it is only busy");
    let (status, error) = error_of(answer.await.unwrap()).await;
    assert_eq!(status, 502, "{error:?}");
    assert!(error.message.contains("was silent for 3 s"), "{error:?}");
}

#[tokio::test]
async fn signs_of_life_without_an_answer_have_a_limit() {
    let server = FakeServer::openai(|_| {
        let pings = (0..200).map(|_| ": ping\n\n".to_owned()).collect();
        Reply::Slow(pings, Duration::from_millis(100))
    })
    .await;
    let rig = rig(vec![server.config("s")]).await;
    let answer = tokio::time::timeout(Duration::from_secs(8), rig.chat(json!({})));
    let (status, error) = error_of(answer.await.expect("a limit").unwrap()).await;
    assert_eq!(status, 502);
    assert!(error.message.contains("was silent for 2 s"), "{error:?}");
}

#[tokio::test]
async fn a_request_that_may_have_stopped_two_servers_gets_no_third() {
    let fails = || {
        FakeServer::openai(|_| {
            Reply::Json(500, json!({"error": "llama runner process has terminated"}))
        })
    };
    let (a, b) = (fails().await, fails().await);
    let good = FakeServer::openai(|_| says("fine")).await;
    let rig = rig(vec![a.config("a"), b.config("b"), good.config("good")]).await;
    let (status, error) = error_of(rig.chat(json!({})).await.unwrap()).await;
    assert_eq!(status, 502);
    assert!(error.message.contains("no further node"), "{error:?}");
    assert!(good.asked("completions").is_empty());
}

#[tokio::test]
async fn what_a_server_tells_later_is_no_change() {
    static LOADED: AtomicUsize = AtomicUsize::new(0);
    let server = FakeServer::start(|asked| match asked.path.as_str() {
        "/v1/models" => {
            let meta = [Value::Null, json!({"n_params": 7}), json!({"n_params": 8})];
            let meta = &meta[LOADED.load(Ordering::SeqCst)];
            Reply::Json(
                200,
                json!({"data": [{"id": "m", "owned_by": "x", "meta": meta}]}),
            )
        }
        "/v1/chat/completions" => says("fine"),
        _ => Reply::Json(404, json!({})),
    })
    .await;
    let rig = rig(vec![server.config("s")]).await;
    for (step, status) in [(0, 200), (1, 200), (2, 503), (1, 200)] {
        LOADED.store(step, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(
            rig.chat(json!({})).await.unwrap().status(),
            status,
            "{step}"
        );
    }
}

#[tokio::test]
async fn one_shape_that_is_refused_takes_no_other_with_it() {
    let server = FakeServer::openai(
        |asked| match asked.body["response_format"]["type"].as_str() {
            Some("json_object") => Reply::Json(
                400,
                json!({"error": "'response_format.type' must be 'json_schema'"}),
            ),
            Some("json_schema") => says("{\"score\": 1}"),
            _ => says("{}"),
        },
    )
    .await;
    let rig = rig(vec![server.config("s")]).await;
    let object = json!({"response_format": {"type": "json_object"}});
    for (body, shape) in [(object, "instructed"), (shaped(false), "enforced")] {
        let (_, info) = whole_of(rig.chat(body).await.unwrap()).await;
        assert_eq!(info.server.unwrap().shape.as_deref(), Some(shape));
    }
    // What is no schema goes on as it came.
    let choice = json!({"structured_outputs": {"choice": ["A", "B"]}});
    whole_of(rig.chat(choice.clone()).await.unwrap()).await;
    let sent = server.asked("completions").pop().unwrap().body;
    assert_eq!(sent["structured_outputs"], choice["structured_outputs"]);
}

#[tokio::test]
async fn texts_that_are_continued_are_not_taken_apart_and_cut_ones_are_told() {
    let server = FakeServer::openai(|_| {
        let choice = json!({"index": 0, "text": "<think>all of it", "finish_reason": "length"});
        Reply::Json(200, json!({"choices": [choice]}))
    })
    .await;
    let rig1 = rig(vec![server.config("s")]).await;
    let body = json!({"model": MODEL, "prompt": "a"});
    let answer: Value = rig1
        .post("/v1/completions", body)
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["choices"][0]["text"], "<think>all of it");
    for (text, finish) in [("It is good.", "stop"), ("It is", "length")] {
        let server = FakeServer::start(move |asked| match asked.path.as_str() {
            "/health" => Reply::Json(
                200,
                json!({"status": "healthy", "model": "x", "loaded": true}),
            ),
            "/generate" => Reply::Json(200, json!({"response": text})),
            _ => Reply::Json(404, json!({})),
        })
        .await;
        let rig = rig(vec![server.config("s")]).await;
        let answer: Value = rig
            .chat(json!({"seed": 3}))
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], finish);
        assert!(
            answer["tandem"]["events"].to_string().contains("`seed`"),
            "{answer}"
        );
    }
}
