//! `cargo xtask nano-eval`: what the nano models can do with submissions to tasks that they were not
//! trained on, through the engine that ships.
//!
//! The labels come from the corpus generator, the points from the constrained answer. Beside each
//! figure stands what chance and a constant answer reach on the same submissions.

mod answers;
mod logits;
mod score;

use std::path::PathBuf;

use clap::Args;
use tandem_corpus::{GROUP, Order, Shape, Split, generate};
use tandem_grading::{Job, Rubric};

use answers::Asker;
pub use answers::prompt_tokens;

/// Which models, how many submissions.
#[derive(Args)]
pub struct Arguments {
    /// Model of the code analysis.
    #[arg(long, default_value = "models/nano-coder.gguf")]
    coder: PathBuf,
    /// Model of the feedback.
    #[arg(long, default_value = "models/nano-writer.gguf")]
    writer: PathBuf,
    /// Submissions.
    #[arg(long, default_value_t = 200)]
    count: usize,
    /// Of 100 submissions, how many use other names than the task and habit suggest.
    #[arg(long, default_value_t = 30)]
    varied: usize,
    /// Seed of the submissions.
    #[arg(long, default_value_t = 1_000)]
    seed: u64,
    /// Lengthen each rubric's guidelines by about this many tokens of course notes, to see how the
    /// models take prompts longer than they were trained on.
    #[arg(long, default_value_t = 0)]
    lengthen: usize,
    /// CPU threads; for models as small as these more than one only wait for each other.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Print the first answers as well.
    #[arg(long, default_value_t = 0)]
    show: usize,
    /// Write tokens and logits of reference answers to FILE.jsonl and FILE.f32 instead, for
    /// training/check.py.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// With --logits: which model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// With --logits: the prompts of the feedback instead of the code analysis.
    #[arg(long)]
    feedback: bool,
}

/// Runs the evaluation.
///
/// # Errors
/// If a model cannot be loaded or an answer cannot be generated.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut examples = generate(&Order {
        seed: arguments.seed,
        count: arguments.count,
        group: GROUP,
        split: Split::Heldout,
        shape: Some(Shape::standard()),
        varied: arguments.varied,
        notes: 0,
    })?;
    for example in &mut examples {
        lengthen(&mut example.rubric, arguments.lengthen);
    }
    if let Some(out) = &arguments.logits {
        let model = arguments.model.as_ref().unwrap_or(&arguments.coder);
        let job = if arguments.feedback {
            Job::Feedback
        } else {
            Job::CodeAnalysis
        };
        return logits::write(model, job, &examples, out, arguments.threads);
    }
    let mut coder = Asker::load(&arguments.coder, arguments.threads)?;
    let mut analyses = Vec::with_capacity(examples.len());
    let mut longest_prompt = 0;
    for (i, example) in examples.iter().enumerate() {
        longest_prompt = longest_prompt.max(coder.prompt(Job::CodeAnalysis, example)?.len());
        let answer = coder.ask(Job::CodeAnalysis, example)?;
        if i < arguments.show {
            eprintln!("{}\n", answer.text);
        }
        analyses.push(answer);
    }
    drop(coder);
    let mut writer = Asker::load(&arguments.writer, arguments.threads)?;
    let mut feedbacks = Vec::with_capacity(examples.len());
    for (i, example) in examples.iter().enumerate() {
        let answer = writer.ask(Job::Feedback, example)?;
        if i < arguments.show {
            eprintln!("{}\n", answer.text);
        }
        feedbacks.push(answer);
    }
    eprintln!("prompts of the code analysis: at most {longest_prompt} tokens");
    eprint!("{}", score::analyses(&examples, &analyses));
    eprint!("{}", score::feedbacks(&examples, &feedbacks));
    Ok(())
}

/// Tokens of one of the notes below, about.
const NOTE_TOKENS: usize = 24;
/// What a course says about every exercise.
const NOTES: [&str; 6] = [
    "Judge the code, not its length.",
    "Library functions are allowed in every exercise of this course.",
    "A loop and a comprehension are worth the same.",
    "Names may be in any language that the student speaks.",
    "Comments are welcome but not needed where the code speaks for itself.",
    "The first exercises of a course are graded more gently than the last.",
];

/// Adds about `tokens` tokens of notes to the guidelines.
fn lengthen(rubric: &mut Rubric, tokens: usize) {
    for (number, note) in NOTES.iter().cycle().take(tokens / NOTE_TOKENS).enumerate() {
        rubric
            .guidelines
            .push_str(&format!(" Note {}: {note}", number + 1));
    }
}
