//! Lossless: the low bytes of all elements as they are, their high bytes (sign, exponent, two bits of
//! mantissa) through zstd. Low bytes of trained KV are noise; trying to compress them costs time only.
//!
//! A run starts with a mode byte and the number of compressed bytes (u32). Mode 0: no bytes are
//! compressed, the rows follow as they are. Mode 1: the low bytes follow, then the compressed high
//! bytes, which are at most 9/10 of what they hold: less would save under 5 % of the run.

use std::ops::RangeInclusive;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{find_frame_compressed_size, get_error_name};

use super::{CodecError, part};

/// Mode byte and length.
const PREFIX: usize = 1 + 4;
const STORED: u8 = 0;
const COMPRESSED: u8 = 1;

/// More costs several times the time for less than a hundredth of the size.
const LEVEL: i32 = 1;

/// Elements that are split and merged at once.
const STRIDE: usize = 64;

/// Most bytes that the high bytes of `elements` elements may compress to.
fn limit(elements: u64) -> u64 {
    elements / 10 * 9 + elements % 10 * 9 / 10
}

/// Smallest and largest size of a run.
pub fn encoded_bytes(elements: u64) -> RangeInclusive<u64> {
    let prefix = PREFIX as u64;
    let largest = elements.saturating_mul(2).saturating_add(prefix);
    // Where compression is allowed at all, one byte at least is left.
    let smallest = elements.saturating_add(prefix + 1).min(largest);
    smallest..=largest
}

fn zstd_error(reason: impl std::fmt::Display) -> CodecError {
    CodecError::Zstd {
        reason: reason.to_string(),
    }
}

/// A compression context and room for high bytes.
pub struct BytePlaneEncoder {
    context: Compressor<'static>,
    high: Vec<u8>,
}

impl std::fmt::Debug for BytePlaneEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytePlaneEncoder").finish_non_exhaustive()
    }
}

impl BytePlaneEncoder {
    pub fn new() -> Result<Self, CodecError> {
        Ok(Self {
            context: Compressor::new(LEVEL).map_err(zstd_error)?,
            high: Vec::new(),
        })
    }

    /// Appends a run. `raw` is whole elements.
    pub fn encode(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let elements = raw.len() / 2;
        let start = out.len();
        let most = usize::try_from(limit(elements as u64)).unwrap_or(0);
        out.resize(start + PREFIX + elements + most, 0);
        let (low, compressed) = out[start + PREFIX..].split_at_mut(elements);
        self.high.resize(elements, 0);
        split(raw, low, &mut self.high);
        // zstd fails where its output does not fit: then there is nothing to gain.
        let len = match self.context.compress_to_buffer(&self.high, compressed) {
            Ok(len) if most > 0 => u32::try_from(len).ok(),
            _ => None,
        };
        let mode = if len.is_some() { COMPRESSED } else { STORED };
        let end = PREFIX + elements + len.unwrap_or(0) as usize;
        out[start] = mode;
        out[start + 1..start + PREFIX].copy_from_slice(&len.unwrap_or(0).to_le_bytes());
        if len.is_some() {
            out.truncate(start + end);
        } else {
            out.truncate(start + PREFIX);
            out.extend_from_slice(raw);
        }
    }
}

/// A decompression context and room for high bytes.
pub struct BytePlaneDecoder {
    context: Decompressor<'static>,
    high: Vec<u8>,
}

impl std::fmt::Debug for BytePlaneDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytePlaneDecoder").finish_non_exhaustive()
    }
}

impl BytePlaneDecoder {
    pub fn new() -> Result<Self, CodecError> {
        Ok(Self {
            context: Decompressor::new().map_err(zstd_error)?,
            high: Vec::new(),
        })
    }

    /// Fills `out`, whole elements, and says how many bytes that took.
    pub fn decode(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let elements = out.len() / 2;
        let prefix = part(bytes, 0, PREFIX, "plane prefix")?;
        let len = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        match prefix[0] {
            STORED => {
                check("plane length", len, len == 0, || "0 for stored rows".into())?;
                out.copy_from_slice(part(bytes, PREFIX, out.len(), "rows")?);
                Ok(PREFIX + out.len())
            }
            COMPRESSED => {
                let most = limit(elements as u64);
                let allowed = len > 0 && u64::from(len) <= most;
                check("plane length", len, allowed, || format!("1..={most}"))?;
                let low = part(bytes, PREFIX, elements, "low bytes")?;
                let len = len as usize;
                let compressed = part(bytes, PREFIX + elements, len, "high bytes")?;
                self.decompress(compressed, elements)?;
                merge(low, &self.high, out);
                Ok(PREFIX + elements + len)
            }
            mode => check("plane mode", u32::from(mode), false, || "0 or 1".into()).map(|()| 0),
        }
    }

    /// Fills `self.high`. Its size is half of the caller's buffer, whatever the bytes say, and zstd
    /// writes no further.
    fn decompress(&mut self, compressed: &[u8], elements: usize) -> Result<(), CodecError> {
        let frame = find_frame_compressed_size(compressed);
        let frame = frame.map_err(|code| zstd_error(get_error_name(code)))?;
        if frame != compressed.len() {
            return Err(CodecError::Field {
                field: "zstd: frame",
                found: frame.to_string(),
                allowed: compressed.len().to_string(),
            });
        }
        self.high.resize(elements, 0);
        let written = self
            .context
            .decompress_to_buffer(compressed, &mut self.high[..])
            .map_err(zstd_error)?;
        if written != elements {
            return Err(CodecError::Field {
                field: "high bytes",
                found: written.to_string(),
                allowed: elements.to_string(),
            });
        }
        Ok(())
    }
}

fn check(
    field: &'static str,
    found: u32,
    is_allowed: bool,
    allowed: impl FnOnce() -> String,
) -> Result<(), CodecError> {
    if is_allowed {
        return Ok(());
    }
    Err(CodecError::Field {
        field,
        found: found.to_string(),
        allowed: allowed(),
    })
}

/// Low and high bytes of elements.
fn split(raw: &[u8], low: &mut [u8], high: &mut [u8]) {
    let (raw, raw_rest) = raw.as_chunks::<{ 2 * STRIDE }>();
    let (low, low_rest) = low.as_chunks_mut::<STRIDE>();
    let (high, high_rest) = high.as_chunks_mut::<STRIDE>();
    for ((raw, low), high) in raw.iter().zip(low).zip(high) {
        split_elements(raw, low, high);
    }
    split_elements(raw_rest, low_rest, high_rest);
}

#[inline]
fn split_elements(raw: &[u8], low: &mut [u8], high: &mut [u8]) {
    let elements = raw.as_chunks::<2>().0.iter();
    for (([l, h], low), high) in elements.zip(low).zip(high) {
        (*low, *high) = (*l, *h);
    }
}

/// Undoes [`split`].
fn merge(low: &[u8], high: &[u8], raw: &mut [u8]) {
    let (raw, raw_rest) = raw.as_chunks_mut::<{ 2 * STRIDE }>();
    let (low, low_rest) = low.as_chunks::<STRIDE>();
    let (high, high_rest) = high.as_chunks::<STRIDE>();
    for ((raw, low), high) in raw.iter_mut().zip(low).zip(high) {
        merge_elements(low, high, raw);
    }
    merge_elements(low_rest, high_rest, raw_rest);
}

#[inline]
fn merge_elements(low: &[u8], high: &[u8], raw: &mut [u8]) {
    let bytes = low.iter().zip(high);
    for (to, (l, h)) in raw.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *to = [*l, *h];
    }
}
