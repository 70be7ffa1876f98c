//! One request to a pair of nodes, as a coordinator makes it, with what it took.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tandem_cluster::{Identity, PeerId, Security};
use tandem_coordinator::Lines;
use tandem_proto::{
    Format, GenerateEvent, GenerateRequest, GenerationParams, HandoffTerms, ParityReport,
    PrefillEvent, PrefillMode, PrefillRequest, PrefillSummary, Prompt, SamplingParams, Ticket,
};

use super::control::Control;
use super::{CHUNK, MODEL};

/// The nodes of a measurement.
#[derive(Clone)]
pub struct Pair {
    /// Computes.
    pub prefill: Control,
    /// Takes KV in and generates.
    pub decode: Control,
    /// Where the prefill node sends KV to.
    pub target: SocketAddr,
    /// Tokens of the largest chunk.
    pub chunk: u32,
}

/// What a request took.
#[derive(Debug)]
pub struct Asked {
    /// From the start of the call to the first token, in milliseconds.
    pub first_token_ms: f64,
    /// From each token to the next, in milliseconds; 0 for a single one.
    pub step_ms: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How its KV came to be.
    pub summary: PrefillSummary,
    /// What came of it.
    pub answer: Answer,
}

/// An answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How far both ends of the handoff compute the same, if there was one.
    pub parity: Option<ParityReport>,
}

/// What the prefill node tells of a handoff.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Time spent computing, in milliseconds.
    pub prefill_ms: f64,
    /// Time from the last token computed to everything applied, in milliseconds.
    pub exposed_ms: f64,
    /// Bytes of rows.
    pub raw_bytes: u64,
    /// Bytes on the wire for them.
    pub wire_bytes: u64,
}

/// A prompt that was opened at the decode node.
struct Opened {
    prompt_tokens: u32,
    tokens: Option<Vec<u32>>,
    ticket: Option<Ticket>,
}

impl Pair {
    /// Connects to the node that prefills and the one that decodes, at these addresses, as this machine.
    ///
    /// # Errors
    /// If one does not answer, or is another machine.
    pub async fn connect(
        own: &Arc<Identity>,
        addresses: [SocketAddr; 2],
        members: [&PeerId; 2],
        target: SocketAddr,
    ) -> anyhow::Result<Self> {
        let connect = |i: usize| {
            let security = Security::Tls(Arc::clone(own));
            Control::connect(addresses[i], security, Some(members[i].clone()))
        };
        let (prefill, decode) = tokio::try_join!(connect(0), connect(1))?;
        Ok(Self {
            prefill,
            decode,
            target,
            chunk: CHUNK,
        })
    }

    /// The decode node does everything; `answer` tokens.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn local(
        &self,
        prompt: &Prompt,
        answer: u32,
        terms: &HandoffTerms,
    ) -> anyhow::Result<Asked> {
        let request = self.request(prompt, answer, PrefillMode::Local, terms);
        let start = Instant::now();
        let mut generation = self.decode.generate(&request).await?;
        let opened = opened(&mut generation).await?;
        answered(&mut generation, start, &opened).await
    }

    /// The prefill node computes the prompt; `answer` tokens.
    ///
    /// # Errors
    /// If the request or the handoff fails.
    pub async fn remote(
        &self,
        prompt: &Prompt,
        answer: u32,
        terms: &HandoffTerms,
    ) -> anyhow::Result<(Asked, Sent)> {
        let request = self.request(prompt, answer, PrefillMode::Remote, terms);
        let start = Instant::now();
        let mut generation = self.decode.generate(&request).await?;
        let mut opened = opened(&mut generation).await?;
        let ticket = opened.ticket.take().context("no ticket")?;
        let prefill = PrefillRequest {
            request: request.request,
            model: MODEL.to_owned(),
            tokens: opened.tokens.take().context("no tokens")?,
            chunk: self.chunk,
            target: self.target.to_string(),
            target_peer: self.decode.peer.as_ref().map(ToString::to_string),
            ticket: ticket.secret,
            handoff: ticket.handoff,
            terms: terms.clone(),
        };
        let (asked, sent) = tokio::try_join!(
            answered(&mut generation, start, &opened),
            self.sent(&prefill)
        )?;
        let summary = &asked.summary;
        ensure!(
            summary.fallback.is_none() && summary.local_tokens == 0 && summary.reconnects == 0,
            "the handoff did not go as it should: {summary:?}"
        );
        Ok((asked, sent))
    }

    /// The tokens of a text: a request is opened for it and given up, whose place is free a little later.
    async fn tokens(&self, text: String) -> anyhow::Result<Vec<u32>> {
        let (prompt, terms) = (Prompt::Text(text), HandoffTerms::default());
        let request = self.request(&prompt, 1, PrefillMode::Remote, &terms);
        let mut generation = self.decode.generate(&request).await?;
        let opened = opened(&mut generation).await?;
        opened.tokens.context("no tokens")
    }

    async fn sent(&self, request: &PrefillRequest) -> anyhow::Result<Sent> {
        let mut events = self.prefill.prefill(request).await?;
        loop {
            match events.next().await? {
                PrefillEvent::Done {
                    prefill_ms,
                    exposed_transfer_ms,
                    handoff_bytes,
                    wire_bytes,
                    ..
                } => {
                    return Ok(Sent {
                        prefill_ms,
                        exposed_ms: exposed_transfer_ms,
                        raw_bytes: handoff_bytes,
                        wire_bytes,
                    });
                }
                PrefillEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }

    fn request(
        &self,
        prompt: &Prompt,
        answer: u32,
        prefill: PrefillMode,
        terms: &HandoffTerms,
    ) -> GenerateRequest {
        let remote = prefill == PrefillMode::Remote;
        let peer = self.prefill.peer.as_ref().filter(|_| remote);
        GenerateRequest {
            request: format!("bench-{:016x}", rand::rng().next_u64()),
            model: MODEL.to_owned(),
            prompt: prompt.clone(),
            generation: greedy(answer),
            prefill,
            prefill_peer: peer.map(ToString::to_string),
            alone_percent: if remote { 0 } else { 100 },
            chunk: self.chunk,
            terms: terms.clone(),
        }
    }
}

/// The likeliest tokens, so many at most.
pub fn greedy(max_tokens: u32) -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams {
            max_tokens: Some(max_tokens),
            ..SamplingParams::greedy()
        },
        format: Format::Text,
    }
}

