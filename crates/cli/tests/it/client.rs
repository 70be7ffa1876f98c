//! A client of the coordinator's and the nodes' APIs.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tandem_proto::{HandoffStatus, NodeStatus};

/// A client without proxies.
pub fn http() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("client")
}

/// A chat request that returns its tokens, and whose KV has left the caches of both nodes when its answer
/// ends: what lies in a cache decides in which order llama.cpp sums. Requests of different routes share no KV.
pub fn chat(model: &str, prompt: &str, max_tokens: u32, route: &str) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "tandem": {"route": route, "return_tokens": true, "keep": false, "cache_salt": route},
    })
}

/// The same with equal bits wherever it is prefilled.
pub fn exact(mut body: Value) -> Value {
    body["tandem"]["reproducible"] = json!(true);
    body
}

/// The whole answer to a request; panics unless it is a success.
pub async fn ask(coordinator: SocketAddr, body: &Value) -> Value {
    let (status, answer) = ask_any(coordinator, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Status and body of the answer to a request.
pub async fn ask_any(coordinator: SocketAddr, body: &Value) -> (u16, Value) {
    let response = http()
        .post(format!("http://{coordinator}/v1/chat/completions"))
        .json(body)
        .send()
        .await
        .expect("an answer");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

/// What a node does now.
pub async fn node_status(node: SocketAddr) -> NodeStatus {
    told(node, "status").await
}

/// What a node's handoffs hold.
pub async fn handoff_status(node: SocketAddr) -> HandoffStatus {
    told(node, "handoffs").await
}

async fn told<T: serde::de::DeserializeOwned>(node: SocketAddr, what: &str) -> T {
    get(node, &format!("node/v1/{what}")).await
}

/// What is at a path of a server, whatever its status.
pub async fn get<T: serde::de::DeserializeOwned>(server: SocketAddr, path: &str) -> T {
    let answer = http().get(format!("http://{server}/{path}")).send().await;
    answer.expect("an answer").json().await.expect("JSON")
}

/// The generated tokens of an answer.
pub fn tokens(answer: &Value) -> Vec<u64> {
    let tokens = answer["tandem"]["tokens"].as_array();
    let tokens = tokens.unwrap_or_else(|| panic!("no tokens in {answer}"));
    tokens.iter().map(|t| t.as_u64().expect("an id")).collect()
}

/// Deterministic text of so many bytes, which is as many tokens on fixtures.
pub fn text(bytes: usize) -> String {
    let mut out = String::with_capacity(bytes);
    let mut state = 12345u32;
    while out.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let c = char::from(b'a' + u8::try_from(state >> 24).expect("8 bits") % 26);
        out.push(if state >> 29 == 0 { ' ' } else { c });
    }
    out
}
