//! The owner of a handoff: queues what the engine gives, opens blocks, hears the receiver, commits.

mod reach;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_handoff::codec::Codec;
use tandem_handoff::frame::Header;
use tandem_handoff::receipt::Receipt;
use tandem_handoff::segment::block_tokens;
use tandem_handoff::sender::{Outgoing, Sender, SenderState};
use tandem_handoff::{Contract, KvBlock, PerSection, Section};
use tandem_proto::{NodeError, PrefillEvent};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, sleep_until, timeout};

use super::connection::Connection;
use super::growth::Grown;
use super::input::Inputs;
use super::links::Codecs;
use super::stream::{Order, What};
use super::{Fault, Kept, Report, Route, Sending, broken, ended_early};
use crate::job::{Begun, Computed, Growing, Input};
use crate::limits::{GOODBYE, RECONNECT_PAUSE};
use crate::wire::WireError;

/// True once the receiver has been told over its last connection that this is all.
const fn has_committed(sender: &Sender) -> bool {
    matches!(
        sender.state(),
        SenderState::Committing | SenderState::Committed
    )
}

/// Keeps the next block.
async fn keep_next(sending: &mut Option<Sending>) {
    if let Some(Sending { kept, .. }) = sending {
        kept.next().await;
    }
}

/// Time during which KV was written but not acknowledged.
#[derive(Debug, Default)]
pub(super) struct TransferClock {
    since: Option<Instant>,
    total_ms: f64,
}

impl TransferClock {
    fn sent(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn all_acknowledged(&mut self) {
        if let Some(since) = self.since.take() {
            self.total_ms += since.elapsed().as_secs_f64() * 1e3;
        }
    }
}

/// The last chunk, when it has come.
pub(super) struct Last {
    computed: Instant,
}

/// What the engine computed for the last token.
pub(super) enum ReceiptState {
    /// May come.
    Open,
    /// Has come.
    Here(Box<Receipt>),
    /// Sent over the connection that is open now; a new one needs it again.
    Sent(Box<Receipt>),
    /// None was to come.
    None,
    /// None will come: the engine has failed.
    Lost,
}

/// A block that has not been opened.
pub(super) enum Queued {
    Whole(Arc<KvBlock>),
    /// It is being computed.
    Growing(Growing),
}

impl Queued {
    const fn is_growing(&self) -> bool {
        matches!(self, Self::Growing(_))
    }

    fn bytes(&self, contract: &Contract) -> u64 {
        match self {
            Self::Whole(block) => block.bytes(),
            Self::Growing(growing) => contract.block_bytes(growing.section, &growing.tokens),
        }
    }
}

/// A block that has been opened and not acknowledged.
pub(super) struct Sent {
    section: Section,
    tokens: Range<u32>,
    /// True once some of it has been given to the connection.
    has_begun: bool,
    /// All of it, once it is computed.
    block: Option<Arc<KvBlock>>,
}

pub(super) struct Pump {
    pub(super) sender: Sender,
    pub(super) connection: Option<Connection>,
    /// Before the next attempt at a new connection.
    pub(super) pause: Duration,
    /// What the receiver had when a connection was opened the last time.
    pub(super) had: PerSection<u32>,
    /// Blocks that have not been opened.
    pub(super) queue: VecDeque<Queued>,
    /// Chunks that have been begun.
    pub(super) chunks: u64,
    /// The chunk that is being computed, whose blocks have been queued.
    pub(super) begun: Option<oneshot::Receiver<Computed>>,
    /// True once the last chunk has been begun.
    pub(super) last_begun: bool,
    /// End of the blocks of each section that were queued, or that the receiver has.
    pub(super) queued_to: PerSection<u32>,
    /// Blocks that have been opened and not acknowledged.
    pub(super) sent: VecDeque<Sent>,
    pub(super) last: Option<Last>,
    /// When the receiver answered the first hello.
    pub(super) accepted: Option<Instant>,
    /// When it said that it has everything.
    pub(super) committed: Option<Instant>,
    pub(super) receipt: ReceiptState,
    /// True if the receiver may have everything and have said so, without being heard.
    pub(super) in_doubt: bool,
    pub(super) clock: TransferClock,
    pub(super) codecs: Codecs,
    /// End of the tokens whose rows the engine had.
    pub(super) held_to: u32,
    pub(super) report: Report,
    pub(super) route: Route,
    pub(super) events: mpsc::Sender<PrefillEvent>,
    pub(super) sending: Option<Sending>,
}

impl Pump {
    pub(super) async fn run(
        &mut self,
        hello: &[u8],
        mut input: Inputs,
    ) -> Result<Report, NodeError> {
        match self.connect(hello, None).await {
            Ok(()) => {}
            Err(Fault::Over(e)) => return Err(e),
            // Without an answer to the first hello there is nothing to go on with.
            Err(Fault::Broken(reason)) if self.sender.accepted().session.is_empty() => {
                return Err(broken(reason));
            }
            Err(Fault::Broken(reason)) => self.reconnect(&reason).await?,
        }
        self.report.have_tokens = self.sender.accepted().have_tokens;
        self.accepted = Some(Instant::now());
        self.tell(PrefillEvent::Accepted).await;
        loop {
            match self.step(&mut input).await {
                Ok(false) => {}
                Ok(true) => return self.ended().await,
                Err(Fault::Over(e)) => return Err(e),
                Err(Fault::Broken(reason)) => {
                    self.hear_out().await?;
                    // The receiver has everything; only the receipt is lost.
                    if self.sender.state() == SenderState::Committed {
                        tracing::info!(%reason, "the receiver left before the receipt");
                        return self.ended().await;
                    }
                    self.reconnect(&reason).await?;
                }
            }
        }
    }

