//! `tandem bench slices`: how long an engine is busy with a slice of KV, which is what running generations wait for
//! between two of their tokens while KV comes in or goes out, and what it takes to give layers away while the next
//! ones are computed.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use tandem_engine::{
    Capacity, Compute, DecodeStep, Item, KvCache, KvEngine, LayerRows, Sequence, Token,
};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};
use tandem_handoff::segment::block_tokens;
use tandem_handoff::{KvBlock, Section};
use tandem_node::limits::SLICE_BYTES;

use super::figures::{Machine, gigabytes, median, right, table, told};
use tandem_engine_llama::build::cores;

/// Tokens per chunk, as nodes have by default.
const CHUNK: u32 = 512;

/// Arguments of `tandem bench slices`.
#[derive(Args)]
pub struct Arguments {
    /// The model.
    #[arg(long, value_name = "PATH", default_value = super::DEFAULT_MODEL)]
    model: PathBuf,
    /// Tokens whose KV is copied out and taken in.
    #[arg(long, default_value_t = 6144, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    tokens: u32,
    /// How often.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    machine: Machine,
    model: String,
    tokens: u32,
    rounds: u32,
    /// The limit of a slice.
    max_slice_bytes: u64,
    /// One token of one sequence that holds so many, in milliseconds, median.
    decode_ms: f64,
    /// A whole chunk, in milliseconds, median.
    chunk_ms: f64,
    out: Slices,
    #[serde(rename = "in")]
    back: Slices,
    by_layer: ByLayer,
}

/// Medians in milliseconds, of an engine that only computes and of one that gives its layers.
#[derive(Debug, Serialize)]
struct ByLayer {
    /// The first chunk of a prompt: only computed, with layers that nobody reads, and with those that are read.
    chunk_ms: [f64; 3],
    /// The same in steps, as the last one is computed.
    steps_ms: [f64; 3],
    /// One token of one sequence that holds a chunk; no rows are given.
    decode_ms: [f64; 2],
}

/// One slice.
#[derive(Debug, Clone, Copy, Serialize)]
struct Slice {
    bytes: u64,
    ms: f64,
}

/// The slices of one direction.
#[derive(Debug, Serialize)]
struct Slices {
    slices: usize,
    /// Of the largest one.
    bytes: u64,
    /// Of those that have about as many bytes, in milliseconds.
    median_ms: f64,
    max_ms: f64,
    gb_per_s: f64,
}

/// Runs the measurement.
///
/// # Errors
/// If the model cannot be loaded, or its engine fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let json = arguments.json;
    let measuring = async { tokio::task::spawn_blocking(move || measure(&arguments)).await? };
    told(measuring, json, shown).await
}

fn load(arguments: &Arguments, tokens: u32, by_layer: bool) -> anyhow::Result<LlamaEngine> {
    let options = LlamaOptions {
        capacity: Capacity {
            sequences: 2,
            cached: 0,
            tokens_per_sequence: tokens + 1,
            prefill_tokens: CHUNK,
            microbatch_tokens: CHUNK,
        },
        threads: cores(),
        by_layer,
        ..LlamaOptions::default()
    };
    Ok(LlamaEngine::load(&arguments.model, &options)?)
}

fn measure(arguments: &Arguments) -> anyhow::Result<Figures> {
    let by_layer = by_layer(arguments)?;
    let mut engine = load(arguments, arguments.tokens, true)?;
    let tokens = tokens(&engine, arguments.tokens);
    let source = engine.open()?;
    let mut chunks = Vec::new();
    for (start, chunk) in (0..)
        .step_by(CHUNK as usize)
        .zip(tokens.chunks(CHUNK as usize))
    {
        let begun = Instant::now();
        engine.prefill(source, start, chunk)?;
        if chunk.len() == CHUNK as usize {
            chunks.push(milliseconds(begun));
        }
    }
    let (mut out, mut back, mut steps) = (Timed::default(), Timed::default(), Vec::new());
    for _ in 0..arguments.rounds {
        let blocks = copy_out(&mut engine, source, arguments.tokens, &mut out)?;
        let target = engine.open()?;
        take_in(&mut engine, target, &blocks, &mut back)?;
        let begun = Instant::now();
        engine.decode(&[DecodeStep {
            sequence: target,
            token: tokens[0],
            position: arguments.tokens,
        }])?;
        steps.push(milliseconds(begun));
        engine.release(target);
    }
    Ok(Figures {
        machine: Machine::this(),
        model: arguments.model.display().to_string(),
        tokens: arguments.tokens,
        rounds: arguments.rounds,
        max_slice_bytes: SLICE_BYTES,
        decode_ms: median(&steps),
        chunk_ms: median(&chunks),
        out: out.slices(),
        back: back.slices(),
        by_layer,
    })
}

