//! The choice of the codec: worked cases, what no measurements may lead to, and what a choice is good for on a
//! simulated link.

use proptest::prelude::*;
use tandem_handoff::codec::Codec::{self, Plane, Q8, Raw};
use tandem_handoff::policy::{MARGIN, PathRates, Quality, WORTHWHILE, choose};

const MB: f64 = 1e6;
/// Rates of Ethernet after the overhead of TCP, MB/s.
const TEN_GIGABIT: f64 = 1170.0;
const TWO_AND_A_HALF: f64 = 290.0;
const GIGABIT: f64 = 117.0;
const WIRELESS: f64 = 60.0;
/// KV of a 30B model with 3B active parameters (48 layers, 4 heads of 128) at 2900 tokens a second.
const PRODUCTION: f64 = 285.0;
const HELD: f64 = f64::INFINITY;

/// Measured in these codecs, in MB/s.
fn path(rates: &[(Codec, f64)]) -> PathRates {
    let mut path = PathRates::default();
    for (codec, rate) in rates {
        path.measured(*codec, rate * MB);
    }
    path
}

#[test]
fn worked_cases() {
    let table = [
        // production, what is measured, then the choice under: lossless, q8.
        (PRODUCTION, vec![], [Raw, Raw]),
        (HELD, vec![], [Raw, Raw]),
        (PRODUCTION, vec![(Raw, TEN_GIGABIT)], [Raw, Raw]),
        (PRODUCTION, vec![(Raw, TWO_AND_A_HALF)], [Plane, Q8]),
        (PRODUCTION, vec![(Raw, GIGABIT)], [Plane, Q8]),
        // Rows that are there already: as fast as possible, if it is worth coding at all.
        (HELD, vec![(Raw, GIGABIT)], [Plane, Q8]),
        (HELD, vec![(Raw, TEN_GIGABIT)], [Raw, Q8]),
        (HELD, vec![(Raw, 5000.0)], [Raw, Raw]),
        // A prefill that is slower than any link.
        (10.0, vec![(Raw, WIRELESS)], [Raw, Raw]),
        // Just enough for each in turn: needed are 125 MB/s.
        (100.0, vec![(Raw, 125.0)], [Raw, Raw]),
        (100.0, vec![(Raw, 124.0)], [Plane, Plane]),
        (100.0, vec![(Raw, 107.0)], [Plane, Q8]),
        // What was tried and is no better, because something else than the link is slow.
        (PRODUCTION, vec![(Raw, 100.0), (Plane, 105.0)], [Raw, Q8]),
        (
            PRODUCTION,
            vec![(Raw, 100.0), (Plane, 105.0), (Q8, 110.0)],
            [Raw, Raw],
        ),
        // What is not measured follows from the codec that carried the most.
        (PRODUCTION, vec![(Q8, 188.0)], [Plane, Q8]),
        (PRODUCTION, vec![(Q8, 1000.0)], [Raw, Raw]),
        (PRODUCTION, vec![(Plane, 50.0), (Q8, 1000.0)], [Raw, Raw]),
        // No number of them.
        (f64::NAN, vec![(Raw, GIGABIT)], [Raw, Raw]),
        (0.0, vec![(Raw, GIGABIT)], [Raw, Raw]),
        (-1.0, vec![(Raw, GIGABIT)], [Raw, Raw]),
        (PRODUCTION, vec![(Raw, 0.0), (Q8, f64::NAN)], [Raw, Raw]),
    ];
    for (production, measured, expected) in table {
        let path = path(&measured);
        let found = Quality::ALL.map(|ceiling| choose(production * MB, &path, ceiling));
        assert_eq!(found, expected, "{production} MB/s made, {measured:?}");
    }
}

