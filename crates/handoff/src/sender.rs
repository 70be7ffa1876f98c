//! The sending end of a handoff: what may be sent when. No I/O.
//!
//! The pump that drives it keeps each block until it is acknowledged, so that it can be sent again
//! over a new connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Contract, InvalidContract, Section};
use crate::digest::token_digest;
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, encode_frame};
use crate::limits::{
    AHEAD_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS_IN_FLIGHT, MAX_CHUNK_TOKENS, MAX_CONTINUATION,
    MAX_CREDIT_BYTES, MAX_STRING, MAX_TOKENS, MAX_WINDOW_BYTES,
};
use crate::message::{
    Abort, Accept, Committed, Hello, Manifest, MessageError, Refuse, abort_frame, control_frame,
    control_payload, parse,
};
use crate::page::{PAGE_TOKENS, PageId};
use crate::plane::{InvalidBlock, KvBlock, PerSection};
use crate::receipt::Receipt;
use crate::segment::{CutError, Cutter, window_bytes};

/// Why a handoff failed at the sending end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SenderError {
    /// The receiver refused before any KV moved.
    #[error("refused by the receiver: {}", .0.message)]
    Refused(Refuse),
    /// The receiver ended the handoff.
    #[error("aborted by the receiver: {0}")]
    Aborted(String),
    /// A frame arrived that is not allowed now.
    #[error("unexpected {kind:?} frame from the receiver: {reason}")]
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
    /// A block cannot be cut or encoded.
    #[error(transparent)]
    Cut(#[from] CutError),
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

/// What a handoff is about.
#[derive(Clone)]
pub struct Offer {
    /// What the rows are.
    pub contract: Arc<Contract>,
    /// Id in the ticket.
    pub handoff: u64,
    /// The permission, hex.
    pub ticket: String,
    /// The prompt that the ticket is for, and behind it the continuation.
    pub tokens: Vec<u32>,
    /// How many of the last tokens are the continuation.
    pub continuation: u32,
    /// KV covers `[0, kv_end)`.
    pub kv_end: u32,
    /// Page chain of the tokens, to check what the receiver says it has; empty if their pages have no
    /// names that both ends agree on.
    pub pages: Vec<PageId>,
    /// [`crate::segment::step_bytes`] of a sender that opens blocks before they are computed, otherwise 0.
    pub step_bytes: u64,
    /// Tokens before this were computed in batches that every prompt has which begins with them.
    pub exact_end: u32,
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer")
            .field("handoff", &self.handoff)
            .field("n_tokens", &self.tokens.len())
            .field("kv_end", &self.kv_end)
            .finish_non_exhaustive()
    }
}

/// A block on its way.
#[derive(Debug)]
struct Unacked {
    section: Section,
    tokens: Range<u32>,
    bytes: u64,
}

/// The sending end of one handoff.
#[derive(Debug)]
pub struct Sender {
    offer: Offer,
    digest: String,
    state: SenderState,
    sequence_in: u32,
    accept: Accept,
    /// First token that has not been sent.
    next: PerSection<u32>,
    /// End of the tokens that were acknowledged: they are not kept and cannot be sent again.
    acked: PerSection<u32>,
    unacked: VecDeque<Unacked>,
    /// Blocks that have been opened and not closed.
    open: usize,
    raw_bytes: u64,
    applying: Duration,
}

