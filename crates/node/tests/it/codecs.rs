//! Rows that travel encoded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::fake::{CallKind, FakeConfig};
use tandem_kv::adaptive::{DecodeRates, Quality};
use tandem_kv::codec::Codec;
use tandem_kv::frame::Kind;
use tandem_kv::message::Accept;
use tandem_kv::{KvBlock, Plane, PlaneKind, Section};
use tandem_node::job::Computed;
use tandem_node::limits::{ARRIVAL_BYTES, BELIEVED_BYTES, DECODE_RATE_AGE, FREE_BYTES, MAX_LINKS};
use tandem_node::receive::Decoding;
use tandem_node::send::{Choice, Learnt, Links, Measured, Memory, Waited};
use tandem_node::wire::Drained;
use tandem_proto::{CodecChoice, PrefillEvent, Reuse, Role};

use super::cluster::{Deal, PATIENCE, Setup, heavy, prompt};
use super::kills::Brake;
use super::proxy::Proxy;
use super::raw::Handoff;

/// Head sizes that all codecs take.
pub fn config(windowed: bool) -> FakeConfig {
    let mut config = if windowed {
        FakeConfig::windowed()
    } else {
        FakeConfig::default()
    };
    for layer in &mut config.layers {
        (layer.key_dim, layer.value_dim) = (64, 64);
    }
    // The two layers at either end of a model are never in 4 bits.
    let middle = vec![config.layers[1].clone(); 4];
    config.layers.splice(1..1, middle);
    config
}

#[tokio::test]
async fn lossless_codecs_give_equal_tokens() {
    for config in [config(false), config(true)] {
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut deal = Deal::new(&prompt(32 * 5 + 5), 32);
        deal.terms.reuse = Reuse::Off;
        let expected = deal.expected(&config).await;
        for (choice, codec) in [
            (CodecChoice::Raw, Codec::Raw),
            (CodecChoice::Plane, Codec::Plane),
            (CodecChoice::Auto, Codec::Plane),
        ] {
            deal.terms.codec = choice;
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&expected, &format!("{choice:?}"));
            let used = outcome.answer.summary.codec.expect("codec");
            // What the link asks for may be either of them.
            let is_auto = choice == CodecChoice::Auto && used.is_lossless();
            assert!(used == codec || is_auto, "{choice:?}: {used}");
            assert!(outcome.answer.parity.expect("parity").holds);
        }
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test]
async fn lossy_codecs_need_permission_of_the_receiver() {
    let config = config(true);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = Deal::new(&prompt(32 * 5 + 5), 32);
    let expected = deal.expected(&config).await;
    for (choice, quality) in [(CodecChoice::Q8, Quality::Lossless)] {
        let what = format!("{choice:?} with {quality}");
        deal.terms.quality = quality;
        let mut told = deal.terms.clone();
        told.codec = choice;
        deal.prefill_terms = Some(told);
        let outcome = deal.run(&prefill, &decode).await;
        let reason = outcome.made_good(&expected, &what);
        assert!(reason.contains("`codec`"), "{what}: {reason}");
        assert!(matches!(outcome.end, PrefillEvent::Failed(_)), "{what}");
        assert_eq!(outcome.answer.summary.codec, None, "{what}");
        assert_eq!(outcome.answer.summary.remote_tokens, 0, "{what}");
    }
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test]
async fn lossy_codecs_are_reported_and_what_does_not_fit_is_forgotten() {
    let config = config(false);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut wires = Vec::new();
    for (choice, codec) in [(CodecChoice::Raw, Codec::Raw), (CodecChoice::Q8, Codec::Q8)] {
        let mut deal = Deal::new(&prompt(64 * 3 + 5), 64);
        deal.terms.quality = Quality::Q8;
        deal.terms.codec = choice;
        deal.terms.salt = codec.to_string();
        deal.terms.reuse = Reuse::All;
        let outcome = deal.run(&prefill, &decode).await;
        let answer = &outcome.answer;
        assert!(answer.done && answer.summary.fallback.is_none());
        assert_eq!(answer.summary.codec, Some(codec));
        // The fake engine turns the smallest difference into other tokens; a comparison finds it.
        assert_eq!(answer.parity.expect("parity").holds, codec == Codec::Raw);
        let (raw, wire, _, _) = outcome.done();
        wires.push(wire);
        assert_eq!(raw, answer.summary.handoff_bytes);
        let again = deal.run(&prefill, &decode).await;
        let kept = if codec == Codec::Raw { 192 } else { 0 };
        assert_eq!(again.answer.summary.cached_tokens, kept, "{codec}");
    }
    assert!(wires[1] * 18 < wires[0] * 10, "{wires:?}");
    decode.clean().await;
    prefill.clean().await;
}

