//! Blocks that are written while they are computed: each layer as soon as it is there.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::segment::{Cutter, Segment};
use tandem_handoff::{Plane, Section};
use tandem_proto::{ErrorCode, NodeError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Fault;
use crate::sequence::StreamedBlock;

/// A block that has been written.
pub struct Done {
    pub(super) raw_bytes: u64,
    pub(super) wire_bytes: u64,
    /// True if it was written while it was computed.
    pub(super) was_streamed: bool,
}

/// Which block of a connection: its section and first token.
pub(super) type Place = (Section, u32);

/// A streamed block that a connection is given.
pub(super) struct StreamOrder {
    pub(super) streamed: StreamedBlock,
    pub(super) cutter: Box<Cutter>,
    pub(super) codec: Codec,
    pub(super) raw_bytes: u64,
    /// Planes that it has in the end.
    pub(super) planes: usize,
}

/// Blocks that are streamed at the same time on one connection.
pub(super) struct StreamedBlocks {
    blocks: Vec<Making>,
    /// Encodes one segment at a time; `None` while it is on another thread.
    encoder: Option<Encoder>,
}

/// One of them.
struct Making {
    section: Section,
    incoming: mpsc::Receiver<Plane>,
    /// What has come, and how many planes have not.
    planes: Vec<Plane>,
    missing: usize,
    /// `None` while it is on another thread.
    cutter: Option<Box<Cutter>>,
    /// Segments that have not been cut.
    left: usize,
    has_begun: bool,
    place: Place,
    codec: Codec,
    raw_bytes: u64,
    wire_bytes: u64,
}

/// A segment, and which block's: that at this place.
pub(super) enum Cut {
    Made(Place, Segment),
    /// It is encoded on another thread.
    Encoding(Place, JoinHandle<Encoded>),
}

/// What comes of encoding a segment.
pub(super) struct Encoded {
    segment: Result<Option<Segment>, Fault>,
    cutter: Box<Cutter>,
    encoder: Encoder,
}

impl StreamedBlocks {
    pub(super) const fn new(encoder: Encoder) -> Self {
        Self {
            blocks: Vec::new(),
            encoder: Some(encoder),
        }
    }

    pub(super) fn add(&mut self, block: StreamOrder) {
        let (section, left) = (block.streamed.section, block.cutter.left());
        self.blocks.push(Making {
            section,
            incoming: block.streamed.planes,
            planes: Vec::with_capacity(block.planes),
            missing: block.planes,
            cutter: Some(block.cutter),
            left,
            has_begun: false,
            place: (section, block.streamed.tokens.start),
            codec: block.codec,
            raw_bytes: block.raw_bytes,
            wire_bytes: 0,
        });
    }

    /// Cuts the next segment of what has come; `None` if more must come, or nothing is left. The first segments of the
    /// blocks of a section come in the order of the blocks, and so do the last ones, as a receiver expects them.
    pub(super) fn cut(&mut self) -> Result<Option<Cut>, Fault> {
        for at in 0..self.blocks.len() {
            let (section, is_last) = (self.blocks[at].section, self.blocks[at].left == 1);
            let is_in_turn = |b: &Making| match is_last {
                _ if b.section != section => true,
                true => b.left == 0,
                false => b.has_begun,
            };
            if !self.blocks[..at].iter().all(is_in_turn) {
                continue;
            }
            let block = &mut self.blocks[at];
            let has_next = |cutter: &mut Box<Cutter>| cutter.has_next(block.planes.len());
            let Some(cutter) = block.cutter.take_if(has_next) else {
                continue;
            };
            let encoder = self
                .encoder
                .take()
                .ok_or_else(|| cannot_encode("two at once"))?;
            let (place, codec) = (block.place, block.codec);
            block.has_begun = true;
            // Only checksums do not take long enough for another thread.
            if codec == Codec::Raw {
                let encoded = encode(&block.planes, cutter, encoder, codec);
                return Ok(Some(Cut::Made(place, self.encoded(place, encoded)?)));
            }
            let planes = block.planes.clone();
            let encoding =
                tokio::task::spawn_blocking(move || encode(&planes, cutter, encoder, codec));
            return Ok(Some(Cut::Encoding(place, encoding)));
        }
        Ok(None)
    }

    /// Takes the segment that was encoded of the block at this place.
    pub(super) fn encoded(&mut self, place: Place, encoded: Encoded) -> Result<Segment, Fault> {
        self.encoder = Some(encoded.encoder);
        let block = self.blocks.iter_mut().find(|b| b.place == place);
        let block = block.ok_or_else(|| cannot_encode("a block that is over"))?;
        block.cutter = Some(encoded.cutter);
        block.left = block.left.saturating_sub(1);
        let segment = encoded.segment?;
        segment.ok_or_else(|| cannot_encode("a segment is missing"))
    }

    /// So many bytes of the block at this place go out; true if they are the first.
    pub(super) fn goes_out(&mut self, place: Place, bytes: u64) -> bool {
        let Some(block) = self.blocks.iter_mut().find(|b| b.place == place) else {
            return false;
        };
        block.wire_bytes += bytes;
        block.wire_bytes == bytes
    }

    /// True if nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Waits until more has come; false if a block has ended before it was whole.
    pub(super) async fn more(&mut self) -> bool {
        poll_fn(|cx| self.poll_more(cx)).await
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut has_more = false;
        for block in &mut self.blocks {
            while block.missing > 0 {
                match block.incoming.poll_recv(cx) {
                    Poll::Ready(Some(plane)) => block.planes.push(plane),
                    Poll::Ready(None) => return Poll::Ready(false),
                    Poll::Pending => break,
                }
                block.missing -= 1;
                has_more = true;
            }
        }
        if has_more {
            Poll::Ready(true)
        } else {
            Poll::Pending
        }
    }

    /// Takes the blocks all of which has been cut.
    pub(super) fn done(&mut self) -> Vec<Done> {
        let done = self.blocks.extract_if(.., |block| block.left == 0);
        let done = done.map(|block| Done {
            raw_bytes: block.raw_bytes,
            wire_bytes: block.wire_bytes,
            was_streamed: true,
        });
        done.collect()
    }

    /// The encoder, for what comes next.
    pub(super) fn end(self) -> Option<Encoder> {
        self.encoder
    }
}

fn encode(
    planes: &[Plane],
    mut cutter: Box<Cutter>,
    mut encoder: Encoder,
    codec: Codec,
) -> Encoded {
    let segment = cutter.next(planes, codec, &mut encoder);
    Encoded {
        segment: segment.map_err(cannot_encode),
        cutter,
        encoder,
    }
}

pub(super) fn cannot_encode(error: impl std::fmt::Display) -> Fault {
    let message = format!("KV cannot be encoded: {error}");
    Fault::Over(NodeError::new(ErrorCode::Handoff, message))
}
