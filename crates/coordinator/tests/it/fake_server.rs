//! A server that is no node: it answers as a function says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tandem_coordinator::ServerConfig;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a server was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub key: Option<String>,
    pub id: Option<String>,
    /// What llm-d's side-car is told.
    pub prefiller: Option<String>,
    /// The body as it came.
    pub text: String,
    pub body: Value,
}

/// How it answers.
pub enum Reply {
    Json(u16, Value),
    /// What is to be JSON, as it is.
    Text(String),
    /// These pieces as events of this type, and how they end.
    Pieces(&'static str, Vec<String>, End),
    /// These events, so far apart.
    Slow(Vec<String>, Duration),
    Redirect(String),
    /// Nothing, ever.
    Hang,
}

/// How an answer in pieces ends.
#[derive(Clone, Copy)]
pub enum End {
    Whole,
    Broken,
    Silent,
}

type Answer = dyn Fn(&Asked) -> Reply + Send + Sync;

struct Shared {
    answer: Box<Answer>,
    log: Mutex<Vec<Asked>>,
    /// Answers that are not at their end.
    open: Arc<()>,
    /// Slow answers that were read to it.
    finished: AtomicUsize,
}

/// A running server. Dropping it stops it.
pub struct FakeServer {
    pub url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeServer {
    pub async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            log: Mutex::default(),
            open: Arc::default(),
            finished: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared, task }
    }

    /// One that speaks OpenAI's dialect, has the model `theirs`, and answers what this says.
    pub async fn openai(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |asked| match asked.path.as_str() {
            "/v1/models" => Reply::Json(
                200,
                json!({"object": "list", "data": [{"id": "theirs", "max_model_len": 4096, "root": "r"}]}),
            ),
            "/v1/chat/completions" | "/v1/completions" => answer(asked),
            _ => Reply::Json(404, json!({"detail": "Not Found"})),
        })
        .await
    }

    pub fn config(&self, name: &str) -> ServerConfig {
        let mut config = ServerConfig::new(name, &self.url);
        config.silence = Some(1);
        config
    }

    /// What it was asked at paths that end so.
    pub fn asked(&self, end: &str) -> Vec<Asked> {
        let log = self.shared.log.lock().unwrap();
        log.iter()
            .filter(|a| a.path.ends_with(end))
            .cloned()
            .collect()
    }

    /// How many slow answers were read to their end.
    pub fn finished(&self) -> usize {
        self.shared.finished.load(Ordering::SeqCst)
    }

    /// Waits until no answer is open.
    pub async fn idle(&self) {
        while Arc::strong_count(&self.shared.open) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
    let of = |name: &str| {
        parts
            .headers
            .get(name)
            .map(|v| v.to_str().unwrap().to_owned())
    };
    let asked = Asked {
        path: parts.uri.path().to_owned(),
        key: of("authorization"),
        id: of("x-request-id"),
        prefiller: of("x-prefiller-host-port"),
        text: String::from_utf8_lossy(&body).into_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let open = Arc::clone(&shared.open);
    let reply = (shared.answer)(&asked);
    shared.log.lock().unwrap().push(asked);
    match reply {
        Reply::Json(status, body) => {
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
        }
        Reply::Text(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Reply::Redirect(to) => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
        }
        Reply::Slow(pieces, pause) => {
            let pieces = stream::iter(pieces).then(move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, std::io::Error>(Bytes::from(piece))
            });
            let last = stream::once(async move {
                shared.finished.fetch_add(1, Ordering::SeqCst);
                Ok(Bytes::new())
            });
            let pieces = pieces.chain(last).map(move |piece| {
                let _open = &open;
                piece
            });
            let kind = [(header::CONTENT_TYPE, "text/event-stream")];
            (kind, Body::from_stream(pieces)).into_response()
        }
        Reply::Hang => {
            let _open = open;
            std::future::pending().await
        }
        Reply::Pieces(kind, pieces, end) => {
            let pieces = stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
            let last = stream::once(async move {
                match end {
                    End::Whole => Ok(Bytes::new()),
                    End::Broken => {
                        // What was sent before is to arrive.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Err(std::io::Error::other("broken"))
                    }
                    End::Silent => std::future::pending().await,
                }
            });
            let body = pieces.chain(last).map(move |piece| {
                let _open = &open;
                piece
            });
            ([(header::CONTENT_TYPE, kind)], Body::from_stream(body)).into_response()
        }
    }
}

/// The events of an answer with this text, in the words of OpenAI.
pub fn events(text: &str) -> Vec<String> {
    let delta = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!(
            "data: {}\n\n",
            json!({"id": "x", "model": "theirs", "choices": [choice]})
        )
    };
    let usage = json!({"prompt_tokens": 900, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}});
    vec![
        delta(json!({"role": "assistant", "content": text}), Value::Null),
        delta(json!({}), json!("stop")),
        format!("data: {}\n\n", json!({"choices": [], "usage": usage})),
        "data: [DONE]\n\n".to_owned(),
    ]
}

/// An answer with this text.
pub fn says(text: &str) -> Reply {
    Reply::Pieces("text/event-stream", events(text), End::Whole)
}
