//! Loading a model: the engine, and how far it is.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tandem_engine::{KvCache, KvEngine};
use tandem_engine_llama::{LlamaEngine, LlamaOptions, Loading, Watch};

use crate::environment::Environment;

/// Parts of a bar.
const PARTS: u64 = 1000;
/// Between two redraws of the elapsed time.
const TICK: Duration = Duration::from_millis(200);

/// Engines of this machine compute on its processor one step at a time, also those of other processes.
pub fn take_turns(environment: &Environment) {
    if let Err(e) = tandem_engine_llama::turns::share_with_processes(&environment.meeting) {
        let folder = environment.meeting.display();
        tracing::warn!(
            "nodes on this machine cannot take turns on its processor, and slow each other down if they have several threads: {folder}: {e}"
        );
    }
}

/// Loads the model of this name.
///
/// # Errors
/// If the file cannot be used.
pub fn load(
    name: &str,
    path: &Path,
    options: &LlamaOptions,
) -> anyhow::Result<(String, Box<dyn KvEngine>)> {
    let start = Instant::now();
    let engine = LlamaEngine::load(path, options)
        .with_context(|| format!("--model `{name}`: {} cannot be used", path.display()))?;
    tracing::info!(
        model = name,
        load_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        threads = options.threads,
        sequences = engine.capacity().sequences,
        context = engine.capacity().tokens_per_sequence,
        "model loaded"
    );
    Ok((name.to_owned(), Box::new(engine)))
}

/// The same with a bar on the terminal: first for the hash of the weights, if they have not been hashed before, then for
/// the loading.
///
/// # Errors
/// As [`load`].
pub fn load_visibly(
    name: &str,
    path: &Path,
    options: &LlamaOptions,
) -> anyhow::Result<(String, Box<dyn KvEngine>)> {
    let bar = ProgressBar::with_draw_target(Some(PARTS), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix} {msg} [{bar:30}] {elapsed}");
    // The template is a constant and valid; a plain bar would do too.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(TICK);
    let shown = bar.clone();
    let watch = Watch::new(move |loading| {
        let (message, part) = match loading {
            Loading::Hashed { bytes, of } => {
                ("fingerprint", bytes.saturating_mul(PARTS) / of.max(1))
            }
            Loading::Loaded(part) => ("loading    ", thousandths(part)),
        };
        shown.set_message(message);
        shown.set_position(part);
    });
    let options = LlamaOptions {
        watch,
        ..options.clone()
    };
    let loaded = load(name, path, &options);
    bar.finish_and_clear();
    if let Ok((_, engine)) = &loaded {
        let capacity = engine.capacity();
        let (slots, context) = (capacity.sequences, capacity.tokens_per_sequence);
        eprintln!("{name}: {slots} sequences of {context} tokens at once");
    }
    loaded
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of 1"
)]
fn thousandths(part: f32) -> u64 {
    (f64::from(part.clamp(0.0, 1.0)) * 1000.0) as u64
}
