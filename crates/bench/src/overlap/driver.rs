//! The requests of `tandem bench overlap`, made on the machine of the decode node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;
use clap::Args;
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use tandem_cluster::{ClusterDir, PeerId};
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_proto::{CodecChoice, HandoffTerms, Prompt};

use crate::ask::{Pair, Prompts, Sent};
use crate::figures::print;
use crate::figures::{mean, quantile};
use crate::link::Link;

use super::relay::Relay;

/// Tokens of a local answer, so that a step can be timed.
const ANSWER: u32 = 9;
/// Of the prompts.
const SEED: u64 = 3;
/// Codecs, and what they are called.
const CODECS: [(&str, CodecChoice); 2] = [("raw", CodecChoice::Raw), ("auto", CodecChoice::Auto)];

/// Arguments of the process that makes requests.
#[derive(Args)]
pub struct Arguments {
    /// Control API of the prefill node.
    #[arg(long)]
    prefill: SocketAddr,
    /// Who it is.
    #[arg(long)]
    prefill_id: PeerId,
    /// Control API of the decode node.
    #[arg(long)]
    decode: SocketAddr,
    /// Who it is.
    #[arg(long)]
    decode_id: PeerId,
    /// Where the decode node takes KV in.
    #[arg(long)]
    target: SocketAddr,
    /// Keys and certificates of the machine that asks.
    #[arg(long)]
    cluster_dir: PathBuf,
    /// The link whose delay connections for KV have here, because the system cannot delay packets.
    #[arg(long)]
    late: Option<Link>,
    #[command(flatten)]
    course: Course,
}

/// What is measured on each link.
#[derive(Debug, Clone, Copy, Args)]
pub struct Course {
    /// Tokens of each prompt.
    #[arg(long)]
    pub tokens: u32,
    /// How often everything is measured.
    #[arg(long)]
    pub rounds: u32,
    /// What `auto` may lose.
    #[arg(long)]
    pub quality: Quality,
    /// Tokens of a chunk.
    #[arg(long)]
    pub chunk: u32,
    /// Does not have the decode node prefill.
    #[arg(long)]
    pub skip_local: bool,
}

impl Course {
    /// As it is read again.
    pub fn arguments(&self) -> Vec<String> {
        let Self {
            tokens,
            rounds,
            quality,
            chunk,
            skip_local,
        } = self;
        let mut arguments = vec![
            format!("--tokens={tokens}"),
            format!("--rounds={rounds}"),
            format!("--quality={}", quality.name()),
            format!("--chunk={chunk}"),
        ];
        arguments.extend(skip_local.then(|| "--skip-local".to_owned()));
        arguments
    }
}

/// One codec on one link.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// `raw` or `auto`; the latter may lose as much as `quality` permits.
    pub codec: String,
    /// The lossiest that was used with overlap.
    pub codec_used: Option<Codec>,
    /// Time to the first token.
    pub ttft_ms: Ttft,
    /// Time from the last prompt token computed, or the receiver's answer if that came later, to everything applied, over
    /// that of the prefill.
    pub exposed_fraction: f64,
    /// Time to the first token with overlap over the bound.
    pub ttft_over_bound: f64,
    /// The same of each round by itself, where the bound is that of the requests right before and after: between
    /// them lies half of the rounds.
    pub ttft_over_bound_quartiles: [f64; 2],
    /// The shortest time to the first token with overlap, over the bound of the shortest prefill of those without
    /// and the shortest step: on a shared machine, what others take away varies most.
    pub fastest_over_bound: f64,
    /// Time to the first token with overlap beyond the prefill of the same request and one decode step: what a
    /// request and its handoff add that is not hidden. Varies less than what compares requests.
    pub added_ms: f64,
    /// Time of the prefill, without a transfer beside it.
    pub prefill_ms: f64,
    /// Time of the prefill while KV is sent.
    pub prefill_overlapped_ms: f64,
    /// Time of a decode step after the prompt.
    pub step_ms: f64,
    /// Rows that the prefill makes, without a transfer beside it.
    pub production_mb_s: f64,
    /// Rows that the link carries, without a prefill beside it.
    pub goodput_mb_s: f64,
    /// Bytes of rows for each byte on the wire, with overlap.
    pub wire_ratio: f64,
}

/// From the call of the decode node to its first token, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ttft {
    /// The decode node prefills, if that was measured.
    pub local: Option<f64>,
    /// The prefill node does, and sends when all is computed.
    pub remote_serial: f64,
    /// The prefill node sends while it computes.
    pub remote_overlapped: f64,
    /// What it would be if the transfer took no time: the prefill alone and one decode step.
    pub bound: f64,
}

/// Runs the requests and prints the cases as JSON.
///
/// # Errors
/// If one fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let identity = Arc::new(ClusterDir::new(&arguments.cluster_dir).load()?);
    let addresses = [arguments.prefill, arguments.decode];
    let members = [&arguments.prefill_id, &arguments.decode_id];
    let mut pair = Pair::connect(&identity, addresses, members, arguments.target).await?;
    pair.chunk = arguments.course.chunk;
    let relay = match &arguments.late {
        Some(link) => Some(Relay::start(&link.delay_only(), arguments.target).await?),
        None => None,
    };
    if let Some(relay) = &relay {
        pair.target = relay.address();
    }
    let cases = measure(&pair, &arguments.course).await?;
    print(&serde_json::to_string(&cases)?)?;
    Ok(ExitCode::SUCCESS)
}

/// One round of one codec.
struct Round {
    local: Option<f64>,
    step: f64,
    /// Right before and after the one with overlap.
    serial: [(f64, Sent); 2],
    overlapped: (f64, Sent),
    codec_used: Option<Codec>,
}

