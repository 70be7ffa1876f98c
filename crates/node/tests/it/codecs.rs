//! Rows that travel encoded.

use tandem_engine::fake::FakeConfig;
use tandem_kv::adaptive::Quality;
use tandem_kv::codec::Codec;
use tandem_proto::{CodecChoice, PrefillEvent, Reuse, Role};

use super::cluster::{Deal, Setup, prompt};

/// Head sizes that all codecs take.
fn config(windowed: bool) -> FakeConfig {
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
    }
}

#[tokio::test]
async fn lossy_codecs_need_permission_of_the_receiver() {
    let config = config(true);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = Deal::new(&prompt(32 * 5 + 5), 32);
    let expected = deal.expected(&config).await;
    for (choice, quality) in [
        (CodecChoice::Q8, Quality::Lossless),
        (CodecChoice::K8v4, Quality::Lossless),
        (CodecChoice::K8v4, Quality::Q8),
    ] {
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
}

#[tokio::test]
async fn lossy_codecs_are_reported_and_their_rows_are_not_kept() {
    let config = config(false);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut wires = Vec::new();
    for (choice, codec) in [
        (CodecChoice::Raw, Codec::Raw),
        (CodecChoice::Q8, Codec::Q8),
        (CodecChoice::K8v4, Codec::K8v4),
    ] {
        let mut deal = Deal::new(&prompt(64 * 3 + 5), 64);
        deal.terms.quality = Quality::K8v4;
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
    assert!(wires[2] < wires[1], "{wires:?}");
}
