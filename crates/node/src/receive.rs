//! The receiving end of a handoff on real connections.
//!
//! Each handoff has one owner (`Pump`), which applies blocks and answers; each of its connections
//! has a reader (`stream`), which checks and decodes. A connection that breaks leaves the owner
//! waiting for another one for a limited time; what was applied stays.

mod decoding;
mod stream;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tandem_identity::{Gate, Link, PeerId, ReadHalf, WriteHalf};
use tandem_kv::KvBlock;
use tandem_kv::frame::{Header, Kind};
use tandem_kv::limits::{CREDIT_BYTES, MAX_SEGMENT_PAYLOAD, MAX_STRING};
use tandem_kv::message::{Hello, Join, RefusalCode, Refuse, abort_frame, control_frame, parse};
use tandem_kv::receiver::{Arrived, Expectation, Inbound, Receiver, Step, Terms};
use tandem_kv::segment::window_bytes;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use crate::api::Node;
use crate::conversation::keep_block;
use crate::handoffs::{Arrival, Greeted, Purpose, Secrets};
use crate::held::{Pieces, Tail};
use crate::job::HandedOver;
use crate::limits::{
    GOODBYE, Limits, MAX_ARRIVALS, MAX_RECONNECTS, MAX_STEPS_WAITING, MAX_UNGREETED, STAGING_UNIT,
    STREAMS,
};
use crate::tickets::{Permitted, Target};
use crate::wire::{WireError, read_header, read_payload, write_frame};
pub use decoding::Decoding;
use stream::{Reader, StepOf};

/// Takes handoff connections. Those that do not say hello hold nobody up: there is a limit to their
/// number, and the oldest gives way.
pub async fn accept_loop(mut gate: Gate, node: Arc<Node>) {
    let mut ungreeted: VecDeque<(AbortHandle, Arc<std::sync::atomic::AtomicBool>)> =
        VecDeque::new();
    loop {
        let (link, from) = gate.next().await;
        ungreeted.retain(|(task, greeted)| {
            !task.is_finished() && !greeted.load(std::sync::atomic::Ordering::Relaxed)
        });
        if ungreeted.len() >= MAX_UNGREETED
            && let Some((oldest, _)) = ungreeted.pop_front()
        {
            tracing::warn!("too many connections say nothing; the oldest is dropped");
            oldest.abort();
        }
        let greeted = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (node, flag) = (Arc::clone(&node), Arc::clone(&greeted));
        let task = tokio::spawn(async move {
            if let Err(reason) = connection(link, from, &node, &flag).await {
                tracing::warn!(%from, %reason, "handoff connection ended");
            }
        });
        ungreeted.push_back((task.abort_handle(), greeted));
    }
}

/// One connection: its first frame says where it belongs.
async fn connection(
    link: Link,
    from: SocketAddr,
    node: &Arc<Node>,
    greeted: &std::sync::atomic::AtomicBool,
) -> Result<(), String> {
    let limits = node.config.limits;
    let peer = link.peer().cloned();
    let (mut read, mut write) = link.into_split();
    let first = timeout(limits.connect, first_frame(&mut read, limits)).await;
    let (header, payload) = match first {
        Ok(Ok(frame)) => frame,
        Ok(Err(reason)) => {
            refuse(&mut write, 0, RefusalCode::Hello, &reason).await;
            return Err(reason);
        }
        Err(_) => {
            return Err(format!(
                "no hello within {} s",
                limits.connect.as_secs_f32()
            ));
        }
    };
    greeted.store(true, std::sync::atomic::Ordering::Relaxed);
    let handoff = header.handoff;
    let greeted = Greeted { read, write };
    if header.kind == Kind::Join {
        return further_connection(node, handoff, peer.as_ref(), greeted, &payload).await;
    }
    let Greeted { read, mut write } = greeted;
    let hello: Hello = match parse(Kind::Hello, &payload) {
        Ok(hello) => hello,
        Err(e) => {
            refuse(&mut write, handoff, RefusalCode::Hello, &e.to_string()).await;
            return Err(e.to_string());
        }
    };
    let again = node
        .handoffs
        .find(&hello.ticket, Purpose::Session, handoff, peer.as_ref());
    if let Some(owner) = again {
        let greeted = Greeted { read, write };
        return arrive(&owner, Arrival::Again(greeted, Box::new(hello)));
    }
    let Some(permitted) = node.tickets.take(&hello.ticket, handoff, peer.as_ref()) else {
        let reason = format!("hello field `ticket`: {STRANGER}");
        refuse(&mut write, handoff, RefusalCode::Ticket, &reason).await;
        return Err(reason);
    };
    let failing = permitted.clone();
    let greeted = Greeted { read, write };
    let served = serve(node, permitted, &hello, greeted, from).await;
    if let Err(reason) = &served {
        failing.failed(reason.clone()).await;
    }
    served
}

