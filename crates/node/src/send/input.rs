//! What the engine gives to be sent.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::job::{Command, Computed, Input};
use crate::model::Model;

/// The chunks of a prefill.
pub(super) struct Inputs {
    computed: mpsc::Receiver<Input>,
    /// The model, whose engine may have paused for want of room.
    model: Option<Arc<Model>>,
}

impl Inputs {
    pub(super) const fn new(computed: mpsc::Receiver<Input>, model: Option<Arc<Model>>) -> Self {
        Self { computed, model }
    }

    /// What the engine gives next, of the chunk that has been begun first; `None` if nothing more comes.
    pub(super) async fn next(
        &mut self,
        begun: &mut Option<oneshot::Receiver<Computed>>,
    ) -> Option<Input> {
        let given = match begun {
            Some(chunk) => {
                let chunk = chunk.await.ok();
                *begun = None;
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
}