    async fn tell(&self, event: PrefillEvent) {
        let _ = self.events.send(event).await;
    }

    /// What was opened and not acknowledged counts as not sent; what the receiver has is dropped. What is still being
    /// computed comes with its chunk.
    pub(super) fn requeue(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let queued = std::mem::take(&mut self.queue);
        self.queued_to = self.sender.next();
        // A connection that is taken and has brought nothing is no better than none.
        if std::mem::replace(&mut self.had, self.queued_to) != self.queued_to {
            self.pause = RECONNECT_PAUSE;
        }
        let sent = sent.into_iter().filter_map(|s| s.block);
        for block in sent.map(Queued::Whole).chain(queued) {
            match block {
                Queued::Whole(block) => self.push(block),
                Queued::Growing(growing) => self.push_growing(growing),
            }
        }
        self.receipt = match std::mem::replace(&mut self.receipt, ReceiptState::None) {
            ReceiptState::Sent(receipt) => ReceiptState::Here(receipt),
            other => other,
        };
        self.clock.all_acknowledged();
    }

    /// Queues what the receiver lacks of a block, and what was not queued before: an engine that
    /// cannot use its pages after all computes from the start.
    fn push(&mut self, block: Arc<KvBlock>) {
        let is_it = |s: &Sent| s.section == block.section && s.tokens == block.tokens;
        if let Some(at) = self.sent.iter().position(is_it) {
            // It has grown.
            self.sent[at].block = Some(block);
            return;
        }
        let next = self.queued_to[block.section];
        if block.tokens.end <= next {
            return;
        }
        self.queued_to[block.section] = block.tokens.end;
        let block = if block.tokens.start < next {
            Arc::new(block.part(next..block.tokens.end))
        } else {
            block
        };
        // Pages, and windows of pages, are whole in memory, however large they are.
        let step = block_tokens(self.sender.contract(), block.section);
        if block.len() <= step {
            return self.queue.push_back(Queued::Whole(block));
        }
        let starts = block.tokens.clone().step_by(step as usize);
        let parts = starts.map(|start| block.part(start..start.saturating_add(step)));
        self.queue
            .extend(parts.map(|part| Queued::Whole(Arc::new(part))));
    }

    /// Queues a block that is being computed, if the receiver lacks all of it. Otherwise what it lacks comes with the
    /// chunk.
    fn push_growing(&mut self, growing: Growing) {
        let next = &mut self.queued_to[growing.section];
        if growing.tokens.start == *next {
            *next = growing.tokens.end;
            self.queue.push_back(Queued::Growing(growing));
        }
    }

