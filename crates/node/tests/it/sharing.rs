//! Beginnings that requests of one node share in its engine: computed once, and the answers are those of requests alone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tandem_engine::fake::{Call, FakeConfig};
use tandem_proto::{GenerateRequest, PrefillMode, Role};

use super::cluster::{
    Answer, Calls, Deal, PATIENCE, Reuse, Setup, TestNode, finish, opened, prompt, request,
};
use super::reuse::ending;

/// What all prompts here begin with.
const COMMON: u32 = 128;

fn asked(tokens: &[u32], id: usize) -> GenerateRequest {
    let mut request = request(tokens, PrefillMode::Local, 32);
    request.request = format!("req-{id}");
    request
}

/// Without pages, so that only the engine's cache is shared.
async fn unpaged(config: &FakeConfig) -> TestNode {
    let mut setup = Setup::new(Role::Both, config);
    setup.pages.ram_bytes = 0;
    setup.start().await
}

async fn all_at_once(node: &TestNode, prompts: &[Vec<u32>]) -> Vec<Answer> {
    let ask = |(id, tokens): (usize, &Vec<u32>)| {
        let request = asked(tokens, id);
        async move { finish(&mut node.generate(&request).await.unwrap()).await }
    };
    futures_util::future::join_all(prompts.iter().enumerate().map(ask)).await
}

/// Tokens of a kind of prompt: the answers are right, and each token was computed, brought by another sequence, or both.
async fn check(answers: &[Answer], prompts: &[Vec<u32>], config: &FakeConfig) {
    for (answer, tokens) in answers.iter().zip(prompts) {
        assert!(answer.done, "{answer:?}");
        assert_eq!(
            answer.tokens,
            Deal::new(tokens, 32).expected(config).await,
            "{answer:?}"
        );
        let summary = &answer.summary;
        assert_eq!(
            summary.cached_tokens + summary.local_tokens,
            tokens.len() as u32 - 1
        );
    }
}

#[tokio::test]
async fn requests_at_once_compute_their_common_beginning_once() {
    for mut config in [FakeConfig::default(), FakeConfig::windowed()] {
        // The first one reads its first tokens until the others have come.
        let (come, all_come) = std::sync::mpsc::channel();
        let wait = Mutex::new(Some(all_come));
        config.gate = Some(Arc::new(move |call| {
            if matches!(call, Call::Prefill { .. })
                && let Some(all_come) = wait.lock().unwrap().take()
            {
                let _: Result<(), _> = all_come.recv_timeout(PATIENCE);
            }
        }));
        let calls = Calls::of(&mut config);
        let node = unpaged(&config).await;
        let prompts: Vec<_> = (0..4).map(|i| ending(i, 20 + i)).collect();
        let mut streams = Vec::new();
        for (id, tokens) in prompts.iter().enumerate() {
            streams.push(node.generate(&asked(tokens, id)).await.unwrap());
        }
        come.send(()).unwrap();
        let mut answers = Vec::new();
        for stream in &mut streams {
            answers.push(finish(stream).await);
        }
        check(&answers, &prompts, &config).await;
        // What they have in common, and what each has of its own but for its last token.
        let own: u32 = prompts.iter().map(|p| p.len() as u32 - COMMON - 1).sum();
        let computed = calls.prefilled();
        assert_eq!(computed, COMMON + own, "{:?}", config.window);
        node.clean().await;
    }
}

/// Also the second request behind the first one, and at once.
#[tokio::test]
async fn what_has_ended_is_shared_at_once() {
    let config = FakeConfig::default();
    let node = unpaged(&config).await;
    for i in 0..20 {
        let prompts = [ending(i, 30)];
        let answers = all_at_once(&node, &prompts).await;
        check(&answers, &prompts, &config).await;
        let cached = answers[0].summary.cached_tokens;
        assert!(i == 0 || cached >= COMMON, "{i}: {cached}");
    }
    node.clean().await;
}

/// A window is at one position: the third prompt that parts there finds it.
#[tokio::test]
async fn a_window_is_copied_where_prompts_part() {
    let config = FakeConfig::windowed();
    let node = unpaged(&config).await;
    for (i, cached) in [(0, 0), (1, 0), (2, COMMON), (3, COMMON)] {
        let prompts = [ending(i, 30)];
        let answers = all_at_once(&node, &prompts).await;
        check(&answers, &prompts, &config).await;
        assert_eq!(answers[0].summary.cached_tokens, cached, "{i}");
    }
    node.clean().await;
}

/// Kinds of models whose KV is handed over, layer by layer or a part at a time.
fn handed_over() -> impl Iterator<Item = FakeConfig> {
    let kinds = [FakeConfig::default(), FakeConfig::windowed()];
    kinds.into_iter().flat_map(|config| {
        [false, true].map(|by_layer| FakeConfig {
            by_layer,
            ..config.clone()
        })
    })
}

/// A prefill node and a decode node without pages, and the calls of the first one.
async fn pair(mut config: FakeConfig) -> (TestNode, TestNode, Calls) {
    let calls = Calls::of(&mut config);
    let start = |role, config: &FakeConfig| {
        let mut setup = Setup::new(role, config);
        setup.pages.ram_bytes = 0;
        setup.start()
    };
    let prefill = start(Role::Prefill, &config).await;
    config.gate = None;
    (prefill, start(Role::Decode, &config).await, calls)
}

