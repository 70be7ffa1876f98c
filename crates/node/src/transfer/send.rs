//! The sending end of a handoff on real connections.
//!
//! Each handoff has one owner (`pump`), which has the state machine and keeps every block until it is
//! acknowledged, and a connection (`connection`) with a writer (`writer`; `streamed`: blocks that are
//! written while they are computed). One that breaks is opened again and the handoff goes on after what came whole: nothing is computed twice.

mod account;
mod blocks;
mod connection;
mod input;
mod pump;
mod streamed;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_handoff::KvBlock;
use tandem_handoff::codec::Codec;
use tandem_handoff::message::RefusalCode;
use tandem_handoff::sender::{Offer, Sender, SenderError};
use tandem_proto::{ErrorCode, NodeError, PrefillEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::account::Account;
use self::blocks::Blocks;
use self::input::Inputs;
use self::pump::{Pump, Way};
use crate::link_estimate::Report;
use crate::model::Model;
use crate::prefix_cache::{Keep, Tail, keep_block};
use crate::route::Route;
use crate::sequence::{Command, Input, SequenceId};
use crate::transfer::wire::WireError;

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

/// Why a handoff is over whose engine gives no more.
fn ended_early() -> NodeError {
    NodeError::new(ErrorCode::Engine, "the prefill ended early")
}

/// Keeps the blocks of a prompt as pages while they are sent, one after the other.
pub struct Kept {
    keep: Keep,
    tokens: Arc<[u32]>,
    /// The blocks since the last page boundary.
    tail: Tail,
    /// Blocks that have not been kept, and what came before each since the last page boundary.
    waiting: VecDeque<(Arc<KvBlock>, Tail)>,
    /// The one before them, which is being kept.
    now: Option<JoinHandle<()>>,
}

impl Kept {
    /// Pages for `keep`, of these tokens in the end.
    #[must_use]
    pub fn new(keep: Keep, tokens: Arc<[u32]>) -> Self {
        Self {
            keep,
            tokens,
            tail: Tail::default(),
            waiting: VecDeque::new(),
            now: None,
        }
    }

    /// Adds the next block, which is kept when [`Self::next`] comes to it.
    fn add(&mut self, block: &Arc<KvBlock>) {
        if self.keep.keeps() {
            let before = self.tail.then(block, Codec::Raw);
            self.waiting.push_back((Arc::clone(block), before));
        }
    }

    /// True if something is left to keep.
    fn is_behind(&self) -> bool {
        self.now.is_some() || !self.waiting.is_empty()
    }

    /// Keeps one block; whoever does not wait for it can go on with it later.
    async fn next(&mut self) {
        if self.now.is_none() {
            let Some((block, before)) = self.waiting.pop_front() else {
                return;
            };
            let (keep, tokens) = (self.keep.clone(), Arc::clone(&self.tokens));
            self.now = Some(tokio::spawn(async move {
                keep_block(&keep, &tokens, &block, Codec::Raw, before).await;
            }));
        }
        if let Some(now) = &mut self.now {
            // It says itself what fails.
            let _ = now.await;
        }
        self.now = None;
    }

    async fn rest(&mut self) {
        while self.is_behind() {
            self.next().await;
        }
    }
}

impl Sending {
    /// The receiver has the tokens before this one.
    async fn has_there(&self, tokens: u32) {
        let there = Command::There(self.sequence, tokens);
        self.model.deliver(there).await;
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} tokens)", self.tokens.len())
    }
}

/// A prefill whose KV is sent.
#[derive(Debug)]
pub struct Sending {
    /// Id of the request.
    pub request: String,
    /// The model, whose engine may have paused for want of room.
    pub model: Arc<Model>,
    /// Whose rows they are.
    pub sequence: SequenceId,
    /// Its pages.
    pub kept: Kept,
}

/// Sends a prefill as it is computed, and tells the coordinator about it. True if the decode node was sent the receipt,
/// with the permission to hand the answer back.
pub async fn send_kv(
    sending: Sending,
    offer: Offer,
    route: Route,
    computed: mpsc::Receiver<Input>,
    events: mpsc::Sender<PrefillEvent>,
) -> bool {
    let (request, stall) = (sending.request.clone(), route.limits.event_stall);
    let result = transmit(offer, route, computed, events.clone(), Some(sending)).await;
    let has_told = result.as_ref().is_ok_and(|report| report.has_told);
    let last = match result {
        Ok(report) => PrefillEvent::from(report),
        Err(error) => {
            tracing::warn!(%request, %error, "handoff failed");
            PrefillEvent::Failed(error)
        }
    };
    // The coordinator may have gone, or take nothing any more; then nobody needs the event.
    let _ = timeout(stall, events.send(last)).await;
    has_told
}

/// Sends what `input` gives and ends when the receiver has confirmed it, or when `events`, which hears of progress, is
/// closed.
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
    let _going = route.links.begin();
    // Models differ in what they make in a second, and in what that compresses to.
    let way = format!("{} {}", route.target, sender.contract().weights);
    let prefill = sending.as_ref();
    let input = Inputs::new(input, prefill.map(|s| Arc::clone(&s.model)));
    let listener = events.clone();
    let mut pump = Pump {
        sender,
        connection: None,
        way: Way::default(),
        input,
        blocks: Blocks::default(),
        account: Account::default(),
        codecs: route.links.codecs(&way, route.choice, route.overlap),
        held_to: 0,
        route,
        events,
        sending,
    };
    let result = tokio::select! {
        result = pump.run(&hello) => result,
        // Nobody wants it any more. The receiver is told, so that it need not wait for another connection.
        () = listener.closed() => Err(broken("the coordinator has gone")),
    };
    if let Err(error) = &result {
        pump.goodbye(error).await;
    }
    if let Ok(report) = &result {
        pump.route.links.learn(&way, report);
    }
    // For this the other end has not waited.
    if let Some(Sending { kept, .. }) = &mut pump.sending {
        kept.rest().await;
    }
    result
}