    /// Does what can be done now, then waits for one thing to happen. True if nothing is left to do.
    async fn step(&mut self, input: &mut Inputs) -> Result<bool, Fault> {
        self.open_blocks()?;
        // What is queued was given whole, or its writer will say that it was not. The rest would have come with the chunk.
        // (Without overlap engines are not asked for layers, so nothing is queued here that waits for the last chunk.)
        let is_lost = matches!(self.receipt, ReceiptState::Lost);
        if is_lost && self.last.is_none() && self.queue.is_empty() && !self.all_opened() {
            return Err(Fault::Over(ended_early()));
        }
        self.commit()?;
        if self.sender.state() == SenderState::Committed {
            self.committed.get_or_insert_with(Instant::now);
            let is_told = !matches!(self.receipt, ReceiptState::Open | ReceiptState::Here(_));
            // Nobody listens for a receipt any more once the connection has ended.
            if (is_told && self.idle()) || self.connection.as_ref().is_none_or(|c| c.has_ended) {
                return Ok(true);
            }
        }
        self.send_receipt()?;
        // So a chunk is taken only when none of its blocks is queued to grow: those that have been opened get what has
        // been computed by it, and the others come with it.
        let kept = self.sending.as_ref().map(|s| &s.kept);
        let is_behind = kept.is_some_and(Kept::is_behind);
        // The next chunk waits until pages are made of the last one; of an engine that gives layers it has yet to begin.
        let waits_for_pages = is_behind && (self.begun.is_some() || self.chunks == 0);
        let wants_input = (self.queue.is_empty() || self.waits_for_all())
            && matches!(self.receipt, ReceiptState::Open)
            && !waits_for_pages;
        let silence = self.route.limits.handoff_silence;
        let Some(connection) = &mut self.connection else {
            return Err(Fault::Broken("not connected".into()));
        };
        let over = self.sender.state() == SenderState::Committed;
        // All blocks have been written. Whether they arrived is told by what is read.
        let has_committed = has_committed(&self.sender);
        let patience = silence.saturating_sub(connection.activity.idle());
        tokio::select! {
            frame = connection.incoming.recv() => {
                if over {
                    // The receiver waits for the receipt and says nothing more; if it does, or leaves, nobody needs it.
                    connection.has_ended = true;
                } else {
                    let (header, payload) = frame.ok_or(WireError::Closed)??;
                    self.received(&header, &payload)?;
                }
            }
            written = connection.written.recv() => {
                match written.ok_or(WireError::Closed)? {
                    Ok(written) => self.written(written),
                    Err(Fault::Broken(reason)) if has_committed => {
                        tracing::debug!(%reason, "a connection ended after the commit");
                        connection.ended();
                    }
                    Err(fault) => return Err(fault),
                }
            }
            given = input.next(&mut self.begun), if wants_input => self.take(given)?,
            () = keep_next(&mut self.sending), if is_behind => {}
            () = sleep_until(connection.beaten + self.route.limits.handoff_beat) => self.beat(),
            // The receiver beats also while it has nothing to acknowledge.
            () = sleep(patience), if !over => {
                if connection.activity.idle() >= silence {
                    return Err(WireError::Silent(silence).into());
                }
            }
        }
        Ok(false)
    }

    /// The account of a handoff that the receiver has confirmed. What is still being computed behind the last layer's rows
    /// is waited for: this node keeps pages of it.
    ///
    /// # Errors
    /// If the engine has failed; then the receiver is told, and waits for no receipt.
    async fn ended(&mut self) -> Result<Report, NodeError> {
        if let Some(begun) = self.begun.take() {
            match begun.await {
                Ok(chunk) => self.computed(&chunk),
                Err(_) => self.receipt = ReceiptState::Lost,
            }
        }
        match self.receipt {
            ReceiptState::Lost => Err(ended_early()),
            _ => Ok(self.reported()),
        }
    }

    /// Commits once everything is written, which may be before the engine is done with the last layer of the last chunk: the
    /// decode node does not wait for that.
    fn commit(&mut self) -> Result<(), Fault> {
        let is_last = self.last.is_some() || (self.last_begun && self.all_opened());
        let all_written = self.queue.is_empty() && is_last && self.idle();
        if all_written && self.sender.state() == SenderState::Streaming {
            let commit = self.sender.commit()?;
            self.in_doubt = true;
            self.control(commit)?;
        }
        Ok(())
    }

    /// True if the receiver has, or gets from blocks that have been opened, all rows.
    pub(super) fn all_opened(&self) -> bool {
        Section::ALL.into_iter().all(|s| self.sender.is_sent(s))
    }

