//! A server that is no node of tandem and stays as it is: Ollama, LM Studio, llama-server, vLLM, a server around MLX.
//!
//! - [`config`]: what the configuration says about it; [`dialect`]: how it is spoken to, and what that cannot do;
//! - [`probe`]: what it has; [`watch`]: the same again and again;
//! - [`ask`], [`read`]: requests and answers in its words; [`http`]: the way there;
//! - [`thoughts`], [`shape`]: what is done with an answer.

mod ask;
pub(crate) mod config;
pub(crate) mod dialect;
mod http;
pub(crate) mod probe;
mod read;
mod shape;
mod thoughts;
pub(crate) mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tandem_openai::{ApiError, FinishReason, ServerInfo};
use tandem_sched::Failure;
use tokio::sync::Semaphore;

use crate::backend::{Answer, Attempt, AttemptError, Backend, Running};
use crate::calls::CallError;
use crate::life::Job;
use crate::limits::{Limits, MAX_CORRECTIONS};
use crate::timeline::Timeline;
use ask::{Asked, Post};
use config::{DEFAULT_SILENCE_S, ServerConfig};
use dialect::Dialect;
use http::{Http, Refused};
use probe::{Found, Served};
use read::Part;
use shape::Shape;
use thoughts::Thoughts;

/// One server.
pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    http: Http,
    found: Mutex<Option<Arc<Found>>>,
    /// False once an answer had another shape than the server was asked to enforce.
    enforces: AtomicBool,
    /// True once an answer had the shape that the server was asked to enforce: until then answers are held until they are
    /// checked.
    proven: AtomicBool,
    /// Size of the context of each model of Ollama's, in tokens.
    contexts: Mutex<HashMap<String, u32>>,
    /// Room for answers, where one that nobody wants is computed to its end.
    places: Arc<Semaphore>,
    /// What each model was when it was first seen: name on the server, and what it told of it.
    first: Mutex<BTreeMap<String, (String, String)>>,
}

/// What one request to a server gave.
#[derive(Default)]
struct Got {
    text: String,
    thoughts: String,
    tools: Vec<Value>,
    finish: Option<FinishReason>,
    usage: Option<(u32, u32, u32)>,
    times: Option<(f64, f64)>,
    /// From the request's arrival to its first and to its last token.
    first: Option<Duration>,
    last: Duration,
    /// From the request's arrival until it was sent.
    sent: Duration,
    ended: bool,
}

