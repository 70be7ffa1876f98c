//! The lossy codecs keep the bounds that their documentation states, whatever the rows are.

use half::f16;
use proptest::prelude::*;
use tandem_kv::PlaneKind::Value;
use tandem_kv::codec::{Codec, CodecError, four_bit_error_bound, q8_error_bound};

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

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// The documented rotation, by its definition: element (i, j) of the matrix is -1 to the power of the
/// bits that i and j share.
fn rotated(head: &[f64]) -> Vec<f64> {
    let mut state = u64::from_be_bytes(*b"\0\0tandem");
    let mut signed = Vec::new();
    for value in head {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        signed.push(if z >> 63 == 1 { -value } else { *value });
    }
    let root = f64::from(u32::try_from(head.len()).unwrap()).sqrt();
    let element = |i: usize| {
        let terms = signed.iter().enumerate();
        let sum: f64 = terms
            .map(|(j, v)| {
                if (i & j).count_ones() % 2 == 1 {
                    -v
                } else {
                    *v
                }
            })
            .sum();
        sum / root
    };
    (0..head.len()).map(element).collect()
}

fn check_q8(bits: &[u16]) {
    let run = spec(Value, 1, u32::try_from(bits.len()).unwrap(), 1);
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

/// What the bound says of one group: a head, or the heads of one block.
fn check_four_bits(x: &[f64], y: &[f64], dim: usize) {
    let z: Vec<f64> = x.chunks(dim).flat_map(rotated).collect();
    let length = norm(x.iter().copied());
    let n = u32::try_from(x.len()).unwrap();
    let bound = four_bit_error_bound(length, n, z.chunks(32).map(largest));
    let error = norm(x.iter().zip(y).map(|(x, y)| x - y));
    assert!(
        error <= bound,
        "error {error}, bound {bound}, norm {length}"
    );
}

fn check_k8v4(bits: &[u16], dim: usize) -> Result<(), CodecError> {
    let heads = u32::try_from(bits.len() / dim).unwrap();
    let run = spec(Value, heads, u32::try_from(dim).unwrap(), 1);
    let raw = bytes_of(bits);
    let bytes = encode(Codec::K8v4, &run, &raw)?;
    let (x, y) = (
        values(&raw),
        values(&decode(Codec::K8v4, &run, &bytes).unwrap().0),
    );
    let group = dim.max(32);
    for (x, y) in x.chunks(group).zip(y.chunks(group)) {
        check_four_bits(x, y, dim);
    }
    Ok(())
}

proptest! {
    #[test]
    fn q8_stays_within_its_bound(bits in rows(96)) {
        check_q8(&bits);
    }

    #[test]
    fn four_bits_stay_within_their_bound(
        (dim, bits) in (0u32..11).prop_flat_map(|log| (Just(1usize << log), rows(256.max(1 << log))))
    ) {
        match check_k8v4(&bits, dim) {
            Ok(()) => {}
            // Only heads that are both large in number and huge in value have no scale.
            Err(CodecError::TooLarge { .. }) => {
                prop_assert!(dim > 64);
                let x = values(&bytes_of(&bits));
                prop_assert!(x.chunks(dim).any(|h| norm(h.iter().copied()) > 8.0 * 65504.0));
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn rows_at_the_edges_stay_within_the_bounds() {
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
        for dim in [1, 2, 16, 32, 64] {
            check_k8v4(&bits, dim).unwrap();
        }
    }
}

/// The bounds are no wider than they must be: some row comes close to each.
#[test]
fn the_bounds_are_tight() {
    // Half way between two codes of a block whose largest value is 127: half a step is lost.
    let mut bits = vec![f16::from_f32(0.5).to_bits(); 32];
    bits[0] = f16::from_f32(127.0).to_bits();
    let run = spec(Value, 1, 32, 1);
    let raw = bytes_of(&bits);
    let bytes = encode(Codec::Q8, &run, &raw).unwrap();
    let back = values(&decode(Codec::Q8, &run, &bytes).unwrap().0);
    let error = (back[1] - 0.5).abs();
    assert!(error > 0.75 * q8_error_bound(127.0), "{error}");

    // Heads of one element are not rotated but for their sign: of two opposite largest values the
    // positive one is off by a whole step, an eighth.
    let bits: Vec<u16> = (0..32u16).map(|i| 0x3C00 | ((i % 2) << 15)).collect();
    let raw = bytes_of(&bits);
    let run = spec(Value, 32, 1, 1);
    let bytes = encode(Codec::K8v4, &run, &raw).unwrap();
    let back = values(&decode(Codec::K8v4, &run, &bytes).unwrap().0);
    let error = norm(values(&raw).iter().zip(&back).map(|(x, y)| x - y));
    let bound = four_bit_error_bound(32f64.sqrt(), 32, [1.0]);
    assert!(error <= bound && error > 0.5 * bound, "{error} of {bound}");
}

/// What the rotation is for: an outlier among small values costs the others less.
#[test]
fn rotation_helps_where_one_channel_is_large() {
    let mut x: Vec<f32> = (0..128u16)
        .map(|i| f32::from(i * 37 % 64) / 64.0 - 0.5)
        .collect();
    x[17] = 20.0;
    let bits: Vec<u16> = x.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
    let raw = bytes_of(&bits);
    let error = |heads: u32, dim: u32| {
        let run = spec(Value, heads, dim, 1);
        let bytes = encode(Codec::K8v4, &run, &raw).unwrap();
        let back = values(&decode(Codec::K8v4, &run, &bytes).unwrap().0);
        let exact = values(&raw);
        let others = (0..128).filter(|i| i / 32 == 0 && *i != 17);
        norm(others.map(|i| exact[i] - back[i]))
    };
    // Heads of one element are not rotated.
    let (plain, rotated) = (error(128, 1), error(1, 128));
    assert!(rotated < plain / 2.0, "rotated {rotated}, plain {plain}");
}

#[test]
fn lossy_codecs_refuse_what_is_not_finite_and_leave_the_payload_alone() {
    let mut encoder = tandem_kv::codec::Encoder::new().unwrap();
    for bits in [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF] {
        for at in [0, 31, 32, 100, 127] {
            let mut rows = vec![0x3C00; 128];
            rows[at] = bits;
            let raw = bytes_of(&rows);
            let run = spec(Value, 1, 64, 2);
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

#[test]
fn four_bits_refuse_heads_without_a_scale() {
    // Every element of the head as its sign flip has it: the rotation gathers all in one element.
    let ones = vec![1.0; 128];
    let signs = rotated(&ones);
    let head: Vec<u16> = {
        // The signs are the inverse transform of what the rotation makes of ones.
        let root = 128f64.sqrt();
        let element = |i: usize| -> f64 {
            let terms = signs.iter().enumerate();
            terms
                .map(|(j, v)| {
                    if (i & j).count_ones() % 2 == 1 {
                        -v
                    } else {
                        *v
                    }
                })
                .sum::<f64>()
                / root
        };
        (0..128)
            .map(|i| if element(i) < 0.0 { 0xFBFF } else { 0x7BFF })
            .collect()
    };
    let mut rows = vec![0x3C00; 128];
    rows.extend(head);
    let raw = bytes_of(&rows);
    let run = spec(Value, 1, 128, 2);
    let error = encode(Codec::K8v4, &run, &raw).unwrap_err();
    assert_eq!(error, CodecError::TooLarge { element: 128 });
    check_q8(&rows);
}