    /// True if the writer has nothing left.
    fn idle(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_idle)
    }

    /// True while nothing may be sent because the last chunk has not come.
    fn waits_for_all(&self) -> bool {
        !self.route.overlap && self.last.is_none()
    }

    fn open_blocks(&mut self) -> Result<(), Fault> {
        if self.waits_for_all() {
            return Ok(());
        }
        while self.may_open_the_next()
            && let Some(next) = self.queue.pop_front()
        {
            self.open(next)?;
        }
        Ok(())
    }

    /// True if the writer has room for the next block, and the receiver.
    fn may_open_the_next(&self) -> bool {
        let Some((next, connection)) = self.queue.front().zip(self.connection.as_ref()) else {
            return false;
        };
        let bytes = next.bytes(self.sender.contract());
        let has_credit = match next {
            Queued::Whole(_) => self.sender.may_send(bytes),
            Queued::Growing(_) => self.sender.may_grow(bytes),
        };
        has_credit && connection.has_room(next.is_growing())
    }

    fn open(&mut self, next: Queued) -> Result<(), Fault> {
        let codec = self.codec(&next);
        let sent = |section, tokens, block: Option<Arc<KvBlock>>| Sent {
            section,
            tokens,
            has_begun: block.is_some(),
            block,
        };
        let (order, sent) = match next {
            Queued::Whole(block) => {
                let cutter = Box::new(self.sender.open(&block)?);
                let (section, tokens) = (block.section, block.tokens.clone());
                let sent = sent(section, tokens, Some(Arc::clone(&block)));
                let order = Order::Block {
                    block,
                    cutter,
                    codec,
                };
                (order, sent)
            }
            Queued::Growing(growing) => {
                let (section, tokens) = (growing.section, growing.tokens.clone());
                let contract = self.sender.contract();
                let raw_bytes = contract.block_bytes(section, &tokens);
                let planes = 2 * contract.section_layers(section).len();
                let cutter = Box::new(self.sender.open_growing(section, tokens.clone())?);
                let order = Order::Grow(Box::new(Grown {
                    growing,
                    cutter,
                    codec,
                    raw_bytes,
                    planes,
                }));
                (order, sent(section, tokens, None))
            }
        };
        let has_begun = sent.has_begun;
        self.sent.push_back(sent);
        self.give(order)?;
        self.report.is_mixed |= self.report.codec.is_some_and(|other| other != codec);
        self.report.codec = self.report.codec.max(Some(codec));
        if has_begun {
            self.clock.sent();
        }
        Ok(())
    }

    fn codec(&self, next: &Queued) -> Codec {
        let is_held = |block: &KvBlock| block.tokens.end <= self.held_to;
        match next {
            Queued::Whole(block) if is_held(block) => self.codecs.held,
            _ => self.codecs.computed,
        }
    }

    fn written(&mut self, written: What) {
        if let Some(connection) = &mut self.connection {
            connection.done(&written);
        }
        let done = match written {
            What::Control => return,
            What::Begun(place) => {
                let is_it = |s: &&mut Sent| (s.section, s.tokens.start) == place;
                if let Some(sent) = self.sent.iter_mut().find(is_it) {
                    sent.has_begun = true;
                    self.clock.sent();
                }
                return;
            }
            What::Block(done) => done,
        };
        self.report.wire_bytes += done.wire_bytes;
        self.report.encode_ms += done.encoding.as_secs_f64() * 1e3;
        self.sender.close(done.raw_bytes);
    }

    pub(super) fn received(&mut self, header: &Header, payload: &[u8]) -> Result<(), Fault> {
        let before = self.sender.in_flight();
        self.sender.receive(header, payload)?;
        if self.sender.in_flight() < before {
            let section = Section::from_wire(header.section);
            let is_acked = |sent: &Sent| Some(sent.section) == section;
            let at = self.sent.iter().position(is_acked);
            at.and_then(|at| self.sent.remove(at));
        }
        if !self.sent.iter().any(|s| s.has_begun) {
            self.clock.all_acknowledged();
        }
        Ok(())
    }

