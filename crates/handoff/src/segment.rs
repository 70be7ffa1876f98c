//! Blocks as segments: where they are cut, and how one is encoded.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Codec, CodecError, Encoder, RunSpec};
use crate::contract::Contract;
use crate::contract::{PlaneKind, Section};
use crate::frame::{Header, Kind};
use crate::limits::{
    LARGEST_SEGMENT, MAX_CHUNK_TOKENS, SMALLEST_SEGMENT, STREAMED_SEGMENTS, TARGET_BLOCK_BYTES,
    TARGET_SEGMENT_BYTES,
};
use crate::page::PAGE_TOKENS;
use crate::plane::{InvalidBlock, Plane, Rows, row_range};

/// A part of a block, ready for the wire but for its number in the stream.
#[derive(Debug)]
pub struct Segment {
    /// Everything but `sequence`.
    pub header: Header,
    /// The bytes.
    pub payload: Payload,
}

/// The bytes of a segment.
#[derive(Debug)]
pub enum Payload {
    /// Rows as they lie in the block: those of a plane and which bytes of them, in order.
    Rows(Vec<(Rows, Range<usize>)>),
    /// Encoded rows.
    Encoded(Vec<u8>),
}

impl Segment {
    /// The payload in its parts.
    #[must_use]
    pub fn parts(&self) -> Vec<&[u8]> {
        match &self.payload {
            Payload::Rows(rows) => rows.iter().map(|(rows, at)| &rows[at.clone()]).collect(),
            Payload::Encoded(bytes) => vec![bytes.as_slice()],
        }
    }
}

/// Why a segment cannot be cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The planes are not those of the block.
    #[error(transparent)]
    Block(#[from] InvalidBlock),
    /// The codec itself failed.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// How large the segments of a block are.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// About so many bytes.
    target: u64,
    /// One that is smaller is joined with its neighbour.
    smallest: u64,
}

impl Sizes {
    /// Of a block that is there as a whole.
    const WHOLE: Self = Self {
        target: TARGET_SEGMENT_BYTES as u64,
        smallest: SMALLEST_SEGMENT,
    };

    /// Of a block of so many bytes that is streamed.
    fn streamed(bytes: u64) -> Self {
        Self {
            target: (bytes / STREAMED_SEGMENTS).clamp(1, Self::WHOLE.target),
            smallest: (bytes / STREAMED_SEGMENTS / 2).min(Self::WHOLE.smallest),
        }
    }

    /// How many segments what has so many bytes makes.
    fn segments_for(self, bytes: u64) -> u64 {
        ((bytes + self.target / 2) / self.target).max(1)
    }
}

/// Cuts and encodes one block. Touches no socket and may run on a thread of its own.
#[derive(Debug)]
pub struct Cutter {
    contract: Arc<Contract>,
    handoff: u64,
    section: Section,
    tokens: Range<u32>,
    cuts: Peekable<std::vec::IntoIter<Cut>>,
}

impl Cutter {
    /// For a block that is there as a whole.
    pub(crate) fn new(
        contract: Arc<Contract>,
        handoff: u64,
        section: Section,
        tokens: Range<u32>,
    ) -> Self {
        Self::with_sizes(contract, handoff, section, tokens, Sizes::WHOLE)
    }

    /// For a block of so many bytes whose planes come layer by layer: none waits for many others.
    pub(crate) fn streamed(
        contract: Arc<Contract>,
        handoff: u64,
        section: Section,
        tokens: Range<u32>,
        bytes: u64,
    ) -> Self {
        Self::with_sizes(contract, handoff, section, tokens, Sizes::streamed(bytes))
    }

    fn with_sizes(
        contract: Arc<Contract>,
        handoff: u64,
        section: Section,
        tokens: Range<u32>,
        sizes: Sizes,
    ) -> Self {
        let cuts = segment_cuts(&contract, section, &tokens, sizes).into_iter();
        Self {
            contract,
            handoff,
            section,
            tokens,
            cuts: cuts.peekable(),
        }
    }