impl Sender {
    /// A sender and its hello frame.
    ///
    /// # Errors
    /// If the contract is invalid, or the offer is out of bounds.
    pub fn new(offer: Offer) -> Result<(Self, Vec<u8>), SenderError> {
        offer.contract.validate()?;
        let (count, kv_end) = (offer.tokens.len(), offer.kv_end);
        if kv_end > MAX_TOKENS || kv_end as usize > count {
            return not_allowed(format!(
                "kv_end {kv_end} with {count} tokens and a limit of {MAX_TOKENS}"
            ));
        }
        let continuation = offer.continuation as usize;
        if continuation > MAX_CONTINUATION || continuation > count {
            return not_allowed(format!(
                "a continuation of {continuation} in {count} tokens, limit {MAX_CONTINUATION}"
            ));
        }
        let window = window_bytes(&offer.contract, kv_end);
        if window > MAX_WINDOW_BYTES {
            return not_allowed(format!(
                "a window of {window} bytes, limit {MAX_WINDOW_BYTES}"
            ));
        }
        let digest = blake3::Hash::from(token_digest(&offer.tokens)).to_hex();
        let start = PerSection {
            full: offer.contract.section_start(Section::Full, kv_end),
            window: offer.contract.section_start(Section::Window, kv_end),
        };
        let mut sender = Self {
            offer,
            digest: digest.to_string(),
            state: SenderState::AwaitAccept,
            sequence_in: 0,
            accept: Accept {
                session: String::new(),
                credit_bytes: 0,
                have_tokens: 0,
                have_page: None,
                have_window: 0,
            },
            next: start,
            acked: start,
            unacked: VecDeque::new(),
            open: 0,
            raw_bytes: 0,
            applying: Duration::ZERO,
        };
        let ticket = sender.offer.ticket.clone();
        let hello = sender.hello(ticket)?;
        Ok((sender, hello))
    }

    fn hello(&mut self, ticket: String) -> Result<Vec<u8>, SenderError> {
        let prompt = self.offer.tokens.len() - self.offer.continuation as usize;
        let hello = Hello {
            ticket,
            contract: Contract::clone(&self.offer.contract),
            kv_end: self.offer.kv_end,
            continuation: self.offer.tokens[prompt..].to_vec(),
            token_digest: self.digest.clone(),
            step_bytes: self.offer.step_bytes,
            exact_end: self.offer.exact_end,
        };
        Ok(control_frame(Kind::Hello, self.offer.handoff, 0, &hello)?)
    }

    /// The hello for a new connection after the last one broke. What had been sent and not
    /// acknowledged counts as not sent.
    ///
    /// # Errors
    /// [`SenderError::NotAllowed`] before the first accept, and when the handoff is over.
    pub fn reconnect(&mut self) -> Result<Vec<u8>, SenderError> {
        let over = matches!(self.state, SenderState::Failed | SenderState::Committed);
        if over || self.accept.session.is_empty() {
            return not_allowed(format!("to go on in state {:?}", self.state));
        }
        let hello = self.hello(self.accept.session.clone())?;
        self.state = SenderState::AwaitAccept;
        self.sequence_in = 0;
        self.unacked.clear();
        self.open = 0;
        Ok(hello)
    }

