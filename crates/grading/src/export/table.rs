//! A table as a learning system writes it, in which cells change while all other bytes stay.
//!
//! [`Table::read`] finds the cells, [`Table::set`] changes some, [`Table::finish`] gives the bytes. The cells that were not
//! set, the quotes around them, the ends of the lines and the mark at the beginning are those that came.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8};

use crate::limits::{MAX_TABLE_BYTES, MAX_TABLE_COLUMNS, MAX_TABLE_ROWS};

/// What stands before a text of UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// A table of text cells.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    encoding: &'static Encoding,
    delimiter: u8,
    /// Where the cells of each row are, with the quotes around them.
    rows: Vec<Vec<Range<usize>>>,
    changed: BTreeMap<(usize, usize), String>,
}

impl Table {
    /// # Errors
    /// Says why it is no such table.
    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self, String> {
        if bytes.len() > MAX_TABLE_BYTES {
            return Err(format!("it is larger than {} MB", MAX_TABLE_BYTES >> 20));
        }
        if bytes.starts_with(b"PK") {
            return Err("it is a file of Excel or another program; save it as CSV".to_owned());
        }
        if bytes.starts_with(&[0xff, 0xfe])
            || bytes.starts_with(&[0xfe, 0xff])
            || bytes.contains(&0)
        {
            return Err(
                "it is no CSV file of UTF-8; take the file as it was downloaded".to_owned(),
            );
        }
        let start = if bytes.starts_with(MARK) {
            MARK.len()
        } else {
            0
        };
        if start > 0 && std::str::from_utf8(&bytes).is_err() {
            return Err(
                "it is marked as UTF-8 and has other bytes; take the file as it was downloaded"
                    .to_owned(),
            );
        }
        if bytes[start..].starts_with(b"sep=") {
            return Err("its first line is a note for Excel, `sep=`; delete that line".to_owned());
        }
        let encoding = encoding_of(&bytes);
        let delimiter = delimiter_of(&bytes[start..]);
        let rows = rows_of(&bytes, start, delimiter)?;
        Ok(Self {
            bytes,
            encoding,
            delimiter,
            rows,
            changed: BTreeMap::new(),
        })
    }

    /// How many rows it has, the header included.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Cells of a row; none where there is no such row.
    pub(crate) fn width(&self, row: usize) -> usize {
        self.rows.get(row).map_or(0, Vec::len)
    }

    /// Between two cells.
    pub(crate) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    /// A cell as it came, without the quotes around it; empty where there is none.
    pub(crate) fn cell(&self, row: usize, column: usize) -> String {
        let range = self.rows.get(row).and_then(|cells| cells.get(column));
        let raw = range.map_or(&[][..], |range| &self.bytes[range.clone()]);
        let text = self.encoding.decode_without_bom_handling(raw).0;
        unquoted(&text).into_owned()
    }

    /// A row as it came.
    pub(crate) fn row(&self, row: usize) -> Vec<String> {
        (0..self.width(row))
            .map(|column| self.cell(row, column))
            .collect()
    }

    /// Changes a cell; a row that has none there has too few, and stays.
    pub(crate) fn set(&mut self, row: usize, column: usize, text: String) {
        if column < self.width(row) && self.cell(row, column) != text {
            self.changed.insert((row, column), text);
        }
    }

    /// The bytes, with the changes. What the encoding has no letter for is written as HTML does.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len());
        let mut from = 0;
        for ((row, column), text) in &self.changed {
            let range = self.rows[*row][*column].clone();
            out.extend_from_slice(&self.bytes[from..range.start]);
            let is_quoted = self.bytes[range.clone()].starts_with(b"\"");
            let text = quoted(text, self.delimiter(), is_quoted);
            out.extend_from_slice(&self.encoding.encode(&text).0);
            from = range.end;
        }
        out.extend_from_slice(&self.bytes[from..]);
        out
    }
}

/// UTF-8 where it is that; else a code page in which delimiters and quotes are what they are in ASCII.
fn encoding_of(bytes: &[u8]) -> &'static Encoding {
    if std::str::from_utf8(bytes).is_ok() {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    detector.guess(None, Utf8Detection::Deny)
}

/// The one that the first line has most of, outside of quotes.
fn delimiter_of(bytes: &[u8]) -> u8 {
    let mut is_quoted = false;
    let mut counts = [(b',', 0), (b';', 0), (b'\t', 0)];
    for byte in bytes {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\n' | b'\r' if !is_quoted => break,
            byte if !is_quoted => {
                let found = counts.iter_mut().find(|(delimiter, _)| delimiter == byte);
                found.into_iter().for_each(|(_, count)| *count += 1);
            }
            _ => {}
        }
    }
    let most = counts.into_iter().rev().max_by_key(|(_, count)| *count);
    most.map_or(b',', |(delimiter, _)| delimiter)
}

fn rows_of(bytes: &[u8], start: usize, delimiter: u8) -> Result<Vec<Vec<Range<usize>>>, String> {
    let mut rows = Vec::new();
    let mut at = start;
    while at < bytes.len() {
        let mut cells = Vec::new();
        loop {
            let end = end_of_cell(bytes, at, delimiter)
                .ok_or_else(|| format!("row {}: a quote is not closed", rows.len() + 1))?;
            cells.push(at..end);
            at = end;
            if bytes.get(at) != Some(&delimiter) {
                break;
            }
            at += 1;
        }
        at += match &bytes[at..] {
            [b'\r', b'\n', ..] => 2,
            [] => 0,
            _ => 1,
        };
        if cells.len() > MAX_TABLE_COLUMNS || rows.len() >= MAX_TABLE_ROWS {
            return Err(format!(
                "it has more than {MAX_TABLE_ROWS} rows or {MAX_TABLE_COLUMNS} columns"
            ));
        }
        rows.push(cells);
    }
    Ok(rows)
}

/// Where a cell ends that begins here; nothing if a quote is not closed.
fn end_of_cell(bytes: &[u8], start: usize, delimiter: u8) -> Option<usize> {
    let mut at = start;
    if bytes.get(at) == Some(&b'"') {
        at += 1;
        loop {
            at += bytes[at..].iter().position(|byte| *byte == b'"')? + 1;
            if bytes.get(at) != Some(&b'"') {
                break;
            }
            at += 1;
        }
    }
    let is_end = |byte: &u8| *byte == delimiter || matches!(byte, b'\n' | b'\r');
    let rest = bytes[at..].iter().position(is_end);
    Some(rest.map_or(bytes.len(), |rest| at + rest))
}

fn unquoted(text: &str) -> Cow<'_, str> {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    match inner {
        Some(inner) if inner.contains("\"\"") => inner.replace("\"\"", "\"").into(),
        Some(inner) => inner.into(),
        None => text.into(),
    }
}

fn quoted(text: &str, delimiter: char, is_quoted: bool) -> Cow<'_, str> {
    let needs = |c: char| c == delimiter || matches!(c, '"' | '\n' | '\r');
    match is_quoted || text.contains(needs) {
        true => format!("\"{}\"", text.replace('"', "\"\"")).into(),
        false => text.into(),
    }
}