/// A block of so many rows, of `bytes` in all.
fn rows(section: Section, tokens: u32, bytes: usize) -> Arc<KvBlock> {
    let plane = Plane {
        layer: 0,
        kind: PlaneKind::Key,
        data: vec![0; bytes].into(),
    };
    Arc::new(KvBlock {
        section,
        tokens: 0..tokens,
        planes: vec![plane],
    })
}

/// A chunk of `bytes` of rows that took `ms` to compute.
fn chunk(bytes: usize, ms: f64) -> Computed {
    Computed {
        window: None,
        blocks: vec![rows(Section::Full, 1, bytes)],
        tokens: 1,
        computed: Instant::now(),
        prefill_ms: ms,
        computed_tokens: 0,
        last: false,
        receipt_follows: false,
    }
}

/// What a link carried while it was waited for, from `at` on, which is then the end of it.
fn drained(at: &mut Instant, bytes: u64, rate: f64) -> Drained {
    let start = *at;
    *at += Duration::from_secs_f64(bytes as f64 / rate);
    Drained {
        bytes,
        spans: vec![start..*at],
    }
}

const AUTO: Choice = Choice::Auto(Quality::Q8);

#[test]
fn auto_measures_the_link_and_not_the_engine_behind_it() {
    // 100 MB of KV per second.
    let chunk = chunk(1_000_000, 10.0);
    // An engine that takes long to apply, behind a link that nobody has to wait for.
    let mut busy = Measured::new(&AUTO, Memory::default());
    busy.produced(&chunk);
    for _ in 0..5 {
        let start = Instant::now();
        busy.opened(start);
        busy.written(1_000_000, &Drained::default());
        busy.acknowledged(start + Duration::from_millis(30), true);
        assert_eq!(busy.codec(), Codec::Raw);
    }
    assert_eq!(busy.learnt(), Learnt::Fast);
    // A link that carries a tenth of it, found out by the bytes that it takes while it is waited for.
    let mut slow = Measured::new(&AUTO, Memory::default());
    slow.produced(&chunk);
    let mut at = Instant::now();
    for part in 1..=8u64 {
        let start = Instant::now();
        slow.opened(start);
        let carried = drained(&mut at, BELIEVED_BYTES / 8, 10e6);
        slow.written(BELIEVED_BYTES / 8, &carried);
        slow.acknowledged(start + Duration::from_millis(20), true);
        let expected = if part < 8 { Codec::Raw } else { Codec::Q8 };
        assert_eq!(slow.codec(), expected, "part {part}");
    }
    let Learnt::Rate(rate) = slow.learnt() else {
        panic!("{:?}", slow.learnt());
    };
    assert!((rate / 10e6 - 1.0).abs() < 0.01, "{rate}");
    // The ceiling holds whatever the link.
    let mut strict = Measured::new(&Choice::Auto(Quality::Lossless), Memory::of(1e6));
    strict.produced(&chunk);
    assert!(strict.codec().is_lossless());
    let mut fixed = Measured::new(&Choice::Fixed(Codec::Raw), Memory::of(1e6));
    fixed.produced(&chunk);
    assert_eq!(fixed.codec(), Codec::Raw);
}

