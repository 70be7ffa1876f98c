//! Which requests generate on this node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::Model;
use crate::sequence::SequenceId;

/// Requests by id.
#[derive(Debug, Default)]
pub struct Running {
    by_id: Mutex<HashMap<String, (Arc<Model>, SequenceId)>>,
}

impl Running {
    fn by_id(&self) -> MutexGuard<'_, HashMap<String, (Arc<Model>, SequenceId)>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request.
    pub fn insert(&self, request: &str, model: Arc<Model>, sequence: SequenceId) {
        self.by_id().insert(request.to_owned(), (model, sequence));
    }

    /// Removes a request, unless its id belongs to another sequence by now.
    pub fn remove(&self, request: &str, sequence: SequenceId) {
        let mut by_id = self.by_id();
        if by_id.get(request).is_some_and(|(_, j)| *j == sequence) {
            by_id.remove(request);
        }
    }

    /// The model and sequence of a request.
    pub fn get(&self, request: &str) -> Option<(Arc<Model>, SequenceId)> {
        self.by_id().get(request).cloned()
    }
}
