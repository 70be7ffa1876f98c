//! The receiving end of a handoff on real connections.
//!
//! Each handoff has one owner (`pump`), which applies blocks and answers; its connection has a
//! `reader`, which checks and decodes. A connection that breaks leaves the owner
//! waiting for another one for a limited time; what was applied stays.

mod pump;
mod reader;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::FuturesOrdered;
use tandem_cluster::{Gate, Link, WriteHalf};
use tandem_handoff::Contract;
use tandem_handoff::frame::{Header, Kind};
use tandem_handoff::limits::{CREDIT_BYTES, MAX_SEGMENT_PAYLOAD, MAX_STRING};
use tandem_handoff::message::{Hello, RefusalCode, Refuse, control_frame, parse};
use tandem_handoff::receiver::{Expectation, Receiver, credit_for};
use tandem_handoff::segment::{step_bytes, window_bytes};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::pump::Pump;
use crate::handoffs::{Arrival, Greeted, Secrets};
use crate::limits::{
    GOODBYE, Limits, MAX_ARRIVALS, MAX_KEEPERS, MAX_STEPS_WAITING, MAX_UNGREETED, STAGING_UNIT,
    STAGING_UNITS,
};
use crate::node::Node;
use crate::prefix_cache::Tail;
use crate::sequence::{HandedOver, Lost};
use crate::tickets::Permitted;
use crate::transfer::wire::{read_header, read_payload};

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
    let hello: Hello = match parse(Kind::Hello, &payload) {
        Ok(hello) => hello,
        Err(e) => {
            refuse(&mut write, handoff, RefusalCode::Hello, &e.to_string()).await;
            return Err(e.to_string());
        }
    };
    let again = node.handoffs.find(&hello.ticket, handoff, peer.as_ref());
    let greeted = Greeted { read, write };
    if let Some(owner) = again {
        let hello = Box::new(hello);
        return arrive(&owner, Arrival { greeted, hello });
    }
    let Greeted { read, mut write } = greeted;
    let Some(mut permitted) = node.tickets.take(&hello.ticket, handoff, peer.as_ref()) else {
        let reason = format!("hello field `ticket`: {STRANGER}");
        refuse(&mut write, handoff, RefusalCode::Ticket, &reason).await;
        return Err(reason);
    };
    permitted.target.begin(node.config.limits.hand_back);
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

/// Gives a connection to the owner of its handoff. Whoever opens more than can wait is cut off, and may
/// come again: a refusal would end the handoff.
fn arrive(owner: &mpsc::Sender<Arrival>, arrival: Arrival) -> Result<(), String> {
    let taken = owner.try_send(arrival);
    taken.map_err(|_| "the handoff has more connections than it can look at".into())
}

