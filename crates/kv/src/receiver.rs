//! The receiving end of a handoff: frames in, checked blocks out, coverage kept. No I/O.
//!
//! Rules: segments arrive in order; the layers of a block arrive in order and completely; blocks
//! are contiguous from token 0; the window comes once, last; the sender keeps to its credit.
//! A block is handed out only when all of its segments are checked, and acknowledged only after
//! the caller says it was applied.
//! After an error the receiver accepts nothing more; what was applied before stays valid.

use crate::codec::Codec;
use crate::contract::{Contract, Difference};
use crate::digest::token_digest;
use crate::frame::{FrameError, Header, Kind, encode_frame};
use crate::limits::{
    MAX_CHUNK_TOKENS, MAX_CHUNKS_IN_FLIGHT, MAX_DIFFERENCES, MAX_STAGED_BYTES, MAX_STRING,
};
use crate::message::{
    Accept, Commit, Hello, Manifest, MessageError, RefusalCode, Refuse, abort_frame, control_frame,
    parse,
};
use crate::plane::{KvBlock, Plane, PlaneKind, Section, plane_bytes};

/// Why a handoff failed at the receiving end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// The frame itself is damaged or beyond a limit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message could not be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The frame is well formed but not allowed here.
    #[error("frame field `{field}`: got {found}, expected {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What arrived.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// The sender ended the handoff.
    #[error("aborted by the prefill node: {0}")]
    Aborted(String),
    /// Something arrived after the handoff had failed or was complete.
    #[error("the handoff is over")]
    Over,
}

/// What the receiver knows about the handoff that a ticket permits.
#[derive(Debug, Clone)]
pub struct Expectation {
    /// The receiver's contract.
    pub contract: Contract,
    /// Id of the handoff.
    pub handoff: u64,
    /// All tokens of the prompt.
    pub tokens: Vec<u32>,
    /// KV must cover tokens `[0, kv_end)`.
    pub kv_end: u32,
}

/// What the caller must do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing; more frames are needed.
    Wait,
    /// Hand the block to the engine, then call [`Receiver::applied`].
    Apply(KvBlock),
    /// All frames have arrived; [`Receiver::finish`] once everything is applied.
    AllSent,
}

/// The receiving end of one handoff.
#[derive(Debug)]
pub struct Receiver {
    contract: Contract,
    handoff: u64,
    kv_end: u32,
    sequence_in: u32,
    sequence_out: u32,
    next_token: u32,
    window_received: bool,
    staged: Option<Staged>,
    unapplied: u32,
    all_sent: bool,
    over: bool,
    manifest: Manifest,
}

/// A block of which some layers have arrived.
#[derive(Debug)]
struct Staged {
    block: KvBlock,
    /// Layers of the section.
    layers: Vec<u32>,
    /// Index into `layers` of the next row.
    layer_at: usize,
    /// Next token of that layer.
    token_at: u32,
}

impl Receiver {
    /// Compares a hello with what its ticket permits; gives the receiver and the accept frame.
    ///
    /// # Errors
    /// The refusal to send; it names the field and both values.
    pub fn accept(hello: &Hello, expected: Expectation) -> Result<(Self, Vec<u8>), Box<Refuse>> {
        compare(hello, &expected)?;
        let accept = Accept {
            credit_blocks: MAX_CHUNKS_IN_FLIGHT,
        };
        let frame = control_frame(Kind::Accept, expected.handoff, 0, &accept)
            .map_err(|e| refuse(RefusalCode::Hello, e.to_string()))?;
        let window_received = !expected.contract.has_window() || expected.kv_end == 0;
        let receiver = Self {
            contract: expected.contract,
            handoff: expected.handoff,
            kv_end: expected.kv_end,
            sequence_in: 1,
            sequence_out: 1,
            next_token: 0,
            window_received,
            staged: None,
            unapplied: 0,
            all_sent: false,
            over: false,
            manifest: Manifest::default(),
        };
        Ok((receiver, frame))
    }

    /// Checks a header before its payload is read: order, coverage, and the exact length that the
    /// contract implies. Only after `Ok` may the caller allocate `payload_len` bytes.
    ///
    /// # Errors
    /// Names the field at fault; the handoff is over.
    pub fn check(&mut self, header: &Header) -> Result<(), ReceiverError> {
        let result = self.check_inner(header);
        self.over |= result.is_err();
        result
    }

