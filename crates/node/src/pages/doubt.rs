//! Rows that must be compared before anybody may use them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_kv::page::PageId;

use super::index::Index;
use super::spill::Shared;

/// Marks such rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt(u64);

/// What was put in under one mark. It leaves the store with this, unless it has been trusted.
#[derive(Debug)]
pub struct Doubted {
    doubt: Doubt,
    ids: Mutex<Vec<PageId>>,
    shared: Arc<Shared>,
}

impl Doubted {
    /// Nothing yet, under a mark of its own.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            doubt: Doubt(shared.with(Index::next_serial)),
            ids: Mutex::default(),
            shared,
        }
    }

    /// The mark.
    pub const fn mark(&self) -> Doubt {
        self.doubt
    }

    /// An object was put in under the mark.
    pub fn holds(&self, id: PageId) {
        self.ids().push(id);
    }

    /// What is there is as good as other rows from now on.
    pub fn trust(&self) {
        let ids = std::mem::take(&mut *self.ids());
        self.shared.with(|index| index.trust(&ids, self.doubt));
    }

    fn ids(&self) -> MutexGuard<'_, Vec<PageId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Doubted {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut *self.ids());
        if !ids.is_empty() {
            self.shared
                .with(|index| index.drop_doubted(&ids, self.doubt));
        }
    }
}
