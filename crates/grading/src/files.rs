//! Reading files with limits, and text in the encodings that occur.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use std::ffi::OsStr;
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

/// Text, and how it was read if that was a guess.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) text: String,
    /// `None` for UTF-8, and for what the text itself says.
    pub(crate) guess: Option<&'static str>,
}

/// Decodes source text: UTF-8, UTF-16 with a byte order mark, what a [declaration](declared) says, otherwise
/// Windows-1252.
pub(crate) fn decode(bytes: &[u8]) -> Result<Decoded, &'static str> {
    let decoded = |text: &str, guess| Decoded {
        text: text.to_owned(),
        guess,
    };
    if let Some((encoding, mark)) = Encoding::for_bom(bytes)
        && encoding != UTF_8
    {
        let text = encoding.decode_without_bom_handling_and_without_replacement(&bytes[mark..]);
        let text = text.ok_or("it is broken UTF-16 text")?;
        return Ok(decoded(&text, Some("read as UTF-16")));
    }
    let zeros = bytes.iter().filter(|byte| **byte == 0).count();
    if zeros > 0 {
        // A few in a text are a slip of an editor, which is shown.
        let text = std::str::from_utf8(bytes)
            .ok()
            .filter(|_| zeros <= bytes.len() / 100);
        let text = text.ok_or("it is not text")?.trim_start_matches('\u{feff}');
        return Ok(decoded(
            &text.replace('\0', "\u{2400}"),
            Some("it has zero bytes, shown as ␀"),
        ));
    }
    let body = bytes.strip_prefix(&[0xEF, 0xBB, 0xBF]).unwrap_or(bytes);
    if let Ok(text) = std::str::from_utf8(body) {
        return Ok(decoded(text, None));
    }
    if let Some(text) =
        declared(body).and_then(|e| e.decode_without_bom_handling_and_without_replacement(body))
    {
        return Ok(decoded(&text, None));
    }
    let (text, _) = WINDOWS_1252.decode_without_bom_handling(body);
    Ok(decoded(&text, Some("not UTF-8; read as Windows-1252")))
}

/// What a comment in the first two lines says, as Python reads it (PEP 263): `# -*- coding: latin-1 -*-`.
fn declared(bytes: &[u8]) -> Option<&'static Encoding> {
    let lines = bytes.split(|b| *b == b'\n').take(2);
    lines
        .filter_map(|line| std::str::from_utf8(line).ok())
        .find_map(|line| {
            let comment = line.trim_start().strip_prefix('#')?;
            let (_, named) = comment.split_once("coding")?;
            let named = named.strip_prefix([':', '='])?.trim_start();
            let end = named.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
            let label = named[..end.unwrap_or(named.len())]
                .to_lowercase()
                .replace('_', "-");
            // Python writes `latin-1` and `cp1251` where the standard has `latin1` and `windows-1251`.
            let joined = label.replace('-', "");
            let windows = label.replacen("cp", "windows-", 1);
            [label, joined, windows]
                .iter()
                .find_map(|l| Encoding::for_label(l.as_bytes()))
        })
}

/// Splits text into lines, whichever line ends it uses.
pub(crate) fn split_lines(text: &str) -> Vec<String> {
    text.replace("\r\n", "\n")
        .replace('\r', "\n")
        .lines()
        .map(str::to_owned)
        .collect()
}

/// A part of a path as text.
pub(crate) fn lossy(part: Option<&OsStr>) -> String {
    part.map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
}