/// Of a secret that opens nothing.
const STRANGER: &str = "unknown, used, expired, or another machine's";

/// A connection that joins the others of its handoff.
async fn further_connection(
    node: &Node,
    handoff: u64,
    peer: Option<&PeerId>,
    mut greeted: Greeted,
    payload: &[u8],
) -> Result<(), String> {
    let join: Join = match parse(Kind::Join, payload) {
        Ok(join) => join,
        Err(e) => {
            refuse(
                &mut greeted.write,
                handoff,
                RefusalCode::Hello,
                &e.to_string(),
            )
            .await;
            return Err(e.to_string());
        }
    };
    let owner = node
        .handoffs
        .find(&join.stream, Purpose::Stream, handoff, peer);
    let Some(owner) = owner else {
        let reason = format!("join field `stream`: {STRANGER}");
        refuse(&mut greeted.write, handoff, RefusalCode::Ticket, &reason).await;
        return Err(reason);
    };
    arrive(&owner, Arrival::Further(greeted, join.stream))
}

/// Gives a connection to the owner of its handoff. Whoever opens more than can wait is cut off, and may
/// come again: a refusal would end the handoff.
fn arrive(owner: &mpsc::Sender<Arrival>, arrival: Arrival) -> Result<(), String> {
    let taken = owner.try_send(arrival);
    taken.map_err(|_| "the handoff has more connections than it can look at".into())
}

/// The first frame of a connection, which must be a hello or a join.
async fn first_frame(
    read: &mut tandem_identity::ReadHalf,
    limits: Limits,
) -> Result<(Header, Vec<u8>), String> {
    let header = read_header(read, None, limits.connect)
        .await
        .map_err(|e| e.to_string())?;
    if !matches!(header.kind, Kind::Hello | Kind::Join) || header.sequence != 0 {
        return Err("the first frame must be a hello or a join with sequence 0".into());
    }
    let payload = read_payload(read, &header, limits.connect)
        .await
        .map_err(|e| e.to_string())?;
    header.check_payload(&payload).map_err(|e| e.to_string())?;
    Ok((header, payload))
}

async fn refuse(write: &mut WriteHalf, handoff: u64, code: RefusalCode, message: &str) {
    let refuse = Refuse {
        code,
        message: message.to_owned(),
        differences: Vec::new(),
    };
    say(write, handoff, &refuse).await;
}

async fn say(write: &mut WriteHalf, handoff: u64, refuse: &Refuse) {
    // Differences of hostile length do not fit a frame; the message names the first ones anyway.
    let short = || Refuse {
        message: refuse.message.chars().take(MAX_STRING).collect(),
        differences: Vec::new(),
        code: refuse.code,
    };
    let frame = control_frame(Kind::Refuse, handoff, 0, refuse)
        .or_else(|_| control_frame(Kind::Refuse, handoff, 0, &short()));
    if let Ok(frame) = frame {
        last_words(write, &frame).await;
    }
}

/// Writes a last frame and closes, if the peer takes it within [`GOODBYE`].
async fn last_words(write: &mut WriteHalf, frame: &[u8]) {
    let leave = async {
        write.write_all(frame).await?;
        write.flush().await?;
        write.shutdown().await
    };
    let _ = timeout(GOODBYE, leave).await;
}