    /// The next segment, `None` if it has planes that do not exist yet, or if none [is left](Self::left).
    /// `planes` are those of the block that exist, from the first on.
    ///
    /// Rows that the codec has no code for, such as infinities, travel raw.
    ///
    /// # Errors
    /// If a plane of the segment is not the one of the block, or if the codec itself fails. The block
    /// cannot be sent to its end then.
    pub fn next(
        &mut self,
        planes: &[Plane],
        codec: Codec,
        encoder: &mut Encoder,
    ) -> Result<Option<Segment>, CutError> {
        let Some(cut) = self.cuts.next_if(|cut| cut.planes.end <= planes.len()) else {
            return Ok(None);
        };
        let planes = &planes[cut.planes.clone()];
        self.check(planes, &cut)?;
        let rows = |plane| row_range(plane, &self.tokens, &cut.tokens);
        let slices: Vec<&[u8]> = planes.iter().map(|p| &p.data[rows(p)]).collect();
        let raw_len: usize = slices.iter().map(|s| s.len()).sum();
        let encoded = if codec == Codec::Raw {
            None
        } else {
            match self.encode(planes, &cut, &slices, codec, encoder) {
                Ok(bytes) => Some(bytes),
                // Infinities and the like have no code: these rows travel as they are.
                Err(CodecError::NotFinite { .. }) => None,
                Err(e) => return Err(e.into()),
            }
        };
        let (header, payload) = match encoded {
            Some(bytes) => {
                let header = self.header(&cut, codec, raw_len);
                (
                    header.with_parts([bytes.as_slice()]),
                    Payload::Encoded(bytes),
                )
            }
            None => {
                let header = self.header(&cut, Codec::Raw, raw_len);
                let shared = planes.iter().map(|p| (p.data.clone(), rows(p)));
                (header.with_parts(slices), Payload::Rows(shared.collect()))
            }
        };
        Ok(Some(Segment { header, payload }))
    }

    /// The planes of a cut are those of its layers, and of the right size.
    fn check(&self, planes: &[Plane], cut: &Cut) -> Result<(), InvalidBlock> {
        let layers = self.contract.section_layers(self.section);
        let expected = layers.iter().flat_map(|&l| PLANES.map(|kind| (l, kind)));
        let tokens = self.tokens.end - self.tokens.start;
        for (plane, (layer, kind)) in planes.iter().zip(expected.skip(cut.planes.start)) {
            plane
                .check(&self.contract, layer, kind, tokens)
                .map_err(|reason| InvalidBlock {
                    start: self.tokens.start,
                    end: self.tokens.end,
                    reason,
                })?;
        }
        Ok(())
    }

    fn header(&self, cut: &Cut, codec: Codec, raw_len: usize) -> Header {
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
        header
    }

    /// True if the next segment can be cut from so many planes.
    #[must_use]
    pub fn has_next(&mut self, planes: usize) -> bool {
        self.cuts.peek().is_some_and(|cut| cut.planes.end <= planes)
    }

    /// Segments that have not been cut.
    #[must_use]
    pub fn left(&self) -> usize {
        self.cuts.len()
    }

    fn encode(
        &self,
        planes: &[Plane],
        cut: &Cut,
        slices: &[&[u8]],
        codec: Codec,
        encoder: &mut Encoder,
    ) -> Result<Vec<u8>, CodecError> {
        let tokens = cut.tokens.end - cut.tokens.start;
        let mut out = Vec::new();
        for (plane, rows) in planes.iter().zip(slices) {
            // The planes have been checked against the contract, so their layers are there.
            if let Some(run) = RunSpec::of(&self.contract, plane.layer, plane.kind, tokens) {
                encoder.encode(codec, &run, rows, &mut out)?;
            }
        }
        Ok(out)
    }
}

#[derive(Debug)]
struct Cut {
    /// Index range into the block's planes (K and V of a layer stay together).
    planes: Range<usize>,
    layers: Range<u16>,
    tokens: Range<u32>,
}

/// Cuts a block at layer boundaries into segments of about the target, all about as long, so
/// that none is a small write; a layer that is larger than [`LARGEST_SEGMENT`] by itself is cut by
/// tokens too.
fn segment_cuts(
    contract: &Contract,
    section: Section,
    tokens: &Range<u32>,
    sizes: Sizes,
) -> Vec<Cut> {
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
            let parts = sizes.segments_for(bytes[at]).min(count);
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
        let parts = even_parts(&bytes[run.clone()], sizes);
        cuts.extend(
            parts
                .into_iter()
                .map(|part| cut(&layers, at + part.start..at + part.end, tokens.clone())),
        );
        at = run.end;
    }
    cuts
}

