//! The sending end of a handoff: blocks in, frames out, coverage and credits kept. No I/O.

use std::ops::Range;

use crate::codec::Codec;
use crate::contract::Contract;
use crate::digest::token_digest;
use crate::frame::{Header, Kind, encode_frame};
use crate::limits::{MAX_SEGMENT_PAYLOAD, TARGET_SEGMENT_BYTES};
use crate::message::{Abort, Accept};
use crate::message::{Hello, Manifest, MessageError, Refuse, abort_frame, control_frame, parse};
use crate::plane::{InvalidBlock, KvBlock, PlaneKind, Section};

/// Why a handoff failed at the sending end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SenderError {
    /// The receiver refused before any KV moved.
    #[error("refused by the decode node: {}", .0.message)]
    Refused(Refuse),
    /// The receiver ended the handoff.
    #[error("aborted by the decode node: {0}")]
    Aborted(String),
    /// A frame arrived that is not allowed now.
    #[error("unexpected {kind:?} frame from the decode node: {reason}")]
    Unexpected {
        /// Its kind.
        kind: Kind,
        /// Why it is not allowed.
        reason: String,
    },
    /// A message could not be read or built.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A block does not fit the contract.
    #[error(transparent)]
    Block(#[from] InvalidBlock),
    /// A block that does not continue where the last one ended.
    #[error("block starts at token {found}, expected {expected}")]
    Gap {
        /// Where it starts.
        found: u32,
        /// Where it should start.
        expected: u32,
    },
}

/// Where a handoff stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderState {
    /// Hello sent, no answer yet.
    AwaitAccept,
    /// Segments may be sent.
    Streaming,
    /// Commit sent, not confirmed yet.
    Committing,
    /// The receiver has applied everything.
    Committed,
}

/// The sending end of one handoff.
#[derive(Debug)]
pub struct Sender {
    contract: Contract,
    handoff: u64,
    kv_end: u32,
    sequence: u32,
    state: SenderState,
    next_token: u32,
    window_sent: bool,
    unacked: std::collections::VecDeque<(Section, u32)>,
    credit: u32,
    manifest: Manifest,
}

impl Sender {
    /// A sender for KV `[0, kv_end)` and its hello frame. `handoff` is the id in the ticket.
    ///
    /// # Errors
    /// If the hello exceeds the limit of control frames.
    pub fn new(
        contract: Contract,
        handoff: u64,
        ticket: &str,
        tokens: &[u32],
        kv_end: u32,
    ) -> Result<(Self, Vec<u8>), SenderError> {
        let hello = Hello {
            ticket: ticket.to_owned(),
            contract: contract.clone(),
            kv_end,
            token_digest: blake3::Hash::from(token_digest(tokens))
                .to_hex()
                .to_string(),
        };
        let frame = control_frame(Kind::Hello, handoff, 0, &hello)?;
        let window_sent = !contract.has_window() || kv_end == 0;
        let sender = Self {
            contract,
            handoff,
            kv_end,
            sequence: 1,
            state: SenderState::AwaitAccept,
            next_token: 0,
            window_sent,
            unacked: std::collections::VecDeque::new(),
            credit: 0,
            manifest: Manifest::default(),
        };
        Ok((sender, frame))
    }

    /// Where the handoff stands.
    #[must_use]
    pub const fn state(&self) -> SenderState {
        self.state
    }

