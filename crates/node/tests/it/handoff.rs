//! Prefill on one node, decode on another.

use tandem_engine::fake::{Call, FakeConfig};
use tandem_handoff::Section;
use tandem_node::Limits;
use tandem_proto::{PrefillEvent, PrefillMode, Role};

use super::cluster::{
    Calls, Deal, Reuse, SHORT, finish, hand_over, limits, local_tokens, node, opened, prefill_end,
    prefill_request, prompt, request,
};
use super::raw::Handoff;

/// What is left to send when the prefill ends is one step, wherever in a chunk the prompt ends.
#[tokio::test]
async fn the_end_of_a_prompt_is_computed_and_sent_in_steps() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let (mut sending, mut receiving) = (config.clone(), config.clone());
        sending.tail_tokens = 8;
        receiving.tail_tokens = 8;
        let computed = [Calls::of(&mut sending), Calls::of(&mut receiving)];
        let prefill = node(Role::Prefill, sending, limits()).await;
        let decode = node(Role::Decode, receiving, limits()).await;
        for (prompt_tokens, ends) in [
            (32 * 2 + 21, &[32, 40, 48, 56, 64, 72, 80, 84][..]),
            (32 * 2 + 1, &[32, 40, 48, 56, 64]),
            (32 * 3 + 3, &[32, 64, 72, 80, 88, 96, 98]),
            (32 + 9, &[8, 16, 24, 32, 40]),
            (32 + 1, &[8, 16, 24, 32]),
            (7, &[6]),
        ] {
            let mut deal = Deal::new(&prompt(prompt_tokens), 32);
            Reuse::Alone.set(&mut deal.terms);
            let expected = deal.expected(&config).await;
            let remote = deal.run(&prefill, &decode).await;
            remote.whole(&expected, "remote");
            let calls = computed[0].take();
            assert_eq!(prefilled_to(&calls), ends, "{prompt_tokens}");
            // Rows leave after each step.
            let is_out = |end: &u32| {
                calls.iter().any(|call| match call {
                    Call::Export {
                        section, tokens, ..
                    } => *section == Section::Full && tokens.end == *end,
                    _ => false,
                })
            };
            assert!(ends.iter().all(is_out), "{calls:?}");
            computed[1].take();
            assert_eq!(deal.local(&decode).await.tokens, expected);
            assert_eq!(prefilled_to(&computed[1].take()), ends, "local");
        }
        decode.clean().await;
        prefill.clean().await;
    }
}

/// Where blocks end inside pages (in models with many bytes per token), the rest of a lost handoff is computed in
/// batches that give the bits of an undisturbed prefill.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_handoff_brought_is_gone_on_from_where_no_bit_changes() {
    let chunk = 256;
    let config = FakeConfig {
        prefill_tokens: chunk,
        tail_tokens: 128,
        ..FakeConfig::default()
    };
    let mut receiving = config.clone();
    let computed = Calls::of(&mut receiving);
    let waits = Limits {
        resume: SHORT,
        ..limits()
    };
    let decode = node(Role::Decode, receiving, waits).await;
    for (came, begins, ends) in [
        (51, 0, &[256, 384, 512, 600][..]),
        (115, 64, &[256, 384, 512, 600]),
        (250, 192, &[256, 384, 512, 600]),
        (256, 256, &[384, 512, 600]),
        (340, 320, &[384, 512, 600]),
        (590, 512, &[600]),
        (600, 600, &[]),
    ] {
        let mut deal = Deal::new(&prompt(601), chunk);
        Reuse::Alone.set(&mut deal.terms);
        let expected = deal.expected(&config).await;
        let (mut events, ticket) = deal.open(&decode).await;
        let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
        let mut at = 0;
        while at < came {
            at = came.min(at + 51);
            let block = handoff.compute(at);
            handoff.block(&block).await;
            while handoff.sender.in_flight() > 0 {
                handoff.hear().await.unwrap();
            }
        }
        computed.take();
        drop(handoff);
        let answer = finish(&mut events).await;
        assert_eq!(answer.tokens, expected, "{came}");
        let summary = &answer.summary;
        assert!(summary.fallback.is_some(), "{came}");
        let counted = (summary.remote_tokens, summary.local_tokens);
        assert_eq!(counted, (begins, 600 - begins), "{came}");
        assert_eq!(prefilled_to(&computed.take()), ends, "{came}");
        decode.clean().await;
    }
}

/// Where each call of a prefill ended.
fn prefilled_to(calls: &[Call]) -> Vec<u32> {
    let ends = calls.iter().filter_map(|call| match call {
        Call::Prefill { tokens, .. } => Some(tokens.end),
        _ => None,
    });
    ends.collect()
}

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
        decode.clean().await;
        prefill.clean().await;
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
    decode.clean().await;
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
    decode.clean().await;
    prefill.clean().await;
}
