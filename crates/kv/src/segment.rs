//! Blocks as segments: where they are cut, and how one is encoded.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Codec, CodecError, Encoder, RunSpec};
use crate::contract::Contract;
use crate::frame::{Header, Kind};
use crate::limits::{
    MAX_CHUNK_TOKENS, MAX_SEGMENT_PAYLOAD, TARGET_BLOCK_BYTES, TARGET_SEGMENT_BYTES,
};
use crate::message::BlockDigest;
use crate::page::PAGE_TOKENS;
use crate::plane::{KvBlock, Plane, PlaneKind, Section};

/// A part of a block, ready for the wire but for its number in the stream.
#[derive(Debug)]
pub struct Segment {
    /// Everything but `sequence`.
    pub header: Header,
    /// The bytes, or where they lie in the block.
    pub payload: Payload,
}

/// The bytes of a segment.
#[derive(Debug)]
pub enum Payload {
    /// Rows as they lie in the block: index of the plane and bytes of it, in order.
    Rows(Vec<(usize, Range<usize>)>),
    /// Encoded rows.
    Encoded(Vec<u8>),
}

impl Segment {
    /// The payload in its parts. `block` is the block that the segment was cut from.
    #[must_use]
    pub fn parts<'a>(&'a self, block: &'a KvBlock) -> Vec<&'a [u8]> {
        match &self.payload {
            Payload::Rows(rows) => row_slices(&block.planes, rows),
            Payload::Encoded(bytes) => vec![bytes.as_slice()],
        }
    }
}

/// Largest segment that we cut, before encoding: a codec may add to it.
const LARGEST_SEGMENT: u64 = (MAX_SEGMENT_PAYLOAD / 2) as u64;

/// Smallest segment that we cut where a block has more, but for what no other layer fits with.
const SMALLEST_SEGMENT: u64 = 512 << 10;

fn row_slices<'a>(planes: &'a [Plane], rows: &[(usize, Range<usize>)]) -> Vec<&'a [u8]> {
    rows.iter()
        .map(|(plane, range)| &planes[*plane].data[range.clone()])
        .collect()
}

/// Cuts and encodes one block. Touches no socket and may run on a thread of its own.
#[derive(Debug)]
pub struct Cutter {
    contract: Arc<Contract>,
    handoff: u64,
    section: Section,
    tokens: Range<u32>,
    cuts: std::vec::IntoIter<Cut>,
    digest: BlockDigest,
}

impl Cutter {
    pub(crate) fn new(
        contract: Arc<Contract>,
        handoff: u64,
        section: Section,
        tokens: Range<u32>,
    ) -> Self {
        let cuts = segment_cuts(&contract, section, &tokens).into_iter();
        Self {
            contract,
            handoff,
            section,
            tokens,
            cuts,
            digest: BlockDigest::default(),
        }
    }

    /// The next segment of `block`, `None` after the last.
    ///
    /// Rows that the codec has no code for, such as infinities, travel raw.
    ///
    /// # Errors
    /// If the codec itself fails.
    pub fn next(
        &mut self,
        block: &KvBlock,
        codec: Codec,
        encoder: &mut Encoder,
    ) -> Result<Option<Segment>, CodecError> {
        let Some(cut) = self.cuts.next() else {
            return Ok(None);
        };
        let rows: Vec<(usize, Range<usize>)> = cut
            .planes
            .clone()
            .map(|i| (i, row_range(&block.planes[i], &self.tokens, &cut.tokens)))
            .collect();
        let slices = row_slices(&block.planes, &rows);
        let raw_len: usize = slices.iter().map(|s| s.len()).sum();
        let encoded = if codec == Codec::Raw {
            None
        } else {
            match self.encode(block, &cut, &slices, codec, encoder) {
                Ok(bytes) => Some(bytes),
                // Infinities and the like have no code: these rows travel as they are.
                Err(CodecError::NotFinite { .. } | CodecError::TooLarge { .. }) => None,
                Err(e) => return Err(e),
            }
        };
        let (codec, payload) = match encoded {
            Some(bytes) => (codec, Payload::Encoded(bytes)),
            None => (Codec::Raw, Payload::Rows(rows.clone())),
        };
        let mut header = Header::control(Kind::Segment, self.handoff, 0);
        header.codec = codec.wire();
        header.raw_len = u32::try_from(raw_len).unwrap_or(u32::MAX);
        header.token_start = cut.tokens.start;
        header.token_end = cut.tokens.end;
        header.block_start = self.tokens.start;
        header.block_end = self.tokens.end;
        header.layer_start = cut.layers.start;
        header.layer_end = cut.layers.end;
        header.section = self.section.wire();
        header.key_type = self.contract.key_type.wire();
        header.value_type = self.contract.value_type.wire();
        let header = match &payload {
            Payload::Rows(_) => header.with_parts(slices),
            Payload::Encoded(bytes) => header.with_parts([bytes.as_slice()]),
        };
        self.digest.add(&header);
        Ok(Some(Segment { header, payload }))
    }

