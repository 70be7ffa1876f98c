//! Texts that may hold what a peer sent.

use serde::{Deserialize, Deserializer};

use crate::limits::MAX_STRING;

/// At most [`MAX_STRING`] bytes of a text that may hold what a peer sent.
pub(crate) fn shorten(text: &str) -> String {
    printable(text).take(MAX_STRING / 4).collect()
}

/// A text that may hold what a peer sent, for logs and terminals: at most [`MAX_STRING`] characters, none of them a
/// control character.
pub(crate) fn harmless(text: &str) -> String {
    printable(text).take(MAX_STRING).collect()
}

fn printable(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| match c {
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    })
}

/// Reads a text for a person as [`harmless`].
pub(crate) fn text_of_a_peer<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(harmless(&String::deserialize(from)?))
}
