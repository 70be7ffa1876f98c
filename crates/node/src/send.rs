//! The sending end of a handoff on real connections.
//!
//! [`transmit`] owns the state machine and keeps every block until it is acknowledged; each
//! connection has a writer of its own (`stream`). A connection that breaks is opened again and the
//! handoff goes on after the last block that was applied: nothing is computed twice.

mod choice;
mod links;
mod stream;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_identity::{Link, PeerId, Security};
use tandem_kv::KvBlock;
use tandem_kv::Section;
use tandem_kv::codec::Codec;
use tandem_kv::frame::Header;
use tandem_kv::message::RefusalCode;
use tandem_kv::receipt::Receipt;
use tandem_kv::sender::{Offer, Outbound, Outgoing, Sender, SenderError, SenderState};
use tandem_proto::{ErrorCode, NodeError, PrefillEvent};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

pub use choice::{Choice, Measured};
pub use links::{Carried, Learnt, Links, Trip};

use crate::conversation::keep_block;
use crate::held::{Keep, Tail};
use crate::job::{Command, Computed};
use crate::limits::{
    BLOCKS_PER_STREAM, EVENT_STALL, GOODBYE, Limits, MAX_CONTROL_WAITING, MAX_INCOMING_WAITING,
    MAX_RECONNECTS, MAX_WRITTEN_WAITING, RECONNECT_GROWTH, RECONNECT_PAUSE,
};
use crate::model::Model;
use crate::wire::{Activity, Drain, WireError, read_header, read_payload, write_frame};
use stream::{Order, Writer, Written};

/// Where a handoff goes and how.
#[derive(Debug, Clone)]
pub struct Route {
    /// `host:port` on which the receiver takes KV in.
    pub target: String,
    /// Who must be there; `None` without TLS.
    pub peer: Option<PeerId>,
    /// How connections are made.
    pub security: Security,
    /// Waits.
    pub limits: Limits,
    /// Connections that may be used; `None` uses as many as the link has shown to have use for.
    pub streams: Option<NonZeroU32>,
    /// How rows are encoded.
    pub choice: Choice,
    /// What is known of links.
    pub links: Arc<Links>,
    /// False: nothing is sent before all of it is computed.
    pub overlap: bool,
}

/// What the engine gives to be sent.
#[derive(Debug)]
pub enum Input {
    /// The next chunk.
    Chunk(Computed),
    /// After the last chunk: what it computed for the last token.
    Receipt(Box<Receipt>),
}

/// How a handoff went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Time spent computing, in milliseconds.
    pub prefill_ms: f64,
    /// Time during which KV was written but not acknowledged, in milliseconds.
    pub transfer_ms: f64,
    /// The part of that after the last prompt token was computed.
    pub exposed_transfer_ms: f64,
    /// Tokens that the receiver had.
    pub have_tokens: u32,
    /// Bytes of KV rows sent.
    pub raw_bytes: u64,
    /// Bytes written for them, with headers.
    pub wire_bytes: u64,
    /// The lossiest codec that was used.
    pub codec: Option<Codec>,
    /// Time spent encoding, in milliseconds; beside the writing.
    pub encode_ms: f64,
    /// Connections that broke and were opened again.
    pub reconnects: u32,
}