/// Whoever comes again must bring the same quantisation as this hello. True if pages have names that both
/// ends agree on, which they have not where quantisations may differ.
fn agree(expected: &mut Expectation, hello: &Hello) -> bool {
    if std::mem::take(&mut expected.mixed_quantisation) {
        expected.contract = Arc::new(hello.contract.clone());
        return false;
    }
    true
}

/// Serves a handoff that its ticket permits.
async fn serve(
    node: &Arc<Node>,
    mut permitted: Permitted,
    hello: &Hello,
    mut first: Greeted,
    from: SocketAddr,
) -> Result<(), String> {
    let expected = &permitted.expectation;
    let handoff = expected.handoff;
    let kv_end = match Receiver::check_hello(hello, expected) {
        Ok(kv_end) => kv_end,
        Err(refusal) => {
            say(&mut first.write, handoff, &refusal).await;
            return Err(refusal.message);
        }
    };
    let names_pages = agree(&mut permitted.expectation, hello);
    let expected = &permitted.expectation;
    // Blocks that wait, a window, and on each connection a segment that is being decoded.
    let memory = CREDIT_BYTES
        + window_bytes(&expected.contract, kv_end)
        + u64::from(STREAMS) * u64::from(MAX_SEGMENT_PAYLOAD);
    let units = u32::try_from(memory.div_ceil(STAGING_UNIT)).unwrap_or(u32::MAX);
    let place = Arc::clone(&node.receiving).try_acquire_owned();
    let staging = Arc::clone(&node.staging).try_acquire_many_owned(units);
    let (Ok(place), Ok(staging)) = (place, staging) else {
        let reason = "this node has no memory for a further handoff now";
        refuse(&mut first.write, handoff, RefusalCode::Busy, reason).await;
        return Err(reason.into());
    };
    let (arrivals, connections) = mpsc::channel(MAX_ARRIVALS);
    let secrets = Secrets::new(
        Arc::clone(&node.handoffs),
        handoff,
        permitted.peer.clone(),
        arrivals,
    );
    let mut tokens = expected.tokens.clone();
    tokens.extend_from_slice(&hello.continuation);
    tokens.truncate(kv_end as usize);
    let (steps, taken) = mpsc::channel(MAX_STEPS_WAITING);
    let mut pump = Pump {
        limits: node.config.limits,
        receiver: None,
        connection: None,
        secrets,
        connections,
        steps,
        taken,
        applying: FuturesOrdered::new(),
        broken: None,
        place: Some(place),
        staging: Some(staging),
        handed: HandedOver::default(),
        receipt: permitted.target.is_pages(),
        committed: false,
        from,
        permitted,
        tokens: tokens.into(),
        kv_end,
        names_pages,
        tail: Tail::default(),
        spare: std::mem::take(&mut *spare(node)),
        decoding: Arc::clone(&node.decoding),
    };
    let result = pump.run(first).await;
    if let Some(receiver) = &pump.receiver {
        *spare(node) = lock(receiver).give_back();
    }
    pump.end(&result).await;
    // Whether the sender has read the confirmation cannot be known here.
    if pump.is_committed()
        && let Ok(place) = Arc::clone(&node.confirmed).try_acquire_owned()
    {
        tokio::spawn(pump.confirm(place));
    }
    result
}

fn spare(node: &Node) -> MutexGuard<'_, Vec<Vec<u8>>> {
    node.spare.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(receiver: &Mutex<Receiver>) -> MutexGuard<'_, Receiver> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block on its way into the engine.
type Applying = std::pin::Pin<Box<dyn Future<Output = (Arc<KvBlock>, Result<(), String>)> + Send>>;

/// The open connections of the handoff.
struct Connection {
    write: WriteHalf,
    readers: Vec<tokio::task::JoinHandle<()>>,
    /// Further connections are held open for writing, too.
    further: Vec<WriteHalf>,
    generation: u32,
    /// When this end last showed that it is alive, whatever else it does.
    beaten: tokio::time::Instant,
}

