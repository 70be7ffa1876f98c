//! `tandem bench handoff`: goodput from planes in the memory of this process to planes applied in
//! another ([`super::receiver`]), on loopback.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use tandem_cluster::{ClusterDir, PeerId, Security};
use tandem_handoff::codec::Codec;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::Receipt;
use tandem_handoff::sender::Offer;
use tandem_handoff::{Contract, KvBlock};
use tandem_node::Limits;
use tandem_node::limits::MAX_CHUNKS_WAITING;
use tandem_node::link_estimate::{CodecPolicy, Report};
use tandem_node::route::Route;
use tandem_node::sequence::{Computed, Input};
use tandem_node::transfer::send::transmit;
use tandem_proto::{GenerateEvent, GenerateRequest, HandoffTerms, PrefillMode, Prompt, Ticket};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::MODEL;
use super::ask::greedy;
use super::control::Control;
use super::copy::Fate;
use super::engine::{CHUNK, contract, logits};
use super::figures::{Machine, gigabytes, median, quantile, right, table, told};
use super::receiver::{Ask, Ready, Told};
use super::usage::{Memory, cpu_seconds};
use super::{copy, cores, rows};

/// Of the rows.
const SEED: u64 = 1;
/// Longest wait for a line of the other process.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `tandem bench handoff`.
#[derive(Args)]
pub struct Arguments {
    /// Tokens that are handed over, 96 KiB each.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// How often everything is measured, after once to warm up; medians are shown.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Only these codecs: raw, plane or q8 [default: all].
    #[arg(long, value_name = "NAME")]
    codec: Vec<Codec>,
    /// Only with TLS, or only without: yes or no [default: both].
    #[arg(long, value_name = "WHICH", value_parser = ["yes", "no"])]
    tls: Option<String>,
    /// Leaves it to the system on which cores each process runs [default: each keeps to half of them, as two machines
    /// do not share theirs, where the system can be told so].
    #[arg(long)]
    share_cores: bool,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    /// Of all planes.
    bytes: u64,
    rounds: u32,
    /// True if each process had cores of its own.
    cores_apart: bool,
    /// A plain TCP copy of the same planes into those of the other process.
    tcp_gb_s: f64,
    /// The same bytes, read into one buffer again and again and so thrown away.
    tcp_thrown_away_gb_s: f64,
    /// CPU seconds of both ends for it.
    tcp_cpu_s_per_gb: f64,
    /// A copy of the same planes inside one process, on one thread.
    memcpy_gb_s: f64,
    cases: Vec<Case>,
}

/// One codec, with TLS or without.
#[derive(Debug, Serialize)]
struct Case {
    codec: Codec,
    tls: bool,
    /// 10^9 bytes of rows per second.
    goodput_gb_s: f64,
    /// Goodput over that of the plain TCP copies right before and after.
    ratio_to_tcp: f64,
    /// Between them lies half of the rounds.
    ratio_to_tcp_quartiles: [f64; 2],
    /// Of both ends.
    cpu_s_per_gb: f64,
    cpu_s_per_gb_sender: f64,
    cpu_s_per_gb_receiver: f64,
    /// The most memory of all rounds beyond what was there before the first handoff.
    peak_extra_mb_sender: Option<f64>,
    peak_extra_mb_receiver: Option<f64>,
    /// Bytes of rows for each byte on the wire.
    wire_ratio: f64,
}

/// One handoff.
struct Run {
    seconds: f64,
    cpu_sender: f64,
    cpu_receiver: f64,
    peak_sender: Option<u64>,
    peak_receiver: Option<u64>,
    wire_bytes: u64,
}

/// One plain copy.
#[derive(Debug, Clone, Copy)]
struct Copied {
    seconds: f64,
    /// CPU seconds of both ends.
    cpu: f64,
}

/// All handoffs of a case.
struct Runs {
    codec: Codec,
    tls: bool,
    runs: Vec<Run>,
    /// Seconds of the plain copies right before and after each, their mean.
    tcp: Vec<f64>,
}

