//! What a student gets to read: the points of each criterion, and the feedback.

use std::fmt::Write as _;

use super::Grade;
use crate::feedback::{Item, ItemKind, is_fence};
use crate::markdown::quiet;

/// Says what the text is, wherever it is read.
fn label(grade: &Grade) -> &'static str {
    match grade.is_assisted {
        true => ASSISTED,
        false => "Approved by a person.",
    }
}

const ASSISTED: &str = "AI-assisted: suggested by a model on a machine of the school, checked and approved by a person.";

/// Title of the part that has items of a kind.
const PARTS: [(ItemKind, &str); 2] = [
    (ItemKind::Strength, "Strengths"),
    (ItemKind::NextStep, "Next steps"),
];

/// Items of a kind, with their title, where there are some.
fn parts(grade: &Grade) -> impl Iterator<Item = (&'static str, Vec<&Item>)> {
    let parts = PARTS.iter().map(|(kind, title)| {
        let of_kind = grade.text.iter().filter(|item| item.kind == *kind);
        (*title, of_kind.collect::<Vec<_>>())
    });
    parts.filter(|(_, items)| !items.is_empty())
}

/// Markdown. Writing into a `String` cannot fail, hence the ignored results.
pub(super) fn markdown(title: &str, name: &str, grade: &Grade) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# {}: {}\n\n{}\n",
        quiet(title),
        quiet(name),
        label(grade)
    );
    let _ = writeln!(out, "**{} of {} points**\n", grade.total, grade.max);
    for one in &grade.criteria {
        let _ = writeln!(
            out,
            "- {}: {} of {}",
            quiet(&one.title),
            one.points,
            one.max
        );
    }
    for one in &grade.deductions {
        let _ = writeln!(out, "- {}: −{}", quiet(&one.title), one.points);
    }
    let _ = write!(out, "\n{}", quiet(&text(grade)));
    out
}

/// A page of its own, which loads nothing and can be printed.
pub(super) fn page(title: &str, name: &str, grade: &Grade) -> String {
    let (title, name) = (escaped(title), escaped(name));
    format!(
        "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>{title}: {name}</title>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <style>{STYLE}</style></head>\n<body><h1>{title}</h1><p>{name}</p>\n{}</body></html>\n",
        body(grade)
    )
}

const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse}td{border-bottom:1px solid #ccc;padding:.2rem 1rem .2rem 0}\
pre{background:#f3f3f3;padding:.5rem;white-space:pre-wrap}small{color:#555}\
@media print{body{margin:0}pre{border:1px solid #ccc}}";

/// The feedback alone, as it was approved.
pub(super) fn text(grade: &Grade) -> String {
    let mut out = String::new();
    for (title, items) in parts(grade) {
        out.push_str(if out.is_empty() { "" } else { "\n" });
        let _ = writeln!(out, "## {title}\n");
        for item in items {
            let _ = writeln!(out, "- {}", item.text.replace('\n', "\n  "));
        }
    }
    out
}

/// The same to be shown somewhere else: without HTML, and with what it is.
pub(super) fn shown(grade: &Grade) -> String {
    format!("{}\n{}\n", quiet(&text(grade)), label(grade))
}

/// HTML, such as for a cell of a gradebook.
pub(super) fn body(grade: &Grade) -> String {
    let mut out = format!(
        "<p><strong>{} of {} points</strong></p>\n<table>",
        grade.total, grade.max
    );
    for one in &grade.criteria {
        let title = escaped(&one.title);
        let _ = write!(
            out,
            "<tr><td>{title}</td><td>{} of {}</td></tr>",
            one.points, one.max
        );
    }
    for one in &grade.deductions {
        let title = escaped(&one.title);
        let _ = write!(out, "<tr><td>{title}</td><td>−{}</td></tr>", one.points);
    }
    out.push_str("</table>\n");
    for (title, items) in parts(grade) {
        let _ = write!(out, "<h2>{title}</h2>\n<ul>");
        for item in items {
            let _ = write!(out, "<li>{}</li>", item_html(&item.text));
        }
        out.push_str("</ul>\n");
    }
    let _ = writeln!(out, "<p><small>{}</small></p>", label(grade));
    out
}

/// Fenced code and code in a line; all else is text.
fn item_html(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for (i, line) in text.split('\n').enumerate() {
        let is_fence = is_fence(line);
        match (is_fence, is_code) {
            (true, true) => out.push_str("</pre>"),
            (true, false) => out.push_str("<pre>"),
            (false, true) => {
                let _ = writeln!(out, "{}", escaped(line));
            }
            (false, false) => {
                out.push_str(if i > 0 { "<br>" } else { "" });
                out.push_str(&line_html(line));
            }
        }
        is_code ^= is_fence;
    }
    out.push_str(if is_code { "</pre>" } else { "" });
    out
}

fn line_html(line: &str) -> String {
    let mut out = String::new();
    for (i, part) in line.split('`').enumerate() {
        let is_code = i % 2 == 1 && line.matches('`').count() > i;
        let text = escaped(part);
        match is_code {
            true => {
                let _ = write!(out, "<code>{text}</code>");
            }
            false if i % 2 == 1 => {
                let _ = write!(out, "`{text}");
            }
            false => out.push_str(&text),
        }
    }
    out
}

pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
