//! KV that comes in does not stop what is being generated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::Sequence;
use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_handoff::frame::Kind;
use tandem_handoff::limits::TARGET_BLOCK_BYTES;
use tandem_handoff::{LayerKind, LayerSpec, Section};
use tandem_node::limits::SLICE_BYTES;
use tandem_proto::{CodecChoice, GenerateEvent, PrefillMode, Role};

use super::cluster::{
    Calls, Deal, Events, PATIENCE, Reuse, Setup, TestNode, eventually, finish, opened, prompt,
};
use super::kills::Brake;
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

/// A model with one layer, which has rows of `kib` KiB a token.
fn full(kib: u32) -> FakeConfig {
    FakeConfig {
        layers: vec![layer(LayerKind::Full, kib)],
        prefill_tokens: CHUNK,
        ..FakeConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_between_slices() {
    let config = full(64);
    // 28 MiB; a chunk is a quarter of a slice.
    let incoming = Incoming {
        section: Section::Full,
        row_bytes: 64 << 10,
        rows: 7 * CHUNK,
    };
    check(&config, &incoming).await;
}

/// Holds the first import and the first decode step.
fn brakes(config: &mut FakeConfig) -> (Brake, Brake) {
    let rows_brake = Brake::on(config, CallKind::Import, 0);
    let at_rows = config.gate.take().unwrap();
    let token_brake = Brake::on(config, CallKind::Decode, 0);
    let at_token = config.gate.take().unwrap();
    config.gate = Some(Arc::new(move |call| {
        at_rows(call);
        at_token(call);
    }));
    (rows_brake, token_brake)
}

/// Rows that are taken in before the first decode step.
fn rows_before_a_token(calls: &[Call]) -> u32 {
    let is_before = |call: &&Call| !matches!(call, Call::Decode { .. });
    let before = calls.iter().take_while(is_before);
    let rows = before.map(|call| match call {
        Call::Import { tokens, .. } => tokens.end - tokens.start,
        _ => 0,
    });
    rows.sum()
}

/// Where nothing is generated, what waits for the engine is heard between two slices: a commit, a cancel,
/// a new request.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_does_not_wait_for_all_that_has_come() {
    let row = 64 << 10;
    // 28 MiB, as many as a sender keeps in flight.
    let rows = 7 * CHUNK;
    let config = FakeConfig {
        sequences: 4,
        ..full(64)
    };
    let mut gated = config.clone();
    let (rows_brake, token_brake) = brakes(&mut gated);
    let calls = Calls::of(&mut gated);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &gated).start().await;
    let proxy = Proxy::to(decode.port).await;
    let handoff = |id: &str| {
        let mut deal = Deal::new(&prompt(rows + 1), CHUNK);
        deal.id = id.into();
        Reuse::Off.set(&mut deal.terms);
        deal.terms.codec = CodecChoice::Raw;
        deal.via = Some(proxy.port);
        deal
    };
    // An answer of one token, for which nothing has to be computed before.
    let token = |id: &str| {
        let mut deal = Deal::new(&prompt(1), CHUNK);
        Reuse::Off.set(&mut deal.terms);
        deal.id = id.into();
        deal.max_tokens = 1;
        deal
    };
    let request = token("one").generate(PrefillMode::Local);
    let mut one = decode.generate(&request).await.unwrap();
    token_brake.reached().await;
    let mut handoffs = Vec::new();
    for id in ["first", "second"] {
        let deal = handoff(id);
        let (answers, ticket) = deal.open(&decode).await;
        let sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
        handoffs.push((deal, answers, sending));
    }
    let whole = 2 * u64::from(rows) * row;
    eventually("all rows", || proxy.forwarded() >= whole).await;
    // Time for the engine's queue to get them.
    tokio::time::sleep(Duration::from_millis(200)).await;
    token_brake.release();
    finish(&mut one).await;
    // The engine has begun to take them in.
    rows_brake.reached().await;
    let other = token("other");
    let request = other.generate(PrefillMode::Local);
    let mut events = decode.generate(&request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    calls.take();
    rows_brake.release();
    let answer = finish(&mut events).await;
    assert_eq!(answer.tokens, other.expected(&config).await);
    for (deal, mut answers, mut sending) in handoffs {
        let (answer, _) = tokio::join!(
            finish(&mut answers),
            super::cluster::prefill_end(&mut sending)
        );
        assert_eq!(answer.tokens, deal.expected(&config).await);
    }
    let rows = rows_before_a_token(&calls.take());
    let bytes = u64::from(rows) * row;
    // The slice in which it was sent, and the next one.
    assert!(bytes <= 2 * SLICE_BYTES, "{bytes} of {whole}");
    prefill.clean().await;
    decode.clean().await;
}

/// KV of a handoff that goes on coming does not keep a prefill from its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_gets_its_turn_though_kv_goes_on_coming() {
    let rows = 30 * CHUNK;
    let config = FakeConfig {
        tokens_per_sequence: rows + 64,
        ..full(64)
    };
    let mut gated = config.clone();
    let brake = Brake::on(&mut gated, CallKind::Import, 0);
    let hold = gated.gate.take().unwrap();
    gated.gate = Some(Arc::new(move |call| {
        hold(call);
        // Slower than what comes: the next blocks are always there.
        if call.kind() == CallKind::Import {
            std::thread::sleep(Duration::from_millis(20));
        }
    }));
    let calls = Calls::of(&mut gated);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Both, &gated).start().await;
    let mut deal = Deal::new(&prompt(rows + 1), CHUNK);
    Reuse::Off.set(&mut deal.terms);
    deal.terms.codec = CodecChoice::Raw;
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    brake.reached().await;
    let mut other = Deal::new(&prompt(CHUNK + 1), CHUNK);
    other.id = "other".into();
    other.max_tokens = 1;
    Reuse::Off.set(&mut other.terms);
    let request = other.generate(PrefillMode::Local);
    let mut events = decode.generate(&request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    calls.take();
    brake.release();
    let (answer, first, _) = tokio::join!(
        finish(&mut answers),
        finish(&mut events),
        super::cluster::prefill_end(&mut sending)
    );
    assert_eq!(answer.tokens, deal.expected(&config).await);
    assert_eq!(first.tokens, other.expected(&config).await);
    let calls = calls.take();
    let is_prefill = |call: &Call| matches!(call, Call::Prefill { .. });
    let at = calls.iter().position(is_prefill).unwrap();
    let blocks = calls[..at].len();
    // As many as may be on their way, and as many again that came while they were taken in.
    assert!(blocks <= 16, "{blocks} of 30 blocks first");
    prefill.clean().await;
    decode.clean().await;
}

