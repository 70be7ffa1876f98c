//! Receipts: the comparison against a second, plain implementation; receipts that are none.

use proptest::prelude::*;
use tandem_handoff::limits::{MAX_STRING, RECEIPT_TOKENS};
use tandem_handoff::receipt::{Parity, ParityBound, Receipt, ReturnTicket};

/// Probabilities of a row of logits, by the definition.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// `sum of p * ln(p / q)`.
fn divergence(p: &[f64], q: &[f64]) -> f64 {
    let terms = p.iter().zip(q).filter(|(p, _)| **p > 0.0);
    terms.map(|(p, q)| p * (p / q).ln()).sum()
}

/// Tokens by probability, the likeliest first, of equal ones the lower id.
fn ranked(p: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
    order
}

/// What `Receipt::compare` says it computes, by the definition.
fn naive(theirs: &[f32], ours: &[f32]) -> Parity {
    let (p, q) = (softmax(theirs), softmax(ours));
    let order = ranked(&p);
    let (named, others) = order.split_at(RECEIPT_TOKENS.min(order.len()));
    let lumped = |d: &[f64]| {
        let mut out: Vec<f64> = named.iter().map(|i| d[*i]).collect();
        out.push(others.iter().map(|i| d[*i]).sum());
        out
    };
    let difference = |i: &usize| (p[*i].ln() - q[*i].ln()).abs();
    Parity {
        kl: divergence(&lumped(&p), &lumped(&q)),
        same_top: q.iter().all(|o| *o <= q[order[0]]),
        margin: match order.get(1) {
            Some(second) => p[order[0]].ln() - p[*second].ln(),
            None => f64::MAX,
        },
        max_difference: named.iter().map(difference).fold(0.0, f64::max),
    }
}

/// Log-probabilities travel as f32, and these are above -64.
const ROUNDING: f64 = 1e-5;

fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() < ROUNDING
}

fn logits(vocabulary: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(-20f32..20.0, vocabulary)
}