    /// True if another block may be sent before an acknowledgement.
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.state == SenderState::Streaming && (self.unacked.len() as u64) < u64::from(self.credit)
    }

    /// Bytes of rows sent so far.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.manifest.raw_bytes()
    }

    /// Takes a frame from the receiver.
    ///
    /// # Errors
    /// A refusal, an abort, or a frame that is not allowed now. The handoff is over.
    pub fn receive(&mut self, header: &Header, payload: &[u8]) -> Result<(), SenderError> {
        let unexpected = |reason: &str| SenderError::Unexpected {
            kind: header.kind,
            reason: reason.to_owned(),
        };
        if header.handoff != self.handoff {
            return Err(unexpected("handoff id differs"));
        }
        match (header.kind, self.state) {
            (Kind::Refuse, _) => Err(SenderError::Refused(parse(Kind::Refuse, payload)?)),
            (Kind::Abort, _) => Err(SenderError::Aborted(
                parse::<Abort>(Kind::Abort, payload)?.reason,
            )),
            (Kind::Accept, SenderState::AwaitAccept) => {
                let accept: Accept = parse(Kind::Accept, payload)?;
                self.credit = accept.credit_blocks;
                self.state = SenderState::Streaming;
                if self.credit == 0 {
                    return Err(unexpected("`credit_blocks` is zero"));
                }
                Ok(())
            }
            (Kind::Ack, SenderState::Streaming | SenderState::Committing) => {
                let got = Section::from_wire(header.section).map(|s| (s, header.token_end));
                if got.is_none() || self.unacked.front().copied() != got {
                    return Err(unexpected("does not match the oldest unacknowledged block"));
                }
                self.unacked.pop_front();
                Ok(())
            }
            (Kind::Committed, SenderState::Committing) if self.unacked.is_empty() => {
                self.state = SenderState::Committed;
                Ok(())
            }
            _ => Err(unexpected("not allowed in this state")),
        }
    }

    /// Cuts a block into segment frames. Blocks must be contiguous and the window comes last.
    ///
    /// # Errors
    /// If the block does not fit the contract or does not continue where the last one ended.
    pub fn block(&mut self, block: &KvBlock) -> Result<Vec<Vec<u8>>, SenderError> {
        block.validate(&self.contract)?;
        let expected = match block.section {
            Section::Full => self.next_token,
            Section::Window => self.contract.window_start(self.kv_end),
        };
        if block.tokens.start != expected {
            return Err(SenderError::Gap {
                found: block.tokens.start,
                expected,
            });
        }
        let cuts = segment_cuts(&self.contract, block);
        let frames = cuts.iter().map(|cut| self.segment(block, cut)).collect();
        match block.section {
            Section::Full => self.next_token = block.tokens.end,
            Section::Window => self.window_sent = true,
        }
        self.unacked.push_back((block.section, block.tokens.end));
        Ok(frames)
    }

    fn segment(&mut self, block: &KvBlock, cut: &Cut) -> Vec<u8> {
        let mut payload = Vec::new();
        for plane in &block.planes[cut.planes.clone()] {
            let rows = u64::from(block.len()).max(1);
            let row = usize::try_from(plane.data.len() as u64 / rows).unwrap_or(0);
            let from = (cut.tokens.start - block.tokens.start) as usize * row;
            let to = (cut.tokens.end - block.tokens.start) as usize * row;
            payload.extend_from_slice(&plane.data[from..to]);
        }
        let mut header = Header::control(Kind::Segment, self.handoff, self.sequence);
        header.codec = Codec::Raw.wire();
        header.payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        header.raw_len = header.payload_len;
        header.token_start = cut.tokens.start;
        header.token_end = cut.tokens.end;
        header.block_start = block.tokens.start;
        header.block_end = block.tokens.end;
        header.layer_start = cut.layers.start;
        header.layer_end = cut.layers.end;
        header.section = block.section.wire();
        header.key_type = self.contract.key_type.wire();
        header.value_type = self.contract.value_type.wire();
        header.payload_checksum = xxhash_rust::xxh3::xxh3_64(&payload);
        self.manifest.add(&header);
        self.sequence += 1;
        encode_frame(header, &payload)
    }

    /// The commit frame, once all blocks are sent.
    ///
    /// # Errors
    /// [`SenderError::Gap`] if tokens are missing.
    pub fn commit(&mut self) -> Result<Vec<u8>, SenderError> {
        // A model that has only window layers sends no full-attention blocks.
        let needs_full = !self.contract.section_layers(Section::Full).is_empty();
        if (needs_full && self.next_token != self.kv_end) || !self.window_sent {
            return Err(SenderError::Gap {
                found: self.kv_end,
                expected: self.next_token,
            });
        }
        let frame = control_frame(
            Kind::Commit,
            self.handoff,
            self.sequence,
            &self.manifest.commit(),
        )?;
        self.sequence += 1;
        self.state = SenderState::Committing;
        Ok(frame)
    }

    /// An abort frame with a reason.
    #[must_use]
    pub fn abort(&mut self, reason: &str) -> Vec<u8> {
        abort_frame(self.handoff, self.sequence, reason)
    }
}

struct Cut {
    /// Index range into the block's planes (K and V of a layer stay together).
    planes: Range<usize>,
    layers: Range<u16>,
    tokens: Range<u32>,
}

/// Cuts a block at layer boundaries into segments of about [`TARGET_SEGMENT_BYTES`]; a layer
/// that is larger than [`MAX_SEGMENT_PAYLOAD`] by itself is cut by tokens too.
fn segment_cuts(contract: &Contract, block: &KvBlock) -> Vec<Cut> {
    let layers = contract.section_layers(block.section);
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < layers.len() {
        let per_token = contract.token_bytes(&layers[at..=at]).max(1);
        let layer_bytes = per_token * u64::from(block.len());
        if layer_bytes > u64::from(MAX_SEGMENT_PAYLOAD) {
            let step = u32::try_from(u64::from(TARGET_SEGMENT_BYTES) / per_token)
                .unwrap_or(u32::MAX)
                .max(1);
            let mut start = block.tokens.start;
            while start < block.tokens.end {
                let end = start.saturating_add(step).min(block.tokens.end);
                cuts.push(cut(&layers, at..at + 1, start..end));
                start = end;
            }
            at += 1;
            continue;
        }
        let mut end = at + 1;
        while end < layers.len()
            && contract.token_bytes(&layers[at..=end]) * u64::from(block.len())
                <= u64::from(TARGET_SEGMENT_BYTES)
        {
            end += 1;
        }
        cuts.push(cut(&layers, at..end, block.tokens.clone()));
        at = end;
    }
    cuts
}

fn cut(layers: &[u32], at: Range<usize>, tokens: Range<u32>) -> Cut {
    let index = |l: u32| u16::try_from(l).unwrap_or(u16::MAX);
    Cut {
        layers: index(layers[at.start])..index(layers[at.end - 1]) + 1,
        planes: at.start * 2..at.end * 2,
        tokens,
    }
}

/// Largest number of tokens of a block such that one layer fits a segment; at least 1.
#[must_use]
pub fn max_block_tokens(contract: &Contract, section: Section) -> u32 {
    let largest = contract
        .section_layers(section)
        .iter()
        .map(|&l| {
            let spec = &contract.layers[l as usize];
            spec.row_bytes(PlaneKind::Key, contract.key_type)
                + spec.row_bytes(PlaneKind::Value, contract.value_type)
        })
        .max()
        .unwrap_or(1);
    u32::try_from(u64::from(MAX_SEGMENT_PAYLOAD) / largest.max(1))
        .unwrap_or(u32::MAX)
        .max(1)
}
