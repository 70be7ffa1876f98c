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
        is_of_kind.then_some(Self {
            kind,
            digest,
            bytes,
        })
    }
}
