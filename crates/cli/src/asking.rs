//! Requests by which a command tries a model.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_api::{ChatCompletion, ErrorBody};

use crate::coordinator::Coordinator;

/// Longest wait for an answer: models on processors take minutes for one.
const LONGEST: Duration = Duration::from_secs(1800);

/// A prompt that no cache has: so many words of five random letters.
pub fn unseen(words: usize) -> String {
    let mut out = String::from("Repeat these words:");
    for _ in 0..words {
        let _ = write!(out, " {:05x}", rand::random::<u32>() & 0xf_ffff);
    }
    out
}

/// What went wrong, and its code.
pub struct Failed(pub String, pub Option<String>);

/// Asks a model for a chat, which nothing keeps.
///
/// # Errors
/// Says what went wrong.
pub async fn ask(
    coordinator: &Coordinator,
    model: &str,
    mut body: Value,
) -> Result<ChatCompletion, Failed> {
    body["model"] = json!(model);
    body["temperature"] = json!(0);
    body["tandem"] = json!({"keep": false});
    let url = format!("{}/chat/completions", coordinator.base_url());
    let failed = |e: reqwest::Error| Failed(e.to_string(), None);
    let sent = coordinator
        .http()
        .post(url)
        .timeout(LONGEST)
        .json(&body)
        .send();
    let answer = sent.await.map_err(failed)?;
    if answer.status().is_success() {
        return answer.json().await.map_err(failed);
    }
    let error: ErrorBody = answer.json().await.map_err(failed)?;
    Err(Failed(error.error.message, error.error.code))
}
