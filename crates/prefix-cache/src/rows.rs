//! Rows of blocks cut into pages and joined again.

use tandem_handoff::limits::TARGET_BLOCK_BYTES;
use tandem_handoff::page::PAGE_TOKENS;
use tandem_handoff::{Contract, KvBlock, Plane, PlaneKind, Section};

use super::PutError;
use super::limits::MAX_OBJECT_BYTES;

/// The planes of a section: what a stored object holds, in this order.
#[derive(Debug)]
pub struct Shape {
    section: Section,
    planes: Vec<PlaneShape>,
    /// Bytes of one token over all planes.
    token_bytes: u64,
}

#[derive(Debug)]
struct PlaneShape {
    layer: u32,
    kind: PlaneKind,
    row_bytes: usize,
}

impl Shape {
    /// The planes of a section under a contract.
    ///
    /// # Errors
    /// If the contract is out of bounds.
    pub fn new(contract: &Contract, section: Section) -> Result<Self, PutError> {
        contract.validate()?;
        let mut planes = Vec::new();
        let layers = contract.section_layers(section);
        for &layer in &layers {
            for kind in [PlaneKind::Key, PlaneKind::Value] {
                let row = tandem_handoff::plane::plane_bytes(contract, layer, kind, 1);
                let row_bytes = row.and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
                planes.push(PlaneShape {
                    layer,
                    kind,
                    row_bytes,
                });
            }
        }
        Ok(Self {
            section,
            planes,
            token_bytes: contract.token_bytes(&layers),
        })
    }

    /// True if the model has no layers of the section.
    pub fn is_empty(&self) -> bool {
        self.planes.is_empty()
    }

    /// Bytes of the rows of this many tokens.
    pub fn bytes(&self, tokens: u32) -> u64 {
        self.token_bytes.saturating_mul(u64::from(tokens))
    }

    /// Pages per block of a load: as many as a handoff has in one, at least one.
    pub fn pages_per_block(&self) -> usize {
        let pages = TARGET_BLOCK_BYTES / self.bytes(PAGE_TOKENS).max(1);
        let most = tandem_handoff::limits::MAX_CHUNK_TOKENS / PAGE_TOKENS;
        usize::try_from(pages.clamp(1, u64::from(most))).unwrap_or(1)
    }

    /// Appends the rows of `tokens`, positions inside the block, plane after plane; the block must
    /// have been validated.
    pub fn cut(&self, block: &KvBlock, tokens: &std::ops::Range<u32>, out: &mut Vec<u8>) {
        let at = |position: u32| (position - block.tokens.start) as usize;
        for (shape, plane) in self.planes.iter().zip(&block.planes) {
            let rows = at(tokens.start) * shape.row_bytes..at(tokens.end) * shape.row_bytes;
            out.extend_from_slice(&plane.data[rows]);
        }
    }

    /// The block of consecutive objects of `tokens_each` tokens, the first at `start`; `None` if an
    /// object has another length than the contract says.
    pub fn join(&self, start: u32, tokens_each: u32, objects: &[&[u8]]) -> Option<KvBlock> {
        let each = self.bytes(tokens_each);
        if each > MAX_OBJECT_BYTES || objects.iter().any(|o| o.len() as u64 != each) {
            return None;
        }
        let mut from = 0;
        let planes = self.planes.iter().map(|shape| {
            let bytes = shape.row_bytes * tokens_each as usize;
            let mut data = Vec::with_capacity(bytes * objects.len());
            for object in objects {
                data.extend_from_slice(&object[from..from + bytes]);
            }
            from += bytes;
            Plane {
                layer: shape.layer,
                kind: shape.kind,
                data: data.into(),
            }
        });
        let planes = planes.collect();
        let count = u32::try_from(objects.len()).ok()?;
        Some(KvBlock {
            section: self.section,
            tokens: start..start.checked_add(count.checked_mul(tokens_each)?)?,
            planes,
        })
    }
}
