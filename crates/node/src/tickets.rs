//! Who may hand KV to which sequence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use tandem_identity::PeerId;
use tandem_kv::receiver::Expectation;

use crate::job::JobId;
use crate::model::Model;

/// A handoff that a ticket permits.
#[derive(Debug, Clone)]
pub struct Permitted {
    /// Id of the request.
    pub request: String,
    /// The model whose cache takes the KV.
    pub model: Arc<Model>,
    /// The waiting job.
    pub job: JobId,
    /// What must arrive.
    pub expectation: Expectation,
    /// Who must bring it; `None` only without TLS, where nobody is known.
    pub peer: Option<PeerId>,
}

/// The tickets that are valid now. A ticket is removed when it is used, when it expires, and when
/// its request ends.
#[derive(Debug, Default)]
pub struct Tickets {
    open: Mutex<HashMap<String, Permitted>>,
}

impl Tickets {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Permitted>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a ticket; gives its secret, 128 random bits in hex.
    pub fn issue(&self, permitted: Permitted) -> String {
        let mut secret = [0u8; 16];
        rand::rng().fill_bytes(&mut secret);
        let secret: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        self.open().insert(secret.clone(), permitted);
        secret
    }

    /// Uses a ticket up.
    pub fn take(&self, secret: &str) -> Option<Permitted> {
        self.open().remove(secret)
    }
}

/// A new id of a handoff.
#[must_use]
pub fn handoff_id() -> u64 {
    rand::rng().next_u64()
}
