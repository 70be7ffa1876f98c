//! The handoffs that this node is receiving, by the secrets that lead to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use tandem_identity::{PeerId, ReadHalf, WriteHalf};
use tandem_kv::message::Hello;
use tandem_kv::permit::Sessions;
use tokio::sync::mpsc;

/// A connection that has said hello.
#[derive(Debug)]
pub struct Greeted {
    /// To read from.
    pub read: ReadHalf,
    /// To write to.
    pub write: WriteHalf,
}

/// A connection for a handoff that is going on.
pub enum Arrival {
    /// In the place of one that broke.
    Again(Greeted, Box<Hello>),
    /// One more, and the secret that it named.
    Further(Greeted, String),
}

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To go on after a connection broke; used up once the sender has heard the answer.
    Session,
    /// To join.
    Stream,
}

#[derive(Debug)]
struct Entry {
    purpose: Purpose,
    handoff: u64,
    peer: Option<PeerId>,
    arrivals: mpsc::Sender<Arrival>,
}

/// The table.
#[derive(Default)]
pub struct Handoffs {
    by_secret: Mutex<HashMap<String, Entry>>,
}

impl std::fmt::Debug for Handoffs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handoffs({})", self.count())
    }
}

impl Handoffs {
    fn by_secret(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_secret
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a connection with this secret belongs; `None` if the secret is unknown, used up, for
    /// something else, or another peer's.
    pub fn find(
        &self,
        secret: &str,
        purpose: Purpose,
        handoff: u64,
        peer: Option<&PeerId>,
    ) -> Option<mpsc::Sender<Arrival>> {
        let by_secret = self.by_secret();
        let entry = by_secret.get(secret)?;
        if entry.purpose != purpose || entry.handoff != handoff || entry.peer.as_ref() != peer {
            return None;
        }
        Some(entry.arrivals.clone())
    }
}

impl Handoffs {
    /// How many secrets there are.
    pub fn count(&self) -> usize {
        self.by_secret().len()
    }
}

/// The secrets of one handoff, and the table by which they are found; they are worth nothing once this
/// is dropped.
#[derive(Debug)]
pub struct Secrets {
    table: Arc<Handoffs>,
    handoff: u64,
    peer: Option<PeerId>,
    arrivals: mpsc::Sender<Arrival>,
    sessions: Sessions,
}

impl Secrets {
    /// No secrets yet; connections will come through `arrivals`.
    #[must_use]
    pub fn new(
        table: Arc<Handoffs>,
        handoff: u64,
        peer: Option<PeerId>,
        arrivals: mpsc::Sender<Arrival>,
    ) -> Self {
        Self {
            table,
            handoff,
            peer,
            arrivals,
            sessions: Sessions::default(),
        }
    }

    /// New secrets: for a new connection, and for further streams. `said` is the session that the
    /// sender has just named; see [`Sessions::renew`].
    pub fn renew(&mut self, said: Option<&str>) -> (String, String) {
        let (session, stream) = (secret(), secret());
        let old = self.sessions.renew(said, session.clone(), stream.clone());
        let mut by_secret = self.table.by_secret();
        for secret in old {
            by_secret.remove(&secret);
        }
        for (secret, purpose) in [(&session, Purpose::Session), (&stream, Purpose::Stream)] {
            let entry = Entry {
                purpose,
                handoff: self.handoff,
                peer: self.peer.clone(),
                arrivals: self.arrivals.clone(),
            };
            by_secret.insert(secret.clone(), entry);
        }
        (session, stream)
    }

    /// What a connection was found by may be worthless when its turn comes: the handoff has gone on
    /// without it.
    #[must_use]
    pub const fn good(&self) -> &Sessions {
        &self.sessions
    }

    /// The sender has shown that it has the newest secrets: sessions before it are used up.
    pub fn heard(&mut self) {
        let old = self.sessions.heard();
        if !old.is_empty() {
            let mut by_secret = self.table.by_secret();
            for secret in old {
                by_secret.remove(&secret);
            }
        }
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        let mut by_secret = self.table.by_secret();
        for secret in self.sessions.all() {
            by_secret.remove(secret);
        }
    }
}

/// 128 random bits in hex.
#[must_use]
pub fn secret() -> String {
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
