//! Prefill on one node, decode on another.

use tandem_engine::fake::FakeConfig;
use tandem_proto::{PrefillEvent, PrefillMode, Role};

use super::cluster::{
    finish, hand_over, limits, local_tokens, node, opened, prefill_end, prefill_request, prompt,
    request,
};

#[tokio::test]
async fn remote_prefill_gives_the_tokens_of_local_prefill() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let prefill = node(Role::Prefill, config.clone(), limits()).await;
        let decode = node(Role::Decode, config.clone(), limits()).await;
        let chunk = config.microbatch_tokens * 2;
        for n in [2, 3, chunk, chunk + 1, chunk * 3 + 5] {
            let tokens = prompt(n);
            let (mut events, mut sending) = hand_over(&prefill, &decode, &tokens, chunk).await;
            let answer = finish(&mut events).await;
            assert!(answer.done, "{answer:?}");
            assert_eq!(answer.summary.fallback, None);
            assert_eq!(answer.summary.remote_tokens, n - 1);
            assert_eq!(answer.summary.local_tokens, 0);
            assert_eq!(
                answer.tokens,
                local_tokens(&config, &tokens, chunk).await,
                "{n} tokens"
            );
            let PrefillEvent::Done { handoff_bytes, .. } = prefill_end(&mut sending).await else {
                panic!("the prefill did not end well");
            };
            assert_eq!(handoff_bytes, answer.summary.handoff_bytes);
            prefill.idle().await;
            decode.idle().await;
        }
    }
}

#[tokio::test]
async fn a_prompt_of_one_token_needs_no_ticket() {
    let config = FakeConfig::default();
    let decode = node(Role::Decode, config.clone(), limits()).await;
    let tokens = prompt(1);
    let request = request(&tokens, PrefillMode::Remote, config.microbatch_tokens);
    let mut events = decode.generate(&request).await.unwrap();
    assert!(opened(&mut events).await.is_none());
    let answer = finish(&mut events).await;
    assert_eq!(
        answer.tokens,
        local_tokens(&config, &tokens, config.microbatch_tokens).await
    );
}

#[tokio::test]
async fn several_handoffs_at_once_do_not_mix() {
    let config = FakeConfig::default();
    let prefill = node(Role::Prefill, config.clone(), limits()).await;
    let decode = node(Role::Decode, config.clone(), limits()).await;
    let chunk = config.microbatch_tokens;
    let mut running = Vec::new();
    for i in 0..config.sequences {
        let tokens = prompt(chunk * (i + 2) + i);
        let mut request = request(&tokens, PrefillMode::Remote, chunk);
        request.request = format!("req-{i}");
        let mut events = decode.generate(&request).await.unwrap();
        let ticket = opened(&mut events).await.expect("ticket");
        running.push((tokens, events, ticket));
    }
    let mut sending = Vec::new();
    for (tokens, _, ticket) in &running {
        sending.push(
            prefill
                .prefill(&prefill_request(tokens, ticket, chunk))
                .await
                .unwrap(),
        );
    }
    for (tokens, events, _) in &mut running {
        let answer = finish(events).await;
        assert_eq!(answer.summary.fallback, None);
        assert_eq!(answer.tokens, local_tokens(&config, tokens, chunk).await);
    }
}
