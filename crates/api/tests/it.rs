//! Requests are parsed, refused and framed as the OpenAI reference says.

#![allow(clippy::expect_used, clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_api::*;

fn chat(extra: Value) -> Result<ChatRequest, ApiError> {
    parse_chat(
        &merged(
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
            extra,
        ),
        false,
    )
}

fn completion(extra: Value) -> Result<CompletionRequest, ApiError> {
    parse_completion(&merged(json!({"model": "m", "prompt": "hi"}), extra), false)
}

fn merged(mut base: Value, extra: Value) -> Vec<u8> {
    let (Value::Object(base_map), Value::Object(extra)) = (&mut base, extra) else {
        panic!("objects expected")
    };
    base_map.extend(extra);
    base.to_string().into_bytes()
}

fn refuses_chat(table: &[(Value, &str)]) {
    for (extra, param) in table {
        let error = chat(extra.clone()).expect_err(&extra.to_string());
        assert_eq!(error.status, 400, "{extra}");
        assert_eq!(error.detail.kind, "invalid_request_error", "{extra}");
        assert_eq!(error.detail.param.as_deref(), Some(*param), "{extra}");
        let message = error.detail.message;
        assert!(message.contains(param), "{extra}: {message}");
    }
}

#[test]
fn bad_messages_are_refused_with_the_field() {
    let table: &[(Value, &str)] = &[
        (json!({"model": 3}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": null}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [3]}), "messages[0]"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": []}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}),
            "messages[0].tool_calls",
        ),
    ];
    refuses_chat(table);
}

#[test]
fn bad_values_are_refused_with_the_field() {
    let table: &[(Value, &str)] = &[
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "7"}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": u64::MAX}), "max_tokens"),
        (
            json!({"max_tokens": 7, "max_completion_tokens": 8}),
            "max_completion_tokens",
        ),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"top_p": 1.01}), "top_p"),
        (json!({"top_k": 0.5}), "top_k"),
        (json!({"min_p": true}), "min_p"),
        (json!({"seed": 0.5}), "seed"),
        (json!({"seed": "1"}), "seed"),
        (json!({"stop": 1}), "stop"),
        (json!({"stop": ["a", 1]}), "stop[1]"),
        (json!({"stop": ""}), "stop[0]"),
        (
            json!({"stop": vec!["x"; limits::MAX_STOP_STRINGS + 1]}),
            "stop",
        ),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": 1}), "stream_options"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {}}), "response_format.type"),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format.json_schema",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}}),
            "response_format.json_schema.schema",
        ),
    ];
    refuses_chat(table);
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let table: &[(Value, &str)] = &[
        (json!({"n": 2}), "n"),
        (json!({"logit_bias": {"1": 5}}), "logit_bias"),
        (json!({"presence_penalty": 0.5}), "presence_penalty"),
        (json!({"frequency_penalty": 1}), "frequency_penalty"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"tandem": 1}), "tandem"),
        (json!({"tandem": {"route": "there"}}), "tandem.route"),
        (
            json!({"tandem": {"return_tokens": 1}}),
            "tandem.return_tokens",
        ),
        (json!({"tandem": {"rout": "auto"}}), "tandem.rout"),
        // Lengths and samplers of other servers, and what nobody knows.
        (json!({"max_token": 5}), "max_token"),
        (json!({"temprature": 0}), "temprature"),
        (json!({"max_tokens": 5, "n_predict": 6}), "n_predict"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -2}), "max_tokens"),
        (json!({"cache_prompt": false}), "cache_prompt"),
        (json!({"reasoning_format": "auto"}), "reasoning_format"),
        (json!({"typical_p": 0.9}), "typical_p"),
        (json!({"dry_multiplier": 0.8}), "dry_multiplier"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"options": {"num_ctx": 4096}}), "options"),
        (json!({"think": true}), "think"),
        (
            json!({"stream_options": {"usage": true}}),
            "stream_options.usage",
        ),
        (
            json!({"messages": [{"role": "user", "content": "hi", "nmae": "x"}]}),
            "messages[0].nmae",
        ),
        (
            json!({"messages": [{"role": "user", "content": "hi", "name": "x".repeat(65)}]}),
            "messages[0].name",
        ),
        (
            json!({"messages": [{"role": "user", "content": "hi", "name": ["x"]}]}),
            "messages[0].name",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "detail": 1}]}]}),
            "messages[0].content[0].detail",
        ),
        (
            json!({"response_format": {"type": "json_object", "scheme": {}}}),
            "response_format.scheme",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strcit": true}}}),
            "response_format.json_schema.strcit",
        ),
        (
            json!({"structured_outputs": {"regex": "a+"}}),
            "structured_outputs.regex",
        ),
        (json!({"format": "yaml"}), "format"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"format": "json", "json_schema": {}}), "format"),
    ];
    refuses_chat(table);
}