struct Pump {
    permitted: Permitted,
    /// Tokens `[0, kv_end)`.
    tokens: Arc<[u32]>,
    kv_end: u32,
    limits: Limits,
    receiver: Option<Arc<Mutex<Receiver>>>,
    connection: Option<Connection>,
    secrets: Secrets,
    connections: mpsc::Receiver<Arrival>,
    steps: mpsc::Sender<StepOf>,
    taken: mpsc::Receiver<StepOf>,
    applying: FuturesOrdered<Applying>,
    /// When the last connection broke, and why.
    broken: Option<(Instant, String)>,
    place: Option<OwnedSemaphorePermit>,
    staging: Option<OwnedSemaphorePermit>,
    handed: HandedOver,
    /// True once a receipt has come, or if none will.
    receipt: bool,
    committed: bool,
    from: SocketAddr,
    /// True if pages have names that both ends agree on.
    names_pages: bool,
    /// The blocks since the last page boundary.
    tail: Tail,
    /// Buffers for the receiver.
    spare: Vec<Vec<u8>>,
    decoding: Arc<Decoding>,
}

/// Why the owner of a handoff stops.
enum Fault {
    /// The connection; another one may come.
    Broken(String),
    /// The handoff.
    Over(String),
}

impl Pump {
    /// Works until the end, which also comes when nobody waits for the KV any more.
    async fn run(&mut self, first: Greeted) -> Result<(), String> {
        let permitted = self.permitted.clone();
        let result = tokio::select! {
            result = self.work(first) => result,
            () = permitted.ended() => Err("the request has ended".into()),
        };
        match result {
            // What was confirmed has not failed.
            Err(reason) if self.is_committed() => {
                tracing::debug!(%reason, "a handoff ended behind its confirmation");
                Ok(())
            }
            result => result,
        }
    }

    async fn work(&mut self, first: Greeted) -> Result<(), String> {
        let mut last = self.start(first).await;
        loop {
            match last {
                Ok(()) if self.done() => return Ok(()),
                Ok(()) => {}
                Err(Fault::Over(reason)) => {
                    let result = Err(reason);
                    // The sender need not wait for the engine to hear it.
                    self.leave(&result).await;
                    self.settle().await;
                    return result;
                }
                Err(Fault::Broken(reason)) => self.break_off(reason).await?,
            }
            last = self.step().await;
        }
    }

    /// Takes in the blocks that were whole before the handoff ended: they need not be computed.
    async fn settle(&mut self) {
        self.apply_blocks();
        while let Some((_, Ok(()))) = self.applying.next().await {}
    }

    /// True once the sender has been told over its last connection, and no receipt is missing.
    fn done(&self) -> bool {
        self.receipt && self.receiver.as_ref().is_some_and(|r| lock(r).confirmed())
    }

    fn is_over(&self) -> bool {
        self.receiver.as_ref().is_none_or(|r| lock(r).is_over())
    }

    /// True if the request has all of its KV, and no rule was broken behind the commit.
    fn is_committed(&self) -> bool {
        self.committed && !self.is_over()
    }

    /// Puts held pages into place, and says what must still be sent.
    async fn start(&mut self, first: Greeted) -> Result<(), Fault> {
        let have = match &self.permitted.target {
            Target::Pages => self.permitted.keep.held(&self.tokens).tokens,
            Target::Sequence { .. } => self.seed().await?,
        };
        self.permitted.cached(have).await;
        let terms = self.terms(have, None);
        let (mut receiver, accept) =
            Receiver::accept(&self.permitted.expectation, self.kv_end, have, &terms)
                .map_err(|e| Fault::Over(e.to_string()))?;
        receiver.lend(std::mem::take(&mut self.spare));
        self.receiver = Some(Arc::new(Mutex::new(receiver)));
        self.open(first, accept).await
    }

    /// Puts pages of this node into the sequence; gives the end of the tokens that are there then.
    async fn seed(&mut self) -> Result<u32, Fault> {
        let mut have = 0;
        let Some(pinned) = self.permitted.keep.pin(&self.tokens) else {
            return Ok(0);
        };
        let mut pieces = Pieces::pages(pinned, self.kv_end, self.limits.page_read);
        loop {
            let blocks = match pieces.next().await {
                Ok(blocks) => blocks,
                Err(reason) => {
                    tracing::warn!(%reason, "pages cannot be read; they are sent again");
                    return Ok(have);
                }
            };
            if blocks.is_empty() {
                return Ok(have);
            }
            for block in blocks {
                let end = block.tokens.end;
                // Known before, should the handoff end meanwhile.
                self.permitted.cached(end).await;
                let applied = self.permitted.target.apply(Arc::new(block)).await;
                applied.map_err(Fault::Over)?;
                have = end;
            }
        }
    }

