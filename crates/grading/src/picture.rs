//! Pictures in notebooks, for the eyes of whoever grades; no model sees them.

use crate::limits;
use base64::Engine as _;
use serde::{Deserialize, Serialize};

/// Kinds of pictures that are shown: those that can hold neither scripts nor links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PictureKind {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
}

impl PictureKind {
    /// Its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
        }
    }

    /// Width times height, as the file says.
    fn pixels(self, bytes: &[u8]) -> Option<u64> {
        let number = |at: usize, length: usize| {
            let digits = bytes.get(at..at + length)?;
            Some(
                digits
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            )
        };
        match self {
            Self::Png => number(16, 4)?.checked_mul(number(20, 4)?),
            Self::Jpeg => {
                // Segments follow each other; a frame has C0 to CF, but for three that are something else.
                let mut at = 2;
                loop {
                    let (marker, length) = (number(at, 2)?, number(at + 2, 2)?);
                    let is_frame = (0xffc0..=0xffcf).contains(&marker);
                    if is_frame && ![0xffc4, 0xffc8, 0xffcc].contains(&marker) {
                        return number(at + 5, 2)?.checked_mul(number(at + 7, 2)?);
                    }
                    at += 2 + usize::try_from(length.max(2)).ok()?;
                }
            }
        }
    }

    /// The first bytes of each file of the kind.
    fn signature(self) -> &'static [u8] {
        match self {
            Self::Png => b"\x89PNG\r\n\x1a\n",
            Self::Jpeg => b"\xff\xd8\xff",
        }
    }
}

/// One picture. Its digest is stored with a submission's text; its bytes are stored beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// What it is.
    pub kind: PictureKind,
    /// BLAKE3 of its bytes, in hex digits.
    pub digest: String,
    /// The file; empty in what was read from a store.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl Picture {
    /// Nothing if it is of another kind, larger than [`limits::MAX_PICTURE_BYTES`], or not what it says.
    pub(crate) fn from_base64(media_type: &str, text: &str) -> Option<Self> {
        let kinds = [PictureKind::Png, PictureKind::Jpeg];
        let kind = kinds.into_iter().find(|k| k.media_type() == media_type)?;
        // Four characters hold three bytes.
        if text.len() / 4 * 3 > limits::MAX_PICTURE_BYTES {
            return None;
        }
        // Python breaks the lines of what it encodes.
        let text: String = text.split_ascii_whitespace().collect();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()?;
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let is_of_kind = bytes.starts_with(kind.signature());
        let fits = kind.pixels(&bytes)? <= limits::MAX_PICTURE_PIXELS;
        (is_of_kind && fits).then_some(Self {
            kind,
            digest,
            bytes,
        })
    }
}
