//! How the rows of a plane become payload bytes.
//!
//! The unit is a *run*: the rows of one plane (one layer's K or V) for a range of tokens,
//! `[token][kv_head][dim]`, little-endian f16. The payload of a segment is its runs one after the
//! other: for each layer, ascending, the run of K and then that of V. What a run looks like follows
//! from the codec and its [`RunSpec`] alone; the byte tables, error bounds and figures are in
//! `docs/codecs.md`.
//!
//! [`Encoder`] and [`Decoder`] hold contexts and buffers that are used again for each run: one of
//! them per thread, not per segment.

mod byte_planes;
mod error;
mod halves;
mod q8;
mod run;

use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use error::{CodecError, UnknownCodec};
pub use q8::error_bound as q8_error_bound;
pub use run::RunSpec;

use byte_planes::{BytePlaneDecoder, BytePlaneEncoder};
use run::Scheme;

/// Elements that share a scale, in `q8`.
pub const BLOCK: usize = 32;

/// Encodings of KV rows, a closed set with wire numbers, from exact to most lossy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// The rows as they are.
    Raw,
    /// Lossless: low bytes as they are, high bytes through zstd. Any bits come back.
    Plane,
    /// 8-bit blocks with a scale each (ggml's `q8_0`); [`q8_error_bound`].
    Q8,
}

impl Codec {
    /// Every codec, from exact to most lossy.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Plane, Self::Q8];

    /// The number of this codec in a frame header.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Plane => 1,
            Self::Q8 => 2,
        }
    }

    /// The codec with this wire number.
    #[must_use]
    pub const fn from_wire(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Raw),
            1 => Some(Self::Plane),
            2 => Some(Self::Q8),
            _ => None,
        }
    }

    /// The name in configuration, logs and reports; [`FromStr`] reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Plane => "plane",
            Self::Q8 => "q8",
        }
    }

    /// True if decoding gives back the bits that were encoded, whatever they are.
    #[must_use]
    pub const fn is_lossless(self) -> bool {
        match self {
            Self::Raw | Self::Plane => true,
            Self::Q8 => false,
        }
    }

    /// Smallest and largest number of payload bytes of a run; the same number for every codec but
    /// [`Codec::Plane`], whose runs say how long they are. Sizes beyond `u64` become `u64::MAX`.
    #[must_use]
    pub fn encoded_bytes(self, run: &RunSpec) -> RangeInclusive<u64> {
        match run.scheme(self) {
            Scheme::Raw => run.raw_bytes()..=run.raw_bytes(),
            Scheme::BytePlanes => byte_planes::encoded_bytes(run.elements()),
            Scheme::Q8 => {
                let blocks = run.elements() / BLOCK as u64;
                let bytes = blocks.saturating_mul(q8::BLOCK_BYTES as u64);
                bytes..=bytes
            }
        }
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == name)
            .ok_or_else(|| UnknownCodec::new(name))
    }
}

/// Makes payload bytes of rows. Holds a compression context and buffers: one per thread.
#[derive(Debug)]
pub struct Encoder {
    byte_planes: BytePlaneEncoder,
}

impl Encoder {
    /// # Errors
    /// [`CodecError::Zstd`] if zstd refuses its settings.
    pub fn new() -> Result<Self, CodecError> {
        Ok(Self {
            byte_planes: BytePlaneEncoder::new()?,
        })
    }

    /// Appends the payload bytes of one run to `out`. The number of bytes is within
    /// [`Codec::encoded_bytes`].
    ///
    /// # Errors
    /// [`CodecError::RawLength`] if `raw` is not [`RunSpec::raw_bytes`] long. For a lossy codec also
    /// [`CodecError::NotFinite`]: such rows have to travel as
    /// [`Codec::Raw`] or [`Codec::Plane`], which carry any bits. On an error `out` is as it was.
    pub fn encode(
        &mut self,
        codec: Codec,
        run: &RunSpec,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        if raw.len() as u64 != run.raw_bytes() {
            return Err(CodecError::RawLength {
                found: raw.len() as u64,
                expected: run.raw_bytes(),
            });
        }
        let start = out.len();
        let result = match run.scheme(codec) {
            Scheme::Raw => {
                out.extend_from_slice(raw);
                Ok(())
            }
            Scheme::BytePlanes => {
                self.byte_planes.encode(raw, out);
                Ok(())
            }
            Scheme::Q8 => q8::encode(raw, out),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }
}

/// Makes rows of payload bytes that may come from anyone. Holds a context and buffers: one per thread.
#[derive(Debug)]
pub struct Decoder {
    byte_planes: BytePlaneDecoder,
}

impl Decoder {
    /// # Errors
    /// [`CodecError::Zstd`] if zstd refuses its settings.
    pub fn new() -> Result<Self, CodecError> {
        Ok(Self {
            byte_planes: BytePlaneDecoder::new()?,
        })
    }

    /// Decodes the run at the start of `bytes` into `out` and says how many bytes it took; what
    /// follows them is not looked at. After a lossy codec every element is finite.
    ///
    /// # Errors
    /// [`CodecError::RawLength`] if `out` is not [`RunSpec::raw_bytes`] long,
    /// [`CodecError::Truncated`] if `bytes` end inside the run, and [`CodecError::Field`] or
    /// [`CodecError::Zstd`] if they are nothing that [`Encoder::encode`] could have written. What
    /// `out` then holds is of no use.
    pub fn decode(
        &mut self,
        codec: Codec,
        run: &RunSpec,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CodecError> {
        if out.len() as u64 != run.raw_bytes() {
            return Err(CodecError::RawLength {
                found: out.len() as u64,
                expected: run.raw_bytes(),
            });
        }
        match run.scheme(codec) {
            Scheme::Raw => {
                out.copy_from_slice(part(bytes, 0, out.len(), "rows")?);
                Ok(out.len())
            }
            Scheme::BytePlanes => self.byte_planes.decode(bytes, out),
            Scheme::Q8 => q8::decode(bytes, out),
        }
    }
}

/// `len` bytes from `start` on, if there are so many.
fn part<'a>(
    bytes: &'a [u8],
    start: usize,
    len: usize,
    field: &'static str,
) -> Result<&'a [u8], CodecError> {
    let rest = bytes.get(start..).unwrap_or_default();
    rest.get(..len).ok_or(CodecError::Truncated {
        field,
        needed: len as u64,
        found: rest.len() as u64,
    })
}
