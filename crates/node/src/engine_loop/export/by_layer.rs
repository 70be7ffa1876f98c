//! Blocks of a chunk that are filled while it is computed: each layer leaves as soon as it is there.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tandem_engine::{EngineError, LayerRows};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::{Contract, KvBlock, Plane, PlaneKind, Section};
use tokio::sync::mpsc;

use crate::sequence::StreamedBlock;

/// The blocks of one chunk.
pub(in crate::engine_loop) struct LayerExport {
    blocks: Vec<Partial>,
}

struct Partial {
    section: Section,
    tokens: Range<u32>,
    /// Those that are left, in order.
    left: VecDeque<Unfilled>,
    /// Those that are whole, with all before them.
    whole: Vec<Plane>,
    /// True if the last layer waits for the end of the chunk.
    holds_last: bool,
    /// Who sends them; may have gone, or may not want them yet.
    out: mpsc::Sender<Plane>,
}

struct Unfilled {
    layer: u32,
    kind: PlaneKind,
    bytes: usize,
    rows: Vec<u8>,
}

impl Unfilled {
    fn is_whole(&self) -> bool {
        self.rows.len() == self.bytes
    }
}

impl LayerExport {
    /// Blocks of these sections and tokens, with what their planes come out of. If rows that have been given may turn out to
    /// be wrong, the last layer is not sent before the chunk is computed: no block is whole then that may be.
    pub(in crate::engine_loop) fn of(
        contract: &Contract,
        blocks: impl Iterator<Item = (Section, Range<u32>)>,
        gives_final_rows: bool,
    ) -> (Self, Vec<StreamedBlock>) {
        let begun = blocks.map(|(section, tokens)| {
            let count = tokens.end - tokens.start;
            let layers = contract.section_layers(section).into_iter();
            let planes = layers.flat_map(|l| [(l, PlaneKind::Key), (l, PlaneKind::Value)]);
            let left = planes.map(|(layer, kind)| {
                let bytes = plane_bytes(contract, layer, kind, count);
                let bytes = bytes.and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
                Unfilled {
                    layer,
                    kind,
                    bytes,
                    rows: Vec::new(),
                }
            });
            let left: VecDeque<_> = left.collect();
            // All of them have room, so that nobody waits for whoever takes them.
            let (out, planes) = mpsc::channel(left.len().max(1));
            let streamed = StreamedBlock {
                section,
                tokens: tokens.clone(),
                planes,
            };
            let partial = Partial {
                section,
                tokens,
                left,
                whole: Vec::new(),
                holds_last: !gives_final_rows,
                out,
            };
            (partial, streamed)
        });
        let (blocks, streamed) = begun.unzip();
        (Self { blocks }, streamed)
    }

    /// Takes what these blocks have of a layer.
    pub(in crate::engine_loop) fn take(&mut self, given: &LayerRows<'_>) {
        for block in &mut self.blocks {
            let is_it = |u: &&mut Unfilled| (u.layer, u.kind) == (given.layer, given.kind);
            if let Some(plane) = block.left.iter_mut().find(is_it) {
                // Not before: all of them at once would keep a GPU waiting.
                let left = plane.bytes.saturating_sub(plane.rows.len());
                plane.rows.reserve_exact(left);
                (given.read)(block.tokens.clone(), &mut plane.rows);
            }
            block.hand_on();
        }
    }

    /// The blocks, when the chunk is computed.
    ///
    /// # Errors
    /// If rows of one have not come.
    pub(in crate::engine_loop) fn finish(self) -> Result<Vec<Arc<KvBlock>>, EngineError> {
        let blocks = self.blocks.into_iter().map(|mut block| {
            block.holds_last = false;
            block.hand_on();
            if let Some(missing) = block.left.iter().find(|next| !next.is_whole()) {
                return Err(EngineError::Failed(format!(
                    "layer {} {:?} of tokens {:?} was not given as it was computed",
                    missing.layer, missing.kind, block.tokens
                )));
            }
            Ok(Arc::new(KvBlock {
                section: block.section,
                tokens: block.tokens,
                planes: block.whole,
            }))
        });
        blocks.collect()
    }
}

impl Partial {
    /// Gives layers that are whole to be sent, in order, K with V: whoever sends is woken once for both.
    fn hand_on(&mut self) {
        let held = if self.holds_last { 2 } else { 0 };
        while self.left.len() > held && self.left.iter().take(2).all(Unfilled::is_whole) {
            for next in self.left.drain(..2) {
                let plane = Plane {
                    layer: next.layer,
                    kind: next.kind,
                    data: next.rows.into(),
                };
                let _ = self.out.try_send(plane.clone());
                self.whole.push(plane);
            }
        }
    }
}