fn two_ends() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    (1usize..200).prop_flat_map(|n| {
        let noise = prop_oneof![Just(1e-3f32), Just(0.1), Just(3.0)];
        (logits(n), logits(n), noise).prop_map(|(theirs, other, noise)| {
            // From nearly equal to quite another.
            let ours = theirs.iter().zip(&other).map(|(t, o)| t + o / 20.0 * noise);
            let ours = ours.collect();
            (theirs, ours)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compares_as_defined((theirs, ours) in two_ends()) {
        let receipt = Receipt::of(&theirs, None);
        let order = ranked(&softmax(&theirs));
        let named: Vec<usize> = receipt.top.iter().map(|s| s.token as usize).collect();
        prop_assert_eq!(&named[..], &order[..RECEIPT_TOKENS.min(order.len())]);
        let (found, expected) = (receipt.compare(&ours).unwrap(), naive(&theirs, &ours));
        prop_assert!(close(found.kl, expected.kl), "{:?} {:?}", found, expected);
        prop_assert!(close(found.margin, expected.margin), "{:?} {:?}", found, expected);
        prop_assert!(close(found.max_difference, expected.max_difference));
        prop_assert_eq!(found.same_top, expected.same_top);
    }

    /// Data-processing inequality: lumping outcomes together loses divergence.
    #[test]
    fn never_more_than_the_divergence_of_the_vocabulary((theirs, ours) in two_ends()) {
        let found = Receipt::of(&theirs, None).compare(&ours).unwrap().kl;
        let whole = divergence(&softmax(&theirs), &softmax(&ours));
        prop_assert!(found >= 0.0 && found <= whole + ROUNDING, "{} {}", found, whole);
    }

    #[test]
    fn equal_ends_agree(theirs in logits(1..200), shift in -50f32..50.0) {
        // Logits are the same distribution up to a constant.
        let ours: Vec<f32> = theirs.iter().map(|l| l + shift).collect();
        let parity = Receipt::of(&theirs, None).compare(&ours).unwrap();
        prop_assert!(parity.kl < 1e-4 && parity.max_difference < 1e-4, "{:?}", parity);
        prop_assert!(parity.same_top || parity.margin < 1e-4);
        prop_assert!(ParityBound::default().holds(&parity));
    }
}

fn good() -> (Receipt, Vec<f32>) {
    let logits: Vec<f32> = (0..100u8).map(|i| f32::from(i % 17) / 4.0).collect();
    let back = ReturnTicket {
        ticket: "00".repeat(16),
        handoff: 1,
        port: 2,
    };
    (Receipt::of(&logits, Some(back)), logits)
}

#[test]
fn hostile_receipts_are_refused() {
    type Change = fn(&mut Receipt);
    let table: [(&str, Change); 15] = [
        ("`top`: 0 tokens", |r| r.top.clear()),
        ("`top`: 33 tokens", |r| r.top.push(r.top[31])),
        ("is not in the vocabulary", |r| r.top[3].token = 100),
        ("is not in the vocabulary", |r| r.top[3].token = u32::MAX),
        ("twice", |r| r.top[3].token = r.top[4].token),
        ("not in order", |r| r.top[3].logprob -= 1.0),
        ("not in order", |r| r.top.swap(0, 31)),
        ("is no log-probability", |r| {
            r.top.iter_mut().for_each(|s| s.logprob += 4.0);
        }),
        ("is no log-probability", |r| {
            r.top[0].logprob = f32::INFINITY
        }),
        ("is no log-probability", |r| r.top[31].logprob = f32::NAN),
        ("is no log-probability", |r| {
            r.top[31].logprob = f32::NEG_INFINITY
        }),
        ("add up to", |r| {
            r.top.iter_mut().for_each(|s| s.logprob = -0.1);
        }),
        // Tokens that are likelier than the last one were left out.
        ("add up to", |r| {
            r.top.iter_mut().for_each(|s| s.logprob -= 3.0);
        }),
        ("add up to", |r| {
            r.top.truncate(1);
            r.top[0].logprob = -9.0;
        }),
        ("`hand_back.ticket`", |r| {
            r.hand_back.as_mut().unwrap().ticket = "0".repeat(MAX_STRING + 1);
        }),
    ];
    for (i, (expected, change)) in table.into_iter().enumerate() {
        let (mut receipt, logits) = good();
        change(&mut receipt);
        let error = receipt.compare(&logits).expect_err(expected).to_string();
        assert!(error.starts_with("receipt field `"), "case {i}: {error}");
        assert!(error.contains(expected), "case {i}: {error}");
    }
}

#[test]
fn fewer_tokens_than_allowed_are_a_receipt() {
    let (mut receipt, logits) = good();
    receipt.top.truncate(3);
    let parity = receipt.compare(&logits).unwrap();
    assert!(parity.kl < ROUNDING && parity.same_top);
    let alone = Receipt::of(&[7.0], None);
    let parity = alone.compare(&[-7.0]).unwrap();
    assert_eq!((parity.kl, parity.same_top), (0.0, true));
    assert!(alone.compare(&[]).is_err());
    assert!(Receipt::of(&[], None).compare(&[]).is_err());
}

/// Logits that are no numbers, at either end, are never taken for agreement.
#[test]
fn logits_that_are_no_numbers() {
    let (receipt, good) = good();
    for bad in [f32::NAN, f32::INFINITY] {
        for at in [0, 50, 99] {
            let mut logits = good.clone();
            logits[at] = bad;
            assert!(receipt.compare(&logits).is_err(), "ours {bad} at {at}");
            let theirs = Receipt::of(&logits, None);
            assert!(theirs.compare(&good).is_err(), "theirs {bad} at {at}");
            assert!(theirs.compare(&logits).is_err(), "both {bad} at {at}");
        }
    }
    for nothing in [vec![f32::NEG_INFINITY; 100], vec![f32::NAN; 100]] {
        assert!(receipt.compare(&nothing).is_err());
        assert!(Receipt::of(&nothing, None).compare(&good).is_err());
    }
}

/// Tokens that are ruled out have no probability; what comes of it can still be written as JSON.
#[test]
fn tokens_that_are_ruled_out() {
    let mut masked = vec![f32::NEG_INFINITY; 40];
    (masked[5], masked[9]) = (1.0, 3.0);
    let theirs = Receipt::of(&masked, None);
    assert_eq!((theirs.top.len(), theirs.top[0].token), (RECEIPT_TOKENS, 9));
    let same = theirs.compare(&masked).unwrap();
    assert!(same.kl < ROUNDING && same.max_difference < ROUNDING && same.same_top);
    let mut others = masked.clone();
    (others[9], others[3]) = (f32::NEG_INFINITY, 2.0);
    for (theirs, ours) in [(&masked, &others), (&others, &masked)] {
        let parity = Receipt::of(theirs, None).compare(ours).unwrap();
        assert!(parity.kl > 100.0 && !parity.same_top, "{parity:?}");
        assert!(!ParityBound::default().holds(&parity));
        let json = serde_json::to_string(&parity).unwrap();
        let back: Parity = serde_json::from_str(&json).unwrap();
        assert!(close(back.kl, parity.kl), "{json}");
    }
}

#[test]
fn bounds_on_divergence_and_on_flips() {
    let bound = ParityBound {
        kl: 0.1,
        margin: 0.5,
    };
    let parity = |kl, same_top, margin| Parity {
        kl,
        same_top,
        margin,
        max_difference: 9.0,
    };
    for (parity, holds) in [
        (parity(0.1, true, 9.0), true),
        (parity(0.11, true, 0.0), false),
        (parity(0.0, false, 0.5), true),
        (parity(0.0, false, 0.51), false),
        (parity(f64::NAN, true, 0.0), false),
    ] {
        assert_eq!(bound.holds(&parity), holds, "{parity:?}");
    }
}
