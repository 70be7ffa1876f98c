//! The control API that the coordinator calls.

mod generate;
mod link;
mod prefill;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_cluster::{PeerId, host_name, is_this_machine};
use tandem_handoff::Contract;
use tandem_proto::limits::MAX_BODY_BYTES;
use tandem_proto::{
    Capacity, ErrorCode, HandoffStatus, ModelStatus, NodeError, NodeStatus, PROTOCOL_VERSION,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::generate::{generate, prefill_failed, tokenize};
use self::prefill::prefill;
use crate::limits::{MAX_HANDOFFS, MAX_RETURNS, STAGING_UNIT, STAGING_UNITS};
use crate::model::Model;
use crate::node::Node;
use crate::sequence::Command;

/// The routes.
pub fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/node/v1/status", get(status))
        .route("/node/v1/handoffs", get(handoffs))
        .route("/node/v1/tokenize", post(tokenize))
        .route("/node/v1/generate", post(generate))
        .route("/node/v1/prefill", post(prefill))
        .route("/node/v1/link", post(link::test))
        .route("/node/v1/link/source", post(link::source))
        .route(
            "/node/v1/requests/{id}/prefill-failed",
            post(prefill_failed),
        )
        // The middleware has the limit.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&node),
            whole_body,
        ))
        // It does not keep what comes.
        .route("/node/v1/link/sink", post(link::sink))
        .layer(DefaultBodyLimit::disable())
        .with_state(node)
}

/// Refuses what a browser sends for a page: one that names its origin, and without TLS one whose name was made to stand
/// for this machine.
fn check_asker(node: &Node, headers: &HeaderMap) -> Result<(), NodeError> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let is_strange = !node.config.security.is_tls()
        && host.is_some_and(|host| !is_this_machine(&host_name(host)));
    if is_strange || headers.contains_key(header::ORIGIN) {
        let message = "web pages may not ask a node; without TLS, a coordinator asks for 127.0.0.1 or localhost";
        return Err(NodeError::new(ErrorCode::Refused, message));
    }
    Ok(())
}

/// Refuses what a browser sends, and reads the body within [`MAX_BODY_BYTES`] and [`crate::Limits::body`], so that no request hangs in it.
async fn whole_body(
    State(node): State<Arc<Node>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    check_asker(&node, request.headers())?;
    let limit = node.config.limits.body;
    let (parts, body) = request.into_parts();
    let reading = axum::body::to_bytes(body, MAX_BODY_BYTES);
    let bytes = tokio::time::timeout(limit, reading)
        .await
        .map_err(|_| {
            invalid(format!(
                "the request body did not come within {} s",
                limit.as_secs_f32()
            ))
        })?
        .map_err(|e| invalid(format!("request body: {e}; at most {MAX_BODY_BYTES} bytes")))?;
    Ok(next
        .run(Request::from_parts(parts, Body::from(bytes)))
        .await)
}

/// A request that is being prepared. It is counted before it is asked whether the node drains, so that one of both sees
/// the other.
struct Preparing(Arc<Node>);

