//! The parts of an answer, from the words of each dialect.

use serde_json::{Value, json};
use tandem_api::FinishReason;

use super::http::{error_message, shown};
use crate::config::dialect::Dialect;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Thought(String),
    /// Parts of calls of tools, as OpenAI streams them.
    Tools(Vec<Value>),
    Finish(FinishReason),
    /// It ended, and what came is not to be used: why.
    BadEnd(String),
    Usage {
        prompt: u32,
        cached: u32,
        generated: u32,
    },
    Times {
        prefill_ms: f64,
        decode_ms: f64,
    },
    /// The model by its own account.
    Model(String),
    /// Nothing more comes.
    End,
}

/// Reads one event.
///
/// # Errors
/// Why the server gave up, or what cannot be read.
pub(crate) fn parts(dialect: Dialect, event: &str) -> Result<Vec<Part>, String> {
    if event == "[DONE]" {
        return Ok(vec![Part::End]);
    }
    let value: Value = serde_json::from_str(event)
        .map_err(|e| format!("sent an event that is no JSON ({:?} error)", e.classify()))?;
    if let Some(message) = error_message(&value) {
        return Err(format!("failed: {message}"));
    }
    if !value.is_object() {
        return Err("sent an event that is no object".to_owned());
    }
    Ok(match dialect {
        Dialect::OpenAi => openai(&value),
        Dialect::Ollama => ollama(&value),
        Dialect::Generate => generate(&value)?,
    })
}

fn openai(value: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    let choice = &value["choices"][0];
    // A whole answer has `message` where an event has `delta`; completions have `text`.
    let message = match choice.get("delta").filter(|delta| delta.is_object()) {
        Some(delta) => delta,
        None => &choice["message"],
    };
    let is_whole = message.is_object() && choice.get("delta").is_none();
    let thought = text(&message["reasoning_content"]).or_else(|| text(&message["reasoning"]));
    parts.extend(thought.map(Part::Thought));
    match &message["content"] {
        Value::Array(content) => parts.extend(content.iter().filter_map(part)),
        content => {
            let said = text(content).or_else(|| text(&choice["text"]));
            parts.extend(said.map(Part::Text));
        }
    }
    if let Some(calls) = message["tool_calls"]
        .as_array()
        .filter(|calls| !calls.is_empty())
    {
        let indexed = calls.iter().enumerate().filter_map(|(i, call)| {
            let mut call = call.as_object()?.clone();
            call.entry("index").or_insert_with(|| json!(i));
            Some(Value::Object(call))
        });
        parts.push(Part::Tools(indexed.collect()));
    }
    parts.extend(value["model"].as_str().map(|m| Part::Model(m.to_owned())));
    // Some gateways put an empty one into each event.
    let reason = choice["finish_reason"].as_str();
    parts.extend(reason.filter(|reason| !reason.is_empty()).map(finish));
    if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
        let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
        let prompt = count(&usage["prompt_tokens"]);
        parts.push(Part::Usage {
            // Where more was cached than read, only the rest was counted as read.
            prompt: if cached > prompt {
                prompt.saturating_add(cached)
            } else {
                prompt
            },
            cached,
            generated: count(&usage["completion_tokens"]),
        });
    }
    if let Some(timings) = value.get("timings").filter(|timings| timings.is_object()) {
        parts.push(Part::Times {
            prefill_ms: milliseconds(&timings["prompt_ms"]),
            decode_ms: milliseconds(&timings["predicted_ms"]),
        });
    }
    if is_whole {
        parts.push(Part::End);
    }
    parts
}

/// A part of a content that is a list, as Mistral streams it.
fn part(value: &Value) -> Option<Part> {
    match value["type"].as_str() {
        Some("thinking") => match &value["thinking"] {
            Value::Array(thoughts) => {
                let thoughts: String = thoughts.iter().filter_map(|t| t["text"].as_str()).collect();
                (!thoughts.is_empty()).then_some(Part::Thought(thoughts))
            }
            thought => text(thought).map(Part::Thought),
        },
        Some("text" | "output_text") | None => text(&value["text"]).map(Part::Text),
        Some(_) => None,
    }
}

fn ollama(value: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    let message = &value["message"];
    let thought = text(&message["thinking"]).or_else(|| text(&value["thinking"]));
    parts.extend(thought.map(Part::Thought));
    let said = text(&message["content"]).or_else(|| text(&value["response"]));
    parts.extend(said.map(Part::Text));
    if let Some(calls) = message["tool_calls"]
        .as_array()
        .filter(|calls| !calls.is_empty())
    {
        // Each comes whole; what it says of its place among others is not to be relied on, so it is counted where they are
        // put together.
        let call = |call: &Value| {
            let function = &call["function"];
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            json!({"type": "function", "function": {"name": function["name"], "arguments": arguments}})
        };
        parts.push(Part::Tools(calls.iter().map(call).collect()));
    }
    parts.extend(value["model"].as_str().map(|m| Part::Model(m.to_owned())));
    if value["done"].as_bool() == Some(true) {
        let cached = count(&value["prompt_eval_cached_count"]);
        parts.push(Part::Usage {
            prompt: count(&value["prompt_eval_count"]).saturating_add(cached),
            cached,
            generated: count(&value["eval_count"]),
        });
        parts.push(Part::Times {
            prefill_ms: milliseconds(&value["prompt_eval_duration"]) / 1e6,
            decode_ms: milliseconds(&value["eval_duration"]) / 1e6,
        });
        // Before it told why.
        let reason = value["done_reason"].as_str().unwrap_or("stop");
        parts.push(finish(reason));
        parts.push(Part::End);
    }
    parts
}

/// One object: no reason of the end, and what it calls tokens are words.
fn generate(value: &Value) -> Result<Vec<Part>, String> {
    let answer = value["response"]
        .as_str()
        .or(value["generated_text"].as_str());
    let answer = answer.ok_or("answered without a `response`")?;
    let mut parts = vec![Part::Text(answer.to_owned())];
    parts.extend(value["model"].as_str().map(|m| Part::Model(m.to_owned())));
    parts.push(Part::Finish(FinishReason::Stop));
    parts.push(Part::End);
    Ok(parts)
}

/// Why an answer ended. A word that is no end of an answer, such as `error` or `abort`, is a failure.
fn finish(reason: &str) -> Part {
    Part::Finish(match reason.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" => {
            FinishReason::Stop
        }
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "content_filter" | "safety" => FinishReason::ContentFilter,
        _ => {
            return Part::BadEnd(format!(
                "ended its answer with the reason {:?}",
                shown(reason)
            ));
        }
    })
}

/// A text that is not empty.
fn text(value: &Value) -> Option<String> {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn count(value: &Value) -> u32 {
    value
        .as_u64()
        .map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn milliseconds(value: &Value) -> f64 {
    value
        .as_f64()
        .filter(|ms| ms.is_finite() && *ms >= 0.0)
        .unwrap_or(0.0)
}
