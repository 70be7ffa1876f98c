//! The routes of the public API.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::BytesMut;
use futures_util::StreamExt;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tandem_api::limits::MAX_BODY_BYTES;
use tandem_api::{
    ApiError, Model, ModelList, Passed, TandemOptions, model_of, parse_chat, parse_completion,
    pass_chat, pass_completion,
};
use tandem_proto::{Format, GenerationParams, Prompt};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::answer::{self, Api, Frame};
use crate::limits::{MAX_BODIES_BYTES, MAX_DROPPED_BYTES};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::service::Service;
use crate::{overview, translate};

/// What the handlers share.
pub(crate) struct Server {
    service: Arc<Service>,
    /// Makes ids of different runs of the coordinator differ.
    run: u64,
    requests: AtomicU64,
    /// Bytes that request bodies may still take while they are read.
    bodies: Semaphore,
    /// When the coordinator started, in seconds since 1970.
    started: u64,
}

/// The routes.
pub(crate) fn router(service: Arc<Service>) -> Router {
    let server = Server {
        service,
        // The standard library's only source of random bits.
        run: std::hash::RandomState::new().build_hasher().finish(),
        requests: AtomicU64::new(0),
        bodies: Semaphore::new(MAX_BODIES_BYTES),
        started: now(),
    };
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/tokenize", post(tokenize))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/nodes", get(nodes))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::new(server))
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

impl Server {
    fn next_id(&self) -> String {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("req-{:016x}-{n}", self.run)
    }
}

async fn chat(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = read_body(&server, &headers, body).await?;
    let (request, passed) = match is_passed(&server, &body) {
        true => pass_chat(&body).map(|(request, passed)| (request, Some(passed)))?,
        false => (parse_chat(&body, server.service.config.lenient)?, None),
    };
    drop(body);
    let asked = Asked {
        passed,
        api: Api::Chat,
        prompt: translate::chat_prompt(&request),
        generation: GenerationParams {
            sampling: request.sampling,
            format: request.response_format,
        },
        prompt_field: "messages",
        model: request.model,
        stream: request.stream,
        include_usage: request.stream_options.include_usage,
        options: request.tandem,
        ignored: request.ignored,
    };
    respond(&server, asked).await
}

async fn completion(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = read_body(&server, &headers, body).await?;
    let (request, passed) = match is_passed(&server, &body) {
        true => pass_completion(&body).map(|(request, passed)| (request, Some(passed)))?,
        false => (
            parse_completion(&body, server.service.config.lenient)?,
            None,
        ),
    };
    drop(body);
    let asked = Asked {
        passed,
        api: Api::Completion,
        prompt: translate::completion_prompt(&request),
        generation: GenerationParams {
            sampling: request.sampling,
            format: Format::Text,
        },
        prompt_field: "prompt",
        model: request.model,
        stream: request.stream,
        include_usage: request.stream_options.include_usage,
        options: request.tandem,
        ignored: request.ignored,
    };
    respond(&server, asked).await
}

async fn tokenize(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = read_body(&server, &headers, body).await?;
    let told = crate::tokenize::tokenize(&server.service, &body).await?;
    Ok(Json(told).into_response())
}

/// True for a request to a model that only servers have: they know what they can do.
fn is_passed(server: &Server, body: &[u8]) -> bool {
    let config = &server.service.config;
    !config.servers.is_empty() && model_of(body).is_some_and(|model| config.is_served_only(&model))
}

/// A request of either API.
struct Asked {
    passed: Option<Passed>,
    api: Api,
    model: String,
    prompt: Prompt,
    prompt_field: &'static str,
    generation: GenerationParams,
    stream: bool,
    include_usage: bool,
    options: TandemOptions,
    ignored: Vec<String>,
}

async fn respond(server: &Server, asked: Asked) -> Result<Response, Refusal> {
    let id = server.next_id();
    let prefix = match asked.api {
        Api::Chat => "chatcmpl",
        Api::Completion => "cmpl",
    };
    let frame = Frame {
        api: asked.api,
        id: format!("{prefix}-{id}"),
        created: now(),
        model: asked.model.clone(),
        include_usage: asked.include_usage,
    };
    let service = Arc::clone(&server.service);
    let (mut prompt, salt) = (asked.prompt, asked.options.cache_salt);
    service.answers.recall(&salt, &asked.model, &mut prompt);
    let request = Request {
        id,
        model: asked.model,
        prompt,
        passed: asked.passed,
        prompt_field: asked.prompt_field,
        generation: asked.generation,
        route: translate::route(asked.options.route),
        return_tokens: asked.options.return_tokens,
        cache_salt: salt,
        keep: asked.options.keep,
        reproducible: asked.options.reproducible,
        ignored: asked.ignored,
    };
    if asked.stream {
        answer::streamed(service, request, frame).await
    } else {
        answer::whole(service, request, frame).await
    }
}

/// A request body as far as it has come, and the room that it takes.
struct Kept<'a> {
    bytes: BytesMut,
    room: SemaphorePermit<'a>,
}

impl<'a> Kept<'a> {
    fn new(room: &'a Semaphore) -> Result<Self, ApiError> {
        Ok(Self {
            bytes: BytesMut::new(),
            room: taken(room, 0)?,
        })
    }

