//! An answer as HTTP: whole, or as server-sent events with signs of life.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tandem_api::{
    ApiError, ChatCompletion, ChatCompletionChunk, Completion, Delta, SSE_DONE, sse_error,
    sse_event,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::limits::MAX_PIECES;
use crate::refusal::Refusal;
use crate::request::{Outcome, Piece, Request, Sink};
use crate::service::{self, Service};

/// A comment line; clients ignore it, but see that the server is alive.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Which of the two APIs is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completion,
}

/// What all chunks of an answer have in common.
pub(crate) struct Frame {
    pub(crate) api: Api,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Whether the usage comes in a chunk of its own at the end.
    pub(crate) include_usage: bool,
}

/// Answers with one object.
pub(crate) async fn whole(
    service: Arc<Service>,
    request: Request,
    frame: Frame,
) -> Result<Response, Refusal> {
    let mut sink = Sink::new(None, service.config.limits.client_stall);
    let outcome = service::answer(&service, &request, &mut sink).await?;
    let (id, model) = (&frame.id, &frame.model);
    Ok(match frame.api {
        Api::Chat => {
            let (text, finish, usage) = (outcome.text, outcome.finish, outcome.usage);
            let mut object = ChatCompletion::new(id, frame.created, model, text, finish, usage);
            let message = &mut object.choices[0].message;
            message.reasoning_content = Some(outcome.thoughts).filter(|t| !t.is_empty());
            message.tool_calls = Some(outcome.tools).filter(|tools| !tools.is_empty());
            if message.tool_calls.is_some() {
                message.content = message.content.take().filter(|text| !text.is_empty());
            }
            object.tandem = Some(outcome.info);
            Json(object).into_response()
        }
        Api::Completion => {
            let finish = Some(outcome.finish);
            let mut object = Completion::new(id, frame.created, model, outcome.text, finish);
            object.usage = Some(outcome.usage);
            object.tandem = Some(outcome.info);
            Json(object).into_response()
        }
    })
}

/// Answers with events. What fails at once is answered with its status instead.
pub(crate) async fn streamed(
    service: Arc<Service>,
    request: Request,
    frame: Frame,
) -> Result<Response, Refusal> {
    let keep_alive = service.config.limits.keep_alive;
    let (sender, mut pieces) = mpsc::channel(MAX_PIECES);
    let task = tokio::spawn(service::stream(service, request, sender));
    // Dropping the answer ends the task and with it the connections to the nodes.
    let task = AbortOnDropHandle::new(task);
    let first = match tokio::time::timeout(keep_alive, pieces.recv()).await {
        Ok(Some(Piece::Failed(error))) => return Err(error.into()),
        Ok(Some(piece)) => frame.piece(piece),
        Ok(None) => return Err(ApiError::internal("the request ended without an answer").into()),
        Err(_) => Part::more(KEEP_ALIVE.to_owned()),
    };
    let state = Streaming {
        frame,
        pieces,
        keep_alive,
        next: Some(first),
        over: false,
        _task: task,
    };
    let body = Body::from_stream(stream::unfold(state, Streaming::step));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, body).into_response())
}

/// Text to send, and whether it is the last.
struct Part {
    text: String,
    last: bool,
}

impl Part {
    fn more(text: String) -> Self {
        Self { text, last: false }
    }

    fn last(text: String) -> Self {
        Self { text, last: true }
    }
}

struct Streaming {
    frame: Frame,
    pieces: mpsc::Receiver<Piece>,
    keep_alive: Duration,
    next: Option<Part>,
    over: bool,
    _task: AbortOnDropHandle<()>,
}

impl Streaming {
    async fn step(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.over {
            return None;
        }
        let part = match self.next.take() {
            Some(part) => part,
            None => match tokio::time::timeout(self.keep_alive, self.pieces.recv()).await {
                Err(_) => Part::more(KEEP_ALIVE.to_owned()),
                Ok(Some(piece)) => self.frame.piece(piece),
                Ok(None) => {
                    let error = ApiError::internal("the request ended without an answer");
                    Part::last(sse_error(&error))
                }
            },
        };
        self.over = part.last;
        Some((Ok(Bytes::from(part.text)), self))
    }
}

impl Frame {
    fn piece(&self, piece: Piece) -> Part {
        let (id, created, model) = (&*self.id, self.created, &*self.model);
        match (piece, self.api) {
            (Piece::Opened, Api::Chat) => {
                Part::more(sse_event(&ChatCompletionChunk::first(id, created, model)))
            }
            // Nothing to say yet, but the client sees that the request is taken on.
            (Piece::Opened, Api::Completion) => Part::more(KEEP_ALIVE.to_owned()),
            (Piece::Text(text), Api::Chat) => Part::more(sse_event(&ChatCompletionChunk::text(
                id, created, model, text,
            ))),
            (Piece::Text(text), Api::Completion) => {
                Part::more(sse_event(&Completion::new(id, created, model, text, None)))
            }
            (Piece::Thought(thought), Api::Chat) => self.delta(Delta {
                reasoning_content: Some(thought),
                ..Delta::default()
            }),
            (Piece::Tools(calls), Api::Chat) => self.delta(Delta {
                tool_calls: Some(calls),
                ..Delta::default()
            }),
            // A completion has no place for them.
            (Piece::Thought(_) | Piece::Tools(_), Api::Completion) => {
                Part::more(KEEP_ALIVE.to_owned())
            }
            (Piece::Done(outcome), Api::Chat) => Part::last(self.last_chat(*outcome)),
            (Piece::Done(outcome), Api::Completion) => Part::last(self.last_completion(*outcome)),
            (Piece::Failed(error), _) => Part::last(sse_error(&error)),
        }
    }

    fn delta(&self, delta: Delta) -> Part {
        let (id, created, model) = (&*self.id, self.created, &*self.model);
        Part::more(sse_event(&ChatCompletionChunk::new(
            id, created, model, delta, None,
        )))
    }

    /// The end of a chat: the reason, perhaps the usage, and `[DONE]`. The extension is in the
    /// last chunk.
    fn last_chat(&self, outcome: Outcome) -> String {
        let (id, created, model) = (&*self.id, self.created, &*self.model);
        let finish = Some(outcome.finish);
        let mut end = ChatCompletionChunk::new(id, created, model, Delta::default(), finish);
        if !self.include_usage {
            end.tandem = Some(outcome.info);
            return sse_event(&end) + SSE_DONE;
        }
        let mut usage = ChatCompletionChunk::empty(id, created, model);
        usage.usage = Some(outcome.usage);
        usage.tandem = Some(outcome.info);
        sse_event(&end) + &sse_event(&usage) + SSE_DONE
    }

    fn last_completion(&self, outcome: Outcome) -> String {
        let (id, created, model) = (&*self.id, self.created, &*self.model);
        let finish = Some(outcome.finish);
        let mut end = Completion::new(id, created, model, String::new(), finish);
        if !self.include_usage {
            end.tandem = Some(outcome.info);
            return sse_event(&end) + SSE_DONE;
        }
        let mut usage = Completion::empty(id, created, model);
        usage.usage = Some(outcome.usage);
        usage.tandem = Some(outcome.info);
        sse_event(&end) + &sse_event(&usage) + SSE_DONE
    }
}
