//! What a request holds of the store.

use std::ops::Range;

use tandem_handoff::page::{Namespace, Origin, PAGE_TOKENS, PageId};
use tandem_handoff::{KvBlock, Section};

use super::rows::Shape;
use super::{Held, LoadError, PageStore, Snapshot, Wanted};

/// Pages and a snapshot that are not evicted while this lives.
#[derive(Debug)]
pub struct Pinned {
    pub(super) store: PageStore,
    /// Of the snapshot.
    pub(super) namespace: Namespace,
    /// Where the pages are.
    pub(super) runs: Vec<(Namespace, Range<u32>)>,
    pub(super) tokens: Box<[u32]>,
    pub(super) wanted: Wanted,
    pub(super) held: Held,
    pub(super) objects: Vec<(PageId, u64)>,
    pub(super) is_counted: bool,
}

impl Pinned {
    /// What is pinned.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held
    }

    /// What the pages of these tokens have been through: of several the most lossy.
    #[must_use]
    pub fn origin(&self, tokens: &Range<u32>) -> Origin {
        let touches = |run: &Range<u32>| run.start < tokens.end && tokens.start < run.end;
        let runs = self.runs.iter().filter(|(_, run)| touches(run));
        let origins = runs.map(|(space, _)| space.origin());
        origins.max().unwrap_or(Origin::Exact)
    }

    /// Tokens of the largest block that a load returns, in whole pages.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        let shape = Shape::new(self.namespace.contract(), Section::Full);
        let pages = shape.map_or(1, |shape| shape.pages_per_block());
        u32::try_from(pages)
            .unwrap_or(u32::MAX)
            .saturating_mul(PAGE_TOKENS)
    }

    /// [`PageStore::load`] of pages that are pinned.
    ///
    /// # Errors
    /// If the range is not, or the disk failed.
    pub fn load(&self, range: Range<u32>) -> Result<Vec<KvBlock>, LoadError> {
        let mut blocks = Vec::new();
        let mut at = range.start;
        for (space, run) in &self.runs {
            let part = at..range.end.min(run.end);
            if run.contains(&at) && !part.is_empty() {
                at = part.end;
                let (store, tokens) = (&self.store, &self.tokens);
                blocks.extend(store.load(space, tokens, part, self.wanted)?);
            }
        }
        if at < range.end {
            return Err(LoadError::Missing { end: range.end });
        }
        Ok(blocks)
    }

    /// [`PageStore::load_snapshot`] of the snapshot that is pinned.
    ///
    /// # Errors
    /// If there is none, or the disk failed.
    pub fn load_snapshot(&self) -> Result<Snapshot, LoadError> {
        let position = self.held.snapshot.unwrap_or(0);
        self.store
            .load_snapshot(&self.namespace, &self.tokens, position, self.wanted)
    }

    /// A read from this has been given up and is still going on; it is overdue while the guard lives.
    #[must_use]
    pub fn overdue(&self) -> Overdue {
        let store = self.store.clone();
        store
            .shared
            .disk
            .as_ref()
            .inspect(|disk| disk.overdue(true));
        Overdue(store)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.store.shared.look(|index| {
            index.stats.pins -= u64::from(self.is_counted);
            for (id, birth) in &self.objects {
                index.unpin(id, *birth);
            }
        });
    }
}

/// While this lives, the disk counts as one that does not answer: nothing is read from it.
#[derive(Debug)]
pub struct Overdue(PageStore);

impl Drop for Overdue {
    fn drop(&mut self) {
        self.0
            .shared
            .disk
            .as_ref()
            .inspect(|disk| disk.overdue(false));
    }
}
