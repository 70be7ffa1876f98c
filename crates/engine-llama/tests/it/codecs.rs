//! The block format of `tandem-handoff`'s 8-bit codec against ggml's own quantisation.

use std::ffi::c_void;

use llama_cpp_sys_2::{
    GGML_TYPE_Q8_0, ggml_fp16_to_fp32_row, ggml_get_type_traits, ggml_quantize_chunk,
};
use proptest::prelude::*;
use tandem_handoff::codec::{BLOCK, Codec, Decoder, Encoder, RunSpec};

/// Bytes of a block.
const BYTES: usize = 34;

fn floats(bits: &[u16]) -> Vec<f32> {
    let mut out = vec![0.0; bits.len()];
    let n = i64::try_from(bits.len()).unwrap();
    // SAFETY: both buffers have `n` elements.
    unsafe { ggml_fp16_to_fp32_row(bits.as_ptr(), out.as_mut_ptr(), n) };
    out
}

fn quantised(values: &[f32]) -> Vec<u8> {
    let mut out = vec![0u8; values.len() / BLOCK * BYTES];
    let n = i64::try_from(values.len()).unwrap();
    // SAFETY: `values` is one row of `n` elements, whole blocks, and `out` has the row's size; this
    // type needs no importance matrix.
    let written = unsafe {
        let out = out.as_mut_ptr().cast::<c_void>();
        ggml_quantize_chunk(
            GGML_TYPE_Q8_0,
            values.as_ptr(),
            out,
            0,
            1,
            n,
            std::ptr::null(),
        )
    };
    assert_eq!(written, out.len());
    out
}

fn dequantised(bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    // SAFETY: the traits of a type are static; `bytes` are the blocks of `elements` elements.
    unsafe {
        let traits = ggml_get_type_traits(GGML_TYPE_Q8_0);
        let to_float = (*traits).to_float.expect("to_float");
        let n = i64::try_from(elements).unwrap();
        to_float(bytes.as_ptr().cast(), out.as_mut_ptr(), n);
    }
    out
}

/// Equal scales; equal codes but where a value lies half way between two.
fn check_block(ours: &[u8], theirs: &[u8], values: &[f32]) {
    assert_eq!(ours[..2], theirs[..2], "scale of {values:?}");
    let largest = values.iter().fold(0f32, |max, v| v.abs().max(max));
    let codes = ours[2..].iter().zip(&theirs[2..]);
    for ((a, b), value) in codes.zip(values) {
        let exact = f64::from(value.abs()) / f64::from(largest) * 127.0;
        let tie = (exact.fract() - 0.5).abs() < 1e-4;
        let apart = a.cast_signed().abs_diff(b.cast_signed());
        assert!(apart == 0 || (tie && apart == 1), "{value}: {a} and {b}");
    }
}

fn check(bits: &[u16]) {
    let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    let run = RunSpec {
        heads: 1,
        dim: u32::try_from(bits.len()).unwrap(),
        tokens: 1,
    };
    let values = floats(bits);
    let theirs = quantised(&values);
    let mut ours = Vec::new();
    let mut encoder = Encoder::new().unwrap();
    encoder.encode(Codec::Q8, &run, &raw, &mut ours).unwrap();
    assert_eq!(ours.len(), theirs.len());
    let blocks = ours.chunks(BYTES).zip(theirs.chunks(BYTES));
    for ((a, b), values) in blocks.zip(values.chunks(BLOCK)) {
        check_block(a, b, values);
    }
    // What we make of ggml's blocks is what ggml makes of them, but for the rounding to f16.
    let mut back = vec![0; raw.len()];
    let mut decoder = Decoder::new().unwrap();
    decoder.decode(Codec::Q8, &run, &theirs, &mut back).unwrap();
    let halves: Vec<u16> = back
        .chunks(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect();
    let expected = dequantised(&theirs, bits.len());
    for (found, expected) in floats(&halves).iter().zip(expected) {
        let expected = expected.clamp(-65504.0, 65504.0);
        let rounding = expected.abs() / 2048.0 + 2f32.powi(-25);
        assert!((found - expected).abs() <= rounding, "{found}, {expected}");
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