    /// With these bytes behind what there is.
    fn and(mut self, room: &'a Semaphore, bytes: &[u8]) -> Result<Self, ApiError> {
        if self.bytes.len() + bytes.len() > MAX_BODY_BYTES {
            return Err(ApiError::too_large(MAX_BODY_BYTES));
        }
        self.room.merge(taken(room, bytes.len())?);
        self.bytes.extend_from_slice(bytes);
        Ok(self)
    }
}

/// Room for so many bytes, if there is.
fn taken(room: &Semaphore, bytes: usize) -> Result<SemaphorePermit<'_>, ApiError> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    room.try_acquire_many(bytes).map_err(|_| {
        ApiError::busy("too many request bodies are being read; send the request again later")
    })
}

/// Reads a body of bounded size in bounded time. What is too much is read too, up to a limit,
/// because a client that is still sending may not see the refusal.
async fn read_body(server: &Server, headers: &HeaderMap, body: Body) -> Result<BytesMut, ApiError> {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|n| n > MAX_BODY_BYTES + MAX_DROPPED_BYTES) {
        return Err(ApiError::too_large(MAX_BODY_BYTES));
    }
    let reading = async {
        let mut stream = body.into_data_stream();
        let mut kept = match length {
            Some(n) if n > MAX_BODY_BYTES => Err(ApiError::too_large(MAX_BODY_BYTES)),
            _ => Kept::new(&server.bodies),
        };
        let mut total = 0;
        while let Some(bytes) = stream.next().await {
            let bytes = bytes
                .map_err(|_| ApiError::malformed("the request body broke off before its end"))?;
            total += bytes.len();
            if total > MAX_BODY_BYTES + MAX_DROPPED_BYTES {
                break;
            }
            // What is refused is dropped at once.
            kept = match kept {
                Ok(kept) => kept.and(&server.bodies, &bytes),
                refused => refused,
            };
        }
        let kept = kept?;
        check_content(headers)?;
        Ok(kept.bytes)
    };
    let limit = server.service.config.limits.body;
    let read = tokio::time::timeout(limit, reading).await;
    read.unwrap_or_else(|_| {
        let message = format!(
            "the request body did not arrive within {} s",
            limit.as_secs_f64()
        );
        Err(ApiError::new(
            408,
            "invalid_request_error",
            None,
            None,
            message,
        ))
    })
}

/// A web page may post any other type to any server without asking before.
fn check_content(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    };
    let refused = |what: &str, fix: &str| {
        let message = format!("{what}; {fix}");
        let kind = "invalid_request_error";
        Err(ApiError::new(
            415,
            kind,
            None,
            Some("unsupported_media_type"),
            message,
        ))
    };
    let kind = text(header::CONTENT_TYPE)
        .split(';')
        .next()
        .unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json"))
    {
        let fix = "send `Content-Type: application/json`";
        return refused("the body is not said to be JSON", fix);
    }
    let encoding = text(header::CONTENT_ENCODING).trim();
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
        return refused("the body is compressed", "send it as it is");
    }
    Ok(())
}

async fn models(State(server): State<Arc<Server>>) -> Result<Json<ModelList>, Refusal> {
    let service = &server.service;
    let look = service.cluster.look().await?;
    let models = &service.config.models;
    let names = models.iter().map(|m| m.name.as_str());
    let mut list = ModelList::new(names, server.started);
    for model in &mut list.data {
        let nodes = look.decoders.get(&model.id).into_iter().flatten();
        let nodes = nodes.map(|(_, context)| *context);
        let servers = service.servers.values().filter_map(|server| {
            let found = server.found()?;
            let served = found.models.iter().find(|served| served.ours == model.id)?;
            served.context
        });
        model.max_model_len = nodes.chain(servers).max();
    }
    Ok(Json(list))
}

async fn model(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Json<Model>, Refusal> {
    let Json(all) = models(State(server)).await?;
    let found = all.data.into_iter().find(|m| m.id == name);
    found
        .map(Json)
        .ok_or_else(|| ApiError::model_not_found(&name).into())
}

async fn nodes(State(server): State<Arc<Server>>) -> Result<Response, Refusal> {
    let look = server.service.cluster.look().await?;
    let pairs = server.service.pairs.reports();
    Ok(Json(overview::nodes(&server.service, &look, pairs)).into_response())
}

async fn metrics(State(server): State<Arc<Server>>) -> Result<Response, Refusal> {
    let look = server.service.cluster.look().await?;
    let mut registry = Registry::with_prefix("tandem");
    server.service.pairs.register(&mut registry);
    server.service.totals.register(&mut registry, &look.queued);
    crate::totals::register_busy(&mut registry, &look.nodes);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| ApiError::internal(e.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn health(State(server): State<Arc<Server>>) -> Result<Response, Refusal> {
    let look = server.service.cluster.look().await?;
    if !server.service.cluster.takes_requests() {
        return Err(ApiError::stopping().into());
    }
    let report = overview::health(&look);
    let status = if report.reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Ok((status, Json(report)).into_response())
}

async fn unknown_path() -> Refusal {
    let message = "there is nothing here; see /v1/chat/completions, /v1/completions, /v1/models, \
                   /v1/nodes, /metrics and /health";
    let kind = "invalid_request_error";
    Refusal(ApiError::new(404, kind, None, Some("unknown_url"), message))
}

async fn wrong_method() -> Refusal {
    let message = "this path does not take this method; POST to the completions, GET the others";
    let (kind, code) = ("invalid_request_error", Some("method_not_allowed"));
    Refusal(ApiError::new(405, kind, None, code, message))
}
