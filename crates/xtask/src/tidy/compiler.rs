//! The oldest compiler: manifest, README and the script for a new machine name the same one. No lint sees all that needs a
//! newer one, so it is the one that the continuous integration has.

use std::path::Path;

use anyhow::Context;

/// Where it is named, with what stands before it and behind it.
const PLACES: [(&str, &str, &str); 3] = [
    ("Cargo.toml", "rust-version = \"", "\""),
    ("README.md", "[Rust](https://rustup.rs) ", " or newer"),
    ("scripts/install-deps.sh", "install Rust ", " or newer"),
];

/// Compares them with each other.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut first = None;
    for (file, before, behind) in PLACES {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        let version = text
            .split_once(before)
            .and_then(|(_, rest)| rest.split_once(behind))
            .map(|(version, _)| version.to_owned());
        let Some(version) = version else {
            found.push(format!("{file} names no compiler behind `{before}`"));
            continue;
        };
        let (of, expected) = first.get_or_insert((file, version.clone()));
        if version != *expected {
            found.push(format!(
                "{file} names the compiler {version}, {of} {expected}: name the one of the continuous integration in both"
            ));
        }
    }
    Ok(found)
}
