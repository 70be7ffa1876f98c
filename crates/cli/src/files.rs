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

/// A secret in a file that nobody but its owner may read.
///
/// # Errors
/// As [`read_text`], or if others may read it.
pub fn read_secret(path: &Path, most: u64) -> anyhow::Result<String> {
    let text = read_text(path, most)?;
    if is_for_others(path)? {
        let shown = path.display();
        bail!("others can read {shown}, which has a secret: chmod 600 {shown}");
    }
    Ok(text)
}

/// Makes a folder for what is nobody else's business; there must be none.
///
/// # Errors
/// If it is there, or cannot be made.
pub fn make_private(path: &Path) -> anyhow::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}

#[cfg(unix)]
fn is_for_others(path: &Path) -> anyhow::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(path.metadata()?.permissions().mode() & 0o077 != 0)
}

/// Where files have no permissions of this kind, nobody can tell.
#[cfg(not(unix))]
fn is_for_others(_: &Path) -> anyhow::Result<bool> {
    Ok(false)
}
