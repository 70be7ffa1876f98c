//! Models that answer as asked, slowly: an OpenAI server of a few lines, which reads the schema that it is sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tandem_gradebook::ModelServer;
use tandem_grading::JobConfig;
use tokio::net::TcpListener;

/// The models.
#[derive(Clone, Default)]
pub struct Models {
    /// Milliseconds between two parts of an answer.
    pub pause_ms: Arc<AtomicU64>,
    /// Answer nothing but errors.
    pub are_ill: Arc<AtomicBool>,
    /// Are not there for the moment.
    pub are_away: Arc<AtomicBool>,
    /// What they tell of their weights; nothing if that is empty.
    pub weights: Arc<Mutex<String>>,
    /// Have no template for chats.
    pub no_chat: Arc<AtomicBool>,
    /// Cut each feedback at its limit.
    pub cut: Arc<AtomicBool>,
    /// Tell of each answer what one machine would have taken alone.
    pub tell_alone: Arc<AtomicBool>,
    /// How often each prompt was answered to its end.
    pub answered: Arc<Mutex<HashMap<String, usize>>>,
    /// All prompts, in their order.
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl Models {
    /// Serves them on a port of their own; returns where.
    pub async fn serve(&self) -> ModelServer {
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .route("/v1/nodes", get(nodes))
            .with_state(self.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let job = |model: &str| JobConfig {
            model: model.to_owned(),
            max_tokens: 2000,
            temperature: 0.0,
            seed: None,
        };
        ModelServer {
            base_url: format!("http://{address}/v1"),
            code_analysis: job("code"),
            feedback: job("words"),
            parallel: 2,
            reproducible: false,
            wait: Duration::from_millis(200),
        }
    }
}

async fn nodes(State(models): State<Models>) -> axum::Json<Value> {
    let weights = models.weights.lock().unwrap().clone();
    let no_chat = models.no_chat.load(Ordering::Relaxed);
    let no_chat = no_chat.then_some("the model has no chat template");
    let held =
        |name| json!({ "name": name, "contract": { "weights": weights }, "no_chat": no_chat });
    let data = match weights.is_empty() {
        true => json!([]),
        false => json!([{ "name": "big", "up": true, "models": [held("code"), held("words")] }]),
    };
    axum::Json(json!({ "data": data, "queued": [{ "model": "code" }, { "model": "words" }] }))
}

/// What a coordinator tells of an answer whose decode node has a profile.
fn told() -> Value {
    let phases = json!({
        "queue": 0.0, "tokenize": 1.0, "prefill": 120.0, "transfer": 90.0, "exposed_transfer": 2.0,
        "apply": 4.0, "first_token": 130.0, "decode": 300.0,
    });
    json!({
        "request_id": "r", "mode": "remote", "prefill_node": "fast", "decode_node": "big", "prompt_tokens": 900,
        "cached_tokens": 0, "generated_tokens": 60, "phases_ms": phases, "handoff_bytes": 5000,
        "alone": { "machine": "m4-max", "predicted_ms": 9200.0, "speed_up": 1.15 },
    })
}

async fn answer(State(models): State<Models>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let prompt = format!("{} {}", request["model"], request["messages"]);
    models.asked.lock().unwrap().push(prompt.clone());
    if models.are_ill.load(Ordering::Relaxed) {
        let error = json!({ "error": { "message": "out of memory", "type": "server_error" } });
        return (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(error)).into_response();
    }
    if models.are_away.load(Ordering::Relaxed) {
        let error =
            json!({ "error": { "message": "server `code` is down", "type": "server_error" } });
        return (StatusCode::SERVICE_UNAVAILABLE, axum::Json(error)).into_response();
    }
    let schema = &request["response_format"]["json_schema"]["schema"];
    let text = match schema.is_null() {
        true => format!(
            "**What works:** It says what it does. {}\n\n**Next step:** Try an empty list.",
            "The names say what they hold, and the loop does one thing. "
                .repeat(5)
                .trim()
        ),
        false if schema["properties"]["criteria"]["type"] == "array" => rubric().to_string(),
        false => verdict(schema).to_string(),
    };
    let parts: Vec<String> = text
        .chars()
        .collect::<Vec<_>>()
        .chunks(9)
        .map(|part| part.iter().collect())
        .collect();
    let chunk = |delta: Value, finish: Value| {
        let chunk = json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
        format!("data: {chunk}\n\n")
    };
    let mut events: Vec<String> = parts
        .into_iter()
        .map(|part| chunk(json!({ "content": part }), Value::Null))
        .collect();
    let most = request["max_tokens"].as_u64().unwrap();
    let (finish, made) = match schema.is_null() && models.cut.load(Ordering::Relaxed) {
        true => ("length", most),
        false => ("stop", 60),
    };
    let mut end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": finish }] });
    end["usage"] =
        json!({ "prompt_tokens": 900, "completion_tokens": made, "total_tokens": 900 + made });
    if models.tell_alone.load(Ordering::Relaxed) {
        end["tandem"] = told();
    }
    events.push(format!("data: {end}\n\n"));
    events.push("data: [DONE]\n\n".to_owned());
    let last = events.len() - 1;
    let stream =
        futures_util::stream::iter(events.into_iter().enumerate()).then(move |(i, event)| {
            let (models, prompt) = (models.clone(), prompt.clone());
            async move {
                let pause = models.pause_ms.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                if i == last {
                    *models.answered.lock().unwrap().entry(prompt).or_default() += 1;
                }
                Ok::<_, std::convert::Infallible>(event)
            }
        });
    (
        [("content-type", "text/event-stream")],
        Body::from_stream(stream),
    )
        .into_response()
}

/// Criteria that weigh 1, 2 and 4, with three levels each.
fn rubric() -> Value {
    let level =
        |label: &str| json!({ "label": label, "when": format!("what is {label} can be seen") });
    let one = |(title, weight): (&str, u32)| {
        json!({
            "title": title, "description": format!("It asks for {title}."), "weight": weight,
            "levels": (["all", "half", "none"].map(level)),
        })
    };
    json!({ "criteria": ([("The\n loop", 1), ("Names", 2), ("Result", 4)].map(one)) })
}

/// The first line as evidence, and the last of the points that each criterion allows.
fn verdict(schema: &Value) -> Value {
    let criteria = schema["properties"]["criteria"]["properties"]
        .as_object()
        .unwrap();
    let one = |(id, of): (&String, &Value)| {
        let points = of["properties"]["points"]["enum"].as_array().unwrap();
        let mut evidence = json!({ "line_start": 1, "line_end": 1 });
        let file = &of["properties"]["evidence"]["items"]["properties"]["file"]["enum"][0];
        if !file.is_null() {
            evidence["file"] = file.clone();
        }
        let value = json!({
            "evidence": [evidence],
            "rationale": "The first line shows it.",
            "points": points.last().unwrap(),
        });
        (id.clone(), value)
    };
    let criteria: serde_json::Map<String, Value> = criteria.iter().map(one).collect();
    json!({ "criteria": criteria })
}