/// Divides what has these lengths, none larger than [`LARGEST_SEGMENT`]: each goes where its middle lies if all is cut
/// into equal parts, as far as that makes none too large or too small.
fn even_parts(lengths: &[u64], sizes: Sizes) -> Vec<Range<usize>> {
    let total: u64 = lengths.iter().sum();
    let count = sizes.segments_for(total).min(lengths.len() as u64);
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
                if bytes(last).min(bytes(&part)) < sizes.smallest
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

/// The first block of what is left of a step: all of them are about as long, so that none has only small segments. Pages
/// stay whole, if a block has room for one, so that they can be kept.
#[must_use]
pub fn next_block(contract: &Contract, section: Section, left: Range<u32>) -> Range<u32> {
    let most = block_tokens(contract, section);
    let unit = if most < PAGE_TOKENS { 1 } else { PAGE_TOKENS };
    let first = left.start - left.start % unit;
    let units = left.end.saturating_sub(first).div_ceil(unit);
    let blocks = units.div_ceil(most / unit).max(1);
    let end = first.saturating_add(units.div_ceil(blocks) * unit);
    left.start..end.min(left.end)
}

/// Bytes of the window that a handoff of `[0, kv_end)` ends with; 0 without such layers.
#[must_use]
pub fn window_bytes(contract: &Contract, kv_end: u32) -> u64 {
    let layers = contract.section_layers(Section::Window);
    let tokens = kv_end - contract.window_start(kv_end);
    contract.token_bytes(&layers).saturating_mul(tokens.into())
}

/// Bytes of the blocks of a step of so many tokens, the largest of a handoff of `[0, kv_end)`: rows of the window are among
/// those of its end.
#[must_use]
pub fn step_bytes(contract: &Contract, kv_end: u32, tokens: u32) -> u64 {
    let full = contract.block_bytes(Section::Full, &(0..tokens.min(kv_end)));
    let window = tokens.min(kv_end - contract.window_start(kv_end));
    full.saturating_add(contract.block_bytes(Section::Window, &(0..window)))
}

/// K or V, as they alternate in a segment.
pub(crate) const PLANES: [PlaneKind; 2] = [PlaneKind::Key, PlaneKind::Value];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        Cut, LARGEST_SEGMENT, SMALLEST_SEGMENT, Sizes, even_parts, next_block, segment_cuts,
        step_bytes,
    };
    use crate::contract::Section;
    use crate::limits::{AHEAD_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS_IN_FLIGHT, MAX_CREDIT_BYTES};
    use crate::page::PAGE_TOKENS;
    use crate::receiver::credit_for;
    use crate::{Contract, ElementType, LayerKind, LayerSpec};

    const MIB: u64 = 1 << 20;

    /// The bytes of each part.
    fn parts(layers: &[u64], sizes: Sizes) -> Vec<u64> {
        let parts = even_parts(layers, sizes);
        let mut at = 0;
        for part in &parts {
            assert_eq!(part.start, at, "{layers:?}: {parts:?}");
            at = part.end;
        }
        assert_eq!(at, layers.len(), "{parts:?}");
        let bytes = |part: &std::ops::Range<usize>| layers[part.clone()].iter().sum();
        parts.iter().map(bytes).collect()
    }

    fn streamed(layers: &[u64]) -> Sizes {
        Sizes::streamed(layers.iter().sum())
    }

    #[test]
    fn equal_layers_make_no_small_and_no_large_segment() {
        for step in 1..=1024 {
            let layer = LARGEST_SEGMENT * step / 1024;
            for count in 1..=96 {
                let all = layer * count as u64;
                let allowed = MIB.min(all)..=4 * MIB;
                let parts = parts(&vec![layer; count], Sizes::WHOLE);
                let is_good = parts.iter().all(|bytes| allowed.contains(bytes));
                assert!(is_good, "{count} layers of {layer}: {parts:?}");
            }
        }
    }

    /// One layer, or at most 2/9 of the block: two of nine layers.
    #[test]
    fn equal_layers_of_a_streamed_block_leave_in_five_to_eight_parts() {
        for count in 1..=96 {
            for step in 1..=1024 {
                let layer = (MAX_BLOCK_BYTES / count * step / 1024).min(LARGEST_SEGMENT);
                let layers = vec![layer; usize::try_from(count).unwrap()];
                let parts = parts(&layers, streamed(&layers));
                let most = layer.max(layer * count * 2 / 9);
                let is_good = parts.iter().all(|bytes| (layer..=most).contains(bytes));
                assert!(is_good, "{count} layers of {layer}: {parts:?}");
                let allowed = count.min(5)..=count.min(8);
                assert!(allowed.contains(&(parts.len() as u64)), "{parts:?}");
            }
        }
    }

    /// What the limits of a block that is there as a whole are, those of a large streamed one are, too.
    #[test]
    fn large_blocks_are_streamed_in_segments_of_the_target() {
        let sizes = Sizes::streamed(MAX_BLOCK_BYTES);
        let whole = (Sizes::WHOLE.target, Sizes::WHOLE.smallest);
        assert_eq!((sizes.target, sizes.smallest), whole);
        let none = Sizes::streamed(0);
        assert_eq!((none.target, none.smallest), (1, 0));
    }

    /// A model of which every so many layers one has full attention.
    fn model(window: u32, layers: u32, each: u32, kv_heads: u32, dim: u32) -> Contract {
        let layer = |i: u32| LayerSpec {
            kind: match i % each {
                0 => LayerKind::Full,
                _ => LayerKind::Window,
            },
            kv_heads,
            key_dim: dim,
            value_dim: dim,
        };
        Contract {
            layout_version: 1,
            engine: String::new(),
            architecture: String::new(),
            quantisation: String::new(),
            weights: String::new(),
            tokenizer: String::new(),
            rope: String::new(),
            rotation: String::new(),
            window,
            key_type: ElementType::F16,
            value_type: ElementType::F16,
            layers: (1..=layers).map(layer).collect(),
        }
    }

    /// The steps of a GPU leave in segments of 0.5 to 4 MiB, but for a page that the prompt ends in, and a receiver with the
    /// memory gives credit for all of one.
    #[test]
    fn steps_of_models_that_people_run() {
        for (name, contract) in [
            ("Qwen3-30B-A3B", model(0, 48, 1, 4, 128)),
            ("gpt-oss-120b", model(128, 36, 2, 8, 64)),
            ("Gemma-3-27B", model(1024, 62, 6, 16, 128)),
        ] {
            // With steps of 64 a CPU ends a prompt: their segments are smaller, but there are not many.
            let cases = [64, 512, 1024, 2048].map(|step| [(step, 4 * step), (step, 5000)]);
            for (step, kv_end) in cases.concat() {
                let what = format!("{name}, {step}, {kv_end}");
                let (mut count, mut all) = (0, 0);
                for section in Section::ALL {
                    let start = (kv_end - 1) / step * step;
                    let mut at = start.max(contract.section_start(section, kv_end));
                    while at < kv_end && contract.has_section(section) {
                        let tokens = next_block(&contract, section, at..kv_end);
                        let block = contract.block_bytes(section, &tokens);
                        let bytes = |cut: Cut| {
                            let layers: Vec<u32> = cut.layers.map(u32::from).collect();
                            let is_it = |layer: &u32| {
                                contract.layers[*layer as usize].kind == section.layer_kind()
                            };
                            let layers: Vec<u32> = layers.into_iter().filter(is_it).collect();
                            contract.token_bytes(&layers) * cut.tokens.len() as u64
                        };
                        let cuts =
                            segment_cuts(&contract, section, &tokens, Sizes::streamed(block));
                        let cuts: Vec<u64> = cuts.into_iter().map(bytes).collect();
                        let is_left =
                            !tokens.end.is_multiple_of(PAGE_TOKENS) && section == Section::Full;
                        let smallest = match step {
                            64 => block / (2 * super::STREAMED_SEGMENTS),
                            _ => SMALLEST_SEGMENT,
                        };
                        let allowed = if is_left { 0 } else { smallest }..=LARGEST_SEGMENT;
                        assert!(cuts.iter().all(|b| allowed.contains(b)), "{what}: {cuts:?}");
                        assert_eq!(cuts.iter().sum::<u64>(), block, "{what}");
                        (at, count, all) = (tokens.end, count + 1, all + block);
                    }
                }
                let most = step_bytes(&contract, kv_end, step);
                assert!(
                    if kv_end.is_multiple_of(step) {
                        all == most
                    } else {
                        all < most
                    },
                    "{what}"
                );
                assert!(all + AHEAD_BYTES <= MAX_CREDIT_BYTES, "{what}: {all}");
                assert!(credit_for(all) >= all + AHEAD_BYTES, "{what}: {all}");
                assert!(count <= MAX_BLOCKS_IN_FLIGHT, "{what}: {count}");
            }
        }
    }

    fn fits_no_neighbour(parts: &[u64], smallest: u64) -> bool {
        let fits =
            |pair: &[u64]| pair[0].min(pair[1]) >= smallest || pair[0] + pair[1] > LARGEST_SEGMENT;
        parts.windows(2).all(fits)
    }

    proptest! {
        #[test]
        fn any_layers_fit(layers in proptest::collection::vec(1..=LARGEST_SEGMENT, 1..96)) {
            let parts = parts(&layers, Sizes::WHOLE);
            prop_assert!(parts.iter().all(|bytes| *bytes <= LARGEST_SEGMENT), "{parts:?}");
            // A small one fits no neighbour.
            prop_assert!(fits_no_neighbour(&parts, SMALLEST_SEGMENT), "{parts:?}");
        }

        #[test]
        fn any_layers_of_a_streamed_block(
            shares in proptest::collection::vec(1..=1024u64, 1..96),
            scale in 1..=MAX_BLOCK_BYTES,
        ) {
            let all: u64 = shares.iter().sum();
            let layer = |share: &u64| (scale * share / all).clamp(64, LARGEST_SEGMENT);
            let layers: Vec<u64> = shares.iter().map(layer).collect();
            let (largest, all) = (*layers.iter().max().unwrap(), layers.iter().sum::<u64>());
            let sizes = streamed(&layers);
            let parts = parts(&layers, sizes);
            let most = LARGEST_SEGMENT.min(largest + all / 4);
            prop_assert!(parts.iter().all(|bytes| *bytes <= most), "{parts:?}");
            prop_assert!(fits_no_neighbour(&parts, sizes.smallest), "{parts:?}");
        }
    }
}
