//! The connections of a handoff: opened, joined, and opened again after a break.

use std::sync::Arc;
use std::time::Instant;

use tandem_identity::{Link, ReadHalf, WriteHalf};
use tandem_kv::frame::Header;
use tandem_kv::limits::MAX_BLOCKS_IN_FLIGHT;
use tandem_kv::sender::{Outbound, Outgoing, SenderState};
use tandem_proto::{ErrorCode, NodeError};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout, timeout_at};

use super::links::Links;
use super::pump::Pump;
use super::stream::{Batch, Order, What, Writer, Written};
use super::{Fault, broken};
use crate::limits::{
    BLOCKS_PER_STREAM, GOODBYE, Limits, MAX_CONTROL_WAITING, MAX_INCOMING_WAITING, MAX_RECONNECTS,
    MAX_WRITTEN_WAITING, RECONNECT_GROWTH, RECONNECT_PAUSE,
};
use crate::wire::{Activity, Drain, WireError, read_answer, read_header, write_frame};

type Incoming = Result<(Header, Vec<u8>), WireError>;

/// What a writer has done, or which connection ended and why.
pub(super) type Told = Result<Written, (usize, Fault)>;

/// The open connections of the handoff.
pub(super) struct Connection {
    pub(super) streams: Vec<Stream>,
    pub(super) incoming: mpsc::Receiver<Incoming>,
    pub(super) written: mpsc::Receiver<Told>,
    report: mpsc::Sender<Told>,
    tasks: Vec<AbortHandle>,
    pub(super) activity: Arc<Activity>,
    /// When this end last showed that it is alive, whatever else it does.
    pub(super) beaten: tokio::time::Instant,
    /// True if the main connection cannot be written to any more, after the commit.
    pub(super) main_ended: bool,
}

pub(super) struct Stream {
    pub(super) orders: mpsc::Sender<Order>,
    /// Orders and blocks that it has been given and has not written.
    pub(super) waiting: usize,
    /// Those of them that grow: what has not been computed is waited for.
    pub(super) growing: usize,
    /// Blocks that it has been given and that are not acknowledged.
    pub(super) on_the_way: usize,
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Pump {
    /// Opens connections, the first one until `give_up`, and hears the receiver's answer. No KV moves
    /// before it.
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
        let mut connection = Connection {
            streams: Vec::new(),
            incoming,
            written,
            report,
            tasks: vec![reading.abort_handle()],
            activity,
            beaten: tokio::time::Instant::now(),
            main_ended: false,
        };
        let links = Arc::clone(&self.route.links);
        connection.add(write, self.sender.outbound(), limits, links);
        let mut streams = self.streams.min(self.sender.accepted().streams);
        if self.route.streams.is_none() {
            streams = streams.min(self.sender.blocks_to_send());
        }
        for _ in 1..streams {
            // None is silent for longer than one join takes.
            let heard = connection.hear_writers();
            self.further_broke |= heard.is_err();
            heard?;
            connection.beat();
            let joined = self.join(&mut connection).await;
            self.further_broke |= joined.is_err();
            joined?;
        }
        let streams = u32::try_from(connection.streams.len()).unwrap_or(u32::MAX);
        let decode_rates = &self.sender.accepted().decode_rates;
        self.measured.connected(streams, decode_rates);
        self.connection = Some(connection);
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

    /// One more connection. Its end is that of all, so one that cannot be opened is an error.
    async fn join(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let limits = self.route.limits;
        let (mut read, mut write) = self.link().await?.into_split();
        let (outbound, frame) = self.sender.join()?;
        let silence = limits.handoff_silence;
        write_frame(&mut write, &frame, silence).await?;
        // Blocks on a connection that the receiver does not know would be waited for.
        let header = read_header(&mut read, Some(limits.connect), silence).await?;
        let joined = self.sender.joined(&header);
        joined.map_err(|e| Fault::Broken(format!("a further connection: {e}")))?;
        // Nothing else is said on it.
        let (ends, index) = (connection.report.clone(), connection.streams.len());
        let watching = tokio::spawn(async move {
            let reason = match read_header(&mut read, None, silence).await {
                Ok(_) => "the receiver spoke on a further connection".to_owned(),
                Err(e) => e.to_string(),
            };
            let _ = ends.send(Err((index, Fault::Broken(reason)))).await;
        });
        connection.tasks.push(watching.abort_handle());
        let links = Arc::clone(&self.route.links);
        connection.add(write, outbound, limits, links);
        Ok(())
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
        // A further connection that breaks takes all with it; do without.
        if self.further_broke {
            self.trip.broke();
        }
        self.streams = 1;
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

impl Stream {
    /// True if it can be given a block; of those that are being computed all that are open, if need be.
    pub(super) fn has_room(&self, is_growing: bool) -> bool {
        is_growing || self.waiting - self.growing < BLOCKS_PER_STREAM
    }

    pub(super) fn give(&self, order: Order) -> Result<(), Fault> {
        let given = self.orders.try_send(order);
        given.map_err(|_| Fault::Broken("the writer of a connection ended".into()))
    }

    pub(super) fn control(&mut self, frame: Outgoing) -> Result<(), Fault> {
        self.give(Order::Control(frame))?;
        self.waiting += 1;
        Ok(())
    }
}

impl Connection {
    /// Takes note of beats that have been written, before there are blocks.
    fn hear_writers(&mut self) -> Result<(), Fault> {
        while let Ok(told) = self.written.try_recv() {
            let written = told.map_err(|(_, fault)| fault)?;
            self.done(&written);
        }
        Ok(())
    }

    /// A writer may have done one of its orders.
    pub(super) fn done(&mut self, written: &Written) {
        let Some(stream) = self.streams.get_mut(written.stream) else {
            return;
        };
        match &written.what {
            What::Arrived(_) | What::Begun(_) => return,
            What::Block(done) if done.has_grown => {
                stream.growing = stream.growing.saturating_sub(1);
            }
            What::Block(_) | What::Control => {}
        }
        stream.waiting = stream.waiting.saturating_sub(1);
    }

    pub(super) fn beat(&mut self) {
        self.beaten = tokio::time::Instant::now();
        // A writer that is busy shows that this end and its connection are alive; one that waits for what is
        // computed does not.
        for stream in self.streams.iter_mut().filter(|s| s.waiting == s.growing) {
            // One that has ended says so itself.
            let _ = stream.control(Outgoing::beat());
        }
    }

    fn add(&mut self, write: WriteHalf, outbound: Outbound, limits: Limits, links: Arc<Links>) {
        let room = BLOCKS_PER_STREAM + MAX_BLOCKS_IN_FLIGHT + MAX_CONTROL_WAITING;
        let (orders, taken) = mpsc::channel(room);
        let writer = Writer {
            stream: self.streams.len(),
            drain: Drain::of(write.progress()),
            write,
            outbound,
            orders: taken,
            report: self.report.clone(),
            silence: limits.handoff_silence,
            batch: Batch::default(),
            encoders: Vec::new(),
            links,
        };
        self.tasks.push(tokio::spawn(writer.run()).abort_handle());
        self.streams.push(Stream {
            orders,
            waiting: 0,
            growing: 0,
            on_the_way: 0,
        });
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
