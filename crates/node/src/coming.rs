//! What is on its way already: requests that begin at the same time and alike wait for the first of them, so
//! that the beginning which they share is computed once and crosses the wire once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_identity::PeerId;
use tandem_kv::page::{PAGE_TOKENS, PageId, page_start};
use tokio::sync::watch;

use crate::held::Keep;
use crate::pages::{Provenance, Wanted};

/// What a handoff brings and could begin with.
#[derive(Debug, Clone)]
pub struct Bringing {
    /// The complete pages of its tokens.
    chain: Vec<PageId>,
    /// How many of these others can find when they have come, and what they are then.
    found: Option<(usize, Provenance)>,
    /// Which ones this handoff can use.
    wanted: Wanted,
    /// Lossy codecs that it allows, from the least lossy on.
    lossy: usize,
    /// True if it finds, and others like it find, what has not been compared.
    is_compared: bool,
    /// The machine that it comes from, if that is known.
    from: Option<PeerId>,
}

impl Bringing {
    /// A handoff of these tokens; `None` if it shares nothing.
    #[must_use]
    pub fn new(keep: &Keep, tokens: &[u32], from: Option<PeerId>) -> Option<Self> {
        let chain = keep.chain(tokens);
        let wanted = keep.wanted().filter(|_| !chain.is_empty())?;
        Some(Self {
            found: keep.found(),
            wanted,
            lossy: keep.lossy_allowed(),
            is_compared: keep.is_compared(),
            chain,
            from,
        })
    }

    /// True if `other` brings a page that this one could begin with, and that it can use whatever codec it
    /// comes in.
    fn could_use(&self, other: &Self, page: usize) -> bool {
        other.found.is_some_and(|(pages, provenance)| {
            page < pages
                && self.wanted.accepts(provenance)
                && other.lossy <= self.lossy
                && (self.is_compared || !other.is_compared)
                && self.chain.get(page).is_some()
                && self.chain.get(page) == other.chain.get(page)
        })
    }
}

#[derive(Debug)]
struct Entry {
    id: u64,
    bringing: Bringing,
    /// The end of the tokens whose pages others can find.
    kept: watch::Sender<u32>,
}

/// The handoffs that are bringing pages to this node: no more than are received at once.
#[derive(Debug, Default)]
pub struct Coming {
    all: Mutex<(u64, Vec<Entry>)>,
}

/// Another handoff that brings what is wanted.
#[derive(Debug)]
pub struct Other {
    kept: watch::Receiver<u32>,
    /// True if it is known to come from the same machine, which computes it only once anyway.
    pub is_same_machine: bool,
}

impl Other {
    /// Waits until more than this is there, or the handoff is over.
    pub async fn more(&mut self, have: u32) {
        let _ = self.kept.wait_for(|kept| *kept > have).await;
    }
}

impl Coming {
    fn all(&self) -> MutexGuard<'_, (u64, Vec<Entry>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This handoff brings what follows the first `have` tokens, from now on.
    ///
    /// # Errors
    /// If another one brings the next page; unless `anyway`.
    pub fn claim(
        self: &Arc<Self>,
        bringing: &Bringing,
        have: u32,
        anyway: bool,
    ) -> Result<Claim, Other> {
        let mut all = self.all();
        let page = (have / PAGE_TOKENS) as usize;
        // What it has had is where it is looked for, or nowhere.
        let brings = |e: &&Entry| *e.kept.borrow() <= have && bringing.could_use(&e.bringing, page);
        if !anyway && let Some(entry) = all.1.iter().find(brings) {
            return Err(Other {
                kept: entry.kept.subscribe(),
                is_same_machine: bringing.from.is_some() && entry.bringing.from == bringing.from,
            });
        }
        all.0 += 1;
        let id = all.0;
        all.1.push(Entry {
            id,
            bringing: bringing.clone(),
            kept: watch::Sender::new(have),
        });
        Ok(Claim {
            coming: Arc::clone(self),
            id,
        })
    }
}

/// That a handoff brings pages; over when it is dropped.
#[derive(Debug)]
pub struct Claim {
    coming: Arc<Coming>,
    id: u64,
}

impl Claim {
    /// The complete pages of all tokens before `end` are where others find them.
    pub fn kept(&self, end: u32) {
        let all = self.coming.all();
        if let Some(entry) = all.1.iter().find(|e| e.id == self.id) {
            entry.kept.send_replace(page_start(end));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.coming.all().1.retain(|e| e.id != self.id);
    }
}

/// What a handoff shares with others.
#[derive(Debug)]
pub struct Shared {
    /// What all of them bring.
    pub coming: Arc<Coming>,
    /// What this one does; `None` if it shares nothing, or has not begun.
    pub bringing: Option<Bringing>,
    /// That it does now.
    pub claim: Option<Claim>,
}

impl Shared {
    /// Nothing yet.
    #[must_use]
    pub fn new(coming: &Arc<Coming>) -> Self {
        Self {
            coming: Arc::clone(coming),
            bringing: None,
            claim: None,
        }
    }
}

/// The prefills that are being sent, by where they go and the first page of their tokens.
#[derive(Debug, Default)]
pub struct Going {
    all: Mutex<Vec<Sent>>,
}

#[derive(Debug)]
struct Sent {
    target: String,
    first: PageId,
    is_accepted: Arc<watch::Sender<bool>>,
}

/// A prefill that another one precedes, which begins alike and goes to the same place.
#[derive(Debug)]
pub struct Preceded(watch::Receiver<bool>);

impl Preceded {
    /// Waits until that one has been accepted, or is over.
    pub async fn accepted(mut self) {
        let _ = self.0.wait_for(|is_accepted| *is_accepted).await;
    }
}

impl Going {
    fn all(&self) -> MutexGuard<'_, Vec<Sent>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn enter(self: &Arc<Self>, target: &str, first: PageId) -> (Gone, Option<Preceded>) {
        let is_accepted = Arc::new(watch::Sender::new(false));
        let mut all = self.all();
        let before = all.iter().find(|s| s.target == target && s.first == first);
        let preceded = before.map(|s| Preceded(s.is_accepted.subscribe()));
        all.push(Sent {
            target: target.to_owned(),
            first,
            is_accepted: Arc::clone(&is_accepted),
        });
        let going = Arc::clone(self);
        (Gone { going, is_accepted }, preceded)
    }
}

/// A prefill that is being sent; over when it is dropped.
#[derive(Debug)]
pub struct Gone {
    going: Arc<Going>,
    is_accepted: Arc<watch::Sender<bool>>,
}

impl Gone {
    /// The receiver has answered it.
    pub fn accepted(&self) {
        self.is_accepted.send_replace(true);
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        let mut all = self.going.all();
        all.retain(|sent| !Arc::ptr_eq(&sent.is_accepted, &self.is_accepted));
    }
}
