//! Reading files with limits, and text in the encodings that occur.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a regular file of at most `limit` bytes. Links are not followed.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.file_type().is_symlink() {
        return Err(io::Error::other(
            "it is a symbolic link; links are not followed",
        ));
    }
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // The declared size may be wrong; the bounded read is what counts.
    File::open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// Windows-1252 for 0x80..=0x9F; unassigned bytes map to themselves as controls.
const CP1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž', '\u{8F}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}', 'ž', 'Ÿ',
];

/// Decodes source text: UTF-8, with or without a byte order mark, otherwise Windows-1252.
///
/// Returns the text and whether the fallback was used.
pub(crate) fn decode(bytes: &[u8]) -> Result<(String, bool), &'static str> {
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Err("it is UTF-16 text; save it as UTF-8");
    }
    if bytes.contains(&0) {
        return Err("it is not text");
    }
    let body = bytes.strip_prefix(&[0xEF, 0xBB, 0xBF]).unwrap_or(bytes);
    if let Ok(text) = std::str::from_utf8(body) {
        return Ok((text.to_owned(), false));
    }
    let char_of = |&b: &u8| match b {
        0x80..=0x9F => CP1252[usize::from(b - 0x80)],
        _ => char::from(b),
    };
    Ok((body.iter().map(char_of).collect(), true))
}

/// Splits text into lines, whichever line ends it uses.
pub(crate) fn split_lines(text: &str) -> Vec<String> {
    text.replace("\r\n", "\n")
        .replace('\r', "\n")
        .lines()
        .map(str::to_owned)
        .collect()
}
