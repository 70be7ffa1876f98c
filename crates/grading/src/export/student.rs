//! What a student gets to read: the points of each criterion, and the feedback.

use std::fmt::Write as _;

use super::{Grade, Scored};
use crate::feedback::{Item, ItemKind, is_fence};
use crate::markdown::quiet;
use crate::points::Points;
use crate::review::{Comment, Correction};

/// What stands around a feedback, in a language.
struct Words {
    /// Of which languages, by their own names, in English and as codes.
    of: &'static [&'static str],
    /// `{total} of {max} points`, with marks for both.
    points: &'static str,
    /// Between points and maximum of a criterion.
    of_max: &'static str,
    strengths: &'static str,
    next_steps: &'static str,
    /// Title of comments on lines, and the word for a line.
    lines: &'static str,
    line: &'static str,
    assisted: &'static str,
    approved: &'static str,
    /// A comma stands before decimals.
    has_comma: bool,
}

const ENGLISH: Words = Words {
    of: &["english", "en"],
    points: "{total} of {max} points",
    of_max: "of",
    strengths: "Strengths",
    next_steps: "Next steps",
    lines: "On single lines",
    line: "line",
    assisted: "AI-assisted: suggested by a model on a machine of the school, checked and approved by a person.",
    approved: "Approved by a person.",
    has_comma: false,
};

const OTHERS: [Words; 4] = [
    Words {
        of: &["german", "deutsch", "de"],
        points: "{total} von {max} Punkten",
        of_max: "von",
        strengths: "Stärken",
        next_steps: "Nächste Schritte",
        lines: "Zu einzelnen Zeilen",
        line: "Zeile",
        assisted: "Mit KI erstellt: von einem Modell auf einem Rechner der Schule vorgeschlagen, von einer Person geprüft und \
            bestätigt.",
        approved: "Von einer Person bestätigt.",
        has_comma: true,
    },
    Words {
        of: &["french", "français", "francais", "fr"],
        points: "{total} points sur {max}",
        of_max: "sur",
        strengths: "Points forts",
        next_steps: "Prochaines étapes",
        lines: "Sur certaines lignes",
        line: "ligne",
        assisted: "Avec l’aide d’une IA : proposé par un modèle sur une machine de l’école, vérifié et approuvé par une \
            personne.",
        approved: "Approuvé par une personne.",
        has_comma: true,
    },
    Words {
        of: &["spanish", "español", "espanol", "es"],
        points: "{total} de {max} puntos",
        of_max: "de",
        strengths: "Puntos fuertes",
        next_steps: "Próximos pasos",
        lines: "Sobre algunas líneas",
        line: "línea",
        assisted: "Con ayuda de IA: propuesto por un modelo en una máquina de la escuela, revisado y aprobado por una persona.",
        approved: "Aprobado por una persona.",
        has_comma: true,
    },
    Words {
        of: &["italian", "italiano", "it"],
        points: "{total} punti su {max}",
        of_max: "su",
        strengths: "Punti di forza",
        next_steps: "Prossimi passi",
        lines: "Su alcune righe",
        line: "riga",
        assisted: "Con l’aiuto dell’IA: proposto da un modello su una macchina della scuola, controllato e approvato da una \
            persona.",
        approved: "Approvato da una persona.",
        has_comma: true,
    },
];

