//! A scripted OpenAI server on port 0, which reads requests with the project's own strict parser.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tandem_api::*;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

/// What the server does with one request.
#[derive(Clone)]
pub enum Script {
    /// Streams this text.
    Text(String),
    /// Streams this text and says that it was cut.
    Cut(String),
    /// Streams this text with the extension in the last chunk.
    Tandem(String),
    /// Answers with one JSON object, without a stream.
    Whole(String),
    /// Answers with an error of this status.
    Status(u16),
    /// Streams an error after the first chunk.
    ErrorInStream,
    /// Streams something that is no chunk.
    Garbage,
    /// Ends the stream after the first chunk.
    Broken,
    /// Never answers.
    Hang,
    /// Sends the first chunk, then nothing.
    HangInStream,
}

type Decide = dyn Fn(&ChatRequest, usize) -> Script + Send + Sync;

pub struct Server {
    pub url: String,
    pub seen: Arc<Mutex<Vec<Value>>>,
    /// Requests in flight; a client that goes away ends its request.
    pub open: Arc<AtomicUsize>,
    /// Tokens of the context, if it counts tokens.
    pub context: Arc<AtomicUsize>,
    /// Prompts that it will not count yet.
    pub away: Arc<AtomicUsize>,
}

/// Counts one request while it lives.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Shared {
    decide: Arc<Decide>,
    seen: Arc<Mutex<Vec<Value>>>,
    barrier: Option<Arc<Barrier>>,
    open: Arc<AtomicUsize>,
    context: Arc<AtomicUsize>,
    away: Arc<AtomicUsize>,
}

/// Starts a server that decides by the request and by how many requests came before it.
/// With a barrier, no request is answered before that many are in flight.
pub async fn serve(
    barrier: Option<usize>,
    decide: impl Fn(&ChatRequest, usize) -> Script + Send + Sync + 'static,
) -> Server {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let open = Arc::new(AtomicUsize::new(0));
    let context = Arc::new(AtomicUsize::new(0));
    let away = Arc::new(AtomicUsize::new(0));
    let barrier = barrier.map(|n| Arc::new(Barrier::new(n)));
    let shared = Shared {
        decide: Arc::new(decide),
        seen: seen.clone(),
        barrier,
        open: open.clone(),
        context: context.clone(),
        away: away.clone(),
    };
    let app = Router::new()
        .route("/v1/chat/completions", post(answer))
        .route("/tokenize", post(count))
        .with_state(shared);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("address"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Server {
        url,
        seen,
        open,
        context,
        away,
    }
}

/// Counts a byte as a token, where [`Server::context`] is set; else there is no such route.
async fn count(State(shared): State<Shared>, body: Bytes) -> Response {
    let less = |left: usize| left.checked_sub(1);
    if shared
        .away
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .is_ok()
    {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let context = shared.context.load(Ordering::SeqCst);
    let request = parse_chat(&body, false).unwrap();
    let count: usize = request.messages.iter().map(|m| m.content.len()).sum();
    match context {
        0 => StatusCode::NOT_FOUND.into_response(),
        _ => axum::Json(json!({"count": count, "max_model_len": context})).into_response(),
    }
}

async fn answer(State(shared): State<Shared>, body: Bytes) -> Response {
    shared.open.fetch_add(1, Ordering::SeqCst);
    let _open = Open(shared.open.clone());
    let request = match parse_chat(&body, false) {
        Ok(request) => request,
        Err(e) => {
            return (
                StatusCode::BAD_REQUEST,
                serde_json::to_string(&e.body()).unwrap(),
            )
                .into_response();
        }
    };
    let before = {
        let mut seen = shared.seen.lock().unwrap();
        seen.push(serde_json::from_slice(&body).unwrap());
        seen.len() - 1
    };
    if let Some(barrier) = &shared.barrier {
        barrier.wait().await;
    }
    respond((shared.decide)(&request, before)).await
}

async fn respond(script: Script) -> Response {
    let chunk = |text: &str| sse_event(&ChatCompletionChunk::text("id", 0, "m", text.to_owned()));
    let end = |finish| {
        sse_event(&ChatCompletionChunk::new(
            "id",
            0,
            "m",
            Delta::default(),
            Some(finish),
        ))
    };
    match script {
        Script::Text(text) => stream(format!(
            "{}{}{SSE_DONE}",
            chunk(&text),
            end(FinishReason::Stop)
        )),
        Script::Cut(text) => stream(format!(
            "{}{}{SSE_DONE}",
            chunk(&text),
            end(FinishReason::Length)
        )),
        Script::Tandem(text) => {
            let mut last = ChatCompletionChunk::empty("id", 0, "m");
            last.usage = Some(Usage::new(7, 2, 3));
            let mode = "remote".to_owned();
            last.tandem = Some(TandemInfo {
                mode,
                tokens: Some(vec![1, 2, 3]),
                ..TandemInfo::default()
            });
            stream(format!(
                ": alive\n\n{}{}{}{SSE_DONE}",
                chunk(&text),
                end(FinishReason::Stop),
                sse_event(&last)
            ))
        }
        Script::Whole(text) => {
            let whole =
                ChatCompletion::new("id", 0, "m", text, FinishReason::Stop, Usage::new(1, 0, 1));
            axum::Json(json!(whole)).into_response()
        }
        Script::Status(status) => {
            let body = ApiError::new(status, "server_error", None, None, "scripted").body();
            (
                StatusCode::from_u16(status).unwrap(),
                axum::Json(json!(body)),
            )
                .into_response()
        }
        Script::ErrorInStream => stream(format!(
            "{}{}",
            chunk("x"),
            sse_error(&ApiError::bad_gateway("node lost"))
        )),
        Script::Garbage => stream("data: {\"choices\": 7}\n\n".to_owned()),
        Script::Broken => stream(chunk("x")),
        Script::Hang => std::future::pending().await,
        Script::HangInStream => {
            use futures_util::StreamExt;
            let first = futures_util::stream::iter([Ok::<_, std::io::Error>(chunk("x"))]);
            sse(Body::from_stream(
                first.chain(futures_util::stream::pending()),
            ))
        }
    }
}

fn stream(text: String) -> Response {
    sse(Body::from(text))
}

fn sse(body: Body) -> Response {
    ([("content-type", "text/event-stream")], body).into_response()
}
