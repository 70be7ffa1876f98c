//! Lines that a student left as they were in a template: no model reads them again.
//!
//! A course that hands out a project has works of which most lines are its own. What is left out is named by a
//! marker; line numbers stay those of the file, so that evidence can be looked up.

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::attempt::Template;
use crate::limits::{ELISION_CONTEXT, MAX_ELISION_LINES, MIN_ELIDED_LINES};
use crate::submission::SourceFile;

/// What is shown of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// A line and its number, from 1.
    Line(usize, &'a str),
    /// These lines, from 1 and both included, are those of the template.
    Same(usize, usize),
}

/// What is shown of each file of a submission, beside the template that has most of its lines.
pub(crate) fn shown<'a>(files: &'a [SourceFile], templates: &[Template]) -> Vec<Vec<Shown<'a>>> {
    let of = |template: &Template| -> Vec<Vec<(usize, usize)>> {
        files.iter().map(|file| same(file, template)).collect()
    };
    let count = |same: &Vec<Vec<(usize, usize)>>| -> usize {
        same.iter().flatten().map(|(first, end)| end - first).sum()
    };
    // The first of several that have as many.
    let best = templates.iter().map(of).rev().max_by_key(count);
    let best = best.unwrap_or_else(|| vec![Vec::new(); files.len()]);
    files
        .iter()
        .zip(best)
        .map(|(file, same)| elided(file, &same))
        .collect()
}

/// Ranges of lines, from 0, that a file has in common with the template's file of the same name, or with its only one.
fn same(file: &SourceFile, template: &Template) -> Vec<(usize, usize)> {
    let candidates = template.files();
    let named = candidates
        .iter()
        .find(|f| base(&f.name) == base(&file.name));
    let only = (candidates.len() == 1).then(|| &candidates[0]);
    let Some(original) = named.or(only) else {
        return Vec::new();
    };
    let (old, new) = (trimmed(original), trimmed(file));
    if old.len().max(new.len()) > MAX_ELISION_LINES {
        return Vec::new();
    }
    let ops = capture_diff_slices(Algorithm::Patience, &old, &new);
    let equal = ops.iter().filter_map(|op| match op {
        DiffOp::Equal { new_index, len, .. } => Some((*new_index, new_index + len)),
        _ => None,
    });
    equal.collect()
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn trimmed(file: &SourceFile) -> Vec<&str> {
    file.lines.iter().map(|line| line.trim_end()).collect()
}

/// Leaves out what is the same, but for a few lines beside what is not.
fn elided<'a>(file: &'a SourceFile, same: &[(usize, usize)]) -> Vec<Shown<'a>> {
    let total = file.lines.len();
    let mut out = Vec::new();
    let mut next = 0;
    let lines = |out: &mut Vec<Shown<'a>>, from: usize, to: usize| {
        out.extend((from..to).map(|i| Shown::Line(i + 1, &file.lines[i])));
    };
    for &(first, end) in same {
        let first = if first == 0 {
            0
        } else {
            first + ELISION_CONTEXT
        };
        let last = if end == total {
            total
        } else {
            end.saturating_sub(ELISION_CONTEXT)
        };
        if last < first + MIN_ELIDED_LINES {
            continue;
        }
        lines(&mut out, next, first);
        out.push(Shown::Same(first + 1, last));
        next = last;
    }
    lines(&mut out, next, total);
    out
}
