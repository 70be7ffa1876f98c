//! Pairs of other engines: one of them prefills, another one decodes, and this coordinator tells both over HTTP. Their KV goes
//! its own way.
//!
//! What differs between them is in one table, [`Terms`]. What the engines tell each other goes on as it came: nothing of it is
//! read here.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tandem_proto::Prompt;
use tandem_sched::Failure;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::http::{Http, Message, error_message};
use crate::config::pair::{PairConfig, PairKind};
use crate::error::CallError;

/// Port at which an SGLang prefill engine meets its other half, unless the configuration says it.
pub const BOOTSTRAP_PORT: u16 = 8998;
/// Shortest prompt that is prefilled elsewhere, in tokens, unless the configuration says it: vLLM's own
/// `kv_recompute_threshold`.
pub const FROM_TOKENS: u32 = 64;
/// How long an engine that failed to prefill gets nothing, where there are others.
const AVOIDED: Duration = Duration::from_secs(30);
/// How long the half that decodes has to refuse by itself what the other half has refused.
const REFUSED_TWICE: Duration = Duration::from_secs(5);
/// Bytes of a prompt that are taken for a token.
const BYTES_PER_TOKEN: usize = 4;
/// Fields that the leg that only prefills must not have.
const NOT_FOR_PREFILL: [&str; 4] = [
    "stream_options",
    "min_tokens",
    "min_completion_tokens",
    "max_completion_tokens",
];

/// In which order the two are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The one that decodes, when the other one has answered.
    Sequential,
    /// Both at once.
    Concurrent,
    /// Only the one that decodes; it asks the other one itself.
    One,
}

/// How they find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// By what the one that prefills has answered.
    Returned,
    /// In a room whose number is drawn here.
    Room,
    /// By the address of the one that prefills.
    Address,
}

/// Where that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Body,
    Header,
}

/// What differs between kinds of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) order: Order,
    pub(crate) meeting: Meeting,
    pub(crate) carrier: Carrier,
    /// True if the one that decodes answers by itself where nothing was prefilled for it.
    pub(crate) decodes_alone: bool,
}

impl PairKind {
    pub(crate) const fn terms(self) -> Terms {
        match self {
            Self::Vllm => Terms {
                order: Order::Sequential,
                meeting: Meeting::Returned,
                carrier: Carrier::Body,
                decodes_alone: true,
            },
            Self::Sglang => Terms {
                order: Order::Concurrent,
                meeting: Meeting::Room,
                carrier: Carrier::Body,
                decodes_alone: false,
            },
            Self::LlmD => Terms {
                order: Order::One,
                meeting: Meeting::Address,
                carrier: Carrier::Header,
                decodes_alone: true,
            },
        }
    }
}

/// How often each path was taken.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub(crate) pd: AtomicU64,
    pub(crate) local: AtomicU64,
    pub(crate) fallback: AtomicU64,
}

/// The other legs of a pair.
pub(crate) struct Legs {
    config: PairConfig,
    prefill: Vec<Http>,
    /// When each of them failed last.
    failed: Arc<Mutex<Vec<Option<Instant>>>>,
    next: AtomicUsize,
    pub(crate) paths: Paths,
}

/// Which path a request took, for its timeline, and why.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    pub(crate) note: Option<String>,
    /// The other leg, while this one is under way.
    pub(crate) other: Option<Other>,
}

/// A leg that goes on beside another one. Dropping it ends it.
pub(crate) struct Other {
    /// Tells why it failed.
    pub(crate) failed: oneshot::Receiver<(Failure, String)>,
    task: AbortOnDropHandle<()>,
}

impl Other {
    /// What came of it is of use to others, and its answer is read to its end.
    pub(crate) fn detach(self) {
        drop(self.task.detach());
    }
}

impl Path {
    fn pd() -> Self {
        Self {
            name: "pd",
            note: None,
            other: None,
        }
    }
}

impl Legs {
    pub(crate) fn new(config: PairConfig, prefill: Vec<Http>) -> Self {
        Self {
            config,
            failed: Arc::new(Mutex::new(vec![None; prefill.len()])),
            prefill,
            next: AtomicUsize::new(0),
            paths: Paths::default(),
        }
    }