/// Why a step failed.
enum Fault {
    /// The connection is of no use; another one may be.
    Broken(String),
    /// The handoff is over.
    Over(NodeError),
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<SenderError> for Fault {
    fn from(error: SenderError) -> Self {
        match &error {
            SenderError::Frame(_) => Self::Broken(error.to_string()),
            SenderError::Refused(r) if r.code == RefusalCode::Busy => {
                Self::Broken(error.to_string())
            }
            SenderError::Refused(_) => {
                Self::Over(NodeError::new(ErrorCode::Refused, error.to_string()))
            }
            _ => Self::Over(broken(error.to_string())),
        }
    }
}

fn broken(message: impl Into<String>) -> NodeError {
    NodeError::new(ErrorCode::Handoff, message)
}

/// Keeps the blocks of a prompt as pages while they are sent.
#[derive(Debug)]
pub struct Kept {
    /// How.
    pub keep: Keep,
    /// The tokens that KV is there of in the end.
    pub tokens: Arc<[u32]>,
    /// The blocks since the last page boundary.
    pub tail: Tail,
}

/// A prefill whose KV is sent.
#[derive(Debug)]
pub struct Sending {
    /// Id of the request.
    pub request: String,
    /// The model, whose engine may have paused for want of room.
    pub model: Arc<Model>,
    /// Its pages.
    pub kept: Kept,
}

/// Sends a prefill as it is computed, and tells the coordinator about it. True if the decode node
/// has confirmed all of it.
pub async fn send_kv(
    sending: Sending,
    offer: Offer,
    route: Route,
    computed: mpsc::Receiver<Input>,
    events: mpsc::Sender<PrefillEvent>,
) -> bool {
    let request = sending.request.clone();
    let result = transmit(offer, route, computed, events.clone(), Some(sending)).await;
    let last = match result {
        Ok(report) => PrefillEvent::Done {
            prefill_ms: report.prefill_ms,
            transfer_ms: report.transfer_ms,
            exposed_transfer_ms: report.exposed_transfer_ms,
            handoff_bytes: report.raw_bytes,
            wire_bytes: report.wire_bytes,
            have_tokens: report.have_tokens,
            reconnects: report.reconnects,
        },
        Err(error) => {
            tracing::warn!(%request, %error, "handoff failed");
            PrefillEvent::Failed(error)
        }
    };
    let is_done = matches!(last, PrefillEvent::Done { .. });
    // The coordinator may have gone, or take nothing any more; then nobody needs the event.
    let _ = timeout(EVENT_STALL, events.send(last)).await;
    is_done
}

/// Sends what `input` gives and ends when the receiver has confirmed it. `events` hears of progress;
/// it may be closed.
///
/// # Errors
/// If the receiver refuses, a rule is broken, the engine fails, or the receiver cannot be reached
/// any more.
pub async fn transmit(
    offer: Offer,
    route: Route,
    input: mpsc::Receiver<Input>,
    events: mpsc::Sender<PrefillEvent>,
    sending: Option<Sending>,
) -> Result<Report, NodeError> {
    let (sender, hello) =
        Sender::new(offer).map_err(|e| NodeError::new(ErrorCode::Handoff, e.to_string()))?;
    let trip = route.links.trip(&route.target);
    let streams = route.streams.map_or(trip.streams(), NonZeroU32::get);
    let mut pump = Pump {
        sender,
        trip,
        streams,
        further_broke: false,
        connection: None,
        queued_bytes: 0,
        queue: VecDeque::new(),
        queued_to: 0,
        sent: VecDeque::new(),
        last: None,
        receipt: ReceiptState::Open,
        in_doubt: false,
        clock: TransferClock::default(),
        measured: Measured::new(&route.choice, route.links.rate(&route.target)),
        report: Report::default(),
        route,
        events,
        sending,
    };
    let listener = pump.events.clone();
    let is_watched = pump.sending.is_some();
    let result = tokio::select! {
        result = pump.run(&hello, input) => result,
        // Nobody wants the prefill any more. The receiver is told, so that it need not wait for
        // another connection.
        () = listener.closed(), if is_watched => Err(broken("the coordinator has gone")),
    };
    if let Err(error) = &result {
        pump.goodbye(error).await;
    }
    pump.learn(result.is_ok());
    result
}

/// Time during which KV was written but not acknowledged.
#[derive(Debug, Default)]
struct TransferClock {
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
struct Last {
    computed: Instant,
}

/// What the engine computed for the last token.
enum ReceiptState {
    /// May come.
    Open,
    /// Has come.
    Here(Box<Receipt>),
    /// Sent over the connection that is open now; a new one needs it again.
    Sent(Box<Receipt>),
    /// None will come.
    None,
}

type Incoming = Result<(Header, Vec<u8>), WireError>;

/// What a writer has done, or which connection ended and why.
type Told = Result<Written, (usize, Fault)>;

/// The open connections of the handoff.
struct Connection {
    streams: Vec<Stream>,
    incoming: mpsc::Receiver<Incoming>,
    written: mpsc::Receiver<Told>,
    report: mpsc::Sender<Told>,
    tasks: Vec<AbortHandle>,
    activity: Arc<Activity>,
    /// When this end last showed that it is alive, whatever else it does.
    beaten: tokio::time::Instant,
    /// True if the main connection cannot be written to any more, after the commit.
    main_ended: bool,
}

struct Stream {
    orders: mpsc::Sender<Order>,
    /// Blocks that it has been given and has not written.
    waiting: usize,
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Pump {
    sender: Sender,
    /// What is learnt of how many connections are good.
    trip: Trip,
    /// Connections that may be opened.
    streams: u32,
    /// True if a connection that is not the main one broke.
    further_broke: bool,
    connection: Option<Connection>,
    /// Blocks that have not been opened.
    queue: VecDeque<Arc<KvBlock>>,
    /// End of the full blocks that were queued, or that the receiver has.
    queued_to: u32,
    /// Blocks that have been opened and not acknowledged.
    sent: VecDeque<Arc<KvBlock>>,
    last: Option<Last>,
    receipt: ReceiptState,
    /// True if the receiver may have everything and have said so, without being heard.
    in_doubt: bool,
    /// Rows of blocks that were given to a connection with another one before them.
    queued_bytes: u64,
    clock: TransferClock,
    measured: Measured,
    report: Report,
    route: Route,
    events: mpsc::Sender<PrefillEvent>,
    sending: Option<Sending>,
}

impl Pump {
    async fn run(
        &mut self,
        hello: &[u8],
        mut input: mpsc::Receiver<Input>,
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
        self.tell(PrefillEvent::Accepted).await;
        loop {
            match self.step(&mut input).await {
                Ok(None) => {}
                Ok(Some(report)) => return Ok(report),
                Err(Fault::Over(e)) => return Err(e),
                Err(Fault::Broken(reason)) => {
                    self.hear_out().await?;
                    // The receiver has everything; only the receipt is lost.
                    if self.sender.state() == SenderState::Committed {
                        tracing::info!(%reason, "the receiver left before the receipt");
                        return Ok(self.reported());
                    }
                    self.reconnect(&reason).await?;
                }
            }
        }
    }

