//! The handoffs that this node is receiving, by the secrets that lead to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use tandem_identity::{PeerId, ReadHalf, WriteHalf};
use tandem_kv::message::Hello;
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
#[derive(Debug)]
pub enum Arrival {
    /// In the place of one that broke.
    Again(Greeted, Box<Hello>),
    /// One more.
    Further(Greeted),
}

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To go on after a connection broke; used up by it.
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
#[derive(Debug, Default)]
pub struct Handoffs {
    by_secret: Mutex<HashMap<String, Entry>>,
}

impl Handoffs {
    fn by_secret(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_secret
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a connection with this secret belongs; `None` if the secret is unknown, used, for
    /// something else, or another peer's.
    pub fn find(
        &self,
        secret: &str,
        purpose: Purpose,
        handoff: u64,
        peer: Option<&PeerId>,
    ) -> Option<mpsc::Sender<Arrival>> {
        let mut by_secret = self.by_secret();
        let entry = by_secret.get(secret)?;
        if entry.purpose != purpose || entry.handoff != handoff || entry.peer.as_ref() != peer {
            return None;
        }
        let arrivals = entry.arrivals.clone();
        if purpose == Purpose::Session {
            by_secret.remove(secret);
        }
        Some(arrivals)
    }
}

impl Handoffs {
    /// How many secrets there are.
    pub fn count(&self) -> usize {
        self.by_secret().len()
    }
}

/// The secrets of one handoff; they are worth nothing once this is dropped.
#[derive(Debug)]
pub struct Secrets {
    table: Arc<Handoffs>,
    handoff: u64,
    peer: Option<PeerId>,
    arrivals: mpsc::Sender<Arrival>,
    session: String,
    stream: String,
}

impl Secrets {
    /// No secrets yet; connections will come through `arrivals`.
    #[must_use]
    pub const fn new(
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
            session: String::new(),
            stream: String::new(),
        }
    }

    /// New secrets in the place of the old ones: for a new connection, and for further streams.
    pub fn renew(&mut self) -> (String, String) {
        let mut by_secret = self.table.by_secret();
        by_secret.remove(&self.session);
        by_secret.remove(&self.stream);
        self.session = secret();
        self.stream = secret();
        for (secret, purpose) in [
            (&self.session, Purpose::Session),
            (&self.stream, Purpose::Stream),
        ] {
            let entry = Entry {
                purpose,
                handoff: self.handoff,
                peer: self.peer.clone(),
                arrivals: self.arrivals.clone(),
            };
            by_secret.insert(secret.clone(), entry);
        }
        (self.session.clone(), self.stream.clone())
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        let mut by_secret = self.table.by_secret();
        by_secret.remove(&self.session);
        by_secret.remove(&self.stream);
    }
}

/// 128 random bits in hex.
#[must_use]
pub fn secret() -> String {
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