/// Runs the measurement.
///
/// # Errors
/// If a process or a handoff fails, or what was applied is not what was sent.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    told(measure(&arguments), arguments.json, shown).await
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    // Before this process has half of it.
    let machine = Machine::this();
    let folder = tempfile::tempdir()?;
    let cluster = ClusterDir::new(folder.path().join("cluster"));
    let identity = Arc::new(cluster.init()?);
    let mut bench = Bench::start(arguments, cluster.path(), identity).await?;
    let mut cases = cases(arguments);
    eprintln!("warming up");
    bench.warm_up(&cases).await?;
    let (mut memcpy, mut thrown_away, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        memcpy.push(bench.memcpy().await?);
        thrown_away.push(bench.tcp(Fate::ThrownAway).await?.seconds);
        let mut before = bench.tcp(Fate::Kept).await?;
        copies.push(before);
        for case in &mut cases {
            case.runs.push(bench.handoff(case.codec, case.tls).await?);
            let after = bench.tcp(Fate::Kept).await?;
            case.tcp.push(f64::midpoint(before.seconds, after.seconds));
            copies.push(after);
            before = after;
        }
    }
    for receiver in bench.receivers.values_mut() {
        receiver.stop().await?;
    }
    let gb = gigabytes(bench.bytes);
    let tcp = |of: fn(&Copied) -> f64| copies.iter().map(of).collect::<Vec<f64>>();
    Ok(Figures {
        machine,
        bytes: bench.bytes,
        rounds: arguments.rounds,
        cores_apart: bench.cores_apart,
        tcp_gb_s: gb / median(&tcp(|copy| copy.seconds)),
        tcp_thrown_away_gb_s: gb / median(&thrown_away),
        tcp_cpu_s_per_gb: median(&tcp(|copy| copy.cpu)) / gb,
        memcpy_gb_s: gb / median(&memcpy),
        cases: cases.iter().map(|c| c.figures(bench.bytes)).collect(),
    })
}

fn cases(arguments: &Arguments) -> Vec<Runs> {
    let wanted = |codec: &Codec| arguments.codec.is_empty() || arguments.codec.contains(codec);
    let codecs = Codec::ALL.into_iter().filter(wanted);
    let both = codecs.flat_map(|codec| [false, true].map(|tls| (codec, tls)));
    let only = arguments.tls.as_deref().map(|only| only == "yes");
    let asked = both.filter(|(_, tls)| only.is_none_or(|only| only == *tls));
    asked
        .map(|(codec, tls)| Runs {
            codec,
            tls,
            runs: Vec::new(),
            tcp: Vec::new(),
        })
        .collect()
}

impl Runs {
    fn figures(&self, bytes: u64) -> Case {
        let gb = gigabytes(bytes);
        let of = |figure: &dyn Fn(&Run) -> f64| {
            median(&self.runs.iter().map(figure).collect::<Vec<f64>>())
        };
        let ratios: Vec<f64> = self
            .runs
            .iter()
            .zip(&self.tcp)
            .map(|(run, tcp)| tcp / run.seconds)
            .collect();
        let peak = |figure: &dyn Fn(&Run) -> Option<u64>| {
            let peaks: Option<Vec<u64>> = self.runs.iter().map(figure).collect();
            peaks?.into_iter().max().map(|p| gigabytes(p) * 1e3)
        };
        Case {
            codec: self.codec,
            tls: self.tls,
            goodput_gb_s: gb / of(&|r| r.seconds),
            ratio_to_tcp: median(&ratios),
            ratio_to_tcp_quartiles: [0.25, 0.75].map(|part| quantile(&ratios, part)),
            cpu_s_per_gb: of(&|r| r.cpu_sender + r.cpu_receiver) / gb,
            cpu_s_per_gb_sender: of(&|r| r.cpu_sender) / gb,
            cpu_s_per_gb_receiver: of(&|r| r.cpu_receiver) / gb,
            peak_extra_mb_sender: peak(&|r| r.peak_sender),
            peak_extra_mb_receiver: peak(&|r| r.peak_receiver),
            wire_ratio: gb / of(&|r| gigabytes(r.wire_bytes)),
        }
    }
}

/// The sending end, and the way to the other one.
struct Bench {
    contract: Arc<Contract>,
    blocks: Vec<Arc<KvBlock>>,
    /// The prompt; the last token is not handed over.
    prompt: Vec<u32>,
    bytes: u64,
    /// Where the plain copy in memory goes.
    copy: Vec<u8>,
    /// Without TLS and with it, as far as they are asked for. Each is a process of its own, so that one's
    /// memory is not taken for the other's.
    receivers: BTreeMap<bool, Receiver>,
    identity: Arc<tandem_cluster::Identity>,
    memory: Memory,
    handoffs: u32,
    cores_apart: bool,
}

