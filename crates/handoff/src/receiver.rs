//! The receiving end of a handoff: what may arrive when. No I/O.
//!
//! [`Receiver`] is the handoff: coverage, credit, order of applying, commit. Each connection has an
//! [`Inbound`], which checks the order of its frames and assembles its blocks, whose segments may be mixed; raw
//! rows are read straight into the block ([`Inbound::rows`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use self::hello::compare;
use crate::codec::{Codec, CodecError};
use crate::contract::{Contract, Section};
use crate::frame::{FrameError, Header, Kind, encode_frame};
use crate::limits::{MAX_BLOCK_BYTES, MAX_BLOCKS_IN_FLIGHT, MAX_CHUNK_TOKENS};
use crate::message::{
    Accept, Commit, Committed, Hello, MessageError, Refuse, abort_frame, control_frame,
};
use crate::plane::{KvBlock, PerSection};
use crate::policy::Quality;
use crate::receipt::{InvalidReceipt, Receipt};

mod hello;
mod inbound;

pub use self::hello::{Covers, Expectation, credit_for};
pub use self::inbound::Inbound;

/// Why a handoff failed at the receiving end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// A frame was damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A field breaks a rule.
    #[error("frame field `{field}`: found {found}, expected {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A message could not be read or built.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Rows could not be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A receipt beyond the limits.
    #[error(transparent)]
    Receipt(#[from] InvalidReceipt),
    /// The sender ended the handoff.
    #[error("aborted by the sender: {0}")]
    Aborted(String),
    /// A frame after the end.
    #[error("the handoff is over")]
    Over,
}

impl ReceiverError {
    /// True if the bytes were damaged on the way and no rule was broken: worth another connection.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Frame(_))
    }

    /// True if the sender's account of the whole is wrong, so that what came is not to be believed: a
    /// commit that is not one of these rows, or a receipt that is none.
    fn discredits_rows(&self) -> bool {
        match self {
            Self::Field { field, .. } => field.starts_with("commit."),
            Self::Message(error) => error.kind == Kind::Receipt,
            Self::Receipt(_) => true,
            _ => false,
        }
    }
}

/// What to answer to a hello.
#[derive(Clone)]
pub struct Terms {
    /// Secret for a new connection after this one.
    pub session: String,
    /// Bytes of blocks that may be on their way or wait to be applied.
    pub credit_bytes: u64,
    /// Id of the last complete page of the tokens that are held, hex.
    pub have_page: Option<String>,
}

/// A block of full-attention layers that has arrived whole and is next in order, or the window, joined.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its rows.
    pub block: KvBlock,
    /// The codec it came with; the lossiest one if there were several.
    pub codec: Codec,
    /// Bytes of its segments on the wire, with headers.
    pub wire_bytes: u64,
}

/// What a frame led to.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Nothing to do.
    Wait,
    /// Blocks are whole; see [`Receiver::next_block`] and [`Receiver::ack_window`].
    Block,
    /// The sender has committed; [`Receiver::finish`] confirms when all is applied.
    Commit,
    /// The sender's account of the last token.
    Receipt(Receipt),
}

/// The receiving end of one handoff.
#[derive(Debug)]
pub struct Receiver {
    contract: Arc<Contract>,
    handoff: u64,
    kv_end: u32,
    quality: Quality,
    credit_bytes: u64,
    /// Number of the next frame of ours.
    sequence_out: u32,
    /// Counts accepts: a connection of an earlier one is refused, not obeyed.
    generation: u32,
    /// End of what has come whole and in order: full blocks were given out for applying, those of the
    /// window joined.
    next: PerSection<u32>,
    /// End of the last block that was opened.
    opened_to: PerSection<u32>,
    /// What has come of the window, until all of it is given out behind the last full block.
    window: Option<Arrived>,
    /// Blocks of it that have not been acknowledged.
    kept: VecDeque<Range<u32>>,
    /// Blocks that are being assembled.
    open: usize,
    /// Bytes of those, and of those that wait or were given out and not applied, beside the window.
    staged_bytes: u64,
    ready: VecDeque<Arrived>,
    /// Given out and not yet applied; no bytes for the window, whose blocks have been acknowledged.
    unapplied: VecDeque<(Section, Range<u32>, u64)>,
    all_sent: bool,
    receipt: bool,
    confirmed: bool,
    /// Why it is over, if it is: the first reason.
    over: Option<String>,
    /// Why what came is not to be believed.
    discredited: Option<String>,
    raw_bytes: u64,
    wire_bytes: u64,
}

