//! The choice of the codec: worked cases, what no conditions may lead to, steadiness, and what a choice is
//! good for on a simulated link.

use proptest::prelude::*;
use tandem_kv::adaptive::{
    Adaptive, CodecRate, CodecRates, Conditions, MARGIN, Quality, REVIEW_BYTES, WORTHWHILE, choose,
};
use tandem_kv::codec::Codec::{self, Plane, Q8, Raw};

const MB: f64 = 1e6;

/// Rates of a server core, as a published comparison of such codecs has them.
fn rates() -> CodecRates {
    let rate = |ratio, encode, decode| CodecRate {
        ratio,
        encode: encode * 1e9,
        decode: decode * 1e9,
    };
    CodecRates {
        raw: rate(1.0, 15.0, 15.0),
        plane: rate(1.16, 1.5, 2.2),
        q8: rate(1.88, 3.5, 26.0),
    }
}

fn conditions(production: f64, goodput: f64) -> Conditions {
    Conditions {
        production: production * MB,
        goodput: goodput * MB,
        rates: rates(),
    }
}

/// Goodput of Ethernet after the overhead of TCP, MB/s.
const TEN_GIGABIT: f64 = 1170.0;
const TWO_AND_A_HALF: f64 = 290.0;
const GIGABIT: f64 = 117.0;
const WIRELESS: f64 = 60.0;
/// KV of a 30B model with 3B active parameters (48 layers, 4 heads of 128) at 2900 tokens a second.
const PRODUCTION: f64 = 285.0;
const HELD: f64 = f64::INFINITY;

#[test]
fn worked_cases() {
    let table = [
        // production, goodput, then the choice under: lossless, q8.
        (PRODUCTION, TEN_GIGABIT, [Raw, Raw]),
        (PRODUCTION, TWO_AND_A_HALF, [Plane, Q8]),
        (PRODUCTION, GIGABIT, [Plane, Q8]),
        (PRODUCTION, WIRELESS, [Plane, Q8]),
        // Rows that are held already: as fast as possible, if it is worth coding at all.
        (HELD, TEN_GIGABIT, [Plane, Q8]),
        (HELD, GIGABIT, [Plane, Q8]),
        // Faster than every codec: raw.
        (HELD, 5000.0, [Raw, Raw]),
        // A prefill that is slower than any link.
        (10.0, WIRELESS, [Raw, Raw]),
        // Just enough for each in turn: needed are 125 MB/s.
        (100.0, 125.0, [Raw, Raw]),
        (100.0, 124.0, [Plane, Plane]),
        (100.0, 107.0, [Plane, Q8]),
        (100.0, 67.0, [Plane, Q8]),
        // Nothing is known.
        (PRODUCTION, 0.0, [Raw, Raw]),
        (PRODUCTION, f64::NAN, [Raw, Raw]),
        (f64::NAN, GIGABIT, [Raw, Raw]),
        (0.0, GIGABIT, [Raw, Raw]),
        (-1.0, GIGABIT, [Raw, Raw]),
    ];
    for (production, goodput, expected) in table {
        let conditions = conditions(production, goodput);
        let found = Quality::ALL.map(|ceiling| choose(&conditions, ceiling));
        assert_eq!(found, expected, "P {production} MB/s, B {goodput} MB/s");
    }
}

/// 492 MB of held rows on 10GbE: 0.42 s raw, 0.36 s in byte planes, 0.22 s in 8 bits.
#[test]
fn rates_are_those_of_the_slowest_stage() {
    let held = conditions(HELD, TEN_GIGABIT);
    for (codec, seconds) in [(Raw, 0.42), (Plane, 0.36), (Q8, 0.22)] {
        let found = 492.0 * MB / held.rate(codec);
        assert!((found - seconds).abs() < 0.005, "{codec}: {found}");
    }
    // The byte planes are bound by their encoder where the link is fast.
    let fast = conditions(HELD, 3000.0);
    assert!((fast.rate(Plane) - 1500.0 * MB).abs() < MB);
    let mut endless = held;
    endless.rates.raw.encode = f64::INFINITY;
    assert!((endless.rate(Raw) - TEN_GIGABIT * MB).abs() < 1.0);
    endless.rates.raw.decode = 0.0;
    assert!(endless.rate(Raw) == 0.0);
}

