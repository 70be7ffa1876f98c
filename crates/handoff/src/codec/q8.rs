//! Blocks of 32 elements in 34 bytes, as ggml's `q8_0` has them: an f16 scale, then 32 signed bytes.
//!
//! Encoding: with `A` the largest magnitude of the block, `d = A / 127` and `q = round(x / d)`;
//! the scale on the wire is `d` as f16. Decoding: `q * scale`, as f16, held to +-65504.

use half::f16;

use super::halves::{HALF_BYTES, Halves, RawBlock, narrow, rounded_byte};
use super::{BLOCK, CodecError, part};

/// Bytes of an encoded block.
pub const BLOCK_BYTES: usize = 2 + BLOCK;

/// Largest code.
const LEVELS: f32 = 127.0;

/// Largest bits of a scale: finite and without sign.
const MAX_SCALE: u16 = 0x7BFF;

/// Largest difference between an element and what comes back, when `largest` is the largest
/// magnitude of its block of 32:
///
/// `|x - y| <= A * (1/254 + 2^-10 + 2^-20) + 2^-18`
///
/// `d = A / 127`. Rounding to a code costs `d / 2 = A / 254`. The scale as f16 is off by
/// `d * 2^-11`, or `2^-25` below the normal range, 127 times at most: `A * 2^-11` or `127 * 2^-25`.
/// The product is exact in f32; writing it as f16 costs `A * 2^-11` (times `1 + 2^-11`) or `2^-25`.
/// The terms of `2^-25` sum to `2^-18`; `2^-20` covers the rounding of f32 on the way. Holding a
/// value to the finite range only brings it nearer.
#[must_use]
pub fn error_bound(largest: f64) -> f64 {
    let relative = 1.0 / 254.0 + (-10f64).exp2() + (-20f64).exp2();
    largest * relative + (-18f64).exp2()
}

/// Appends blocks. `raw` is whole blocks; the caller's `RunSpec` says so.
pub fn encode(raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let (blocks, _) = raw.as_chunks::<HALF_BYTES>();
    let start = out.len();
    out.resize(start + blocks.len() * BLOCK_BYTES, 0);
    let (encoded, _) = out[start..].as_chunks_mut::<BLOCK_BYTES>();
    for (i, (block, to)) in blocks.iter().zip(encoded).enumerate() {
        let halves = Halves::read(block);
        halves.check(|| i * BLOCK)?;
        encode_block(&halves, to);
    }
    Ok(())
}

#[inline]
fn encode_block(halves: &Halves, to: &mut [u8; BLOCK_BYTES]) {
    let scale = halves.largest() / LEVELS;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut values = [0.0; BLOCK];
    halves.widen(&mut values);
    [to[0], to[1]] = f16::from_f32(scale).to_le_bytes();
    for (to, value) in to[2..].iter_mut().zip(&values) {
        *to = rounded_byte(value * inverse);
    }
}

/// Fills `out`, which is whole blocks, and says how many bytes that took.
pub fn decode(bytes: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let (rows, _) = out.as_chunks_mut::<HALF_BYTES>();
    let len = rows.len() * BLOCK_BYTES;
    let (blocks, _) = part(bytes, 0, len, "blocks")?.as_chunks::<BLOCK_BYTES>();
    for (block, to) in blocks.iter().zip(rows) {
        decode_block(block, to)?;
    }
    Ok(len)
}

#[inline]
fn decode_block(block: &[u8; BLOCK_BYTES], to: &mut RawBlock) -> Result<(), CodecError> {
    let scale = u16::from_le_bytes([block[0], block[1]]);
    if scale > MAX_SCALE {
        return Err(bad_scale(scale));
    }
    let scale = f16::from_bits(scale).to_f32();
    let mut values = [0.0; BLOCK];
    for (value, code) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(code.cast_signed()) * scale;
    }
    narrow(&values, to);
    Ok(())
}

#[cold]
fn bad_scale(bits: u16) -> CodecError {
    CodecError::Field {
        field: "q8 scale",
        found: format!("f16 {bits:#06x}"),
        allowed: "a finite number without sign".into(),
    }
}
