//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deepest value that is written.
const MAX_DEPTH: usize = 64;

/// `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => repr(value, 0),
    }
}

/// `repr(value)`.
fn repr(value: &Value, depth: usize) -> String {
    if depth > MAX_DEPTH {
        return "...".to_owned();
    }
    let all = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool if value.is_true() => "True".to_owned(),
        ValueKind::Bool => "False".to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().into_iter().flatten();
            format!("[{}]", all(&mut items.map(|item| repr(&item, depth + 1))))
        }
        ValueKind::Map => {
            let items = value.try_iter().into_iter().flatten().map(|key| {
                let item = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key, depth + 1), repr(&item, depth + 1))
            });
            format!("{{{}}}", all(&mut { items }))
        }
        _ => value.to_string(),
    }
}

/// A string as Python shows it inside of others.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `repr` of an integer or a float: the shortest digits that give the float again, with an exponent from 1e16 on and
/// below 1e-4.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let exponent = scientific
        .split_once('e')
        .and_then(|(_, e)| e.parse::<i32>().ok())
        .unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let digits = scientific.split_once('e').map_or("", |(digits, _)| digits);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{float:?}")
}

/// How `json.dumps` writes.
pub(super) struct Json {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// Of one level; `None`: all on one line.
    pub(super) indent: Option<String>,
    /// Between items, and behind a key.
    pub(super) separators: (String, String),
}

impl Json {
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(not_json("it is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(out, ['[', ']'], &items, depth, |out, item| {
                    self.write(out, item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items(out, ['{', '}'], &keys, depth, |out, key| {
                    match key.kind() {
                        ValueKind::String => self.string(out, key.as_str().unwrap_or_default()),
                        _ => {
                            let mut name = String::new();
                            self.write(&mut name, key, depth + 1)?;
                            self.string(out, &name);
                        }
                    }
                    out.push_str(&self.separators.1);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(not_json(&format!("a value of kind {kind} is not JSON"))),
        }
        Ok(())
    }

    fn items(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators.0);
            }
            self.line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                // A cut of the shield must stay one.
                c if super::shield::CUTS.contains(&c) => out.push(c),
                c if (c as u32) < 0x20 || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        finite => finite.to_owned(),
    }
}

fn not_json(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {problem}"))
}