/// Rows of the window layers come with the last tokens only, six times as many bytes a token: what was
/// fast enough before is not any more. Of how many tokens the first chunk has such rows makes no difference.
#[test]
fn the_window_is_a_prefill_that_makes_more() {
    let chunk = |i: u32, blocks| Computed {
        blocks,
        tokens: i * 100,
        ..chunk(0, f64::from(i) * 100.0)
    };
    for in_window in [100, 50, 1, 250] {
        for (rate, expected) in [(20e6, Codec::Raw), (6e6, Codec::Q8), (3e6, Codec::Q8)] {
            for has_full in [true, false] {
                // 1 MB of KV per second or nothing, and 6 MB more where the window has begun.
                let full = |_| rows(Section::Full, 100, 100_000);
                let full = || Some(()).filter(|()| has_full).map(full).into_iter();
                let mut measured = Measured::new(&AUTO, Memory::of(rate));
                for i in 1..=20 {
                    measured.produced(&chunk(i, full().collect()));
                    assert_eq!(measured.codec(), Codec::Raw);
                }
                let window = rows(Section::Window, in_window, in_window as usize * 6000);
                measured.produced(&chunk(21, full().chain([window]).collect()));
                let what = format!("{in_window} tokens at {rate}, {has_full}");
                assert_eq!(measured.codec(), expected, "{what}");
            }
        }
    }
}

/// Buffers take 4 MB at once, and the link carries 10 MB a second: what was written when the first
/// acknowledgement comes has not been carried.
#[test]
fn what_is_still_in_buffers_was_not_carried() {
    let mut measured = Measured::new(&AUTO, Memory::of(10e6));
    measured.produced(&chunk(1_000_000, 10.0));
    assert_eq!(measured.codec(), Codec::Q8);
    let start = Instant::now();
    measured.opened(start);
    measured.written(4_000_000, &Drained::default());
    for block in 1..=4 {
        let now = start + Duration::from_millis(100 * block);
        measured.acknowledged(now, block == 4);
        let Learnt::Rate(rate) = measured.learnt() else {
            assert_eq!(measured.learnt(), Learnt::Nothing);
            continue;
        };
        assert!((rate / 10e6 - 1.0).abs() < 0.01, "{rate}");
    }
}

/// A shaper lets a little through at once, and what comes behind it at its rate.
#[test]
fn what_is_let_through_at_once_is_not_the_rate_of_a_link() {
    for (bytes, codec) in [
        (BELIEVED_BYTES - 1, Codec::Q8),
        (BELIEVED_BYTES, Codec::Raw),
    ] {
        let mut measured = Measured::new(&AUTO, Memory::of(10e6));
        // Made a little faster than the link carries it, and carried much faster than that.
        measured.produced(&chunk(1_000_000, 40.0));
        assert_eq!(measured.codec(), Codec::Q8);
        let mut again = Measured::new(&AUTO, Memory::of(10e6));
        let start = Instant::now();
        again.opened(start);
        again.written(bytes, &Drained::default());
        again.acknowledged(start + Duration::from_millis(10), true);
        again.produced(&chunk(1_000_000, 40.0));
        assert_eq!(again.codec(), codec, "{bytes}");
    }
}