    /// `said` is the session that the sender has named.
    fn terms(&mut self, have: u32, said: Option<&str>) -> Terms {
        let (session, stream) = self.secrets.renew(said);
        let tokens = &self.tokens[..(have as usize).min(self.tokens.len())];
        let have_page = self
            .names_pages
            .then(|| self.permitted.keep.last_page(tokens))
            .flatten();
        Terms {
            session,
            stream,
            streams: STREAMS,
            credit_bytes: CREDIT_BYTES,
            have_page,
            decode_rates: self.decoding.rates(Instant::now()),
        }
    }

    /// A reader of a connection of this handoff.
    fn reader(&self, read: ReadHalf, inbound: Inbound, receiver: Arc<Mutex<Receiver>>) -> Reader {
        let (steps, decoding) = (self.steps.clone(), Arc::clone(&self.decoding));
        Reader::new(read, inbound, receiver, steps, self.limits, decoding)
    }

    /// Starts to read from a connection after its answer has been written.
    async fn open(&mut self, greeted: Greeted, accept: Vec<u8>) -> Result<(), Fault> {
        let Some(receiver) = self.receiver.clone() else {
            return Err(Fault::Over("not started".into()));
        };
        let inbound = lock(&receiver).main();
        let Greeted { read, write } = greeted;
        let reader = self.reader(read, inbound, receiver);
        let generation = reader.generation();
        self.connection = Some(Connection {
            write,
            readers: vec![tokio::spawn(reader.run())],
            further: Vec::new(),
            generation,
            beaten: tokio::time::Instant::now(),
        });
        self.broken = None;
        self.say(&accept).await
    }

    async fn say(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let silence = self.limits.handoff_silence;
        let Some(c) = &mut self.connection else {
            return Ok(());
        };
        write_frame(&mut c.write, frame, silence)
            .await
            .map_err(|e| Fault::Broken(e.to_string()))
    }

    /// Waits for one thing to happen and deals with it.
    async fn step(&mut self) -> Result<(), Fault> {
        self.finish().await?;
        if self.done() {
            return Ok(());
        }
        let waiting_for = self.broken.as_ref().map_or(Duration::MAX, |(since, _)| {
            self.limits.resume.saturating_sub(since.elapsed())
        });
        let now = tokio::time::Instant::now();
        let beaten = self.connection.as_ref().map_or(now, |c| c.beaten);
        let beat_at = beaten + self.limits.handoff_beat;
        tokio::select! {
            applied = self.applying.next(), if !self.applying.is_empty() => {
                let Some((block, result)) = applied else { return Ok(()) };
                result.map_err(Fault::Over)?;
                self.applied(block).await
            }
            step = self.taken.recv() => match step {
                Some(step) => self.took(step).await,
                None => Ok(()),
            },
            arrival = self.connections.recv() => match arrival {
                Some(Arrival::Again(greeted, hello)) => self.again(greeted, &hello).await,
                Some(Arrival::Further(greeted, named)) => self.further(greeted, &named).await,
                None => Ok(()),
            },
            // The sender would take a long step of the engine, or a slow link, for silence.
            () = sleep_until(beat_at), if self.connection.is_some() => {
                if let Some(connection) = &mut self.connection {
                    connection.beaten = tokio::time::Instant::now();
                }
                let beat = self.receiver.as_ref().and_then(|r| lock(r).beat());
                match beat {
                    Some(beat) => self.say(&beat).await,
                    None => Ok(()),
                }
            }
            () = sleep(waiting_for), if self.broken.is_some() => {
                let reason = self.broken.as_ref().map(|(_, r)| r.clone());
                Err(Fault::Over(reason.unwrap_or_default()))
            }
        }
    }