impl Receiver {
    /// Compares a hello with what its ticket permits; gives the end of the KV that is to come.
    ///
    /// # Errors
    /// The refusal to send, naming the field and both values.
    pub fn check_hello(hello: &Hello, expected: &Expectation) -> Result<u32, Box<Refuse>> {
        compare(hello, expected)
    }

    /// A receiver for a hello that passed [`Self::check_hello`], which gave `kv_end`, and its accept
    /// frame. The full-attention layers hold tokens `[0, have)` already.
    ///
    /// # Errors
    /// If the accept cannot be built.
    pub fn accept(
        expected: &Expectation,
        kv_end: u32,
        have: u32,
        terms: &Terms,
    ) -> Result<(Self, Vec<u8>), ReceiverError> {
        let contract = Arc::clone(&expected.contract);
        let mut receiver = Self {
            handoff: expected.handoff,
            kv_end,
            quality: expected.quality,
            credit_bytes: 0,
            sequence_out: 0,
            generation: 0,
            next: PerSection {
                full: have.min(kv_end),
                window: contract.section_start(Section::Window, kv_end),
            },
            opened_to: PerSection::default(),
            window: None,
            kept: VecDeque::new(),
            open: 0,
            staged_bytes: 0,
            ready: VecDeque::new(),
            unapplied: VecDeque::new(),
            all_sent: false,
            receipt: false,
            confirmed: false,
            over: None,
            discredited: None,
            raw_bytes: 0,
            wire_bytes: 0,
            contract,
        };
        let frame = receiver.resume(terms)?;
        Ok((receiver, frame))
    }

    /// The accept frame for a new connection. Everything that was given out must have been applied;
    /// what was incomplete counts as not sent.
    ///
    /// # Errors
    /// [`ReceiverError::Over`] after a rule was broken or the sender aborted.
    pub fn resume(&mut self, terms: &Terms) -> Result<Vec<u8>, ReceiverError> {
        if self.over.is_some() || !self.unapplied.is_empty() || !self.ready.is_empty() {
            return Err(ReceiverError::Over);
        }
        self.open = 0;
        self.staged_bytes = 0;
        self.opened_to = self.next;
        self.kept.clear();
        self.all_sent = false;
        self.receipt = false;
        self.confirmed = false;
        self.sequence_out = 1;
        self.generation += 1;
        self.credit_bytes = terms.credit_bytes;
        let accept = Accept {
            session: terms.session.clone(),
            credit_bytes: terms.credit_bytes,
            have_tokens: self.next.full,
            have_page: terms.have_page.clone(),
            have_window: self.have_window(),
        };
        Ok(control_frame(Kind::Accept, self.handoff, 0, &accept)?)
    }

    /// End of the tokens of each section that have come whole and in order.
    #[must_use]
    pub const fn next(&self) -> PerSection<u32> {
        self.next
    }

    /// What an accept says of the window.
    fn have_window(&self) -> u32 {
        let is_there = self.contract.has_window()
            && self.next.window > self.contract.window_start(self.kv_end);
        if is_there { self.next.window } else { 0 }
    }

    /// Ends the handoff: no frame is accepted any more.
    pub fn close(&mut self, reason: &str) {
        self.over.get_or_insert_with(|| reason.to_owned());
    }

    /// Why the handoff is over, after [`Self::close`], a broken rule or an abort: the first reason.
    #[must_use]
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// True if no block of a section is missing.
    fn is_complete(&self, section: Section) -> bool {
        // A model that has only window layers sends no full-attention blocks.
        self.next[section] == self.kv_end || !self.contract.has_section(section)
    }

    fn has_all_rows(&self) -> bool {
        Section::ALL.into_iter().all(|s| self.is_complete(s))
    }