/// Somebody may wait for it with the first token.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_does_not_wait_for_the_chunk_of_another_prompt() {
    for by_layer in [false, true] {
        let config = FakeConfig {
            by_layer,
            prefill_tokens: CHUNK,
            ..FakeConfig::default()
        };
        let mut gated = config.clone();
        let brake = Brake::on(&mut gated, CallKind::Prefill, 0);
        let calls = Calls::of(&mut gated);
        let prefill = Setup::new(Role::Prefill, &gated).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let deals = [2, 9].map(|chunks| {
            let mut deal = Deal::new(&prompt(chunks * CHUNK + 1), CHUNK);
            deal.id = format!("req-{chunks}");
            Reuse::Off.set(&mut deal.terms);
            deal
        });
        let mut going = Vec::new();
        for deal in &deals {
            let (mut answers, ticket) = deal.open(&decode).await;
            let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
            going.push(tokio::spawn(async move {
                let answer = finish(&mut answers).await;
                (answer, super::cluster::prefill_end(&mut sending).await)
            }));
            brake.reached().await;
        }
        brake.release();
        for (deal, going) in deals.iter().zip(going) {
            let (answer, end) = going.await.unwrap();
            assert_eq!(answer.tokens, deal.expected(&config).await, "{end:?}");
        }
        let calls = calls.take();
        let last =
            |call: &Call| matches!(call, Call::Prefill { tokens, .. } if tokens.end == 2 * CHUNK);
        // Of the short prompt, which came first.
        let at = calls.iter().position(last).unwrap();
        let mut computed = calls[at + 1..]
            .iter()
            .map(Call::kind)
            .filter(|kind| matches!(kind, CallKind::Prefill | CallKind::Decode));
        // In one call with it at most.
        let kinds = [computed.next(), computed.next()];
        assert!(kinds.contains(&Some(CallKind::Decode)), "{calls:?}");
        prefill.clean().await;
        decode.clean().await;
    }
}

/// A model with a window of 20 MiB.
fn windowed() -> FakeConfig {
    FakeConfig {
        layers: vec![layer(LayerKind::Window, 512), layer(LayerKind::Full, 1)],
        window: 40,
        prefill_tokens: CHUNK,
        ..FakeConfig::default()
    }
}

/// A window comes in blocks, and is applied as a whole, by slices.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_while_a_window_comes_in() {
    let config = windowed();
    let incoming = Incoming {
        section: Section::Window,
        row_bytes: 512 << 10,
        rows: config.window,
    };
    check(&config, &incoming).await;
}

