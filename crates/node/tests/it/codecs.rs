//! Rows that travel encoded.

use std::sync::Arc;
use std::time::Duration;

use tandem_engine::fake::{CallKind, FakeConfig};
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_node::limits::{EXPOSED_TIME, MAX_LINKS, RAW_AGAIN};
use tandem_node::link_estimate::{CodecPolicy, Codecs, LinkEstimates, Report};
use tandem_proto::{CodecChoice, PrefillEvent, Role};

use super::cluster::{Deal, PATIENCE, Reuse, Setup, heavy, prompt};
use super::kills::Brake;
use super::proxy::Proxy;

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
    config
}

#[tokio::test]
async fn lossless_codecs_give_equal_tokens() {
    for config in [config(false), config(true)] {
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut deal = Deal::new(&prompt(32 * 5 + 5), 32);
        Reuse::Off.set(&mut deal.terms);
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
    deal.terms.quality = Quality::Lossless;
    let mut told = deal.terms.clone();
    told.codec = CodecChoice::Q8;
    deal.prefill_terms = Some(told);
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&expected, "q8 without permission");
    assert!(reason.contains("`codec`"), "{reason}");
    assert!(matches!(outcome.end, PrefillEvent::Failed(_)));
    assert_eq!(outcome.answer.summary.codec, None);
    assert_eq!(outcome.answer.summary.remote_tokens, 0);
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
        Reuse::All.set(&mut deal.terms);
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

const AUTO: CodecPolicy = CodecPolicy::Auto(Quality::Q8);

/// A handoff of 100 MB that were computed in a second, went in this codec at this rate, MB/s, and were applied in no time.
fn report(codec: Codec, rate: f64) -> Report {
    let transfer_ms = 100.0 / rate * 1e3;
    Report {
        prefill_ms: 1000.0,
        computed_bytes: 100_000_000,
        raw_bytes: 100_000_000,
        transfer_ms: transfer_ms.max(1000.0),
        exposed_transfer_ms: (transfer_ms - 1000.0).max(0.0),
        codec: Some(codec),
        ..Report::default()
    }
}

/// The codecs of the next handoff to a target.
fn next(links: &LinkEstimates, target: &str) -> (Codec, Codec) {
    let Codecs { computed, held } = links.codecs(target, AUTO, true);
    (computed, held)
}

const RAW: (Codec, Codec) = (Codec::Raw, Codec::Raw);
const Q8: (Codec, Codec) = (Codec::Q8, Codec::Q8);

#[test]
fn a_link_that_was_waited_for_is_remembered() {
    let links = LinkEstimates::default();
    assert_eq!(next(&links, "a"), RAW);
    links.learn("a", &report(Codec::Raw, 20.0));
    assert_eq!(next(&links, "a"), Q8);
    assert_eq!(next(&links, "b"), RAW);
    // The ceiling holds whatever the link, and so does what is configured.
    let strict = links.codecs("a", CodecPolicy::Auto(Quality::Lossless), true);
    assert_eq!((strict.computed, strict.held), (Codec::Plane, Codec::Plane));
    let fixed = links.codecs("a", CodecPolicy::Fixed(Codec::Raw), true);
    assert_eq!((fixed.computed, fixed.held), RAW);
    // Fast enough for what is computed, and not for what is there already.
    let links = LinkEstimates::default();
    links.learn("a", &report(Codec::Raw, 20.0));
    let slow = Report {
        prefill_ms: 60_000.0,
        ..report(Codec::Raw, 20.0)
    };
    (0..6).for_each(|_| links.learn("a", &slow));
    assert_eq!(next(&links, "a"), (Codec::Raw, Codec::Q8));
    // Of which there is as much where nothing is sent before all is computed.
    assert_eq!(links.codecs("a", AUTO, false).computed, Codec::Q8);
    // The oldest is forgotten beyond a limit.
    for target in 0..MAX_LINKS {
        links.learn(&target.to_string(), &report(Codec::Raw, 20.0));
    }
    assert_eq!(next(&links, "a"), RAW);
    assert_eq!(next(&links, "0"), Q8);
}

/// Each of these is a reason not to believe that the link was what held a handoff up.
#[test]
fn what_the_link_did_not_hold_up_tells_nothing_of_it() {
    let slow = report(Codec::Raw, 20.0);
    let short = EXPOSED_TIME.as_secs_f64() * 1e3 - 1.0;
    let cases = [
        (
            "not waited for",
            Report {
                exposed_transfer_ms: 0.0,
                ..slow.clone()
            },
        ),
        (
            "waited for a moment",
            Report {
                exposed_transfer_ms: short,
                ..slow.clone()
            },
        ),
        (
            "a small part",
            Report {
                exposed_transfer_ms: slow.transfer_ms / 11.0,
                ..slow.clone()
            },
        ),
        (
            "the receiver was busy",
            Report {
                apply_ms: slow.exposed_transfer_ms,
                ..slow.clone()
            },
        ),
        (
            "it broke",
            Report {
                reconnects: 1,
                ..slow.clone()
            },
        ),
        (
            "in two codecs",
            Report {
                is_mixed: true,
                ..slow.clone()
            },
        ),
        (
            "nothing was sent",
            Report {
                codec: None,
                ..slow.clone()
            },
        ),
    ];
    for (what, report) in cases {
        let links = LinkEstimates::default();
        links.learn("a", &report);
        assert_eq!(next(&links, "a"), RAW, "{what}");
    }
}

/// In the codec that was chosen for a slow link, nothing shows how fast it has become.
#[test]
fn a_link_that_was_slow_once_is_tried_again() {
    let links = LinkEstimates::default();
    links.learn("a", &report(Codec::Raw, 20.0));
    for handoff in 0..RAW_AGAIN {
        assert_eq!(next(&links, "a"), Q8, "{handoff}");
        links.learn("a", &report(Codec::Q8, 38.0));
    }
    assert_eq!(next(&links, "a"), RAW);
    // A small one that nobody waits for says nothing of large ones; one that goes faster than any before does.
    links.learn("a", &report(Codec::Raw, 20.0));
    let small = Report {
        raw_bytes: 1_000_000,
        ..report(Codec::Raw, 1e3)
    };
    links.learn("a", &small);
    assert_eq!(next(&links, "a"), Q8);
    links.learn("a", &report(Codec::Raw, 1e3));
    assert_eq!(next(&links, "a"), RAW);
}

/// Where the link is not what is slow, the next handoffs find out that coding does not help.
#[test]
fn a_codec_that_is_no_faster_is_given_up() {
    let links = LinkEstimates::default();
    links.learn("a", &report(Codec::Raw, 50.0));
    assert_eq!(next(&links, "a"), Q8);
    links.learn("a", &report(Codec::Q8, 51.0));
    assert_eq!(next(&links, "a"), (Codec::Plane, Codec::Plane));
    links.learn("a", &report(Codec::Plane, 51.0));
    assert_eq!(next(&links, "a"), RAW);
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
    let proxy = Proxy::to(decode.port).await;
    let mut deal = Deal::new(&prompt(32 * 3 + 1), 32);
    deal.via = Some(proxy.port);
    Reuse::Off.set(&mut deal.terms);
    deal.terms.codec = CodecChoice::Plane;
    let (prefill, decode) = (Arc::new(prefill), Arc::new(decode));
    let running = tokio::spawn({
        let (deal, prefill, decode) = (deal.clone(), Arc::clone(&prefill), Arc::clone(&decode));
        async move { deal.run(&prefill, &decode).await }
    });
    brake.reached().await;
    // 48 MiB of rows: far more than the system's buffers take.
    let read = async {
        while proxy.forwarded() < 24 << 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("little is read");
    assert!(!running.is_finished());
    brake.release();
    let outcome = running.await.unwrap();
    outcome.whole(&deal.expected(&config).await, "after the brake");
    prefill.clean().await;
    decode.settled().await;
}