impl Preparing {
    fn at(node: &Arc<Node>) -> Self {
        node.preparing.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(node))
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.preparing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A [`NodeError`] as an answer.
struct Refusal(NodeError);

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// The only machine that may be at the other end, as a field of a request names it; `None` without TLS, where nobody is
/// known. `why` it must be named, as the end of a sentence.
fn named_peer(
    node: &Node,
    field: &str,
    named: Option<&str>,
    why: &str,
) -> Result<Option<PeerId>, NodeError> {
    match (named, node.config.security.is_tls()) {
        (None, true) => Err(invalid(format!("`{field}` is missing: this node {why}"))),
        (Some(_), false) => Err(invalid(format!(
            "`{field}` cannot be checked: this node was started with --plaintext"
        ))),
        (None, false) => Ok(None),
        (Some(id), true) => {
            let id = id.parse();
            id.map(Some).map_err(|e| invalid(format!("`{field}`: {e}")))
        }
    }
}

fn invalid(message: impl Into<String>) -> NodeError {
    NodeError::new(ErrorCode::InvalidRequest, message)
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, NodeError> {
    serde_json::from_slice(body).map_err(|e| invalid(format!("request body: {e}")))
}

async fn status(State(node): State<Arc<Node>>) -> Json<NodeStatus> {
    let limit = node.config.limits.beat;
    let models = node.models.iter().map(|model| model_status(model, limit));
    Json(NodeStatus {
        protocol: PROTOCOL_VERSION,
        version: node.config.version.clone(),
        role: node.config.role,
        draining: node.draining.load(Ordering::Relaxed),
        handoff_port: node.handoff_port,
        identity: node.config.security.own_id().map(|id| id.to_string()),
        models: futures_util::future::join_all(models).await,
    })
}

/// What handoffs hold now.
async fn handoffs(State(node): State<Arc<Node>>) -> Json<HandoffStatus> {
    let taken = |all: usize, left: &Semaphore| (all - left.available_permits()) as u64;
    let pages = node.pages.stats();
    Json(HandoffStatus {
        tickets: node.tickets.count() as u64,
        receiving: taken(MAX_HANDOFFS, &node.receiving),
        sending: node.links.going() as u64,
        secrets: node.handoffs.count() as u64,
        staging_bytes: taken(STAGING_UNITS, &node.staging) * STAGING_UNIT,
        returns: taken(MAX_RETURNS, &node.returns),
        pages: pages.pages,
        snapshots: pages.snapshots,
        pins: pages.pins,
        page_bytes: pages.ram_bytes + pages.queued_bytes,
        disk_bytes: pages.disk_bytes,
        disk_errors: pages.disk_errors,
    })
}

/// An engine in the middle of a long chunk is not waited for: its sequences are then left out.
async fn model_status(model: &Model, limit: Duration) -> ModelStatus {
    let (reply, answer) = oneshot::channel();
    let sequences = match model.command(Command::Status(reply)) {
        Ok(()) => tokio::time::timeout(limit, answer).await.ok(),
        Err(_) => None,
    };
    let c = model.capacity;
    ModelStatus {
        name: model.name.clone(),
        contract: Contract::clone(&model.contract),
        capacity: Capacity {
            sequences: c.sequences,
            tokens_per_sequence: c.tokens_per_sequence,
            prefill_tokens: c.prefill_tokens,
            microbatch_tokens: c.microbatch_tokens,
        },
        threads: model.threads,
        no_chat: model.template.as_ref().err().cloned(),
        stays: model.stays.clone(),
        busy_percent: model.busy_percent(),
        steps: model.step_times(),
        sequences: sequences.and_then(Result::ok).unwrap_or_default(),
    }
}

/// Checks that chunks of this size can be computed in the batch shapes of the engine.
fn check_chunk(model: &Model, chunk: u32) -> Result<(), NodeError> {
    let c = model.capacity;
    if chunk > c.prefill_tokens || !chunk.is_multiple_of(c.microbatch_tokens) {
        return Err(invalid(format!(
            "`chunk` is {chunk}; this node computes at most {} tokens at once, in multiples of {}",
            c.prefill_tokens, c.microbatch_tokens
        )));
    }
    Ok(())
}

/// Events as lines of JSON, with beats in between, until the last one. `guard` lives as long as
/// the stream.
fn event_stream<E, G>(
    first: Option<E>,
    receiver: mpsc::Receiver<E>,
    guard: G,
    beat_every: Duration,
    beat: E,
    is_last: fn(&E) -> bool,
) -> Response
where
    E: Serialize + Clone + Send + 'static,
    G: Send + 'static,
{
    let state = (first, receiver, guard, beat, false);
    let lines = stream::unfold(
        state,
        move |(mut first, mut receiver, guard, beat, over)| async move {
            if over {
                return None;
            }
            let event = match first.take() {
                Some(event) => event,
                None => match tokio::time::timeout(beat_every, receiver.recv()).await {
                    Ok(event) => event?,
                    Err(_) => beat.clone(),
                },
            };
            let over = is_last(&event);
            let mut line = serde_json::to_vec(&event).unwrap_or_default();
            line.push(b'\n');
            let item: Result<Vec<u8>, Infallible> = Ok(line);
            Some((item, (first, receiver, guard, beat, over)))
        },
    );
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}