/// A node that generates, and stands still at a decode step until it is let go.
struct Busy {
    node: TestNode,
    calls: Calls,
    brake: Brake,
    events: Events<GenerateEvent>,
    /// What it generates.
    expected: Vec<u32>,
}

async fn busy(role: Role, config: &FakeConfig) -> Busy {
    let mut gated = config.clone();
    let brake = Brake::on(&mut gated, CallKind::Decode, 0);
    let calls = Calls::of(&mut gated);
    let node = Setup::new(role, &gated).start().await;
    // It goes on for as long as it is needed.
    let mut running = Deal::new(&prompt(8), config.microbatch_tokens);
    Reuse::Off.set(&mut running.terms);
    running.id = "running".into();
    running.max_tokens = 50;
    let expected = running.expected(config).await;
    assert!(expected.len() > 40, "{}", expected.len());
    let request = running.generate(PrefillMode::Local);
    let mut events = node.generate(&request).await.unwrap();
    opened(&mut events).await;
    brake.reached().await;
    Busy {
        node,
        calls,
        brake,
        events,
        expected,
    }
}

/// The window is copied out with the answer, at once where no more sequences stay in the cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_while_a_window_is_kept() {
    let config = FakeConfig {
        cached: 1,
        ..windowed()
    };
    let mut busy = busy(Role::Decode, &config).await;
    let mut deal = Deal::new(&prompt(CHUNK + 1), CHUNK);
    Reuse::All.set(&mut deal.terms);
    deal.terms.keep = true;
    deal.max_tokens = 2;
    let request = deal.generate(PrefillMode::Local);
    let mut answers = busy.node.generate(&request).await.unwrap();
    opened(&mut answers).await;
    busy.calls.take();
    busy.brake.release();
    let (answer, first) = tokio::join!(finish(&mut answers), finish(&mut busy.events));
    assert_eq!(answer.tokens, deal.expected(&config).await);
    assert_eq!(first.tokens, busy.expected);
    busy.node.until("kept", |s| s.snapshots == 1).await;
    // 20 MiB by the blocks of 8 MiB at most.
    assert_eq!(window_slices(&busy.calls), (3, 0));
    busy.node.clean().await;
}

/// The window of a prefill for another node is copied out and put back.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_while_a_window_goes_out() {
    let config = windowed();
    let calls = go_out(&config).await;
    // 20 MiB out behind a chunk, by the blocks of 8 MiB at most, and back by slices of 16 MiB.
    assert_eq!(window_slices(&calls), (3, 2));
}

/// A chunk of a model with large rows is copied out in several slices.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_while_a_chunk_goes_out() {
    let config = full(512);
    let calls = go_out(&config).await;
    let slices = slices_of(&calls.take(), CallKind::Export, 512 << 10);
    assert_eq!(slices.iter().sum::<u64>(), 64 * (512 << 10));
    assert!(slices.iter().all(|s| *s <= SLICE_BYTES), "{slices:?}");
    assert!(slices.len() > 1, "{slices:?}");
}

/// Bytes that are moved between two decode steps, by calls of this kind, of rows of so many bytes.
fn slices_of(calls: &[Call], kind: CallKind, row_bytes: u64) -> Vec<u64> {
    let (mut slice, mut slices) = (0, Vec::new());
    for call in calls {
        match call {
            Call::Export { tokens, .. } | Call::Import { tokens, .. } if call.kind() == kind => {
                slice += u64::from(tokens.end - tokens.start) * row_bytes;
            }
            Call::Decode { .. } if slice > 0 => slices.push(std::mem::take(&mut slice)),
            _ => {}
        }
    }
    slices
}

