//! Nodes that die or stand still during a handoff.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_node::Limits;
use tandem_proto::{ErrorCode, PrefillEvent, PrefillMode, Role};

use super::cluster::{
    Deal, PATIENCE, Reuse, Setup, TestNode, endless, eventually, finish, limits, prefill_end,
    prompt,
};

/// Holds calls of one kind from the `nth` on, until it is let go.
#[derive(Clone)]
pub struct Brake(Arc<Held>);

struct Held {
    /// Calls that still pass.
    pass: AtomicU32,
    is_released: AtomicBool,
    is_reached: AtomicBool,
}

impl Brake {
    pub fn on(config: &mut FakeConfig, kind: CallKind, nth: u32) -> Self {
        let brake = Self(Arc::new(Held {
            pass: AtomicU32::new(nth),
            is_released: AtomicBool::new(false),
            is_reached: AtomicBool::new(false),
        }));
        let (held, before) = (Arc::clone(&brake.0), config.gate.take());
        config.gate = Some(Arc::new(move |call: &Call| {
            if let Some(before) = &before {
                before(call);
            }
            let pass = |left: u32| left.checked_sub(1);
            let order = Ordering::Relaxed;
            if call.kind() != kind || held.pass.fetch_update(order, order, pass).is_ok() {
                return;
            }
            held.is_reached.store(true, order);
            while !held.is_released.load(order) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
        brake
    }

    /// Waits until a call is held.
    pub async fn reached(&self) {
        eventually("a call", || self.0.is_reached.load(Ordering::Relaxed)).await;
    }

    pub fn release(&self) {
        self.0.is_released.store(true, Ordering::Relaxed);
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        // The gate itself has a clone, so that only the test's own ends the hold.
        if Arc::strong_count(&self.0) == 2 {
            self.release();
        }
    }
}

/// Waits until the first sequence of a node holds so many tokens.
pub async fn held(node: &TestNode, tokens: u32) {
    let wait = async {
        loop {
            let status = node.status().await;
            let sequences = &status.models[0].sequences;
            if sequences.iter().any(|s| s.held_tokens >= tokens) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("KV does not arrive");
}

fn deal(config: &FakeConfig) -> Deal {
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 5 + 1), chunk);
    Reuse::Alone.set(&mut deal.terms);
    deal
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_node_that_dies_costs_time_and_not_the_answer() {
    let usual = [FakeConfig::default(), FakeConfig::windowed()].map(|config| (config, false));
    for (config, is_told) in usual.into_iter().chain([(FakeConfig::default(), true)]) {
        let mut slow = config.clone();
        let brake = Brake::on(&mut slow, CallKind::Prefill, 2);
        let prefill = Setup {
            mortal: true,
            ..Setup::new(Role::Prefill, &slow)
        };
        let prefill = prefill.start().await;
        let waits = if is_told { endless() } else { limits() };
        let decode = Setup {
            limits: waits,
            ..Setup::new(Role::Decode, &config)
        };
        let decode = decode.start().await;
        let deal = deal(&config);
        let (mut events, ticket) = deal.open(&decode).await;
        let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
        while !matches!(
            sending.next().await,
            Some(PrefillEvent::Progress { tokens, .. }) if tokens == deal.chunk * 2
        ) {}
        if config.window == 0 {
            held(&decode, deal.chunk * 2).await;
        }
        prefill.kill();
        let start = Instant::now();
        if is_told {
            decode.prefill_failed(&deal.id, "it has gone").await;
        }
        let answer = finish(&mut events).await;
        assert!(answer.done, "{answer:?}");
        assert!(answer.summary.fallback.is_some(), "{answer:?}");
        assert_eq!(answer.tokens, deal.expected(&config).await);
        // A model with windows starts over.
        let kept = if config.window == 0 {
            deal.chunk * 2
        } else {
            0
        };
        assert_eq!(answer.summary.remote_tokens, kept);
        assert!(is_told || start.elapsed() >= waits.resume);
        decode.clean().await;
        drop(brake);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_dies_is_noticed_and_another_one_takes_over() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut slow = config.clone();
        let brake = Brake::on(&mut slow, CallKind::Import, 1);
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup {
            mortal: true,
            ..Setup::new(Role::Decode, &slow)
        };
        let decode = decode.start().await;
        let mut deal = deal(&config);
        let (mut events, ticket) = deal.open(&decode).await;
        let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
        while !matches!(sending.next().await, Some(PrefillEvent::Progress { .. })) {}
        decode.kill();
        assert!(!finish(&mut events).await.done);
        let PrefillEvent::Failed(error) = prefill_end(&mut sending).await else {
            panic!("a handoff to a dead node was confirmed");
        };
        assert_eq!(error.code, ErrorCode::Handoff, "{error}");
        prefill.clean().await;
        drop(brake);
        let other = Setup::new(Role::Decode, &config).start().await;
        deal.id = "req-2".into();
        let outcome = deal.run(&prefill, &other).await;
        outcome.whole(&deal.expected(&config).await, "the other node");
        other.clean().await;
        prefill.clean().await;
    }
}

/// A node whose engine may hang.
fn hanging(role: Role, config: &FakeConfig) -> Setup {
    Setup {
        mortal: true,
        limits: Limits {
            engine_step: Duration::from_millis(400),
            stop: Duration::from_millis(100),
            ..endless()
        },
        ..Setup::new(role, config)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_node_whose_engine_hangs_ends_and_costs_time_and_not_the_answer() {
    let config = FakeConfig::default();
    let mut slow = config.clone();
    let brake = Brake::on(&mut slow, CallKind::Prefill, 2);
    let mut prefill = hanging(Role::Prefill, &slow).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let deal = deal(&config);
    let (mut events, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    brake.reached().await;
    let start = Instant::now();
    let reason = prefill.fault().await;
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(reason.contains("does not come back"), "{reason}");
    while sending.next().await.is_some() {}
    let answer = finish(&mut events).await;
    assert!(
        answer.done && answer.summary.fallback.is_some(),
        "{answer:?}"
    );
    // As much of the two chunks before as had come.
    assert!(answer.summary.remote_tokens > 0, "{answer:?}");
    assert_eq!(answer.tokens, deal.expected(&config).await);
    decode.clean().await;
    drop(brake);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_whose_engine_hangs_ends_and_both_streams_with_it() {
    for kind in [CallKind::Import, CallKind::Decode] {
        let config = FakeConfig::default();
        let mut slow = config.clone();
        let brake = Brake::on(&mut slow, kind, 1);
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let mut decode = hanging(Role::Decode, &slow).start().await;
        let deal = deal(&config);
        let (mut events, ticket) = deal.open(&decode).await;
        let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
        brake.reached().await;
        let reason = decode.fault().await;
        assert!(reason.contains("does not come back"), "{reason}");
        assert!(!finish(&mut events).await.done);
        if let PrefillEvent::Failed(error) = prefill_end(&mut sending).await {
            assert_eq!(error.code, ErrorCode::Handoff, "{error}");
        } else {
            assert_eq!(
                kind,
                CallKind::Decode,
                "a handoff to a dead node was confirmed"
            );
        }
        prefill.clean().await;
        drop(brake);
    }
}

/// Each step of it, and not their sum, has to be within the limit.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_slow_does_not_hang() {
    let config = FakeConfig {
        gate: Some(Arc::new(|call: &Call| {
            if call.kind() == CallKind::Prefill {
                std::thread::sleep(Duration::from_millis(500));
            }
        })),
        ..FakeConfig::default()
    };
    let mut setup = hanging(Role::Both, &config);
    setup.mortal = false;
    setup.limits.engine_step = Duration::from_secs(2);
    let node = setup.start().await;
    let deal = deal(&config);
    let start = Instant::now();
    let request = deal.generate(PrefillMode::Local);
    let mut events = node.generate(&request).await.unwrap();
    let answer = finish(&mut events).await;
    assert!(answer.done, "{answer:?}");
    assert!(start.elapsed() > Duration::from_secs(2));
    // Without work it is as alive.
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.clean().await;
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_stands_still_for_five_seconds_is_waited_for() {
    let config = FakeConfig::default();
    let mut slow = config.clone();
    let brake = Brake::on(&mut slow, CallKind::Import, 1);
    let setup = |role, config| Setup {
        limits: Limits::default(),
        ..Setup::new(role, config)
    };
    let prefill = setup(Role::Prefill, &config).start().await;
    let decode = setup(Role::Decode, &slow).start().await;
    let deal = deal(&config);
    let later = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        brake.release();
    };
    let (outcome, ()) = tokio::join!(deal.run(&prefill, &decode), later);
    outcome.whole(&deal.expected(&config).await, "paused");
    assert_eq!(outcome.done().3, 0, "no connection broke");
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_given_up_within_the_silence_and_the_rest_is_computed() {
    // A peer that takes the connection and then does nothing at all, as a stopped process does.
    let listener = super::cluster::bind().await;
    let port = listener.local_addr().unwrap().port();
    let mut short = limits();
    short.handoff_silence = Duration::from_millis(300);
    let config = FakeConfig::default();
    let prefill = Setup {
        limits: short,
        ..Setup::new(Role::Prefill, &config)
    };
    let prefill = prefill.start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = deal(&config);
    deal.via = Some(port);
    let start = Instant::now();
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&deal.expected(&config).await, "stopped");
    assert!(reason.contains("silent"), "{reason}");
    assert!(start.elapsed() >= short.handoff_silence);
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_cannot_be_connected_to_computes_itself() {
    let config = FakeConfig::default();
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = deal(&config);
    // Nobody listens there.
    let listener = super::cluster::bind().await;
    deal.via = Some(listener.local_addr().unwrap().port());
    drop(listener);
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&deal.expected(&config).await, "nobody");
    assert!(reason.contains("cannot connect"), "{reason}");
    prefill.clean().await;
    decode.clean().await;
}
