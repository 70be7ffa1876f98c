//! A pair of nodes: a decode node, beside it a prefill node, until the answer is complete.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tandem_api::{ApiError, FinishReason};
use tandem_proto::{
    ErrorCode, GenerateEvent, GenerateRequest, HandoffTerms, NodeError, ParityReport, PrefillEvent,
    PrefillMode, PrefillRequest, PrefillSummary, Prompt, Ticket,
};
use tandem_sched::{Failure, Plan};

use super::thoughts::{Apart, Thoughts};
use super::{Answer, Attempt, AttemptError, Backend, Running};
use crate::calls::Calls;
use crate::cluster::Slot;
use crate::config::{Config, split_address};
use crate::error::CallError;
use crate::poison::Losses;
use crate::request::{Request, Sink};
use crate::timeline::{PrefillTimes, Timeline};
use crate::translate;

/// The end of a prefill: its times, or why there are none.
type PrefillEnd = Result<PrefillTimes, PrefillFailure>;
/// Something that goes on by itself.
type Going<T> = Running<'static, T>;

/// Why a prefill has no times.
struct PrefillFailure {
    /// Reads as the end of a sentence that begins with the node.
    reason: String,
    /// The node may have died of it.
    died: bool,
}

impl From<CallError> for PrefillFailure {
    fn from(error: CallError) -> Self {
        Self {
            reason: error.to_string(),
            died: error.may_have_died(),
        }
    }
}

impl From<String> for PrefillFailure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            died: false,
        }
    }
}

/// The nodes of the cluster.
pub(crate) struct Pairs {
    pub(crate) calls: Calls,
}

impl Backend for Pairs {
    fn attempt<'a>(&'a self, attempt: Attempt<'a>) -> Running<'a, Result<Answer, AttemptError>> {
        let Attempt {
            config,
            request,
            plan,
            slot,
            sink,
            arrived,
            events,
            losses,
        } = attempt;
        let pair = Pair {
            config,
            calls: &self.calls,
            request,
            plan,
            slot,
            sink,
            arrived,
            events,
            opened: false,
            losses,
        };
        Box::pin(pair.run())
    }
}

/// One attempt of a pair.
struct Pair<'a> {
    config: &'a Config,
    calls: &'a Calls,
    request: &'a Request,
    plan: &'a Plan,
    slot: &'a Slot,
    sink: &'a mut Sink,
    arrived: Instant,
    events: &'a mut Vec<String>,
    /// The decode node has opened the request.
    opened: bool,
    losses: &'a mut Losses,
}

/// What an attempt has seen so far.
#[derive(Default)]
struct Progress {
    opened: bool,
    prefilled: bool,
    text: String,
    /// What the model wrote for itself.
    thought: String,
    thoughts: Thoughts,
    tokens: Vec<u32>,
    timeline: Timeline,
    prefill: Option<Going<PrefillEnd>>,
    /// The decode node is being told that the prefill has failed.
    telling: Option<Going<()>>,
}