impl Backend for Server {
    fn attempt<'a>(&'a self, attempt: Attempt<'a>) -> Running<'a, Result<Answer, AttemptError>> {
        Box::pin(self.answer(attempt))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// # Errors
    /// If its certificates cannot be used.
    pub(crate) fn new(config: ServerConfig, limits: Limits) -> Result<Self, String> {
        let silence = Duration::from_secs(config.silence.unwrap_or(DEFAULT_SILENCE_S));
        let http = Http::new(&config, limits.connect, silence)?;
        let parallel = config.parallel.unwrap_or(1) as usize;
        Ok(Self {
            http,
            found: Mutex::default(),
            enforces: AtomicBool::new(true),
            proven: AtomicBool::new(false),
            contexts: Mutex::default(),
            places: Arc::new(Semaphore::new(parallel)),
            first: Mutex::default(),
            config,
        })
    }

    /// What is known of it, if it is up.
    pub(crate) fn found(&self) -> Option<Arc<Found>> {
        locked(&self.found).clone()
    }

    /// Whether it is taken to bind answers to a schema.
    pub(crate) fn enforces(&self, dialect: Dialect) -> bool {
        dialect.traits().has_schemas && self.enforces.load(Ordering::Relaxed)
    }

    async fn answer(&self, mut call: Attempt<'_>) -> Result<Answer, AttemptError> {
        let job = call.job;
        let found = self.found();
        let model = found.as_ref().and_then(|found| {
            let model = found.models.iter().find(|model| model.ours == job.model)?;
            Some((found.dialect, model))
        });
        let (dialect, model) = model.ok_or_else(|| self.failed(Failure::Stopping, "has gone"))?;
        let shape = Shape::of(&job.generation.format).map_err(AttemptError::Final)?;
        let mut turns = Vec::new();
        loop {
            let instructed = shape.is_some() && !self.enforces(dialect);
            let asked = Asked {
                config: &self.config,
                dialect,
                model,
                job,
                shape: shape.as_ref(),
                instructed,
                turns: &turns,
                context: (dialect == Dialect::Ollama).then(|| self.context(job, model)),
            };
            let post = asked.post().map_err(AttemptError::Final)?;
            let is_proven = shape.is_none() || self.proven.load(Ordering::Relaxed);
            let holds = instructed || !is_proven || !dialect.traits().streams;
            let got = match self.once(&mut call, &post, dialect, holds).await? {
                Ok(got) => got,
                Err(refused) if shape.is_some() && !instructed && is_about_shape(&refused) => {
                    self.enforces.store(false, Ordering::Relaxed);
                    continue;
                }
                Err(refused) => return Err(self.refused(job, &refused)),
            };
            self.check_read(job, &got)?;
            let shown = shape
                .as_ref()
                .map(|_| if instructed { "instructed" } else { "enforced" });
            let Some(wrong) = self.wrong(shape.as_ref(), &got) else {
                let enforced = shape.is_some() && !instructed;
                self.proven.fetch_or(enforced, Ordering::Relaxed);
                let got = self.release(&mut call, got, shape.as_ref(), holds).await?;
                return Ok(self.complete(&mut call, got, (dialect, model), &post, shown));
            };
            self.enforces.store(false, Ordering::Relaxed);
            let note = format!(
                "the answer of server `{}` had not the shape that was asked for: {wrong}",
                self.config.name
            );
            if call.sink.has_begun() {
                // The next request is held until it is checked.
                return Err(AttemptError::Final(ApiError::bad_gateway(note)));
            }
            if turns.len() >= MAX_CORRECTIONS {
                return Err(AttemptError::Final(ApiError::other_shape(note)));
            }
            call.events.push(format!("{note}; asked again"));
            turns.push((got.text, wrong));
        }
    }

    /// What is wrong with the shape of an answer. One that was cut has none, and says so itself.
    fn wrong(&self, shape: Option<&Shape>, got: &Got) -> Option<String> {
        let is_cut = got.finish != Some(FinishReason::Stop);
        shape.filter(|_| !is_cut)?.check(&got.text).err()
    }

    /// Asks once; a refusal is for the caller to judge.
    async fn once(
        &self,
        call: &mut Attempt<'_>,
        post: &Post,
        dialect: Dialect,
        holds: bool,
    ) -> Result<Result<Got, Refused>, AttemptError> {
        if !dialect.traits().cancels {
            return self.once_to_the_end(call, post, dialect).await;
        }
        let sent = call.arrived.elapsed();
        let asked = self.http.ask(post.path, &post.body, &call.job.id).await;
        let mut events = match asked.map_err(|e| self.lost(call, &e))? {
            Ok(events) => events,
            Err(refused) => return Ok(Err(refused)),
        };
        call.sink.opened().await.map_err(AttemptError::Final)?;
        let mut got = Got {
            sent,
            ..Got::default()
        };
        let mut thoughts = Thoughts::default();
        while let Some(event) = events.next().await {
            let event = event.map_err(|e| self.lost(call, &e))?;
            let parts = read::parts(dialect, &event);
            let parts = parts.map_err(|why| self.failed(Failure::Refused, &why))?;
            for part in parts {
                self.take(call, part, &mut got, &mut thoughts, holds)
                    .await?;
            }
            if got.ended {
                break;
            }
        }
        let rest = thoughts.finish();
        self.said(call, rest, &mut got, holds).await?;
        if got.finish.is_none() {
            let error = CallError::Broken("ended its answer before the last event".to_owned());
            return Err(self.lost(call, &error));
        }
        Ok(Ok(got))
    }

    /// The same of a server that computes each answer to its end: the place is taken until then, also if nobody waits any more.
    async fn once_to_the_end(
        &self,
        call: &mut Attempt<'_>,
        post: &Post,
        dialect: Dialect,
    ) -> Result<Result<Got, Refused>, AttemptError> {
        let place = Arc::clone(&self.places).acquire_owned();
        let place = tokio::time::timeout(self.http.silence, place).await;
        let Ok(Ok(place)) = place else {
            return Err(self.failed(
                Failure::Busy,
                "is still busy with an answer that nobody wants",
            ));
        };
        let sent = call.arrived.elapsed();
        let (http, path, body) = (self.http.clone(), post.path, post.body.clone());
        let id = call.job.id.clone();
        let asking = tokio::spawn(async move {
            let mut texts = Vec::new();
            let asked = http.ask(path, &body, &id).await;
            let read = match asked {
                Ok(Ok(mut events)) => loop {
                    match events.next().await {
                        Some(Ok(text)) => texts.push(text),
                        Some(Err(error)) => break Err(error),
                        None => break Ok(Ok(texts)),
                    }
                },
                Ok(Err(refused)) => Ok(Err(refused)),
                Err(error) => Err(error),
            };
            drop(place);
            read
        });
        let read = asking
            .await
            .map_err(|e| self.failed(Failure::Refused, &e.to_string()))?;
        let texts = match read.map_err(|e| self.lost(call, &e))? {
            Ok(texts) => texts,
            Err(refused) => return Ok(Err(refused)),
        };
        call.sink.opened().await.map_err(AttemptError::Final)?;
        let mut got = Got {
            sent,
            ..Got::default()
        };
        for text in texts {
            let parts = read::parts(dialect, &text);
            for part in parts.map_err(|why| self.failed(Failure::Refused, &why))? {
                // All of it is there: no part of it need wait for the next.
                match part {
                    Part::Text(text) => got.text += &text,
                    Part::Finish(finish) => got.finish = Some(finish),
                    _ => {}
                }
            }
        }
        got.last = call.arrived.elapsed();
        got.first = Some(got.last);
        self.tidy(call, post, &mut got);
        Ok(Ok(got))
    }

    /// Takes out of a whole text what is no answer: the prompt in front of it, thoughts, and what follows a stop text.
    fn tidy(&self, call: &mut Attempt<'_>, post: &Post, got: &mut Got) {
        let name = &self.config.name;
        let prompt = post.body["prompt"].as_str().unwrap_or_default();
        let behind = got.text.strip_prefix(prompt).filter(|_| !prompt.is_empty());
        if let Some(behind) = behind {
            got.text = behind.to_owned();
            call.events.push(format!(
                "server `{name}` repeated the prompt before its answer; it was cut off"
            ));
        }
        let apart = thoughts::apart(&got.text);
        got.thoughts = apart.thought;
        got.text = apart.text;
        let stops = call.job.generation.stop.iter();
        let end = stops.filter_map(|stop| got.text.find(stop.as_str())).min();
        got.text.truncate(end.unwrap_or(got.text.len()));
    }

    /// Takes in one part.
    async fn take(
        &self,
        call: &mut Attempt<'_>,
        part: Part,
        got: &mut Got,
        thoughts: &mut Thoughts,
        holds: bool,
    ) -> Result<(), AttemptError> {
        if matches!(part, Part::Text(_) | Part::Thought(_) | Part::Tools(_)) {
            got.last = call.arrived.elapsed();
            got.first = got.first.or(Some(got.last));
        }
        match part {
            Part::Text(text) => {
                let apart = thoughts.push(&text);
                self.said(call, apart, got, holds).await?;
            }
            Part::Thought(thought) => {
                let apart = thoughts::Apart {
                    thought,
                    text: String::new(),
                };
                self.said(call, apart, got, holds).await?;
            }
            Part::Tools(calls) => {
                add_tools(&mut got.tools, &calls);
                call.sink.tools(calls).await.map_err(AttemptError::Final)?;
            }
            Part::Finish(finish) => got.finish = Some(finish),
            Part::Usage {
                prompt,
                cached,
                generated,
            } => got.usage = Some((prompt, cached, generated)),
            Part::Times {
                prefill_ms,
                decode_ms,
            } => got.times = Some((prefill_ms, decode_ms)),
            Part::Model(_) => {}
            Part::End => got.ended = true,
        }
        Ok(())
    }

    async fn said(
        &self,
        call: &mut Attempt<'_>,
        apart: thoughts::Apart,
        got: &mut Got,
        holds: bool,
    ) -> Result<(), AttemptError> {
        got.thoughts += &apart.thought;
        got.text += &apart.text;
        if holds {
            return Ok(());
        }
        let thought = call.sink.thought(apart.thought).await;
        thought.map_err(AttemptError::Final)?;
        call.sink
            .text(apart.text)
            .await
            .map_err(AttemptError::Final)
    }

    /// Passes on what was held until it was checked.
    async fn release(
        &self,
        call: &mut Attempt<'_>,
        mut got: Got,
        shape: Option<&Shape>,
        holds: bool,
    ) -> Result<Got, AttemptError> {
        if let Some(Ok(json)) = shape.map(|shape| shape.check(&got.text))
            && json.len() < got.text.len()
            && !call.sink.has_begun()
        {
            got.text = json.to_owned();
        }
        if holds {
            let thoughts = call.sink.thought(got.thoughts.clone()).await;
            thoughts.map_err(AttemptError::Final)?;
            let text = call.sink.text(got.text.clone()).await;
            text.map_err(AttemptError::Final)?;
        }
        Ok(got)
    }

    /// That the server has read the whole prompt.
    fn check_read(&self, job: &Job, got: &Got) -> Result<(), AttemptError> {
        let read = got.usage.map_or(0, |(prompt, ..)| prompt as usize);
        match shape::fewest_tokens(&job.prompt) {
            Some(fewest) if read > 0 && read < fewest => Err(self.failed(
                Failure::Refused,
                &format!(
                    "read {read} tokens of a prompt that has {fewest} at least: it cuts prompts; give it a longer context"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The answer, with its account.
    fn complete(
        &self,
        call: &mut Attempt<'_>,
        got: Got,
        (dialect, model): (Dialect, &Served),
        post: &Post,
        shape: Option<&str>,
    ) -> Answer {
        let name = &self.config.name;
        if got.usage.is_none() {
            call.events.push(format!(
                "server `{name}` does not tell how many tokens it read and wrote"
            ));
        }
        if !dialect.traits().tells_end {
            call.events.push(format!(
                "server `{name}` does not tell whether its answer is complete"
            ));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let first = got.first.unwrap_or(got.last);
        let (prompt, cached, generated) = got.usage.unwrap_or_default();
        let measured = (
            ms(first.saturating_sub(got.sent)),
            ms(got.last.saturating_sub(first)),
        );
        let (prefill_ms, decode_ms) = got.times.unwrap_or(measured);
        let mut timeline = Timeline {
            prompt_tokens: prompt,
            alone: true,
            generated_tokens: generated,
            first_token_ms: ms(first),
            decode_ms,
            server: Some(ServerInfo {
                dialect: dialect.as_str().to_owned(),
                model: model.theirs.clone(),
                reported: model.reported.clone(),
                verified: model.verified,
                prompt: post.prompt.to_owned(),
                shape: shape.map(str::to_owned),
            }),
            ..Timeline::default()
        };
        timeline.prefill.prefill_ms = prefill_ms;
        timeline.summary.cached_tokens = cached.min(prompt);
        Answer {
            text: got.text,
            thoughts: got.thoughts,
            tools: got.tools,
            tokens: Vec::new(),
            finish: got.finish.unwrap_or(FinishReason::Stop),
            timeline,
        }
    }

    fn context(&self, job: &Job, model: &Served) -> u32 {
        let mut contexts = locked(&self.contexts);
        let before = contexts.get(&model.theirs).copied().unwrap_or(0);
        let context = ask::context_for(job, before, model.context);
        contexts.insert(model.theirs.clone(), context);
        context
    }

    fn failed(&self, failure: Failure, why: &str) -> AttemptError {
        let message = format!("server `{}` {why}", self.config.name);
        AttemptError::Node { failure, message }
    }

    /// The connection failed, or what came over it is no answer.
    fn lost(&self, call: &mut Attempt<'_>, error: &CallError) -> AttemptError {
        if error.may_have_died() {
            call.losses.nodes.insert(self.config.name.clone());
            call.losses.unopened += usize::from(!call.sink.is_opened());
        }
        let failure = match error {
            CallError::Connect(_) => Failure::Unreachable,
            CallError::Silent(_) | CallError::Broken(_) => Failure::Lost,
            _ => Failure::Refused,
        };
        self.failed(failure, &error.to_string())
    }

    fn refused(&self, job: &Job, refused: &Refused) -> AttemptError {
        let Refused { status, message } = refused;
        let name = &self.config.name;
        let why = |what: &str| format!("{what} (status {status}): {message}");
        match status {
            400 | 413 | 422 if is_about_length(message) => {
                let message = format!("server `{name}`: {message}");
                AttemptError::TooLong(ApiError::new(
                    400,
                    "invalid_request_error",
                    Some(job.prompt_field),
                    Some("context_length_exceeded"),
                    message,
                ))
            }
            400 | 413 | 415 | 422 => AttemptError::Final(ApiError::new(
                400,
                "invalid_request_error",
                None,
                None,
                format!("server `{name}` {}", why("refused the request")),
            )),
            401 | 403 => self.failed(
                Failure::Refused,
                &why("wants another key; name one with `key_env` or `key_file`"),
            ),
            404 => self.failed(Failure::Refused, &why("does not have what was asked for")),
            408 | 429 => self.failed(Failure::Busy, &why("is busy")),
            503 => self.failed(Failure::Stopping, &why("does not take the request now")),
            _ => self.failed(Failure::Refused, &why("failed")),
        }
    }
}

/// Puts parts of calls of tools together, by their index.
fn add_tools(all: &mut Vec<Value>, parts: &[Value]) {
    for part in parts {
        let index = part["index"].as_u64();
        let Some(known) = all.iter_mut().find(|call| call["index"].as_u64() == index) else {
            all.push(part.clone());
            continue;
        };
        let more = part["function"]["arguments"].as_str().unwrap_or_default();
        let so_far = known["function"]["arguments"].as_str().unwrap_or_default();
        known["function"]["arguments"] = Value::String(format!("{so_far}{more}"));
    }
}

/// Servers tell in words only that a prompt is too long.
fn is_about_length(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let is_context = message.contains("context") || message.contains("token");
    let is_long = [
        "length",
        "exceed",
        "too long",
        "too large",
        "maximum",
        "larger",
    ];
    is_context && is_long.iter().any(|word| message.contains(word))
}

/// Or that they know no schemas.
fn is_about_shape(refused: &Refused) -> bool {
    let message = refused.message.to_ascii_lowercase();
    let words = [
        "response_format",
        "json_schema",
        "schema",
        "grammar",
        "structured",
        "format",
    ];
    matches!(refused.status, 400 | 422 | 500 | 501)
        && words.iter().any(|word| message.contains(word))
}