#[test]
fn a_misspelt_field_is_told_which_one_was_meant() {
    for (extra, meant) in [
        (json!({"max_token": 5}), "'max_tokens'"),
        (json!({"temprature": 0}), "'temperature'"),
        (json!({"tandem": {"rout": "auto"}}), "'route'"),
    ] {
        let message = chat(extra).expect_err("refused").detail.message;
        assert!(
            message.contains(&format!("did you mean {meant}")),
            "{message}"
        );
    }
    let long = "x".repeat(100_000);
    let message = chat(json!({ long: 1 }))
        .expect_err("refused")
        .detail
        .message;
    assert!(message.len() < 400, "{message}");
}

/// What other servers call a schema is the same schema.
#[test]
fn dialects_of_a_schema_mean_the_same() {
    let schema = json!({"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}});
    let written = schema.to_string();
    for extra in [
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"response_format": {"type": "json_schema", "schema": schema}}),
        json!({"response_format": {"type": "json_schema", "name": "n", "strict": true, "schema": schema}}),
        json!({"json_schema": schema}),
        json!({"structured_outputs": {"json": schema}}),
        json!({"structured_outputs": {"json": written}}),
        json!({"guided_json": schema}),
        json!({"guided_json": written}),
        json!({"format": schema}),
        json!({"format": schema, "guided_json": schema, "response_format": {"type": "text"}, "guided_decoding_backend": "auto"}),
    ] {
        let request = chat(extra.clone()).expect("request");
        let Format::JsonSchema { json_schema } = request.response_format else {
            panic!("{extra}");
        };
        assert_eq!(json_schema.schema.to_string(), written, "{extra}");
    }
    for extra in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"json_object": true}}),
        json!({"format": "json"}),
    ] {
        let request = chat(extra.clone()).expect("request");
        assert_eq!(request.response_format, Format::JsonObject, "{extra}");
    }
}

/// A node reads a schema inside a message of its own, and has room for no more levels.
#[test]
fn a_schema_has_so_many_levels_at_most() {
    let nested = |levels| (0..levels).fold(json!({}), |inner, _| json!({"items": inner}));
    assert!(chat(json!({"format": nested(limits::MAX_SCHEMA_DEPTH - 1)})).is_ok());
    let refused = chat(json!({"format": nested(limits::MAX_SCHEMA_DEPTH)})).expect_err("refused");
    assert_eq!(refused.detail.param.as_deref(), Some("format"));
}

#[test]
fn the_name_of_who_speaks_is_taken() {
    for name in ["student 7".to_owned(), "é".repeat(64)] {
        let messages = json!([{"role": "user", "content": "hi", "name": name}]);
        let request = chat(json!({"messages": messages})).expect("request");
        assert_eq!(request.messages[0].name, Some(name));
        // A client of this crate sends it on.
        assert_eq!(serde_json::to_value(&request.messages).unwrap(), messages);
    }
}