/// Both engines in turn.
fn by_layer(arguments: &Arguments) -> anyhow::Result<ByLayer> {
    let mut engines = [
        load(arguments, CHUNK, false)?,
        load(arguments, CHUNK, true)?,
    ];
    let tokens = tokens(&engines[0], CHUNK);
    let [mut chunk, mut steps]: [[Vec<f64>; 3]; 2] = Default::default();
    let mut decode: [Vec<f64>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (at, (engine, reads)) in [(0, false), (1, false), (1, true)].into_iter().enumerate() {
            let (sequence, ms) = compute(&mut engines[engine], &tokens, CHUNK, reads)?;
            chunk[at].push(ms);
            let (engine, decode) = (&mut engines[engine], &mut decode[engine]);
            let begun = Instant::now();
            engine.decode(&[DecodeStep {
                sequence,
                token: tokens[0],
                position: CHUNK,
            }])?;
            decode.push(milliseconds(begun));
            engine.release(sequence);
            let step = engine.tail_tokens().min(CHUNK);
            let (sequence, ms) = compute(engine, &tokens, step, reads)?;
            steps[at].push(ms);
            engine.release(sequence);
        }
    }
    Ok(ByLayer {
        chunk_ms: chunk.map(|ms| median(&ms)),
        steps_ms: steps.map(|ms| median(&ms)),
        decode_ms: decode.map(|ms| median(&ms)),
    })
}

/// Computes tokens in steps and takes what is given, or leaves it; gives the sequence and the time in milliseconds.
fn compute(
    engine: &mut LlamaEngine,
    tokens: &[Token],
    step: u32,
    reads: bool,
) -> anyhow::Result<(Sequence, f64)> {
    let sequence = engine.open()?;
    let begun = Instant::now();
    let starts = (0..).step_by(step as usize);
    for (start, tokens) in starts.zip(tokens.chunks(step as usize)) {
        let mut planes = Vec::new();
        let mut give = |given: &LayerRows<'_>| {
            let mut rows = Vec::new();
            if !reads {
                return;
            }
            (given.read)(given.tokens.clone(), &mut rows);
            planes.push(rows);
        };
        engine.evaluate(&[Item::chunk(sequence, start, tokens)], Some(&mut give))?;
    }
    Ok((sequence, milliseconds(begun)))
}

/// Made up, the same each time.
fn tokens(engine: &LlamaEngine, count: u32) -> Vec<Token> {
    let vocabulary = engine.tokenizer().len().max(1);
    (0..count)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocabulary)
        .collect()
}

/// Slices of one direction, and what a slice has so far.
#[derive(Default)]
struct Timed {
    bytes: u64,
    time: Duration,
    all: Vec<Slice>,
}

impl Timed {
    /// How many of the rows that are left of a block are moved next: those that the slice has room for, if that is
    /// all of them or as many as any slice has; otherwise it ends, and they begin the next one.
    fn next(&mut self, left: u32, row_bytes: u64) -> u32 {
        let most = u32::try_from(SLICE_BYTES / row_bytes.max(1));
        let rows = left.min(most.unwrap_or(u32::MAX).max(1));
        if self.bytes + row_bytes * u64::from(rows) > SLICE_BYTES {
            self.end();
        }
        rows
    }

    /// So many bytes have been moved since `begun`.
    fn add(&mut self, bytes: u64, begun: Instant) {
        self.bytes += bytes;
        self.time += begun.elapsed();
    }

    fn end(&mut self) {
        if self.bytes > 0 {
            self.all.push(Slice {
                bytes: self.bytes,
                ms: self.time.as_secs_f64() * 1e3,
            });
        }
        (self.bytes, self.time) = (0, Duration::ZERO);
    }

    fn slices(self) -> Slices {
        let bytes = self.all.iter().map(|slice| slice.bytes).max().unwrap_or(0);
        let whole = self.all.iter().filter(|slice| slice.bytes > bytes / 10 * 9);
        let ms: Vec<f64> = whole.map(|slice| slice.ms).collect();
        let median_ms = median(&ms);
        Slices {
            slices: self.all.len(),
            bytes,
            median_ms,
            max_ms: ms.iter().copied().fold(0.0, f64::max),
            gb_per_s: gigabytes(bytes) / (median_ms / 1e3),
        }
    }
}

