//! How the planes of a segment become payload bytes.

use crate::contract::Contract;

/// Payload encodings, a closed set with wire numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The rows as they are.
    Raw,
}

impl Codec {
    /// The number of this codec in a frame header.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Self::Raw => 0,
        }
    }

    /// The codec with this wire number.
    #[must_use]
    pub const fn from_wire(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Raw),
            _ => None,
        }
    }

    /// Payload bytes of a segment of these layers and this many tokens; `None` on overflow.
    #[must_use]
    pub fn payload_bytes(self, contract: &Contract, layers: &[u32], tokens: u32) -> Option<u64> {
        match self {
            Self::Raw => contract.token_bytes(layers).checked_mul(u64::from(tokens)),
        }
    }
}
