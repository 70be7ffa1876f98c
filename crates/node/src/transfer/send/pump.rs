//! The owner of a handoff: queues what the engine gives, opens blocks, hears the receiver, commits.

mod reach;

use std::sync::Arc;
use std::time::Duration;

use tandem_handoff::codec::Codec;
use tandem_handoff::frame::Header;
use tandem_handoff::sender::{Outgoing, Sender, SenderState};
use tandem_handoff::{KvBlock, PerSection, Section};
use tandem_proto::{NodeError, PrefillEvent};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout};

use super::account::Account;
use super::blocks::{Blocks, Queued};
use super::connection::Connection;
use super::input::{Inputs, ReceiptState};
use super::streamed::StreamOrder;
use super::writer::{Order, What};
use super::{Fault, Kept, Sending, broken, ended_early};
use crate::limits::{GOODBYE, RECONNECT_PAUSE};
use crate::link_estimate::Codecs;
use crate::link_estimate::Report;
use crate::route::Route;
use crate::sequence::{Begun, Computed, Input};
use crate::transfer::wire::WireError;

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

pub(super) struct Pump {
    pub(super) sender: Sender,
    pub(super) connection: Option<Connection>,
    pub(super) way: Way,
    pub(super) input: Inputs,
    pub(super) blocks: Blocks,
    pub(super) account: Account,
    pub(super) codecs: Codecs,
    /// End of the tokens whose rows the engine had.
    pub(super) held_to: u32,
    pub(super) route: Route,
    pub(super) events: mpsc::Sender<PrefillEvent>,
    pub(super) sending: Option<Sending>,
}

/// What is known when a connection breaks.
pub(super) struct Way {
    /// Before the next attempt at a new connection.
    pause: Duration,
    /// What the receiver had when a connection was opened the last time.
    had: PerSection<u32>,
    /// True if the receiver may have everything and have said so, without being heard.
    in_doubt: bool,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            pause: RECONNECT_PAUSE,
            had: PerSection::default(),
            in_doubt: false,
        }
    }
}