impl Words {
    /// Those of the language of a feedback; English where that is not known.
    fn of(grade: &Grade) -> &'static Self {
        let language = grade.language.as_deref().unwrap_or_default().to_lowercase();
        let first = language
            .split(|c: char| !c.is_alphabetic())
            .find(|word| !word.is_empty());
        let known = OTHERS
            .iter()
            .find(|words| first.is_some_and(|one| words.of.contains(&one)));
        known.unwrap_or(&ENGLISH)
    }

    fn number(&self, points: Points) -> String {
        let text = points.to_string();
        match self.has_comma {
            true => text.replace('.', ","),
            false => text,
        }
    }

    /// Points beside the criteria, with their sign.
    fn signed(&self, one: &Correction) -> String {
        let sign = if one.is_on_top { '+' } else { '−' };
        format!("{sign}{}", self.number(one.points))
    }

    fn total(&self, grade: &Grade) -> String {
        let (total, max) = (self.number(grade.total), self.number(grade.max));
        self.points
            .replace("{total}", &total)
            .replace("{max}", &max)
    }

    fn scored(&self, one: &Scored) -> String {
        format!(
            "{} {} {}",
            self.number(one.points),
            self.of_max,
            self.number(one.max)
        )
    }

    /// Where a comment belongs.
    fn place(&self, one: &Comment) -> String {
        format!("{}, {} {}", one.file, self.line, one.line)
    }

    /// Says what the text is, wherever it is read.
    fn label(&self, grade: &Grade) -> &'static str {
        match grade.is_assisted {
            true => self.assisted,
            false => self.approved,
        }
    }
}

/// Items of a kind, with their title, where there are some.
fn parts(grade: &Grade) -> impl Iterator<Item = (&'static str, Vec<&Item>)> {
    let words = Words::of(grade);
    let titles = [
        (ItemKind::Strength, words.strengths),
        (ItemKind::NextStep, words.next_steps),
    ];
    let parts = titles.into_iter().map(|(kind, title)| {
        let of_kind = grade.text.iter().filter(|item| item.kind == kind);
        (title, of_kind.collect::<Vec<_>>())
    });
    parts.filter(|(_, items)| !items.is_empty())
}

/// Markdown. Writing into a `String` cannot fail, hence the ignored results.
pub(super) fn markdown(title: &str, name: &str, grade: &Grade) -> String {
    let words = Words::of(grade);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# {}: {}\n\n{}\n",
        quiet(title),
        quiet(name),
        words.label(grade)
    );
    let _ = writeln!(out, "**{}**\n", words.total(grade));
    for one in &grade.criteria {
        let _ = writeln!(out, "- {}: {}", quiet(&one.title), words.scored(one));
    }
    for one in &grade.corrections {
        let _ = writeln!(out, "- {}: {}", quiet(&one.title), words.signed(one));
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
    let words = Words::of(grade);
    if !grade.comments.is_empty() {
        out.push_str(if out.is_empty() { "" } else { "\n" });
        let _ = writeln!(out, "## {}\n", words.lines);
    }
    for one in &grade.comments {
        let text = one.text.replace('\n', "\n  ");
        let _ = writeln!(out, "- {}: {text}", words.place(one));
    }
    out
}

/// The same to be shown somewhere else: without HTML, and with what it is.
pub(super) fn shown(grade: &Grade) -> String {
    format!(
        "{}\n{}\n",
        quiet(&text(grade)),
        Words::of(grade).label(grade)
    )
}

/// HTML, such as for a cell of a gradebook.
pub(super) fn body(grade: &Grade) -> String {
    let words = Words::of(grade);
    let mut out = format!("<p><strong>{}</strong></p>\n<table>", words.total(grade));
    for one in &grade.criteria {
        let title = escaped(&one.title);
        let scored = words.scored(one);
        let _ = write!(out, "<tr><td>{title}</td><td>{scored}</td></tr>");
    }
    for one in &grade.corrections {
        let title = escaped(&one.title);
        let points = words.signed(one);
        let _ = write!(out, "<tr><td>{title}</td><td>{points}</td></tr>");
    }
    out.push_str("</table>\n");
    for (title, items) in parts(grade) {
        let _ = write!(out, "<h2>{title}</h2>\n<ul>");
        for item in items {
            let _ = write!(out, "<li>{}</li>", item_html(&item.text));
        }
        out.push_str("</ul>\n");
    }
    if !grade.comments.is_empty() {
        let _ = write!(out, "<h2>{}</h2>\n<ul>", words.lines);
        for one in &grade.comments {
            let (place, text) = (escaped(&words.place(one)), item_html(&one.text));
            let _ = write!(out, "<li><b>{place}</b>: {text}</li>");
        }
        out.push_str("</ul>\n");
    }
    let _ = writeln!(out, "<p><small>{}</small></p>", words.label(grade));
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
