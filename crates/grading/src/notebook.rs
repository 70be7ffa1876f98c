//! A lenient reader of Jupyter notebooks.
//!
//! Real notebooks lack metadata, carry unknown cell types and hold hundreds of kilobytes of images, so
//! everything is optional here, images and widget state leave only a marker, and long outputs are cut
//! in the middle with a marker that says so.

use crate::hidden::strip_ansi;
use crate::limits;
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
    let source = text_of(cell.get("source").or_else(|| cell.get("input")));
    let source = source.lines().map(without_embedded_data).collect();
    let outputs = match cell.get("outputs") {
        Some(Value::Array(outputs)) => outputs.iter().flat_map(output).collect(),
        _ => Vec::new(),
    };
    NotebookCell {
        kind,
        source,
        outputs,
    }
}

/// A string, or an array of strings that are to be joined.
fn text_of(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn output(output: &Value) -> Vec<String> {
    if let Some(text) = output.get("text") {
        return capped(&text_of(Some(text)));
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
        let shown = if trace.is_empty() {
            format!("{name}: {}", text_of(output.get("evalue")))
        } else {
            trace
        };
        return capped(&shown);
    }
    let Some(Value::Object(data)) = output.get("data") else {
        return old_images(output);
    };
    let mut lines = Vec::new();
    if let Some(plain) = data.get("text/plain") {
        lines.extend(capped(&text_of(Some(plain))));
    }
    for (mime, value) in data.iter().filter(|(mime, _)| *mime != "text/plain") {
        // HTML beside plain text repeats it.
        if mime == "text/html" && !lines.is_empty() {
            continue;
        }
        let size = if value.is_object() {
            value.to_string().len()
        } else {
            text_of(Some(value)).len()
        };
        lines.push(format!("[{mime} removed, {size} bytes]"));
    }
    lines
}

/// Markers of what version 3 kept beside the text of an output.
fn old_images(output: &Value) -> Vec<String> {
    let kinds = ["png", "jpeg", "svg", "html", "latex", "javascript"];
    let found = kinds
        .iter()
        .filter_map(|kind| Some((kind, output.get(*kind)?)));
    found
        .map(|(kind, value)| format!("[{kind} removed, {} bytes]", text_of(Some(value)).len()))
        .collect()
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

/// Replaces `data:…;base64,…` in markdown by a marker.
fn without_embedded_data(line: &str) -> String {
    const START: &str = ";base64,";
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(START) {
        let (before, after) = rest.split_at(at + START.len());
        let end = after
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')))
            .unwrap_or(after.len());
        out.push_str(before);
        out.push_str(&format!("[{end} characters removed]"));
        rest = &after[end..];
    }
    out.push_str(rest);
    out
}