/// All blocks, as a node cuts them: full ones first, then the window.
fn copy_out(
    engine: &mut LlamaEngine,
    source: Sequence,
    end: u32,
    timed: &mut Timed,
) -> anyhow::Result<Vec<KvBlock>> {
    let mut blocks = Vec::new();
    for section in Section::ALL {
        if !engine.contract().has_section(section) {
            continue;
        }
        let contract = engine.contract();
        let window = contract.window_start(end)..end;
        let window_row = contract.token_bytes(&contract.section_layers(Section::Window));
        let (most, row_bytes) = (
            block_tokens(contract, section),
            engine.export_bytes(section),
        );
        let mut start = contract.section_start(section, end);
        let mut block_end = start;
        while start < end {
            if start == block_end {
                block_end = end.min(start.saturating_add(most));
            }
            let range = start..start + timed.next(block_end - start, row_bytes);
            start = range.end;
            // An engine copies them along.
            let along = match section {
                Section::Full => range.end.saturating_sub(window.start.max(range.start)),
                Section::Window => 0,
            };
            let begun = Instant::now();
            let block = engine.export(source, section, range)?;
            timed.add(block.bytes() + window_row * u64::from(along), begun);
            blocks.push(block);
        }
    }
    timed.end();
    Ok(blocks)
}

/// Full blocks one by one, and the window as a whole, by slices.
fn take_in(
    engine: &mut LlamaEngine,
    target: Sequence,
    blocks: &[KvBlock],
    timed: &mut Timed,
) -> anyhow::Result<()> {
    let is_full = |block: &&KvBlock| block.section == Section::Full;
    for block in blocks.iter().filter(is_full) {
        take_in_block(engine, target, block, timed)?;
    }
    let mut parts = blocks.iter().filter(|block| !is_full(block));
    if let Some(first) = parts.next() {
        let mut window = first.clone();
        parts.for_each(|part| window.append(part));
        take_in_block(engine, target, &window, timed)?;
    }
    timed.end();
    Ok(())
}

/// A block in parts that a slice has room for.
fn take_in_block(
    engine: &mut LlamaEngine,
    target: Sequence,
    block: &KvBlock,
    timed: &mut Timed,
) -> anyhow::Result<()> {
    let row_bytes = block.bytes() / u64::from(block.len().max(1));
    let Range { mut start, end } = block.tokens;
    while start < end {
        let part = start..start + timed.next(end - start, row_bytes);
        start = part.end;
        let begun = Instant::now();
        engine.import_part(target, block, part.clone())?;
        timed.add(row_bytes * u64::from(part.end - part.start), begun);
    }
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "few bytes")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn shown(figures: &Figures) -> String {
    let mut rows = table(&["", "slices", "MB", "median ms", "longest ms", "GB/s"]);
    for (name, slices) in [("out", &figures.out), ("in", &figures.back)] {
        rows.add_row(vec![
            Cell::new(name),
            right(slices.slices),
            right(format!("{:.1}", mb(slices.bytes))),
            right(format!("{:.2}", slices.median_ms)),
            right(format!("{:.2}", slices.max_ms)),
            right(format!("{:.2}", slices.gb_per_s)),
        ]);
    }
    let mut layers = table(&["ms, medians", "computed", "cut by layer", "given by layer"]);
    let by_layer = &figures.by_layer;
    for (name, ms) in [
        ("a first chunk", &by_layer.chunk_ms[..]),
        ("the same in steps", &by_layer.steps_ms),
        ("a token behind it", &by_layer.decode_ms),
    ] {
        let ms = ms.iter().map(|ms| right(format!("{ms:.2}")));
        layers.add_row([Cell::new(name)].into_iter().chain(ms));
    }
    format!(
        "{}, {} tokens, {} rounds\n{rows}\n{layers}\nA slice has at most {:.1} MB. A token takes {:.1} ms, a chunk of {CHUNK} tokens {:.0} ms.\n{}",
        figures.model,
        figures.tokens,
        figures.rounds,
        mb(figures.max_slice_bytes),
        figures.decode_ms,
        figures.chunk_ms,
        figures.machine
    )
}
