//! The connection of a handoff at the receiving end: the order of its frames, and the blocks that come over it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Arrived, Receiver, ReceiverError, Step, field, wrong};
use crate::codec::{Codec, Decoder, RunSpec};
use crate::contract::{Contract, Section};
use crate::frame::{Checksum, Header, Kind};
use crate::message::{Abort, Manifest, parse};
use crate::plane::{KvBlock, Plane, plane_bytes, row_range};
use crate::receipt::Receipt;
use crate::segment::PLANES;

/// A block in progress.
#[derive(Debug)]
struct Staged {
    block: KvBlock,
    layers: Vec<u32>,
    /// Index into `layers` of the next incomplete layer.
    layer_at: usize,
    /// Next token of that layer.
    token_at: u32,
    codec: Codec,
    wire_bytes: u64,
}

/// The block that a segment belongs to.
type BlockKey = (u8, u32);

const fn key(header: &Header) -> BlockKey {
    (header.section, header.block_start)
}

/// One connection of a handoff.
#[derive(Debug)]
pub struct Inbound {
    generation: u32,
    sequence: u32,
    /// Its blocks in progress, by section and first token.
    staged: BTreeMap<BlockKey, Staged>,
    /// The segment whose header passed and whose payload has not come.
    pending: Option<Pending>,
    manifest: Manifest,
}

#[derive(Debug)]
struct Pending {
    header: Header,
    codec: Codec,
    /// Layers of the segment, as indices into those of the section.
    layers: Range<usize>,
    /// Its runs, in order.
    specs: Vec<RunSpec>,
    /// True once its rows are in the block.
    filled: bool,
}

impl Inbound {
    pub(super) fn new(generation: u32) -> Self {
        Self {
            generation,
            sequence: 1,
            staged: BTreeMap::new(),
            pending: None,
            manifest: Manifest::default(),
        }
    }

    /// Runs a step; a broken rule ends the handoff, but not one that has gone on without us.
    fn judged<T>(
        &mut self,
        receiver: &mut Receiver,
        step: impl FnOnce(&mut Self, &mut Receiver) -> Result<T, ReceiverError>,
    ) -> Result<T, ReceiverError> {
        if receiver.over.is_some() || receiver.generation != self.generation {
            return Err(ReceiverError::Over);
        }
        let result = step(self, receiver);
        if let Err(error) = &result {
            if !error.is_damage() {
                receiver.close(&error.to_string());
            }
            if error.discredits_rows() {
                receiver.discredited = Some(error.to_string());
            }
        }
        result
    }

    /// Which accept of the handoff this connection belongs to.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Checks a header before its payload is read: order, coverage, and the length that the contract
    /// implies. Only after `Ok` may the caller allocate `payload_len` bytes.
    ///
    /// # Errors
    /// Names the field at fault; the handoff is over.
    pub fn check(&mut self, receiver: &mut Receiver, header: &Header) -> Result<(), ReceiverError> {
        self.judged(receiver, |own, receiver| own.check_inner(receiver, header))
    }

    fn check_inner(
        &mut self,
        receiver: &mut Receiver,
        header: &Header,
    ) -> Result<(), ReceiverError> {
        field("handoff", header.handoff, receiver.handoff)?;
        // An abort ends the handoff whatever came before it.
        if header.kind != Kind::Abort {
            field("sequence", header.sequence, self.sequence)?;
        }
        match header.kind {
            Kind::Segment if !receiver.all_sent => self.check_segment(receiver, header),
            Kind::Commit if !receiver.all_sent => {
                if let Some(staged) = self.staged.values().next() {
                    return Err(wrong("kind", "Commit", rest_of(staged)));
                }
                Ok(())
            }
            Kind::Receipt if receiver.awaits_receipt() => Ok(()),
            Kind::Beat | Kind::Abort => Ok(()),
            other => Err(wrong(
                "kind",
                format!("{other:?}"),
                "a frame that is allowed now",
            )),
        }
    }

    fn check_segment(
        &mut self,
        receiver: &mut Receiver,
        header: &Header,
    ) -> Result<(), ReceiverError> {
        let contract = Arc::clone(&receiver.contract);
        let Some(section) = Section::from_wire(header.section) else {
            return Err(wrong("section", header.section, "0 or 1"));
        };
        let Some(codec) = Codec::from_wire(header.codec) else {
            return Err(wrong("codec", header.codec, "a codec of this version"));
        };
        if !receiver.quality.allows(codec) {
            let expected = format!("a codec of quality {}", receiver.quality);
            return Err(wrong("codec", codec, expected));
        }
        field("key_type", header.key_type, contract.key_type.wire())?;
        field("value_type", header.value_type, contract.value_type.wire())?;
        let staged = self.staged.get(&key(header));
        let bytes = match staged {
            Some(staged) => {
                field("block_end", header.block_end, staged.block.tokens.end)?;
                None
            }
            None => Some(receiver.may_open(section, header)?),
        };
        let all = contract.section_layers(section);
        let layers = segment_layers(&all, staged, header)?;
        let tokens = header.token_end - header.token_start;
        let specs = run_specs(&contract, &all[layers.clone()], tokens)?;
        check_lengths(&specs, codec, header)?;
        if let Some(bytes) = bytes {
            receiver.open(section, header.block_end, bytes);
            let staged = receiver.stage(section, header)?;
            self.staged.insert(key(header), staged);
        }
        self.pending = Some(Pending {
            header: *header,
            codec,
            layers,
            specs,
            filled: false,
        });
        Ok(())
    }