    fn check_inner(&self, header: &Header) -> Result<(), ReceiverError> {
        if self.over {
            return Err(ReceiverError::Over);
        }
        field("handoff", header.handoff, self.handoff)?;
        // An abort ends the handoff whatever came before it.
        if header.kind != Kind::Abort {
            field("sequence", header.sequence, self.sequence_in)?;
        }
        match header.kind {
            Kind::Segment if !self.all_sent => self.check_segment(header),
            Kind::Commit | Kind::Beat if !self.all_sent => Ok(()),
            Kind::Abort => Ok(()),
            other => Err(wrong(
                "kind",
                format!("{other:?}"),
                "segment, beat, commit or abort",
            )),
        }
    }

    fn check_segment(&self, header: &Header) -> Result<(), ReceiverError> {
        let Some(section) = Section::from_wire(header.section) else {
            return Err(wrong("section", header.section, "0 or 1"));
        };
        let Some(codec) = Codec::from_wire(header.codec) else {
            return Err(wrong("codec", header.codec, "0"));
        };
        field("key_type", header.key_type, self.contract.key_type.wire())?;
        field(
            "value_type",
            header.value_type,
            self.contract.value_type.wire(),
        )?;
        self.check_block(section, header)?;
        let layers = self.segment_layers(section, header)?;
        let tokens = header.token_end - header.token_start;
        let raw = codec.payload_bytes(&self.contract, &layers, tokens);
        let expected = raw.unwrap_or(u64::MAX);
        field("raw_len", u64::from(header.raw_len), expected)?;
        field("payload_len", u64::from(header.payload_len), expected)
    }

    /// The block must be the one in progress, or the one that comes next.
    fn check_block(&self, section: Section, header: &Header) -> Result<(), ReceiverError> {
        if let Some(staged) = &self.staged {
            field("section", header.section, staged.block.section.wire())?;
            field("block_start", header.block_start, staged.block.tokens.start)?;
            return field("block_end", header.block_end, staged.block.tokens.end);
        }
        if self.unapplied >= MAX_CHUNKS_IN_FLIGHT {
            return Err(wrong(
                "block_start",
                "a block without credit",
                format!("at most {MAX_CHUNKS_IN_FLIGHT} unacknowledged blocks"),
            ));
        }
        let (start, end_min, end_max) = match section {
            Section::Full => (
                self.next_token,
                self.next_token.saturating_add(1),
                self.kv_end
                    .min(self.next_token.saturating_add(MAX_CHUNK_TOKENS)),
            ),
            Section::Window if self.window_received => {
                return Err(wrong("section", "window", "no further window"));
            }
            Section::Window if !self.full_complete() => {
                return Err(wrong(
                    "section",
                    "window",
                    format!("full, up to token {}", self.kv_end),
                ));
            }
            Section::Window => (
                self.contract.window_start(self.kv_end),
                self.kv_end,
                self.kv_end,
            ),
        };
        field("block_start", header.block_start, start)?;
        if header.block_end < end_min || header.block_end > end_max {
            return Err(wrong(
                "block_end",
                header.block_end,
                format!("{end_min}..={end_max}"),
            ));
        }
        let layers = self.contract.section_layers(section);
        let tokens = u64::from(header.block_end - header.block_start);
        let bytes = self.contract.token_bytes(&layers).saturating_mul(tokens);
        if bytes > MAX_STAGED_BYTES {
            return Err(wrong(
                "block_end",
                format!("{bytes} bytes"),
                format!("at most {MAX_STAGED_BYTES} bytes"),
            ));
        }
        Ok(())
    }

    /// True if no block of full-attention layers is missing.
    fn full_complete(&self) -> bool {
        // A model that has only window layers sends no full-attention blocks.
        self.next_token == self.kv_end || self.contract.section_layers(Section::Full).is_empty()
    }

