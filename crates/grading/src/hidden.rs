//! Characters that a person does not see: replaced by visible marks.

/// Replaces zero-width, bidirectional, tag and control characters by marks such as `[U+200B]`.
///
/// Returns the text and how many characters were replaced. Line feeds and tabs stay.
pub fn mark_hidden(text: &str) -> (String, usize) {
    let mut out = String::with_capacity(text.len());
    let mut count = 0;
    for c in text.chars() {
        if is_hidden(c) {
            out.push_str(&format!("[U+{:04X}]", u32::from(c)));
            count += 1;
        } else {
            out.push(c);
        }
    }
    (out, count)
}

/// The same for a name, in which a line feed or a tab is hidden, too.
pub(crate) fn mark_name(name: &str) -> String {
    let marked = mark_hidden(name).0;
    marked.replace('\n', "[U+000A]").replace('\t', "[U+0009]")
}

fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
        | '\u{3164}' => true,
        '\u{180B}'..='\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' => true,
        '\u{2060}'..='\u{206F}'
        | '\u{FE00}'..='\u{FE0E}'
        | '\u{FEFF}'
        | '\u{FFA0}'
        | '\u{FFF0}'..='\u{FFFB}' => true,
        '\u{E0000}'..='\u{E0FFF}' => true,
        _ => c.is_control(),
    }
}

/// Removes terminal escape sequences (colours, cursor moves, titles).
pub(crate) fn strip_ansi(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1B}' {
            out.push(c);
            continue;
        }
        match chars.peek() {
            Some('[') => {
                chars.next();
                // Parameters, then one final byte from '@' to '~'.
                while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
            }
            Some(']') => while chars.next().is_some_and(|c| c != '\u{7}' && c != '\u{1B}') {},
            _ => {
                chars.next();
            }
        }
    }
    out
}
