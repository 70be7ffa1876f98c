//! What a node says no to, and that it names the field.

use std::time::{Duration, Instant};

use tandem_engine::fake::FakeConfig;
use tandem_proto::{ErrorCode, PrefillEvent, PrefillMode, Prompt, Role};

use super::cluster::{
    finish, hand_over, limits, local_tokens, node, opened, prefill_end, prefill_request, prompt,
    request,
};

fn changed(field: &str) -> FakeConfig {
    let mut config = FakeConfig::default();
    match field {
        "weights" => config.weights = "other".into(),
        "quantisation" => config.quantisation = "other".into(),
        "tokenizer" => config.tokenizer = "other".into(),
        "layers.len" => drop(config.layers.pop()),
        "layers[0].kv_heads" => config.layers[0].kv_heads += 1,
        other => panic!("{other}"),
    }
    config
}

#[tokio::test]
async fn a_difference_of_contract_is_refused_by_name_and_the_answer_still_comes() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let tokens = prompt(chunk * 2 + 3);
    let expected = local_tokens(&config, &tokens, chunk).await;
    for field in [
        "weights",
        "quantisation",
        "tokenizer",
        "layers.len",
        "layers[0].kv_heads",
    ] {
        let prefill = node(Role::Prefill, changed(field), limits()).await;
        let decode = node(Role::Decode, config.clone(), limits()).await;
        let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
        let PrefillEvent::Failed(error) = prefill_end(&mut sending).await else {
            panic!("{field} was not refused");
        };
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.message.contains(&format!("`{field}`")), "{error}");
        let answer = finish(&mut events).await;
        let reason = answer.summary.fallback.expect("fallback");
        assert!(reason.contains(&format!("`{field}`")), "{reason}");
        assert_eq!(
            answer.summary.handoff_bytes, 0,
            "KV moved before the refusal"
        );
        assert_eq!(answer.tokens, expected);
        prefill.clean().await;
        decode.clean().await;
    }
}

#[tokio::test]
async fn other_tokens_a_used_ticket_and_an_unknown_ticket_are_refused() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let prefill = node(Role::Prefill, config.clone(), limits()).await;
    let decode = node(Role::Decode, config.clone(), limits()).await;
    let tokens = prompt(chunk * 2);
    let request = request(&tokens, PrefillMode::Remote, chunk);
    let mut events = decode.generate(&request).await.unwrap();
    let ticket = opened(&mut events).await.expect("ticket");

    let mut unknown = prefill_request(&tokens, &ticket, chunk);
    unknown.ticket = "00".repeat(16);
    let end = prefill_end(&mut prefill.prefill(&unknown).await.unwrap()).await;
    assert!(
        matches!(&end, PrefillEvent::Failed(e) if e.message.contains("`ticket`")),
        "{end:?}"
    );

    let mut other = tokens.clone();
    other[0] += 1;
    let other = prefill_request(&other, &ticket, chunk);
    let end = prefill_end(&mut prefill.prefill(&other).await.unwrap()).await;
    assert!(
        matches!(&end, PrefillEvent::Failed(e) if e.message.contains("`token_digest`")),
        "{end:?}"
    );

    let again = prefill_request(&tokens, &ticket, chunk);
    let end = prefill_end(&mut prefill.prefill(&again).await.unwrap()).await;
    assert!(
        matches!(&end, PrefillEvent::Failed(e) if e.message.contains("`ticket`")),
        "{end:?}"
    );

    let answer = finish(&mut events).await;
    assert_eq!(answer.tokens, local_tokens(&config, &tokens, chunk).await);
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test]
async fn a_ticket_that_nobody_uses_expires_and_the_node_prefills_itself() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let mut short = limits();
    short.handoff_silence = Duration::from_millis(50);
    let start = Instant::now();
    let decode = node(Role::Decode, config.clone(), short).await;
    let tokens = prompt(chunk * 2);
    let request = request(&tokens, PrefillMode::Remote, chunk);
    let mut events = decode.generate(&request).await.unwrap();
    opened(&mut events).await.expect("ticket");
    let answer = finish(&mut events).await;
    assert!(
        answer
            .summary
            .fallback
            .expect("fallback")
            .contains("no prefill node connected")
    );
    assert!(start.elapsed() >= short.handoff_silence);
    assert_eq!(answer.tokens, local_tokens(&config, &tokens, chunk).await);
    decode.clean().await;
}

#[tokio::test]
async fn impossible_requests_are_refused_with_code_and_field() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let both = node(Role::Both, config.clone(), limits()).await;
    let good = || request(&prompt(8), PrefillMode::Local, chunk);
    let mut cases = Vec::new();
    let mut case = good();
    case.model = "nope".into();
    cases.push((case, ErrorCode::UnknownModel, "`nope`"));
    let mut case = good();
    case.prompt = Prompt::Tokens(prompt(config.tokens_per_sequence));
    cases.push((case, ErrorCode::ContextLength, "context"));
    let mut case = good();
    case.generation.sampling.max_tokens = Some(config.tokens_per_sequence);
    cases.push((case, ErrorCode::ContextLength, "`max_tokens`"));
    let mut case = good();
    case.prompt = Prompt::Tokens(Vec::new());
    cases.push((case, ErrorCode::InvalidRequest, "`prompt`"));
    let mut case = good();
    case.prompt = Prompt::Tokens(vec![u32::MAX]);
    cases.push((case, ErrorCode::InvalidRequest, "vocabulary"));
    let mut case = good();
    case.chunk = chunk + 1;
    cases.push((case, ErrorCode::InvalidRequest, "`chunk`"));
    let mut case = good();
    case.request = "../etc".into();
    cases.push((case, ErrorCode::InvalidRequest, "`request`"));
    let mut case = good();
    case.generation.sampling.temperature = Some(-1.0);
    cases.push((case, ErrorCode::InvalidRequest, "`temperature`"));
    for (request, code, part) in cases {
        let Err(error) = both.generate(&request).await else {
            panic!("{part} was accepted");
        };
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(part), "{error}");
    }
    let prefill_only = node(Role::Prefill, config.clone(), limits()).await;
    let Err(error) = prefill_only.generate(&good()).await else {
        panic!("a prefill node generated");
    };
    assert_eq!(error.code, ErrorCode::WrongRole);
    both.idle().await;
}

#[tokio::test]
async fn a_full_node_is_busy_and_a_freed_place_is_used_again() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let decode = node(Role::Decode, config.clone(), limits()).await;
    let waiting = |i: u32| {
        let mut r = request(&prompt(chunk + 1), PrefillMode::Remote, chunk);
        r.request = format!("req-{i}");
        r
    };
    let mut held = Vec::new();
    for i in 0..config.sequences {
        held.push(decode.generate(&waiting(i)).await.unwrap());
    }
    let Err(error) = decode.generate(&waiting(99)).await else {
        panic!("more sequences than there are");
    };
    assert_eq!(error.code, ErrorCode::Busy);
    // A place that becomes free soon is waited for.
    let (last, next) = (held.pop(), waiting(98));
    let (asked, ()) = tokio::join!(decode.generate(&next), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(last);
    });
    held.push(asked.unwrap());
    drop(held);
    decode.idle().await;
    assert!(decode.generate(&waiting(100)).await.is_ok());
    decode.clean().await;
}