/// A token waits for a slice that comes in, or for a chunk with a slice of its rows, but not for both.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_in_and_what_goes_out_take_turns() {
    let config = FakeConfig {
        sequences: 4,
        ..full(64)
    };
    // 28 MiB each way.
    let rows = 7 * CHUNK;
    let mut busy = busy(Role::Both, &config).await;
    let other = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let proxy = Proxy::to(busy.node.port).await;
    let handoff = |id: &str| {
        let mut deal = Deal::new(&prompt(rows + 1), CHUNK);
        deal.id = id.into();
        Reuse::Off.set(&mut deal.terms);
        deal.terms.codec = CodecChoice::Raw;
        deal
    };
    let (mut incoming, outgoing) = (handoff("in"), handoff("out"));
    incoming.via = Some(proxy.port);
    let mut pairs = Vec::new();
    for (deal, from, to) in [
        (&incoming, &other, &busy.node),
        (&outgoing, &busy.node, &decode),
    ] {
        let (answers, ticket) = deal.open(to).await;
        let sending = from.prefill(&deal.prefill(&ticket)).await.unwrap();
        pairs.push((answers, sending));
    }
    let whole = u64::from(rows) * (64 << 10);
    eventually("all rows", || proxy.forwarded() >= whole).await;
    // Time for the engine's queue to get them.
    tokio::time::sleep(Duration::from_millis(200)).await;
    busy.calls.take();
    busy.brake.release();
    let first = finish(&mut busy.events).await;
    assert_eq!(first.tokens, busy.expected);
    for (deal, (mut answers, mut sending)) in [&incoming, &outgoing].into_iter().zip(pairs) {
        let (answer, _) = tokio::join!(
            finish(&mut answers),
            super::cluster::prefill_end(&mut sending)
        );
        assert_eq!(answer.summary.fallback, None);
        assert_eq!(answer.tokens, deal.expected(&config).await);
    }
    let calls = busy.calls.take();
    let (mut ins, mut outs, mut turns) = (0, 0, String::new());
    for call in &calls {
        match call.kind() {
            CallKind::Import => ins += 1,
            CallKind::Export | CallKind::Prefill => outs += 1,
            CallKind::Decode => {
                assert!(ins == 0 || outs == 0, "{calls:?}");
                turns.push_str(if ins > 0 { "i" } else { "" });
                turns.push_str(if outs > 0 { "o" } else { "" });
                (ins, outs) = (0, 0);
            }
            _ => {}
        }
    }
    // As long as there are both.
    assert!(turns.contains("ioio") || turns.contains("oioi"), "{turns}");
    busy.node.clean().await;
    other.clean().await;
    decode.clean().await;
}

/// Rows that are given while a chunk is computed go out with it; a token comes behind each chunk, and between the slices
/// in which the window is put back.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_generation_gets_its_turn_behind_a_chunk_whose_layers_are_given() {
    let config = FakeConfig {
        by_layer: true,
        ..windowed()
    };
    let calls = go_out_of(&config, 3 * CHUNK + 1).await.take();
    assert!(!calls.iter().any(|c| matches!(c, Call::Export { .. })));
    // As long as it runs.
    let is_running = |call: &Call| match call {
        Call::Decode { steps } => steps.iter().any(|s| s.sequence == Sequence(0)),
        _ => false,
    };
    let last = calls.iter().rposition(is_running).unwrap();
    let calls = &calls[..last];
    assert!(calls.iter().any(|c| matches!(c, Call::Prefill { .. })));
    let steps = calls.iter().filter(|c| {
        matches!(
            c,
            Call::Prefill { .. } | Call::Import { .. } | Call::Decode { .. }
        )
    });
    let is_decode: Vec<bool> = steps.map(|c| matches!(c, Call::Decode { .. })).collect();
    let in_a_row = |pair: &[bool]| pair == [false, false];
    assert!(!is_decode.windows(2).any(in_a_row), "{calls:?}");
}

async fn go_out(config: &FakeConfig) -> Calls {
    go_out_of(config, CHUNK + 1).await
}

/// What an engine is asked for that generates, and prefills a prompt of so many tokens for another node.
async fn go_out_of(config: &FakeConfig, tokens: u32) -> Calls {
    let mut busy = busy(Role::Both, config).await;
    let decode = Setup::new(Role::Decode, config).start().await;
    let mut deal = Deal::new(&prompt(tokens), CHUNK);
    Reuse::All.set(&mut deal.terms);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = busy.node.prefill(&deal.prefill(&ticket)).await.unwrap();
    busy.calls.take();
    busy.brake.release();
    let (answer, first, _) = tokio::join!(
        finish(&mut answers),
        finish(&mut busy.events),
        super::cluster::prefill_end(&mut sending)
    );
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, deal.expected(config).await);
    assert!(answer.parity.expect("parity").holds);
    assert_eq!(first.tokens, busy.expected);
    busy.node.clean().await;
    decode.clean().await;
    busy.calls
}

