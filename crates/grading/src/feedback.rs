//! The feedback gives no scores: two models that both score contradict each other.

use serde::{Deserialize, Serialize};

/// One item of a feedback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// Markdown in a line or a few.
    pub text: String,
}

/// What an item of a feedback is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// Something that works.
    Strength,
    /// Something to do next.
    NextStep,
}

/// Words of a heading under which a text says what to do.
const NEXT: &[&str] = &[
    "next", "improve", "step", "suggest", "advice", "better", "could", "problem", "issue", "weak",
];

/// A model's Markdown as items: those of its lists, and its paragraphs. A heading, or words in bold with a colon, say
/// what the items below are; without any they are strengths.
pub fn items(markdown: &str) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let (mut kind, mut open, mut fenced) = (ItemKind::Strength, false, false);
    for line in markdown.lines() {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        if let (true, true, Some(last)) = (open, fenced || is_fence, found.last_mut()) {
            last.text.push('\n');
            last.text.push_str(line);
            // What comes after the code is an item of its own.
            open = fenced;
            continue;
        }
        let (heading, rest) = heading(line.trim());
        if let Some(heading) = heading {
            kind = kind_of(heading);
            open = false;
        }
        let (is_bullet, rest) = bullet(rest);
        if rest.is_empty() {
            open = false;
            continue;
        }
        match found.last_mut() {
            Some(last) if open && !is_bullet => {
                last.text.push(' ');
                last.text.push_str(rest);
            }
            _ => found.push(Item {
                kind,
                text: rest.to_owned(),
            }),
        }
        open = true;
    }
    found
}

fn kind_of(heading: &str) -> ItemKind {
    let heading = heading.to_lowercase();
    match NEXT.iter().any(|word| heading.contains(word)) {
        true => ItemKind::NextStep,
        false => ItemKind::Strength,
    }
}

/// The heading that a line is or begins with, and what comes after it.
fn heading(line: &str) -> (Option<&str>, &str) {
    if let Some(heading) = line.strip_prefix('#') {
        return (Some(heading.trim_start_matches('#').trim()), "");
    }
    let bold = line.strip_prefix("**").and_then(|l| l.split_once("**"));
    match bold {
        Some((heading, rest)) if heading.ends_with(':') => (Some(heading), rest.trim()),
        Some((heading, rest)) if rest.starts_with(':') => (Some(heading), rest[1..].trim()),
        Some((heading, "")) => (Some(heading), ""),
        _ => (None, line),
    }
}

/// Whether a line begins an item of a list, and its text.
fn bullet(line: &str) -> (bool, &str) {
    for mark in ["- ", "* ", "+ ", "• "] {
        if let Some(rest) = line.strip_prefix(mark) {
            return (true, rest.trim());
        }
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    match line.get(digits..) {
        Some(rest) if (1..3).contains(&digits) => match rest.strip_prefix(['.', ')']) {
            Some(rest) if rest.starts_with(' ') => (true, rest.trim()),
            _ => (false, line),
        },
        _ => (false, line),
    }
}

/// What in a feedback text looks like a score. Empty if nothing does. A finding sends the text to a
/// person; it is a heuristic and removes nothing.
pub fn check_feedback(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose_lines(text) {
        let words = words(&line);
        if words
            .windows(3)
            .any(|w| is_number(&w[0]) && w[1] == "/" && is_number(&w[2]))
        {
            found.push("a fraction such as 7/10".to_owned());
        }
        if words.windows(2).any(|w| is_number(&w[0]) && w[1] == "%") {
            found.push("a percentage".to_owned());
        }
        if words
            .windows(4)
            .any(|w| is_number(&w[0]) && w[1] == "out" && w[2] == "of" && is_number(&w[3]))
        {
            found.push("a score 'out of'".to_owned());
        }
        let names = ["points", "point", "pts", "marks"];
        if words
            .windows(2)
            .any(|w| is_number(&w[0]) && names.contains(&w[1].as_str()))
        {
            found.push("a number of points".to_owned());
        }
        if words
            .iter()
            .enumerate()
            .any(|(i, w)| is_score_word(w) && gives_value(&words[i + 1..]))
        {
            found.push("a score or grade".to_owned());
        }
    }
    found.dedup();
    found
}

/// Lines outside fenced code. Inline code stays, so that a score cannot hide in it.
fn prose_lines(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut out = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            out.push(line.to_lowercase());
        }
    }
    out
}

/// Numbers, words and single signs.
fn words(line: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut current = String::new();
    for c in line.chars() {
        let joins = c.is_alphanumeric()
            || (matches!(c, '.' | ',') && current.ends_with(|p: char| p.is_ascii_digit()));
        if joins {
            current.push(c);
            continue;
        }
        if !current.is_empty() {
            out.push(std::mem::take(&mut current));
        }
        if matches!(c, '/' | '%' | ':' | '=' | '+' | '-') {
            out.push(c.to_string());
        }
    }
    if !current.is_empty() {
        out.push(current);
    }
    out
}

fn is_number(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ',']);
    !word.is_empty()
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || c == '.' || c == ',')
}

fn is_score_word(word: &str) -> bool {
    ["score", "scores", "grade", "mark", "points", "rating"].contains(&word)
}

/// Whether the next word or two are a number or a letter grade.
fn gives_value(after: &[String]) -> bool {
    let value = |w: &String| is_number(w) || ["a", "b", "c", "d", "e", "f"].contains(&w.as_str());
    match after {
        [sign, next, ..] if [":", "="].contains(&sign.as_str()) => value(next),
        [link, next, ..] if ["is", "of"].contains(&link.as_str()) => is_number(next),
        [next, ..] => is_number(next),
        [] => false,
    }
}
