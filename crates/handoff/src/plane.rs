//! Neutral KV rows.
//!
//! A *plane* is one layer's K or V for a range of tokens: `[token][kv_head][dim]`,
//! contiguous, little-endian, K after RoPE (and after the key norm, where a model has one).

use std::ops::{Deref, DerefMut, Index, IndexMut, Range};
use std::sync::Arc;

use crate::contract::{Contract, PlaneKind, Section};

/// One of something for each section.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerSection<T> {
    /// Of the layers that attend to all tokens.
    pub full: T,
    /// Of the layers with an attention window.
    pub window: T,
}

impl<T> Index<Section> for PerSection<T> {
    type Output = T;

    fn index(&self, section: Section) -> &T {
        match section {
            Section::Full => &self.full,
            Section::Window => &self.window,
        }
    }
}

impl<T> IndexMut<Section> for PerSection<T> {
    fn index_mut(&mut self, section: Section) -> &mut T {
        match section {
            Section::Full => &mut self.full,
            Section::Window => &mut self.window,
        }
    }
}

/// The rows of a plane. A clone shares their memory, so that a plane can be in a block and on its way at once;
/// who changes rows that are shared gets a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows(Arc<Vec<u8>>);

impl From<Vec<u8>> for Rows {
    fn from(rows: Vec<u8>) -> Self {
        Self(Arc::new(rows))
    }
}

impl Deref for Rows {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Rows {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.0)
    }
}

/// One layer's K or V for a range of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    /// Index of the layer in the model.
    pub layer: u32,
    /// K or V.
    pub kind: PlaneKind,
    /// `tokens * kv_heads * dim` elements, little-endian.
    pub data: Rows,
}

impl Plane {
    /// Checks that this is K or V of `layer` for so many tokens; says what it should be, or what is wrong
    /// with its size.
    pub(crate) fn check(
        &self,
        contract: &Contract,
        layer: u32,
        kind: PlaneKind,
        tokens: u32,
    ) -> Result<(), String> {
        if self.layer != layer || self.kind != kind {
            return Err(format!("expected layer {layer} {kind:?}"));
        }
        let bytes = self.data.len();
        if Some(bytes as u64) != plane_bytes(contract, layer, kind, tokens) {
            return Err(format!("layer {layer} {kind:?} has {bytes} bytes"));
        }
        Ok(())
    }
}

/// The planes of every layer of one section for a range of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBlock {
    /// Which layers.
    pub section: Section,
    /// Token positions, start inclusive, end exclusive.
    pub tokens: Range<u32>,
    /// K then V of each layer of the section, layers ascending.
    pub planes: Vec<Plane>,
}

/// A block whose planes are not what the contract says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("KV block for tokens {start}..{end}: {reason}")]
pub struct InvalidBlock {
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
    /// What is wrong.
    pub reason: String,
}

impl KvBlock {
    /// A block of no tokens yet, to which those of `tokens` can be [appended](Self::append) in order
    /// without getting memory again.
    #[must_use]
    pub fn with_room(contract: &Contract, section: Section, tokens: &Range<u32>) -> Self {
        let count = tokens.end.saturating_sub(tokens.start);
        let layers = contract.section_layers(section).into_iter();
        let planes = layers.flat_map(|l| [(l, PlaneKind::Key), (l, PlaneKind::Value)]);
        let planes = planes.map(|(layer, kind)| {
            let bytes = plane_bytes(contract, layer, kind, count);
            let bytes = bytes.and_then(|b| usize::try_from(b).ok());
            Plane {
                layer,
                kind,
                data: Vec::with_capacity(bytes.unwrap_or(0)).into(),
            }
        });
        Self {
            section,
            planes: planes.collect(),
            tokens: tokens.start..tokens.start,
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.tokens.end.saturating_sub(self.tokens.start)
    }

    /// True if the block covers no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all planes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.planes.iter().map(|p| p.data.len() as u64).sum()
    }

    /// The rows of a part of the tokens, copied. Tokens outside of the block are left out.
    #[must_use]
    pub fn part(&self, tokens: Range<u32>) -> Self {
        let start = tokens.start.clamp(self.tokens.start, self.tokens.end);
        let tokens = start..tokens.end.clamp(start, self.tokens.end);
        let planes = self.planes.iter().map(|plane| Plane {
            layer: plane.layer,
            kind: plane.kind,
            data: plane.data[row_range(plane, &self.tokens, &tokens)]
                .to_vec()
                .into(),
        });
        Self {
            section: self.section,
            planes: planes.collect(),
            tokens,
        }
    }

    /// Appends the rows of a block that goes on where this one ends.
    pub fn append(&mut self, more: &Self) {
        debug_assert_eq!(self.tokens.end, more.tokens.start);
        self.tokens.end = more.tokens.end;
        for (plane, more) in self.planes.iter_mut().zip(&more.planes) {
            plane.data.extend_from_slice(&more.data);
        }
    }

    /// Checks that the planes are exactly those of the section, in order, each of the right size.
    ///
    /// # Errors
    /// Says which plane is missing or has the wrong size.
    pub fn validate(&self, contract: &Contract) -> Result<(), InvalidBlock> {
        let fail = |reason: String| {
            Err(InvalidBlock {
                start: self.tokens.start,
                end: self.tokens.end,
                reason,
            })
        };
        let layers = contract.section_layers(self.section);
        if self.tokens.start > self.tokens.end {
            return fail("start after end".into());
        }
        if self.planes.len() != layers.len() * 2 {
            return fail(format!(
                "{} planes, expected {}",
                self.planes.len(),
                layers.len() * 2
            ));
        }
        let expected = layers
            .iter()
            .flat_map(|&l| [(l, PlaneKind::Key), (l, PlaneKind::Value)]);
        for (plane, (layer, kind)) in self.planes.iter().zip(expected) {
            if let Err(reason) = plane.check(contract, layer, kind, self.len()) {
                return fail(reason);
            }
        }
        Ok(())
    }
}

/// Bytes of one plane of `tokens` tokens; `None` if the contract has no such layer.
#[must_use]
pub fn plane_bytes(contract: &Contract, layer: u32, kind: PlaneKind, tokens: u32) -> Option<u64> {
    let spec = contract.layers.get(layer as usize)?;
    let element = match kind {
        PlaneKind::Key => contract.key_type,
        PlaneKind::Value => contract.value_type,
    };
    spec.row_bytes(kind, element).checked_mul(u64::from(tokens))
}

/// The bytes of `tokens` in a plane that holds `of`.
#[must_use]
pub fn row_range(plane: &Plane, of: &Range<u32>, tokens: &Range<u32>) -> Range<usize> {
    let count = ((of.end - of.start) as usize).max(1);
    let row = plane.data.len() / count;
    (tokens.start - of.start) as usize * row..(tokens.end - of.start) as usize * row
}
