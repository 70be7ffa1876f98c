//! What Rust sources of a crate may name.

use super::arrows::{PURE, UNSAFE};
use super::code::without_comments_and_literals;

/// Names that a pure crate may not use: I/O, clocks, random numbers, tasks.
const FORBIDDEN: &[&str] = &[
    "std::net",
    "std::fs",
    "std::thread",
    "std::env",
    "std::process",
    "std::io",
    "Instant",
    "SystemTime",
    "RandomState",
    "HashMap",
    "HashSet",
    "tokio",
    "rand",
];

/// Violations in one file of the crate `name`; `path` is for the message. `in_tests` is true for
/// files that only tests use: those may do I/O, but not be unsafe.
pub fn check(name: &str, path: &str, in_tests: bool, source: &str) -> Vec<String> {
    let code = without_comments_and_literals(source);
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        if name != UNSAFE && has_word(line, "unsafe") {
            found.push(format!(
                "{path}:{number}: `unsafe` may stand only in crates/{UNSAFE}"
            ));
        }
        if in_tests || !PURE.contains(&name) {
            continue;
        }
        for forbidden in FORBIDDEN.iter().filter(|f| has_word(line, f)) {
            found.push(format!(
                "{path}:{number}: `{name}` is pure and must not use `{forbidden}`; let the caller pass the value in"
            ));
        }
    }
    found
}

/// True if `word` stands in `line` and is not a part of a longer name.
fn has_word(line: &str, word: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(in_name)
            && !line[at + word.len()..].chars().next().is_some_and(in_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_violations_are_found_with_their_line() {
        for (name, source, expected) in [
            ("handoff", "use std::net::TcpStream;", "std::net"),
            ("sched", "fn f() { std::fs::read(p); }", "std::fs"),
            ("proto", "let t = Instant::now();", "Instant"),
            ("api", "fn f() { tokio::spawn(x); }", "tokio"),
            ("sched", "let x = rand::random();", "rand"),
            ("node", "unsafe { *p }", "unsafe"),
            ("handoff", "pub unsafe fn f()", "unsafe"),
        ] {
            let source = format!("// a comment\n{source}\n");
            let found = check(name, "x.rs", false, &source);
            assert_eq!(found.len(), 1, "{source}: {found:?}");
            assert!(found[0].starts_with("x.rs:2: "), "{found:?}");
            assert!(found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        for (name, in_tests, source) in [
            ("handoff", false, "// std::net, unsafe, Instant"),
            (
                "handoff",
                false,
                "let brand = \"rand unsafe\"; operand(brand)",
            ),
            ("handoff", false, "#![deny(unsafe_code)]"),
            ("proto", false, "use core::net::IpAddr;"),
            ("node", false, "use std::net::TcpStream;"),
            ("engine-llama", false, "unsafe { f() }"),
            ("handoff", true, "std::fs::read(\"docs/wire-format.md\")"),
        ] {
            assert_eq!(
                check(name, "x.rs", in_tests, source),
                Vec::<String>::new(),
                "{source}"
            );
        }
    }
}