#[test]
fn names_of_ceilings_and_what_they_allow() {
    let expected = [("lossless", vec![Raw, Plane]), ("q8", vec![Raw, Plane, Q8])];
    for (quality, (name, codecs)) in Quality::ALL.into_iter().zip(expected) {
        assert_eq!(quality.to_string(), name);
        assert_eq!(name.parse(), Ok(quality));
        let allowed = Codec::ALL.into_iter().filter(|c| quality.allows(*c));
        assert_eq!(allowed.collect::<Vec<_>>(), codecs);
    }
    assert!("lossy".parse::<Quality>().is_err());
    assert_eq!(Quality::default(), Quality::Lossless);
}

#[test]
fn the_first_measurement_decides_and_then_only_every_so_many_bytes() {
    let mut adaptive = Adaptive::new(Quality::Q8);
    assert_eq!(adaptive.codec(), Raw);
    // Nothing measured yet: bytes do not count, and the next review is due.
    adaptive.acknowledged(REVIEW_BYTES);
    assert_eq!(adaptive.review(&conditions(PRODUCTION, 0.0)), Raw);
    assert!(adaptive.is_due());
    assert_eq!(adaptive.review(&conditions(PRODUCTION, GIGABIT)), Q8);
    assert!(!adaptive.is_due());
    let fast = conditions(PRODUCTION, TEN_GIGABIT);
    adaptive.acknowledged(REVIEW_BYTES - 1);
    assert_eq!(adaptive.review(&fast), Q8);
    adaptive.acknowledged(1);
    assert!(adaptive.is_due());
    assert_eq!(adaptive.review(&fast), Raw);
    assert_eq!(adaptive.codec(), Raw);
    // Without measurements the codec stays, and the review stays due.
    adaptive.acknowledged(u64::MAX);
    adaptive.acknowledged(u64::MAX);
    assert_eq!(adaptive.review(&conditions(PRODUCTION, f64::NAN)), Raw);
    assert!(adaptive.is_due());
}

/// Reviews with a goodput that swings around the threshold of raw, `1.25 * 285 = 356` MB/s.
fn reviews(goodputs: &[f64]) -> Vec<Codec> {
    let mut adaptive = Adaptive::new(Quality::Q8);
    let review = |goodput: &f64| {
        adaptive.acknowledged(REVIEW_BYTES);
        adaptive.review(&conditions(PRODUCTION, *goodput))
    };
    goodputs.iter().map(review).collect()
}

#[test]
fn a_swinging_goodput_does_not_swing_the_codec() {
    let table = [
        // Within a fifth of the threshold: whatever came first stays.
        ([340.0, 370.0, 340.0, 370.0], [Plane, Plane, Plane, Plane]),
        ([300.0, 365.0, 300.0, 365.0], [Q8, Q8, Q8, Q8]),
        ([370.0, 300.0, 370.0, 300.0], [Raw, Raw, Raw, Raw]),
        // Beyond it the codec follows.
        ([370.0, 290.0, 360.0, 440.0], [Raw, Q8, Q8, Raw]),
    ];
    for (goodputs, expected) in table {
        assert_eq!(reviews(&goodputs), expected, "{goodputs:?}");
    }
}

/// Rows that are opened as one, bytes.
const BLOCK: f64 = 4.0 * MB;
/// Blocks of a handoff.
const BLOCKS: usize = 64;
/// Blocks whose codec is chosen before the link takes them.
const AHEAD: usize = 2;

/// Seconds from the first token computed to the last row decoded: the prefill makes blocks one after the
/// other, and an encoder, the link and a decoder each have one of them at a time. `pick` chooses a block's
/// codec, and is told the payload bytes that have been decoded at the other end since it was last asked,
/// if the link has carried any.
fn simulated(path: &Conditions, mut pick: impl FnMut(Option<u64>) -> Codec) -> f64 {
    let (mut encoder, mut link, mut decoder) = (0.0, 0.0, 0.0);
    let (mut carried, mut decoded) = (Vec::new(), Vec::<(f64, f64)>::new());
    let mut told = 0;
    let mut made = 0.0;
    for number in 0..BLOCKS {
        made += BLOCK / path.production;
        let room = number.checked_sub(AHEAD).map_or(0.0, |n| carried[n]);
        let now = f64::max(made, encoder).max(room);
        let until = decoded.partition_point(|(at, _)| *at <= now);
        let bytes: f64 = decoded[told..until].iter().map(|(_, bytes)| bytes).sum();
        told = until;
        let measured = carried.first().is_some_and(|at| *at <= now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of bytes"
        )]
        let codec = pick(measured.then_some(bytes as u64));
        let rate = path.rates.of(codec);
        encoder = now + BLOCK / rate.encode;
        link = encoder.max(link) + BLOCK / rate.ratio / path.goodput;
        carried.push(link);
        decoder = link.max(decoder) + BLOCK / rate.decode;
        decoded.push((decoder, BLOCK / rate.ratio));
    }
    decoder
}