impl Pump {
    pub(super) async fn run(&mut self, hello: &[u8]) -> Result<Report, NodeError> {
        match self.connect(hello, None).await {
            Ok(()) => {}
            Err(Fault::Over(e)) => return Err(e),
            // Without an answer to the first hello there is nothing to go on with.
            Err(Fault::Broken(reason)) if self.sender.accepted().session.is_empty() => {
                return Err(broken(reason));
            }
            Err(Fault::Broken(reason)) => self.reconnect(&reason).await?,
        }
        let there = self.sender.accepted().have_tokens;
        self.account.accepted(there);
        if let Some(sending) = &self.sending {
            sending.has_there(there).await;
        }
        self.tell(PrefillEvent::Accepted).await;
        loop {
            match self.step().await {
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

    /// A new connection is open: what the receiver lacks is sent over it.
    pub(super) fn requeue(&mut self) {
        let next = self.sender.next();
        // A connection that is taken and has brought nothing is no better than none.
        if std::mem::replace(&mut self.way.had, next) != next {
            self.way.pause = RECONNECT_PAUSE;
        }
        self.blocks.requeue(next, self.sender.contract());
        self.input.resend_receipt();
        self.account.all_acknowledged();
        // A receiver that lacks something has not confirmed.
        self.way.in_doubt &= self.all_opened();
    }

    /// Does what can be done now, then waits for one thing to happen. True if nothing is left to do.
    async fn step(&mut self) -> Result<bool, Fault> {
        self.open_blocks()?;
        // What is queued was given whole, or its writer will say that it was not. The rest would have come with the chunk.
        // (Without overlap engines are not asked for layers, so nothing is queued here that waits for the last chunk.)
        let is_lost = matches!(self.input.receipt, ReceiptState::Lost);
        let waits = self.input.last().is_none() && self.blocks.is_empty();
        if is_lost && waits && !self.all_opened() {
            return Err(Fault::Over(ended_early()));
        }
        self.commit()?;
        if self.sender.state() == SenderState::Committed {
            self.account.committed();
            let receipt = &self.input.receipt;
            let is_told = !matches!(receipt, ReceiptState::Open | ReceiptState::Here(_));
            // Nobody listens for a receipt any more once the connection has ended.
            if (is_told && self.idle()) || self.connection.as_ref().is_none_or(|c| c.has_ended) {
                return Ok(true);
            }
        }
        self.send_receipt()?;
        let kept = self.sending.as_ref().map(|s| &s.kept);
        let is_behind = kept.is_some_and(Kept::is_behind);
        let wants_input = self.wants_input(is_behind);
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
            given = self.input.next(), if wants_input => self.take(given)?,
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

    /// True if the next chunk is taken: when none of the blocks of the last one is queued to be streamed. Those that have been
    /// opened get what has been computed by it, and the others come with it.
    fn wants_input(&self, is_behind: bool) -> bool {
        // It waits until pages are made of the last one; of an engine that gives layers it has yet to begin.
        let waits_for_pages = is_behind && !self.input.is_between_chunks();
        (self.blocks.is_empty() || self.waits_for_all())
            && self.input.is_receipt_open()
            && !waits_for_pages
    }

    /// The account of a handoff that the receiver has confirmed. What is still being computed behind the last layer's rows
    /// is waited for: this node keeps pages of it.
    ///
    /// # Errors
    /// If the engine has failed; then the receiver is told, and waits for no receipt.
    async fn ended(&mut self) -> Result<Report, NodeError> {
        match self.input.begun().await {
            Ok(Some(chunk)) => self.computed(&chunk),
            Ok(None) => {}
            Err(_) => self.input.receipt = ReceiptState::Lost,
        }
        match self.input.receipt {
            ReceiptState::Lost => Err(ended_early()),
            _ => Ok(self.total()),
        }
    }

    /// Commits once everything is written, which may be before the engine is done with the last layer of the last chunk: the
    /// decode node does not wait for that.
    fn commit(&mut self) -> Result<(), Fault> {
        let is_last =
            self.input.last().is_some() || (self.input.last_has_begun() && self.all_opened());
        let all_written = self.blocks.is_empty() && is_last && self.idle();
        if all_written && self.sender.state() == SenderState::Streaming {
            let commit = self.sender.commit()?;
            self.way.in_doubt = true;
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
        !self.route.overlap && self.input.last().is_none()
    }

    fn open_blocks(&mut self) -> Result<(), Fault> {
        if self.waits_for_all() {
            return Ok(());
        }
        while self.may_open_the_next()
            && let Some(next) = self.blocks.take_next()
        {
            self.open(next)?;
        }
        Ok(())
    }

    /// True if the writer has room for the next block, and the receiver.
    fn may_open_the_next(&self) -> bool {
        let Some((next, connection)) = self.blocks.next().zip(self.connection.as_ref()) else {
            return false;
        };
        let bytes = next.bytes(self.sender.contract());
        let has_credit = match next {
            Queued::Whole(_) => self.sender.may_send(bytes),
            Queued::Streamed(_) => self.sender.may_stream(bytes),
        };
        has_credit && connection.has_room(next.is_streamed())
    }

    fn open(&mut self, next: Queued) -> Result<(), Fault> {
        let codec = self.codec(&next);
        let (order, section, tokens, whole) = match next {
            Queued::Whole(block) => {
                let (section, tokens) = (block.section, block.tokens.clone());
                let cutter = Box::new(self.sender.open(&block)?);
                let whole = Arc::clone(&block);
                let order = Order::Block {
                    block,
                    cutter,
                    codec,
                };
                (order, section, tokens, Some(whole))
            }
            Queued::Streamed(streamed) => {
                let (section, tokens) = (streamed.section, streamed.tokens.clone());
                let contract = self.sender.contract();
                let raw_bytes = contract.block_bytes(section, &tokens);
                let planes = 2 * contract.section_layers(section).len();
                let cutter = Box::new(self.sender.open_streamed(section, tokens.clone())?);
                let order = Order::Stream(Box::new(StreamOrder {
                    streamed,
                    cutter,
                    codec,
                    raw_bytes,
                    planes,
                }));
                (order, section, tokens, None)
            }
        };
        let has_begun = whole.is_some();
        self.blocks.opened(section, tokens, whole);
        self.give(order)?;
        self.account.opened(codec);
        if has_begun {
            self.account.sent();
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
                if self.blocks.begun(place) {
                    self.account.sent();
                }
                return;
            }
            What::Block(done) => done,
        };
        self.account.written(&done);
        self.sender.close(done.raw_bytes);
    }

    pub(super) fn received(&mut self, header: &Header, payload: &[u8]) -> Result<(), Fault> {
        let before = self.sender.in_flight();
        self.sender.receive(header, payload)?;
        if self.sender.in_flight() < before {
            self.blocks.acknowledged(Section::from_wire(header.section));
        }
        if !self.blocks.is_in_flight() {
            self.account.all_acknowledged();
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
                self.input.begin(chunk, last);
                for block in blocks {
                    if self.route.overlap {
                        self.blocks.push_streamed(block);
                    }
                }
                self.open_blocks()
            }
            Some(Input::Chunk(chunk)) => {
                self.computed(&chunk);
                let tokens = chunk.tokens;
                // All of them first: opening one may find the connection broken.
                for block in &chunk.blocks {
                    self.blocks.push(Arc::clone(block), self.sender.contract());
                }
                let opened = self.open_blocks();
                let sent_bytes = self.sender.raw_bytes();
                // A coordinator that does not listen holds nobody up.
                let progress = PrefillEvent::Progress { tokens, sent_bytes };
                let _ = self.events.try_send(progress);
                opened
            }
            Some(Input::Receipt(receipt)) => {
                self.input.receipt = ReceiptState::Here(receipt);
                Ok(())
            }
            None if self.input.last_has_begun() => {
                self.input.receipt = ReceiptState::Lost;
                Ok(())
            }
            None => Err(Fault::Over(ended_early())),
        }
    }

    /// Counts and keeps what has been computed.
    fn computed(&mut self, chunk: &Computed) {
        let bytes = chunk.blocks.iter().map(|b| b.bytes()).sum::<u64>();
        let (ms, tokens) = (chunk.prefill_ms, chunk.computed_tokens);
        if !self.account.computed(ms, tokens, bytes) {
            self.held_to = chunk.tokens;
        }
        self.input.computed(chunk);
        if let Some(Sending { kept, .. }) = &mut self.sending {
            chunk.to_keep().for_each(|block| kept.add(block));
        }
    }

    fn send_receipt(&mut self) -> Result<(), Fault> {
        if !has_committed(&self.sender) {
            return Ok(());
        }
        match std::mem::replace(&mut self.input.receipt, ReceiptState::None) {
            ReceiptState::Here(receipt) => {
                let frame = self.sender.receipt(&receipt)?;
                self.input.receipt = ReceiptState::Sent(receipt);
                if self.control(frame).is_err()
                    && let Some(connection) = &mut self.connection
                {
                    // What is still to be read from it says how the handoff ended.
                    connection.has_ended = true;
                }
                Ok(())
            }
            other => {
                self.input.receipt = other;
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

    fn total(&self) -> Report {
        let has_told = matches!(self.input.receipt, ReceiptState::Sent(_));
        self.account
            .total(&self.sender, self.input.last(), has_told)
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
