//! Whether something was attempted at all, decided in code before any model is asked.
//!
//! The significant lines of a file are those left without blank lines, comments, `TODO` and
//! placeholders. A submission without any, or whose significant lines all stand, in order, in a
//! template, was not attempted.

use crate::error::GradingError;
use crate::files;
use crate::limits;
use crate::submission::read_source;
use std::path::{Path, PathBuf};

/// How a language writes comments.
#[derive(Clone, Copy)]
enum Comments {
    /// `#`, and strings in triple quotes that stand alone.
    Python,
    /// `#`.
    Hash,
    /// `//` and `/* */`.
    Slash,
    /// Markdown: headings and fence lines do not count.
    Markdown,
}

fn comments_of(language: &str) -> Comments {
    match language {
        "py" | "python" => Comments::Python,
        "r" | "ir" => Comments::Hash,
        "rmd" | "markdown" => Comments::Markdown,
        _ => Comments::Slash,
    }
}

/// The significant lines of a source in this language (an extension or a kernel's name, lower case).
pub(crate) fn significant_lines(language: &str, lines: &[String]) -> Vec<String> {
    let comments = comments_of(language);
    let mut inside: Option<&str> = None;
    let mut out = Vec::new();
    for line in lines {
        let line = line.trim();
        if let Some(end) = inside {
            if line.contains(end) {
                inside = None;
            }
            continue;
        }
        if let Some((start, end)) = block_start(comments, line) {
            if !line[start.len()..].contains(end) {
                inside = Some(end);
            }
            continue;
        }
        if !is_noise(comments, line) {
            out.push(line.to_owned());
        }
    }
    out
}

fn block_start(comments: Comments, line: &str) -> Option<(&'static str, &'static str)> {
    let blocks: &[(&str, &str)] = match comments {
        Comments::Python => &[("\"\"\"", "\"\"\""), ("'''", "'''")],
        Comments::Slash => &[("/*", "*/")],
        Comments::Markdown => &[("<!--", "-->")],
        Comments::Hash => &[],
    };
    let (start, end) = blocks.iter().find(|(start, _)| line.starts_with(start))?;
    // Code after the end of the block would be lost; such a line is code.
    let code_after = line[start.len()..]
        .split_once(end)
        .is_some_and(|(_, after)| !after.trim().is_empty());
    (!code_after).then_some((start, end))
}

fn is_noise(comments: Comments, line: &str) -> bool {
    if line.is_empty() || line.to_lowercase().starts_with("todo") {
        return true;
    }
    match comments {
        Comments::Python => line.starts_with('#') || line == "pass" || line == "...",
        Comments::Hash => line.starts_with('#'),
        Comments::Slash => line.starts_with("//") || line == ";",
        Comments::Markdown => line.starts_with('#') || line.starts_with("```") || line == "---",
    }
}

/// Whether nothing was added to a template, or nothing is there at all.
pub(crate) fn is_untouched(significant: &[String], templates: &[Vec<String>]) -> bool {
    significant.is_empty()
        || templates
            .iter()
            .any(|template| is_subsequence(significant, template))
}

fn is_subsequence(lines: &[String], of: &[String]) -> bool {
    let mut rest = of.iter();
    lines.iter().all(|line| rest.any(|other| other == line))
}

/// Files named `template.<kind>` in the rubric's folder.
pub(crate) fn templates_beside(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let is_template = |path: &PathBuf| {
        path.file_stem().is_some_and(|stem| stem == "template")
            && crate::submission::kind_of(path).is_some()
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(is_template)
        .collect();
    found.sort();
    found.truncate(limits::MAX_TEMPLATES);
    found
}

/// The significant lines of a template file.
pub(crate) fn read_template(path: &Path) -> Result<Vec<String>, GradingError> {
    let fault = |problem: String| GradingError::Rubric {
        field: format!("template {}", path.display()),
        problem,
    };
    let kind = crate::submission::kind_of(path)
        .ok_or_else(|| fault("this kind of file is not supported".to_owned()))?;
    let bytes = files::read_bounded(path, kind.max_bytes()).map_err(|e| fault(e.to_string()))?;
    let file = read_source("template", kind, &bytes).map_err(fault)?;
    Ok(file.significant)
}