async fn opened(generation: &mut Lines<GenerateEvent>) -> anyhow::Result<Opened> {
    loop {
        match generation.next().await? {
            GenerateEvent::Opened {
                prompt_tokens,
                tokens,
                ticket,
                ..
            } => {
                return Ok(Opened {
                    prompt_tokens,
                    tokens,
                    ticket,
                });
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            GenerateEvent::Beat => {}
            _ => bail!("the decode node told something before it opened the request"),
        }
    }
}

async fn answered(
    generation: &mut Lines<GenerateEvent>,
    start: Instant,
    opened: &Opened,
) -> anyhow::Result<Asked> {
    let mut first = None;
    let mut told = PrefillSummary::default();
    let mut tokens = Vec::new();
    loop {
        match generation.next().await? {
            GenerateEvent::Token { id, .. } => {
                first.get_or_insert_with(|| start.elapsed());
                tokens.push(id);
            }
            GenerateEvent::Prefilled(summary) => told = summary,
            GenerateEvent::Done {
                generated_tokens,
                decode_ms,
                parity,
                ..
            } => {
                let first = first.context("an answer without a token")?;
                let steps = generated_tokens.saturating_sub(1);
                return Ok(Asked {
                    first_token_ms: first.as_secs_f64() * 1e3,
                    step_ms: decode_ms / f64::from(steps.max(1)),
                    prompt_tokens: opened.prompt_tokens,
                    summary: told,
                    answer: Answer { tokens, parity },
                });
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
}

/// Makes prompts that look like programs, no two alike.
pub struct Prompts {
    random: ChaCha8Rng,
    /// Tokens of some lines.
    sample: Vec<u32>,
    tokens_per_line: f64,
}

impl Prompts {
    /// Lines of the text that tells how many tokens a line has.
    const SAMPLE: u32 = 64;
    /// Tokens that stay together.
    const PIECE: usize = 32;

    /// Prompts for the tokenizer of these nodes.
    ///
    /// # Errors
    /// If the decode node does not answer.
    pub async fn of(pair: &Pair, seed: u64) -> anyhow::Result<Self> {
        let mut prompts = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            sample: Vec::new(),
            tokens_per_line: 1.0,
        };
        let sample = prompts.lines(Self::SAMPLE);
        prompts.sample = pair.tokens(sample).await?;
        let tokens = u32::try_from(prompts.sample.len())?;
        ensure!(tokens as usize >= Self::PIECE, "lines without tokens");
        prompts.tokens_per_line = f64::from(tokens) / f64::from(Self::SAMPLE);
        Ok(prompts)
    }

    /// Whole lines of about so many tokens, different each time.
    pub fn text(&mut self, tokens: u32) -> String {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let lines = (f64::from(tokens) / self.tokens_per_line).round() as u32;
        self.lines(lines.max(1))
    }

    /// So many tokens in pieces of such lines, different each time.
    pub fn tokens(&mut self, tokens: u32) -> Vec<u32> {
        let mut out = Vec::new();
        while out.len() < tokens as usize {
            let start = self
                .random
                .random_range(0..=self.sample.len() - Self::PIECE);
            out.extend_from_slice(&self.sample[start..start + Self::PIECE]);
        }
        out.truncate(tokens as usize);
        out
    }

    fn lines(&mut self, lines: u32) -> String {
        const NAMES: [&str; 8] = [
            "total", "index", "values", "count", "result", "average", "limit", "row",
        ];
        const OPERATORS: [&str; 4] = ["+", "-", "*", "/"];
        let mut out = String::new();
        for _ in 0..lines {
            let name = |random: &mut ChaCha8Rng| {
                let name = NAMES[random.random_range(0..NAMES.len())];
                format!("{name}_{}", random.random_range(0..100))
            };
            let (to, from) = (name(&mut self.random), name(&mut self.random));
            let operator = OPERATORS[self.random.random_range(0..OPERATORS.len())];
            let number: u32 = self.random.random_range(0..1000);
            out.push_str(&format!("    {to} = {from} {operator} {number}\n"));
        }
        out
    }
}
