//! What is tried on a model: whether it answers, thinks aloud, keeps to a shape, and how fast it is.

use serde_json::json;
use tandem_api::{ChatCompletion, OTHER_SHAPE, TandemInfo};

use super::checks::Subject;
use crate::asking::{Failed, ask, unseen};
use crate::coordinator::Coordinator;

/// Words of the prompt whose reading is timed: enough for the time not to be that of one step.
const WORDS: usize = 600;
/// Tokens of the answer whose writing is timed.
const TOKENS: u32 = 48;
/// What thoughts inside a text look like.
const THOUGHTS: [&str; 4] = ["<think", "</think", "<|channel|>", "[THINK]"];

/// Asks three times: for its speed, for an answer, for a shape.
pub async fn try_model(coordinator: &Coordinator, model: &str, subject: &mut Subject) {
    let body =
        json!({"messages": [{"role": "user", "content": unseen(WORDS)}], "max_tokens": TOKENS});
    match ask(coordinator, model, body).await {
        Ok(answer) => rates(&answer, subject),
        Err(error) => return subject.fail("answers", &error.0, ""),
    }
    let question = "What is 17 + 25? Answer with the number.";
    let body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 512});
    match ask(coordinator, model, body).await {
        Ok(answer) => thoughts(&answer, subject),
        Err(error) => subject.fail("answers", &error.0, ""),
    }
    shape(coordinator, model, subject).await;
}

fn info(answer: &ChatCompletion) -> TandemInfo {
    answer.tandem.clone().unwrap_or_default()
}

/// The text of an answer.
fn text(answer: &ChatCompletion) -> &str {
    let choice = answer.choices.first();
    let text = choice.and_then(|choice| choice.message.content.as_deref());
    text.unwrap_or_default()
}

fn rates(answer: &ChatCompletion, subject: &mut Subject) {
    let info = info(answer);
    let phases = &info.phases_ms;
    let rate =
        |tokens: u32, ms: f64| (tokens > 0 && ms > 0.0).then(|| f64::from(tokens) * 1e3 / ms);
    let fresh = info.prompt_tokens.saturating_sub(info.cached_tokens);
    match rate(fresh, phases.prefill) {
        Some(rate) => subject.ok(
            "prefill",
            &format!(
                "{rate:.0} tokens/s ({fresh} unseen tokens in {:.0} ms)",
                phases.prefill
            ),
        ),
        None => subject.warn(
            "prefill",
            "not measured: the server does not tell how many tokens it read",
            "",
        ),
    }
    match rate(info.generated_tokens.saturating_sub(1), phases.decode) {
        Some(rate) => subject.ok(
            "decode",
            &format!("{rate:.1} tokens/s ({} tokens)", info.generated_tokens),
        ),
        None => subject.warn(
            "decode",
            "not measured: the answer came whole, or with too few tokens",
            "",
        ),
    }
    let server = info.server.as_ref();
    match server.and_then(|server| server.path.as_deref()) {
        Some("fallback") => {
            let why = info.events.first().map_or("", String::as_str);
            subject.fail(
                "pair",
                why,
                "start the engine that prefills, or correct its address",
            );
        }
        Some(path) => subject.ok("pair", &format!("this prompt took the path `{path}`")),
        None => {}
    }
    if let Some(server) = info.server.filter(|server| server.prompt == "plain text") {
        subject.warn(
            "prompt",
            &format!(
                "`{}` reads it as plain text, and not in the form that it was trained for",
                server.model
            ),
            "name a chat template or a model file with `template`",
        );
    }
}

fn thoughts(answer: &ChatCompletion, subject: &mut Subject) {
    let message = answer.choices.first().map(|choice| &choice.message);
    let text = text(answer);
    let apart = message.and_then(|m| m.reasoning_content.as_ref());
    if THOUGHTS.iter().any(|mark| text.contains(mark)) {
        subject.fail(
            "thinking",
            "thoughts come inside the answer: students would read them",
            "switch thinking off there, or give the server its parser of thoughts",
        );
    } else if let Some(thoughts) = apart {
        let found = format!(
            "it thinks, apart from the answer ({} letters here)",
            thoughts.chars().count()
        );
        subject.ok("thinking", &found);
    } else {
        subject.ok("thinking", "none seen");
    }
    if text.trim().is_empty() && apart.is_none() {
        subject.fail(
            "answers",
            "it ends its answers without any text",
            "look at the log of the server, or give it another model",
        );
    } else if text.trim().is_empty() {
        subject.warn(
            "answer",
            "512 tokens were not enough for thoughts and an answer",
            "give jobs of the grading more `max_tokens`",
        );
    }
}

/// A shape that no answer to such a request would have by itself.
async fn shape(coordinator: &Coordinator, model: &str, subject: &mut Subject) {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["rain"],
        "properties": {"rain": {"enum": ["yes", "no"]}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "rain", "strict": true, "schema": schema}});
    let question = "Write two lines of a poem about rain.";
    let body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 512,
        "response_format": format});
    match ask(coordinator, model, body).await {
        Ok(answer) => {
            let server = info(&answer).server;
            let is_cut = answer.choices.first().and_then(|c| c.finish_reason)
                == Some(tandem_api::FinishReason::Length);
            let text = text(&answer).trim_start();
            let is_prose = !text.is_empty() && !text.starts_with('{');
            if text.is_empty() && !is_cut {
                return subject.fail(
                    "schema",
                    "it ends answers under a schema without any text",
                    "use another server for the analysis of code",
                );
            }
            match server.as_ref().and_then(|server| server.shape.as_deref()) {
                Some("enforced") if is_cut && is_prose => subject.warn(
                    "schema",
                    "not enforced: the model is told it, and each answer checked",
                    "",
                ),
                _ if is_cut => subject.warn("schema", "not known: the answer was cut", ""),
                None | Some("enforced") => subject.ok("schema", "enforced (tried)"),
                Some(_) => subject.warn(
                    "schema",
                    "not enforced: the model is told it, and each answer checked",
                    "",
                ),
            }
        }
        Err(Failed(message, code)) => {
            let is_shape = code.as_deref() == Some(OTHER_SHAPE);
            let fix = match is_shape {
                true => "it can write feedback, and analyse no code: use another server for that",
                false => "",
            };
            subject.warn("schema", &message, fix);
        }
    }
}