    /// The layers of a segment: they must continue where the last segment ended; several layers
    /// at once carry all tokens of the block, a single layer may carry a part of them.
    fn segment_layers(&self, section: Section, header: &Header) -> Result<Vec<u32>, ReceiverError> {
        let layers = self.contract.section_layers(section);
        let (layer_at, token_at) = self
            .staged
            .as_ref()
            .map_or((0, header.block_start), |s| (s.layer_at, s.token_at));
        let Some(&next) = layers.get(layer_at) else {
            return Err(wrong(
                "layers",
                header.layer_start,
                "no layer of this section",
            ));
        };
        field("layer_start", u32::from(header.layer_start), next)?;
        field("token_start", header.token_start, token_at)?;
        let covered: Vec<u32> = layers[layer_at..]
            .iter()
            .copied()
            .take_while(|&l| l < u32::from(header.layer_end))
            .collect();
        let last = covered.last().copied().unwrap_or(next);
        field("layer_end", u32::from(header.layer_end), last + 1)?;
        if header.token_end <= header.token_start || header.token_end > header.block_end {
            return Err(wrong("token_end", header.token_end, "inside the block"));
        }
        if covered.len() > 1 {
            field("token_start", header.token_start, header.block_start)?;
            field("token_end", header.token_end, header.block_end)?;
        }
        Ok(covered)
    }

    /// Takes a frame whose header passed [`Self::check`].
    ///
    /// # Errors
    /// A damaged payload, an abort, or a commit that does not match; the handoff is over.
    pub fn frame(&mut self, header: &Header, payload: &[u8]) -> Result<Step, ReceiverError> {
        let result = self.frame_inner(header, payload);
        self.over |= result.is_err();
        result
    }

    fn frame_inner(&mut self, header: &Header, payload: &[u8]) -> Result<Step, ReceiverError> {
        self.check_inner(header)?;
        header.check_payload(payload)?;
        self.sequence_in = self.sequence_in.wrapping_add(1);
        match header.kind {
            Kind::Segment => Ok(self.segment(header, payload)),
            Kind::Beat => Ok(Step::Wait),
            Kind::Commit => self.commit(&parse(Kind::Commit, payload)?),
            _ => Err(ReceiverError::Aborted(
                parse::<crate::message::Abort>(Kind::Abort, payload)?.reason,
            )),
        }
    }

    fn segment(&mut self, header: &Header, payload: &[u8]) -> Step {
        self.manifest.add(header);
        let mut staged = match self.staged.take() {
            Some(staged) => staged,
            None => self.new_staged(header),
        };
        staged.fill(&self.contract, header, payload);
        if staged.layer_at < staged.layers.len() {
            self.staged = Some(staged);
            return Step::Wait;
        }
        match staged.block.section {
            Section::Full => self.next_token = staged.block.tokens.end,
            Section::Window => self.window_received = true,
        }
        self.unapplied += 1;
        Step::Apply(staged.block)
    }

    fn new_staged(&self, header: &Header) -> Staged {
        let section = Section::from_wire(header.section).unwrap_or(Section::Full);
        let layers = self.contract.section_layers(section);
        let planes = layers
            .iter()
            .flat_map(|&l| [(l, PlaneKind::Key), (l, PlaneKind::Value)])
            .map(|(layer, kind)| Plane {
                layer,
                kind,
                data: Vec::new(),
            })
            .collect();
        Staged {
            block: KvBlock {
                section,
                tokens: header.block_start..header.block_end,
                planes,
            },
            layers,
            layer_at: 0,
            token_at: header.block_start,
        }
    }

    fn commit(&mut self, theirs: &Commit) -> Result<Step, ReceiverError> {
        if !self.full_complete() {
            field("commit.tokens", self.next_token, self.kv_end)?;
        }
        if !self.window_received {
            return Err(wrong(
                "commit.window",
                "no window",
                "the window of the last tokens",
            ));
        }
        let ours = self.manifest.commit();
        field("commit.segments", theirs.segments, ours.segments)?;
        field("commit.raw_bytes", theirs.raw_bytes, ours.raw_bytes)?;
        field("commit.manifest", &theirs.manifest, &ours.manifest)?;
        self.all_sent = true;
        Ok(Step::AllSent)
    }

    /// Says that the oldest block handed out has been applied; gives the ack frame.
    #[must_use]
    pub fn applied(&mut self, section: Section, tokens: &std::ops::Range<u32>) -> Vec<u8> {
        self.unapplied = self.unapplied.saturating_sub(1);
        let mut header = Header::control(Kind::Ack, self.handoff, self.sequence_out);
        header.section = section.wire();
        header.token_start = tokens.start;
        header.token_end = tokens.end;
        self.sequence_out = self.sequence_out.wrapping_add(1);
        encode_frame(header, &[])
    }

