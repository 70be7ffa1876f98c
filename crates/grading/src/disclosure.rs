//! Whether a feedback repeats what only those who grade may see, such as the solution, and whether it names code that the
//! student has never seen.
//!
//! Texts are compared as pieces: words, numbers and single signs, in lower case, whatever the space between them. What
//! shares [`limits::DISCLOSED_PIECES`] of them in a row repeats it, unless a student has seen these, too.

use crate::attempt::Material;
use crate::feedback::{ItemKind, items};
use crate::limits::{DISCLOSED_LINE_PIECES, DISCLOSED_LINES, DISCLOSED_PIECES};
use crate::rubric::{Criterion, Rubric, Scale};
use crate::source::SourceFile;
use crate::submission::Submission;
use std::collections::HashSet;
use unicode_normalization::UnicodeNormalization;

/// Words that pieces in a row must have, so that brackets alone are none of anybody's.
const LEAST_WORDS: usize = 3;

/// What of a rubric a feedback repeats, for a person; empty if nothing.
pub(crate) fn disclosed(text: &str, rubric: &Rubric, submission: &Submission) -> Vec<String> {
    let secrets = secrets(rubric);
    if secrets.is_empty() {
        return Vec::new();
    }
    let text = pieces(text);
    let written: HashSet<&[String]> = rows(&text).collect();
    let seen: Vec<Vec<String>> = seen(rubric, submission).iter().map(|t| pieces(t)).collect();
    let seen_pieces: Vec<&[String]> = seen.iter().map(Vec::as_slice).collect();
    let seen: HashSet<&[String]> = seen.iter().flat_map(|pieces| rows(pieces)).collect();
    let repeats = |secret: &str| {
        let whole = pieces(secret);
        rows(&whole).any(|row| written.contains(row) && !seen.contains(row))
            || has_most_lines(secret, &text, &seen_pieces)
    };
    let found = secrets.iter().filter(|(_, secret)| repeats(secret));
    found.map(|(what, _)| what.clone()).collect()
}

/// Code between backticks that stands neither in the submission nor in the rubric and its files; each one once.
///
/// Plain words of advice, such as `enumerate`, may be the language's own, and are left alone.
pub(crate) fn unknown_code(text: &str, rubric: &Rubric, submission: &Submission) -> Vec<String> {
    let mut known = seen(rubric, submission);
    known.extend(secrets(rubric).into_iter().map(|(_, text)| text));
    known.extend(submission.files.iter().map(|file| file.name.clone()));
    let known: Vec<Vec<String>> = known.iter().map(|text| pieces(text)).collect();
    let is_known = |code: &[String]| {
        let has = |text: &Vec<String>| text.windows(code.len()).any(|part| part == code);
        known.iter().any(has)
    };
    let mut found = Vec::new();
    for item in items(text) {
        for span in code_spans(&item.text) {
            // What is left out of a quote may be anything.
            let parts = without_call(span)
                .split("...")
                .flat_map(|part| part.split('…'));
            let parts: Vec<Vec<String>> =
                parts.map(pieces).filter(|part| !part.is_empty()).collect();
            let is_unknown = parts.iter().any(|part| !is_known(part));
            let is_word = item.kind == ItemKind::NextStep && is_plain_word(span);
            let named = format!("`{span}`");
            if is_unknown && !is_word && !found.contains(&named) {
                found.push(named);
            }
        }
    }
    found
}

/// Code within a line; fenced code is advice, which need not be anywhere yet.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("```").step_by(2);
    text.flat_map(|part| {
        let spans: Vec<&str> = part.split('`').collect();
        // The last backtick of an odd number opens nothing.
        let closed = spans.len().saturating_sub(1);
        spans.into_iter().take(closed).skip(1).step_by(2)
    })
    .map(str::trim)
}

/// A function that is named with brackets, but without arguments, is called with some elsewhere.
fn without_call(code: &str) -> &str {
    let ends = ["()", "(...)", "(…)"];
    ends.iter()
        .find_map(|end| code.strip_suffix(end))
        .unwrap_or(code)
}

/// Words and dotted names of a language and its library, such as `is not None`, `log2` and `str.join`.
fn is_plain_word(code: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || c == '.' || c == ' ';
    without_call(code).chars().all(is_plain)
}

/// Whether a text has most of the lines of a secret that nobody has seen, wherever they stand in it.
fn has_most_lines(secret: &str, text: &[String], seen: &[&[String]]) -> bool {
    let has = |text: &[String], line: &[String]| text.windows(line.len()).any(|part| part == line);
    let lines = secret.lines().map(pieces);
    let own: HashSet<Vec<String>> = lines
        .filter(|line| line.len() >= DISCLOSED_LINE_PIECES)
        .filter(|line| !seen.iter().any(|text| has(text, line)))
        .collect();
    let found = own.iter().filter(|line| has(text, line)).count();
    found >= DISCLOSED_LINES && found * 2 > own.len()
}

/// Secrets that are too short to be found again.
pub(crate) fn too_short(rubric: &Rubric) -> Vec<String> {
    let secrets = secrets(rubric);
    let short = secrets
        .iter()
        .filter(|(_, secret)| rows(&pieces(secret)).next().is_none());
    short.map(|(what, _)| what.clone()).collect()
}

/// What no student may see: what it is called, and its text.
fn secrets(rubric: &Rubric) -> Vec<(String, String)> {
    let files = rubric.solutions.iter().flat_map(Material::files);
    let solutions = files.map(|file| (format!("the solution ({})", file.name), joined(file)));
    let answer = |c: &Criterion| {
        let answer = c.answer.clone()?;
        Some((format!("the model answer of '{}'", c.id), answer))
    };
    let answers = rubric.criteria.iter().filter_map(answer);
    solutions.chain(answers).collect()
}

/// What a student has seen or written.
fn seen(rubric: &Rubric, submission: &Submission) -> Vec<String> {
    let templates = rubric.templates.iter().flat_map(Material::files);
    let mut seen: Vec<String> = submission
        .files
        .iter()
        .chain(templates)
        .map(joined)
        .collect();
    seen.push(rubric.task.clone());
    for criterion in &rubric.criteria {
        seen.push(criterion.title.clone());
        seen.push(criterion.description.clone());
        seen.extend(criterion.reflection.iter().map(|r| r.question.clone()));
        if let Scale::Levels(levels) = &criterion.scale {
            seen.extend(levels.iter().map(|level| level.description.clone()));
        }
    }
    seen
}

fn joined(file: &SourceFile) -> String {
    file.lines.join("\n")
}

fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut is_open = false;
    for c in text.nfc().flat_map(char::to_lowercase) {
        let is_word = c.is_alphanumeric() || c == '_';
        match pieces.last_mut() {
            Some(last) if is_open && is_word => last.push(c),
            _ if c.is_whitespace() => {}
            // Quotes and backticks are set otherwise in a text than in code.
            _ if matches!(
                c,
                '`' | '"' | '\'' | '*' | '\\' | '“' | '”' | '„' | '’' | '‘'
            ) => {}
            _ => pieces.push(c.to_string()),
        }
        is_open = is_word;
    }
    pieces
}

fn rows(pieces: &[String]) -> impl Iterator<Item = &[String]> {
    let is_word = |piece: &String| piece.chars().all(|c| c.is_alphanumeric() || c == '_');
    pieces
        .windows(DISCLOSED_PIECES)
        .filter(move |row| row.iter().filter(|piece| is_word(piece)).count() >= LEAST_WORDS)
}