/// The rule reckons with rates; this reckons with blocks.
#[test]
fn on_links_slower_than_the_prefill_the_choice_beats_raw() {
    let productions = [6.0, 60.0, PRODUCTION, 1000.0, 4000.0, HELD];
    let shares = [0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95];
    let mut beaten = 0;
    for (production, share) in productions.iter().flat_map(|p| shares.map(|s| (*p, s))) {
        let fastest = if production == HELD {
            4000.0
        } else {
            production
        };
        let path = conditions(production, fastest * share);
        let fixed = |codec| simulated(&path, |_| codec);
        for ceiling in Quality::ALL {
            let mut adaptive = Adaptive::new(ceiling);
            let chosen = simulated(&path, |decoded| {
                let Some(bytes) = decoded else {
                    return adaptive.codec();
                };
                adaptive.acknowledged(bytes);
                adaptive.review(&path)
            });
            let allowed = Codec::ALL.into_iter().filter(|c| ceiling.allows(*c));
            let best = allowed.map(fixed).fold(f64::INFINITY, f64::min);
            let case = format!("{production} MB/s made, {share} of it carried, {ceiling}");
            // Nothing is known until the first block has been carried.
            let unknown = (AHEAD + 1) as f64 * BLOCK / path.goodput;
            assert!(chosen <= fixed(Raw) * 1.0001, "{case}: {chosen}");
            assert!(
                chosen <= best * WORTHWHILE + unknown,
                "{case}: {chosen}, {best}"
            );
            if choose(&path, ceiling) != Raw {
                assert!(chosen < fixed(Raw), "{case}: {chosen}");
                beaten += 1;
            }
            // Raw is the best there is only where coding is slower than the link.
            let coded = fixed(Raw) > best * WORTHWHILE + unknown;
            assert!(!coded || choose(&path, ceiling) != Raw, "{case}");
        }
    }
    assert!(beaten > 60, "{beaten} cases in which something is faster");
}

fn any_rate() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => (-3.0f64..13.0).prop_map(|e| 10f64.powf(e)),
        1 => Just(0.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NAN),
        1 => any::<f64>(),
    ]
}

fn any_conditions() -> impl Strategy<Value = Conditions> {
    let codec = || {
        (0.5f64..4.0, any_rate(), any_rate()).prop_map(|(ratio, encode, decode)| CodecRate {
            ratio,
            encode,
            decode,
        })
    };
    let rates = (codec(), codec(), codec());
    let rates = rates.prop_map(|(raw, plane, q8)| CodecRates { raw, plane, q8 });
    (any_rate(), any_rate(), rates).prop_map(|(production, goodput, rates)| Conditions {
        production,
        goodput,
        rates,
    })
}

proptest! {
    #[test]
    fn no_conditions_lead_beyond_the_ceiling(
        reviewed in proptest::collection::vec((any_conditions(), any::<u64>()), 1..8)
    ) {
        for ceiling in Quality::ALL {
            let mut adaptive = Adaptive::new(ceiling);
            for (conditions, bytes) in &reviewed {
                prop_assert!(ceiling.allows(choose(conditions, ceiling)));
                prop_assert!(ceiling.allows(adaptive.review(conditions)));
                prop_assert!(ceiling.allows(adaptive.codec()));
                prop_assert!(ceiling != Quality::Lossless || adaptive.codec().is_lossless());
                adaptive.acknowledged(*bytes);
            }
        }
    }

    /// The rule, from the other side: whatever is chosen, nothing allowed is better by its own terms.
    #[test]
    fn nothing_better_is_allowed(conditions in any_conditions()) {
        for ceiling in Quality::ALL {
            let chosen = choose(&conditions, ceiling);
            let needed = MARGIN * conditions.production;
            let usable = conditions.goodput > 0.0 && conditions.production > 0.0;
            if !usable || conditions.goodput >= needed {
                prop_assert_eq!(chosen, Raw);
                continue;
            }
            let rate = conditions.rate(chosen);
            let worth = WORTHWHILE * conditions.rate(Raw);
            for other in Codec::ALL.into_iter().filter(|c| ceiling.allows(*c)) {
                let theirs = conditions.rate(other);
                // Less lossy and fast enough, or faster where none is.
                prop_assert!(other >= chosen || theirs < needed);
                let held = conditions.production.is_infinite() && theirs < worth;
                prop_assert!(rate >= needed || theirs <= rate || held, "{} {}", other, chosen);
            }
        }
    }
}
