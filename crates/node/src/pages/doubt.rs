//! Rows that must be compared before anybody may use them, or anybody who is not compared with them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_kv::page::PageId;

use super::index::Index;
use super::spill::Shared;

/// Marks such rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    serial: u64,
    readers: Readers,
}

/// Who may use rows before they have been compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Nobody.
    Nobody,
    /// Requests that are compared themselves before their first token, and so all that they began with.
    Compared,
}

impl Doubt {
    /// Who may use the rows.
    pub const fn readers(self) -> Readers {
        self.readers
    }

    /// True if such readers may use the rows.
    pub const fn is_open_to(self, readers: Readers) -> bool {
        matches!(
            (self.readers, readers),
            (Readers::Compared, Readers::Compared)
        )
    }
}

/// What was put in under one mark. It leaves the store with this, unless it has been trusted.
#[derive(Debug)]
pub struct Doubted {
    doubt: Doubt,
    ids: Mutex<Vec<PageId>>,
    shared: Arc<Shared>,
}

impl Doubted {
    /// Nothing yet, under a mark of its own.
    pub fn new(shared: Arc<Shared>, readers: Readers) -> Self {
        let serial = shared.with(Index::next_serial);
        Self {
            doubt: Doubt { serial, readers },
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
