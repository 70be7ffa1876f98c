//! Tokens and logits of reference answers, for a comparison with the training framework.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::json;
use tandem_corpus::Example;
use tandem_grading::Job;

use super::answers::Asker;

/// Writes `out.jsonl` (prompt, answer and tokens of each example) and `out.f32` (little-endian logits,
/// one row of the vocabulary per token, all examples in a row).
pub fn write(
    model: &Path,
    job: Job,
    examples: &[Example],
    out: &Path,
    threads: u32,
) -> anyhow::Result<()> {
    let mut asker = Asker::load(model, threads)?;
    let tokenizer = asker.tokenizer();
    let end = tokenizer
        .special()
        .eos
        .context("the model has no end token")?;
    let create = |extension: &str| -> anyhow::Result<BufWriter<File>> {
        let path = out.with_extension(extension);
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(BufWriter::new(file))
    };
    let (mut lines, mut values) = (create("jsonl")?, create("f32")?);
    for example in examples {
        let answer = match job {
            Job::CodeAnalysis => &example.analysis,
            Job::Feedback => &example.feedback,
        };
        let mut tokens = asker.prompt(job, example)?;
        let prompt_tokens = tokens.len();
        tokens.extend(tokenizer.encode(answer, false));
        tokens.push(end);
        for row in asker.all_logits(&tokens)? {
            for value in row {
                values.write_all(&value.to_le_bytes())?;
            }
        }
        let mut line = example.to_json();
        line["job"] = json!(job.as_str());
        line["prompt_tokens"] = json!(prompt_tokens);
        line["tokens"] = json!(tokens);
        writeln!(lines, "{line}")?;
    }
    lines.flush()?;
    values.flush()?;
    eprintln!("{} examples in {}", examples.len(), out.display());
    Ok(())
}
