//! The connection of a handoff: a task that writes, and one that reads.

use std::sync::Arc;

use tandem_cluster::{ReadHalf, WriteHalf};
use tandem_handoff::frame::Header;
use tandem_handoff::limits::MAX_BLOCKS_IN_FLIGHT;
use tandem_handoff::sender::{Outbound, Outgoing};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Fault;
use super::writer::{Batch, Order, What, Writer, Written};
use crate::limits::{
    BLOCKS_AHEAD, Limits, MAX_CONTROL_WAITING, MAX_INCOMING_WAITING, MAX_WRITTEN_WAITING,
};
use crate::link_estimate::LinkEstimates;
use crate::transfer::wire::{Activity, WireError, read_answer};

type Incoming = Result<(Header, Vec<u8>), WireError>;

/// The open connection of the handoff.
pub(super) struct Connection {
    pub(super) orders: mpsc::Sender<Order>,
    /// Orders and blocks that the writer has been given and has not written.
    waiting: usize,
    /// Those of them that are streamed: what has not been computed is waited for.
    streamed: usize,
    pub(super) incoming: mpsc::Receiver<Incoming>,
    pub(super) written: mpsc::Receiver<Written>,
    tasks: [AbortHandle; 2],
    pub(super) activity: Arc<Activity>,
    /// When this end last showed that it is alive, whatever else it does.
    pub(super) beaten: tokio::time::Instant,
    /// True if it cannot be written to any more, after the commit.
    pub(super) has_ended: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Connection {
    /// Starts to read and to write, after the receiver has answered the hello.
    pub(super) fn start(
        (read, write): (ReadHalf, WriteHalf),
        outbound: Outbound,
        limits: Limits,
        links: Arc<LinkEstimates>,
    ) -> Self {
        let activity = Arc::new(Activity::default());
        let (frames, incoming) = mpsc::channel(MAX_INCOMING_WAITING);
        let (report, written) = mpsc::channel(MAX_WRITTEN_WAITING);
        let reading = tokio::spawn(read_frames(read, frames, Arc::clone(&activity), limits));
        let (orders, taken) =
            mpsc::channel(BLOCKS_AHEAD + MAX_BLOCKS_IN_FLIGHT + MAX_CONTROL_WAITING);
        let writer = Writer {
            write,
            outbound,
            orders: taken,
            report,
            silence: limits.handoff_silence,
            batch: Batch::default(),
            encoders: Vec::new(),
            links,
        };
        let writing = tokio::spawn(writer.run());
        Self {
            orders,
            waiting: 0,
            streamed: 0,
            incoming,
            written,
            tasks: [reading.abort_handle(), writing.abort_handle()],
            activity,
            beaten: tokio::time::Instant::now(),
            has_ended: false,
        }
    }

    /// True if the writer can be given a block; of those that are being computed all that are open, if need be.
    pub(super) const fn has_room(&self, is_streamed: bool) -> bool {
        is_streamed || self.waiting - self.streamed < BLOCKS_AHEAD
    }

    /// True if the writer has nothing left.
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn give(&mut self, order: Order) -> Result<(), Fault> {
        let is_streamed = matches!(order, Order::Stream(_));
        let given = self.orders.try_send(order);
        given.map_err(|_| Fault::Broken("the writer of a connection ended".into()))?;
        self.streamed += usize::from(is_streamed);
        self.waiting += 1;
        Ok(())
    }

    pub(super) fn control(&mut self, frame: Outgoing) -> Result<(), Fault> {
        self.give(Order::Control(frame))
    }

    /// The writer may have done one of its orders.
    pub(super) fn done(&mut self, written: &What) {
        match written {
            What::Begun(_) => return,
            What::Block(done) if done.was_streamed => {
                self.streamed = self.streamed.saturating_sub(1);
            }
            What::Block(_) | What::Control => {}
        }
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The writer has ended after the commit, and does nothing any more.
    pub(super) const fn ended(&mut self) {
        (self.waiting, self.streamed, self.has_ended) = (0, 0, true);
    }

    pub(super) fn beat(&mut self) {
        self.beaten = tokio::time::Instant::now();
        // A writer that is busy shows that this end and its connection are alive; one that waits for what is
        // computed does not.
        if self.waiting == self.streamed {
            // One that has ended says so itself.
            let _ = self.control(Outgoing::beat());
        }
    }
}

async fn read_frames(
    mut read: ReadHalf,
    frames: mpsc::Sender<Incoming>,
    activity: Arc<Activity>,
    limits: Limits,
) {
    loop {
        let frame = read_answer(&mut read, None, limits.handoff_silence).await;
        activity.touch();
        let over = frame.is_err();
        if frames.send(frame).await.is_err() || over {
            return;
        }
    }
}
