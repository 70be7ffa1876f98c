//! How a handoff is made: told to both nodes by the coordinator.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::ParityBound;

/// Which codec rows travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodecChoice {
    /// What the link and the prefill ask for, within [`HandoffTerms::quality`].
    #[default]
    Auto,
    /// Always [`Codec::Raw`].
    Raw,
    /// Always [`Codec::Plane`].
    Plane,
    /// Always [`Codec::Q8`].
    Q8,
}

impl CodecChoice {
    /// The codec that is fixed; `None` for [`Self::Auto`].
    #[must_use]
    pub const fn fixed(self) -> Option<Codec> {
        match self {
            Self::Auto => None,
            Self::Raw => Some(Codec::Raw),
            Self::Plane => Some(Codec::Plane),
            Self::Q8 => Some(Codec::Q8),
        }
    }
}

impl From<Codec> for CodecChoice {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::Raw => Self::Raw,
            Codec::Plane => Self::Plane,
            Codec::Q8 => Self::Q8,
        }
    }
}

/// No codec has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no codec: auto, raw, plane or q8")]
pub struct UnknownChoice(String);

impl FromStr for CodecChoice {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        let all = [Self::Auto, Self::Raw, Self::Plane, Self::Q8];
        let named = |choice: &Self| choice.fixed().map_or("auto", Codec::name) == name;
        let found = all.into_iter().find(named);
        found.ok_or_else(|| UnknownChoice(name.chars().take(32).collect()))
    }
}

/// Terms of a handoff.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HandoffTerms {
    /// How far rows may differ from what was computed.
    pub quality: Quality,
    /// The codec.
    pub codec: CodecChoice,
    /// Separates tenants: KV is shared only between requests with the same salt.
    pub salt: String,
    /// True if KV of other requests may be used, and theirs of this one.
    pub reuse: bool,
    /// True if the answer has the same bits whatever else the nodes do and have done: the prompt is computed in fixed
    /// shapes, while nothing else runs on its node (`docs/determinism.md`).
    pub reproducible: bool,
    /// True if the KV of the answer is to be kept, here and where the prompt was prefilled, for the
    /// next turn of a conversation.
    pub keep: bool,
    /// Beyond which the two ends do not fit together.
    pub bound: ParityBound,
    /// True if the prefill node may hold another quantisation of the weights. Its rows serve this
    /// request only: the decode node neither keeps them as pages nor puts pages of its own before them.
    pub mixed_quantisation: bool,
    /// False: KV is sent only when all of it is computed; for measurements. The sender then keeps all
    /// of it in memory.
    pub overlap: bool,
}

impl Default for HandoffTerms {
    fn default() -> Self {
        Self {
            quality: Quality::default(),
            codec: CodecChoice::default(),
            salt: String::new(),
            reuse: true,
            reproducible: false,
            keep: false,
            bound: ParityBound::default(),
            mixed_quantisation: false,
            overlap: true,
        }
    }
}

impl HandoffTerms {
    /// True if the KV of the answer is kept. What follows from rows of another
    /// quantisation is of use to none.
    #[must_use]
    pub fn keeps_answer(&self) -> bool {
        self.keep && self.reuse && !self.mixed_quantisation
    }

    /// The same for handing an answer back: an answer is exact or not kept, so no lossy rows are sent.
    #[must_use]
    pub fn handing_back(&self) -> Self {
        let mut terms = self.clone();
        terms.quality = Quality::Lossless;
        if !terms.codec.fixed().is_none_or(Codec::is_lossless) {
            terms.codec = CodecChoice::Auto;
        }
        terms
    }

    /// The same where the answer is generated: rows of another quantisation are shared with nobody.
    #[must_use]
    pub fn at_decode(&self) -> Self {
        let mut terms = self.clone();
        if self.mixed_quantisation {
            terms.reuse = false;
        }
        terms
    }
}

impl std::fmt::Debug for HandoffTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandoffTerms")
            .field("quality", &self.quality)
            .field("codec", &self.codec)
            .field("reuse", &self.reuse)
            .field("reproducible", &self.reproducible)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}