    /// The next block to apply. Full blocks come in order, then the whole window.
    pub fn next_block(&mut self) -> Option<Arrived> {
        let arrived = self.ready.pop_front()?;
        let block = &arrived.block;
        let bytes = match block.section {
            Section::Full => block.bytes(),
            Section::Window => 0,
        };
        self.unapplied
            .push_back((block.section, block.tokens.clone(), bytes));
        Some(arrived)
    }

    /// Says that the oldest block given out has been applied; gives the ack frame of a full block.
    #[must_use]
    pub fn applied(&mut self) -> Option<Vec<u8>> {
        let (section, tokens, bytes) = self.unapplied.pop_front()?;
        self.staged_bytes = self.staged_bytes.saturating_sub(bytes);
        (section == Section::Full).then(|| self.ack(section, &tokens))
    }

    /// The ack frame of the oldest block of the window that has come and was not acknowledged.
    #[must_use]
    pub fn ack_window(&mut self) -> Option<Vec<u8>> {
        let tokens = self.kept.pop_front()?;
        Some(self.ack(Section::Window, &tokens))
    }

    fn ack(&mut self, section: Section, tokens: &Range<u32>) -> Vec<u8> {
        let mut header = Header::control(Kind::Ack, self.handoff, self.sequence_out);
        header.section = section.wire();
        header.token_start = tokens.start;
        header.token_end = tokens.end;
        self.sequence_out = self.sequence_out.wrapping_add(1);
        encode_frame(header, &[])
    }

    /// The committed frame, once everything has been sent and applied; `since_commit` is the time since the commit was read.
    #[must_use]
    pub fn finish(&mut self, since_commit: Duration) -> Option<Vec<u8>> {
        let open = !self.unapplied.is_empty() || !self.ready.is_empty() || !self.kept.is_empty();
        if !self.all_sent || self.confirmed || open || self.over.is_some() {
            return None;
        }
        self.confirmed = true;
        let sequence = self.sequence_out;
        self.sequence_out = sequence.wrapping_add(1);
        let apply_ms = u64::try_from(since_commit.as_millis()).unwrap_or(u64::MAX);
        // One number fits a frame.
        control_frame(
            Kind::Committed,
            self.handoff,
            sequence,
            &Committed { apply_ms },
        )
        .ok()
    }

    /// An abort frame with a reason. The handoff is over.
    #[must_use]
    pub fn abort(&mut self, reason: &str) -> Vec<u8> {
        self.close(reason);
        abort_frame(self.handoff, self.sequence_out, reason)
    }

    /// A sign of life, until [`Self::finish`] has confirmed.
    #[must_use]
    pub fn beat(&mut self) -> Option<Vec<u8>> {
        if self.confirmed || self.over.is_some() {
            return None;
        }
        let header = Header::control(Kind::Beat, self.handoff, self.sequence_out);
        self.sequence_out = self.sequence_out.wrapping_add(1);
        Some(encode_frame(header, &[]))
    }

    /// True once [`Self::finish`] has confirmed.
    #[must_use]
    pub const fn confirmed(&self) -> bool {
        self.confirmed
    }

    /// Blocks given out but not yet applied.
    #[must_use]
    pub fn unapplied(&self) -> usize {
        self.unapplied.len()
    }

    /// Bytes of blocks that are being assembled, wait, or were given out and not applied, beside the
    /// window.
    #[must_use]
    pub const fn staged_bytes(&self) -> u64 {
        self.staged_bytes
    }

    /// Bytes of rows received so far, decoded.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Bytes of segments received so far, with headers, as they were on the wire.
    #[must_use]
    pub const fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// The connection, after its hello.
    #[must_use]
    pub fn inbound(&self) -> Inbound {
        Inbound::new(self.generation)
    }

    /// Why nothing that came is to be believed; `None` as long as it is.
    #[must_use]
    pub fn discredited(&self) -> Option<&str> {
        self.discredited.as_deref()
    }

    /// One receipt may follow the commit.
    const fn awaits_receipt(&self) -> bool {
        self.all_sent && !self.receipt
    }