    /// Prepares the message to the one that decodes, and asks the one that prefills.
    ///
    /// # Errors
    /// If there is no answer without the other leg, and it cannot be asked.
    pub(crate) async fn prepare(
        &self,
        message: &mut Message,
        body: &Value,
        prompt: &Prompt,
    ) -> Result<Path, String> {
        let terms = self.config.kind.terms();
        let turn = self.turn();
        let other = self
            .prefill
            .get(turn)
            .ok_or("names no engine that prefills")?;
        let from = self.config.from_tokens.unwrap_or(FROM_TOKENS) as usize;
        let path = if terms.decodes_alone && tokens(prompt) < from {
            Path {
                name: "local",
                note: None,
                other: None,
            }
        } else {
            match terms.meeting {
                Meeting::Returned => self.returned((turn, other), message, body).await,
                Meeting::Room => self.room((turn, other), message),
                Meeting::Address => {
                    let at = (PREFILLER_HEADER, other.authority());
                    message.headers.push(at);
                    Path::pd()
                }
            }
        };
        let count = match path.name {
            "pd" => &self.paths.pd,
            "local" => &self.paths.local,
            _ => &self.paths.fallback,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(path)
    }

    /// The one whose turn it is, but for those that have failed a short time ago, if others have not.
    fn turn(&self) -> usize {
        let count = self.prefill.len().max(1);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_well = |turn: &usize| {
            let last = failed.get(*turn).copied().flatten();
            last.is_none_or(|since| since.elapsed() >= AVOIDED)
        };
        let mut turns = (0..count).map(|i| (first + i) % count);
        turns.find(is_well).unwrap_or(first % count)
    }

    /// One after the other: what the first one returns goes to the second as it is.
    async fn returned(
        &self,
        (turn, other): (usize, &Http),
        message: &mut Message,
        body: &Value,
    ) -> Path {
        let asks = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let mut first = body.clone();
        if let Some(first) = first.as_object_mut() {
            for name in NOT_FOR_PREFILL {
                first.shift_remove(name);
            }
            first.insert("stream".to_owned(), json!(false));
            first.insert("max_tokens".to_owned(), json!(1));
            first.insert("kv_transfer_params".to_owned(), asks);
            // One token is no call, which vLLM takes for its own failure (vllm-project/vllm#38911).
            if let Some(choice) = first.get_mut("tool_choice").filter(|c| **c != "none") {
                *choice = json!("auto");
            }
        }
        let first = Message {
            body: first.to_string(),
            ..message.clone()
        };
        match returned_by(other, &first).await {
            Ok(parameters) => {
                let parameters = parameters.get();
                message.insert("kv_transfer_params", parameters);
                Path::pd()
            }
            Err(why) => {
                note_failure(&self.failed, turn);
                Path {
                    name: "fallback",
                    note: Some(format!(
                        "the engine that prefills {why}; the one that decodes computes the prompt"
                    )),
                    other: None,
                }
            }
        }
    }

    /// Both at once, in a room. The first one's answer is read to its end and dropped; that the second one has ended does not
    /// end it.
    fn room(&self, (turn, other): (usize, &Http), message: &mut Message) -> Path {
        // The standard library's only source of random bits.
        let room = RandomState::new().build_hasher().finish() >> 1;
        let port = self.config.bootstrap_port.unwrap_or(BOOTSTRAP_PORT);
        message.insert("bootstrap_host", &json!(other.host()).to_string());
        message.insert("bootstrap_port", &json!(port).to_string());
        message.insert("bootstrap_room", &json!(room).to_string());
        let (other, first) = (other.clone(), message.clone());
        let (tell, failed) = oneshot::channel();
        let known = Arc::clone(&self.failed);
        let task = tokio::spawn(async move {
            let (failure, why) = match other.post(&first).await {
                Ok((200..300, _)) => return,
                Ok((status @ 400..500, body)) => {
                    // What is wrong with a request is said by the other half, too, and in its words.
                    tokio::time::sleep(REFUSED_TWICE).await;
                    let body = serde_json::from_slice::<Value>(&body).ok();
                    let said = body.as_ref().and_then(error_message).unwrap_or_default();
                    (
                        Failure::Refused,
                        format!("answered with status {status}: {said}"),
                    )
                }
                Ok((status, _)) => {
                    note_failure(&known, turn);
                    let failure = match status {
                        503 => Failure::Stopping,
                        _ => Failure::Refused,
                    };
                    (failure, format!("answered with status {status}"))
                }
                Err(error) => {
                    note_failure(&known, turn);
                    let failure = match &error {
                        CallError::Connect(_) => Failure::Unreachable,
                        _ => Failure::Lost,
                    };
                    (failure, error.to_string())
                }
            };
            // The other leg may have ended.
            let _ = tell.send((failure, format!("its engine that prefills {why}")));
        });
        Path {
            other: Some(Other {
                failed,
                task: AbortOnDropHandle::new(task),
            }),
            ..Path::pd()
        }
    }
}

fn note_failure(failed: &Mutex<Vec<Option<Instant>>>, turn: usize) {
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(last) = failed.get_mut(turn) {
        *last = Some(Instant::now());
    }
}

/// The header in which llm-d's side-car is told who prefills.
const PREFILLER_HEADER: &str = "x-prefiller-host-port";

/// Only what is passed on.
#[derive(Deserialize)]
struct Returned {
    kv_transfer_params: Option<Box<RawValue>>,
}

async fn returned_by(other: &Http, first: &Message) -> Result<Box<RawValue>, String> {
    let mut answer = other.post(first).await;
    if matches!(answer, Ok((502..=504, _))) {
        answer = other.post(first).await;
    }
    let (status, body) = answer.map_err(|e: CallError| e.to_string())?;
    if !(200..300).contains(&status) {
        return Err(format!("answered with status {status}"));
    }
    let returned: Returned =
        serde_json::from_slice(&body).map_err(|_| "answered with no JSON".to_owned())?;
    let parameters = returned.kv_transfer_params.filter(|p| p.get() != "null");
    parameters.ok_or_else(|| "returned no `kv_transfer_params`".to_owned())
}

/// About how many tokens a prompt has.
fn tokens(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Chat(messages) => {
            let bytes: usize = messages.iter().map(|m| m.content.len()).sum();
            bytes / BYTES_PER_TOKEN
        }
        Prompt::Text(text) => text.len() / BYTES_PER_TOKEN,
        Prompt::Tokens(tokens) => tokens.len(),
    }
}