/// Rows of the window go out with the chunk that they were computed with, and what the receiver has of them
/// is not sent again over a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_does_not_wait_for_the_last_chunk() {
    let config = FakeConfig {
        prefill_tokens: 16,
        tail_tokens: 16,
        ..FakeConfig::windowed()
    };
    let mut gated = config.clone();
    // Four chunks; the window of 24 tokens begins in the third one.
    let brake = Brake::on(&mut gated, CallKind::Prefill, 3);
    let prefill = Setup::new(Role::Prefill, &gated).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let proxy = Proxy::to(decode.port).await;
    let mut deal = Deal::new(&prompt(4 * 16 + 1), 16);
    Reuse::Off.set(&mut deal.terms);
    deal.via = Some(proxy.port);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    brake.reached().await;
    let acks = |connection| {
        let [_, answers] = proxy.frames(connection);
        answers.iter().filter(|(k, _)| *k == Kind::Ack).count()
    };
    // Three full blocks, and tokens 40 to 47 of the window.
    eventually("the window", || proxy.connections() == 1 && acks(0) == 4).await;
    assert!(proxy.blocks(0).contains(&(Section::Window, 40..48)));
    proxy.cut();
    eventually("a connection", || proxy.connections() == 2).await;
    brake.release();
    let (answer, end) = tokio::join!(
        finish(&mut answers),
        super::cluster::prefill_end(&mut sending)
    );
    let outcome = super::cluster::Outcome { answer, end };
    outcome.whole(&deal.expected(&config).await, "one break");
    assert_eq!(outcome.done().3, 1);
    assert!(outcome.answer.parity.expect("parity").holds);
    let last = [(Section::Full, 48..64), (Section::Window, 48..64)];
    assert_eq!(proxy.blocks(1), last);
    prefill.clean().await;
    decode.clean().await;
}

/// How many blocks of windows went out, and how many slices came in; between two steps one at most, and with the rows of
/// full layers, along with which an engine copies those of the window, no more than a slice has.
fn window_slices(calls: &Calls) -> (u32, u32) {
    let (mut slice, mut slices, mut out, mut back) = (0, 0, 0, 0);
    for call in calls.take() {
        match call {
            Call::Export {
                section: Section::Full,
                tokens,
                ..
            } => slice += u64::from(tokens.end - tokens.start) * (513 << 10),
            Call::Export {
                section: Section::Window,
                tokens,
                ..
            } => {
                let bytes = u64::from(tokens.end - tokens.start) * (512 << 10);
                assert!(bytes <= TARGET_BLOCK_BYTES, "{bytes}");
                slice += bytes;
                slices += 1;
                out += 1;
            }
            Call::Import {
                section: Section::Window,
                tokens,
                ..
            } => {
                slice += u64::from(tokens.end - tokens.start) * (512 << 10);
                slices += 1;
                back += 1;
            }
            Call::Decode { .. } => (slice, slices) = (0, 0),
            _ => {}
        }
        assert!(slice <= SLICE_BYTES, "{slice}");
        assert!(slices <= 1, "{slices}");
    }
    (out, back)
}

/// What comes in.
struct Incoming {
    section: Section,
    row_bytes: u64,
    rows: u32,
}

/// That tokens of a running generation come between slices, of which there are two or more.
async fn check(config: &FakeConfig, incoming: &Incoming) {
    let slices = come_in(config, incoming).await;
    assert!(slices.iter().all(|s| *s <= SLICE_BYTES), "{slices:?}");
    assert!(slices.len() >= 2, "{slices:?}");
}

/// The slices in which it comes in beside a running generation.
async fn come_in(config: &FakeConfig, incoming: &Incoming) -> Vec<u64> {
    let prefill = Setup::new(Role::Prefill, config).start().await;
    let Busy {
        node: decode,
        calls,
        brake,
        mut events,
        expected,
    } = busy(Role::Decode, config).await;
    let proxy = Proxy::to(decode.port).await;

    let mut deal = Deal::new(&prompt(incoming.rows.next_multiple_of(CHUNK) + 1), CHUNK);
    Reuse::Off.set(&mut deal.terms);
    // Bytes on the wire are counted.
    deal.terms.codec = CodecChoice::Raw;
    deal.via = Some(proxy.port);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    // All of it is on this side, or as much as may be, and waits for the engine.
    let whole = (u64::from(incoming.rows) * incoming.row_bytes).min(28 << 20);
    let start = Instant::now();
    while proxy.forwarded() < whole {
        assert!(start.elapsed() < PATIENCE, "{}", proxy.forwarded());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    calls.take();
    brake.release();
    let (answer, first, _) = tokio::join!(
        finish(&mut answers),
        finish(&mut events),
        super::cluster::prefill_end(&mut sending)
    );
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, deal.expected(config).await);
    assert_eq!(first.tokens, expected);
    let mut calls = calls.take();
    calls.retain(|call| match call {
        Call::Import { section, .. } => *section == incoming.section,
        _ => true,
    });
    prefill.clean().await;
    decode.clean().await;
    slices_of(&calls, CallKind::Import, incoming.row_bytes)
}