    /// A block may start: it lies where it should, and there is credit for it.
    fn may_open(&self, section: Section, header: &Header) -> Result<u64, ReceiverError> {
        let waiting = self.ready.len() + self.unapplied.len() + self.kept.len();
        if self.open + waiting >= MAX_BLOCKS_IN_FLIGHT {
            let limit = format!("at most {MAX_BLOCKS_IN_FLIGHT} unacknowledged blocks");
            return Err(wrong("block_start", "a block without credit", limit));
        }
        let (start, end) = (header.block_start, header.block_end);
        self.may_cover(section, start, end)?;
        let bytes = self.contract.block_bytes(section, &(start..end));
        if bytes > MAX_BLOCK_BYTES {
            let expected = format!("at most {MAX_BLOCK_BYTES} bytes");
            return Err(wrong("block_end", format!("{bytes} bytes"), expected));
        }
        if self.staged_bytes > 0 && self.staged_bytes.saturating_add(bytes) > self.credit_bytes {
            let expected = format!("at most {} bytes on their way", self.credit_bytes);
            return Err(wrong("block_start", "a block without credit", expected));
        }
        Ok(bytes)
    }

    /// A block begins where the last one of its section ends.
    fn may_cover(&self, section: Section, start: u32, end: u32) -> Result<(), ReceiverError> {
        if !self.contract.has_section(section) {
            let expected = "a section that the model has layers of";
            return Err(wrong("section", section.wire(), expected));
        }
        field("block_start", start, self.opened_to[section])?;
        let last = self.kv_end.min(start.saturating_add(MAX_CHUNK_TOKENS));
        if end <= start || end > last {
            let allowed = format!("{}..={last}", start.saturating_add(1));
            return Err(wrong("block_end", end, allowed));
        }
        Ok(())
    }

    fn open(&mut self, section: Section, end: u32, bytes: u64) {
        self.opened_to[section] = end;
        self.staged_bytes += bytes;
        self.open += 1;
    }

    /// A block is whole: it is given out, or joined. Those of a section become whole in order.
    fn whole(&mut self, arrived: Arrived) -> Result<Step, ReceiverError> {
        let section = arrived.block.section;
        let (start, next) = (arrived.block.tokens.start, self.next[section]);
        if start != next {
            let expected = format!("the rest of the block at {next} before that of a later one");
            return Err(wrong("block_start", start, expected));
        }
        self.open = self.open.saturating_sub(1);
        self.next[section] = arrived.block.tokens.end;
        match section {
            Section::Full => self.ready.push_back(arrived),
            Section::Window => self.keep_window(arrived),
        }
        if self.has_all_rows() {
            self.ready.extend(self.window.take());
        }
        Ok(Step::Block)
    }

    /// Rows of the window wait for the rest of it outside of the credit. A block is small enough to be copied
    /// while others wait for this handoff.
    fn keep_window(&mut self, part: Arrived) {
        let Arrived {
            block,
            codec,
            wire_bytes,
        } = part;
        let whole = self.contract.window_start(self.kv_end)..self.kv_end;
        let window = self.window.get_or_insert_with(|| Arrived {
            block: KvBlock::with_room(&self.contract, Section::Window, &whole),
            codec,
            wire_bytes: 0,
        });
        window.block.append(&block);
        window.wire_bytes += wire_bytes;
        if codec.wire() > window.codec.wire() {
            window.codec = codec;
        }
        self.staged_bytes = self.staged_bytes.saturating_sub(block.bytes());
        self.kept.push_back(block.tokens.clone());
    }

    /// Compares the commit, before which everything that it covers has come.
    fn commit(&mut self, theirs: &Commit, ours: &Commit) -> Result<Step, ReceiverError> {
        if !self.is_complete(Section::Full) {
            field("commit.tokens", self.next.full, self.kv_end)?;
        }
        if !self.is_complete(Section::Window) {
            field("commit.window", self.next.window, self.kv_end)?;
        }
        field("commit.segments", theirs.segments, ours.segments)?;
        field("commit.raw_bytes", theirs.raw_bytes, ours.raw_bytes)?;
        field("commit.manifest", &theirs.manifest, &ours.manifest)?;
        self.all_sent = true;
        Ok(Step::Commit)
    }
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