    /// Remembers what this handoff tells of its link.
    fn learn(&self, is_complete: bool) {
        let (links, target) = (&self.route.links, &self.route.target);
        links.learn(target, &self.measured);
        if let Some(connection) = &self.connection
            && is_complete
            && self.report.reconnects == 0
        {
            let streams = u32::try_from(connection.streams.len()).unwrap_or(u32::MAX);
            let time = Duration::try_from_secs_f64(self.clock.total_ms / 1e3);
            let carried = Carried {
                streams,
                codec: self.report.codec,
                bytes: self.report.wire_bytes,
                time: time.unwrap_or_default(),
                queued: self.queued_bytes > self.sender.raw_bytes() / 2,
            };
            self.trip.carried(&carried);
        }
    }

    async fn tell(&self, event: PrefillEvent) {
        let _ = self.events.send(event).await;
    }

    /// Opens connections, the first one until `give_up`, and hears the receiver's answer. No KV moves
    /// before it.
    async fn connect(&mut self, hello: &[u8], give_up: Option<Instant>) -> Result<(), Fault> {
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
            let patience = Some(limits.accept);
            let header = read_header(&mut read, patience, limits.handoff_silence).await?;
            let payload = read_payload(&mut read, &header, limits.handoff_silence).await?;
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
        connection.add(write, self.sender.outbound(), limits);
        let mut streams = self.streams.min(self.sender.accepted().streams);
        if self.route.streams.is_none() {
            streams = streams.min(self.sender.blocks_to_send());
        }
        for _ in 1..streams {
            // None is silent for longer than one join takes.
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
        self.in_doubt &= self.queue.is_empty();
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
        connection.add(write, outbound, limits);
        Ok(())
    }

    /// What was opened and not acknowledged counts as not sent; what the receiver has is dropped.
    fn requeue(&mut self) {
        let mut blocks = std::mem::take(&mut self.sent);
        blocks.append(&mut self.queue);
        self.queued_to = self.sender.accepted().have_tokens;
        for block in blocks {
            self.push(block);
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
        let next = self.queued_to;
        match block.section {
            Section::Window if self.sender.window_sent() => {}
            Section::Window => self.queue.push_back(block),
            Section::Full if block.tokens.end <= next => {}
            Section::Full => {
                self.queued_to = block.tokens.end;
                let block = if block.tokens.start < next {
                    Arc::new(block.part(next..block.tokens.end))
                } else {
                    block
                };
                self.queue.push_back(block);
            }
        }
    }

    /// Reads what the receiver said before the connection broke: a writer may fail before it is read
    /// why the handoff ended.
    async fn hear_out(&mut self) -> Result<(), NodeError> {
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
    async fn reconnect(&mut self, reason: &str) -> Result<(), NodeError> {
        let give_up = Instant::now() + self.route.limits.resume;
        let mut pause = RECONNECT_PAUSE;
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
            if self.report.reconnects > MAX_RECONNECTS || Instant::now() + pause > give_up {
                return Err(self.lost(&reason));
            }
            sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_PAUSE * RECONNECT_GROWTH);
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

    /// Does what can be done now, then waits for one thing to happen.
    async fn step(&mut self, input: &mut mpsc::Receiver<Input>) -> Result<Option<Report>, Fault> {
        self.open_blocks()?;
        let all_written = self.queue.is_empty() && self.last.is_some();
        if all_written && self.sender.state() == SenderState::Streaming && self.idle() {
            let commit = self.sender.commit()?;
            self.in_doubt = true;
            self.main(commit)?;
        }
        if self.sender.state() == SenderState::Committed {
            if let Some(last) = &self.last
                && self.report.exposed_transfer_ms == 0.0
            {
                self.report.exposed_transfer_ms = last.computed.elapsed().as_secs_f64() * 1e3;
            }
            let is_told = matches!(self.receipt, ReceiptState::Sent(_) | ReceiptState::None);
            // Nobody listens for a receipt any more once the main connection has ended.
            if (is_told && self.idle()) || self.connection.as_ref().is_none_or(|c| c.main_ended) {
                return Ok(Some(self.reported()));
            }
        }
        self.send_receipt()?;
        let wants_input = (self.queue.is_empty() || self.waits_for_all())
            && matches!(self.receipt, ReceiptState::Open);
        let silence = self.route.limits.handoff_silence;
        let waiting = self.sender.in_flight() > 0 || self.sender.state() == SenderState::Committing;
        let Some(connection) = &mut self.connection else {
            return Err(Fault::Broken("not connected".into()));
        };
        let over = self.sender.state() == SenderState::Committed;
        // All blocks have been written. Whether they arrived is told on the main connection; the
        // others may close at any time.
        let has_committed = over || self.sender.state() == SenderState::Committing;
        let patience = silence.saturating_sub(connection.activity.idle());
        tokio::select! {
            frame = connection.incoming.recv(), if !over => {
                let (header, payload) = frame.ok_or(WireError::Closed)??;
                self.received(&header, &payload)?;
            }
            written = connection.written.recv() => {
                match written.ok_or(WireError::Closed)? {
                    Ok(written) => self.written(written),
                    Err((stream, Fault::Broken(reason))) if has_committed => {
                        tracing::debug!(stream, %reason, "a connection ended after the commit");
                        connection.main_ended |= stream == 0;
                        if let Some(ended) = connection.streams.get_mut(stream) {
                            ended.waiting = 0;
                        }
                    }
                    Err((stream, fault)) => {
                        self.further_broke |= stream > 0;
                        return Err(fault);
                    }
                }
            }
            given = input.recv(), if wants_input => self.take(given).await?,
            () = sleep_until(connection.beaten + self.route.limits.handoff_beat) => self.beat(),
            () = sleep(patience), if waiting => {
                if connection.activity.idle() >= silence {
                    return Err(WireError::Silent(silence).into());
                }
            }
        }
        Ok(None)
    }

    /// True if no writer has anything left.
    fn idle(&self) -> bool {
        let streams = self.connection.as_ref().map(|c| &c.streams);
        streams.is_some_and(|s| s.iter().all(|s| s.waiting == 0))
    }

    /// True while nothing may be sent because the last chunk has not come.
    fn waits_for_all(&self) -> bool {
        !self.route.overlap && self.last.is_none()
    }

    fn open_blocks(&mut self) -> Result<(), Fault> {
        if self.waits_for_all() {
            return Ok(());
        }
        while let Some(block) = self.queue.front() {
            let Some(connection) = &mut self.connection else {
                return Ok(());
            };
            let (index, stream) = match connection
                .streams
                .iter_mut()
                .enumerate()
                .min_by_key(|(_, s)| s.waiting)
            {
                Some((i, s)) if s.waiting < BLOCKS_PER_STREAM => (i, s),
                _ => return Ok(()),
            };
            if !self.sender.may_send(block.bytes()) {
                return Ok(());
            }
            let (place, cutter) = self.sender.open(block)?;
            let codec = self.measured.codec();
            let order = Order::Block {
                block: Arc::clone(block),
                place,
                cutter: Box::new(cutter),
                codec,
            };
            stream
                .orders
                .try_send(order)
                .map_err(|_| Fault::Broken(format!("the writer of connection {index} ended")))?;
            if stream.waiting > 0 {
                self.queued_bytes += block.bytes();
            }
            stream.waiting += 1;
            self.report.codec = self.report.codec.max(Some(codec));
            self.clock.sent();
            self.measured.opened(Instant::now());
            if let Some(block) = self.queue.pop_front() {
                self.sent.push_back(block);
            }
        }
        Ok(())
    }

    fn written(&mut self, written: Written) {
        if let Some(connection) = &mut self.connection
            && let Some(stream) = connection.streams.get_mut(written.stream)
        {
            stream.waiting = stream.waiting.saturating_sub(1);
        }
        let Some(done) = written.block else { return };
        self.report.wire_bytes += done.wire_bytes;
        self.report.encode_ms += done.encoding.as_secs_f64() * 1e3;
        self.measured.block(written.stream, &done);
        self.sender.close(done.place, done.digest);
    }

    fn received(&mut self, header: &Header, payload: &[u8]) -> Result<(), Fault> {
        let before = self.sender.in_flight();
        self.sender.receive(header, payload)?;
        for _ in self.sender.in_flight()..before {
            self.sent.pop_front();
        }
        let idle = self.sender.in_flight() == 0;
        if idle {
            self.clock.all_acknowledged();
        }
        if self.sender.in_flight() < before {
            self.measured.acknowledged(Instant::now(), idle);
        }
        Ok(())
    }

    /// Takes what the engine gives.
    async fn take(&mut self, given: Option<Input>) -> Result<(), Fault> {
        if let Some(sending) = &self.sending {
            // The engine may have paused for want of room; a full queue wakes it anyway.
            let _ = sending.model.command(Command::Wake);
        }
        match given {
            Some(Input::Chunk(chunk)) => {
                self.report.prefill_ms = chunk.prefill_ms;
                self.measured.produced(&chunk);
                if chunk.last {
                    self.last = Some(Last {
                        computed: chunk.computed,
                    });
                    if !chunk.receipt_follows {
                        self.receipt = ReceiptState::None;
                    }
                }
                let tokens = chunk.tokens;
                // All of them first: opening one may find the connection broken.
                for block in &chunk.blocks {
                    self.push(Arc::clone(block));
                }
                let opened = self.open_blocks();
                for block in chunk.blocks {
                    if let Some(Sending { kept, .. }) = &mut self.sending {
                        let Kept { keep, tokens, tail } = kept;
                        if keep.keeps(Codec::Raw) {
                            let before = tail.then(&block, Codec::Raw);
                            keep_block(keep, tokens, &block, Codec::Raw, before).await;
                        }
                    }
                }
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
            None if self.last.is_some() => {
                self.receipt = ReceiptState::None;
                Ok(())
            }
            None => Err(Fault::Over(NodeError::new(
                ErrorCode::Engine,
                "the prefill ended early",
            ))),
        }
    }

    fn send_receipt(&mut self) -> Result<(), Fault> {
        let state = self.sender.state();
        if !matches!(state, SenderState::Committing | SenderState::Committed) {
            return Ok(());
        }
        match std::mem::replace(&mut self.receipt, ReceiptState::None) {
            ReceiptState::Here(receipt) => {
                let frame = self.sender.receipt(&receipt)?;
                self.receipt = ReceiptState::Sent(receipt);
                if self.main(frame).is_err()
                    && let Some(connection) = &mut self.connection
                {
                    // What is still to be read from it says how the handoff ended.
                    connection.main_ended = true;
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

    /// A control frame on the main connection.
    fn main(&mut self, frame: Outgoing) -> Result<(), Fault> {
        let stream = self.connection.as_mut().and_then(|c| c.streams.first_mut());
        stream.ok_or(WireError::Closed)?.control(frame)
    }

    fn reported(&mut self) -> Report {
        self.report.transfer_ms = self.clock.total_ms;
        self.report.raw_bytes = self.sender.raw_bytes();
        self.report.clone()
    }

    /// Tells the receiver why the handoff ends, if it still listens, and lets it read what was
    /// sent: closing with unread acknowledgements would reset the connection and take KV with it.
    async fn goodbye(&mut self, error: &NodeError) {
        let frame = self.sender.abort(&error.message);
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let leave = async {
            let main = connection.streams.swap_remove(0);
            connection.streams.clear();
            let _ = main.orders.send(Order::Last(frame)).await;
            while let Some(Ok(_)) = connection.incoming.recv().await {}
        };
        let _ = timeout(GOODBYE, leave).await;
    }
}

impl Stream {
    fn control(&mut self, frame: Outgoing) -> Result<(), Fault> {
        let given = self.orders.try_send(Order::Control(frame));
        given.map_err(|_| Fault::Broken("the writer of a connection ended".into()))?;
        self.waiting += 1;
        Ok(())
    }
}

impl Connection {
    fn beat(&mut self) {
        self.beaten = tokio::time::Instant::now();
        // A writer that is busy shows that this end and its connection are alive.
        for stream in self.streams.iter_mut().filter(|s| s.waiting == 0) {
            // One that has ended says so itself.
            let _ = stream.control(Outgoing::beat());
        }
    }

    fn add(&mut self, write: tandem_identity::WriteHalf, outbound: Outbound, limits: Limits) {
        let (orders, taken) = mpsc::channel(BLOCKS_PER_STREAM + MAX_CONTROL_WAITING);
        let writer = Writer {
            stream: self.streams.len(),
            drain: Drain::of(write.unsent()),
            write,
            outbound,
            orders: taken,
            report: self.report.clone(),
            silence: limits.handoff_silence,
        };
        self.tasks.push(tokio::spawn(writer.run()).abort_handle());
        self.streams.push(Stream { orders, waiting: 0 });
    }
}

async fn read_frames(
    mut read: tandem_identity::ReadHalf,
    frames: mpsc::Sender<Incoming>,
    activity: Arc<Activity>,
    limits: Limits,
) {
    loop {
        let frame = async {
            let header = read_header(&mut read, None, limits.handoff_silence).await?;
            let payload = read_payload(&mut read, &header, limits.handoff_silence).await?;
            Ok((header, payload))
        };
        let frame = frame.await;
        activity.touch();
        let over = frame.is_err();
        if frames.send(frame).await.is_err() || over {
            return;
        }
    }
}
