//! The block formats of `tandem-kv`'s codecs against ggml's own quantisation.

use std::ffi::c_void;

use llama_cpp_sys_2::{
    GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, ggml_fp16_to_fp32_row, ggml_get_type_traits,
    ggml_quantize_chunk, ggml_type,
};
use proptest::prelude::*;
use tandem_kv::PlaneKind;
use tandem_kv::codec::{BLOCK, Codec, Decoder, Encoder, RunSpec};

const Q8_BYTES: usize = 34;
const Q4_BYTES: usize = 18;

/// Two formats and how `tandem-kv` is made to write them. Heads of one element are rotated by nothing
/// but the sign of the first channel, which is negative.
fn runs(elements: usize) -> [(Codec, RunSpec, ggml_type, usize, f32); 2] {
    let run = RunSpec {
        kind: PlaneKind::Value,
        layer: 2,
        layers: 5,
        heads: u32::try_from(elements).unwrap(),
        dim: 1,
        tokens: 1,
    };
    [
        (Codec::Q8, run, GGML_TYPE_Q8_0, Q8_BYTES, 1.0),
        (Codec::K8v4, run, GGML_TYPE_Q4_0, Q4_BYTES, -1.0),
    ]
}

fn floats(bits: &[u16]) -> Vec<f32> {
    let mut out = vec![0.0; bits.len()];
    let n = i64::try_from(bits.len()).unwrap();
    // SAFETY: both buffers have `n` elements.
    unsafe { ggml_fp16_to_fp32_row(bits.as_ptr(), out.as_mut_ptr(), n) };
    out
}

fn quantised(kind: ggml_type, values: &[f32], bytes: usize) -> Vec<u8> {
    let mut out = vec![0u8; values.len() / BLOCK * bytes];
    let n = i64::try_from(values.len()).unwrap();
    // SAFETY: `values` is one row of `n` elements, whole blocks, and `out` has the row's size; these
    // types need no importance matrix.
    let written = unsafe {
        let out = out.as_mut_ptr().cast::<c_void>();
        ggml_quantize_chunk(kind, values.as_ptr(), out, 0, 1, n, std::ptr::null())
    };
    assert_eq!(written, out.len());
    out
}

fn dequantised(kind: ggml_type, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    // SAFETY: the traits of a type are static; `bytes` are the blocks of `elements` elements.
    unsafe {
        let to_float = (*ggml_get_type_traits(kind)).to_float.expect("to_float");
        let n = i64::try_from(elements).unwrap();
        to_float(bytes.as_ptr().cast(), out.as_mut_ptr(), n);
    }
    out
}

/// Codes of a block in the order of its elements.
fn codes(block: &[u8]) -> Vec<i32> {
    let codes = &block[2..];
    if block.len() == Q8_BYTES {
        return codes.iter().map(|c| i32::from(c.cast_signed())).collect();
    }
    let low = codes.iter().map(|c| i32::from(c & 0xF) - 8);
    let high = codes.iter().map(|c| i32::from(c >> 4) - 8);
    low.chain(high).collect()
}

/// Equal scales; equal codes but where a value lies half way between two.
fn check_block(ours: &[u8], theirs: &[u8], values: &[f32]) {
    let largest = values.iter().fold(0f32, |max, v| v.abs().max(max));
    let steps = if ours.len() == Q8_BYTES { 127.0 } else { 8.0 };
    if ours[..2] != theirs[..2] {
        // Of two opposite largest values ggml's q4_0 takes the first, we the negative one. A zero
        // scale has a sign there and none here.
        let both = values.contains(&largest) && values.contains(&-largest);
        assert!(ours.len() == Q4_BYTES && both, "scale of {values:?}");
        return;
    }
    let pairs = codes(ours).into_iter().zip(codes(theirs)).zip(values);
    for ((a, b), value) in pairs {
        let exact = f64::from(value.abs()) / f64::from(largest) * steps;
        let tie = (exact.fract() - 0.5).abs() < 1e-4;
        assert!(
            a == b || (tie && a.abs_diff(b) == 1),
            "{value}: {a} and {b}"
        );
    }
}

fn check(bits: &[u16]) {
    let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    for (codec, run, kind, bytes, sign) in runs(bits.len()) {
        let values: Vec<f32> = floats(bits).iter().map(|v| v * sign).collect();
        let theirs = quantised(kind, &values, bytes);
        let mut ours = Vec::new();
        let mut encoder = Encoder::new().unwrap();
        encoder.encode(codec, &run, &raw, &mut ours).unwrap();
        assert_eq!(ours.len(), theirs.len());
        let blocks = ours.chunks(bytes).zip(theirs.chunks(bytes));
        for ((a, b), values) in blocks.zip(values.chunks(BLOCK)) {
            check_block(a, b, values);
        }
        // What we make of ggml's blocks is what ggml makes of them, but for the rounding to f16.
        let mut back = vec![0; raw.len()];
        let mut decoder = Decoder::new().unwrap();
        decoder.decode(codec, &run, &theirs, &mut back).unwrap();
        let halves: Vec<u16> = back
            .chunks(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .collect();
        let expected = dequantised(kind, &theirs, bits.len());
        for (found, expected) in floats(&halves).iter().zip(expected) {
            let expected = (expected * sign).clamp(-65504.0, 65504.0);
            let rounding = expected.abs() / 2048.0 + 2f32.powi(-25);
            assert!((found - expected).abs() <= rounding, "{found}, {expected}");
        }
    }
}

proptest! {
    #[test]
    fn blocks_are_those_of_ggml(bits in proptest::collection::vec(any::<u16>(), 4 * BLOCK)) {
        let finite = |b: u16| if b & 0x7C00 == 0x7C00 { b & !0x4000 } else { b };
        check(&bits.into_iter().map(finite).collect::<Vec<_>>());
    }

    /// Values of about one size, as rows of a model are.
    #[test]
    fn blocks_of_ordinary_values_are_those_of_ggml(
        bits in proptest::collection::vec((0x2C00u16..0x4400, any::<bool>()), 4 * BLOCK)
    ) {
        let signed = |(b, sign): (u16, bool)| b | u16::from(sign) << 15;
        check(&bits.into_iter().map(signed).collect::<Vec<_>>());
    }
}

#[test]
fn blocks_at_the_edges_are_those_of_ggml() {
    for bits in [0, 0x8000, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0xFBFF] {
        check(&[bits; BLOCK]);
        let mut one = [0; BLOCK];
        one[9] = bits;
        check(&one);
    }
}
