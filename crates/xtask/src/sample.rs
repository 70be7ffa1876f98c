//! `cargo xtask sample RESULTS`: the sample course as the gradebook has it, from the results of a run of it.
//!
//! ```sh
//! tandem grade --model code=models/nano-coder.gguf --model feedback=models/nano-writer.gguf \
//!     --rubric examples/intro-course/rubric.yaml --out out/sample examples/intro-course/submissions
//! cargo xtask sample out/sample/results.json
//! ```

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use tandem_grading::{Rubric, load_submissions};

/// Where the gradebook has it, in the checkout.
const FILE: &str = "crates/gradebook/assets/sample.json";
/// The course, in the checkout.
const COURSE: &str = "examples/intro-course";
/// What made the results.
const MADE_BY: &str = "nano-coder and nano-writer, trained for this course";

/// Arguments of the task.
#[derive(Args)]
pub struct Arguments {
    /// `results.json` of a run of the sample course.
    results: PathBuf,
}

/// Writes the file.
///
/// # Errors
/// If something cannot be read or written.
pub fn main(root: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let course = root.join(COURSE);
    let rubric = Rubric::load(&course.join("rubric.yaml"))?;
    let submissions = load_submissions(&[course.join("submissions")])?;
    let results = std::fs::read(&arguments.results)
        .with_context(|| format!("cannot read {}", arguments.results.display()))?;
    let results: Value = serde_json::from_slice(&results)?;
    let file = json!({
        "made_by": MADE_BY,
        "rubric": rubric.source,
        "templates": rubric.templates,
        "submissions": submissions,
        "results": results["submissions"],
    });
    let mut text = serde_json::to_string_pretty(&file)?;
    text.push('\n');
    std::fs::write(root.join(FILE), text)?;
    Ok(())
}