    /// Where the payload of a raw segment that passed [`Self::check`] goes, in order; together
    /// `payload_len` bytes. `None` for other frames, whose payload goes to [`Self::frame`].
    pub fn rows(&mut self) -> Option<Vec<&mut [u8]>> {
        let pending = self.pending.as_ref()?;
        let staged = self.staged.get_mut(&key(&pending.header))?;
        if pending.codec != Codec::Raw {
            return None;
        }
        Some(staged.slices(pending))
    }

    /// The payload of a raw segment has been read into [`Self::rows`], and `sum` is that of its bytes.
    ///
    /// # Errors
    /// A damaged payload.
    pub fn rows_read(&mut self, sum: &Checksum) -> Result<(), ReceiverError> {
        let Some(pending) = self.pending.as_mut().filter(|p| p.codec == Codec::Raw) else {
            return Err(ReceiverError::Over);
        };
        pending.header.check_sum(sum)?;
        pending.filled = true;
        Ok(())
    }

    /// Decodes the payload of a segment that passed [`Self::check`] into its block. Needs no
    /// [`Receiver`], so that whoever applies blocks does not wait for it.
    ///
    /// # Errors
    /// A damaged payload, or one that the codec did not write.
    pub fn decode(&mut self, decoder: &mut Decoder, payload: &[u8]) -> Result<(), ReceiverError> {
        let Some(pending) = self.pending.as_mut() else {
            return Err(ReceiverError::Over);
        };
        let Some(staged) = self.staged.get_mut(&key(&pending.header)) else {
            return Err(ReceiverError::Over);
        };
        pending.header.check_payload(payload)?;
        let mut rest = payload;
        for (slice, spec) in staged.slices(pending).into_iter().zip(&pending.specs) {
            let used = decoder.decode(pending.codec, spec, rest, slice)?;
            rest = rest.get(used..).unwrap_or_default();
        }
        field("payload_len", payload.len() - rest.len(), payload.len())?;
        pending.filled = true;
        Ok(())
    }

    /// Takes the segment whose rows have come.
    ///
    /// # Errors
    /// A block that is whole before the one before it; [`ReceiverError::Over`] if the handoff has ended meanwhile.
    pub fn complete(&mut self, receiver: &mut Receiver) -> Result<Step, ReceiverError> {
        self.judged(receiver, |own, receiver| {
            let pending = own.pending.take().filter(|p| p.filled);
            own.segment_done(receiver, &pending.ok_or(ReceiverError::Over)?)
        })
    }

    /// Takes a frame whose header passed [`Self::check`].
    ///
    /// # Errors
    /// A damaged payload, an abort, or a commit that does not match; the handoff is over unless the
    /// fault [is damage](ReceiverError::is_damage) and it is resumed.
    pub fn frame(
        &mut self,
        receiver: &mut Receiver,
        decoder: &mut Decoder,
        header: &Header,
        payload: &[u8],
    ) -> Result<Step, ReceiverError> {
        self.judged(receiver, |own, receiver| {
            if header.kind == Kind::Segment {
                own.decode(decoder, payload)?;
                return own.complete(receiver);
            }
            header.check_payload(payload)?;
            own.sequence = own.sequence.wrapping_add(1);
            match header.kind {
                Kind::Beat => Ok(Step::Wait),
                Kind::Commit => {
                    receiver.commit(&parse(Kind::Commit, payload)?, &own.manifest.commit())
                }
                Kind::Receipt => {
                    let receipt: Receipt = parse(Kind::Receipt, payload)?;
                    receipt.check_lengths()?;
                    receiver.receipt = true;
                    Ok(Step::Receipt(receipt))
                }
                _ => Err(ReceiverError::Aborted(
                    parse::<Abort>(Kind::Abort, payload)?.reason,
                )),
            }
        })
    }

