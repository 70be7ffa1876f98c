//! A server that is no node of tandem and stays as it is: Ollama, LM Studio, llama-server, vLLM, a server around MLX.
//!
//! - [`config`]: what the configuration says about it; [`dialect`]: how it is spoken to, and what that cannot do;
//! - [`probe`]: what it has; [`watch`]: the same again and again;
//! - [`ask`], [`read`]: requests and answers in its words; [`http`]: the way there;
//! - [`legs`]: the other leg of a pair of other engines;
//! - [`shape`], and [`thoughts`] beside this file: what is done with an answer.

mod ask;
mod http;
mod legs;
pub(crate) mod probe;
mod read;
mod shape;
pub(crate) mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::RandomState;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::Value;
use tandem_api::{ApiError, FinishReason, ServerInfo};
use tandem_sched::Failure;
use tokio::sync::Semaphore;

use crate::backend::thoughts::{self, Thoughts};
use crate::backend::{Answer, Attempt, AttemptError, Backend, Running};
use crate::config::dialect::Dialect;
use crate::config::server::{DEFAULT_SILENCE_S, ServerConfig, base};
use crate::error::CallError;
use crate::limits::{
    DISBELIEF, LEAST_CONTEXT, Limits, MAX_CORRECTIONS, MAX_KNOWN_BLOCKS, MAX_KNOWN_SHAPES,
};
use crate::prefix::Beginning;
use crate::request::Request;
use crate::timeline::Timeline;
use ask::{Asked, Post};
use http::{Http, Message, Refused};
use legs::{Legs, Other};
use probe::{Found, Served};
use read::Part;
use shape::{Kind, Shape};

/// One server.
pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    http: Http,
    /// Where it is half of a pair.
    legs: Option<Legs>,
    found: Mutex<Option<Arc<Found>>>,
    /// What is known of whether it binds answers to a shape, by model and shape.
    enforces: Mutex<HashMap<(String, Kind, u64), Enforces>>,
    /// Models that were seen to think without an opening mark, with that mark's place.
    thinkers: Mutex<HashMap<String, usize>>,
    /// Beginnings of prompts that it has read.
    read: Mutex<HashSet<u64>>,
    /// For digests of prompts.
    keys: RandomState,
    /// Requests that it works on.
    busy: Arc<AtomicUsize>,
    /// Size of the context of each model of Ollama's, in tokens.
    contexts: Mutex<HashMap<String, u32>>,
    /// Room for answers, where one that nobody wants is computed to its end.
    places: Arc<Semaphore>,
    /// What each model was when it was first seen.
    first: Mutex<BTreeMap<String, Served>>,
}

/// Whether a server binds answers to a shape.
#[derive(Debug, Clone, Copy)]
enum Enforces {
    /// It was asked to, and the answer had it.
    Proven,
    /// It was asked to, and the answer had not, or it refused; since then.
    Not(Instant),
}

impl Enforces {
    fn is_not(self) -> bool {
        matches!(self, Self::Not(since) if since.elapsed() < DISBELIEF)
    }
}