    /// Segments that have not been cut.
    #[must_use]
    pub fn left(&self) -> usize {
        self.cuts.len()
    }

    fn encode(
        &self,
        block: &KvBlock,
        cut: &Cut,
        slices: &[&[u8]],
        codec: Codec,
        encoder: &mut Encoder,
    ) -> Result<Vec<u8>, CodecError> {
        let tokens = cut.tokens.end - cut.tokens.start;
        let mut out = Vec::new();
        for (plane, rows) in block.planes[cut.planes.clone()].iter().zip(slices) {
            // The block has been checked against the contract, so its layers are there.
            if let Some(run) = RunSpec::of(&self.contract, plane.layer, plane.kind, tokens) {
                encoder.encode(codec, &run, rows, &mut out)?;
            }
        }
        Ok(out)
    }

    /// The digest of the block, once all segments are cut.
    #[must_use]
    pub fn finish(self) -> BlockDigest {
        self.digest
    }
}

/// The bytes of `tokens` in a plane that holds `of`.
#[must_use]
pub fn row_range(plane: &Plane, of: &Range<u32>, tokens: &Range<u32>) -> Range<usize> {
    let count = ((of.end - of.start) as usize).max(1);
    let row = plane.data.len() / count;
    (tokens.start - of.start) as usize * row..(tokens.end - of.start) as usize * row
}

#[derive(Debug)]
struct Cut {
    /// Index range into the block's planes (K and V of a layer stay together).
    planes: Range<usize>,
    layers: Range<u16>,
    tokens: Range<u32>,
}

/// Cuts a block at layer boundaries into segments of about [`TARGET_SEGMENT_BYTES`], all about as long, so
/// that none is a small write; a layer that is larger than [`LARGEST_SEGMENT`] by itself is cut by
/// tokens too.
fn segment_cuts(contract: &Contract, section: Section, tokens: &Range<u32>) -> Vec<Cut> {
    let layers = contract.section_layers(section);
    let count = u64::from(tokens.end - tokens.start);
    let bytes: Vec<u64> = layers
        .iter()
        .map(|layer| contract.token_bytes(&[*layer]).max(1) * count)
        .collect();
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < layers.len() {
        if bytes[at] > LARGEST_SEGMENT {
            let parts = segments_for(bytes[at]).min(count);
            let before = |part| {
                let tokens_before = u32::try_from(count * part / parts).unwrap_or(u32::MAX);
                tokens.start.saturating_add(tokens_before)
            };
            cuts.extend(
                (0..parts).map(|part| cut(&layers, at..at + 1, before(part)..before(part + 1))),
            );
            at += 1;
            continue;
        }
        let fitting = bytes[at..].iter().take_while(|b| **b <= LARGEST_SEGMENT);
        let run = at..at + fitting.count();
        let parts = even_parts(&bytes[run.clone()]);
        cuts.extend(
            parts
                .into_iter()
                .map(|part| cut(&layers, at + part.start..at + part.end, tokens.clone())),
        );
        at = run.end;
    }
    cuts
}

fn segments_for(bytes: u64) -> u64 {
    let target = u64::from(TARGET_SEGMENT_BYTES);
    ((bytes + target / 2) / target).max(1)
}

