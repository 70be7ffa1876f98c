//! KV that comes in does not stop what is being generated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_kv::{LayerKind, LayerSpec};
use tandem_node::limits::MAX_APPLY_SLICE_BYTES;
use tandem_proto::{PrefillMode, Reuse, Role};

use super::cluster::{Calls, Deal, PATIENCE, Setup, finish, opened, prompt};
use super::proxy::Proxy;

const CHUNK: u32 = 64;

/// Rows of 64 KiB a token: a chunk is a quarter of a slice.
fn heavy() -> FakeConfig {
    FakeConfig {
        layers: vec![LayerSpec {
            kind: LayerKind::Full,
            kv_heads: 64,
            key_dim: 256,
            value_dim: 256,
        }],
        prefill_tokens: CHUNK,
        ..FakeConfig::default()
    }
}

const TOKEN_BYTES: u64 = 64 * 512 * 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_between_slices() {
    let config = heavy();
    let mut receiving = config.clone();
    // The engine is held at one decode step, until it is let go.
    let held = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&held);
    receiving.gate = Some(Arc::new(move |call: &Call| {
        while call.kind() == CallKind::Decode && gate.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }));
    let calls = Calls::of(&mut receiving);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &receiving).start().await;
    let proxy = Proxy::to(decode.port).await;

    // A generation that goes on for as long as it is needed.
    let mut running = Deal::new(&prompt(8), config.microbatch_tokens);
    running.id = "running".into();
    running.max_tokens = 400;
    let expected = running.expected(&config).await;
    assert!(expected.len() > 40, "{}", expected.len());
    let request = running.generate(PrefillMode::Local);
    let mut events = decode.generate(&request).await.unwrap();
    opened(&mut events).await;

    let blocks = 7;
    let mut deal = Deal::new(&prompt(CHUNK * blocks + 1), CHUNK);
    deal.terms.reuse = Reuse::Off;
    deal.via = Some(proxy.port);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    // All of it is on this side, and waits for the engine.
    let whole = u64::from(CHUNK * blocks) * TOKEN_BYTES;
    let start = Instant::now();
    while proxy.forwarded() < whole {
        assert!(start.elapsed() < PATIENCE, "{}", proxy.forwarded());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    calls.take();
    held.store(false, Ordering::Relaxed);
    let (answer, first, _) = tokio::join!(
        finish(&mut answers),
        finish(&mut events),
        super::cluster::prefill_end(&mut sending)
    );
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, deal.expected(&config).await);
    assert_eq!(first.tokens, expected);

    let (mut slice, mut slices, mut largest) = (0, 0, 0);
    for call in calls.take() {
        match call {
            Call::Import { tokens, .. } => {
                slice += u64::from(tokens.end - tokens.start) * TOKEN_BYTES;
            }
            Call::Decode { .. } if slice > 0 => {
                largest = largest.max(slice);
                slices += 1;
                slice = 0;
            }
            _ => {}
        }
    }
    assert!(largest <= MAX_APPLY_SLICE_BYTES, "{largest}");
    // Four chunks fit a slice.
    assert!(slices >= 2, "{slices}");
}
