//! The handoffs that this node is receiving, by the sessions that lead to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use tandem_cluster::{PeerId, ReadHalf, WriteHalf};
use tandem_handoff::message::Hello;
use tandem_handoff::permit::Sessions;
use tokio::sync::mpsc;

/// A connection that has said hello.
#[derive(Debug)]
pub struct Greeted {
    /// To read from.
    pub read: ReadHalf,
    /// To write to.
    pub write: WriteHalf,
}

/// A connection for a handoff that is going on, in the place of one that broke.
pub struct Arrival {
    /// The connection.
    pub greeted: Greeted,
    /// What it said.
    pub hello: Box<Hello>,
}

#[derive(Debug)]
struct Entry {
    handoff: u64,
    peer: Option<PeerId>,
    arrivals: mpsc::Sender<Arrival>,
}

/// The table.
#[derive(Default)]
pub struct Handoffs {
    by_session: Mutex<HashMap<String, Entry>>,
}

impl std::fmt::Debug for Handoffs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handoffs({})", self.count())
    }
}

impl Handoffs {
    fn by_session(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a connection with this session belongs; `None` if it is unknown, used up, or another peer's.
    pub fn find(
        &self,
        session: &str,
        handoff: u64,
        peer: Option<&PeerId>,
    ) -> Option<mpsc::Sender<Arrival>> {
        let by_session = self.by_session();
        let entry = by_session.get(session)?;
        if entry.handoff != handoff || entry.peer.as_ref() != peer {
            return None;
        }
        Some(entry.arrivals.clone())
    }
}

impl Handoffs {
    /// How many sessions there are.
    pub fn count(&self) -> usize {
        self.by_session().len()
    }
}

/// The sessions of one handoff, and the table by which they are found; they are worth nothing once this
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
    /// No session yet; connections will come through `arrivals`.
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

    /// A new session. `said` is the one that the sender has just named; see [`Sessions::renew`].
    pub fn renew(&mut self, said: Option<&str>) -> String {
        let session = secret();
        let old = self.sessions.renew(said, session.clone());
        let mut by_session = self.table.by_session();
        for session in old {
            by_session.remove(&session);
        }
        let entry = Entry {
            handoff: self.handoff,
            peer: self.peer.clone(),
            arrivals: self.arrivals.clone(),
        };
        by_session.insert(session.clone(), entry);
        session
    }

    /// What a connection was found by may be worthless when its turn comes: the handoff has gone on
    /// without it.
    #[must_use]
    pub const fn good(&self) -> &Sessions {
        &self.sessions
    }

    /// The sender has shown that it has the newest session: those before it are used up.
    pub fn heard(&mut self) {
        let old = self.sessions.heard();
        if !old.is_empty() {
            let mut by_session = self.table.by_session();
            for secret in old {
                by_session.remove(&secret);
            }
        }
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        let mut by_session = self.table.by_session();
        for secret in self.sessions.all() {
            by_session.remove(secret);
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
