//! The handoffs that this node is receiving, by the secrets that lead to them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use tandem_identity::{PeerId, ReadHalf, WriteHalf};
use tandem_kv::message::Hello;
use tokio::sync::mpsc;

use crate::limits::MAX_SESSIONS;

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

/// The secrets of one handoff; they are worth nothing once this is dropped.
#[derive(Debug)]
pub struct Secrets {
    table: Arc<Handoffs>,
    handoff: u64,
    peer: Option<PeerId>,
    arrivals: mpsc::Sender<Arrival>,
    /// The session of the last accept, behind those that the sender may have in its place.
    sessions: VecDeque<String>,
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
            sessions: VecDeque::new(),
            stream: String::new(),
        }
    }

    /// New secrets: for a new connection, and for further streams. `said` is the session that the
    /// sender has just named. It stays good until [`Self::heard`], because the answer with the new one
    /// may be lost; those before it are worthless.
    pub fn renew(&mut self, said: Option<&str>) -> (String, String) {
        let mut by_secret = self.table.by_secret();
        by_secret.remove(&self.stream);
        let known = self.sessions.iter().position(|s| Some(s.as_str()) == said);
        for old in self.sessions.drain(..known.unwrap_or(0)) {
            by_secret.remove(&old);
        }
        while self.sessions.len() >= MAX_SESSIONS {
            // The first one is what the sender has for certain.
            if let Some(old) = self.sessions.remove(1) {
                by_secret.remove(&old);
            }
        }
        let session = secret();
        self.stream = secret();
        for (secret, purpose) in [
            (&session, Purpose::Session),
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
        self.sessions.push_back(session.clone());
        (session, self.stream.clone())
    }

    /// True if this is what a further stream of the last accept names.
    #[must_use]
    pub fn is_stream(&self, named: &str) -> bool {
        self.stream == named
    }

    /// The sender has shown that it has the newest secrets: sessions before it are used up.
    pub fn heard(&mut self) {
        if self.sessions.len() > 1 {
            let mut by_secret = self.table.by_secret();
            for old in self.sessions.drain(..self.sessions.len() - 1) {
                by_secret.remove(&old);
            }
        }
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        let mut by_secret = self.table.by_secret();
        for session in &self.sessions {
            by_secret.remove(session);
        }
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