/// The first frame of a connection, which must be a hello.
async fn first_frame(
    read: &mut tandem_cluster::ReadHalf,
    limits: Limits,
) -> Result<(Header, Vec<u8>), String> {
    let header = read_header(read, None, limits.connect)
        .await
        .map_err(|e| e.to_string())?;
    if header.kind != Kind::Hello || header.sequence != 0 {
        return Err("the first frame must be a hello with sequence 0".into());
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

/// Whoever comes again must bring the same quantisation as this hello, and no more is kept as exact than it says. True
/// if pages have names that both ends agree on, which they have not where quantisations may differ.
fn agree(permitted: &mut Permitted, hello: &Hello) -> bool {
    permitted.keep.compute_alike_to(hello.exact_end);
    let expected = &mut permitted.expectation;
    if std::mem::take(&mut expected.mixed_quantisation) {
        expected.contract = Arc::new(hello.contract.clone());
        return false;
    }
    true
}

/// The tokens that a handoff brings KV of.
fn tokens_of(expected: &Expectation, hello: &Hello, kv_end: u32) -> Vec<u32> {
    let mut tokens = expected.tokens.clone();
    tokens.extend_from_slice(&hello.continuation);
    tokens.truncate(kv_end as usize);
    tokens
}

/// The credit of a handoff, and memory for it. More than [`CREDIT_BYTES`] only if that leaves half of all memory for
/// others; with less, a large step is sent when it is over. Answers that are taken back leave a quarter of it.
fn credit(
    staging: &Arc<Semaphore>,
    contract: &Contract,
    kv_end: u32,
    hello: &Hello,
    is_back: bool,
) -> Option<(u64, OwnedSemaphorePermit)> {
    // There is no larger step than all of it.
    let step = hello.step_bytes.min(step_bytes(contract, kv_end, kv_end));
    let take = |credit, least_left| {
        let units = staging_units(contract, kv_end, credit);
        let memory = Arc::clone(staging).try_acquire_many_owned(units).ok()?;
        let leaves_enough = staging.available_permits() >= least_left;
        leaves_enough.then_some((credit, memory))
    };
    let large = credit_for(step);
    if !is_back
        && large > CREDIT_BYTES
        && let Some(taken) = take(large, STAGING_UNITS / 2)
    {
        return Some(taken);
    }
    take(CREDIT_BYTES, if is_back { STAGING_UNITS / 4 } else { 0 })
}

/// Memory for a handoff, in units of [`STAGING_UNIT`]: blocks that wait, a window, and a segment that is being
/// decoded.
fn staging_units(contract: &Contract, kv_end: u32, credit: u64) -> u32 {
    let memory = credit + window_bytes(contract, kv_end) + u64::from(MAX_SEGMENT_PAYLOAD);
    u32::try_from(memory.div_ceil(STAGING_UNIT)).unwrap_or(u32::MAX)
}

/// A place for one more handoff, credit and memory, and for an answer that comes back a place among those.
fn room(
    node: &Node,
    contract: &Contract,
    kv_end: u32,
    hello: &Hello,
    is_back: bool,
) -> Option<(
    OwnedSemaphorePermit,
    (u64, OwnedSemaphorePermit),
    Option<OwnedSemaphorePermit>,
)> {
    let place = Arc::clone(&node.receiving).try_acquire_owned();
    let memory = credit(&node.staging, contract, kv_end, hello, is_back);
    let back = is_back.then(|| Arc::clone(&node.taking_back).try_acquire_owned());
    Some((place.ok()?, memory?, back.transpose().ok()?))
}

/// Serves a handoff that its ticket permits.
async fn serve(
    node: &Arc<Node>,
    mut permitted: Permitted,
    hello: &Hello,
    mut first: Greeted,
    from: SocketAddr,
) -> Result<(), Lost> {
    let handoff = permitted.expectation.handoff;
    let kv_end = match Receiver::check_hello(hello, &permitted.expectation) {
        Ok(kv_end) => kv_end,
        Err(refusal) => {
            say(&mut first.write, handoff, &refusal).await;
            return Err(refusal.message.into());
        }
    };
    let names_pages = agree(&mut permitted, hello);
    let contract = &permitted.expectation.contract;
    let is_back = permitted.target.is_pages();
    let Some((place, (credit_bytes, staging), _back)) =
        room(node, contract, kv_end, hello, is_back)
    else {
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
        receipt: is_back,
        committed: false,
        all_sent: None,
        from,
        permitted,
        tokens: tokens.into(),
        kv_end,
        had: 0,
        names_pages,
        tail: Tail::default(),
        keepers: Arc::new(Semaphore::new(MAX_KEEPERS)),
    };
    let result = pump.run(first).await;
    pump.end(&result).await;
    // Whether the sender has read the confirmation cannot be known here.
    if pump.is_committed()
        && let Ok(place) = Arc::clone(&node.confirmed).try_acquire_owned()
    {
        tokio::spawn(pump.confirm(place));
    }
    result
}

fn lock(receiver: &Mutex<Receiver>) -> MutexGuard<'_, Receiver> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tandem_engine::KvCache;
    use tandem_engine::fake::{FakeConfig, FakeEngine};
    use tandem_handoff::limits::{AHEAD_BYTES, MAX_CREDIT_BYTES};

    use super::*;

    const ALL: u64 = STAGING_UNITS as u64 * STAGING_UNIT;
    /// One that is being decoded.
    const SEGMENT: u64 = MAX_SEGMENT_PAYLOAD as u64;

    /// The credit of a handoff of so many tokens whose sender says so much of its steps, with so much memory left, in
    /// whole units.
    fn given(tokens: u32, said: u64, left: u64, is_back: bool) -> Option<u64> {
        let contract = FakeEngine::new(FakeConfig::default()).contract().clone();
        let hello = Hello {
            ticket: String::new(),
            contract: contract.clone(),
            kv_end: tokens,
            continuation: Vec::new(),
            token_digest: String::new(),
            step_bytes: said,
            exact_end: 0,
        };
        let units = usize::try_from(left / STAGING_UNIT).unwrap();
        let staging = Arc::new(Semaphore::new(units));
        let (credit_bytes, memory) = credit(&staging, &contract, tokens, &hello, is_back)?;
        let credit_bytes = credit_bytes.next_multiple_of(STAGING_UNIT);
        let taken = memory.num_permits() as u64 * STAGING_UNIT;
        assert_eq!(taken, credit_bytes + SEGMENT);
        drop(memory);
        assert_eq!(staging.available_permits(), units);
        Some(credit_bytes)
    }

    #[test]
    fn credit_is_what_a_step_needs_as_long_as_others_have_enough() {
        let contract = FakeEngine::new(FakeConfig::default()).contract().clone();
        let token = step_bytes(&contract, 1, 1);
        let many = u32::try_from((256 << 20) / token).unwrap();
        let all = token * u64::from(many);
        let large = (all + AHEAD_BYTES).next_multiple_of(STAGING_UNIT);
        let least = CREDIT_BYTES + SEGMENT;
        let half = ALL / 2 + large + SEGMENT;
        for (tokens, said, left, expected) in [
            (many, 0, ALL, Some(CREDIT_BYTES)),
            (many, all, ALL, Some(large)),
            // No step is larger than the handoff.
            (many, u64::MAX, ALL, Some(large)),
            (3, u64::MAX, ALL, Some(CREDIT_BYTES)),
            // Half is left, and not.
            (many, all, half, Some(large)),
            (many, all, half - STAGING_UNIT, Some(CREDIT_BYTES)),
            (many, all, least, Some(CREDIT_BYTES)),
            (many, all, least - STAGING_UNIT, None),
        ] {
            let found = given(tokens, said, left, false);
            assert_eq!(found, expected, "{tokens}, {said}, {left}");
        }
        assert!(large < MAX_CREDIT_BYTES);
    }

    #[test]
    fn answers_that_are_taken_back_leave_memory_for_requests() {
        let least = ALL / 4 + CREDIT_BYTES + SEGMENT;
        for (left, expected) in [(ALL, true), (least, true), (least - STAGING_UNIT, false)] {
            let found = given(100, u64::MAX, left, true);
            assert_eq!(found, expected.then_some(CREDIT_BYTES), "{left}");
        }
    }
}