impl Pair<'_> {
    /// Runs until the answer is complete or the decode node has failed.
    async fn run(mut self) -> Result<Answer, AttemptError> {
        let request = self.request();
        let valid = request.validate();
        valid.map_err(|e| {
            AttemptError::Final(translate::bad_request(&e, self.request.prompt_field))
        })?;
        let address = self.config.address(&self.plan.decode);
        let started = self.calls.generate(address, &request).await;
        drop(request);
        let mut lines = started.map_err(|e| self.failed(e))?;
        let mut progress = Progress::default();
        loop {
            let event = tokio::select! {
                event = lines.next() => event.map_err(|e| self.failed(e))?,
                end = ended(&mut progress.prefill) => {
                    let prefilled = progress.prefilled;
                    progress.telling =
                        self.prefill_ended(end, prefilled, &mut progress.timeline).await;
                    continue;
                }
                () = ended(&mut progress.telling) => continue,
            };
            if let Some(finish) = self.take(event, &mut progress).await? {
                self.await_prefill(&mut progress).await;
                return Ok(Answer {
                    text: progress.text,
                    thoughts: progress.thought,
                    tools: Vec::new(),
                    tokens: progress.tokens,
                    finish,
                    timeline: progress.timeline,
                });
            }
        }
    }

    fn request(&self) -> GenerateRequest {
        let prefill = match self.plan.prefill {
            Some(_) => PrefillMode::Remote,
            None => PrefillMode::Local,
        };
        GenerateRequest {
            request: self.request.id.clone(),
            model: self.request.model.clone(),
            prompt: self.request.prompt.clone(),
            generation: self.request.generation.clone(),
            prefill,
            prefill_peer: self.plan.prefill.as_deref().and_then(|n| self.peer(n)),
            alone_percent: self.plan.alone_percent,
            chunk: self.config.chunk,
            terms: self.terms(),
        }
    }

    fn terms(&self) -> HandoffTerms {
        self.config.handoff.terms(self.request, self.plan)
    }

    /// Which machine a node has proved to be.
    fn peer(&self, node: &str) -> Option<String> {
        let peer = self.calls.peer(self.config.address(node));
        peer.map(|id| id.to_string())
    }

    /// Takes in one event; the reason of the end if it was the last.
    async fn take(
        &mut self,
        event: GenerateEvent,
        progress: &mut Progress,
    ) -> Result<Option<FinishReason>, AttemptError> {
        let in_order = match event {
            GenerateEvent::Beat | GenerateEvent::Failed(_) => true,
            GenerateEvent::Opened { .. } => !progress.opened,
            _ => progress.opened,
        };
        if !in_order {
            let odd = "sent its events in the wrong order".to_owned();
            return Err(self.failed(CallError::Odd(odd)));
        }
        match event {
            GenerateEvent::Beat => {}
            GenerateEvent::Failed(error) => return Err(self.failed(CallError::Refused(error))),
            GenerateEvent::Opened {
                prompt_tokens,
                tokens,
                ticket,
                tokenize_ms,
                prompt_end,
            } => {
                let is_text = self.request.generation.format.is_text();
                progress.thoughts = match (&self.request.prompt, is_text) {
                    (Prompt::Chat(_), true) => Thoughts::behind(&prompt_end),
                    // What continues a text is all text, and a shape leaves no room for thoughts.
                    _ => Thoughts::none(),
                };
                progress.opened = true;
                self.opened = true;
                progress.timeline.prompt_tokens = prompt_tokens;
                progress.timeline.tokenize_ms = tokenize_ms;
                if self.plan.prefill.is_some() {
                    progress.prefill = self.start_prefill(tokens, ticket).await;
                }
                progress.timeline.alone = progress.prefill.is_none();
                self.sink.opened().await.map_err(AttemptError::Final)?;
            }
            GenerateEvent::Prefilled(summary) => {
                progress.prefilled = true;
                self.note_fallback(&summary);
                if progress.timeline.alone && progress.timeline.prompt_tokens > 1 {
                    self.note_alone(&summary);
                }
                progress.timeline.summary = summary;
            }
            GenerateEvent::Token { id, text } => {
                if progress.tokens.is_empty() {
                    progress.timeline.first_token_ms = self.arrived.elapsed().as_secs_f64() * 1e3;
                }
                progress.tokens.push(id);
                let apart = progress.thoughts.push(&text);
                self.said(apart, progress).await?;
            }
            GenerateEvent::Done {
                finish_reason,
                generated_tokens,
                decode_ms,
                parity,
            } => {
                let rest = progress.thoughts.finish();
                self.said(rest, progress).await?;
                progress.timeline.parity = parity;
                self.note_parity(parity);
                progress.timeline.generated_tokens = generated_tokens;
                progress.timeline.decode_ms = decode_ms;
                return Ok(Some(finish_reason));
            }
        }
        Ok(None)
    }

    /// Passes on what has become certain of the answer.
    async fn said(&mut self, apart: Apart, progress: &mut Progress) -> Result<(), AttemptError> {
        let Apart { thought, text } = apart;
        progress.thought += &thought;
        progress.text += &text;
        let sent = self.sink.thought(thought).await;
        sent.map_err(AttemptError::Final)?;
        self.sink.text(text).await.map_err(AttemptError::Final)
    }

    /// The prefill as a future of its own; `None` if there is nothing to prefill elsewhere.
    async fn start_prefill(
        &mut self,
        tokens: Option<Vec<u32>>,
        ticket: Option<Ticket>,
    ) -> Option<Going<PrefillEnd>> {
        let node = self.plan.prefill.as_ref()?;
        let (Some(tokens), Some(ticket)) = (tokens, ticket) else {
            // A prompt of one token leaves nothing to prefill, or the decode node has nearly all of it.
            self.slot.prefill_ended(false).await;
            return None;
        };
        let target = handoff_target(self.config.address(&self.plan.decode), &ticket);
        let request = PrefillRequest {
            request: self.request.id.clone(),
            model: self.request.model.clone(),
            tokens,
            chunk: self.config.chunk,
            target,
            target_peer: self.peer(&self.plan.decode),
            ticket: ticket.secret,
            handoff: ticket.handoff,
            terms: self.terms(),
        };
        let address = self.config.address(node).to_owned();
        let prefill = prefill(self.calls.clone(), address, request);
        Some(Box::pin(prefill))
    }

    /// Notes how the prefill ended. If it failed, the decode node is to be told, so that it computes
    /// what is missing at once instead of waiting for it. It may have gone, too, so its stream is watched meanwhile.
    async fn prefill_ended(
        &mut self,
        end: PrefillEnd,
        prefilled: bool,
        timeline: &mut Timeline,
    ) -> Option<Going<()>> {
        // Whose report is late, or whose receipt fails, has computed it all the same.
        let summary = &timeline.summary;
        let has_come = summary.remote_tokens > 0
            || (prefilled && summary.fallback.is_none() && summary.cached_tokens > 0);
        let computed = end.is_ok() || has_come;
        self.slot.prefill_ended(computed).await;
        let node = self.plan.prefill.as_deref().unwrap_or_default();
        let reason = match end {
            Ok(times) => {
                timeline.prefill = times;
                return None;
            }
            Err(PrefillFailure { reason, died }) => {
                if died {
                    self.losses.nodes.insert(node.to_owned());
                }
                format!("prefill node `{node}` {reason}")
            }
        };
        tracing::warn!(request = self.request.id, reason, "prefill failed");
        self.note(reason.clone());
        if prefilled {
            return None;
        }
        let (calls, request) = (self.calls.clone(), self.request.id.clone());
        let address = self.config.address(&self.plan.decode).to_owned();
        Some(Box::pin(async move {
            let told = calls.failed(&address, &request, &reason).await;
            if let Err(error) = told {
                // The decode node finds out by itself; if it is gone, its stream says so.
                tracing::warn!(request, %error, "decode node not told");
            }
        }))
    }

    /// The answer is complete; the prefill node's account may still be on its way.
    async fn await_prefill(&mut self, progress: &mut Progress) {
        let limit = self.config.limits.prefill_report;
        let Some(prefill) = progress.prefill.take() else {
            return;
        };
        let end = tokio::time::timeout(limit, prefill).await;
        let end = end.unwrap_or_else(|_| Err(late(limit).into()));
        let _ = self.prefill_ended(end, true, &mut progress.timeline).await;
    }

    fn note_fallback(&mut self, summary: &PrefillSummary) {
        if let Some(reason) = &summary.fallback {
            let (node, tokens) = (&self.plan.decode, summary.local_tokens);
            self.note(format!(
                "decode node `{node}` prefilled {tokens} tokens itself: {reason}"
            ));
        }
    }

    fn note_alone(&mut self, summary: &PrefillSummary) {
        let (Some(node), decode) = (&self.plan.prefill, &self.plan.decode) else {
            return;
        };
        let (cached, local) = (summary.cached_tokens, summary.local_tokens);
        self.note(format!(
            "decode node `{decode}` had {cached} tokens of the prompt and prefilled {local} itself; `{node}` was not asked"
        ));
    }

    fn note_parity(&mut self, report: Option<ParityReport>) {
        let Some(ParityReport { parity, holds }) = report else {
            return;
        };
        if let (false, Some(prefill)) = (holds, &self.plan.prefill) {
            let (decode, kl) = (&self.plan.decode, parity.kl);
            self.note(format!(
                "nodes `{prefill}` and `{decode}` do not compute the same (KL {kl:.4}): do not trust this pair \
                 before `GET /v1/nodes` shows it well again"
            ));
        }
    }

    fn note(&mut self, event: String) {
        self.events.push(event);
    }

    fn failed(&mut self, error: CallError) -> AttemptError {
        if error.may_have_died() {
            self.losses.nodes.insert(self.plan.decode.clone());
            self.losses.unopened += usize::from(!self.opened);
        }
        let failure = match &error {
            CallError::Refused(refusal) => match refusal.code {
                ErrorCode::InvalidRequest | ErrorCode::SchemaBudget => {
                    return AttemptError::Final(self.bad_request(refusal));
                }
                ErrorCode::ContextLength => {
                    return AttemptError::TooLong(self.bad_request(refusal));
                }
                ErrorCode::Busy => Failure::Busy,
                ErrorCode::Lacks => Failure::Lacks,
                // Nothing more goes there before its next status.
                ErrorCode::Stopping => Failure::Stopping,
                _ => Failure::Refused,
            },
            CallError::Connect(_) => Failure::Unreachable,
            _ => Failure::Lost,
        };
        let message = format!("decode node `{}` {error}", self.plan.decode);
        AttemptError::Node { failure, message }
    }

    fn bad_request(&self, error: &NodeError) -> ApiError {
        translate::bad_request(error, self.request.prompt_field)
    }
}