/// Divides what has these lengths, none larger than [`LARGEST_SEGMENT`]: each goes where its middle lies if all is cut
/// into equal parts, as far as that makes none too large or too small.
fn even_parts(lengths: &[u64]) -> Vec<Range<usize>> {
    let total: u64 = lengths.iter().sum();
    let count = segments_for(total).min(lengths.len() as u64);
    let (mut parts, mut start, mut before) = (Vec::new(), 0, 0);
    for part in 1..=count {
        let mut end = start;
        while end < lengths.len() && (before + lengths[end] / 2) * count < total * part {
            before += lengths[end];
            end += 1;
        }
        if start < end {
            parts.push(start..end);
        }
        start = end;
    }
    let bytes = |part: &Range<usize>| lengths[part.clone()].iter().sum::<u64>();
    if parts.iter().any(|part| bytes(part) > LARGEST_SEGMENT) {
        // Lengths that differ much: each part by itself, and joined below.
        parts = (0..lengths.len()).map(|at| at..at + 1).collect();
    }
    let mut joined: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last)
                if bytes(last).min(bytes(&part)) < SMALLEST_SEGMENT
                    && bytes(last) + bytes(&part) <= LARGEST_SEGMENT =>
            {
                last.end = part.end;
            }
            _ => joined.push(part),
        }
    }
    joined
}

fn cut(layers: &[u32], at: Range<usize>, tokens: Range<u32>) -> Cut {
    let index = |l: u32| u16::try_from(l).unwrap_or(u16::MAX);
    Cut {
        layers: index(layers[at.start])..index(layers[at.end - 1]) + 1,
        planes: at.start * 2..at.end * 2,
        tokens,
    }
}

/// Tokens of a block of a section: about [`TARGET_BLOCK_BYTES`], whole pages where a page is smaller
/// than that, and such that the row of one token and layer fits a segment.
#[must_use]
pub fn block_tokens(contract: &Contract, section: Section) -> u32 {
    let layers = contract.section_layers(section);
    let all = contract.token_bytes(&layers).max(1);
    let tokens = u32::try_from(TARGET_BLOCK_BYTES / all)
        .unwrap_or(u32::MAX)
        .clamp(1, MAX_CHUNK_TOKENS);
    if tokens >= PAGE_TOKENS {
        tokens - tokens % PAGE_TOKENS
    } else {
        tokens
    }
}

/// Bytes of the window that a handoff of `[0, kv_end)` ends with; 0 without such layers.
#[must_use]
pub fn window_bytes(contract: &Contract, kv_end: u32) -> u64 {
    let layers = contract.section_layers(Section::Window);
    let tokens = kv_end - contract.window_start(kv_end);
    contract.token_bytes(&layers).saturating_mul(tokens.into())
}

/// K or V, as they alternate in a segment.
pub(crate) const PLANES: [PlaneKind; 2] = [PlaneKind::Key, PlaneKind::Value];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LARGEST_SEGMENT, SMALLEST_SEGMENT, even_parts};

    const MIB: u64 = 1 << 20;

    /// The bytes of each part.
    fn parts(layers: &[u64]) -> Vec<u64> {
        let parts = even_parts(layers);
        let mut at = 0;
        for part in &parts {
            assert_eq!(part.start, at, "{layers:?}: {parts:?}");
            at = part.end;
        }
        assert_eq!(at, layers.len(), "{parts:?}");
        let bytes = |part: &std::ops::Range<usize>| layers[part.clone()].iter().sum();
        parts.iter().map(bytes).collect()
    }

    #[test]
    fn equal_layers_make_no_small_and_no_large_segment() {
        for step in 1..=1024 {
            let layer = LARGEST_SEGMENT * step / 1024;
            for count in 1..=96 {
                let all = layer * count as u64;
                let allowed = MIB.min(all)..=4 * MIB;
                let parts = parts(&vec![layer; count]);
                let is_good = parts.iter().all(|bytes| allowed.contains(bytes));
                assert!(is_good, "{count} layers of {layer}: {parts:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_layers_fit(layers in proptest::collection::vec(1..=LARGEST_SEGMENT, 1..96)) {
            let parts = parts(&layers);
            prop_assert!(parts.iter().all(|bytes| *bytes <= LARGEST_SEGMENT), "{parts:?}");
            // A small one fits no neighbour.
            let fits = |pair: &[u64]| {
                pair[0].min(pair[1]) >= SMALLEST_SEGMENT || pair[0] + pair[1] > LARGEST_SEGMENT
            };
            prop_assert!(parts.windows(2).all(fits), "{parts:?}");
        }
    }
}