impl Round {
    fn bound(&self) -> f64 {
        self.alone(|sent| sent.prefill_ms) + self.step
    }

    /// A figure of the requests that send afterwards.
    fn alone(&self, figure: impl Fn(&Sent) -> f64) -> f64 {
        let [before, after] = &self.serial;
        f64::midpoint(figure(&before.1), figure(&after.1))
    }
}

/// Every codec on the link as it is now.
///
/// # Errors
/// If a request fails.
pub async fn measure(pair: &Pair, course: &Course) -> anyhow::Result<Vec<Case>> {
    let rounds = course.rounds;
    let mut prompts = Prompts::of(pair, SEED).await?;
    // Not counted: the first of each kind pays for memory and connections.
    let short = Course {
        tokens: course.tokens / 4,
        ..*course
    };
    round(pair, &mut prompts, &short).await?;
    let mut codecs: [Vec<Round>; 2] = Default::default();
    for number in 0..rounds {
        eprintln!("  round {} of {rounds}", number + 1);
        let both = round(pair, &mut prompts, course).await?;
        for (rounds, one) in codecs.iter_mut().zip(both) {
            rounds.push(one);
        }
    }
    let cases = CODECS.iter().zip(&codecs);
    Ok(cases
        .map(|((name, _), rounds)| case(name, rounds))
        .collect())
}

/// Every prompt is another one of the same length and another tenant's, so that no KV of earlier requests is used,
/// but kept as always. Each request with overlap stands between two without, so that a machine that becomes slower
/// or faster favours neither.
async fn round(pair: &Pair, prompts: &mut Prompts, course: &Course) -> anyhow::Result<[Round; 2]> {
    let tokens = course.tokens;
    let prompt = Prompt::Tokens(prompts.tokens(tokens));
    let fresh = || HandoffTerms {
        salt: format!("{:016x}", rand::rng().next_u64()),
        ..HandoffTerms::default()
    };
    let answered = match course.skip_local {
        true => pair.remote(&prompt, ANSWER, &fresh()).await?.0,
        false => pair.local(&prompt, ANSWER, &fresh()).await?,
    };
    ensure!(
        answered.answer.tokens.len() > 1,
        "the answer ended at its first token, so no step was timed"
    );
    let local = (!course.skip_local).then_some(answered.first_token_ms);
    let mut out = Vec::new();
    for (_, codec) in CODECS {
        let terms = |overlap| HandoffTerms {
            quality: course.quality,
            codec,
            overlap,
            ..fresh()
        };
        let mut ask = async |overlap| {
            let prompt = Prompt::Tokens(prompts.tokens(tokens));
            pair.remote(&prompt, 1, &terms(overlap)).await
        };
        let before = ask(false).await?;
        let overlapped = ask(true).await?;
        let after = ask(false).await?;
        out.push(Round {
            local,
            step: answered.step_ms,
            serial: [before, after].map(|(asked, sent)| (asked.first_token_ms, sent)),
            codec_used: overlapped.0.summary.codec,
            overlapped: (overlapped.0.first_token_ms, overlapped.1),
        });
    }
    <[Round; 2]>::try_from(out).map_err(|_| anyhow::anyhow!("not one round for each codec"))
}

fn case(codec: &str, rounds: &[Round]) -> Case {
    let all = |figure: &dyn Fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    let of = |figure: &dyn Fn(&Round) -> f64| mean(&all(figure));
    let over_bound = all(&|r| r.overlapped.0 / r.bound());
    Case {
        codec: codec.to_owned(),
        codec_used: rounds.iter().map(|r| r.codec_used).max().flatten(),
        ttft_ms: Ttft {
            local: rounds
                .iter()
                .map(|r| r.local)
                .collect::<Option<Vec<f64>>>()
                .map(|all| mean(&all)),
            remote_serial: of(&|r| f64::midpoint(r.serial[0].0, r.serial[1].0)),
            remote_overlapped: of(&|r| r.overlapped.0),
            bound: of(&Round::bound),
        },
        exposed_fraction: of(&|r| r.overlapped.1.exposed_ms / r.overlapped.1.prefill_ms),
        ttft_over_bound: of(&|r| r.overlapped.0) / of(&Round::bound),
        ttft_over_bound_quartiles: [0.25, 0.75].map(|part| quantile(&over_bound, part)),
        fastest_over_bound: {
            let prefills = |n: usize| fastest(&all(&|r| r.serial[n].1.prefill_ms));
            let bound = prefills(0).min(prefills(1)) + fastest(&all(&|r| r.step));
            fastest(&all(&|r| r.overlapped.0)) / bound
        },
        added_ms: of(&|r| r.overlapped.0 - r.overlapped.1.prefill_ms - r.step),
        prefill_ms: of(&|r| r.alone(|sent| sent.prefill_ms)),
        prefill_overlapped_ms: of(&|r| r.overlapped.1.prefill_ms),
        step_ms: of(&|r| r.step),
        production_mb_s: of(&|r| r.alone(|sent| rate(sent.raw_bytes, sent.prefill_ms))),
        goodput_mb_s: of(&|r| r.alone(|sent| rate(sent.raw_bytes, sent.exposed_ms))),
        wire_ratio: of(&|r| {
            megabytes(r.overlapped.1.raw_bytes) / megabytes(r.overlapped.1.wire_bytes)
        }),
    }
}

fn fastest(ms: &[f64]) -> f64 {
    ms.iter().copied().fold(f64::INFINITY, f64::min)
}

/// MB per second.
fn rate(bytes: u64, ms: f64) -> f64 {
    megabytes(bytes) / ms * 1e3
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes = bytes as f64;
    bytes / 1e6
}
