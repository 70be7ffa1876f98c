//! Lines that a student left as they were in a template: no model reads them again.
//!
//! A course that hands out a project has works of which most lines are its own. What is left out is named by a
//! marker; line numbers stay those of the file, so that evidence can be looked up.

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::attempt::Material;
use crate::limits::{ELISION_CONTEXT, MAX_ELISION_LINES, MIN_ELIDED_LINES};
use crate::source::SourceFile;

/// What is shown of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// A line and its number, from 1.
    Line(usize, &'a str),
    /// These lines, from 1 and both included, are those of the template.
    Same(usize, usize),
    /// So many lines of the template are not here, and none in their place.
    Gone(usize),
}

/// Lines in a row that a file has in common with a template: where they begin, from 0, and how many.
#[derive(Debug, Clone, Copy)]
struct Common {
    here: usize,
    there: usize,
    lines: usize,
}

/// What a file has in common with a template's file, and how many lines that one has.
#[derive(Debug, Clone, Default)]
struct Compared {
    common: Vec<Common>,
    total: usize,
}

/// What is shown of each file of a submission, beside the template that has most of its lines.
pub(crate) fn shown<'a>(files: &'a [SourceFile], templates: &[Material]) -> Vec<Vec<Shown<'a>>> {
    let of = |template: &Material| -> Vec<Compared> {
        let of = |file: &SourceFile| match file.is_tests {
            true => Compared::default(),
            false => compared(file, template),
        };
        files.iter().map(of).collect()
    };
    let count = |all: &Vec<Compared>| -> usize {
        all.iter()
            .flat_map(|one| &one.common)
            .map(|c| c.lines)
            .sum()
    };
    // The first of several that have as many.
    let best = templates.iter().map(of).rev().max_by_key(count);
    let best = best.unwrap_or_else(|| vec![Compared::default(); files.len()]);
    let shown: Vec<Vec<Shown<'a>>> = files
        .iter()
        .zip(best)
        .map(|(file, c)| elided(file, &c))
        .collect();
    let is_same = |part: &Shown<'_>| matches!(part, Shown::Same(..));
    let own = files.iter().zip(&shown).filter(|(file, _)| !file.is_tests);
    match own.flat_map(|(_, shown)| shown).all(is_same) {
        // Nothing was written that was read; then there is nothing else to show.
        true => files
            .iter()
            .map(|file| elided(file, &Compared::default()))
            .collect(),
        false => shown,
    }
}

/// Compares a file with the template's file whose path ends most like its own, or with its only one.
fn compared(file: &SourceFile, template: &Material) -> Compared {
    let candidates = template.files();
    let best = candidates
        .iter()
        .map(|f| common_end(&f.name, &file.name))
        .max();
    let best = best.unwrap_or(0);
    let mut alike = candidates
        .iter()
        .filter(|f| common_end(&f.name, &file.name) == best);
    // Of several that are as like it, none is known to be meant.
    let (Some(original), None) = (alike.next(), alike.next()) else {
        return Compared::default();
    };
    if best == 0 && candidates.len() > 1 {
        return Compared::default();
    }
    let (old, new) = (trimmed(original), trimmed(file));
    if old.len().max(new.len()) > MAX_ELISION_LINES {
        return Compared::default();
    }
    let ops = capture_diff_slices(Algorithm::Patience, &old, &new);
    let common = ops.iter().filter_map(|op| match *op {
        DiffOp::Equal {
            old_index,
            new_index,
            len,
        } => Some(Common {
            here: new_index,
            there: old_index,
            lines: len,
        }),
        _ => None,
    });
    Compared {
        common: common.collect(),
        total: old.len(),
    }
}

/// How many parts two paths have in common at their ends.
fn common_end(one: &str, other: &str) -> usize {
    let pairs = one.rsplit('/').zip(other.rsplit('/'));
    pairs.take_while(|(a, b)| a == b).count()
}

fn trimmed(file: &SourceFile) -> Vec<&str> {
    file.lines.iter().map(|line| line.trim_end()).collect()
}

/// Leaves out what is the same, but for a few lines beside what is not, and tells what is gone where it does.
fn elided<'a>(file: &'a SourceFile, compared: &Compared) -> Vec<Shown<'a>> {
    let total = file.lines.len();
    let mut out = Vec::new();
    // What comes next in the file and in the template.
    let (mut next, mut there) = (0, 0);
    let lines = |out: &mut Vec<Shown<'a>>, from: usize, to: usize| {
        out.extend((from..to).map(|i| Shown::Line(i + 1, &file.lines[i])));
    };
    for common in &compared.common {
        let (first, end) = (common.here, common.here + common.lines);
        lines(&mut out, next, first);
        if next == first && common.there > there {
            out.push(Shown::Gone(common.there - there));
        }
        there = common.there + common.lines;
        // At its ends a file has no change beside it if the template begins or ends there, too.
        let begins = first == 0 && common.there == 0;
        let ends = end == total && there == compared.total;
        let from = if begins {
            first
        } else {
            first + ELISION_CONTEXT
        };
        let to = if ends {
            end
        } else {
            end.saturating_sub(ELISION_CONTEXT)
        };
        if to < from + MIN_ELIDED_LINES {
            lines(&mut out, first, end);
        } else {
            lines(&mut out, first, from);
            out.push(Shown::Same(from + 1, to));
            lines(&mut out, to, end);
        }
        next = end;
    }
    lines(&mut out, next, total);
    if next == total && !compared.common.is_empty() && compared.total > there {
        out.push(Shown::Gone(compared.total - there));
    }
    if !out.iter().any(|part| matches!(part, Shown::Same(..))) {
        // All of it is to be seen, as without a template.
        out.retain(|part| matches!(part, Shown::Line(..)));
    }
    out
}
