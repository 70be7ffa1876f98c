//! The sending end of a handoff: blocks in, frames out, coverage and credits kept. No I/O.

use std::ops::Range;

use crate::codec::Codec;
use crate::contract::{Contract, InvalidContract};
use crate::digest::token_digest;
use crate::frame::{FrameError, Header, Kind, encode_frame};
use crate::limits::{
    MAX_CHUNK_TOKENS, MAX_CHUNKS_IN_FLIGHT, MAX_SEGMENT_PAYLOAD, MAX_STAGED_BYTES, MAX_TOKENS,
    TARGET_SEGMENT_BYTES,
};
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
    /// A frame was damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Our own contract is out of bounds.
    #[error(transparent)]
    Contract(#[from] InvalidContract),
    /// The caller asked for something that the rules do not allow now. Nothing was changed.
    #[error("not allowed: {0}")]
    NotAllowed(String),
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
    /// Refused, aborted, or broken by a frame that was not allowed.
    Failed,
}

/// The sending end of one handoff.
#[derive(Debug)]
pub struct Sender {
    contract: Contract,
    handoff: u64,
    kv_end: u32,
    sequence: u32,
    state: SenderState,
    sequence_in: u32,
    next_token: u32,
    window_sent: bool,
    unacked: std::collections::VecDeque<(Section, Range<u32>)>,
    credit: u32,
    manifest: Manifest,
}

impl Sender {
    /// A sender for KV `[0, kv_end)` and its hello frame. `handoff` is the id in the ticket.
    ///
    /// # Errors
    /// If the contract is invalid, or `kv_end` lies beyond the tokens or beyond [`MAX_TOKENS`].
    pub fn new(
        contract: Contract,
        handoff: u64,
        ticket: &str,
        tokens: &[u32],
        kv_end: u32,
    ) -> Result<(Self, Vec<u8>), SenderError> {
        contract.validate()?;
        if kv_end > MAX_TOKENS || kv_end as usize > tokens.len() {
            let (count, limit) = (tokens.len(), MAX_TOKENS);
            return not_allowed(format!(
                "kv_end {kv_end} with {count} tokens and a limit of {limit}"
            ));
        }
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
            sequence_in: 0,
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

    /// Blocks sent but not yet acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.unacked.len()
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
        if matches!(self.state, SenderState::Committed | SenderState::Failed) {
            return Err(unexpected(header, "the handoff is over"));
        }
        let result = self.receive_inner(header, payload);
        if result.is_err() {
            self.state = SenderState::Failed;
        }
        result
    }

    fn receive_inner(&mut self, header: &Header, payload: &[u8]) -> Result<(), SenderError> {
        header.check_payload(payload)?;
        // The receiver does not know the handoff of a hello that it could not read.
        let unread = header.kind == Kind::Refuse && header.handoff == 0;
        if header.handoff != self.handoff && !unread {
            return Err(unexpected(header, "handoff id differs"));
        }
        // A refusal or an abort ends the handoff whatever came before it.
        let ends = matches!(header.kind, Kind::Refuse | Kind::Abort);
        if !ends && header.sequence != self.sequence_in {
            return Err(unexpected(header, "out of sequence"));
        }
        self.sequence_in = self.sequence_in.wrapping_add(1);
        match (header.kind, self.state) {
            (Kind::Refuse, SenderState::AwaitAccept) => {
                Err(SenderError::Refused(parse(Kind::Refuse, payload)?))
            }
            (Kind::Abort, _) => Err(SenderError::Aborted(
                parse::<Abort>(Kind::Abort, payload)?.reason,
            )),
            (Kind::Accept, SenderState::AwaitAccept) => {
                let accept: Accept = parse(Kind::Accept, payload)?;
                if accept.credit_blocks == 0 {
                    return Err(unexpected(header, "`credit_blocks` is zero"));
                }
                self.credit = accept.credit_blocks.min(MAX_CHUNKS_IN_FLIGHT);
                self.state = SenderState::Streaming;
                Ok(())
            }
            (Kind::Ack, SenderState::Streaming | SenderState::Committing) => {
                let tokens = header.token_start..header.token_end;
                let got = Section::from_wire(header.section).map(|s| (s, tokens));
                if got.is_none() || self.unacked.front() != got.as_ref() {
                    let reason = "does not match the oldest unacknowledged block";
                    return Err(unexpected(header, reason));
                }
                self.unacked.pop_front();
                Ok(())
            }
            (Kind::Beat, SenderState::Streaming | SenderState::Committing) => Ok(()),
            (Kind::Committed, SenderState::Committing) if self.unacked.is_empty() => {
                self.state = SenderState::Committed;
                Ok(())
            }
            _ => Err(unexpected(header, "not allowed in this state")),
        }
    }

