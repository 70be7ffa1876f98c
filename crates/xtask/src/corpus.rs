//! `cargo xtask corpus`: the training data of the nano models.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tandem_corpus::{GROUP, Order, Split, generate};

/// Where the examples go and how many.
#[derive(Args)]
pub struct CorpusArguments {
    /// The same seed gives the same file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Submissions; every eight share a task and a rubric, those of a course all.
    #[arg(long)]
    count: usize,
    /// File to write, one JSON object a line.
    #[arg(long, required_unless_present = "course")]
    out: Option<PathBuf>,
    /// Folder to write a course to instead: `rubric.yaml`, the files of the submissions, and `labels.csv` with the points of
    /// each. Notebooks are left out.
    #[arg(long, conflicts_with = "out")]
    course: Option<PathBuf>,
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
    let order = Order {
        seed: arguments.seed,
        count: arguments.count,
        group: match arguments.course {
            Some(_) => arguments.count,
            None => GROUP,
        },
        split,
        shape: None,
        varied: arguments.varied,
        notes: arguments.notes,
    };
    let path = match (&arguments.out, &arguments.course) {
        (_, Some(folder)) => return write_course(folder, &order),
        (Some(path), None) => path,
        (None, None) => anyhow::bail!("--out or --course is needed"),
    };
    let context = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    let mut out = BufWriter::new(File::create(path).with_context(context)?);
    for example in generate(&order)? {
        writeln!(out, "{}", example.to_json()).with_context(context)?;
    }
    out.flush().with_context(context)?;
    eprintln!("{} examples in {}", arguments.count, path.display());
    Ok(())
}

/// Writes one course.
fn write_course(folder: &Path, order: &Order) -> anyhow::Result<()> {
    let works = folder.join("submissions");
    std::fs::create_dir_all(&works).with_context(|| format!("cannot make {}", works.display()))?;
    let mut count = 0;
    let mut labels = String::new();
    for example in generate(order)? {
        let files = &example.submission.files;
        if files.iter().any(|file| file.name.ends_with(".ipynb")) {
            continue;
        }
        std::fs::write(folder.join("rubric.yaml"), &example.rubric.source)?;
        let name = format!("s{count:04}");
        if labels.is_empty() {
            let ids = example.rubric.criteria.iter().map(|c| c.id.as_str());
            let header: Vec<&str> = std::iter::once("name").chain(ids).collect();
            labels = format!("{}\n", header.join(","));
        }
        let answer: serde_json::Value = serde_json::from_str(&example.analysis)?;
        let points = example.rubric.criteria.iter().map(|c| {
            let points = &answer["criteria"][c.id.as_str()]["points"];
            points.as_f64().map(|points| points.to_string())
        });
        let points: Option<Vec<String>> = points.collect();
        let points = points.context("an answer lacks points")?;
        labels += &format!("{name},{}\n", points.join(","));
        let work = works.join(name);
        std::fs::create_dir_all(&work)?;
        for file in files {
            std::fs::write(
                work.join(&file.name),
                format!("{}\n", file.lines.join("\n")),
            )?;
        }
        count += 1;
    }
    std::fs::write(folder.join("labels.csv"), labels)?;
    eprintln!("a course of {count} submissions in {}", folder.display());
    Ok(())
}
