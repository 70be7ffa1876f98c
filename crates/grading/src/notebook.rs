//! A lenient reader of Jupyter notebooks.
//!
//! Real notebooks lack metadata, carry unknown cell types and hold hundreds of kilobytes of images, so
//! everything is optional here, images and widget state leave only a marker in the text, and long outputs are cut
//! in the middle with a marker that says so. Images that a browser shows safely are kept beside the text.

use crate::hidden::strip_ansi;
use crate::limits;
use crate::picture::Picture;
use crate::strict_json::strict;
use serde_json::Value;

/// One cell, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotebookCell {
    /// `code`, `markdown`, `raw` or whatever the notebook says.
    pub kind: String,
    /// Source lines.
    pub source: Vec<String>,
    /// Lines of all outputs, cut and marked.
    pub outputs: Vec<String>,
    /// Each picture with the place of its marker among the lines of source and outputs together, from 0.
    pub pictures: Vec<(usize, Picture)>,
}

/// Lines, and pictures with the places of their markers among them.
#[derive(Default)]
struct Shown {
    lines: Vec<String>,
    pictures: Vec<(usize, Picture)>,
}

impl Shown {
    /// A line that stands for something, which is kept if it is a picture.
    fn push_marker(&mut self, (name, mime): (&str, &str), value: &Value) {
        let text = text_of(Some(value));
        let size = match value.is_object() {
            true => value.to_string().len(),
            false => text.len(),
        };
        if let Some(picture) = Picture::from_base64(mime, &text) {
            self.pictures.push((self.lines.len(), picture));
        }
        self.lines.push(format!("[{name} removed, {size} bytes]"));
    }

    fn append(&mut self, other: Self) {
        let before = self.lines.len();
        self.lines.extend(other.lines);
        let moved = |(at, picture)| (before + at, picture);
        self.pictures.extend(other.pictures.into_iter().map(moved));
    }
}

/// Reads a notebook: the language of its kernel (lower case, such as `r` or `python`) and its cells.
///
/// # Errors
/// A message for the teacher, when the text is not JSON or has no cells.
pub fn read_notebook(text: &str) -> Result<(Option<String>, Vec<NotebookCell>), String> {
    let root: Value = serde_json::from_str(&strict(text))
        .map_err(|e| format!("it is not a valid notebook: {e}"))?;
    let cells = cells(&root).ok_or("it is not a notebook: it has no cells")?;
    if cells.len() > limits::MAX_CELLS {
        return Err(format!("it has more than {} cells", limits::MAX_CELLS));
    }
    Ok((language(&root), cells.into_iter().map(cell).collect()))
}

fn cells(root: &Value) -> Option<Vec<&Value>> {
    if let Some(Value::Array(cells)) = root.get("cells") {
        return Some(cells.iter().collect());
    }
    // Version 3 nested them in worksheets.
    let sheets = root.get("worksheets")?.as_array()?;
    let of_sheets = sheets.iter().filter_map(|sheet| sheet.get("cells"));
    let mut found = of_sheets.filter_map(Value::as_array).peekable();
    found.peek()?;
    Some(found.flatten().collect())
}

fn language(root: &Value) -> Option<String> {
    [
        "/metadata/kernelspec/language",
        "/metadata/language_info/name",
        "/metadata/kernelspec/name",
        "/worksheets/0/cells/0/language",
    ]
    .iter()
    .find_map(|path| root.pointer(path)?.as_str())
    .map(|name| {
        if name.starts_with("python") {
            "python".to_owned()
        } else {
            name.to_lowercase()
        }
    })
}

fn cell(cell: &Value) -> NotebookCell {
    let kind = cell
        .get("cell_type")
        .and_then(Value::as_str)
        .unwrap_or("unknown")
        .to_owned();
    let mut shown = source(cell);
    let source_lines = shown.lines.len();
    if let Some(Value::Array(outputs)) = cell.get("outputs") {
        for each in outputs {
            shown.append(output(each));
        }
    }
    let outputs = shown.lines.split_off(source_lines);
    NotebookCell {
        kind,
        source: shown.lines,
        outputs,
        pictures: shown.pictures,
    }
}

/// The source of a cell, with the pictures that were pasted into it.
fn source(cell: &Value) -> Shown {
    let mut shown = Shown::default();
    for line in text_of(cell.get("source").or_else(|| cell.get("input"))).lines() {
        shown.append(without_embedded_data(line));
    }
    let attached = cell.get("attachments").and_then(Value::as_object);
    let lines = shown.lines.iter().enumerate();
    let links = lines.flat_map(|(at, line)| attachments(line).map(move |name| (at, name)));
    let found = links.take(limits::MAX_PICTURES).filter_map(|(at, name)| {
        let forms = attached?.get(&name)?.as_object()?.iter();
        let mut forms = forms.filter_map(|(mime, v)| Picture::from_base64(mime, v.as_str()?));
        Some((at, forms.next()?))
    });
    let found: Vec<_> = found.collect();
    shown.pictures.extend(found);
    shown.pictures.sort_by_key(|(at, _)| *at);
    shown
}

