//! Rust source without its comments and literals.

/// `source` with every comment, string and character literal replaced by spaces; line breaks stay, so
/// line numbers do too.
pub fn without_comments_and_literals(source: &str) -> String {
    let mut rest = source;
    let mut out = String::with_capacity(source.len());
    let mut previous = ' ';
    while let Some(c) = rest.chars().next() {
        let skip = skipped(rest, previous);
        let taken = if skip == 0 { c.len_utf8() } else { skip };
        let (text, after) = rest.split_at(taken);
        if skip == 0 {
            out.push(c);
        } else {
            out.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        previous = text.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    out
}

/// Bytes of the comment or literal at the start of `rest`; 0 if there is none.
fn skipped(rest: &str, previous: char) -> usize {
    let in_word = previous.is_alphanumeric() || previous == '_';
    if rest.starts_with("//") {
        rest.find('\n').unwrap_or(rest.len())
    } else if rest.starts_with("/*") {
        block_comment(rest)
    } else if rest.starts_with('"') {
        quoted(rest, '"')
    } else if !in_word && (rest.starts_with('r') || rest.starts_with("br")) {
        raw_string(rest)
    } else if rest.starts_with('\'') {
        character(rest)
    } else {
        0
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// A literal between two `quote`s, with escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> usize {
    let after = rest.trim_start_matches('b');
    let Some(after) = after.strip_prefix('r') else {
        return 0;
    };
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !after[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - after.len() + hashes + 1;
    match rest[start..].find(&end) {
        Some(at) => start + at + end.len(),
        None => rest.len(),
    }
}

/// A character literal, which a lifetime (`'a`) is not.
fn character(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::without_comments_and_literals as code;

    #[test]
    fn only_code_is_left() {
        for (source, expected) in [
            ("a; // unsafe\nb", "a; \nb"),
            ("a /* x /* y */ z */ b", "a b"),
            ("f(\"std::fs \\\" x\") + 1", "f( ) + 1"),
            ("r#\"a \" b\"# c", " c"),
            ("br\"x\" c", " c"),
            ("for r in x", "for r in x"),
            ("number\"s\"", "number "),
            ("'a' 'b", " 'b"),
            ("'\\'' x", " x"),
            ("&'a str, '\"' y", "&'a str, y"),
            ("/* é */ü", " ü"),
            ("\"open\n", " \n"),
            ("\"two\nlines\" c", " \n c"),
        ] {
            // Runs of spaces are one: what counts is which code is left, and on which line.
            let left = code(source);
            let lines: Vec<String> = left.split('\n').map(squeezed).collect();
            assert_eq!(lines.join("\n"), expected, "{source}");
        }
    }

    fn squeezed(line: &str) -> String {
        let mut out = String::new();
        for c in line.chars() {
            if c != ' ' || !out.ends_with(' ') {
                out.push(c);
            }
        }
        out
    }
}
