//! The feedback gives no scores: two models that both score contradict each other.

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