    fn segment_done(
        &mut self,
        receiver: &mut Receiver,
        pending: &Pending,
    ) -> Result<Step, ReceiverError> {
        self.sequence = self.sequence.wrapping_add(1);
        let header = &pending.header;
        let Some(staged) = self.staged.get_mut(&key(header)) else {
            return Err(ReceiverError::Over);
        };
        self.manifest.add(header);
        receiver.raw_bytes += u64::from(header.raw_len);
        let wire_bytes = u64::from(header.payload_len) + crate::frame::HEADER_BYTES as u64;
        receiver.wire_bytes += wire_bytes;
        staged.wire_bytes += wire_bytes;
        if pending.codec.wire() > staged.codec.wire() {
            staged.codec = pending.codec;
        }
        if header.token_end == staged.block.tokens.end {
            staged.layer_at = pending.layers.end;
            staged.token_at = staged.block.tokens.start;
        } else {
            staged.token_at = header.token_end;
        }
        if staged.layer_at < staged.layers.len() {
            return Ok(Step::Wait);
        }
        let Some(staged) = self.staged.remove(&key(header)) else {
            return Err(ReceiverError::Over);
        };
        let arrived = Arrived {
            block: staged.block,
            codec: staged.codec,
            wire_bytes: staged.wire_bytes,
        };
        receiver.whole(arrived)
    }
}

impl Receiver {
    fn stage(&self, section: Section, header: &Header) -> Result<Staged, ReceiverError> {
        let contract = Arc::clone(&self.contract);
        let layers = contract.section_layers(section);
        let tokens = header.block_end - header.block_start;
        let mut planes = Vec::with_capacity(layers.len() * 2);
        for &layer in &layers {
            for kind in PLANES {
                let bytes = plane_bytes(&contract, layer, kind, tokens)
                    .and_then(|b| usize::try_from(b).ok())
                    .ok_or(ReceiverError::Over)?;
                let data = vec![0; bytes].into();
                planes.push(Plane { layer, kind, data });
            }
        }
        Ok(Staged {
            block: KvBlock {
                section,
                tokens: header.block_start..header.block_end,
                planes,
            },
            layers,
            layer_at: 0,
            token_at: header.block_start,
            codec: Codec::Raw,
            wire_bytes: 0,
        })
    }
}

impl Staged {
    /// The rows of a segment, K and V of each layer.
    fn slices(&mut self, pending: &Pending) -> Vec<&mut [u8]> {
        let tokens = pending.header.token_start..pending.header.token_end;
        let of = self.block.tokens.clone();
        self.block.planes[pending.layers.start * 2..pending.layers.end * 2]
            .iter_mut()
            .map(|plane| {
                let range = row_range(plane, &of, &tokens);
                &mut plane.data[range]
            })
            .collect()
    }
}

/// The layers of a segment, as indices into `layers`, those of the section: they must continue where the last
/// segment of the block ended; several layers at once carry all tokens of the block, a single layer may carry a
/// part of them.
fn segment_layers(
    layers: &[u32],
    staged: Option<&Staged>,
    header: &Header,
) -> Result<Range<usize>, ReceiverError> {
    let (layer_at, token_at) = staged.map_or((0, header.block_start), |s| (s.layer_at, s.token_at));
    let Some(&next) = layers.get(layer_at) else {
        let expected = "no layer of this section";
        return Err(wrong("layers", header.layer_start, expected));
    };
    field("layer_start", u32::from(header.layer_start), next)?;
    field("token_start", header.token_start, token_at)?;
    let count = layers[layer_at..]
        .iter()
        .take_while(|&&l| l < u32::from(header.layer_end))
        .count();
    let last = layers[layer_at..layer_at + count].last().copied();
    field(
        "layer_end",
        u32::from(header.layer_end),
        last.unwrap_or(next) + 1,
    )?;
    if header.token_end <= header.token_start || header.token_end > header.block_end {
        return Err(wrong("token_end", header.token_end, "inside the block"));
    }
    if count > 1 {
        field("token_start", header.token_start, header.block_start)?;
        field("token_end", header.token_end, header.block_end)?;
    }
    Ok(layer_at..layer_at + count)
}

fn run_specs(
    contract: &Contract,
    layers: &[u32],
    tokens: u32,
) -> Result<Vec<RunSpec>, ReceiverError> {
    let runs = layers.iter().flat_map(|&l| PLANES.map(|kind| (l, kind)));
    runs.map(|(layer, kind)| RunSpec::of(contract, layer, kind, tokens))
        .collect::<Option<_>>()
        .ok_or(ReceiverError::Over)
}

/// The payload must have a length that the codec can give for these rows.
fn check_lengths(specs: &[RunSpec], codec: Codec, header: &Header) -> Result<(), ReceiverError> {
    let raw: u64 = specs.iter().map(RunSpec::raw_bytes).sum();
    field("raw_len", u64::from(header.raw_len), raw)?;
    let (mut least, mut most) = (0u64, 0u64);
    for spec in specs {
        let bytes = codec.encoded_bytes(spec);
        least += bytes.start();
        most += bytes.end();
    }
    let found = u64::from(header.payload_len);
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let expected = if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    };
    Err(wrong("payload_len", found, expected))
}

fn rest_of(staged: &Staged) -> String {
    let tokens = &staged.block.tokens;
    format!("the rest of block {}..{}", tokens.start, tokens.end)
}
