//! Who may hand KV to what.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::Rng;
use tandem_cluster::PeerId;
use tandem_handoff::receipt::ReturnTicket;
use tandem_handoff::receiver::Expectation;
use tandem_handoff::{KvBlock, permit};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot, watch};
use tokio::time::sleep_until;

use crate::handoffs::secret;
use crate::model::{ApplyOrder, Model};
use crate::prefix_cache::Keep;
use crate::sequence::{Carried, Command, HandedOver, Lost, Origin, SequenceId, Told};

/// Where KV goes.
#[derive(Debug, Clone)]
pub enum Target {
    /// To a sequence of an engine.
    Sequence {
        /// The model.
        model: Arc<Model>,
        /// The sequence; its number is the epoch of its place in the engine, so that KV for a sequence that
        /// has ended is refused even if its place is taken by another.
        sequence: SequenceId,
        /// Closed when the request has ended.
        over: watch::Receiver<()>,
        /// Hears where the KV of the answer may be handed back to.
        hand_back: Arc<Mutex<Option<oneshot::Sender<HandBack>>>>,
    },
    /// To the pages of this node: KV of an answer that comes back.
    Pages {
        /// Until when it is of use.
        until: Instant,
        /// The place of the permission, until it is used or worthless.
        place: Option<Arc<OwnedSemaphorePermit>>,
    },
}

impl Target {
    /// True if nobody compares what the sender computed with what was computed here.
    #[must_use]
    pub const fn is_pages(&self) -> bool {
        matches!(self, Self::Pages { .. })
    }

    /// The permission is used: what no request ends may take so long from now on, and others may have its place.
    pub fn begin(&mut self, limit: Duration) {
        if let Self::Pages { until, place } = self {
            *until = Instant::now() + limit;
            *place = None;
        }
    }

    /// Who waits to hear where the answer may be handed back to; nobody does any more.
    pub fn take_hand_back(&self) -> Option<oneshot::Sender<HandBack>> {
        match self {
            Self::Sequence { hand_back, .. } => {
                let mut waiting = hand_back.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.take()
            }
            Self::Pages { .. } => None,
        }
    }

    /// Puts a block where it belongs; done when the engine has it.
    ///
    /// # Errors
    /// If the engine refuses it, or nobody waits for it any more.
    pub async fn apply(
        &self,
        turn: &ApplyOrder,
        block: Arc<KvBlock>,
        carried: Carried,
    ) -> Result<(), String> {
        let Self::Sequence {
            model, sequence, ..
        } = self
        else {
            return Ok(());
        };
        let origin = Origin::Handoff(carried);
        model.apply_in_turn(turn, *sequence, origin, block).await
    }
}

/// Where the KV of an answer may be handed back to.
#[derive(Debug, Clone)]
pub struct HandBack {
    /// The permission.
    pub ticket: ReturnTicket,
    /// Where the prefill node's connection came from.
    pub from: IpAddr,
    /// Who it is; `None` without TLS.
    pub peer: Option<PeerId>,
}

/// A handoff that a ticket permits.
#[derive(Debug, Clone)]
pub struct Permitted {
    /// Id of the request.
    pub request: String,
    /// Where KV goes.
    pub target: Target,
    /// What must arrive.
    pub expectation: Expectation,
    /// The pages that it shares.
    pub keep: Keep,
    /// Who must bring it; `None` only without TLS, where nobody is known.
    pub peer: Option<PeerId>,
}

impl Permitted {
    async fn deliver(&self, command: impl FnOnce(SequenceId) -> Command) {
        if let Target::Sequence {
            model, sequence, ..
        } = &self.target
        {
            model.deliver(command(*sequence)).await;
        }
    }

    /// Begins with what the engine has of the prompt; gives the end of those tokens, a page boundary.
    pub async fn begin(&self) -> u32 {
        let (reply, shared) = oneshot::channel();
        self.deliver(|sequence| Command::BeginReceiving(sequence, reply))
            .await;
        shared.await.unwrap_or(0)
    }

