//! Files that people write, read up to a limit.

use std::path::Path;

use anyhow::{Context, bail};

/// The bytes of a file of so many at most.
///
/// # Errors
/// If it cannot be read, or is larger.
pub fn read(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let cannot = || format!("cannot read {shown}");
    let size = path.metadata().with_context(cannot)?.len();
    if size > most {
        bail!("{shown} has {size} bytes, and {most} are allowed");
    }
    std::fs::read(path).with_context(cannot)
}

/// The same as text.
///
/// # Errors
/// As [`read`], or if it is no text.
pub fn read_text(path: &Path, most: u64) -> anyhow::Result<String> {
    let bytes = read(path, most)?;
    String::from_utf8(bytes).with_context(|| format!("{} is no text (UTF-8)", path.display()))
}