/// Names of the attachments that a line of Markdown shows; some writers encode spaces in them.
fn attachments(line: &str) -> impl Iterator<Item = String> {
    let links = line.split("attachment:").skip(1);
    links.map(|rest| {
        let end = |c: char| c == ')' || c == '"' || c.is_whitespace();
        let name = rest.split(end).next().unwrap_or_default();
        name.replace("%20", " ")
    })
}

/// A string, or an array of strings that are to be joined.
fn text_of(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn output(output: &Value) -> Shown {
    let mut shown = Shown::default();
    if let Some(text) = output.get("text") {
        shown.lines = capped(&text_of(Some(text)));
        // Format 3 keeps a picture beside the text, of which the text alone is told.
        let last = shown.lines.len().saturating_sub(1);
        let pictures = old_images(output)
            .filter_map(|(_, mime, value)| Picture::from_base64(mime, &text_of(Some(value))));
        shown
            .pictures
            .extend(pictures.map(|picture| (last, picture)));
        return shown;
    }
    if let Some(trace) = output.get("traceback") {
        let trace = match trace {
            Value::Array(lines) => lines
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join("\n"),
            other => text_of(Some(other)),
        };
        let name = text_of(output.get("ename"));
        shown.lines = capped(&match trace.is_empty() {
            true => format!("{name}: {}", text_of(output.get("evalue"))),
            false => trace,
        });
        return shown;
    }
    let Some(Value::Object(data)) = output.get("data") else {
        for (kind, mime, value) in old_images(output) {
            shown.push_marker((kind, mime), value);
        }
        return shown;
    };
    if let Some(plain) = data.get("text/plain") {
        shown.lines = capped(&text_of(Some(plain)));
    }
    let has_text = !shown.lines.is_empty();
    for (mime, value) in data.iter().filter(|(mime, _)| *mime != "text/plain") {
        // HTML beside plain text repeats it.
        if !(mime == "text/html" && has_text) {
            shown.push_marker((mime, mime), value);
        }
    }
    shown
}

/// What format 3 keeps in an output besides text: its name there, its media type, what it is.
fn old_images(output: &Value) -> impl Iterator<Item = (&'static str, &'static str, &Value)> {
    let kinds = [
        ("png", "image/png"),
        ("jpeg", "image/jpeg"),
        ("svg", "image/svg+xml"),
        ("html", "text/html"),
        ("latex", "text/latex"),
        ("javascript", "application/javascript"),
    ];
    let found = kinds.into_iter();
    found.filter_map(|(kind, mime)| Some((kind, mime, output.get(kind)?)))
}

/// Lines without terminal colours; long outputs and long lines are cut, with a marker.
fn capped(text: &str) -> Vec<String> {
    let clean = strip_ansi(text);
    let lines: Vec<String> = clean.lines().map(|l| cut_line(last_overwrite(l))).collect();
    let edge = limits::OUTPUT_EDGE_LINES;
    if lines.len() <= 2 * edge {
        return lines;
    }
    let cut = lines.len() - 2 * edge;
    let mut out = lines[..edge].to_vec();
    out.push(format!("[{cut} lines of output cut]"));
    out.extend_from_slice(&lines[lines.len() - edge..]);
    out
}

/// What a terminal shows of a line that carriage returns overwrite, as progress bars do.
fn last_overwrite(line: &str) -> &str {
    line.trim_end_matches('\r')
        .rsplit('\r')
        .next()
        .unwrap_or(line)
}

fn cut_line(line: &str) -> String {
    let limit = limits::MAX_OUTPUT_LINE_CHARS;
    let length = line.chars().count();
    if length <= limit {
        return line.to_owned();
    }
    let kept: String = line.chars().take(limit).collect();
    format!("{kept} [{} characters cut]", length - limit)
}

/// Replaces `data:…;base64,…` by a marker.
fn without_embedded_data(line: &str) -> Shown {
    const START: &str = ";base64,";
    let mut shown = Shown::default();
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(START) {
        let (before, after) = rest.split_at(at + START.len());
        let end = after
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')))
            .unwrap_or(after.len());
        let mime = rest[..at].rsplit("data:").next().unwrap_or_default();
        let picture = Picture::from_base64(mime, &after[..end]);
        shown.pictures.extend(picture.map(|picture| (0, picture)));
        out.push_str(before);
        out.push_str(&format!("[{end} characters removed]"));
        rest = &after[end..];
    }
    out.push_str(rest);
    shown.lines.push(out);
    shown
}