    /// Pages of this node cover the first `tokens` tokens, or will when the next block is applied.
    pub async fn cached(&self, tokens: u32) {
        self.deliver(|sequence| Command::Cached(sequence, tokens))
            .await;
    }

    /// No (more) KV will come.
    pub async fn failed(&self, lost: Lost) {
        self.deliver(|sequence| Command::HandoffFailed(sequence, lost))
            .await;
    }

    /// All KV has come.
    pub async fn committed(&self, handed: HandedOver) {
        self.deliver(|sequence| Command::Committed(sequence, Box::new(handed)))
            .await;
    }

    /// What the sender computed for the last token.
    pub async fn told(&self, told: Told, from: IpAddr) {
        let hand_back = match &told {
            Told::Receipt(receipt) => receipt.hand_back.clone(),
            Told::Unusable(_) | Told::Nothing => None,
        };
        self.deliver(|sequence| Command::Receipt(sequence, told))
            .await;
        if let Some(ticket) = hand_back
            && let Some(waiting) = self.target.take_hand_back()
        {
            let peer = self.peer.clone();
            let _ = waiting.send(HandBack { ticket, from, peer });
        }
    }

    /// Waits until nobody waits for the KV any more.
    pub async fn ended(&self) {
        match &self.target {
            Target::Sequence { over, .. } => {
                let mut over = over.clone();
                while over.changed().await.is_ok() {}
            }
            Target::Pages { until, .. } => sleep_until((*until).into()).await,
        }
    }
}

/// The tickets that are valid now. A ticket is removed when it is used, when it expires, and when
/// its request ends.
#[derive(Debug)]
pub struct Tickets {
    open: Mutex<permit::Tickets<Option<PeerId>, Permitted>>,
    issued: Notify,
    /// From when on their times are counted.
    start: Instant,
}

impl Default for Tickets {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            issued: Notify::new(),
            start: Instant::now(),
        }
    }
}

impl Tickets {
    fn open(&self) -> MutexGuard<'_, permit::Tickets<Option<PeerId>, Permitted>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a ticket that is good for some time; gives its secret, 128 random bits in hex.
    pub fn issue(&self, permitted: Permitted, good_for: Duration) -> String {
        let secret = secret();
        let (handoff, peer) = (permitted.expectation.handoff, permitted.peer.clone());
        let expires = self.start.elapsed() + good_for;
        self.open()
            .issue(secret.clone(), handoff, peer, expires, permitted);
        self.issued.notify_one();
        secret
    }

    /// Uses a ticket up; see [`permit::Tickets::take`].
    pub fn take(&self, secret: &str, handoff: u64, peer: Option<&PeerId>) -> Option<Permitted> {
        let now = self.start.elapsed();
        self.open().take(secret, handoff, &peer.cloned(), now)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.open().len()
    }

    /// Makes a ticket worthless.
    pub fn revoke(&self, secret: &str) -> Option<Permitted> {
        self.open().revoke(secret)
    }

    /// Removes tickets when they expire, and tells the requests that waited for somebody to use them
    /// for `patience`. Never ends.
    pub async fn expire(&self, patience: Duration) {
        loop {
            let next = self.open().next_expiry();
            let wait = async {
                match next {
                    Some(time) => sleep_until((self.start + time).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.issued.notified() => continue,
            }
            let expired = self.open().expired(self.start.elapsed());
            for permitted in expired {
                // An engine that takes no command now does not keep other tickets from expiring.
                tokio::spawn(async move {
                    let seconds = patience.as_secs_f32();
                    let reason = format!("no prefill node connected within {seconds} s");
                    permitted.failed(reason.into()).await;
                });
            }
        }
    }
}

/// A new id of a handoff: the epoch of the sequence's place in the upper half, chance in the lower.
#[must_use]
pub fn handoff_id(epoch: u64) -> u64 {
    epoch << 32 | rand::rng().next_u64() & u64::from(u32::MAX)
}
