//! A request, and where its answer goes.

use std::time::Duration;

use serde_json::Value;
use tandem_api::{ApiError, FinishReason, Passed, TandemInfo, Usage};
use tandem_proto::{GenerationParams, Prompt};
use tandem_sched::Route;
use tokio::sync::mpsc;

/// A request, translated.
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) prompt: Prompt,
    /// The fields of the request as they came, for a model that only servers have.
    pub(crate) passed: Option<Passed>,
    /// Field of the public request that holds the prompt, for messages.
    pub(crate) prompt_field: &'static str,
    pub(crate) generation: GenerationParams,
    pub(crate) route: Route,
    pub(crate) return_tokens: bool,
    pub(crate) cache_salt: String,
    /// Whether the answer may be kept for a next turn.
    pub(crate) keep: bool,
    /// Whether the answer has the same bits whatever else happens.
    pub(crate) reproducible: bool,
    /// Fields of the request that were ignored.
    pub(crate) ignored: Vec<String>,
}

/// A request that is answered.
pub(crate) struct Outcome {
    /// The whole text, also if it was streamed.
    pub(crate) text: String,
    /// What the model thought before.
    pub(crate) thoughts: String,
    /// Tools that it calls.
    pub(crate) tools: Vec<Value>,
    pub(crate) finish: FinishReason,
    pub(crate) usage: Usage,
    pub(crate) info: TandemInfo,
}

/// A part of a streamed answer.
pub(crate) enum Piece {
    /// A node has taken the request on.
    Opened,
    /// More text.
    Text(String),
    /// More of what the model thinks before.
    Thought(String),
    /// More of the tools that it calls.
    Tools(Vec<Value>),
    /// Last: the answer is complete.
    Done(Box<Outcome>),
    /// Last: there is no (further) answer.
    Failed(ApiError),
}

/// Where the pieces of an answer go; nowhere if it is wanted whole.
pub(crate) struct Sink {
    pieces: Option<mpsc::Sender<Piece>>,
    stall: Duration,
    opened: bool,
    /// The client has seen text, so the request cannot start over.
    begun: bool,
}

impl Sink {
    pub(crate) fn new(pieces: Option<mpsc::Sender<Piece>>, stall: Duration) -> Self {
        Self {
            pieces,
            stall,
            opened: false,
            begun: false,
        }
    }

    /// Tells once that a node has taken the request on.
    pub(crate) async fn opened(&mut self) -> Result<(), ApiError> {
        if std::mem::replace(&mut self.opened, true) {
            return Ok(());
        }
        self.send(Piece::Opened).await
    }

    /// Passes text on; an empty one is left out.
    pub(crate) async fn text(&mut self, text: String) -> Result<(), ApiError> {
        if text.is_empty() || self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Text(text)).await
    }

    /// The same with thoughts.
    pub(crate) async fn thought(&mut self, thought: String) -> Result<(), ApiError> {
        if thought.is_empty() || self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Thought(thought)).await
    }

    /// And with calls of tools.
    pub(crate) async fn tools(&mut self, calls: Vec<Value>) -> Result<(), ApiError> {
        if self.pieces.is_none() {
            return Ok(());
        }
        self.begun = true;
        self.send(Piece::Tools(calls)).await
    }

    /// True if the client has seen something of the answer.
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// True if somebody has taken the request on.
    pub(crate) const fn is_opened(&self) -> bool {
        self.opened
    }

    /// Passes a piece on, within the time that a client may leave one unread.
    pub(crate) async fn send(&self, piece: Piece) -> Result<(), ApiError> {
        let Some(pieces) = &self.pieces else {
            return Ok(());
        };
        let sent = tokio::time::timeout(self.stall, pieces.send(piece)).await;
        let seconds = self.stall.as_secs_f64();
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(ApiError::internal("the client has gone")),
            Err(_) => Err(ApiError::internal(format!(
                "the client left the answer unread for {seconds} s"
            ))),
        }
    }
}