    /// Cuts a block into segment frames. Blocks must be contiguous and the window comes last.
    ///
    /// # Errors
    /// If [`Self::may_send`] is false, or if the block does not fit the contract, exceeds a limit
    /// or does not continue where the last one ended.
    pub fn block(&mut self, block: &KvBlock) -> Result<Vec<Vec<u8>>, SenderError> {
        if !self.may_send() {
            let (state, unacked) = (self.state, self.unacked.len());
            return not_allowed(format!(
                "a block in state {state:?}, {unacked} unacknowledged"
            ));
        }
        block.validate(&self.contract)?;
        self.check_block(block)?;
        let cuts = segment_cuts(&self.contract, block);
        let frames = cuts.iter().map(|cut| self.segment(block, cut)).collect();
        match block.section {
            Section::Full => self.next_token = block.tokens.end,
            Section::Window => self.window_sent = true,
        }
        self.unacked
            .push_back((block.section, block.tokens.clone()));
        Ok(frames)
    }

    fn check_block(&self, block: &KvBlock) -> Result<(), SenderError> {
        if block.is_empty() || block.planes.is_empty() {
            return not_allowed("an empty block".into());
        }
        let expected = match block.section {
            Section::Full => self.next_token,
            Section::Window if self.window_sent => return not_allowed("a second window".into()),
            Section::Window if !self.full_complete() => {
                return not_allowed("the window before the last full block".into());
            }
            Section::Window => self.contract.window_start(self.kv_end),
        };
        if block.tokens.start != expected {
            return Err(SenderError::Gap {
                found: block.tokens.start,
                expected,
            });
        }
        let (end, kv_end) = (block.tokens.end, self.kv_end);
        if end > kv_end || (block.section == Section::Window && end != kv_end) {
            return not_allowed(format!("a block that ends at token {end} of {kv_end}"));
        }
        if block.section == Section::Full && block.len() > MAX_CHUNK_TOKENS {
            let tokens = block.len();
            return not_allowed(format!("{tokens} tokens, limit {MAX_CHUNK_TOKENS}"));
        }
        if block.bytes() > MAX_STAGED_BYTES {
            let bytes = block.bytes();
            return not_allowed(format!("{bytes} bytes, limit {MAX_STAGED_BYTES}"));
        }
        Ok(())
    }

    /// True if no block of full-attention layers is missing.
    fn full_complete(&self) -> bool {
        // A model that has only window layers sends no full-attention blocks.
        self.next_token == self.kv_end || self.contract.section_layers(Section::Full).is_empty()
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
        self.sequence = self.sequence.wrapping_add(1);
        encode_frame(header, &payload)
    }

    /// The commit frame, once all blocks are sent.
    ///
    /// # Errors
    /// [`SenderError::Gap`] if tokens are missing; [`SenderError::NotAllowed`] before the accept,
    /// without the window, or a second time.
    pub fn commit(&mut self) -> Result<Vec<u8>, SenderError> {
        if self.state != SenderState::Streaming {
            return not_allowed(format!("a commit in state {:?}", self.state));
        }
        if !self.full_complete() {
            return Err(SenderError::Gap {
                found: self.kv_end,
                expected: self.next_token,
            });
        }
        if !self.window_sent {
            return not_allowed("a commit without the window".into());
        }
        let frame = control_frame(
            Kind::Commit,
            self.handoff,
            self.sequence,
            &self.manifest.commit(),
        )?;
        self.sequence = self.sequence.wrapping_add(1);
        self.state = SenderState::Committing;
        Ok(frame)
    }

    /// A sign of life while the next block is being computed.
    #[must_use]
    pub fn beat(&mut self) -> Vec<u8> {
        let header = Header::control(Kind::Beat, self.handoff, self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        encode_frame(header, &[])
    }

    /// An abort frame with a reason. The handoff is over.
    #[must_use]
    pub fn abort(&mut self, reason: &str) -> Vec<u8> {
        self.state = SenderState::Failed;
        abort_frame(self.handoff, self.sequence, reason)
    }
}

fn not_allowed<T>(reason: String) -> Result<T, SenderError> {
    Err(SenderError::NotAllowed(reason))
}

fn unexpected(header: &Header, reason: &str) -> SenderError {
    SenderError::Unexpected {
        kind: header.kind,
        reason: reason.to_owned(),
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