/// What is little for one handoff is enough of several, and sooner if it takes long.
#[test]
fn links_on_which_little_is_carried_are_known_after_some_handoffs() {
    const PART: u64 = ARRIVAL_BYTES / 2;
    for (rate, handoffs) in [(0.5e6, 2), (10e6, 16), (1e9, 16)] {
        let links = Links::default();
        for handoff in 1..=handoffs {
            let before = links.recall("a:1");
            assert_eq!(before.rate, None, "{rate}: {handoff}");
            assert_eq!(before.little.bytes, (handoff - 1) * PART);
            let mut measured = Measured::new(&AUTO, before);
            measured.connected(&DecodeRates::default());
            measured.produced(&chunk(1_000_000, 10.0));
            assert_eq!(measured.codec(), Codec::Raw);
            measured.arrived(&drained(&mut Instant::now(), PART, rate));
            links.learn("a:1", &measured);
        }
        let known = links.recall("a:1");
        let measured = known.rate.expect("a rate");
        assert!((measured / rate - 1.0).abs() < 0.01, "{measured}");
        assert_eq!(known.little, Waited::default());
        let mut next = Measured::new(&AUTO, known);
        next.produced(&chunk(1_000_000, 10.0));
        let codec = if rate < 100e6 { Codec::Q8 } else { Codec::Raw };
        assert_eq!(next.codec(), codec);
    }
}

/// Of two that go on at once the little that was known before belongs to one, and both add theirs.
#[test]
fn what_is_left_of_a_handoff_counts_once() {
    const PART: u64 = ARRIVAL_BYTES / 8;
    let links = Links::default();
    let handoff = || Measured::new(&AUTO, links.recall("a:1"));
    let part = || drained(&mut Instant::now(), PART, 1e6);
    let mut first = handoff();
    first.arrived(&part());
    links.learn("a:1", &first);
    let (mut one, mut other) = (handoff(), handoff());
    one.arrived(&part());
    other.arrived(&part());
    links.learn("a:1", &one);
    links.learn("a:1", &other);
    assert_eq!(links.recall("a:1").little.bytes, 3 * PART);
}

/// A link that seldom has to be waited for is not slow for what happens now and then.
#[test]
fn what_was_carried_without_waiting_outweighs_little_that_was_waited_for() {
    let links = Links::default();
    for _ in 0..100 {
        let start = Instant::now();
        let mut measured = Measured::new(&AUTO, links.recall("a:1"));
        measured.opened(start);
        measured.written(
            ARRIVAL_BYTES,
            &drained(&mut start.clone(), ARRIVAL_BYTES / 10, 1e5),
        );
        measured.acknowledged(start + Duration::from_millis(50), true);
        links.learn("a:1", &measured);
    }
    let known = links.recall("a:1");
    assert_eq!((known.rate, known.little), (None, Waited::default()));
}

/// In the codec that was chosen for a slow link, nothing shows how fast it has become: no handoff is fast enough for
/// `raw` by its own rate.
#[test]
fn a_link_that_was_slow_once_is_tried_again() {
    const BYTES: u64 = 400_000;
    let links = Links::default();
    let mut slow = Measured::new(&AUTO, Memory::default());
    slow.written(
        BELIEVED_BYTES,
        &drained(&mut Instant::now(), BELIEVED_BYTES, 1e6),
    );
    links.learn("a:1", &slow);
    let mut sent = 0;
    while sent < FREE_BYTES {
        let mut measured = Measured::new(&AUTO, links.recall("a:1"));
        measured.produced(&chunk(1_000_000, 10.0));
        assert_eq!(measured.codec(), Codec::Q8, "after {sent}");
        let start = Instant::now();
        measured.opened(start);
        measured.written(BYTES, &Drained::default());
        measured.acknowledged(start + Duration::from_millis(10), true);
        links.learn("a:1", &measured);
        sent += BYTES;
    }
    let mut again = Measured::new(&AUTO, links.recall("a:1"));
    again.produced(&chunk(1_000_000, 10.0));
    assert_eq!(again.codec(), Codec::Raw);
}