    /// The committed frame, if everything has been sent and applied.
    #[must_use]
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        if !self.all_sent || self.unapplied > 0 || self.over {
            return None;
        }
        self.over = true;
        let header = Header::control(Kind::Committed, self.handoff, self.sequence_out);
        Some(encode_frame(header, &[]))
    }

    /// An abort frame with a reason. The handoff is over.
    #[must_use]
    pub fn abort(&mut self, reason: &str) -> Vec<u8> {
        self.over = true;
        abort_frame(self.handoff, self.sequence_out, reason)
    }

    /// True once the sender has committed: no further frame is expected.
    #[must_use]
    pub const fn all_sent(&self) -> bool {
        self.all_sent
    }

    /// Blocks handed out but not yet applied.
    #[must_use]
    pub const fn unapplied(&self) -> u32 {
        self.unapplied
    }

    /// Bytes of rows received so far.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.manifest.raw_bytes()
    }

    /// A sign of life while a block waits to be applied.
    #[must_use]
    pub fn beat(&mut self) -> Vec<u8> {
        let header = Header::control(Kind::Beat, self.handoff, self.sequence_out);
        self.sequence_out = self.sequence_out.wrapping_add(1);
        encode_frame(header, &[])
    }
}

impl Staged {
    fn fill(&mut self, contract: &Contract, header: &Header, payload: &[u8]) {
        let tokens = header.token_end - header.token_start;
        let mut at = 0;
        while at < payload.len() && self.layer_at < self.layers.len() {
            let layer = self.layers[self.layer_at];
            for (offset, kind) in [(0, PlaneKind::Key), (1, PlaneKind::Value)] {
                let bytes = plane_bytes(contract, layer, kind, tokens).unwrap_or(0);
                let end = (at + usize::try_from(bytes).unwrap_or(usize::MAX)).min(payload.len());
                let plane = &mut self.block.planes[self.layer_at * 2 + offset];
                plane.data.extend_from_slice(&payload[at..end]);
                at = end;
            }
            if header.token_end == self.block.tokens.end {
                self.layer_at += 1;
                self.token_at = self.block.tokens.start;
            } else {
                self.token_at = header.token_end;
            }
        }
    }
}

/// Compares a hello with what its ticket permits.
fn compare(hello: &Hello, expected: &Expectation) -> Result<(), Box<Refuse>> {
    for (name, text) in [
        ("ticket", &hello.ticket),
        ("token_digest", &hello.token_digest),
    ] {
        if text.len() > MAX_STRING {
            let message = format!("hello field `{name}` is longer than {MAX_STRING} bytes");
            return Err(refuse(RefusalCode::Hello, message));
        }
    }
    if let Err(e) = hello.contract.validate() {
        return Err(refuse(RefusalCode::Contract, e.to_string()));
    }
    let mut differences = expected.contract.differences(&hello.contract);
    if !differences.is_empty() {
        differences.truncate(MAX_DIFFERENCES);
        return Err(Box::new(Refuse {
            code: RefusalCode::Contract,
            message: join(&differences),
            differences,
        }));
    }
    let digest = blake3::Hash::from(token_digest(&expected.tokens)).to_hex();
    let (ours, theirs) = (expected.kv_end, hello.kv_end);
    if ours != theirs {
        let message = format!("hello field `kv_end` differs: ours {ours}, theirs {theirs}");
        return Err(refuse(RefusalCode::Tokens, message));
    }
    if hello.token_digest != digest.as_str() {
        let theirs = &hello.token_digest;
        let message = format!("hello field `token_digest` differs: ours {digest}, theirs {theirs}");
        return Err(refuse(RefusalCode::Tokens, message));
    }
    Ok(())
}

fn refuse(code: RefusalCode, message: String) -> Box<Refuse> {
    Box::new(Refuse {
        code,
        message,
        differences: Vec::new(),
    })
}

fn join(differences: &[Difference]) -> String {
    let all: Vec<String> = differences.iter().map(ToString::to_string).collect();
    all.join("; ")
}

fn wrong(field: &'static str, found: impl ToString, expected: impl ToString) -> ReceiverError {
    ReceiverError::Field {
        field,
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

fn field<T: PartialEq + ToString>(
    name: &'static str,
    found: T,
    expected: T,
) -> Result<(), ReceiverError> {
    if found == expected {
        Ok(())
    } else {
        Err(wrong(name, found, expected))
    }
}
