//! How an answer of a server can end, and what becomes of each: a good end is passed on, any other goes to an equal server.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tandem_proto::GenerateEvent;

use crate::fake::{FakeNode, MODEL};
use crate::fake_server::{Asked, End, FakeServer, Reply, events, says};
use crate::rig::{Rig, Sse, config, error_of, text_of, whole_of};
use crate::servers::served;

const JSON: &str = "{\"score\": 1}";

/// A chat, streamed or not, under a schema or not.
fn asks((stream, shaped): (bool, bool)) -> Value {
    let schema = json!({"type": "object", "required": ["score"], "properties": {"score": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    match shaped {
        true => json!({"stream": stream, "response_format": format}),
        false => json!({"stream": stream}),
    }
}

/// A good answer to what was asked.
fn good(asked: &Asked) -> Reply {
    says(if asked.body["response_format"].is_null() {
        "fine"
    } else {
        JSON
    })
}

/// Events with this text and this reason of the end.
fn ends_with(text: &str, reason: &str) -> Reply {
    let mut all = events(text);
    all[1] = all[1].replace("\"stop\"", &format!("\"{reason}\""));
    if text.is_empty() {
        all.remove(0);
    }
    Reply::Pieces("text/event-stream", all, End::Whole)
}

fn pieces(pieces: Vec<String>) -> Reply {
    Reply::Pieces("text/event-stream", pieces, End::Whole)
}

fn whole_error() -> Reply {
    let choice = json!({"index": 0, "message": {"content": ""}, "finish_reason": "error"});
    Reply::Json(200, json!({"choices": [choice]}))
}

/// What a client without an equal server gets.
#[derive(Clone, Copy, PartialEq)]
enum Alone {
    /// This reason of the end.
    Finish(&'static str),
    /// An error that names the server, with these words.
    Error(&'static str),
}

type Way = (&'static str, fn() -> Reply, Alone);

fn ways() -> Vec<Way> {
    use Alone::{Error, Finish};
    vec![
        (
            "error",
            || ends_with("", "error"),
            Error("reason \"error\""),
        ),
        (
            "abort",
            || ends_with("", "abort"),
            Error("reason \"abort\""),
        ),
        (
            "a word of its own",
            || ends_with("", "banana"),
            Error("banana"),
        ),
        (
            "half, then error",
            || ends_with("{\"sco", "error"),
            Error("reason \"error\""),
        ),
        (
            "nothing, then stop",
            || ends_with("", "stop"),
            Finish("stop"),
        ),
        (
            "space, then stop",
            || ends_with(" \n", "stop"),
            Finish("stop"),
        ),
        (
            "no reason",
            || pieces(vec![events("").remove(0), "data: [DONE]\n\n".into()]),
            Error("before the last event"),
        ),
        (
            "nothing at all",
            || pieces(Vec::new()),
            Error("before the last event"),
        ),
        (
            "an error in an event",
            || {
                pieces(vec![
                    "data: {\"error\": {\"message\": \"boom\"}}\n\n".into(),
                ])
            },
            Error("boom"),
        ),
        (
            "an error outside of events",
            || pieces(vec!["error: {\"message\": \"boom\"}\n\n".into()]),
            Error("before the last event"),
        ),
        (
            "status 500",
            || Reply::Json(500, json!({"error": "boom"})),
            Error("boom"),
        ),
        (
            "whole, with an error",
            whole_error,
            Error("reason \"error\""),
        ),
    ]
}

/// These are ends: nobody else is asked.
fn good_ends() -> Vec<Way> {
    use Alone::Finish;
    vec![
        ("length", || ends_with("{\"sco", "length"), Finish("length")),
        (
            "max_tokens",
            || ends_with("{\"sco", "MAX_TOKENS"),
            Finish("length"),
        ),
        (
            "a filter",
            || ends_with("{\"sco", "content_filter"),
            Finish("content_filter"),
        ),
    ]
}

/// Text and reason of the end, or status and message of the error.
async fn outcome(rig: &Rig, how: (bool, bool)) -> Result<(String, String), (u16, String)> {
    let answer = rig.chat(asks(how)).await.unwrap();
    if answer.status() != 200 {
        let (status, error) = error_of(answer).await;
        return Err((status, error.message));
    }
    if !how.0 {
        let body: Value = answer.json().await.unwrap();
        let choice = &body["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        return Ok((
            text.to_owned(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
        ));
    }
    let (events, _) = Sse::new(answer).rest().await;
    if let Some(error) = events
        .iter()
        .find_map(|event| event["error"]["message"].as_str())
    {
        return Err((200, error.to_owned()));
    }
    let finish = events
        .iter()
        .find_map(|e| e["choices"][0]["finish_reason"].as_str());
    Ok((text_of(&events), finish.unwrap().to_owned()))
}

#[tokio::test]
async fn an_answer_that_ended_badly_is_no_success_and_goes_to_an_equal_server() {
    for (what, reply, alone) in ways().into_iter().chain(good_ends()) {
        for how in [(false, false), (true, false), (false, true), (true, true)] {
            let (stream, shaped) = how;
            let case = format!("{what}, streamed {stream}, schema {shaped}");
            let expected = if shaped { JSON } else { "fine" };
            let bad = FakeServer::openai(move |_| reply()).await;
            let rig = Rig::start(served(vec![bad.config("bad")])).await;
            let found = outcome(&rig, how).await;
            match (alone, shaped) {
                (Alone::Finish("stop"), true) => {
                    let (_, message) = found.expect_err(&case);
                    assert!(message.contains("shape"), "{case}: {message}");
                }
                (Alone::Finish(reason), _) => assert_eq!(found.expect(&case).1, reason, "{case}"),
                (Alone::Error(said), _) => {
                    let (_, message) = found.expect_err(&case);
                    assert!(
                        message.contains(said) && message.contains("`bad`"),
                        "{case}: {message}"
                    );
                }
            }
            // Beside an equal one, three times: the good one is preferred in the end.
            let good = FakeServer::openai(good).await;
            let mut both = served(vec![bad.config("bad"), good.config("good")]);
            both.limits.server_poll = std::time::Duration::from_secs(60);
            let rig = Rig::start(both).await;
            for round in 0..3 {
                let found = outcome(&rig, how).await;
                let is_end = matches!(alone, Alone::Finish(reason) if reason != "stop");
                let is_seen = what == "half, then error" && stream && !shaped && round == 0;
                if is_end {
                    assert_eq!(
                        found.map(|(_, finish)| finish).unwrap(),
                        match alone {
                            Alone::Finish(reason) => reason,
                            Alone::Error(_) => unreachable!(),
                        },
                        "{case}"
                    );
                } else if is_seen {
                    assert!(found.is_err(), "{case}: what was seen is not begun again");
                } else {
                    assert_eq!(
                        found,
                        Ok((expected.to_owned(), "stop".to_owned())),
                        "{case} {round}"
                    );
                }
            }
            let asked = bad.asked("completions").len();
            let is_end = matches!(alone, Alone::Finish(reason) if reason != "stop");
            assert!(
                is_end || asked <= 2 + 3 * usize::from(shaped),
                "{case}: asked {asked} times"
            );
        }
    }
}

#[tokio::test]
async fn what_a_server_does_with_one_schema_says_nothing_of_another() {
    let server = FakeServer::openai(|asked| {
        let schema = &asked.body["response_format"]["json_schema"]["schema"];
        match (
            schema["properties"].get("odd"),
            asked.body["response_format"].is_null(),
        ) {
            (Some(_), _) => Reply::Json(
                400,
                json!({"error": "the grammar cannot be made of this schema"}),
            ),
            (None, true) => says("words"),
            (None, false) => says(JSON),
        }
    })
    .await;
    let rig = Rig::start(served(vec![server.config("s")])).await;
    let mut odd = asks((false, true));
    odd["response_format"]["json_schema"]["schema"]["properties"]["odd"] =
        json!({"type": "string"});
    for round in 0..3 {
        let (text, info) = whole_of(rig.chat(asks((false, true))).await.unwrap()).await;
        assert_eq!(
            (&*text, info.server.unwrap().shape.as_deref()),
            (JSON, Some("enforced")),
            "{round}"
        );
        let (status, error) = error_of(rig.chat(odd.clone()).await.unwrap()).await;
        assert_eq!(
            (status, error.param.as_deref()),
            (400, Some("response_format")),
            "{round}"
        );
        assert!(error.message.contains("grammar"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_fence_proves_that_nothing_binds_the_model() {
    let server =
        FakeServer::openai(|_| says(&format!("Here it is:\n\n```json\n{JSON}\n```\n\nDone.")))
            .await;
    let rig = Rig::start(served(vec![server.config("s")])).await;
    for stream in [false, true, true] {
        let found = outcome(&rig, (stream, true)).await;
        assert_eq!(found, Ok((JSON.to_owned(), "stop".to_owned())));
    }
}

#[tokio::test]
async fn tokens_that_were_read_before_are_no_cut_prompt() {
    let times = AtomicUsize::new(0);
    // It counts new tokens only: all of the first prompt, one of each that follows.
    let server = FakeServer::openai(move |_| {
        let read = if times.fetch_add(1, Ordering::SeqCst) == 0 {
            900
        } else {
            1
        };
        let usage = json!({"prompt_tokens": read, "completion_tokens": 1});
        let choice = json!({"index": 0, "message": {"content": "fine"}, "finish_reason": "stop"});
        Reply::Json(200, json!({"choices": [choice], "usage": usage}))
    })
    .await;
    let rig = Rig::start(served(vec![server.config("s")])).await;
    let prompt = |end: &str| json!({"messages": [{"role": "user", "content": format!("{}{end}", "word ".repeat(400))}]});
    for end in ["a", "b", "c"] {
        let (text, info) = whole_of(rig.chat(prompt(end)).await.unwrap()).await;
        assert_eq!(text, "fine");
        let is_told = info.events.iter().any(|event| event.contains("leave out"));
        assert_eq!(is_told, end != "a", "{:?}", info.events);
    }
    // One that cuts prompts at its context is seen, also where a part of the prompt was there before.
    let cuts = FakeServer::openai(|asked| {
        let words = asked.text.split("word ").count();
        let usage = json!({"prompt_tokens": words.min(512), "completion_tokens": 1});
        let choice = json!({"index": 0, "message": {"content": "fine"}, "finish_reason": "stop"});
        Reply::Json(200, json!({"choices": [choice], "usage": usage}))
    })
    .await;
    let rig = Rig::start(served(vec![cuts.config("s")])).await;
    let words = |n: usize| json!({"messages": [{"role": "user", "content": "word ".repeat(n)}]});
    assert_eq!(
        whole_of(rig.chat(words(400)).await.unwrap()).await.0,
        "fine"
    );
    let (_, error) = error_of(rig.chat(words(1800)).await.unwrap()).await;
    assert!(
        error.message.contains("it cuts prompts"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn a_content_may_come_in_parts_and_thoughts_without_an_opening_mark() {
    let parts = FakeServer::openai(|_| {
        let delta = json!({"content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "fine"}]});
        let mut all = events("");
        all[0] = format!(
            "data: {}\n\n",
            json!({"choices": [{"index": 0, "delta": delta}]})
        );
        pieces(all)
    })
    .await;
    let rig = Rig::start(served(vec![parts.config("s")])).await;
    for stream in [false, true] {
        assert_eq!(outcome(&rig, (stream, false)).await.unwrap().0, "fine");
    }
    // Whole answers from the first one on, streams from the second.
    let thinker = FakeServer::openai(|_| says("Okay, a student.\n</think>\n\nfine")).await;
    let rig = Rig::start(served(vec![thinker.config("s")])).await;
    for stream in [false, true] {
        assert_eq!(
            outcome(&rig, (stream, false)).await.unwrap().0,
            "fine",
            "{stream}"
        );
    }
}

#[tokio::test]
async fn thoughts_of_nodes_stand_apart_also_where_the_template_began_them() {
    for (prompt_end, tokens, thought, text) in [
        (
            "<|im_start|>assistant\n<think>\n",
            &["So", ".</thi", "nk>\n\nfi", "ne"][..],
            "So.",
            "fine",
        ),
        (
            "<|im_start|>assistant\n",
            &["<think>", "So.", "</think>", "fine"][..],
            "So.",
            "fine",
        ),
        (
            "<|im_start|>assistant\n",
            &["fi", "ne </think>"][..],
            "",
            "fine </think>",
        ),
        ("<think>\n\n</think>\n\n", &["fine"][..], "", "fine"),
    ] {
        let d = FakeNode::decode("d", 1).await;
        let rig = Rig::start(config(&[], &[&d])).await;
        let answer = rig.chat(json!({}));
        let (asked, decode) = d.generate().await.accept();
        assert_eq!(asked.model, MODEL);
        decode
            .send(&GenerateEvent::Opened {
                prompt_tokens: 9,
                tokens: None,
                ticket: None,
                tokenize_ms: 1.0,
                prompt_end: prompt_end.to_owned(),
            })
            .await;
        decode.prefilled(0, 8, None).await;
        for (id, part) in (0..).zip(tokens) {
            decode.token(id, part).await;
        }
        decode.done(4).await;
        let body: Value = answer.await.unwrap().json().await.unwrap();
        let message = &body["choices"][0]["message"];
        assert_eq!(message["content"], text, "{prompt_end}");
        let thought = (!thought.is_empty()).then_some(thought);
        assert_eq!(
            message["reasoning_content"].as_str(),
            thought,
            "{prompt_end}"
        );
    }
}