    /// Confirms once everything has been applied.
    async fn finish(&mut self) -> Result<(), Fault> {
        let frame = self.receiver.as_ref().and_then(|r| lock(r).finish());
        let Some(frame) = frame else { return Ok(()) };
        if !self.committed {
            self.committed = true;
            if let Some(receiver) = &self.receiver {
                let receiver = lock(receiver);
                self.handed.raw_bytes = receiver.raw_bytes();
                self.handed.wire_bytes = receiver.wire_bytes();
            }
            self.permitted.committed(self.handed).await;
            // Nothing more will be staged.
            self.staging = None;
        }
        self.say(&frame).await
    }

    async fn applied(&mut self, block: Arc<KvBlock>) -> Result<(), Fault> {
        let Some(receiver) = self.receiver.clone() else {
            return Ok(());
        };
        let ack = {
            let mut receiver = lock(&receiver);
            let ack = receiver.applied();
            if let Ok(block) = Arc::try_unwrap(block) {
                receiver.recycle(block);
            }
            ack
        };
        self.say(&ack).await
    }

    async fn took(&mut self, step: StepOf) -> Result<(), Fault> {
        let current = self.connection.as_ref().map(|c| c.generation);
        if current != Some(step.generation) {
            return Ok(());
        }
        if step.result.is_ok() {
            self.secrets.heard();
        }
        match step.result {
            Ok(Step::Wait | Step::Commit) => Ok(()),
            Ok(Step::Block) => {
                self.apply_blocks();
                Ok(())
            }
            Ok(Step::Receipt(receipt)) => {
                self.receipt = true;
                let from = self.from.ip();
                self.permitted.receipt(Some(receipt), from).await;
                Ok(())
            }
            // After the commit the sender may leave without a receipt.
            Err(stream::Fault::Wire(WireError::Closed)) if self.committed => {
                Err(Fault::Broken("the sender left".into()))
            }
            Err(fault) if fault.is_lasting() => Err(Fault::Over(fault.to_string())),
            Err(fault) => Err(Fault::Broken(fault.to_string())),
        }
    }

    fn apply_blocks(&mut self) {
        let Some(receiver) = self.receiver.clone() else {
            return;
        };
        loop {
            let next = lock(&receiver).next_block();
            let Some(Arrived { block, codec }) = next else {
                return;
            };
            let block = Arc::new(block);
            self.handed.codec = self.handed.codec.max(Some(codec));
            let permitted = self.permitted.clone();
            let tokens = Arc::clone(&self.tokens);
            // What is not kept is not held on to, so that its buffers can be used again.
            let before = if permitted.keep.keeps(codec) {
                self.tail.then(&block, codec)
            } else {
                Tail::default()
            };
            self.applying.push_back(Box::pin(async move {
                let applying = permitted.target.apply(Arc::clone(&block));
                let keeping = keep_block(&permitted.keep, &tokens, &block, codec, before);
                let (applied, ()) = tokio::join!(applying, keeping);
                (block, applied)
            }));
        }
    }

    async fn further(&mut self, greeted: Greeted, named: &str) -> Result<(), Fault> {
        // It may have waited here while the handoff went on without it.
        if !self.secrets.good().is_stream(named) {
            return Ok(());
        }
        let Some(receiver) = self.receiver.clone() else {
            return Ok(());
        };
        if self.connection.is_none() {
            return Ok(());
        }
        let joined = {
            let mut receiver = lock(&receiver);
            let inbound = receiver.join(STREAMS);
            inbound.map(|inbound| (inbound, receiver.joined()))
        };
        // Dropping the connection refuses it; the sender then does without.
        let Ok((inbound, answer)) = joined else {
            return Ok(());
        };
        // Only the last accept says how to join.
        self.secrets.heard();
        let Greeted { read, mut write } = greeted;
        let answered = write_frame(&mut write, &answer, self.limits.handoff_silence).await;
        answered.map_err(|e| Fault::Broken(e.to_string()))?;
        let reader = self.reader(read, inbound, receiver);
        if let Some(connection) = &mut self.connection {
            connection.readers.push(tokio::spawn(reader.run()));
            connection.further.push(write);
        }
        Ok(())
    }

