//! Standard output, and errors as one sentence.

use std::fmt::Write as _;
use std::io::Write as _;

/// Writes `text` and a line break to standard output, at once.
///
/// # Errors
/// If nobody reads it any more.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Writes `text` to standard output as it is, at once.
///
/// # Errors
/// If nobody reads it any more.
pub fn print_part(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// An error with its causes, without those that the text already says.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let inner = anyhow::anyhow!("the disk is full");
        let error = inner.context("the disk is full").context("cannot write x");
        assert_eq!(explain(&error), "cannot write x: the disk is full");
    }
}