fn deal(id: u32) -> Deal {
    let mut deal = Deal::new(&ending(id, 40 + id), 32);
    deal.id = format!("req-{id}");
    Reuse::All.set(&mut deal.terms);
    deal
}

/// Both nodes go on from rows that they have: those are neither computed nor sent again.
#[tokio::test]
async fn pairs_compute_and_send_a_common_beginning_once() {
    for config in handed_over() {
        let (prefill, decode, calls) = pair(config.clone()).await;
        // Where prompts part is known from the second one on.
        let first = if config.window > 0 { 2 } else { 1 };
        for id in 0..4 {
            let deal = deal(id);
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&deal.expected(&config).await, "tokens");
            let there = if id == 0 { 0 } else { COMMON };
            assert_eq!(outcome.done().2, there, "{id}");
            assert_eq!(outcome.answer.summary.cached_tokens, there, "{id}");
            let kv_end = deal.tokens.len() as u32 - 1;
            let known = if id < first { 0 } else { COMMON };
            assert_eq!(calls.prefilled(), kv_end - known, "{id}");
        }
        prefill.clean().await;
        decode.clean().await;
    }
}

/// Prompts of several requests are read in the same calls, and what they have in common once.
#[tokio::test]
async fn pairs_share_what_comes_at_once() {
    for config in handed_over() {
        let (prefill, decode, calls) = pair(config.clone()).await;
        let deals: Vec<Deal> = (0..4).map(deal).collect();
        let outcomes = deals.iter().map(|deal| deal.run(&prefill, &decode));
        let outcomes = futures_util::future::join_all(outcomes).await;
        let mut own = 0;
        for (deal, outcome) in deals.iter().zip(outcomes) {
            outcome.whole(&deal.expected(&config).await, "tokens");
            own += deal.tokens.len() as u32 - 1 - COMMON;
        }
        // Where prompts part may be known from the second one on only.
        let most = if config.window > 0 { 2 } else { 1 };
        let common = calls.prefilled() - own;
        assert!(common == COMMON || common == most * COMMON, "{common}");
        prefill.clean().await;
        decode.clean().await;
    }
}

#[tokio::test]
async fn other_salts_and_requests_without_reuse_share_nothing() {
    let config = FakeConfig::default();
    let node = unpaged(&config).await;
    for (i, (salt, reuse, cached)) in [
        ("one", Reuse::All, 0),
        ("two", Reuse::All, 0),
        ("one", Reuse::Off, 0),
        ("one", Reuse::All, COMMON),
        ("two", Reuse::All, COMMON),
    ]
    .into_iter()
    .enumerate()
    {
        let tokens = ending(i as u32, 20);
        let mut request = asked(&tokens, i);
        request.terms.salt = salt.into();
        reuse.set(&mut request.terms);
        let answer = finish(&mut node.generate(&request).await.unwrap()).await;
        assert_eq!(answer.summary.cached_tokens, cached, "{i}");
        check(&[answer], &[tokens], &config).await;
    }
    node.clean().await;
}

/// More requests than the cache has room for, some of which go: all that is left is right, and nothing leaks.
#[tokio::test]
async fn a_full_cache_makes_room() {
    for windowed in [false, true] {
        let mut config = match windowed {
            false => FakeConfig::default(),
            true => FakeConfig::windowed(),
        };
        config.tokens_per_sequence = 256;
        let node = unpaged(&config).await;
        for round in 0..12 {
            let prompts: Vec<_> = (0..4)
                .map(|i| match (round + i) % 3 {
                    0 => prompt(40 + 9 * round + i),
                    1 => ending(round + i, 60),
                    _ => (0..200).map(|t| 33 + (t * (round + 3) + i) % 90).collect(),
                })
                .collect();
            let gone = asked(&prompts[0], 99);
            drop(node.generate(&gone).await);
            let rest = &prompts[1..];
            let answers = all_at_once(&node, rest).await;
            check(&answers, rest, &config).await;
        }
        node.clean().await;
    }
}

/// A reproducible request starts when the others have ended, and those behind it wait for its end.
#[tokio::test]
async fn a_reproducible_request_runs_alone() {
    let mut config = FakeConfig::default();
    let calls = Calls::of(&mut config);
    let node = unpaged(&config).await;
    let (first, alone, last) = (ending(1, 20), ending(2, 20), ending(3, 20));
    let mut running = node.generate(&asked(&first, 0)).await.unwrap();
    opened(&mut running).await;
    let mut request = asked(&alone, 1);
    Reuse::Exact.set(&mut request.terms);
    let later = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        finish(&mut node.generate(&asked(&last, 2)).await.unwrap()).await
    };
    let reproducible = async { finish(&mut node.generate(&request).await.unwrap()).await };
    let (one, two, three) = tokio::join!(finish(&mut running), reproducible, later);
    assert_eq!(
        (two.summary.cached_tokens, two.summary.local_tokens),
        (0, COMMON + 19)
    );
    check(&[one, two, three], &[first, alone, last], &config).await;
    for call in calls.take() {
        // Answers one after the other, never two in a step.
        if let Call::Decode { steps } = call {
            assert_eq!(steps.len(), 1);
        }
    }
    node.clean().await;
}
