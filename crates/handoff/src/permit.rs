//! Who may open a connection of a handoff: tickets for the first one, sessions for
//! those after it. No I/O: secrets and the time come from the caller, who counts it from any moment.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::limits::MAX_SESSIONS;

/// The tickets that are valid now. Each is for one handoff and one peer (`P`), is good once, and
/// expires. `T` is what it permits.
pub struct Tickets<P, T> {
    open: BTreeMap<String, Ticket<P, T>>,
}

impl<P, T> std::fmt::Debug for Tickets<P, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tickets({})", self.open.len())
    }
}

struct Ticket<P, T> {
    handoff: u64,
    peer: P,
    expires: Duration,
    permits: T,
}

impl<P, T> Default for Tickets<P, T> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
        }
    }
}

impl<P: PartialEq, T> Tickets<P, T> {
    /// Makes a secret a ticket. The secret must be hard to guess and new.
    pub fn issue(&mut self, secret: String, handoff: u64, peer: P, expires: Duration, permits: T) {
        let ticket = Ticket {
            handoff,
            peer,
            expires,
            permits,
        };
        self.open.insert(secret, ticket);
    }

    /// Uses a ticket up; `None` if it is unknown, used, revoked or expired. One that is for another
    /// handoff or another peer stays as it is, so that nobody can spoil it.
    pub fn take(&mut self, secret: &str, handoff: u64, peer: &P, now: Duration) -> Option<T> {
        let ticket = self.open.get(secret)?;
        if ticket.handoff != handoff || ticket.peer != *peer || ticket.expires <= now {
            return None;
        }
        self.revoke(secret)
    }

    /// Makes a ticket worthless; gives what it permitted if it was good.
    pub fn revoke(&mut self, secret: &str) -> Option<T> {
        self.open.remove(secret).map(|ticket| ticket.permits)
    }

    /// When the next one expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        self.open.values().map(|ticket| ticket.expires).min()
    }

    /// Removes those that have expired; gives what they permitted.
    pub fn expired(&mut self, now: Duration) -> Vec<T> {
        let (over, good): (BTreeMap<_, _>, _) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(_, ticket)| ticket.expires <= now);
        self.open = good;
        over.into_values().map(|ticket| ticket.permits).collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// The secrets of one handoff that is going on: sessions, each good for a new connection in the place
/// of one that broke.
///
/// An accept carries a new one, and may be lost on its way. So the session that the sender has named
/// stays good until the sender shows that it has the new one.
#[derive(Default)]
pub struct Sessions {
    /// The session of the last accept, behind those that the sender may have in its place.
    sessions: VecDeque<String>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({})", self.sessions.len())
    }
}

impl Sessions {
    /// The session of the next accept. `said` is the session that the sender has just named, `None` at
    /// the first accept. Gives the secrets that are worthless now.
    pub fn renew(&mut self, said: Option<&str>, session: String) -> Vec<String> {
        let known = self.sessions.iter().position(|s| Some(s.as_str()) == said);
        let mut old: Vec<String> = self.sessions.drain(..known.unwrap_or(0)).collect();
        while self.sessions.len() >= MAX_SESSIONS {
            // The first one is what the sender has for certain.
            old.extend(self.sessions.remove(1));
        }
        self.sessions.push_back(session);
        old
    }

    /// The sender has shown that it has read the last accept. Gives the sessions that are used up.
    pub fn heard(&mut self) -> Vec<String> {
        let newest = self.sessions.len().saturating_sub(1);
        self.sessions.drain(..newest).collect()
    }

    /// True if a new connection may name this.
    #[must_use]
    pub fn is_session(&self, named: &str) -> bool {
        self.sessions.iter().any(|s| s == named)
    }

    /// Everything that is good now.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.sessions.iter().map(String::as_str)
    }
}