#[test]
fn who_asks_for_it_has_what_is_not_known_ignored_and_listed() {
    let extra = json!({
        "tandem": {"lenient": true},
        "num_ctx": 4096,
        "dry_multiplier": 0.8,
        "repeat_last_n": 64,
        "messages": [{"role": "user", "content": "hi", "nmae": "x"}],
        "response_format": {"type": "text", "scheme": 1},
    });
    let request = chat(extra).expect("request");
    let mut ignored = request.ignored;
    ignored.sort();
    assert_eq!(
        ignored,
        [
            "dry_multiplier",
            "messages[0].nmae",
            "num_ctx",
            "response_format.scheme"
        ]
    );
    // A value that cannot be is refused all the same.
    let strict = json!({"model": "m", "prompt": "hi", "nonsense": 1, "tandem": {"lenient": false}});
    assert!(parse_completion(strict.to_string().as_bytes(), true).is_err());
    let wrong = json!({"tandem": {"lenient": true}, "temperature": "hot"});
    assert_eq!(chat(wrong).expect_err("refused").status, 400);
    // The server may permit it for all.
    let body = br#"{"model": "m", "prompt": "hi", "nonsense": 1}"#;
    let request = parse_completion(body, true).expect("request");
    assert_eq!(request.ignored, ["nonsense"]);
    // The list has an end.
    let many: serde_json::Map<String, Value> =
        (0..100).map(|i| (format!("x{i}"), json!(i))).collect();
    let request = parse_chat(
        &merged(
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
            many.into(),
        ),
        true,
    );
    let ignored = request.expect("request").ignored;
    assert_eq!((ignored.len(), ignored[32].as_str()), (33, "and others"));
}

#[test]
fn completion_mistakes_are_refused_with_the_field() {
    let table: &[(Value, &str)] = &[
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": 1}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ["a", "b"]}), "prompt"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"logprobs": 0}), "logprobs"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"echo": true}), "echo"),
        (json!({"suffix": "x"}), "suffix"),
    ];
    for (extra, param) in table {
        let error = completion(extra.clone()).expect_err(&extra.to_string());
        assert_eq!(
            (error.status, error.detail.param.as_deref()),
            (400, Some(*param)),
            "{extra}"
        );
    }
}

#[test]
fn harmless_and_neutral_fields_are_accepted() {
    let plain = chat(json!({})).expect("plain");
    for extra in [
        json!({"user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto"}),
        json!({"n": 1, "tools": [], "tool_choice": "none", "logit_bias": {}, "logprobs": false, "top_logprobs": null}),
        json!({"presence_penalty": 0, "frequency_penalty": 0.0, "modalities": ["text"]}),
        json!({"temperature": null, "stop": null, "seed": null, "stream": null, "response_format": {"type": "text"}}),
        json!({"tandem": {}}),
        json!({"typical_p": 1, "dry_multiplier": 0, "dry_base": 1.75, "repeat_last_n": 64, "mirostat": 0, "mirostat_tau": 5}),
        json!({"cache_prompt": true, "n_predict": -1, "skip_special_tokens": true, "add_generation_prompt": true}),
        json!({"messages": [{"role": "user", "content": "hi", "tool_calls": [], "name": null}]}),
        json!({"stream_options": {"include_obfuscation": false, "continuous_usage_stats": false}}),
        json!({"max_tokens": -1, "n_predict": -1, "top_n_sigma": 0, "n_keep": 0, "lora": [], "reasoning_format": "none"}),
        json!({"messages": [{"role": "user", "content": "hi", "parsed": {"a": 1}, "reasoning_content": "", "cache_control": {"type": "ephemeral"}}]}),
        json!({"structured_outputs": {"disable_any_whitespace": false}, "format": "", "response_format": {"type": "text"}}),
    ] {
        assert_eq!(chat(extra.clone()).as_ref(), Ok(&plain), "{extra}");
    }
}

#[test]
fn values_are_read() {
    let request = chat(json!({
        "messages": [
            {"role": "developer", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "max_completion_tokens": 9, "temperature": 1, "top_p": 0.5, "top_k": -1, "min_p": 0.05, "seed": -1,
        "stop": "END", "stream": true, "stream_options": {"include_usage": true},
        "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": {"z": 1, "a": 2}, "strict": true}},
        "tandem": {"route": "remote", "return_tokens": true, "cache_salt": "class 7b", "keep": false, "reproducible": true},
    }))
    .expect("request");
    assert_eq!(request.messages[0].role, Role::Developer);
    assert_eq!(request.messages[1].content, "a\nb");
    assert_eq!(request.sampling.max_tokens, Some(9));
    assert_eq!(request.sampling.temperature, Some(1.0));
    assert_eq!(request.sampling.top_k, Some(0));
    assert_eq!(request.sampling.seed, Some(u64::MAX));
    assert_eq!(request.sampling.stop, ["END"]);
    assert!(request.stream && request.stream_options.include_usage);
    assert_eq!(
        request.tandem,
        TandemOptions {
            route: RouteChoice::Remote,
            return_tokens: true,
            cache_salt: "class 7b".into(),
            keep: false,
            reproducible: true,
            lenient: None,
        }
    );
    let Format::JsonSchema { json_schema } = &request.response_format else {
        panic!("schema expected")
    };
    assert_eq!(
        json_schema.schema.to_string(),
        r#"{"z":1,"a":2}"#,
        "key order is kept"
    );
    assert!(json_schema.strict);
    // What a client serialises, a server reads back.
    let again =
        parse_chat(&serde_json::to_vec(&request).expect("serialise"), false).expect("parse");
    assert_eq!(again, request);
}

