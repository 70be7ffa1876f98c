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

/// Beginnings of words in a heading under which a text says what to do.
const NEXT: &[&str] = &[
    "next",
    "improv",
    "suggest",
    "advice",
    "better",
    "could",
    "problems",
    "issues",
    "weakness",
    "growth", // English
    "nächste",
    "verbesser", // German
    "prochain",
    "amélior", // French
    "siguiente",
    "mejora", // Spanish
    "prossim",
    "miglior", // Italian
    "volgende",
    "verbeter", // Dutch
    "próxim",
    "melhor", // Portuguese
];

/// A model's Markdown as items: those of its lists, and its paragraphs. A heading, or words in bold with a colon, say
/// what the items below are; without any they are strengths.
pub fn items(markdown: &str) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let (mut kind, mut open, mut fenced) = (ItemKind::Strength, false, false);
    for line in markdown.lines() {
        let is_fence = is_fence(line);
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

/// Whether a line begins or ends fenced code; not one that does both.
pub(crate) fn is_fence(line: &str) -> bool {
    let rest = line.trim_start().strip_prefix("```");
    rest.is_some_and(|rest| !rest.contains("```"))
}

fn kind_of(heading: &str) -> ItemKind {
    let heading = heading.to_lowercase();
    let mut words = heading.split(|c: char| !c.is_alphanumeric());
    match words.any(|word| NEXT.iter().any(|next| word.starts_with(next))) {
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

/// A feedback without its advice; nothing if no strength is left then.
pub(crate) fn without_advice(markdown: &str) -> Option<String> {
    let strengths = items(markdown).into_iter();
    let strengths = strengths.filter(|item| item.kind == ItemKind::Strength);
    let lines: Vec<String> = strengths
        .map(|item| format!("- {}", item.text.replace('\n', "\n  ")))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Words for points, by language.
const POINTS: &[&str] = &[
    "points", "point", "pts", "marks", // English
    "punkte", "punkten", "punkt", // German
    "puntos", "punto",  // Spanish
    "punti",  // Italian
    "punten", // Dutch
    "pontos", // Portuguese
];

/// Words before a value that make it a grade.
const SCORES: &[&str] = &[
    "score",
    "scores",
    "grade",
    "grades",
    "mark",
    "points",
    "rating", // English
    "note",
    "bewertung",
    "punktzahl",
    "punkte", // German; `note` also French
    "nota",
    "calificación",
    "puntuación", // Spanish; `nota` also Italian and Portuguese
    "voto",
    "punteggio", // Italian
    "cijfer",
    "score", // Dutch
];

/// Grades in words, whatever stands beside them.
const PHRASES: &[&str] = &[
    "full marks",
    "full points",
    "full credit",
    "full score",
    "partial credit",
    "half credit",
    "half marks",
    "half the points",
    "lose points",
    "lost points",
    "loses points",
    "deduct",
    "deducted",
    "deducts",
    "deduction",
    "deductions",
    "passing grade",
    "failing grade",
    "top grade",
    "top marks",
    "perfect score",
    "straight a",
    "volle punktzahl",
    "volle punkte",
    "punktabzug",
    "halbe punkte",
    "note sehr gut",
    "note maximale",
    "nota máxima",
    "máxima puntuación",
    "voto massimo",
];

/// Languages of which the words above are known, as a teacher may write them.
const LANGUAGES: &[&str] = &[
    "english",
    "en",
    "german",
    "de",
    "deutsch",
    "french",
    "fr",
    "français",
    "francais",
    "spanish",
    "es",
    "español",
    "espanol",
    "italian",
    "it",
    "italiano",
    "dutch",
    "nl",
    "nederlands",
    "portuguese",
    "pt",
    "português",
    "portugues",
];

/// True if the words for grades are known of a language.
pub(crate) fn knows(language: &str) -> bool {
    let first = language
        .split(|c: char| !c.is_alphabetic())
        .find(|word| !word.is_empty());
    first.is_some_and(|word| LANGUAGES.contains(&word.to_lowercase().as_str()))
}

/// What in a feedback text looks like a score. Empty if nothing does. A finding sends the text to a
/// person; it is a heuristic and removes nothing.
pub fn check_feedback(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose_lines(text) {
        let words = words(&line);
        let has = |count, is: &dyn Fn(&[String]) -> bool| words.windows(count).any(is);
        let is_points = |word: &String| POINTS.contains(&word.as_str());
        let tests: [(bool, &str); 6] = [
            (
                has(3, &|w| is_number(&w[0]) && w[1] == "/" && is_number(&w[2])),
                "a fraction such as 7/10",
            ),
            (
                has(2, &|w| {
                    is_number(&w[0]) && ["%", "percent", "prozent"].contains(&w[1].as_str())
                }),
                "a percentage",
            ),
            (
                has(4, &|w| {
                    is_number(&w[0]) && w[1] == "out" && w[2] == "of" && is_number(&w[3])
                }) || has(3, &|w| {
                    is_number(&w[0]) && w[1] == "von" && is_number(&w[2])
                }),
                "a score 'out of'",
            ),
            (
                has(2, &|w| is_number(&w[0]) && is_points(&w[1])),
                "a number of points",
            ),
            (
                (1..=words.len()).any(|i| is_score_word(&words[i - 1]) && gives_value(&words[i..])),
                "a score or grade",
            ),
            (has_phrase(&words), "words for a grade"),
        ];
        found.extend(
            tests
                .iter()
                .filter(|(is, _)| *is)
                .map(|(_, what)| (*what).to_owned()),
        );
    }
    found.sort();
    found.dedup();
    found
}

fn has_phrase(words: &[String]) -> bool {
    let line = format!(" {} ", words.join(" "));
    PHRASES
        .iter()
        .any(|phrase| line.contains(&format!(" {phrase} ")))
}

/// True if a text repeats points as an assessment has them: so many of a maximum of the rubric.
pub(crate) fn echoes_points(text: &str, maxima: &[f64]) -> bool {
    let number = |word: &String| -> Option<f64> { word.replace(',', ".").parse().ok() };
    let is_link = |word: &String| ["of", "von", "sur", "su", "de", "van"].contains(&word.as_str());
    prose_lines(text).iter().any(|line| {
        let words = words(line);
        words.windows(3).any(|w| {
            let is_max = number(&w[2]).is_some_and(|n| maxima.contains(&n));
            is_number(&w[0]) && (is_link(&w[1]) && is_max)
        })
    })
}

/// Lines outside fenced code, in lower case. Of code in a line stays what has no letter, so that no score hides in it.
fn prose_lines(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut out = Vec::new();
    for line in text.lines() {
        if is_fence(line) {
            fenced = !fenced;
        } else if !fenced {
            out.push(without_code(line).to_lowercase());
        }
    }
    out
}

fn without_code(line: &str) -> String {
    let mut out = String::new();
    let parts: Vec<&str> = line.split('`').collect();
    for (i, part) in parts.iter().enumerate() {
        // The last backtick of an odd number opens nothing.
        let is_code = i % 2 == 1 && i + 1 < parts.len();
        let is_expression = part.chars().any(|c| c.is_alphabetic() || "=<>".contains(c));
        let part_words = words(&part.to_lowercase());
        let speaks = part_words
            .iter()
            .any(|w| is_score_word(w) || POINTS.contains(&w.as_str()));
        match is_code && is_expression && !speaks {
            true => out.push_str(" · "),
            false => out.push_str(part),
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
        if !c.is_whitespace() && c != '*' {
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
    SCORES.contains(&word)
}

/// Whether the next word or two are a number or a letter grade.
fn gives_value(after: &[String]) -> bool {
    let value = |w: &String| is_number(w) || ["a", "b", "c", "d", "e", "f"].contains(&w.as_str());
    match after {
        // "Note: a loop" gives no grade.
        [sign, next, rest @ ..] if [":", "="].contains(&sign.as_str()) => {
            let goes_on = rest
                .first()
                .is_some_and(|w| w.chars().all(char::is_alphanumeric));
            value(next) && !goes_on
        }
        [link, next, ..]
            if ["is", "of", "ist", "von", "de", "est", "es", "è", "é"].contains(&link.as_str()) =>
        {
            is_number(next)
        }
        [next, rest @ ..] => {
            let goes_on = rest
                .first()
                .is_some_and(|w| w.chars().all(char::is_alphabetic));
            is_number(next) && !goes_on
        }
        [] => false,
    }
}