/// Where a decode node takes KV in, as `host:port`. A node that does so on one address of several knows
/// better which one than the configuration, whose address is the one for requests.
pub(crate) fn handoff_target(configured: &str, ticket: &Ticket) -> String {
    match ticket.ip {
        Some(ip) => SocketAddr::new(ip, ticket.port).to_string(),
        None => {
            let host = split_address(configured).map_or("", |(host, _)| host);
            format!("{host}:{}", ticket.port)
        }
    }
}

fn late(limit: Duration) -> String {
    format!(
        "had not told its times {} s after the answer was complete",
        limit.as_secs_f64()
    )
}

/// Waits for the end of a prefill, for ever if there is none.
async fn ended<T>(of: &mut Option<Going<T>>) -> T {
    match of {
        None => std::future::pending().await,
        Some(running) => {
            let end = running.await;
            *of = None;
            end
        }
    }
}

/// Runs a prefill to its end.
async fn prefill(calls: Calls, address: String, request: PrefillRequest) -> PrefillEnd {
    let started = calls.prefill(&address, &request).await;
    drop(request);
    let mut lines = started?;
    loop {
        match lines.next().await? {
            PrefillEvent::Accepted | PrefillEvent::Progress { .. } | PrefillEvent::Beat => {}
            PrefillEvent::Failed(error) => return Err(format!("failed: {error}").into()),
            PrefillEvent::Done {
                prefill_ms,
                computed_tokens,
                transfer_ms,
                exposed_transfer_ms,
                ..
            } => {
                return Ok(PrefillTimes {
                    prefill_ms,
                    computed_tokens: Some(computed_tokens),
                    transfer_ms,
                    exposed_transfer_ms,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_goes_where_the_node_takes_it_in() {
        let target = |configured: &str, ip: Option<&str>| {
            let ticket = Ticket {
                secret: String::new(),
                handoff: 1,
                ip: ip.map(|ip| ip.parse().unwrap()),
                port: 7003,
            };
            handoff_target(configured, &ticket)
        };
        let expected = [
            ("192.0.2.2:7002", None, "192.0.2.2:7003"),
            ("studio.example:7002", None, "studio.example:7003"),
            ("[2001:db8::2]:7002", None, "[2001:db8::2]:7003"),
            // The cable between the two machines; the coordinator may be on one of them.
            ("192.0.2.2:7002", Some("198.51.100.2"), "198.51.100.2:7003"),
            ("127.0.0.1:7002", Some("2001:db8::2"), "[2001:db8::2]:7003"),
        ];
        for (configured, ip, at) in expected {
            assert_eq!(target(configured, ip), at);
        }
    }
}