    /// Takes what the engine gives.
    fn take(&mut self, given: Option<Input>) -> Result<(), Fault> {
        match given {
            Some(Input::Begun(Begun {
                blocks,
                chunk,
                last,
            })) => {
                self.begun = Some(chunk);
                self.last_begun = last;
                self.chunks += 1;
                for block in blocks {
                    if self.route.overlap {
                        self.push_growing(block);
                    }
                }
                self.open_blocks()
            }
            Some(Input::Chunk(chunk)) => {
                self.computed(&chunk);
                let tokens = chunk.tokens;
                // All of them first: opening one may find the connection broken.
                for block in &chunk.blocks {
                    self.push(Arc::clone(block));
                }
                let opened = self.open_blocks();
                let sent_bytes = self.sender.raw_bytes();
                // A coordinator that does not listen holds nobody up.
                let progress = PrefillEvent::Progress { tokens, sent_bytes };
                let _ = self.events.try_send(progress);
                opened
            }
            Some(Input::Receipt(receipt)) => {
                self.receipt = ReceiptState::Here(receipt);
                Ok(())
            }
            None if self.last.is_some() || self.last_begun => {
                self.receipt = ReceiptState::Lost;
                Ok(())
            }
            None => Err(Fault::Over(ended_early())),
        }
    }

    /// Counts and keeps what has been computed.
    fn computed(&mut self, chunk: &Computed) {
        if chunk.prefill_ms > self.report.prefill_ms {
            self.report.computed_bytes += chunk.blocks.iter().map(|b| b.bytes()).sum::<u64>();
        } else {
            self.held_to = chunk.tokens;
        }
        self.report.prefill_ms = chunk.prefill_ms;
        self.report.computed_tokens = chunk.computed_tokens;
        if chunk.last {
            self.last = Some(Last {
                computed: chunk.computed,
            });
            if !chunk.receipt_follows {
                self.receipt = ReceiptState::None;
            }
        }
        if let Some(Sending { kept, .. }) = &mut self.sending {
            chunk.to_keep().for_each(|block| kept.add(block));
        }
    }

    fn send_receipt(&mut self) -> Result<(), Fault> {
        if !has_committed(&self.sender) {
            return Ok(());
        }
        match std::mem::replace(&mut self.receipt, ReceiptState::None) {
            ReceiptState::Here(receipt) => {
                let frame = self.sender.receipt(&receipt)?;
                self.receipt = ReceiptState::Sent(receipt);
                if self.control(frame).is_err()
                    && let Some(connection) = &mut self.connection
                {
                    // What is still to be read from it says how the handoff ended.
                    connection.has_ended = true;
                }
                Ok(())
            }
            other => {
                self.receipt = other;
                Ok(())
            }
        }
    }

    fn beat(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.beat();
    }

    fn control(&mut self, frame: Outgoing) -> Result<(), Fault> {
        self.give(Order::Control(frame))
    }

    fn give(&mut self, order: Order) -> Result<(), Fault> {
        let connection = self.connection.as_mut().ok_or(WireError::Closed)?;
        connection.give(order)
    }

    fn reported(&mut self) -> Report {
        self.report.transfer_ms = self.clock.total_ms;
        let last = self.last.as_ref().map(|last| last.computed);
        if let Some((last, committed)) = last.zip(self.committed) {
            let since = self.accepted.map_or(last, |at| at.max(last));
            let exposed = committed.saturating_duration_since(since);
            self.report.exposed_transfer_ms = exposed.as_secs_f64() * 1e3;
        }
        self.report.raw_bytes = self.sender.raw_bytes();
        self.report.apply_ms = self.sender.applying().as_secs_f64() * 1e3;
        self.report.has_told = matches!(self.receipt, ReceiptState::Sent(_));
        self.report.clone()
    }

    /// Tells the receiver why the handoff ends, if it still listens, and lets it read what was
    /// sent: closing with unread acknowledgements would reset the connection and take KV with it.
    pub(super) async fn goodbye(&mut self, error: &NodeError) {
        let frame = self.sender.abort(&error.message);
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let leave = async {
            let _ = connection.orders.send(Order::Last(frame)).await;
            // A writer that has much to tell comes to its last order all the same.
            let hearing = async {
                while connection.written.recv().await.is_some() {}
                std::future::pending().await
            };
            let reading = async { while let Some(Ok(_)) = connection.incoming.recv().await {} };
            tokio::select! {
                () = hearing => {}
                () = reading => {}
            }
        };
        let _ = timeout(GOODBYE, leave).await;
    }
}
