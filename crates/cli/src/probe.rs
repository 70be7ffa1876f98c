//! `tandem probe`: measures what this machine does with a model, and writes a profile of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use sysinfo::System;
use tandem_engine::{Capacity, DecodeStep, KvEngine, Sequence, Token};
use tandem_engine_llama::LlamaOptions;
use tandem_handoff::{Contract, LayerKind};
use tandem_sched::profile::{Attention, Catalogue, Figures, Machine, Model, Row, Source};

use crate::environment::Environment;
use crate::numbers::float;
use crate::sources::{self, Wanted};
use crate::{links, loading, output, security, tables, version};
use tandem_engine_llama::{build::cores, options::parse_model};

/// New tokens of a measured step of prefill.
const CHUNK: u32 = 2048;
/// Tokens computed at once, as nodes do.
const UBATCH: u32 = 512;
/// Tokens that each of several sequences has before decoding is measured, and may have.
const HELD: u32 = 512;
const SHORT: u32 = 1024;
/// Steps of decoding that are measured, and before them those that are not.
const STEPS: u32 = 16;
const WARM_STEPS: u32 = 4;
/// Steps of several sequences that are measured.
const BATCHES: [u32; 4] = [1, 2, 4, 8];
/// Bytes that all threads together read to measure memory: more than caches have.
const READ_BYTES: usize = 1 << 30;
/// How often.
const READS: u32 = 5;
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Arguments of `tandem probe`.
#[derive(Args)]
pub struct Arguments {
    /// The name of a model, one of `tandem plan --list` or any other, and its file or the name that Ollama, LM Studio or
    /// the Hugging Face cache has for it.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_model, required_unless_present = "to")]
    model: Option<(String, PathBuf)>,
    /// Measures instead the link from this machine to a running node, `host:port` of its --listen.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "model")]
    to: Option<String>,
    /// What that link should be, a name of `tandem plan --list`, such as 10gbit.
    #[arg(long, requires = "to")]
    link: Option<String>,
    #[command(flatten)]
    security: security::Arguments,
    /// The name of this machine in the profile [default: its host name].
    #[arg(long)]
    name: Option<String>,
    /// The file to write [default: the machine's name and .toml].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Writes over a file that is there.
    #[arg(long)]
    replace: bool,
    /// Tokens of one sequence: prefill is measured to this depth.
    #[arg(long, default_value_t = 16384, value_parser = clap::value_parser!(u32).range(3072..=1_048_576))]
    context: u32,
    /// Seconds after which no deeper prefill is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// CPU threads [default: all].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Layers on the GPU, where the build has one.
    #[arg(long, default_value_t = 999)]
    gpu_layers: u32,
}

