//! The connection of a handoff: opened, and opened again after a break.

use std::sync::Arc;
use std::time::Instant;

use tandem_identity::{Link, ReadHalf};
use tandem_kv::frame::Header;
use tandem_kv::limits::MAX_BLOCKS_IN_FLIGHT;
use tandem_kv::sender::{Outgoing, SenderState};
use tandem_proto::{ErrorCode, NodeError};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout, timeout_at};

use super::pump::Pump;
use super::stream::{Batch, Order, What, Writer};
use super::{Fault, broken};
use crate::limits::{
    BLOCKS_AHEAD, GOODBYE, Limits, MAX_CONTROL_WAITING, MAX_INCOMING_WAITING, MAX_RECONNECTS,
    MAX_WRITTEN_WAITING, RECONNECT_GROWTH, RECONNECT_PAUSE,
};
use crate::wire::{Activity, WireError, read_answer, write_frame};

type Incoming = Result<(Header, Vec<u8>), WireError>;

/// What the writer has done, or why it ended.
pub(super) type Told = Result<What, Fault>;

/// The open connection of the handoff.
pub(super) struct Connection {
    pub(super) orders: mpsc::Sender<Order>,
    /// Orders and blocks that the writer has been given and has not written.
    waiting: usize,
    /// Those of them that grow: what has not been computed is waited for.
    growing: usize,
    pub(super) incoming: mpsc::Receiver<Incoming>,
    pub(super) written: mpsc::Receiver<Told>,
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

impl Pump {
    /// Opens a connection until `give_up`, and hears the receiver's answer. No KV moves before it.
    pub(super) async fn connect(
        &mut self,
        hello: &[u8],
        give_up: Option<Instant>,
    ) -> Result<(), Fault> {
        self.connection = None;
        let limits = self.route.limits;
        let linking = self.link();
        let link = match give_up {
            None => linking.await?,
            Some(give_up) => timeout_at(give_up.into(), linking)
                .await
                .map_err(|_| Fault::Broken("no new connection in time".into()))??,
        };
        let (mut read, mut write) = link.into_split();
        write_frame(&mut write, hello, limits.handoff_silence).await?;
        while self.sender.state() == SenderState::AwaitAccept {
            // It beats while it puts pages into place, or applies what has come before.
            let silence = limits.handoff_silence;
            let (header, payload) = read_answer(&mut read, Some(silence), silence).await?;
            self.sender.receive(&header, &payload)?;
        }
        let activity = Arc::new(Activity::default());
        let (frames, incoming) = mpsc::channel(MAX_INCOMING_WAITING);
        let (report, written) = mpsc::channel(MAX_WRITTEN_WAITING);
        let reading = tokio::spawn(read_frames(read, frames, Arc::clone(&activity), limits));
        let (orders, taken) =
            mpsc::channel(BLOCKS_AHEAD + MAX_BLOCKS_IN_FLIGHT + MAX_CONTROL_WAITING);
        let writer = Writer {
            write,
            outbound: self.sender.outbound(),
            orders: taken,
            report,
            silence: limits.handoff_silence,
            batch: Batch::default(),
            encoders: Vec::new(),
            links: Arc::clone(&self.route.links),
        };
        let writing = tokio::spawn(writer.run());
        self.connection = Some(Connection {
            orders,
            waiting: 0,
            growing: 0,
            incoming,
            written,
            tasks: [reading.abort_handle(), writing.abort_handle()],
            activity,
            beaten: tokio::time::Instant::now(),
            has_ended: false,
        });
        self.requeue();
        // A receiver that lacks something has not confirmed.
        self.in_doubt &= self.all_opened();
        Ok(())
    }

    async fn link(&self) -> Result<Link, Fault> {
        let (target, limit) = (&self.route.target, self.route.limits.connect);
        let link = match &self.route.peer {
            Some(peer) => self.route.security.connect_to(target, peer, limit).await,
            None => self.route.security.connect(target, limit).await,
        };
        link.map_err(|e| Fault::Broken(e.to_string()))
    }

    /// Reads what the receiver said before the connection broke: a writer may fail before it is read
    /// why the handoff ended.
    pub(super) async fn hear_out(&mut self) -> Result<(), NodeError> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        let hearing = async {
            while self.sender.state() != SenderState::Committed
                && let Some(Ok((header, payload))) = connection.incoming.recv().await
            {
                match self.received(&header, &payload) {
                    Ok(()) => {}
                    Err(Fault::Over(e)) => return Err(e),
                    Err(Fault::Broken(_)) => break,
                }
            }
            Ok(())
        };
        timeout(GOODBYE, hearing).await.unwrap_or(Ok(()))
    }

    /// Goes on over a new connection, which has to be there within [`Limits::resume`].
    pub(super) async fn reconnect(&mut self, reason: &str) -> Result<(), NodeError> {
        let give_up = Instant::now() + self.route.limits.resume;
        let mut reason = reason.to_owned();
        loop {
            self.connection = None;
            self.report.reconnects += 1;
            tracing::warn!(%reason, "the connection of a handoff broke");
            if self.report.reconnects > MAX_RECONNECTS || Instant::now() + self.pause > give_up {
                return Err(self.lost(&reason));
            }
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(RECONNECT_PAUSE * RECONNECT_GROWTH);
            let hello = match self.sender.reconnect() {
                Ok(hello) => hello,
                Err(_) => return Err(self.lost(&reason)),
            };
            match self.connect(&hello, Some(give_up)).await {
                Ok(()) => return Ok(()),
                // The receiver has forgotten the handoff, perhaps because it is complete.
                Err(Fault::Over(e)) if self.in_doubt && e.code == ErrorCode::Refused => {
                    return Err(self.lost(&e.message));
                }
                Err(Fault::Over(e)) => return Err(e),
                Err(Fault::Broken(next)) => reason = next,
            }
        }
    }

    /// The end of a handoff that cannot go on. Only the decode node knows whether it lacks anything
    /// if it may have confirmed.
    fn lost(&self, reason: &str) -> NodeError {
        let doubt = if self.in_doubt {
            "everything was sent, and whether the decode node has it is not known: "
        } else {
            ""
        };
        broken(format!("connection to the decode node: {doubt}{reason}"))
    }
}

impl Connection {
    /// True if the writer can be given a block; of those that are being computed all that are open, if need be.
    pub(super) const fn has_room(&self, is_growing: bool) -> bool {
        is_growing || self.waiting - self.growing < BLOCKS_AHEAD
    }

    /// True if the writer has nothing left.
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn give(&mut self, order: Order) -> Result<(), Fault> {
        let is_growing = matches!(order, Order::Grow(_));
        let given = self.orders.try_send(order);
        given.map_err(|_| Fault::Broken("the writer of a connection ended".into()))?;
        self.growing += usize::from(is_growing);
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
            What::Block(done) if done.has_grown => {
                self.growing = self.growing.saturating_sub(1);
            }
            What::Block(_) | What::Control => {}
        }
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The writer has ended after the commit, and does nothing any more.
    pub(super) const fn ended(&mut self) {
        (self.waiting, self.growing, self.has_ended) = (0, 0, true);
    }

    pub(super) fn beat(&mut self) {
        self.beaten = tokio::time::Instant::now();
        // A writer that is busy shows that this end and its connection are alive; one that waits for what is
        // computed does not.
        if self.waiting == self.growing {
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