/// New connections are slow at first: what is known outweighs little that took long.
#[test]
fn what_is_known_is_not_replaced_by_little() {
    let links = Links::default();
    let mut at = Instant::now();
    let mut first = Measured::new(&AUTO, Memory::default());
    first.written(BELIEVED_BYTES, &drained(&mut at, BELIEVED_BYTES, 1e9));
    links.learn("a:1", &first);
    let before = links.recall("a:1").rate;
    let mut slow = Measured::new(&AUTO, links.recall("a:1"));
    slow.produced(&chunk(1_000_000, 10.0));
    slow.written(2 * ARRIVAL_BYTES, &drained(&mut at, 2 * ARRIVAL_BYTES, 1e6));
    assert_eq!(slow.codec(), Codec::Raw);
    links.learn("a:1", &slow);
    let after = links.recall("a:1");
    assert_eq!(
        (after.rate, after.little.bytes),
        (before, 2 * ARRIVAL_BYTES)
    );
}

/// However many they are, connections that nobody waits for make no link a fast one that holds bytes back.
#[test]
fn a_slow_link_is_not_forgotten_for_what_its_buffers_take() {
    let links = Links::default();
    let mut slow = Measured::new(&AUTO, Memory::of(1e6));
    slow.connected(&DecodeRates::default());
    let mut at = Instant::now();
    slow.opened(at);
    slow.written(4 * BELIEVED_BYTES, &Drained::default());
    for _ in 0..8 {
        slow.arrived(&drained(&mut at, BELIEVED_BYTES / 2, 1e6));
    }
    slow.acknowledged(at, true);
    links.learn("a:1", &slow);
    let rate = links.recall("a:1").rate.expect("a rate");
    assert!((rate / 1e6 - 1.0).abs() < 0.05, "{rate}");
}

#[test]
fn what_decoding_has_cost_is_believed_for_a_while() {
    let (decoding, now) = (Decoding::default(), Instant::now());
    let half = Duration::from_millis(500);
    decoding.took(Codec::Q8, BELIEVED_BYTES - 1, half, now);
    assert_eq!(decoding.rates(now), DecodeRates::default());
    decoding.took(Codec::Q8, BELIEVED_BYTES, half, now);
    decoding.took(Codec::Raw, BELIEVED_BYTES, half, now);
    let rates = decoding.rates(now + DECODE_RATE_AGE);
    assert_eq!(rates.plane, None);
    let expected = BELIEVED_BYTES * 2;
    assert!(
        rates.q8.unwrap().abs_diff(expected) < expected / 100,
        "{rates:?}"
    );
    let later = now + DECODE_RATE_AGE + half;
    assert_eq!(decoding.rates(later), DecodeRates::default());
}

#[tokio::test]
async fn a_node_says_how_fast_it_decodes() {
    let config = config(false);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let proxy = Proxy::to(decode.port).await;
    let mut deal = Deal::new(&prompt(32 * 5 + 5), 32);
    deal.via = Some(proxy.port);
    deal.terms.reuse = Reuse::Off;
    deal.terms.quality = Quality::Q8;
    let mut decoded = 0;
    loop {
        deal.terms.codec = CodecChoice::Q8;
        proxy.next(&[]);
        let outcome = deal.run(&prefill, &decode).await;
        let accept: Accept = serde_json::from_slice(&proxy.answer(0, Kind::Accept)).unwrap();
        let DecodeRates { plane, q8 } = accept.decode_rates;
        assert_eq!(plane, None);
        // What has been measured is what has been decoded.
        assert_eq!(q8.is_some_and(|rate| rate > 0), decoded >= BELIEVED_BYTES);
        if q8.is_some() {
            break;
        }
        decoded += outcome.done().0;
    }
    decode.clean().await;
    prefill.clean().await;
}

#[test]
fn rows_that_are_held_do_not_tell_how_fast_others_are_computed() {
    // Where nothing is computed, any link is too slow to hide.
    let mut seeded = Measured::new(&AUTO, Memory::of(10e6));
    seeded.produced(&chunk(1_000_000, 0.0));
    assert_eq!(seeded.codec(), Codec::Q8);
    // Then 1 MB of KV per second, which the link carries.
    seeded.produced(&Computed {
        tokens: 2,
        ..chunk(1_000_000, 1000.0)
    });
    assert_eq!(seeded.codec(), Codec::Raw);
}

