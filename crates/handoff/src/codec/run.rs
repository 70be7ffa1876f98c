//! What a run is, and which encoding that means.

use crate::contract::{Contract, ElementType, PlaneKind};

use super::{BLOCK, Codec};

/// The rows of one plane for a range of tokens: what both ends know about a run before they see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSpec {
    /// KV heads of the layer.
    pub heads: u32,
    /// Elements of one head.
    pub dim: u32,
    /// Rows.
    pub tokens: u32,
}

/// How the rows of a run are written. A function of codec and [`RunSpec`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Raw,
    BytePlanes,
    Q8,
}

impl RunSpec {
    /// The run of `tokens` rows of a plane; `None` if the contract has no such layer.
    #[must_use]
    pub fn of(contract: &Contract, layer: u32, kind: PlaneKind, tokens: u32) -> Option<Self> {
        let spec = contract.layers.get(layer as usize)?;
        let (element, dim) = match kind {
            PlaneKind::Key => (contract.key_type, spec.key_dim),
            PlaneKind::Value => (contract.value_type, spec.value_dim),
        };
        match element {
            ElementType::F16 => {}
        }
        Some(Self {
            heads: spec.kv_heads,
            dim,
            tokens,
        })
    }

    /// Elements of one row.
    fn row(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.dim)
    }

    /// Elements of all rows; `u64::MAX` if there are more.
    pub(super) fn elements(&self) -> u64 {
        self.row().saturating_mul(u64::from(self.tokens))
    }

    /// Bytes of all rows as f16; `u64::MAX` if there are more.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        self.elements()
            .saturating_mul(u64::from(ElementType::F16.bytes()))
    }

    pub(super) fn scheme(&self, codec: Codec) -> Scheme {
        match codec {
            Codec::Raw => Scheme::Raw,
            Codec::Plane => Scheme::BytePlanes,
            // A block never spans two rows, so rows that are no whole blocks stay as they are.
            Codec::Q8 if !self.row().is_multiple_of(BLOCK as u64) => Scheme::Raw,
            Codec::Q8 => Scheme::Q8,
        }
    }
}