#[test]
fn the_latest_measurement_counts_half() {
    let twice = path(&[(Raw, 100.0), (Raw, 200.0)]);
    assert_eq!(twice.of(Raw), Some(150.0 * MB));
    let thrice = path(&[
        (Raw, 100.0),
        (Raw, 200.0),
        (Raw, f64::INFINITY),
        (Raw, 50.0),
    ]);
    assert_eq!(thrice.of(Raw), Some(100.0 * MB));
    assert_eq!(path(&[]).of(Raw), None);
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

/// Rates of a server core as a published comparison of such codecs has them: ratio, and MB of rows per second that are
/// encoded and decoded.
const fn coder(codec: Codec) -> (f64, f64, f64) {
    match codec {
        Raw => (1.0, 15e3, 15e3),
        Plane => (1.16, 1.5e3, 2.2e3),
        Q8 => (1.88, 3.5e3, 26e3),
    }
}

/// Rows that are opened as one, MB, and blocks of a handoff.
const BLOCK: f64 = 4.0;
const BLOCKS: usize = 64;

/// Seconds from the first token computed to the last row decoded: the prefill makes blocks one after the
/// other, and an encoder, the link and a decoder each have one of them at a time.
fn simulated(production: f64, link: f64, codec: Codec) -> f64 {
    let (ratio, encode, decode) = coder(codec);
    let (mut made, mut encoded, mut carried, mut decoded) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..BLOCKS {
        made += BLOCK / production;
        encoded = f64::max(made, encoded) + BLOCK / encode;
        carried = f64::max(encoded, carried) + BLOCK / ratio / link;
        decoded = f64::max(carried, decoded) + BLOCK / decode;
    }
    decoded
}

/// The rule reckons with rates; this reckons with blocks. From the second handoff on the choice is as good as the best
/// codec, but for one that was tried and is not worth it.
#[test]
fn on_links_slower_than_the_prefill_the_choice_beats_raw() {
    let mut beaten = 0;
    for production in [6.0, 60.0, PRODUCTION, 1000.0, HELD] {
        for share in [0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95] {
            let link = f64::min(production, 4000.0) * share;
            let took = |codec| simulated(production, link, codec);
            for ceiling in Quality::ALL {
                let allowed = Codec::ALL.into_iter().filter(|c| ceiling.allows(*c));
                let best = allowed.map(took).fold(f64::INFINITY, f64::min);
                let mut path = PathRates::default();
                let mut tried = Vec::new();
                for handoff in 0..6 {
                    let codec = choose(production * MB, &path, ceiling);
                    tried.push(codec);
                    let case = format!("{production} MB/s made, {link} carried, {ceiling}");
                    if handoff > 2 {
                        let worth = took(codec) <= best * WORTHWHILE * 1.01;
                        assert!(worth, "{case}: {tried:?}, {} {best}", took(codec));
                        beaten += u32::from(took(codec) * 1.1 < took(Raw));
                    }
                    // As a sender measures it, where the way was waited for.
                    let all = BLOCK * BLOCKS as f64;
                    if took(codec) > all / production * 1.1 {
                        path.measured(codec, all * MB / took(codec));
                    }
                }
            }
        }
    }
    assert!(beaten > 60, "{beaten} handoffs that are faster than raw");
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

proptest! {
    /// The rule, from the other side: whatever is chosen, nothing allowed is better by its own terms.
    #[test]
    fn nothing_better_is_allowed(
        production in any_rate(),
        measured in proptest::collection::vec((proptest::sample::select(&Codec::ALL[..]), any_rate()), 0..5)
    ) {
        let mut path = PathRates::default();
        for (codec, rate) in measured {
            path.measured(codec, rate);
        }
        for ceiling in Quality::ALL {
            let chosen = choose(production, &path, ceiling);
            prop_assert!(ceiling.allows(chosen));
            let Some(raw) = path.of(Raw).filter(|_| production > 0.0) else {
                prop_assert_eq!(chosen, Raw);
                continue;
            };
            let (needed, rate) = (MARGIN * production, path.of(chosen).unwrap());
            prop_assert!(chosen == Raw || rate >= needed || rate >= WORTHWHILE * raw);
            for other in Codec::ALL.into_iter().filter(|c| ceiling.allows(*c)) {
                let theirs = path.of(other).unwrap();
                // Less lossy and fast enough, or faster where none is.
                prop_assert!(other >= chosen || theirs < needed);
                let is_worth = theirs >= WORTHWHILE * raw;
                prop_assert!(rate >= needed || theirs <= rate || chosen == Raw && !is_worth);
            }
        }
    }
}
