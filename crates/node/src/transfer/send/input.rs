//! What the engine gives to be sent, and what it has given.

use std::sync::Arc;
use std::time::Instant;

use tandem_handoff::receipt::Receipt;
use tokio::sync::{mpsc, oneshot};

use crate::model::Model;
use crate::sequence::{Command, Computed, Input};

/// What the engine computed for the last token.
pub(super) enum ReceiptState {
    /// May come.
    Open,
    /// Has come.
    Here(Box<Receipt>),
    /// Sent over the connection that is open now; a new one needs it again.
    Sent(Box<Receipt>),
    /// None was to come.
    None,
    /// None will come: the engine has failed.
    Lost,
}

/// The chunks of a prefill.
pub(super) struct Inputs {
    computed: mpsc::Receiver<Input>,
    /// The model, whose engine may have paused for want of room.
    model: Option<Arc<Model>>,
    /// Chunks that have been begun.
    chunks: u64,
    /// The chunk that is being computed.
    begun: Option<oneshot::Receiver<Computed>>,
    /// True once the last chunk has been begun.
    last_begun: bool,
    /// When the last chunk was computed.
    last: Option<Instant>,
    pub(super) receipt: ReceiptState,
}

impl Inputs {
    pub(super) const fn new(computed: mpsc::Receiver<Input>, model: Option<Arc<Model>>) -> Self {
        Self {
            computed,
            model,
            chunks: 0,
            begun: None,
            last_begun: false,
            last: None,
            receipt: ReceiptState::Open,
        }
    }

    /// What the engine gives next, of the chunk that has been begun first; `None` if nothing more comes.
    pub(super) async fn next(&mut self) -> Option<Input> {
        let given = match &mut self.begun {
            Some(chunk) => {
                let chunk = chunk.await.ok();
                self.begun = None;
                chunk.map(Input::Chunk)
            }
            None => self.computed.recv().await,
        };
        // A full queue wakes the engine anyway.
        if let Some(model) = &self.model {
            let _ = model.command(Command::Wake);
        }
        given
    }

    /// A chunk is being computed.
    pub(super) fn begin(&mut self, chunk: oneshot::Receiver<Computed>, is_last: bool) {
        self.begun = Some(chunk);
        self.last_begun = is_last;
        self.chunks += 1;
    }

    /// A chunk has been computed.
    pub(super) fn computed(&mut self, chunk: &Computed) {
        if chunk.last {
            self.last = Some(chunk.computed);
            if !chunk.receipt_follows {
                self.receipt = ReceiptState::None;
            }
        }
    }

    /// The chunk that is being computed, when it is. `None` if none is.
    ///
    /// # Errors
    /// If the engine has failed.
    pub(super) async fn begun(&mut self) -> Result<Option<Computed>, oneshot::error::RecvError> {
        match self.begun.take() {
            Some(chunk) => chunk.await.map(Some),
            None => Ok(None),
        }
    }

    /// When the last chunk was computed.
    pub(super) const fn last(&self) -> Option<Instant> {
        self.last
    }

    /// True once the last chunk has been begun.
    pub(super) const fn last_has_begun(&self) -> bool {
        self.last_begun || self.last.is_some()
    }

    /// True if the engine, which gives layers, has yet to begin a chunk.
    pub(super) const fn is_between_chunks(&self) -> bool {
        self.begun.is_none() && self.chunks > 0
    }

    pub(super) const fn is_receipt_open(&self) -> bool {
        matches!(self.receipt, ReceiptState::Open)
    }

    /// What was sent over a connection that broke is sent again.
    pub(super) fn resend_receipt(&mut self) {
        self.receipt = match std::mem::replace(&mut self.receipt, ReceiptState::None) {
            ReceiptState::Sent(receipt) => ReceiptState::Here(receipt),
            other => other,
        };
    }
}