    /// What the rows are.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.offer.contract
    }

    /// Where the handoff stands.
    #[must_use]
    pub const fn state(&self) -> SenderState {
        self.state
    }

    /// What the receiver said last.
    #[must_use]
    pub const fn accepted(&self) -> &Accept {
        &self.accept
    }

    /// True if a block of this many bytes may be sent before an acknowledgement.
    #[must_use]
    pub fn may_send(&self, bytes: u64) -> bool {
        self.has_room(bytes, self.accept.credit_bytes.min(AHEAD_BYTES))
    }

    /// The same of one that is still to be computed.
    #[must_use]
    pub fn may_stream(&self, bytes: u64) -> bool {
        self.has_room(bytes, self.accept.credit_bytes)
    }

    fn has_room(&self, bytes: u64, credit: u64) -> bool {
        let in_flight: u64 = self.unacked.iter().map(|u| u.bytes).sum();
        self.state == SenderState::Streaming
            && self.unacked.len() < MAX_BLOCKS_IN_FLIGHT
            && (self.unacked.is_empty() || in_flight.saturating_add(bytes) <= credit)
    }

    /// Blocks sent but not yet acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.unacked.len()
    }

    /// First token of each section that has not been sent; the receiver has those before.
    #[must_use]
    pub const fn next(&self) -> PerSection<u32> {
        self.next
    }

    /// End of the tokens of each section that the receiver has.
    #[must_use]
    pub const fn acknowledged(&self) -> PerSection<u32> {
        self.acked
    }

    /// True if all rows of a section have been sent, or there are none.
    #[must_use]
    pub fn is_sent(&self, section: Section) -> bool {
        self.next[section] == self.offer.kv_end || !self.offer.contract.has_section(section)
    }

    /// Bytes of rows sent so far, with what was sent twice.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Time that the receiver has needed to apply what had come when it read the commit; known once it has confirmed.
    #[must_use]
    pub const fn applying(&self) -> Duration {
        self.applying
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
        // A damaged frame ends the connection, not the handoff.
        if result
            .as_ref()
            .is_err_and(|e| !matches!(e, SenderError::Frame(_)))
        {
            self.state = SenderState::Failed;
        }
        result
    }

    fn receive_inner(&mut self, header: &Header, payload: &[u8]) -> Result<(), SenderError> {
        if !header.kind.is_answer() {
            return Err(unexpected(header, "no receiver sends it"));
        }
        header.check_payload(payload)?;
        // The receiver does not know the handoff of a hello that it could not read.
        let unread = header.kind == Kind::Refuse && header.handoff == 0;
        if header.handoff != self.offer.handoff && !unread {
            return Err(unexpected(header, "handoff id differs"));
        }
        // A refusal or an abort ends the handoff whatever came before it.
        let ends = matches!(header.kind, Kind::Refuse | Kind::Abort);
        if !ends && header.sequence != self.sequence_in {
            return Err(unexpected(header, "out of sequence"));
        }
        if (header.kind, self.state) == (Kind::Beat, SenderState::AwaitAccept) {
            // It does not count.
            return Ok(());
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
                self.accepts(header, parse(Kind::Accept, payload)?)
            }
            (Kind::Ack, SenderState::Streaming | SenderState::Committing) => self.acks(header),
            (Kind::Beat, SenderState::Streaming | SenderState::Committing) => Ok(()),
            (Kind::Committed, SenderState::Committing) if self.unacked.is_empty() => {
                let committed: Committed = parse(Kind::Committed, payload)?;
                self.applying = Duration::from_millis(committed.apply_ms);
                self.state = SenderState::Committed;
                Ok(())
            }
            _ => Err(unexpected(header, "not allowed in this state")),
        }
    }

    fn accepts(&mut self, header: &Header, accept: Accept) -> Result<(), SenderError> {
        let kv_end = self.offer.kv_end;
        if accept.credit_bytes == 0 {
            return Err(unexpected(header, "`credit_bytes` is zero"));
        }
        if !(1..=MAX_STRING).contains(&accept.session.len()) {
            return Err(unexpected(header, "`session` is empty or too long"));
        }
        if accept.have_tokens > kv_end {
            return Err(unexpected(header, "`have_tokens` lies beyond the handoff"));
        }
        // What was acknowledged has not been kept.
        if accept.have_tokens < self.acked.full {
            return Err(unexpected(
                header,
                "`have_tokens` lies before what was acknowledged",
            ));
        }
        let window = self.window_at(header, accept.have_window)?;
        let ours = (accept.have_tokens / PAGE_TOKENS)
            .checked_sub(1)
            .and_then(|last| self.offer.pages.get(last as usize));
        if ours.map(ToString::to_string) != accept.have_page {
            return Err(unexpected(
                header,
                "`have_page` is not the page of these tokens",
            ));
        }
        self.next = PerSection {
            full: accept.have_tokens,
            window,
        };
        self.acked = self.next;
        self.accept = accept;
        self.accept.credit_bytes = self.accept.credit_bytes.min(MAX_CREDIT_BYTES);
        self.state = SenderState::Streaming;
        Ok(())
    }

    /// From where on the receiver lacks the window, by what its accept says.
    fn window_at(&self, header: &Header, have: u32) -> Result<u32, SenderError> {
        let (contract, kv_end) = (&self.offer.contract, self.offer.kv_end);
        let start = contract.window_start(kv_end);
        if have != 0 && (!contract.has_window() || have <= start || have > kv_end) {
            return Err(unexpected(
                header,
                "`have_window` lies outside of the window",
            ));
        }
        let window = have.max(start);
        if window < self.acked.window {
            return Err(unexpected(
                header,
                "`have_window` lies before what was acknowledged",
            ));
        }
        Ok(window)
    }

    fn acks(&mut self, header: &Header) -> Result<(), SenderError> {
        let section = Section::from_wire(header.section);
        let oldest = self.unacked.iter().position(|u| Some(u.section) == section);
        let tokens = header.token_start..header.token_end;
        match oldest.and_then(|at| Some((at, self.unacked.get(at)?))) {
            Some((at, block)) if block.tokens == tokens => {
                self.acked[block.section] = tokens.end;
                self.unacked.remove(at);
                Ok(())
            }
            _ => {
                let reason = "does not match the oldest unacknowledged block of its section";
                Err(unexpected(header, reason))
            }
        }
    }

    /// The numbering of a connection whose first frame has been written.
    #[must_use]
    pub fn outbound(&self) -> Outbound {
        Outbound {
            handoff: self.offer.handoff,
            sequence: 1,
            manifest: Manifest::default(),
        }
    }

    /// Opens a block, and gives what cuts and encodes it. Blocks of a section must be contiguous.
    ///
    /// # Errors
    /// If [`Self::may_send`] is false, or if the block does not fit the contract, exceeds a limit
    /// or does not continue where the last one ended. Nothing is changed then.
    pub fn open(&mut self, block: &KvBlock) -> Result<Cutter, SenderError> {
        block.validate(&self.offer.contract)?;
        let (section, tokens) = (block.section, block.tokens.clone());
        let bytes = block.bytes();
        self.admit(section, &tokens, bytes, self.may_send(bytes))?;
        let contract = Arc::clone(&self.offer.contract);
        Ok(Cutter::new(contract, self.offer.handoff, section, tokens))
    }

    /// Opens a block whose rows are still to be computed, like [`Self::open`]; what cuts it takes its planes
    /// as they come, and checks them.
    ///
    /// # Errors
    /// If [`Self::may_stream`] is false, or if the block exceeds a limit or does not continue where the last
    /// one ended. Nothing is changed then.
    pub fn open_streamed(
        &mut self,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<Cutter, SenderError> {
        let contract = Arc::clone(&self.offer.contract);
        let bytes = contract.block_bytes(section, &tokens);
        self.admit(section, &tokens, bytes, self.may_stream(bytes))?;
        let handoff = self.offer.handoff;
        Ok(Cutter::streamed(contract, handoff, section, tokens, bytes))
    }

    /// A block may be opened now, and is.
    fn admit(
        &mut self,
        section: Section,
        tokens: &Range<u32>,
        bytes: u64,
        has_room: bool,
    ) -> Result<(), SenderError> {
        if !has_room {
            let (state, unacked) = (self.state, self.unacked.len());
            return not_allowed(format!(
                "a block in state {state:?}, {unacked} unacknowledged"
            ));
        }
        self.check_range(section, tokens, bytes)?;
        self.next[section] = tokens.end;
        self.unacked.push_back(Unacked {
            section,
            tokens: tokens.clone(),
            bytes,
        });
        self.open += 1;
        Ok(())
    }

    fn check_range(
        &self,
        section: Section,
        tokens: &Range<u32>,
        bytes: u64,
    ) -> Result<(), SenderError> {
        if tokens.is_empty() || !self.offer.contract.has_section(section) {
            return not_allowed("an empty block".into());
        }
        let expected = self.next[section];
        if tokens.start != expected {
            return Err(SenderError::Gap {
                found: tokens.start,
                expected,
            });
        }
        let (end, kv_end) = (tokens.end, self.offer.kv_end);
        if end > kv_end {
            return not_allowed(format!("a block that ends at token {end} of {kv_end}"));
        }
        let count = tokens.len();
        if count > MAX_CHUNK_TOKENS as usize {
            return not_allowed(format!("{count} tokens, limit {MAX_CHUNK_TOKENS}"));
        }
        if bytes > MAX_BLOCK_BYTES {
            return not_allowed(format!("{bytes} bytes, limit {MAX_BLOCK_BYTES}"));
        }
        Ok(())
    }

    /// All segments of a block of so many bytes have been written.
    pub const fn close(&mut self, raw_bytes: u64) {
        self.raw_bytes += raw_bytes;
        self.open = self.open.saturating_sub(1);
    }

    /// The commit, once all blocks are sent.
    ///
    /// # Errors
    /// [`SenderError::Gap`] if tokens of a section are missing; [`SenderError::NotAllowed`] before the
    /// accept, with a block that is not closed, or a second time.
    pub fn commit(&mut self) -> Result<Outgoing, SenderError> {
        if self.state != SenderState::Streaming {
            return not_allowed(format!("a commit in state {:?}", self.state));
        }
        for section in Section::ALL {
            if !self.is_sent(section) {
                return Err(SenderError::Gap {
                    found: self.offer.kv_end,
                    expected: self.next[section],
                });
            }
        }
        if self.open > 0 {
            return not_allowed("a commit with a block that is still being written".into());
        }
        self.state = SenderState::Committing;
        Ok(Outgoing(Content::Commit))
    }

    /// What was computed for the last token, after the commit.
    ///
    /// # Errors
    /// [`SenderError::NotAllowed`] before the commit.
    pub fn receipt(&self, receipt: &Receipt) -> Result<Outgoing, SenderError> {
        if !matches!(self.state, SenderState::Committing | SenderState::Committed) {
            return not_allowed(format!("a receipt in state {:?}", self.state));
        }
        let payload = control_payload(Kind::Receipt, receipt)?;
        Ok(Outgoing(Content::Receipt(payload)))
    }

    /// An abort frame with a reason. The handoff is over.
    #[must_use]
    pub fn abort(&mut self, reason: &str) -> Vec<u8> {
        self.state = SenderState::Failed;
        // Any number will do.
        abort_frame(self.offer.handoff, 0, reason)
    }
}

