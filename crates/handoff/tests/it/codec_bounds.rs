//! The lossy codec keeps the bound that its documentation states, whatever the rows are.

use half::f16;
use proptest::prelude::*;
use tandem_handoff::codec::{Codec, CodecError, q8_error_bound};

use super::codec::{bytes_of, decode, encode, spec};

/// Finite half floats of every size, sign and sort.
fn finite() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => any::<u16>().prop_map(|b| if b & 0x7C00 == 0x7C00 { b & !0x4000 } else { b }),
        2 => (0x3000u16..0x4400, any::<bool>()).prop_map(|(b, s)| b | u16::from(s) << 15),
        1 => (0u16..0x400, any::<bool>()).prop_map(|(b, s)| b | u16::from(s) << 15),
        1 => prop_oneof![Just(0x7BFF), Just(0xFBFF), Just(0), Just(0x8000), Just(1), Just(0x8001)],
    ]
}

/// Rows of `n` elements: all sorts mixed, one sort throughout, or one outlier among small values.
fn rows(n: usize) -> impl Strategy<Value = Vec<u16>> {
    let mixed = proptest::collection::vec(finite(), n);
    let same = finite().prop_flat_map(move |base| {
        proptest::collection::vec(any::<(bool, u8)>(), n).prop_map(move |v| {
            let vary = |(sign, low): (bool, u8)| {
                ((base & 0x7F00) | u16::from(low)).min(0x7BFF) | u16::from(sign) << 15
            };
            v.into_iter().map(vary).collect()
        })
    });
    let outlier = (0..n, finite(), proptest::collection::vec(0u16..0x2000, n));
    let outlier = outlier.prop_map(|(at, large, mut v)| {
        v[at] = large;
        v
    });
    prop_oneof![mixed, same, outlier]
}

fn values(bytes: &[u8]) -> Vec<f64> {
    let halves = bytes.chunks(2);
    halves
        .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64())
        .collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, v| v.abs().max(max))
}

fn check_q8(bits: &[u16]) {
    let run = spec(1, u32::try_from(bits.len()).unwrap(), 1);
    let raw = bytes_of(bits);
    let bytes = encode(Codec::Q8, &run, &raw).unwrap();
    let (x, y) = (
        values(&raw),
        values(&decode(Codec::Q8, &run, &bytes).unwrap().0),
    );
    for (x, y) in x.chunks(32).zip(y.chunks(32)) {
        let bound = q8_error_bound(largest(x));
        for (x, y) in x.iter().zip(y) {
            assert!((x - y).abs() <= bound, "{x} became {y}, bound {bound}");
        }
    }
}

proptest! {
    #[test]
    fn q8_stays_within_its_bound(bits in rows(96)) {
        check_q8(&bits);
    }
}

#[test]
fn rows_at_the_edges_stay_within_the_bound() {
    const MAX: u16 = 0x7BFF;
    let edges = [
        vec![0; 64],
        vec![0x8000; 64],
        vec![MAX; 64],
        vec![MAX | 0x8000; 64],
        vec![1; 64],
        vec![0x3FF; 64],
        vec![0x400; 64],
        (0..64).map(|i| MAX ^ (i % 2) << 15).collect(),
        (0..64).map(|i| u16::from(i == 7) * MAX).collect(),
        (0..64).map(|i| u16::from(i == 7)).collect(),
        (0..64).map(|i| if i == 40 { MAX } else { 1 }).collect(),
    ];
    for bits in edges {
        check_q8(&bits);
    }
}

/// The bound is no wider than it must be: some row comes close to it.
#[test]
fn the_bound_is_tight() {
    // Half way between two codes of a block whose largest value is 127: half a step is lost.
    let mut bits = vec![f16::from_f32(0.5).to_bits(); 32];
    bits[0] = f16::from_f32(127.0).to_bits();
    let run = spec(1, 32, 1);
    let raw = bytes_of(&bits);
    let bytes = encode(Codec::Q8, &run, &raw).unwrap();
    let back = values(&decode(Codec::Q8, &run, &bytes).unwrap().0);
    let error = (back[1] - 0.5).abs();
    assert!(error > 0.75 * q8_error_bound(127.0), "{error}");
}

#[test]
fn lossy_codecs_refuse_what_is_not_finite_and_leave_the_payload_alone() {
    let mut encoder = tandem_handoff::codec::Encoder::new().unwrap();
    for bits in [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF] {
        for at in [0, 31, 32, 100, 127] {
            let mut rows = vec![0x3C00; 128];
            rows[at] = bits;
            let raw = bytes_of(&rows);
            let run = spec(1, 64, 2);
            for codec in Codec::ALL {
                let mut out = vec![1, 2, 3];
                let result = encoder.encode(codec, &run, &raw, &mut out);
                if codec.is_lossless() {
                    result.unwrap();
                    assert_eq!(decode(codec, &run, &out[3..]).unwrap().0, raw);
                    continue;
                }
                let element = at as u64;
                assert_eq!(result, Err(CodecError::NotFinite { element, bits }));
                assert_eq!(out, [1, 2, 3]);
            }
        }
    }
}
