//! `cargo xtask corpus`: the training data of the nano models.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tandem_corpus::{Order, Split, generate};

/// Where the examples go and how many.
#[derive(Args)]
pub struct CorpusArguments {
    /// The same seed gives the same file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Submissions; every eight share a task and a rubric.
    #[arg(long)]
    count: usize,
    /// File to write, one JSON object a line.
    #[arg(long)]
    out: PathBuf,
    /// Of 100 submissions, how many use other names than the task and habit suggest.
    #[arg(long, default_value_t = 0)]
    varied: usize,
    /// Most course notes that lengthen a rubric's guidelines; about half of the rubrics get some.
    #[arg(long, default_value_t = 0)]
    notes: usize,
    /// Which tasks.
    #[arg(long, value_enum)]
    split: Side,
}

/// A side of the corpus.
#[derive(Clone, Copy, ValueEnum)]
enum Side {
    /// Tasks to train on.
    Train,
    /// Tasks that are never trained on.
    Heldout,
}

/// Writes the examples.
///
/// # Errors
/// If the file cannot be written.
pub fn write(arguments: &CorpusArguments) -> anyhow::Result<()> {
    let split = match arguments.split {
        Side::Train => Split::Train,
        Side::Heldout => Split::Heldout,
    };
    let path = &arguments.out;
    let context = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    let mut out = BufWriter::new(File::create(path).with_context(context)?);
    let order = Order {
        seed: arguments.seed,
        count: arguments.count,
        split,
        shape: None,
        varied: arguments.varied,
        notes: arguments.notes,
    };
    for example in generate(&order)? {
        writeln!(out, "{}", example.to_json()).with_context(context)?;
    }
    out.flush().with_context(context)?;
    eprintln!("{} examples in {}", arguments.count, path.display());
    Ok(())
}
