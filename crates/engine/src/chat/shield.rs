//! What keeps the text of a person or a tool from becoming a control token.
//!
//! A template sees contents as they are, and its whole text is tokenised with control tokens. To know which of these a
//! person wrote, the conversation is rendered once more, with a *cut* behind each character of a content with which a
//! control token begins: a private-use character that nothing in the conversation has. Where both texts are the same but
//! for the cuts, the first one is used, and cut in each control token that begins with somebody's character. Where they
//! are not, because the template looks for such characters or has joined what stood apart, the second one is used as it
//! is. At a cut the text is tokenised in two pieces, so that neither has the control token.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use serde_json::Value;

/// Private-use characters, one of which is the cut.
pub(super) const CUTS: std::ops::RangeInclusive<char> = '\u{E000}'..='\u{F8FF}';

/// Finds control tokens.
pub(super) struct Shield {
    controls: AhoCorasick,
    /// Of these patterns: true for one that marks thoughts to the template.
    thoughts: Vec<bool>,
    firsts: BTreeSet<char>,
    template: String,
}

impl Shield {
    /// A shield against these texts; `None` if there are too many.
    pub(super) fn new(controls: Vec<String>, template: &str) -> Option<Self> {
        let controls: Vec<String> = controls
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        let marks_thought = |text: &String| {
            let lower = text.to_lowercase();
            let is_mark = lower.contains("think") || lower.contains("channel");
            is_mark && template.contains(text.as_str())
        };
        Some(Self {
            thoughts: controls.iter().map(marks_thought).collect(),
            firsts: controls
                .iter()
                .filter_map(|text| text.chars().next())
                .collect(),
            controls: AhoCorasick::builder()
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(&controls)
                .ok()?,
            template: template.to_owned(),
        })
    }

    /// A character for cuts, which neither messages nor tools nor the template have; `None` if all are taken.
    pub(super) fn cut_for(&self, messages: &[Value], tools: &[Value]) -> Option<char> {
        let mut used = BTreeSet::new();
        let mut look = |text: &str| used.extend(text.chars().filter(|c| CUTS.contains(c)));
        look(&self.template);
        for value in messages.iter().chain(tools) {
            each_string(value, &mut look);
        }
        CUTS.clone().find(|c| !used.contains(c))
    }

    /// Puts a cut behind each first character of a control token, but for marks of thoughts in answers, which templates
    /// are to see. False if there is none.
    pub(super) fn cut_all(&self, messages: &mut [Value], tools: &mut [Value], cut: char) -> bool {
        let mut any = false;
        for message in messages.iter_mut() {
            let is_answer = message["role"] == "assistant";
            change_strings(message, &mut |key, text| {
                let keeps_thoughts = is_answer && ["content", "reasoning_content"].contains(&key);
                let changed = self.cut_text(text, cut, keeps_thoughts, key.is_empty());
                any |= changed.is_some();
                changed
            });
        }
        for tool in tools.iter_mut() {
            change_strings(tool, &mut |key, text| {
                let changed = self.cut_text(text, cut, false, key.is_empty());
                any |= changed.is_some();
                changed
            });
        }
        any
    }

    fn cut_text(
        &self,
        text: &str,
        cut: char,
        keeps_thoughts: bool,
        is_key: bool,
    ) -> Option<String> {
        // Keys that templates ask for are words; they stay whole.
        let begins = |c: &char| self.firsts.contains(c) && !(is_key && c.is_alphanumeric());
        if !text.chars().any(|c| begins(&c)) {
            return None;
        }
        let mut kept = Vec::new();
        if keeps_thoughts {
            for found in self.controls.find_overlapping_iter(text) {
                if self.thoughts[found.pattern().as_usize()] {
                    kept.push(found.range());
                }
            }
            kept.sort_by_key(|range| range.start);
        }
        let mut kept = kept.into_iter().peekable();
        let mut out = String::with_capacity(text.len() + text.len() / 8);
        for (at, c) in text.char_indices() {
            while kept.peek().is_some_and(|range| range.end <= at) {
                kept.next();
            }
            out.push(c);
            let is_kept = kept.peek().is_some_and(|range| range.start <= at);
            if begins(&c) && !is_kept {
                out.push(cut);
            }
        }
        Some(out)
    }

    /// The text to be tokenised: `plain` with cuts in the control tokens that begin with somebody's character, as `cut_all`
    /// shows them, or the latter if they are different otherwise.
    pub(super) fn merged(&self, plain: &str, cut_all: String, cut: char) -> String {
        let mut pieces = cut_all.split(cut);
        let (mut at, mut places) = (0, BTreeSet::new());
        let mut rest = plain;
        let mut same = true;
        if let Some(first) = pieces.next() {
            same = rest.starts_with(first);
            rest = rest.get(first.len()..).unwrap_or_default();
            at += first.len();
        }
        for piece in pieces {
            places.insert(at);
            same = same && rest.starts_with(piece);
            rest = rest.get(piece.len()..).unwrap_or_default();
            at += piece.len();
        }
        if !same || !rest.is_empty() {
            return cut_all;
        }
        let mut cuts = BTreeSet::new();
        for found in self.controls.find_overlapping_iter(plain) {
            let first = plain[found.start()..].chars().next();
            let behind = found.start() + first.map_or(0, char::len_utf8);
            if places.contains(&behind) {
                cuts.insert(behind);
                if behind == found.end() {
                    // Of one character: it stands alone then.
                    cuts.insert(found.start());
                }
            }
        }
        let mut out = String::with_capacity(plain.len() + cuts.len() * cut.len_utf8());
        let mut from = 0;
        for place in cuts {
            out.push_str(&plain[from..place]);
            out.push(cut);
            from = place;
        }
        out.push_str(&plain[from..]);
        out
    }
}

/// All strings, and all keys.
fn each_string(value: &Value, look: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => look(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, look)),
        Value::Object(fields) => {
            for (key, item) in fields {
                look(key);
                each_string(item, look);
            }
        }
        _ => {}
    }
}

/// Replaces strings by what `change` makes of them: it is told the key under which one stands, and an empty one for a key.
/// The role of a message, and the kind of a part or a call, are not anybody's text.
fn change_strings(message: &mut Value, change: &mut dyn FnMut(&str, &str) -> Option<String>) {
    fn walk(key: &str, value: &mut Value, change: &mut dyn FnMut(&str, &str) -> Option<String>) {
        match value {
            Value::String(text) => {
                if let Some(changed) = change(key, text) {
                    *text = changed;
                }
            }
            Value::Array(items) => {
                for item in items {
                    walk(key, item, change);
                }
            }
            Value::Object(fields) => {
                let taken = std::mem::take(fields);
                for (name, mut item) in taken {
                    let is_kind = name == "type" && ["text", "function"].iter().any(|k| item == *k);
                    if !is_kind {
                        // The parts of a content are that content's.
                        let under = if name == "text" { key } else { &name };
                        walk(under, &mut item, change);
                    }
                    let name = change("", &name).unwrap_or(name);
                    fields.insert(name, item);
                }
            }
            _ => {}
        }
    }
    let role = message.get_mut("role").map(Value::take);
    walk("message", message, change);
    if let (Some(role), Some(fields)) = (role, message.as_object_mut()) {
        fields.insert("role".to_owned(), role);
    }
}