#[test]
fn a_link_is_remembered_from_one_handoff_to_the_next() {
    let links = Links::default();
    let rate = |target| links.recall(target).rate;
    assert_eq!(rate("a:1"), None);
    let mut at = Instant::now();
    let mut first = Measured::new(&AUTO, Memory::default());
    first.written(BELIEVED_BYTES, &drained(&mut at, BELIEVED_BYTES, 10e6));
    links.learn("a:1", &first);
    let known = rate("a:1").unwrap();
    assert!((known / 10e6 - 1.0).abs() < 1e-6, "{known}");
    assert_eq!(rate("b:1"), None);
    // The next one knows it before its first block.
    let mut second = Measured::new(&AUTO, links.recall("a:1"));
    assert_eq!(second.codec(), Codec::Raw);
    second.produced(&chunk(1_000_000, 10.0));
    assert_eq!(second.codec(), Codec::Q8);
    // One that was too short to tell changes nothing.
    links.learn("a:1", &second);
    assert_eq!(rate("a:1"), Some(known));
    // What it measures itself is better than what it was told.
    let mut faster = Measured::new(&AUTO, links.recall("a:1"));
    faster.produced(&chunk(1_000_000, 10.0));
    assert_eq!(faster.codec(), Codec::Q8);
    let start = Instant::now();
    faster.opened(start);
    faster.written(BELIEVED_BYTES, &drained(&mut at, BELIEVED_BYTES, 1e9));
    faster.acknowledged(start + Duration::from_millis(20), true);
    assert_eq!(faster.codec(), Codec::Raw);
    links.learn("a:1", &faster);
    assert!(rate("a:1").unwrap() > 0.9e9);
    // One that never had to wait forgets it.
    let mut free = Measured::new(&Choice::Fixed(Codec::Raw), links.recall("a:1"));
    let start = Instant::now();
    free.opened(start);
    free.written(BELIEVED_BYTES, &Drained::default());
    free.acknowledged(start + Duration::from_millis(20), true);
    links.learn("a:1", &free);
    assert_eq!(rate("a:1"), None);
    // They are forgotten, the oldest first, beyond a limit.
    for i in 0..=MAX_LINKS {
        links.learn(&format!("{i}:1"), &first);
    }
    assert_eq!(rate("0:1"), None);
    assert!(rate("1:1").is_some());
}

/// While the engine stands still in its first import, what has come is checked and decoded all the same.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_decoded_while_the_engine_is_busy() {
    let config = FakeConfig {
        sequences: 200,
        ..heavy()
    };
    let mut receiving = config.clone();
    let brake = Brake::on(&mut receiving, CallKind::Import, 0);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &receiving).start().await;
    let mut deal = Deal::new(&prompt(32 * 3 + 1), 32);
    deal.terms.reuse = Reuse::Off;
    deal.terms.codec = CodecChoice::Plane;
    let (prefill, decode) = (Arc::new(prefill), Arc::new(decode));
    let running = tokio::spawn({
        let (deal, prefill, decode) = (deal.clone(), Arc::clone(&prefill), Arc::clone(&decode));
        async move { deal.run(&prefill, &decode).await }
    });
    brake.reached().await;
    // Somebody else is told how fast this node decodes, as soon as it has.
    let mut other = deal.clone();
    other.id = "other".into();
    let told = async {
        loop {
            let (_events, ticket) = other.open(&decode).await;
            let handoff = Handoff::dial(&config, &other, &ticket).await.unwrap();
            if handoff.sender.accepted().decode_rates.plane.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told)
        .await
        .expect("nothing is decoded");
    assert!(!running.is_finished());
    brake.release();
    let outcome = running.await.unwrap();
    outcome.whole(&deal.expected(&config).await, "after the brake");
    prefill.clean().await;
    decode.settled().await;
}