/// Programs whose numbers are all floats write them so.
#[test]
fn whole_numbers_may_have_a_point() {
    let request = chat(json!({"max_tokens": 100.0, "top_k": 5.0, "seed": 7.0})).expect("request");
    let sampling = request.sampling;
    assert_eq!(
        (sampling.max_tokens, sampling.top_k, sampling.seed),
        (Some(100), Some(5), Some(7))
    );
    for extra in [
        json!({"max_tokens": 1.5}),
        json!({"max_tokens": 1e30}),
        json!({"seed": 0.5}),
    ] {
        assert_eq!(
            chat(extra.clone()).expect_err("refused").status,
            400,
            "{extra}"
        );
    }
}

#[test]
fn prompts_are_text_or_tokens() {
    for (prompt, expected) in [
        (json!("a"), Prompt::Text("a".to_owned())),
        (json!(["a"]), Prompt::Text("a".to_owned())),
        (json!([1, 2]), Prompt::Tokens(vec![1, 2])),
        (json!([[7]]), Prompt::Tokens(vec![7])),
    ] {
        let request = completion(json!({"prompt": prompt})).expect("request");
        assert_eq!(request.prompt, expected);
        let again = parse_completion(&serde_json::to_vec(&request).expect("serialise"), false)
            .expect("parse");
        assert_eq!(again, request);
    }
}

#[test]
fn broken_bodies() {
    for body in [
        "",
        "{",
        "nul",
        "[1]",
        "\"text\"",
        "{\"model\": \"m\",}",
        "\u{1}",
    ] {
        let error = parse_chat(body.as_bytes(), false).expect_err(body);
        assert_eq!(
            (error.status, error.detail.code.as_deref()),
            (400, Some("invalid_json")),
            "{body}"
        );
    }
    let deep = "[".repeat(100_000);
    assert_eq!(
        parse_chat(deep.as_bytes(), false).expect_err("deep").status,
        400
    );
    let long = vec![b' '; limits::MAX_BODY_BYTES + 1];
    assert_eq!(parse_chat(&long, false).expect_err("long").status, 413);
}

#[test]
fn errors_have_the_openai_shape() {
    let body = serde_json::to_value(ApiError::model_not_found("gone").body()).expect("json");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(body["error"]["param"], "model");
    assert_eq!(body["error"]["code"], "model_not_found");
    assert!(
        body["error"]["message"]
            .as_str()
            .is_some_and(|m| m.contains("gone"))
    );
    let null = serde_json::to_value(ApiError::internal("x").body()).expect("json");
    assert!(
        null["error"]
            .as_object()
            .is_some_and(|e| e.contains_key("param") && e["param"].is_null())
    );
    assert!(ApiError::busy("x").is_retryable() && ApiError::unavailable("x").is_retryable());
    assert!(!ApiError::invalid("n", "x").is_retryable());
}