/// Counts a request for as long as it is there.
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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
    /// Which path it took through a pair.
    path: Option<&'static str>,
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
        let http = |base: &str| Http::new(&config, base, limits.connect, silence);
        let legs = config.pair.as_ref().map(|pair| {
            let prefill = pair.prefill.iter().map(|url| http(base(url)));
            Ok::<_, String>(Legs::new(pair.clone(), prefill.collect::<Result<_, _>>()?))
        });
        let (http, legs) = (http(base(&config.url))?, legs.transpose()?);
        let parallel = config.parallel.unwrap_or(1) as usize;
        Ok(Self {
            http,
            legs,
            found: Mutex::default(),
            enforces: Mutex::default(),
            thinkers: Mutex::default(),
            read: Mutex::default(),
            keys: RandomState::new(),
            busy: Arc::default(),
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

    /// How often each path through a pair was taken: prefilled there, short, or in vain.
    pub(crate) fn paths(&self) -> Option<BTreeMap<String, u64>> {
        let paths = &self.legs.as_ref()?.paths;
        let all = [
            ("pd", &paths.pd),
            ("local", &paths.local),
            ("fallback", &paths.fallback),
        ];
        Some(
            all.map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
                .into(),
        )
    }

    /// True while it works on a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Whether it is taken to bind all answers to a schema: no model of it has failed one lately, or it has kept another.
    pub(crate) fn enforces_all(&self, found: &Found) -> bool {
        found.dialect.traits().has_schemas
            && found.models.iter().all(|model| {
                let known = locked(&self.enforces);
                let of_model = |(key, _): &(&(String, Kind, u64), &Enforces)| {
                    key.0 == model.ours && key.1 == Kind::Schema
                };
                let mut known = known.iter().filter(of_model).map(|(_, enforces)| enforces);
                let is_proven = known.clone().any(|e| matches!(e, Enforces::Proven));
                is_proven || known.all(|enforces| !enforces.is_not())
            })
    }

    /// Whether it is taken to bind answers of a model to this shape, and whether that has been seen; after a time it may
    /// have learnt to. What it does with one shape says nothing of another.
    fn enforces(&self, dialect: Dialect, model: &str, shape: &Shape) -> Option<bool> {
        if !dialect.traits().has_schemas {
            return None;
        }
        let key = (model.to_owned(), shape.kind(), shape.digest());
        match locked(&self.enforces).get(&key) {
            Some(Enforces::Proven) => Some(true),
            Some(known) if known.is_not() => None,
            Some(Enforces::Not(_)) | None => Some(false),
        }
    }

    fn learn(&self, model: &str, shape: &Shape, enforces: Enforces) {
        let mut known = locked(&self.enforces);
        if known.len() >= MAX_KNOWN_SHAPES {
            known.clear();
        }
        known.insert((model.to_owned(), shape.kind(), shape.digest()), enforces);
    }

    /// What an answer that has the shape tells; one that was cut has not been checked.
    fn learn_from(&self, model: &str, shape: &Shape, got: &Got) {
        if got.finish != Some(FinishReason::Stop) {
            return;
        }
        // Words around it come where nothing binds the model.
        let is_bound = shape.check(&got.text) == Ok(got.text.trim());
        let learnt = match is_bound {
            true => Enforces::Proven,
            false => Enforces::Not(Instant::now()),
        };
        self.learn(model, shape, learnt);
    }

    /// What a refusal of a shape tells: the model is told the shape from now on.
    ///
    /// # Errors
    /// If it has kept others: it knows shapes, and this one is too much for it.
    fn learn_refusal(
        &self,
        model: &str,
        shape: &Shape,
        refused: &Refused,
        is_only: bool,
    ) -> Result<(), AttemptError> {
        if self.has_kept_one(model, shape.kind()) {
            return Err(self.unable(self.unfit(refused), is_only));
        }
        self.learn(model, shape, Enforces::Not(Instant::now()));
        Ok(())
    }

    /// True if it was seen to bind answers of a model to some shape of this kind.
    fn has_kept_one(&self, model: &str, kind: Kind) -> bool {
        let known = locked(&self.enforces);
        let mut of_kind = known
            .iter()
            .filter(|(key, _)| key.0 == model && key.1 == kind);
        of_kind.any(|(_, enforces)| matches!(enforces, Enforces::Proven))
    }

    async fn answer(&self, mut call: Attempt<'_>) -> Result<Answer, AttemptError> {
        let request = call.request;
        let found = self.found();
        let model = found.as_ref().and_then(|found| found.model(&request.model));
        let (dialect, model) = model.ok_or_else(|| self.failed(Failure::Stopping, "has gone"))?;
        let _busy = Busy::new(&self.busy);
        let is_only = call.config.is_served_only(&request.model);
        let shape = Shape::of(&request.generation.format).map_err(|e| self.unable(e, is_only))?;
        let mut turns = Vec::new();
        // Why it did not take the shape.
        let mut unfit: Option<Refused> = None;
        loop {
            let of_shape = |shape: &Shape| self.enforces(dialect, &model.ours, shape);
            let believed = shape.as_ref().map(of_shape);
            let instructed = matches!(believed, Some(None));
            let context = self.context(dialect, request, model);
            let asked = Asked {
                config: &self.config,
                dialect,
                model,
                request,
                shape: shape.as_ref(),
                instructed,
                turns: &turns,
                context,
            };
            let post = asked.post().map_err(|e| self.unable(e, is_only))?;
            let is_proven = matches!(believed, None | Some(Some(true)));
            let holds = instructed || !is_proven || !dialect.traits().streams;
            let got = match self.once(&mut call, &post, dialect, holds).await? {
                Ok(got) => got,
                Err(refused) if !instructed && is_about_shape(&refused) && shape.is_some() => {
                    if let Some(shape) = &shape {
                        self.learn_refusal(&model.ours, shape, &refused, self.is_last(&call))?;
                    }
                    unfit = Some(refused);
                    continue;
                }
                Err(refused) => return Err(self.refused(&mut call, &refused)),
            };
            if let Some(context) = context {
                locked(&self.contexts).insert(model.theirs.clone(), context);
            }
            self.check_read(&mut call, &got)?;
            self.check_said(&call, &got)?;
            let shown = shape
                .as_ref()
                .map(|_| if instructed { "instructed" } else { "enforced" });
            let Some(wrong) = self.wrong(shape.as_ref(), &got, call.sink.has_begun()) else {
                if let Some(shape) = shape.as_ref().filter(|_| !instructed) {
                    self.learn_from(&model.ours, shape, &got);
                }
                let got = self.release(&mut call, got, shape.as_ref(), holds).await?;
                return Ok(self.complete(&mut call, got, (dialect, model), &post, shown));
            };
            if let Some(shape) = &shape {
                self.learn(&model.ours, shape, Enforces::Not(Instant::now()));
            }
            let note = self.check_tries(&call, &wrong, unfit.as_ref(), turns.len())?;
            call.events.push(format!("{note}; asked again"));
            turns.push((got.text, wrong));
        }
    }

    /// What this server cannot do with a request; a node of the same model may.
    fn unable(&self, error: ApiError, is_only: bool) -> AttemptError {
        match is_only {
            true => AttemptError::Final(error),
            false => self.failed(Failure::Refused, &error.detail.message),
        }
    }

    /// What is told of an answer of another shape, if the model may be asked once more.
    fn check_tries(
        &self,
        call: &Attempt<'_>,
        wrong: &str,
        unfit: Option<&Refused>,
        tries: usize,
    ) -> Result<String, AttemptError> {
        let name = &self.config.name;
        let note =
            format!("the answer of server `{name}` had not the shape that was asked for: {wrong}");
        if call.sink.has_begun() {
            // The next request is held until it is checked.
            return Err(AttemptError::Final(ApiError::bad_gateway(note)));
        }
        if tries < MAX_CORRECTIONS {
            return Ok(note);
        }
        let error = match unfit {
            Some(refused) => self.unfit(refused),
            None => ApiError::other_shape(note),
        };
        Err(self.unable(error, self.is_last(call)))
    }

    /// The server does not take the shape.
    fn unfit(&self, refused: &Refused) -> ApiError {
        let Refused { status, message } = refused;
        let name = &self.config.name;
        ApiError::invalid(
            "response_format",
            format!("server `{name}` refused the schema (status {status}): {message}"),
        )
    }

    /// True if nobody else can answer.
    fn is_last(&self, call: &Attempt<'_>) -> bool {
        let model = &call.request.model;
        call.config.is_served_only(model) && call.config.servers_of(model) <= 1
    }

    /// What is wrong with the shape of an answer. One that was cut has none, and says so itself.
    fn wrong(&self, shape: Option<&Shape>, got: &Got, has_begun: bool) -> Option<String> {
        let is_cut = got.finish != Some(FinishReason::Stop);
        match shape.filter(|_| !is_cut)?.check(&got.text) {
            // What was streamed is all of it.
            Ok(json) if has_begun && json != got.text.trim() => {
                Some("it has other text around it".to_owned())
            }
            checked => checked.err(),
        }
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
        let mut message = Message::new(post.path, &post.body, &call.request.id);
        let path = match &self.legs {
            Some(legs) => {
                let path = legs
                    .prepare(&mut message, &post.body, &call.request.prompt)
                    .await;
                Some(path.map_err(|why| self.failed(Failure::Refused, &why))?)
            }
            None => None,
        };
        let name = path.as_ref().map(|path| path.name);
        call.events
            .extend(path.as_ref().and_then(|path| path.note.clone()));
        let mut other = path.and_then(|path| path.other);
        let asking = while_other(&mut other, self.http.ask(&message)).await;
        let asked = asking.map_err(|(failure, why)| self.failed(failure, &why))?;
        let mut events = match asked.map_err(|e| self.lost(call, &e))? {
            Ok(events) => events,
            Err(refused) => return Ok(Err(refused)),
        };
        call.sink.opened().await.map_err(AttemptError::Final)?;
        let mut got = Got {
            sent,
            path: name,
            ..Got::default()
        };
        let is_chat = matches!(call.request.prompt, tandem_proto::Prompt::Chat(_));
        let mut thoughts = self.thoughts(&call.request.model, is_chat);
        // Signs of life come from servers whose engine hangs, too.
        let limit = self.http.silence * 2;
        loop {
            let next = tokio::time::timeout(limit, events.next());
            let event = while_other(&mut other, next).await;
            let event = event.map_err(|(failure, why)| self.failed(failure, &why))?;
            let event = event.map_err(|_| self.lost(call, &CallError::Silent(limit)))?;
            let Some(event) = event else { break };
            let event = event.map_err(|e| self.lost(call, &e))?;
            let parts = read::parts(dialect, &event);
            let parts = parts.map_err(|why| self.gave_up(call, &why))?;
            for part in parts {
                self.take(call, part, &mut got, &mut thoughts, holds)
                    .await?;
            }
            if got.first.is_some()
                && let Some(other) = other.take()
            {
                // The KV is there: what becomes of the other leg does not matter any more.
                other.detach();
            }
            if got.ended {
                break;
            }
        }
        let rest = thoughts.finish();
        // Nothing but space is no answer: another server may give one.
        let is_blank =
            got.text.is_empty() && rest.text.trim().is_empty() && rest.thought.is_empty();
        self.said(call, rest, &mut got, holds || is_blank).await?;
        if is_chat {
            self.settle_thoughts(call, &mut got);
        }
        if got.finish.is_none() {
            let error = CallError::Broken("ended its answer before the last event".to_owned());
            return Err(self.lost(call, &error));
        }
        Ok(Ok(got))
    }

    /// How answers of a model are taken apart; what continues a text is all text.
    fn thoughts(&self, model: &str, is_chat: bool) -> Thoughts {
        if !is_chat {
            return Thoughts::none();
        }
        let mark = locked(&self.thinkers).get(model).copied();
        mark.map_or_else(Thoughts::default, Thoughts::presumed)
    }

    /// Takes apart an answer whose thoughts have an end alone, because the template wrote the opening mark. What was
    /// streamed cannot be taken back; the next answer of the model is held until that end.
    fn settle_thoughts(&self, call: &Attempt<'_>, got: &mut Got) {
        let found = thoughts::unopened(&got.text).filter(|_| got.thoughts.is_empty());
        let Some((mark, apart)) = found else {
            if got.thoughts.is_empty() && got.finish == Some(FinishReason::Stop) {
                locked(&self.thinkers).remove(&call.request.model);
            }
            return;
        };
        locked(&self.thinkers).insert(call.request.model.clone(), mark);
        if !call.sink.has_begun() {
            got.thoughts += &apart.thought;
            got.text = apart.text;
        }
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
        let message = Message::new(post.path, &post.body, &call.request.id);
        let http = self.http.clone();
        let busy = Busy::new(&self.busy);
        let asking = tokio::spawn(async move {
            let mut texts = Vec::new();
            let asked = http.ask(&message).await;
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
            drop((place, busy));
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
            for part in parts.map_err(|why| self.gave_up(call, &why))? {
                // All of it is there: no part of it need wait for the next.
                match part {
                    Part::Text(text) => got.text += &text,
                    Part::Finish(finish) => got.finish = Some(finish),
                    Part::BadEnd(why) => return Err(self.failed(Failure::Refused, &why)),
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
        let stops = call.request.generation.sampling.stop.iter();
        let end = stops.filter_map(|stop| got.text.find(stop.as_str())).min();
        got.text.truncate(end.unwrap_or(got.text.len()));
        let is_shaped = !call.request.generation.format.is_text();
        if end.is_none() && !is_shaped && !ends(&got.text) {
            // It does not say why it ended, and this is no end.
            got.finish = Some(FinishReason::Length);
        }
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
            Part::Tools(mut calls) => {
                if calls.iter().any(|call| call.get("index").is_none()) {
                    number(&mut calls, got.tools.len());
                }
                add_tools(&mut got.tools, &calls);
                call.sink.tools(calls).await.map_err(AttemptError::Final)?;
            }
            Part::Finish(finish) => got.finish = Some(finish),
            Part::BadEnd(why) => return Err(self.failed(Failure::Refused, &why)),
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
            Part::End => {
                got.ended = true;
                if !got.tools.is_empty() && got.finish == Some(FinishReason::Stop) {
                    got.finish = Some(FinishReason::ToolCalls);
                }
            }
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

    /// That the server has read the whole prompt. Some count the tokens that they computed, and not those that they had from
    /// a prompt before: so of a prompt of which it has read at least half before, only the rest counts, and so few tokens as
    /// fit into no context are no cut prompt.
    fn check_read(&self, call: &mut Attempt<'_>, got: &Got) -> Result<(), AttemptError> {
        let prompt = &call.request.prompt;
        let read = got.usage.map_or(0, |(prompt, ..)| prompt as usize);
        let blocks = Beginning::of(&self.keys, "", prompt).digests();
        let mut known = locked(&self.read);
        let before = blocks
            .iter()
            .take_while(|block| known.contains(block))
            .count();
        let fewest = shape::fewest_tokens(prompt);
        if let Some(fewest) = fewest.filter(|fewest| (1..*fewest).contains(&read)) {
            // The last block that is new may be short.
            let new = blocks.len().saturating_sub(before + 1);
            let is_rest = before * 2 >= blocks.len() && read >= fewest * new / blocks.len().max(1);
            if read >= LEAST_CONTEXT && !is_rest {
                return Err(self.failed(
                    Failure::Refused,
                    &format!(
                        "read {read} tokens of a prompt that has {fewest} at least: it cuts prompts; give it a longer context"
                    ),
                ));
            }
            call.events.push(format!(
                "server `{}` counts {read} tokens of a prompt that has {fewest} at least: it seems to leave out those of the prompt before",
                self.config.name
            ));
        }
        if known.len() >= MAX_KNOWN_BLOCKS {
            known.clear();
        }
        known.extend(blocks);
        Ok(())
    }

    /// That it has said something, where another one may.
    fn check_said(&self, call: &Attempt<'_>, got: &Got) -> Result<(), AttemptError> {
        let is_empty =
            got.text.trim().is_empty() && got.thoughts.is_empty() && got.tools.is_empty();
        let is_end = got.finish == Some(FinishReason::Stop);
        // A stop text may be all that the model wrote.
        let may_stop = !call.request.generation.sampling.stop.is_empty();
        match is_empty && is_end && !may_stop && !self.is_last(call) {
            true => Err(self.failed(Failure::Refused, "answered with no text")),
            false => Ok(()),
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
        if !post.unheard.is_empty() {
            let fields = post.unheard.join("`, `");
            call.events
                .push(format!("server `{name}` does not know `{fields}`"));
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
                reported: probe::in_words(&model.reported),
                verified: model.verified,
                prompt: post.prompt.to_owned(),
                shape: shape.map(str::to_owned),
                path: got.path.map(str::to_owned),
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

    /// The size of the context that Ollama is asked for; others have one already.
    fn context(&self, dialect: Dialect, request: &Request, model: &Served) -> Option<u32> {
        if dialect != Dialect::Ollama {
            return None;
        }
        let before = locked(&self.contexts).get(&model.theirs).copied();
        Some(ask::context_for(
            request,
            before.unwrap_or(0),
            model.context,
        ))
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

    /// It tells in the midst of an answer that there will be no more: whatever it was that stopped it.
    fn gave_up(&self, call: &mut Attempt<'_>, why: &str) -> AttemptError {
        call.losses.nodes.insert(self.config.name.clone());
        self.failed(Failure::Refused, why)
    }

    fn refused(&self, call: &mut Attempt<'_>, refused: &Refused) -> AttemptError {
        let Refused { status, message } = refused;
        let request = call.request;
        let name = &self.config.name;
        let why = |what: &str| format!("{what} (status {status}): {message}");
        match status {
            400 | 413 | 422 if is_about_length(message) => {
                let message = format!("server `{name}`: {message}");
                AttemptError::TooLong(ApiError::new(
                    400,
                    "invalid_request_error",
                    Some(request.prompt_field),
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
            _ => self.gave_up(call, &why("failed")),
        }
    }
}

/// Goes on with a leg until it is through or the other one has failed, and tells why that is.
async fn while_other<T>(
    other: &mut Option<Other>,
    leg: impl Future<Output = T>,
) -> Result<T, (Failure, String)> {
    let mut leg = std::pin::pin!(leg);
    loop {
        let Some(Other { failed, .. }) = other else {
            return Ok(leg.await);
        };
        tokio::select! {
            done = &mut leg => return Ok(done),
            why = failed => match why {
                Ok(why) => return Err(why),
                // It is through.
                Err(_) => drop(other.take()),
            },
        }
    }
}

/// Gives calls that come whole their places among all.
fn number(calls: &mut [Value], before: usize) {
    for (i, call) in calls.iter_mut().enumerate() {
        if let Some(call) = call.as_object_mut() {
            let index = before + i;
            call.insert("index".to_owned(), index.into());
            call.entry("id")
                .or_insert_with(|| format!("call_{index}").into());
        }
    }
}

/// True for a text that ends as texts do.
fn ends(text: &str) -> bool {
    let last = text.trim_end().chars().next_back();
    last.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, ',' | '(' | '-' | ':'))
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
        let arguments = Value::String(format!("{so_far}{more}"));
        let function = known.get_mut("function").and_then(Value::as_object_mut);
        if let Some(function) = function {
            function.insert("arguments".to_owned(), arguments);
        }
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
        "structured output",
    ];
    matches!(refused.status, 400 | 422 | 500 | 501)
        && words.iter().any(|word| message.contains(word))
}
