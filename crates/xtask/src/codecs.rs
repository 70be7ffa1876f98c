//! `cargo xtask codecs`: what each codec of the handoff saves, costs and changes, on KV that trained
//! models make of held-out prompts.
//!
//! The KV of a prompt is exported, encoded, decoded, and imported into another sequence, which then
//! reads the reference answer; its next-token distributions are compared with those after raw KV.

mod figures;
mod handoff;
mod speed;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tandem_corpus::{Example, GROUP, Order, Shape, Split, generate};
use tandem_grading::Job;
use tandem_handoff::codec::Codec;

use figures::Figures;
use handoff::{Prompt, Subject};

/// Most KV that the speed is measured on, in bytes: more than fits the caches of one core, and little
/// enough for a short run.
const SPEED_BYTES: u64 = 16 << 20;

/// Which models, how many prompts.
#[derive(Args)]
pub struct CodecsArguments {
    /// Models; one with `writer` in its name gets the prompts of the feedback, others those of the
    /// code analysis.
    #[arg(
        long = "model",
        num_args = 1..,
        default_values = ["models/nano-coder.gguf", "models/nano-writer.gguf"]
    )]
    models: Vec<PathBuf>,
    /// Prompts.
    #[arg(long, default_value_t = 24)]
    count: usize,
    /// Seed of the submissions.
    #[arg(long, default_value_t = 1_000)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If a model cannot be loaded, or an engine or a codec fails.
pub fn run(arguments: &CodecsArguments) -> anyhow::Result<()> {
    let examples = generate(&Order {
        seed: arguments.seed,
        count: arguments.count,
        group: GROUP,
        split: Split::Heldout,
        shape: Some(Shape::standard()),
        varied: 30,
        notes: 0,
    })?;
    let mut models = Vec::new();
    for path in &arguments.models {
        models.push(measure(path, &examples)?);
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", json!({ "models": models }))?;
    } else {
        for model in &models {
            write!(out, "{}", table(model))?;
        }
    }
    Ok(())
}

fn measure(path: &Path, examples: &[Example]) -> anyhow::Result<Value> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let job = if name.contains("writer") {
        Job::Feedback
    } else {
        Job::CodeAnalysis
    };
    let mut subject = Subject::load(path)?;
    let mut figures = Codec::ALL.map(|_| Figures::default());
    let mut sample = Vec::new();
    let (mut positions, mut kv_bytes, mut kept) = (0, 0, 0);
    for example in examples {
        let prompt = Prompt::of(&subject, job, example)?;
        let blocks = subject.prefill(&prompt)?;
        let bytes: u64 = blocks.iter().map(tandem_handoff::KvBlock::bytes).sum();
        kv_bytes += bytes;
        let exact = subject.read_answer(&prompt, &blocks)?;
        positions += exact.len();
        for (codec, figures) in Codec::ALL.into_iter().zip(&mut figures) {
            let (decoded, encoded) = subject.through(codec, &blocks)?;
            figures.add_rows(&blocks, &decoded, encoded);
            figures.add_answer(&exact, &subject.read_answer(&prompt, &decoded)?);
        }
        if kept + bytes <= SPEED_BYTES {
            kept += bytes;
            sample.extend(blocks);
        }
    }
    let mut codecs = Vec::new();
    for (codec, figures) in Codec::ALL.into_iter().zip(&figures) {
        let speed = speed::measure(codec, subject.contract(), &sample)?;
        codecs.push(figures.json(codec, &speed));
    }
    Ok(json!({
        "model": name,
        "prompts": examples.len(),
        "positions": positions,
        "kv_bytes": kv_bytes,
        "codecs": codecs,
    }))
}

/// One model as a table in Markdown.
fn table(model: &Value) -> String {
    let mut out = format!(
        "{}: {} prompts, {} MB of KV, {} positions\n\n",
        model["model"].as_str().unwrap_or_default(),
        model["prompts"],
        model["kv_bytes"].as_u64().unwrap_or(0) / 1_000_000,
        model["positions"],
    );
    out.push_str(
        "| codec | ratio | encode GB/s | decode GB/s | largest error | relative error K, V | mean KL | max KL | same top-1 |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for codec in model["codecs"].as_array().into_iter().flatten() {
        let number = |key: &str| codec[key].as_f64().unwrap_or(f64::NAN);
        let line = format!(
            "| `{}` | {:.3} | {:.1} | {:.1} | {:.2e} | {:.2e}, {:.2e} | {:.2e} | {:.2e} | {:.2} % |\n",
            codec["codec"].as_str().unwrap_or_default(),
            number("ratio"),
            number("encode_gb_s"),
            number("decode_gb_s"),
            number("largest_error"),
            number("relative_error_k"),
            number("relative_error_v"),
            number("mean_kl"),
            number("max_kl"),
            100.0 * number("top1_agreement"),
        );
        out.push_str(&line);
    }
    out.push('\n');
    out
}