#[test]
fn stream_framing_is_golden() {
    let text = ChatCompletionChunk::text("id", 7, "m", "a\nb".to_owned());
    assert_eq!(
        sse_event(&text),
        "data: {\"id\":\"id\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,\
         \"delta\":{\"content\":\"a\\nb\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    );
    let mut last =
        ChatCompletionChunk::new("id", 7, "m", Delta::default(), Some(FinishReason::Length));
    last.usage = Some(Usage::new(5, 2, 3));
    let event = sse_event(&last);
    assert!(
        event.contains("\"finish_reason\":\"length\"") && event.contains("\"cached_tokens\":2"),
        "{event}"
    );
    assert!(
        sse_error(&ApiError::bad_gateway("lost"))
            .starts_with("data: {\"error\":{\"message\":\"lost\"")
    );
    assert_eq!(SSE_DONE, "data: [DONE]\n\n");
}

#[test]
fn answers_of_other_servers_are_read() {
    let chunk: ChatCompletionChunk = serde_json::from_value(json!({
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "f",
        "choices": [{"index": 0, "delta": {"content": "hi", "refusal": null}, "logprobs": {"content": []}}],
    }))
    .expect("chunk");
    assert_eq!(chunk.choices[0].delta.content.as_deref(), Some("hi"));
    assert_eq!(chunk.tandem, None);
}

#[test]
fn whole_answers_go_both_ways() {
    let mut whole = ChatCompletion::new(
        "id",
        1,
        "m",
        "hi".to_owned(),
        FinishReason::Stop,
        Usage::new(1, 0, 1),
    );
    let info = TandemInfo {
        mode: "remote".to_owned(),
        tokens: Some(vec![1, 2]),
        ..TandemInfo::default()
    };
    whole.tandem = Some(info);
    let text = serde_json::to_string(&whole).expect("json");
    assert_eq!(
        serde_json::from_str::<ChatCompletion>(&text).expect("parse"),
        whole
    );
    let models = serde_json::to_value(ModelList::new(["a"], 3)).expect("json");
    assert_eq!(
        models,
        json!({"object": "list", "data": [{"id": "a", "object": "model", "created": 3, "owned_by": "tandem"}]})
    );
}

proptest! {
    /// No body makes the parsers panic, and an error never repeats the prompt.
    #[test]
    fn any_value_in_any_field(field in "(model|messages|prompt|stop|seed|top_k|tandem|response_format|n)", text in "\\PC{0,20}", n in any::<f64>()) {
        for value in [json!(text), json!(n), json!([text]), json!({"type": text, "role": text}), json!([{"role": "user", "content": text}])] {
            let _ = chat(json!({field.clone(): value.clone()}));
            let _ = completion(json!({field.clone(): value}));
        }
        let _ = parse_chat(text.as_bytes(), false);
    }
}

#[test]
fn what_a_router_adds_to_each_request_changes_nothing() {
    let both = json!({"no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false});
    let mut of_chat = both.clone();
    for (name, value) in [
        ("logprobs", false),
        ("continue_final_message", false),
        ("separate_reasoning", true),
        ("stream_reasoning", true),
        ("include_reasoning", true),
    ] {
        of_chat[name] = json!(value);
    }
    assert_eq!(chat(of_chat), chat(json!({})));
    assert_eq!(completion(both), completion(json!({})));
    refuses_chat(&[(
        json!({"return_hidden_states": true}),
        "return_hidden_states",
    )]);
}

#[test]
fn what_another_server_reads_goes_on_but_for_what_would_steer_it() {
    let body = merged(
        json!({"model": "m", "messages": [{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}]}]}),
        json!({"tools": [{}], "logit_bias": {"1": 2}, "stream": true, "max_tokens": 3, "guided_json": {"type": "object"},
            "kv_transfer_params": {}, "bootstrap_host": "x", "X-Override-Rid": "y", "x-prefiller-host-port": "z", "nvext": {}}),
    );
    let (request, passed) = pass_chat(&body).unwrap();
    assert_eq!(
        (request.stream, request.sampling.max_tokens),
        (true, Some(3))
    );
    assert_eq!(request.messages[0].content, "a");
    assert!(matches!(request.response_format, Format::JsonSchema { .. }));
    let names: Vec<&String> = passed.keys().collect();
    assert_eq!(names, ["messages", "tools", "logit_bias"]);
    let removed = [
        "kv_transfer_params",
        "bootstrap_host",
        "X-Override-Rid",
        "x-prefiller-host-port",
        "nvext",
    ];
    assert_eq!(request.ignored, removed);
    assert_eq!(model_of(&body).as_deref(), Some("m"));
}