/// A control frame that has no number yet.
#[derive(Clone, PartialEq, Eq)]
pub struct Outgoing(Content);

#[derive(Clone, PartialEq, Eq)]
enum Content {
    Beat,
    /// Of what its connection has carried by then.
    Commit,
    Receipt(Vec<u8>),
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Content::Beat => "Outgoing(Beat)",
            Content::Commit => "Outgoing(Commit)",
            Content::Receipt(_) => "Outgoing(Receipt)",
        })
    }
}

impl Outgoing {
    /// A sign of life.
    #[must_use]
    pub const fn beat() -> Self {
        Self(Content::Beat)
    }
}

/// Numbers the frames of one connection, in the order in which they are written, and keeps its manifest.
#[derive(Debug)]
pub struct Outbound {
    handoff: u64,
    sequence: u32,
    manifest: Manifest,
}

impl Outbound {
    /// The header bytes of a segment as the next frame.
    pub fn segment(&mut self, header: &Header) -> [u8; HEADER_BYTES] {
        self.manifest.add(header);
        let header = Header {
            sequence: self.next(),
            ..*header
        };
        header.encode()
    }

    /// A control frame as the next frame.
    pub fn control(&mut self, message: &Outgoing) -> Vec<u8> {
        let (kind, payload) = match &message.0 {
            Content::Beat => (Kind::Beat, Vec::new()),
            Content::Commit => {
                // Its three fields always fit.
                let commit = control_payload(Kind::Commit, &self.manifest.commit());
                (Kind::Commit, commit.unwrap_or_default())
            }
            Content::Receipt(payload) => (Kind::Receipt, payload.clone()),
        };
        let header = Header::control(kind, self.handoff, self.next());
        encode_frame(header, &payload)
    }

    const fn next(&mut self) -> u32 {
        let number = self.sequence;
        self.sequence = number.wrapping_add(1);
        number
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
