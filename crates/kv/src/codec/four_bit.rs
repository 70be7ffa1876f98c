//! V in 4 bits: heads rotated ([`super::hadamard`]), then blocks of 32 elements in 18 bytes as ggml's
//! `q4_0` has them: an f16 scale, then 16 bytes, the first 16 elements in their low nibbles and the
//! others in the high ones.
//!
//! Encoding: with `m` the element of largest magnitude, sign included (of two opposite ones the
//! negative), `d = m / -8` and the code is `min(15, round(z / d) + 8)`; the scale on the wire is `d`
//! as f16. Decoding: `(code - 8) * scale`, rotated back, as f16, held to +-65504.

use half::f16;

use super::hadamard::{MAX_DIM, Rotation};
use super::halves::{HALF_BYTES, Halves, narrow, rounded_byte};
use super::{BLOCK, CodecError, part};

/// Bytes of an encoded block.
pub const BLOCK_BYTES: usize = 2 + BLOCK / 2;

/// Code of zero, and how many steps the element of largest magnitude is away from it.
const ZERO: u8 = 8;
const STEPS: f32 = 8.0;
const MAX_CODE: u8 = 15;

/// Exponent bits of an f16: all set if it is not finite.
const EXPONENT: u16 = 0x7C00;

/// Largest L2 norm of the difference between the elements of a head and what comes back (for heads
/// smaller than a block: of the heads of one block together).
///
/// `norm` is the L2 norm of these elements, `elements` their number, and `rotated` yields the largest
/// magnitude `M` of each block of 32 after the rotation:
///
/// `|x - y| <= Q + (2^-11 + 2^-18) * (norm + Q) + sqrt(elements) * 2^-25`, where
/// `Q = sqrt(sum over blocks of 32 * (M * (1/8 + 2^-11) + 2^-22)^2)`.
///
/// A code is off by half a step `M / 8`, but by a whole one where a value as large as `M` has the
/// other sign, since the codes go from -8 to 7. The scale as f16 is off by `2^-11` of itself, or by
/// `2^-25` below the normal range, 8 times at most. The rotation keeps the norm. Its up to ten stages
/// and its factors, there and back, round by less than `2^-18` of the norm in f32, and writing f16
/// by `2^-11` of it, or `2^-25` per element.
pub fn error_bound(norm: f64, elements: u32, rotated: impl IntoIterator<Item = f64>) -> f64 {
    let each = |m: f64| m * (0.125 + (-11f64).exp2()) + (-22f64).exp2();
    let squares = rotated.into_iter().map(|m| 32.0 * each(m) * each(m));
    let blocks = squares.sum::<f64>().sqrt();
    let relative = (-11f64).exp2() + (-18f64).exp2();
    blocks + relative * (norm + blocks) + f64::from(elements).sqrt() * (-25f64).exp2()
}

/// Appends blocks. `raw` is whole rows, which are whole blocks, of heads of `dim` elements.
pub fn encode(raw: &[u8], dim: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.resize(start + raw.len() / HALF_BYTES * BLOCK_BYTES, 0);
    let rotation = Rotation::new(dim);
    let mut buffer = [0.0; MAX_DIM];
    let group = dim.max(BLOCK);
    let values = &mut buffer[..group];
    let groups = raw.chunks_exact(2 * group);
    let encoded = out[start..].chunks_exact_mut(group / BLOCK * BLOCK_BYTES);
    for (i, (rows, to)) in groups.zip(encoded).enumerate() {
        let (rows, _) = rows.as_chunks::<HALF_BYTES>();
        for (j, (block, to)) in rows.iter().zip(values.as_chunks_mut().0).enumerate() {
            let halves = Halves::read(block);
            halves.check(|| i * group + j * BLOCK)?;
            halves.widen(to);
        }
        rotation.forward(values);
        let blocks = values.as_chunks::<BLOCK>().0.iter();
        for (block, to) in blocks.zip(to.as_chunks_mut::<BLOCK_BYTES>().0) {
            if !encode_block(block, to) {
                let element = (i * group) as u64;
                return Err(CodecError::TooLarge { element });
            }
        }
    }
    Ok(())
}

/// False if the scale is beyond f16.
#[inline]
fn encode_block(values: &[f32; BLOCK], to: &mut [u8; BLOCK_BYTES]) -> bool {
    // Sign behind the magnitude: integers in the order that is wanted, and an integer maximum
    // vectorises where one of floats does not.
    let keys = values.iter().map(|v| v.to_bits().rotate_left(1));
    let largest = keys.fold(0, u32::max);
    let scale = f32::from_bits(largest.rotate_right(1)) / -STEPS;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    // Adding 0 makes the scale of a block of zeros +0.
    let half = f16::from_f32(scale + 0.0);
    [to[0], to[1]] = half.to_le_bytes();
    let code = |value: f32| rounded_byte(value * inverse + STEPS).min(MAX_CODE);
    let (low, high) = values.split_at(BLOCK / 2);
    for ((to, low), high) in to[2..].iter_mut().zip(low).zip(high) {
        *to = code(*low) | code(*high) << 4;
    }
    half.is_finite()
}

/// Fills `out`, which is whole rows, and says how many bytes that took.
pub fn decode(bytes: &[u8], dim: usize, out: &mut [u8]) -> Result<usize, CodecError> {
    let len = out.len() / HALF_BYTES * BLOCK_BYTES;
    let bytes = part(bytes, 0, len, "blocks")?;
    let rotation = Rotation::new(dim);
    let mut buffer = [0.0; MAX_DIM];
    let group = dim.max(BLOCK);
    let values = &mut buffer[..group];
    let encoded = bytes.chunks_exact(group / BLOCK * BLOCK_BYTES);
    for (from, rows) in encoded.zip(out.chunks_exact_mut(2 * group)) {
        let (blocks, _) = from.as_chunks::<BLOCK_BYTES>();
        for (block, to) in blocks.iter().zip(values.as_chunks_mut().0) {
            decode_block(block, to)?;
        }
        rotation.backward(values);
        let rows = rows.as_chunks_mut::<HALF_BYTES>().0.iter_mut();
        for (block, to) in values.as_chunks().0.iter().zip(rows) {
            narrow(block, to);
        }
    }
    Ok(len)
}

#[inline]
fn decode_block(block: &[u8; BLOCK_BYTES], to: &mut [f32; BLOCK]) -> Result<(), CodecError> {
    let bits = u16::from_le_bytes([block[0], block[1]]);
    if bits & EXPONENT == EXPONENT {
        return Err(bad_scale(bits));
    }
    let scale = f16::from_bits(bits).to_f32();
    let value = |code: u8| f32::from(code.wrapping_sub(ZERO).cast_signed()) * scale;
    let (low, high) = to.split_at_mut(BLOCK / 2);
    for ((codes, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = value(codes & 0xF);
        *high = value(codes >> 4);
    }
    Ok(())
}

#[cold]
fn bad_scale(bits: u16) -> CodecError {
    CodecError::Field {
        field: "4-bit scale",
        found: format!("f16 {bits:#06x}"),
        allowed: "a finite number".into(),
    }
}