    /// A new connection in the place of the last one, which may not have noticed that it is broken.
    async fn again(&mut self, mut greeted: Greeted, hello: &Hello) -> Result<(), Fault> {
        self.close().await;
        if let Err(refusal) = Receiver::check_hello(hello, &self.permitted.expectation) {
            say(
                &mut greeted.write,
                self.permitted.expectation.handoff,
                &refusal,
            )
            .await;
            return Err(Fault::Over(refusal.message));
        }
        // What was given out is applied first: it will not be sent again.
        self.apply_blocks();
        while let Some((block, result)) = self.applying.next().await {
            result.map_err(Fault::Over)?;
            self.applied(block).await?;
        }
        let Some(receiver) = self.receiver.clone() else {
            return Err(Fault::Over("not started".into()));
        };
        let have = lock(&receiver).next_token();
        let terms = self.terms(have, Some(&hello.ticket));
        let resumed = lock(&receiver).resume(&terms);
        let accept = resumed.map_err(|e| Fault::Over(e.to_string()))?;
        self.handed.reconnects += 1;
        // It will be sent again.
        self.receipt = self.permitted.target.is_pages();
        self.open(greeted, accept).await
    }

    /// Ends the readers and waits for them, so that none touches what comes after.
    async fn close(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        for reader in &connection.readers {
            reader.abort();
        }
        for reader in connection.readers {
            let _ = reader.await;
        }
    }

    /// The connection is broken; waits for another one from now on.
    async fn break_off(&mut self, reason: String) -> Result<(), String> {
        self.close().await;
        if self.is_over() {
            return Err(reason);
        }
        tracing::info!(%reason, "the connection of a handoff broke; waiting for another one");
        self.apply_blocks();
        self.broken = Some((Instant::now(), reason));
        Ok(())
    }

    /// Tells the job that there will be no receipt if none has come, and the sender how it ended.
    async fn end(&mut self, result: &Result<(), String>) {
        if !self.receipt {
            self.permitted.receipt(None, self.from.ip()).await;
        }
        self.leave(result).await;
    }

    /// Answers a sender that asks again because it has not read the confirmation, for as long as it
    /// would go on. `_place` bounds how many handoffs are remembered for that.
    async fn confirm(mut self, _place: OwnedSemaphorePermit) {
        self.place = None;
        self.staging = None;
        self.tail = Tail::default();
        self.permitted.place = None;
        // The answer is not handed back to a node that comes late.
        self.permitted.hand_back = Arc::default();
        let silence = self.limits.handoff_silence;
        let mut until = tokio::time::Instant::now() + self.limits.resume;
        while self.handed.reconnects < MAX_RECONNECTS {
            let arrival = timeout_at(until, self.connections.recv()).await;
            let (greeted, hello) = match arrival {
                Ok(Some(Arrival::Again(greeted, hello))) => (greeted, hello),
                Ok(Some(Arrival::Further(..))) => continue,
                Ok(None) | Err(_) => return,
            };
            let answering = async {
                self.again(greeted, &hello).await?;
                while !self.done() {
                    self.step().await?;
                }
                Ok(())
            };
            let answered = timeout(silence, answering).await;
            let result = match answered {
                Ok(Err(Fault::Over(reason))) => Err(reason),
                Ok(_) | Err(_) => Ok(()),
            };
            self.leave(&result).await;
            if result.is_err() || self.is_over() {
                return;
            }
            until = tokio::time::Instant::now() + self.limits.resume;
        }
    }

    /// Closes the connection, with a last word if there was a fault.
    async fn leave(&mut self, result: &Result<(), String>) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        for reader in &connection.readers {
            reader.abort();
        }
        match result {
            Err(reason) => {
                let frame = match &self.receiver {
                    Some(receiver) => lock(receiver).abort(reason),
                    None => abort_frame(self.permitted.expectation.handoff, 0, reason),
                };
                last_words(&mut connection.write, &frame).await;
            }
            Ok(()) => {
                let _ = timeout(GOODBYE, connection.write.shutdown()).await;
            }
        }
    }
}
