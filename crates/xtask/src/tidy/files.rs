//! Files: their names, what none of them may contain, documents that must not forget a crate or link
//! to nothing.

use std::path::Path;

use anyhow::Context;
use walkdir::{DirEntry, WalkDir};

use super::arrows::Crate;
use super::{links, sources};

/// Folders that are not part of the project.
const SKIPPED: &[&str] = &[".git", "target", "out", "models", "node_modules"];

/// Names that say nothing about what a file is about.
const EMPTY_NAMES: &[&str] = &[
    "utils", "util", "common", "helpers", "helper", "manager", "misc",
];

/// Paths of one machine or of what lies beside one checkout; nobody else has them. Written in two
/// parts, so that this file does not contain them.
const FOREIGN_PATHS: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("..", "/shared"),
];

/// The document whose table must name every crate.
const CODE_MAP: &str = "ARCHITECTURE.md";

/// Largest file that is read, in bytes; larger ones are data.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// Violations in all files below `root`.
///
/// # Errors
/// If a file cannot be read.
pub fn check(root: &Path, crates: &[Crate]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let walk = WalkDir::new(root)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|e| e.depth() == 0 || !is_skipped(e));
    for entry in walk {
        let entry = entry.context("the checkout cannot be walked")?;
        let path = entry.path();
        let relative = path.strip_prefix(root).unwrap_or(path);
        if !entry.file_type().is_file() {
            continue;
        }
        found.extend(check_name(relative));
        if entry.metadata()?.len() > MAX_TEXT_BYTES {
            continue;
        }
        let bytes =
            std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        // What is not text is data, which these rules do not concern.
        if let Ok(text) = String::from_utf8(bytes) {
            found.extend(check_text(relative, &text));
            if relative.extension().is_some_and(|e| e == "md") {
                found.extend(links::check(root, relative, &text));
            }
        }
    }
    found.extend(check_code_map(root, crates));
    Ok(found)
}

fn is_skipped(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    entry.file_type().is_dir() && SKIPPED.contains(&name.as_ref())
}

fn check_name(path: &Path) -> Option<String> {
    let is_rust = path.extension().is_some_and(|e| e == "rs");
    let stem = path.file_stem()?.to_str()?;
    (is_rust && EMPTY_NAMES.contains(&stem)).then(|| {
        format!(
            "{}: name it after what it is about, with a word from the glossary",
            path.display()
        )
    })
}

fn check_text(path: &Path, text: &str) -> Vec<String> {
    let shown = path.display().to_string();
    let mut found: Vec<String> = (1..)
        .zip(text.lines())
        .flat_map(|(number, line)| {
            let shown = &shown;
            FOREIGN_PATHS
                .iter()
                .filter(move |p| names_path(line, p))
                .map(move |p| format!("{shown}:{number}: `{p}` exists on one machine only"))
        })
        .collect();
    if path.extension().is_some_and(|e| e == "rs") {
        let mut parts = path.iter().map(|p| p.to_string_lossy());
        if matches!(parts.next().as_deref(), Some("crates" | "training"))
            && let Some(name) = parts.next()
        {
            let in_tests = parts.next().as_deref() != Some("src");
            found.extend(sources::check(&name, &shown, in_tests, text));
        }
    }
    found
}

/// True if an absolute (or parent) path starts here, as opposed to the middle of another path.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '~' | '}'))
    })
}

fn check_code_map(root: &Path, crates: &[Crate]) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(root.join(CODE_MAP)) else {
        return vec![format!("{CODE_MAP} is missing")];
    };
    crates
        .iter()
        .filter(|c| !text.contains(&format!("| `{}` |", c.short())))
        .map(|c| format!("{CODE_MAP} has no row for `{}`", c.short()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_named(name: &str) -> Crate {
        Crate {
            name: format!("tandem-{name}"),
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn a_planted_violation_in_a_checkout_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("ARCHITECTURE.md", "| `handoff` | layouts |\n");
        write("crates/handoff/src/lib.rs", "//! Fine.\n");
        write(
            "crates/handoff/tests/it.rs",
            "fn f() { std::fs::read(p); }\n",
        );
        write("target/x.rs", "unsafe\n");
        write(
            "docs/links.md",
            "[a](../ARCHITECTURE.md#b)\n```\n[c](gone)\n```\n",
        );
        assert_eq!(
            check(dir.path(), &[crate_named("handoff")]).unwrap(),
            Vec::<String>::new()
        );

        write("crates/handoff/src/utils.rs", "fn f() {}\n");
        write("crates/handoff/src/clock.rs", "\nuse std::time::Instant;\n");
        write("docs/x.md", concat!("see ..", "/shared/x\n[a](gone.md)\n"));
        let found = check(dir.path(), &[crate_named("handoff"), crate_named("new")]).unwrap();
        let all = found.join("\n");
        for expected in [
            "crates/handoff/src/utils.rs: name it",
            "crates/handoff/src/clock.rs:2: ",
            "docs/x.md:1: ",
            "docs/x.md:2: the link to `gone.md`",
            "no row for `new`",
        ] {
            assert!(all.contains(expected), "{expected} is not in\n{all}");
        }
        assert_eq!(found.len(), 5, "{all}");
    }

    #[test]
    fn paths_are_told_from_parts_of_paths() {
        for (line, path, expected) in [
            ("cd /x/y", "/x/", true),
            ("`/x/y`", "/x/", true),
            ("~/x/y", "/x/", false),
            ("a/x/y", "/x/", false),
            ("${A}/x/y", "/x/", false),
        ] {
            assert_eq!(names_path(line, path), expected, "{line}");
        }
    }
}
