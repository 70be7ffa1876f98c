//! A handoff that breaks: the answer still comes, with the same tokens, and says so.

use tandem_engine::fake::{CallKind, Failure, FakeConfig};
use tandem_proto::{ErrorCode, PrefillEvent, PrefillFailed, PrefillMode, Role};

use super::cluster::{
    finish, hand_over, limits, local_tokens, node, opened, prefill_end, prompt, request,
};

#[tokio::test]
async fn a_prefill_that_fails_midway_costs_time_and_not_the_answer() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let chunk = config.microbatch_tokens;
        let tokens = prompt(chunk * 6 + 1);
        let expected = local_tokens(&config, &tokens, chunk).await;
        let mut broken = config.clone();
        broken.fail = Some(Failure {
            call: CallKind::Prefill,
            nth: 3,
        });
        let prefill = node(Role::Prefill, broken, limits()).await;
        let decode = node(Role::Decode, config.clone(), limits()).await;
        let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
        let end = prefill_end(&mut sending).await;
        assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
        let answer = finish(&mut events).await;
        assert!(
            answer.done && answer.summary.fallback.is_some(),
            "{answer:?}"
        );
        // What came before the fault is kept; a window model cannot continue without its window.
        let kept = if config.window > 0 { 0 } else { chunk * 3 };
        assert_eq!(answer.summary.remote_tokens, kept);
        assert_eq!(answer.summary.local_tokens, chunk * 6 - kept);
        assert_eq!(answer.tokens, expected);
        prefill.idle().await;
        decode.idle().await;
    }
}

#[tokio::test]
async fn an_import_that_fails_is_made_good_by_a_local_prefill() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let tokens = prompt(chunk * 4 + 1);
    let expected = local_tokens(&config, &tokens, chunk).await;
    let mut broken = config.clone();
    broken.fail = Some(Failure {
        call: CallKind::Import,
        nth: 2,
    });
    let prefill = node(Role::Prefill, config.clone(), limits()).await;
    let decode = node(Role::Decode, broken, limits()).await;
    let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
    let answer = finish(&mut events).await;
    assert_eq!(answer.summary.remote_tokens, chunk * 2);
    assert_eq!(answer.tokens, expected);
    assert!(matches!(
        prefill_end(&mut sending).await,
        PrefillEvent::Failed(_)
    ));
    prefill.idle().await;
}

#[tokio::test]
async fn the_coordinator_can_say_that_no_kv_will_come() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let decode = node(Role::Decode, config.clone(), limits()).await;
    let tokens = prompt(chunk * 2);
    let request = request(&tokens, PrefillMode::Remote, chunk);
    let mut events = decode.generate(&request).await.unwrap();
    opened(&mut events).await.expect("ticket");
    let url = format!("{}/node/v1/requests/req-1/prefill-failed", decode.url);
    let body = PrefillFailed {
        reason: "the prefill node is gone".into(),
    };
    let response = reqwest::Client::new()
        .post(url)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 204);
    let answer = finish(&mut events).await;
    assert_eq!(
        answer.summary.fallback.as_deref(),
        Some("the prefill node is gone")
    );
    assert_eq!(answer.tokens, local_tokens(&config, &tokens, chunk).await);
}

#[tokio::test]
async fn an_engine_that_fails_to_decode_gives_an_error_and_frees_the_slot() {
    let config = FakeConfig {
        fail: Some(Failure {
            call: CallKind::Decode,
            nth: 2,
        }),
        ..FakeConfig::default()
    };
    let both = node(Role::Both, config.clone(), limits()).await;
    let request = request(&prompt(5), PrefillMode::Local, config.microbatch_tokens);
    let answer = finish(&mut both.generate(&request).await.unwrap()).await;
    assert_eq!(answer.failed.expect("failed").code, ErrorCode::Engine);
    both.idle().await;
    let answer = finish(&mut both.generate(&request).await.unwrap()).await;
    assert!(answer.done);
}
