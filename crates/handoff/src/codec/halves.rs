//! Between little-endian f16 bytes and f32, a block at a time so that it stays in registers.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::{BLOCK, CodecError};

/// Bytes of a block of half floats.
pub const HALF_BYTES: usize = 2 * BLOCK;

/// A block of rows.
pub type RawBlock = [u8; HALF_BYTES];

/// Bits of the largest finite magnitude, 65504.
const MAX_FINITE: u16 = 0x7BFF;
const MAGNITUDE: u16 = 0x7FFF;

/// A block of half floats.
pub struct Halves {
    bits: [u16; BLOCK],
    /// Bits of the largest magnitude; half floats without sign are ordered as their bits are.
    largest: u16,
}

impl Halves {
    #[inline]
    pub fn read(block: &RawBlock) -> Self {
        let mut bits = [0; BLOCK];
        for (i, to) in bits.iter_mut().enumerate() {
            *to = u16::from_le_bytes([block[2 * i], block[2 * i + 1]]);
        }
        let largest = bits.iter().fold(0, |max, b| max.max(b & MAGNITUDE));
        Self { bits, largest }
    }

    /// # Errors
    /// [`CodecError::NotFinite`] if an element is; `first` is the index of the first one in the run.
    #[inline]
    pub fn check(&self, first: impl FnOnce() -> usize) -> Result<(), CodecError> {
        if self.largest <= MAX_FINITE {
            return Ok(());
        }
        Err(self.not_finite(first()))
    }

    #[cold]
    fn not_finite(&self, first: usize) -> CodecError {
        let mut bits = self.bits.iter();
        let at = bits.position(|b| b & MAGNITUDE > MAX_FINITE).unwrap_or(0);
        CodecError::NotFinite {
            element: (first + at) as u64,
            bits: self.bits[at],
        }
    }

    /// The largest magnitude.
    #[inline]
    pub fn largest(&self) -> f32 {
        f16::from_bits(self.largest).to_f32()
    }

    /// The values, exactly.
    #[inline]
    pub fn widen(&self, out: &mut [f32; BLOCK]) {
        self.bits
            .reinterpret_cast::<f16>()
            .convert_to_f32_slice(out);
    }
}

/// Writes values as half floats, rounded to the nearest (ties to even) and held to the finite range:
/// a scale that was rounded up may lead just beyond 65504.
#[inline]
pub fn narrow(values: &[f32; BLOCK], out: &mut RawBlock) {
    let limit = f16::MAX.to_f32();
    let mut held = [0.0; BLOCK];
    for (held, value) in held.iter_mut().zip(values) {
        *held = value.clamp(-limit, limit);
    }
    let mut halves = [f16::ZERO; BLOCK];
    halves.convert_from_f32_slice(&held);
    for (i, half) in halves.iter().enumerate() {
        [out[2 * i], out[2 * i + 1]] = half.to_le_bytes();
    }
}

/// The nearest integer (ties to even) plus 2^22 in the low bits of a float's mantissa: adding
/// 1.5 * 2^23 shifts every fraction out. Vectorises where `round() as i32` does not. For
/// magnitudes below 2^22.
const ROUNDER: f32 = 12_582_912.0;

/// The low byte of the nearest integer (ties to even), two's complement. For magnitudes below 2^22.
#[inline]
pub fn rounded_byte(value: f32) -> u8 {
    (value + ROUNDER).to_bits().to_le_bytes()[0]
}
