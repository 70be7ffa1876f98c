//! KV that comes in does not stop what is being generated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_kv::{LayerKind, LayerSpec, Section};
use tandem_node::limits::MAX_APPLY_SLICE_BYTES;
use tandem_proto::{CodecChoice, PrefillMode, Reuse, Role};

use super::cluster::{Calls, Deal, PATIENCE, Setup, finish, opened, prompt};
use super::proxy::Proxy;

const CHUNK: u32 = 64;

/// A layer with rows of `kib` KiB a token.
const fn layer(kind: LayerKind, kib: u32) -> LayerSpec {
    LayerSpec {
        kind,
        kv_heads: kib,
        key_dim: 256,
        value_dim: 256,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_between_slices() {
    let config = FakeConfig {
        layers: vec![layer(LayerKind::Full, 64)],
        prefill_tokens: CHUNK,
        ..FakeConfig::default()
    };
    // 28 MiB; a chunk is a quarter of a slice.
    let incoming = Incoming {
        section: Section::Full,
        row_bytes: 64 << 10,
        rows: 7 * CHUNK,
    };
    check(&config, &incoming).await;
}

/// A window comes as one block, here of 20 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_while_a_window_comes_in() {
    let config = FakeConfig {
        layers: vec![layer(LayerKind::Window, 512), layer(LayerKind::Full, 1)],
        window: 40,
        prefill_tokens: CHUNK,
        ..FakeConfig::default()
    };
    let incoming = Incoming {
        section: Section::Window,
        row_bytes: 512 << 10,
        rows: config.window,
    };
    check(&config, &incoming).await;
}

/// What comes in that is more than one slice, and less than two.
struct Incoming {
    section: Section,
    row_bytes: u64,
    rows: u32,
}

/// That tokens of a running generation come between slices.
async fn check(config: &FakeConfig, incoming: &Incoming) {
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
    let prefill = Setup::new(Role::Prefill, config).start().await;
    let decode = Setup::new(Role::Decode, &receiving).start().await;
    let proxy = Proxy::to(decode.port).await;

    // A generation that goes on for as long as it is needed.
    let mut running = Deal::new(&prompt(8), config.microbatch_tokens);
    running.id = "running".into();
    running.max_tokens = 50;
    let expected = running.expected(config).await;
    assert!(expected.len() > 40, "{}", expected.len());
    let request = running.generate(PrefillMode::Local);
    let mut events = decode.generate(&request).await.unwrap();
    opened(&mut events).await;

    let mut deal = Deal::new(&prompt(incoming.rows.next_multiple_of(CHUNK) + 1), CHUNK);
    deal.terms.reuse = Reuse::Off;
    // Bytes on the wire are counted.
    deal.terms.codec = CodecChoice::Raw;
    deal.via = Some(proxy.port);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    // All of it is on this side, and waits for the engine.
    let whole = u64::from(incoming.rows) * incoming.row_bytes;
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
    assert_eq!(answer.tokens, deal.expected(config).await);
    assert_eq!(first.tokens, expected);

    let (mut slice, mut slices, mut largest) = (0, 0, 0);
    for call in calls.take() {
        match call {
            Call::Import {
                section, tokens, ..
            } if section == incoming.section => {
                slice += u64::from(tokens.end - tokens.start) * incoming.row_bytes;
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
    assert!(slices >= 2, "{slices}");
    prefill.clean().await;
    decode.clean().await;
}
