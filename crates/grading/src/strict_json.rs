//! What Python writes and calls JSON, as JSON.
//!
//! Notebooks hold results that are dropped anyway: numbers that are none (`NaN`), halves of characters that a program cut
//! (`\ud83d`), state of widgets that is nested a thousand times. None of them is a reason not to read the code.

/// Deepest nesting that is kept; what is below is replaced by `null`. Cells and their outputs are at most seven deep.
const MAX_DEPTH: usize = 32;

/// The text with `null` for numbers that JSON does not know and for what is nested too deep, and with U+FFFD for lone halves
/// of surrogate pairs. What is no JSON otherwise stays as it is.
pub(crate) fn strict(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut depth = 0_usize;
    while let Some(c) = rest.chars().next() {
        let (size, kept) = match c {
            '"' => {
                let size = string_bytes(rest);
                if depth <= MAX_DEPTH {
                    put_string(&rest[..size], &mut out);
                }
                (size, "")
            }
            '[' | '{' => {
                depth += 1;
                let kept = match depth.cmp(&(MAX_DEPTH + 1)) {
                    std::cmp::Ordering::Less => &rest[..1],
                    std::cmp::Ordering::Equal => "null",
                    std::cmp::Ordering::Greater => "",
                };
                (1, kept)
            }
            ']' | '}' => {
                let is_kept = depth <= MAX_DEPTH;
                depth = depth.saturating_sub(1);
                (1, if is_kept { &rest[..1] } else { "" })
            }
            _ => {
                let none = ["NaN", "-Infinity", "Infinity"];
                match none.iter().find(|name| rest.starts_with(**name)) {
                    Some(name) => (name.len(), if depth <= MAX_DEPTH { "null" } else { "" }),
                    None => {
                        let size = c.len_utf8();
                        (
                            size,
                            if depth <= MAX_DEPTH {
                                &rest[..size]
                            } else {
                                ""
                            },
                        )
                    }
                }
            }
        };
        out.push_str(kept);
        rest = &rest[size..];
    }
    out
}

/// Bytes of the string that the text begins with, its quotation marks included.
fn string_bytes(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().enumerate().skip(1).find(|(_, byte)| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// Copies a string, but for lone surrogates.
fn put_string(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let size = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
            (Some(0xD800..0xE000), _) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            (Some(_), _) => 6,
            // A short escape: the sign behind it may be of several bytes.
            (None, _) => rest.chars().take(2).map(char::len_utf8).sum(),
        };
        out.push_str(&rest[..size]);
        rest = &rest[size..];
    }
    out.push_str(rest);
}

/// The UTF-16 unit that an escape at the beginning of the text stands for.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_becomes_json() {
        for (text, expected) in [
            (
                r#"{"a": NaN, "b": [-Infinity, Infinity]}"#,
                r#"{"a": null, "b": [null, null]}"#,
            ),
            (r#"["NaN \" Infinity"]"#, r#"["NaN \" Infinity"]"#),
            (
                r#""\ud83d\ude00 \ud83d x \ude00 \u00e9 \\ud83d""#,
                r#""\ud83d\ude00 \ufffd x \ufffd \u00e9 \\ud83d""#,
            ),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#"{"broken": "#, r#"{"broken": "#),
            ("\"ends", "\"ends"),
            ("\"ends\\", "\"ends\\"),
        ] {
            assert_eq!(strict(text), expected);
        }
    }

    #[test]
    fn what_is_nested_deep_is_left_out_and_what_follows_is_read() {
        let deep = "[".repeat(100_000) + "\"]\"" + &"]".repeat(100_000);
        let text = format!(r#"{{"a": {deep}, "b": [[1]]}}"#);
        let read: serde_json::Value = serde_json::from_str(&strict(&text)).expect("JSON");
        assert_eq!(read["b"], serde_json::json!([[1]]));
    }
}