/// Measures, writes the profile, and shows what is in it.
///
/// # Errors
/// If the model cannot be loaded or computed, has another shape than the one of its name, or the file cannot be written.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    if let Some(to) = &arguments.to {
        return link(&arguments, to, environment).await;
    }
    let (name, path) = arguments.model.as_ref().context("--model is missing")?;
    let wanted = Wanted {
        name: Some(name.clone()),
        source: path.display().to_string(),
    };
    let found = sources::obtain(&wanted, environment)
        .await
        .with_context(|| format!("--model `{name}`"))?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let options = |sequences, tokens| LlamaOptions {
        capacity: Capacity {
            sequences,
            cached: 0,
            tokens_per_sequence: tokens,
            prefill_tokens: CHUNK,
            microbatch_tokens: UBATCH,
        },
        threads,
        gpu_layers: arguments.gpu_layers,
        fingerprints: environment.fingerprints(),
        ..LlamaOptions::default()
    };
    let machine_name = match &arguments.name {
        Some(name) => name.clone(),
        None => host_name(),
    };
    let file = arguments.out.clone();
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{machine_name}.toml")));
    check_new(&file, arguments.replace)?;
    let bytes = std::fs::metadata(&found.path).map_or(0, |meta| meta.len());
    // One long sequence, then several short ones: a cache for several long ones might have no room.
    let one = options(1, arguments.context);
    let (_, mut engine) = loading::load_visibly(name, &found.path, &one)?;
    let model = model(name, engine.contract(), bytes)?;
    let limit = Duration::from_secs(arguments.limit);
    let (prefill, mut decode) = measure_one(engine.as_mut(), arguments.context, limit)?;
    drop(engine);
    let most = BATCHES.into_iter().max().unwrap_or(1);
    let several = options(most, SHORT);
    let (_, mut engine) = loading::load_visibly(name, &found.path, &several)?;
    decode.extend(measure_several(engine.as_mut())?);
    decode.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let figures = Figures {
        model: model.name.clone(),
        engine: format!("tandem {}, {}", version::VERSION, engine.contract().engine),
        source: source(),
        prefill,
        decode,
        note: String::new(),
    };
    drop(engine);
    eprintln!("reading memory");
    let mut machine = machine(machine_name, figures, threads);
    // What has this name already is known everywhere.
    if Catalogue::built_in()?.model(name).is_err() {
        machine.models.push(model);
    }
    let text = machine.text()?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    output::print(&shown(&machine))?;
    output::print(&format!(
        "written to {0}; the plan with another machine: tandem plan --machine {0} --machine spark --model {name}",
        file.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// That no profile is written over unasked.
fn check_new(file: &Path, replace: bool) -> anyhow::Result<()> {
    match file.exists() && !replace {
        true => bail!(
            "{} is there already; --replace writes over it, --out names another file",
            file.display()
        ),
        false => Ok(()),
    }
}

/// Measures the link to a node.
async fn link(
    arguments: &Arguments,
    to: &str,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let catalogue = Catalogue::built_in()?;
    let expected = arguments.link.as_ref().map(|name| catalogue.link(name));
    let expected = expected.transpose()?;
    let security = arguments.security.security(environment)?;
    let report = tandem_node::link::test(&security, to, None, CONNECT).await?;
    let verdict = links::judge(&report, &catalogue, expected);
    output::print(&verdict.found)?;
    for fault in &verdict.faults {
        output::print(&format!("note: {fault}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What this machine is called, in letters that names of profiles have.
fn host_name() -> String {
    let name = System::host_name().unwrap_or_default();
    let first = name.split('.').next().unwrap_or_default();
    let kept = first.chars().map(|c| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    });
    let name: String = kept.collect();
    match name.trim_matches('-') {
        "" => "this-machine".to_owned(),
        name => name.to_owned(),
    }
}

fn source() -> Source {
    Source {
        at: format!("measured by tandem probe {}", version::VERSION),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
    }
}

/// The model of this name, with the shape of its cache.
fn model(name: &str, contract: &Contract, bytes: u64) -> anyhow::Result<Model> {
    let found = attention(contract);
    let all = Catalogue::built_in()?;
    if let Ok(known) = all.model(name) {
        if known.latent.is_some() || sorted(known.attention.clone()) != sorted(found.clone()) {
            bail!(
                "the profile `{name}` has another cache than this file: {:?} there, {found:?} here; give the model a name of its own",
                known.attention
            );
        }
        return Ok(known.clone());
    }
    let weights_gb = (float(bytes) / 1e9).max(1e-6);
    Ok(Model {
        name: name.to_owned(),
        title: format!("{name}, {}", contract.architecture),
        weights_gb,
        parameters_b: None,
        active_b: None,
        experts: None,
        attention: found,
        latent: None,
        source: source(),
    })
}

/// Layers of one shape together.
pub fn attention(contract: &Contract) -> Vec<Attention> {
    let mut found: Vec<Attention> = Vec::new();
    for layer in &contract.layers {
        // A window holds the token itself too.
        let window = match layer.kind {
            LayerKind::Full => None,
            LayerKind::Window => Some(contract.window.saturating_add(1)),
        };
        let (kv_heads, head_dim) = (layer.kv_heads, layer.key_dim.midpoint(layer.value_dim));
        let same =
            |a: &&mut Attention| (a.kv_heads, a.head_dim, a.window) == (kv_heads, head_dim, window);
        match found.iter_mut().find(same) {
            Some(same) => same.layers += 1,
            None => found.push(Attention {
                layers: 1,
                kv_heads,
                head_dim,
                window,
            }),
        }
    }
    found
}

fn sorted(mut attention: Vec<Attention>) -> Vec<Attention> {
    attention.sort_by_key(|a| (a.window, a.layers, a.kv_heads, a.head_dim));
    attention
}

/// Prefill to a depth, and decoding of one sequence there.
fn measure_one(
    engine: &mut dyn KvEngine,
    context: u32,
    limit: Duration,
) -> anyhow::Result<(Vec<Row>, Vec<Row>)> {
    let began = Instant::now();
    let sequence = engine.open()?;
    // The first one pays for memory that is touched for the first time.
    let mut short = Duration::MAX;
    for is_measured in [false, true, true] {
        let took = compute(engine, sequence, 0, UBATCH)?;
        engine.truncate(sequence, 0);
        if is_measured {
            short = short.min(took);
        }
    }
    let mut prefill = vec![rate(UBATCH, 0, short)];
    let mut depth = 0;
    while depth + CHUNK + STEPS + WARM_STEPS <= context && (depth == 0 || began.elapsed() < limit) {
        let took = compute(engine, sequence, depth, CHUNK)?;
        let seconds = took.as_secs_f64();
        eprintln!("prefill of {CHUNK} tokens after {depth}: {seconds:.2} s");
        prefill.push(rate(CHUNK, depth, took));
        depth += CHUNK;
    }
    let mut decode = Vec::new();
    if depth > 0 {
        decode.push(rate(1, depth, steps(engine, &[sequence], depth)?));
    }
    engine.release(sequence);
    Ok((prefill, decode))
}

/// Decoding of several sequences at once.
fn measure_several(engine: &mut dyn KvEngine) -> anyhow::Result<Vec<Row>> {
    let mut decode = Vec::new();
    for batch in BATCHES {
        let mut sequences = Vec::new();
        for _ in 0..batch {
            let sequence = engine.open()?;
            compute(engine, sequence, 0, HELD)?;
            sequences.push(sequence);
        }
        let took = steps(engine, &sequences, HELD)?;
        let ms = took.as_secs_f64() * 1e3;
        eprintln!("a step of {batch} sequences: {ms:.1} ms");
        decode.push(rate(batch, HELD, took));
        for sequence in sequences {
            engine.release(sequence);
        }
    }
    Ok(decode)
}

/// A row of a profile: how many, at which depth, and tokens per second.
fn rate(count: u32, depth: u32, took: Duration) -> Row {
    let per_second = f64::from(count) / took.as_secs_f64().max(1e-9);
    (
        f64::from(count),
        f64::from(depth),
        (per_second * 100.0).round() / 100.0,
    )
}

/// A token that depends on its place, so that experts of a model are used as a text would.
fn token(engine: &dyn KvEngine, place: u32) -> Token {
    place.wrapping_mul(7919).wrapping_add(13) % engine.tokenizer().len().max(1)
}

fn compute(
    engine: &mut dyn KvEngine,
    sequence: Sequence,
    start: u32,
    count: u32,
) -> anyhow::Result<Duration> {
    let tokens: Vec<Token> = (start..start + count).map(|i| token(engine, i)).collect();
    let began = Instant::now();
    engine.prefill(sequence, start, &tokens)?;
    Ok(began.elapsed())
}

/// What one step of these sequences takes, each of which has so many tokens.
fn steps(engine: &mut dyn KvEngine, sequences: &[Sequence], held: u32) -> anyhow::Result<Duration> {
    let mut began = Instant::now();
    for step in 0..WARM_STEPS + STEPS {
        if step == WARM_STEPS {
            began = Instant::now();
        }
        let position = held + step;
        let token = token(engine, position);
        let all: Vec<DecodeStep> = sequences
            .iter()
            .map(|sequence| DecodeStep {
                sequence: *sequence,
                token,
                position,
            })
            .collect();
        engine.begin_step();
        engine.decode(&all)?;
        engine.end_step();
    }
    Ok(began.elapsed() / STEPS)
}

fn machine(name: String, figures: Figures, threads: u32) -> Machine {
    let mut system = System::new();
    system.refresh_memory();
    system.refresh_cpu_all();
    let brand = system
        .cpus()
        .first()
        .map_or("", |cpu| cpu.brand())
        .trim()
        .to_owned();
    let memory_gb = (float(system.total_memory()) / 1e9).max(0.001);
    Machine {
        title: format!("{brand}, {memory_gb:.0} GB"),
        name,
        memory_gb: (memory_gb * 10.0).round() / 10.0,
        bandwidth_gb_s: (read_gb_s(threads) * 10.0).round() / 10.0,
        source: source(),
        watts: None,
        figures: vec![figures],
        models: Vec::new(),
    }
}

/// Bytes per second, in GB/s, that threads together read from memory; the best of several times.
fn read_gb_s(threads: u32) -> f64 {
    let count = usize::try_from(threads).unwrap_or(1).max(1);
    let each = READ_BYTES / size_of::<u64>() / count;
    let start = Barrier::new(count);
    let read = &|thread: usize| {
        let numbers: Vec<u64> = (0_u64..).take(each).map(|i| i ^ thread as u64).collect();
        let time = |_| {
            start.wait();
            let began = Instant::now();
            let sum = numbers.iter().fold(0_u64, |sum, n| sum.wrapping_add(*n));
            std::hint::black_box(sum);
            // All have read.
            start.wait();
            began.elapsed()
        };
        (0..READS).map(time).min().unwrap_or_default()
    };
    let best = thread::scope(|scope| {
        let readers: Vec<_> = (0..count).map(|i| scope.spawn(move || read(i))).collect();
        let times = readers.into_iter().filter_map(|reader| reader.join().ok());
        times.max().unwrap_or_default()
    });
    let bytes = float((each * count * size_of::<u64>()) as u64);
    (bytes / best.as_secs_f64().max(1e-9) / 1e9).max(0.1)
}

/// The profile as a table.
fn shown(machine: &Machine) -> String {
    let mut table = tables::new(&["what", "how many", "after tokens", "tokens/s"]);
    for figures in &machine.figures {
        for (what, rows) in [("prefill", &figures.prefill), ("decode", &figures.decode)] {
            for (count, depth, rate) in rows {
                table.add_row([
                    what.to_owned(),
                    format!("{count:.0}"),
                    format!("{depth:.0}"),
                    format!("{rate:.1}"),
                ]);
            }
        }
    }
    format!(
        "{}: {}, memory read by its processor at {:.1} GB/s\n{table}",
        machine.name, machine.title, machine.bandwidth_gb_s
    )
}
