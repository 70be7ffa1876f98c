//! `docs/limits.md`: every named limit, out of the files that define them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use walkdir::WalkDir;

const DOCUMENT: &str = "docs/limits.md";
const HEAD: &str = "# Limits

The limits of what comes from others, of queues and of waits, as they stand in the files `limits.rs` of each crate.
Values are as in the source, which is in Rust: `1 << 20` bytes are a mebibyte.
The ones with a small letter are waits that tests may shorten.
Those of the wire format bind peers, too; [wire-format.md](wire-format.md#limits) says how.
[handoff.md](handoff.md#limits) says what happens where a limit of a handoff is reached.

This file is written by `cargo xtask limits`, and `cargo xtask check` fails where it is not up to date.
";

/// Writes the document, or fails if it is another one than it should be.
///
/// # Errors
/// If a file cannot be read or written, or a limit says nothing about itself.
pub fn run(root: &Path, is_check: bool) -> anyhow::Result<()> {
    let text = document(root)?;
    let path = root.join(DOCUMENT);
    if !is_check {
        return fs::write(&path, text).with_context(|| format!("cannot write {DOCUMENT}"));
    }
    let written = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    if written != text {
        bail!("{DOCUMENT} is not up to date; run `cargo xtask limits`");
    }
    Ok(())
}

fn document(root: &Path) -> anyhow::Result<String> {
    let mut text = HEAD.to_owned();
    for entry in WalkDir::new(root.join("crates")).sort_by_file_name() {
        let entry = entry?;
        if entry.file_name() != "limits.rs"
            || !entry.path().components().any(|c| c.as_os_str() == "src")
        {
            continue;
        }
        let name = entry.path().strip_prefix(root)?.display().to_string();
        if name.starts_with("crates/xtask") {
            continue;
        }
        let source = fs::read_to_string(entry.path())?;
        let limits = limits(&source).with_context(|| name.clone())?;
        write!(
            text,
            "\n## [{name}](../{name})\n\n| limit | value | what |\n|---|---|---|\n"
        )?;
        for Limit { name, value, what } in limits {
            writeln!(text, "| `{name}` | `{value}` | {what} |")?;
        }
    }
    Ok(text)
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
struct Limit {
    name: String,
    value: String,
    what: String,
}

/// The public constants of a file, and the fields of its `Limits` with their usual values, in order.
fn limits(source: &str) -> anyhow::Result<Vec<Limit>> {
    let usual = source
        .split_once("fn default()")
        .map_or("", |(_, rest)| rest);
    let mut limits = Vec::new();
    let mut what = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("/// ") {
            if !what.is_empty() {
                what.push(' ');
            }
            what.push_str(comment);
            continue;
        }
        let found = if let Some(constant) = line.strip_prefix("pub const ") {
            let mut whole = constant.to_owned();
            while !whole.ends_with(';') {
                let more = lines.next().context("a constant without an end")?;
                write!(whole, " {}", more.trim())?;
            }
            let (name, value) = whole
                .split_once(" = ")
                .context("a constant without a value")?;
            let name = name.split(':').next().unwrap_or(name);
            Some((name.to_owned(), value.trim_end_matches(';').to_owned()))
        } else if let Some((name, _)) = line
            .strip_prefix("pub ")
            .and_then(|field| field.split_once(": "))
        {
            let start = format!("{name}: ");
            let value = usual.lines().find_map(|l| l.trim().strip_prefix(&start));
            let value = value.with_context(|| format!("`{name}` has no usual value"))?;
            Some((name.to_owned(), value.trim_end_matches(',').to_owned()))
        } else {
            None
        };
        if let Some((name, value)) = found {
            if what.is_empty() {
                bail!("`{name}` says nothing about itself");
            }
            limits.push(Limit {
                name,
                value,
                what: plain(&what),
            });
        }
        if !line.starts_with("#[") {
            what.clear();
        }
    }
    Ok(limits)
}

/// A comment without the links of rustdoc: only the last name of a path stays.
fn plain(comment: &str) -> String {
    let mut text = String::new();
    let mut rest = comment;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((path, after)) = link.split_once("`]") else {
            break;
        };
        let name = path.rsplit("::").next().unwrap_or(path);
        text.push_str(before);
        text.push_str(&format!("`{name}`"));
        rest = after;
    }
    text.push_str(rest);
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::{Limit, limits};

    #[test]
    fn constants_and_waits_are_found() {
        let source = "/// Bytes of [`crate::a::B`],\n/// at most.\npub const MAX: usize =\n    1 << 20;\n\nconst YEAR: u64 = 1;\n\n\
            /// Waits.\n#[derive(Debug)]\npub struct Limits {\n    /// Until an end.\n    pub end: Duration,\n}\n\n\
            impl Default for Limits {\n    fn default() -> Self {\n        Self {\n            end: Duration::from_secs(2),\n        }\n    }\n}\n";
        let row = |name: &str, value: &str, what: &str| Limit {
            name: name.into(),
            value: value.into(),
            what: what.into(),
        };
        let expected = [
            row("MAX", "1 << 20", "Bytes of `B`, at most."),
            row("end", "Duration::from_secs(2)", "Until an end."),
        ];
        assert_eq!(limits(source).unwrap(), expected);
        assert!(limits("pub const MAX: usize = 1;\n").is_err());
    }
}