impl Bench {
    async fn start(
        arguments: &Arguments,
        authority: &Path,
        identity: Arc<tandem_cluster::Identity>,
    ) -> anyhow::Result<Self> {
        let tokens = arguments.tokens;
        let mut receivers = BTreeMap::new();
        for case in cases(arguments) {
            if let Entry::Vacant(place) = receivers.entry(case.tls) {
                place.insert(Receiver::start(authority, tokens, case.tls).await?);
            }
        }
        let others: Vec<u32> = receivers.values().filter_map(|r| r.child.id()).collect();
        let cores_apart = !arguments.share_cores && cores::divide(std::process::id(), &others)?;
        let contract = Arc::new(contract());
        let blocks = rows::blocks(&contract, tokens, SEED);
        let bytes = blocks.iter().map(|b| b.bytes()).sum();
        Ok(Self {
            contract,
            blocks,
            prompt: (0..=tokens).map(|t| t % 256).collect(),
            bytes,
            // Not zero: that would be memory which the system has not given yet.
            copy: vec![1; usize::try_from(bytes)?],
            receivers,
            identity,
            memory: Memory::start(),
            handoffs: 0,
            cores_apart,
        })
    }

    /// Seconds of a copy in memory.
    async fn memcpy(&mut self) -> anyhow::Result<f64> {
        let (blocks, mut copy) = (self.blocks.clone(), std::mem::take(&mut self.copy));
        let copying = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            copy::memory(&blocks, &mut copy);
            (start.elapsed(), copy)
        });
        let (time, copy) = copying.await?;
        self.copy = copy;
        Ok(time.as_secs_f64())
    }

    /// Does everything once, so that memory has been asked for, and compares what has arrived.
    async fn warm_up(&mut self, cases: &[Runs]) -> anyhow::Result<()> {
        self.memcpy().await?;
        self.tcp(Fate::ThrownAway).await?;
        self.tcp(Fate::Kept).await?;
        self.check_copy().await?;
        for case in cases {
            self.receiver(case.tls)?.ask(Ask::Clear).await?;
            self.handoff(case.codec, case.tls).await?;
            if case.codec.is_lossless() {
                self.check_rows(case.tls).await?;
            }
        }
        Ok(())
    }

    /// A plain copy to the other process.
    async fn tcp(&mut self, fate: Fate) -> anyhow::Result<Copied> {
        let other = self.first_receiver()?;
        let before = cpu_seconds() + other.ask(Ask::Usage).await?.cpu_s;
        let sink = other.ready.sink;
        let blocks = self.blocks.clone();
        let copying = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            copy::send(sink, &blocks, fate)?;
            anyhow::Ok(start.elapsed())
        });
        let time = copying.await??;
        let after = cpu_seconds() + self.first_receiver()?.ask(Ask::Usage).await?.cpu_s;
        Ok(Copied {
            seconds: time.as_secs_f64(),
            cpu: after - before,
        })
    }

    async fn handoff(&mut self, codec: Codec, tls: bool) -> anyhow::Result<Run> {
        let run = self.hand_over(codec, tls).await;
        run.with_context(|| format!("{codec}, TLS {tls}"))
    }

    /// One handoff, from the first connection to the receiver's word that everything is applied.
    async fn hand_over(&mut self, codec: Codec, tls: bool) -> anyhow::Result<Run> {
        self.handoffs += 1;
        let control = self.control(tls).await?;
        let mut generation = control.generate(&self.request(tls)).await?;
        let ticket = loop {
            match generation.next().await? {
                GenerateEvent::Opened { ticket, .. } => break ticket.context("no ticket")?,
                GenerateEvent::Beat => {}
                other => bail!("the receiver said {other:?} and not that it is ready"),
            }
        };
        let route = Route {
            target: SocketAddr::new(control.address.ip(), ticket.port).to_string(),
            peer: control.peer.clone(),
            security: control.security.clone(),
            limits: Limits::default(),
            choice: CodecPolicy::Fixed(codec),
            links: Arc::default(),
            overlap: true,
        };
        let before = self.receiver(tls)?.ask(Ask::Reset).await?.cpu_s;
        self.memory.reset_peak();
        let (start, own) = (Instant::now(), cpu_seconds());
        let report = self.transmit(&ticket, route).await?;
        let (seconds, own) = (start.elapsed().as_secs_f64(), cpu_seconds() - own);
        let peak_sender = self.memory.peak_extra();
        let told = self.receiver(tls)?.ask(Ask::Usage).await?;
        self.check_answer(&mut generation, codec).await?;
        ensure!(
            report.raw_bytes == self.bytes,
            "{} bytes were sent",
            report.raw_bytes
        );
        Ok(Run {
            seconds,
            cpu_sender: own,
            cpu_receiver: told.cpu_s - before,
            peak_sender,
            peak_receiver: told.peak_extra,
            wire_bytes: report.wire_bytes,
        })
    }

    /// The one that takes plain copies.
    fn first_receiver(&mut self) -> anyhow::Result<&mut Receiver> {
        let first = self.receivers.values_mut().next();
        first.context("nothing is measured")
    }

    fn receiver(&mut self, tls: bool) -> anyhow::Result<&mut Receiver> {
        let receiver = self.receivers.get_mut(&tls);
        receiver.context("there is no such receiver")
    }

    async fn transmit(&self, ticket: &Ticket, route: Route) -> anyhow::Result<Report> {
        let kv_end = u32::try_from(self.prompt.len() - 1)?;
        let offer = Offer {
            contract: Arc::clone(&self.contract),
            handoff: ticket.handoff,
            ticket: ticket.secret.clone(),
            tokens: self.prompt.clone(),
            continuation: 0,
            kv_end,
            pages: Vec::new(),
            step_bytes: 0,
            exact_end: kv_end,
        };
        // As many as an engine may be ahead by.
        let (chunks, input) = mpsc::channel(MAX_CHUNKS_WAITING);
        let feeding = tokio::spawn(feed(self.blocks.clone(), kv_end, chunks));
        // It has no coordinator that could go.
        let (events, _listens) = mpsc::channel(1);
        let report = transmit(offer, route, input, events, None).await?;
        feeding.await?;
        Ok(report)
    }

    /// The receiver must have taken everything in, as it was sent, and computed nothing.
    async fn check_answer(
        &self,
        generation: &mut tandem_coordinator::Lines<GenerateEvent>,
        codec: Codec,
    ) -> anyhow::Result<()> {
        loop {
            match generation.next().await? {
                GenerateEvent::Prefilled(summary) => {
                    ensure!(
                        summary.handoff_bytes == self.bytes
                            && summary.codec == Some(codec)
                            && summary.fallback.is_none()
                            && summary.reconnects == 0,
                        "the handoff did not go as it should: {summary:?}"
                    );
                }
                GenerateEvent::Done { .. } => return Ok(()),
                GenerateEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// What a lossless codec brought must be what was sent, to the bit.
    async fn check_rows(&mut self, tls: bool) -> anyhow::Result<()> {
        let sent = self.digest().await?;
        let applied = self.receiver(tls)?.ask(Ask::Digest).await?.digest;
        ensure!(
            applied == Some(sent),
            "other rows were applied than were sent"
        );
        Ok(())
    }

    /// The plain copy must end where a handoff ends.
    async fn check_copy(&mut self) -> anyhow::Result<()> {
        let sent = self.digest().await?;
        let copied = self.first_receiver()?.ask(Ask::Digest).await?.digest;
        ensure!(copied == Some(sent), "the plain copy went wrong");
        Ok(())
    }

    async fn digest(&self) -> anyhow::Result<String> {
        let blocks = self.blocks.clone();
        Ok(tokio::task::spawn_blocking(move || rows::digest(&blocks)).await?)
    }

    async fn control(&mut self, tls: bool) -> anyhow::Result<Control> {
        let identity = Arc::clone(&self.identity);
        let ready = &self.receiver(tls)?.ready;
        match tls {
            true => {
                let peer = ready.identity.parse::<PeerId>()?;
                Control::connect(ready.node, Security::Tls(identity), Some(peer)).await
            }
            false => Control::connect(ready.node, Security::Plaintext, None).await,
        }
    }

    fn request(&self, tls: bool) -> GenerateRequest {
        GenerateRequest {
            request: format!("bench-{}", self.handoffs),
            model: MODEL.to_owned(),
            prompt: Prompt::Tokens(self.prompt.clone()),
            generation: greedy(1),
            prefill: PrefillMode::Remote,
            prefill_peer: tls.then(|| self.identity.id().to_string()),
            alone_percent: 0,
            chunk: CHUNK,
            terms: HandoffTerms {
                quality: Quality::Q8,
                reuse: false,
                ..HandoffTerms::default()
            },
        }
    }
}

/// Gives blocks to be sent, in chunks, as an engine does that computes them in no time.
async fn feed(blocks: Vec<Arc<KvBlock>>, kv_end: u32, chunks: mpsc::Sender<Input>) {
    let mut blocks = blocks.into_iter().peekable();
    while blocks.peek().is_some() {
        let mut chunk = Vec::new();
        let mut tokens = 0;
        while let Some(block) = blocks.next_if(|_| tokens < CHUNK) {
            tokens += block.len();
            chunk.push(block);
        }
        let end = chunk.last().map_or(0, |b| b.tokens.end);
        let computed = Computed {
            window: None,
            blocks: chunk,
            tokens: end,
            computed: Instant::now(),
            prefill_ms: 0.0,
            computed_tokens: 0,
            last: end == kv_end,
            receipt_follows: end == kv_end,
        };
        if chunks.send(Input::Chunk(computed)).await.is_err() {
            // The handoff has failed and says why.
            return;
        }
    }
    // What the other engine computes, too.
    let receipt = Receipt::of(&logits(), None);
    let _ = chunks.send(Input::Receipt(Box::new(receipt))).await;
}

/// The other process.
struct Receiver {
    child: Child,
    /// Its end tells the process to stop.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    ready: Ready,
}

impl Receiver {
    async fn start(authority: &Path, tokens: u32, tls: bool) -> anyhow::Result<Self> {
        let program: PathBuf = std::env::current_exe().context("where this program is")?;
        let mut command = Command::new(program);
        command
            .args(["bench", "receiver", "--tokens", &tokens.to_string()])
            .args(tls.then_some("--tls"))
            .arg("--authority")
            .arg(authority)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        // Ctrl-C on the terminal is for the process that measures.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().context("the receiver cannot be started")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the receiver has no output")?;
        let mut output = BufReader::new(output).lines();
        let ready = line(&mut output).await?;
        Ok(Self {
            child,
            input,
            ready: serde_json::from_str(&ready)?,
            output,
        })
    }

    async fn ask(&mut self, ask: Ask) -> anyhow::Result<Told> {
        let mut question = serde_json::to_vec(&ask)?;
        question.push(b'\n');
        let input = self.input.as_mut().context("the receiver has no input")?;
        input.write_all(&question).await?;
        Ok(serde_json::from_str(&line(&mut self.output).await?)?)
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        self.input = None;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait());
        ended.await.context("the receiver does not end")??;
        Ok(())
    }
}

async fn line(output: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<String> {
    let line = tokio::time::timeout(PATIENCE, output.next_line()).await;
    let line = line.context("the receiver says nothing")??;
    line.context("the receiver has ended")
}

fn shown(figures: &Figures) -> String {
    let mut out = table(&[
        "codec",
        "TLS",
        "GB/s",
        "of TCP",
        "quartiles",
        "wire ratio",
        "CPU s/GB",
        "sender",
        "receiver",
        "extra MB",
        "sender",
        "receiver",
    ]);
    for case in &figures.cases {
        let mb = |peak: Option<f64>| right(peak.map_or("–".to_owned(), |p| format!("{p:.0}")));
        let [low, high] = case.ratio_to_tcp_quartiles;
        let both = case.peak_extra_mb_sender.zip(case.peak_extra_mb_receiver);
        out.add_row(vec![
            comfy_table::Cell::new(case.codec.name()),
            comfy_table::Cell::new(if case.tls { "yes" } else { "no" }),
            right(format!("{:.2}", case.goodput_gb_s)),
            right(format!("{:.2}", case.ratio_to_tcp)),
            right(format!("{low:.2}–{high:.2}")),
            right(format!("{:.3}", case.wire_ratio)),
            right(format!("{:.2}", case.cpu_s_per_gb)),
            right(format!("{:.2}", case.cpu_s_per_gb_sender)),
            right(format!("{:.2}", case.cpu_s_per_gb_receiver)),
            mb(both.map(|(a, b)| a + b)),
            mb(case.peak_extra_mb_sender),
            mb(case.peak_extra_mb_receiver),
        ]);
    }
    format!(
        "{}\n{:.1} MB of rows, medians of {} rounds, {}\n\
         memcpy {:.2} GB/s, plain TCP copy {:.2} GB/s ({:.2} CPU s/GB), \
         thrown away {:.2} GB/s\n{out}",
        figures.machine,
        gigabytes(figures.bytes) * 1e3,
        figures.rounds,
        match figures.cores_apart {
            true => "each process on cores of its own",
            false => "both processes on the same cores",
        },
        figures.memcpy_gb_s,
        figures.tcp_gb_s,
        figures.tcp_cpu_s_per_gb,
        figures.tcp_thrown_away_gb_s,
    )
}
