//! The receiving end of a handoff on real connections.
//!
//! Each handoff has one owner (`pump`), which applies blocks and answers; each of its connections
//! has a reader (`stream`), which checks and decodes. A connection that breaks leaves the owner
//! waiting for another one for a limited time; what was applied stays.

mod decoding;
mod pump;
mod stream;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::stream::FuturesOrdered;
use tandem_identity::{Gate, Link, PeerId, WriteHalf};
use tandem_kv::Contract;
use tandem_kv::frame::{Header, Kind};
use tandem_kv::limits::{CREDIT_BYTES, MAX_SEGMENT_PAYLOAD, MAX_STRING};
use tandem_kv::message::{Hello, Join, RefusalCode, Refuse, control_frame, parse};
use tandem_kv::receiver::{Expectation, Receiver, credit_for};
use tandem_kv::segment::window_bytes;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use decoding::Decoding;

use self::pump::Pump;
use crate::api::Node;
use crate::handoffs::{Arrival, Greeted, Purpose, Secrets};
use crate::held::Tail;
use crate::job::{HandedOver, Lost};
use crate::limits::{
    GOODBYE, Limits, MAX_ARRIVALS, MAX_STEPS_WAITING, MAX_UNGREETED, STAGING_UNIT, STAGING_UNITS,
    STREAMS,
};
use crate::tickets::{Permitted, Until};
use crate::wire::{read_header, read_payload};

/// Takes handoff connections. Those that do not say hello hold nobody up: there is a limit to their
/// number, and the oldest gives way.
pub async fn accept_loop(mut gate: Gate, node: Arc<Node>) {
    let mut ungreeted: VecDeque<(AbortHandle, Arc<Spoken>)> = VecDeque::new();
    loop {
        let (link, from) = gate.next().await;
        ungreeted.retain(|(task, spoken)| !task.is_finished() && !spoken.is_over());
        if ungreeted.len() >= MAX_UNGREETED
            && let Some((oldest, spoken)) = ungreeted.pop_front()
            && spoken.end()
        {
            tracing::warn!("too many connections say nothing; the oldest is dropped");
            oldest.abort();
        }
        let spoken = Arc::new(Spoken::default());
        let (node, own) = (Arc::clone(&node), Arc::clone(&spoken));
        let task = tokio::spawn(async move {
            if let Err(reason) = connection(link, from, &node, &own).await {
                tracing::warn!(%from, %reason, "handoff connection ended");
            }
        });
        ungreeted.push_back((task.abort_handle(), spoken));
    }
}

/// Ends once, by the first frame of a connection or by the room that others need: one that has spoken may have used a ticket,
/// and must not be dropped.
#[derive(Default)]
struct Spoken(AtomicBool);

impl Spoken {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// True for whoever ends it.
    fn end(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// One connection: its first frame says where it belongs.
async fn connection(
    link: Link,
    from: SocketAddr,
    node: &Arc<Node>,
    spoken: &Spoken,
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
    if !spoken.end() {
        return Err("it gave way to others".into());
    }
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
    if let Err(lost) = &served {
        failing.failed(lost.clone()).await;
    }
    served.map_err(|lost| lost.reason)
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

/// Until when a handoff that begins now may go on: what no request ends has a limit of its own.
fn until(permitted: &Permitted, limits: Limits) -> Until {
    match permitted.target.is_pages() {
        true => Until::Time(Instant::now() + limits.hand_back),
        false => permitted.until.clone(),
    }
}

/// The tokens that a handoff brings KV of.
fn tokens_of(expected: &Expectation, hello: &Hello, kv_end: u32) -> Vec<u32> {
    let mut tokens = expected.tokens.clone();
    tokens.extend_from_slice(&hello.continuation);
    tokens.truncate(kv_end as usize);
    tokens
}

/// The credit of a handoff, and memory for it. More than [`CREDIT_BYTES`] only if that leaves half of all memory for
/// others; with less, a large step is sent when it is over.
fn credit(
    staging: &Arc<Semaphore>,
    contract: &Contract,
    kv_end: u32,
    step_bytes: u64,
) -> Option<(u64, OwnedSemaphorePermit)> {
    let take = |credit| {
        let units = staging_units(contract, kv_end, credit);
        let left = staging.available_permits().checked_sub(units as usize)?;
        if credit > CREDIT_BYTES && left < STAGING_UNITS / 2 {
            return None;
        }
        let memory = Arc::clone(staging).try_acquire_many_owned(units).ok()?;
        Some((credit, memory))
    };
    take(credit_for(step_bytes)).or_else(|| take(CREDIT_BYTES))
}

/// Memory for a handoff, in units of [`STAGING_UNIT`]: blocks that wait, a window, and on each connection
/// a segment that is being decoded.
fn staging_units(contract: &Contract, kv_end: u32, credit: u64) -> u32 {
    let memory = credit
        + window_bytes(contract, kv_end)
        + u64::from(STREAMS) * u64::from(MAX_SEGMENT_PAYLOAD);
    u32::try_from(memory.div_ceil(STAGING_UNIT)).unwrap_or(u32::MAX)
}

/// Serves a handoff that its ticket permits.
async fn serve(
    node: &Arc<Node>,
    mut permitted: Permitted,
    hello: &Hello,
    mut first: Greeted,
    from: SocketAddr,
) -> Result<(), Lost> {
    let expected = &permitted.expectation;
    let handoff = expected.handoff;
    let kv_end = match Receiver::check_hello(hello, expected) {
        Ok(kv_end) => kv_end,
        Err(refusal) => {
            say(&mut first.write, handoff, &refusal).await;
            return Err(refusal.message.into());
        }
    };
    let names_pages = agree(&mut permitted.expectation, hello);
    let expected = &permitted.expectation;
    let place = Arc::clone(&node.receiving).try_acquire_owned();
    let memory = credit(&node.staging, &expected.contract, kv_end, hello.step_bytes);
    let is_back = permitted.target.is_pages();
    let back = is_back.then(|| Arc::clone(&node.taking_back).try_acquire_owned());
    let (Ok(place), Some((credit_bytes, staging)), Ok(_back)) = (place, memory, back.transpose())
    else {
        let reason = "this node has no memory for a further handoff now";
        refuse(&mut first.write, handoff, RefusalCode::Busy, reason).await;
        return Err(reason.into());
    };
    permitted.until = until(&permitted, node.config.limits);
    let (arrivals, connections) = mpsc::channel(MAX_ARRIVALS);
    let secrets = Secrets::new(
        Arc::clone(&node.handoffs),
        handoff,
        permitted.peer.clone(),
        arrivals,
    );
    let tokens = tokens_of(&permitted.expectation, hello, kv_end);
    let (steps, taken) = mpsc::channel(MAX_STEPS_WAITING);
    let mut pump = Pump {
        limits: node.config.limits,
        receiver: None,
        connection: None,
        secrets,
        connections,
        steps,
        taken,
        turn: Arc::default(),
        applying: FuturesOrdered::new(),
        broken: None,
        place: Some(place),
        staging: Some(staging),
        credit_bytes,
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
