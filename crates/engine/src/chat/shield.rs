//! What keeps the text of a person or a tool from becoming a control token.
//!
//! A template sees contents as they are, and its whole text is tokenised with control tokens. Where the text of a control
//! token stands in a content, a *cut* comes behind its first character: a private-use character that nothing in the
//! conversation has. After rendering the text is cut there, so that no piece has that control token.
//!
//! A template may take text away from a content (`replace('/think', '')`) or put parts together, which could join the
//! halves of a control token. It can take away only what it names. So a conversation in which halves would join without
//! one of the template's own texts is cut behind each first character of a control token.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use serde_json::Value;

/// Private-use characters, one of which is the cut.
pub(super) const CUTS: std::ops::RangeInclusive<char> = '\u{E000}'..='\u{F8FF}';

/// Finds control tokens in contents.
pub(super) struct Shield {
    controls: AhoCorasick,
    /// Of these patterns: true for one that marks thoughts.
    thoughts: Vec<bool>,
    firsts: BTreeSet<char>,
    /// Texts in the template's quotes.
    literals: Vec<String>,
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
            lower.contains("think") || lower.contains("channel")
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
            literals: literals(template),
            template: template.to_owned(),
        })
    }

    /// Puts cuts into the messages, and into what tools are said to do. Gives the cut.
    pub(super) fn cut(&self, messages: &mut [Value], tools: &mut [Value]) -> Option<char> {
        let mut strings = Vec::new();
        for value in messages.iter().chain(tools.iter()) {
            collect(value, &mut strings);
        }
        let mut used: BTreeSet<char> = self.template.chars().filter(|c| CUTS.contains(c)).collect();
        used.extend(
            strings
                .iter()
                .flat_map(|text| text.chars())
                .filter(|c| CUTS.contains(c)),
        );
        let cut = CUTS.clone().find(|c| !used.contains(c))?;
        for message in messages.iter_mut() {
            let is_answer = message["role"] == "assistant";
            each_string(message, &mut |key, text| {
                let keeps_thoughts = is_answer && ["content", "reasoning_content"].contains(&key);
                self.cut_controls(text, cut, keeps_thoughts)
            });
        }
        for tool in tools.iter_mut() {
            each_string(tool, &mut |_, text| self.cut_controls(text, cut, false));
        }
        if self.joins(messages, tools) {
            let everywhere = &mut |_: &str, text: &str| {
                let cuts = text.chars().flat_map(|c| {
                    let after = self.firsts.contains(&c).then_some(cut);
                    std::iter::once(c).chain(after)
                });
                Some(cuts.collect())
            };
            for value in messages.iter_mut().chain(tools.iter_mut()) {
                each_string(value, everywhere);
            }
        }
        Some(cut)
    }

    /// The text with a cut in each control token; `None` if it has none.
    fn cut_controls(&self, text: &str, cut: char, keeps_thoughts: bool) -> Option<String> {
        let mut places = BTreeSet::new();
        for found in self.controls.find_overlapping_iter(text) {
            if keeps_thoughts && self.thoughts[found.pattern().as_usize()] {
                continue;
            }
            let first = text[found.start()..]
                .chars()
                .next()
                .map_or(0, char::len_utf8);
            places.insert(found.start() + first);
            if found.len() == first {
                // Of one character: it stands alone then.
                places.insert(found.start());
            }
        }
        if places.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len() + places.len() * cut.len_utf8());
        let mut from = 0;
        for place in places {
            out.push_str(&text[from..place]);
            out.push(cut);
            from = place;
        }
        out.push_str(&text[from..]);
        Some(out)
    }

    /// True if a control token would appear where contents come together, or lose some of the template's texts.
    fn joins(&self, messages: &[Value], tools: &[Value]) -> bool {
        let concat = |values: &mut dyn Iterator<Item = &Value>| {
            let values = Value::Array(values.cloned().collect());
            let mut strings = Vec::new();
            collect(&values, &mut strings);
            strings.concat()
        };
        let is_answer = |message: &&Value| message["role"] == "assistant";
        let all = concat(&mut messages.iter().chain(tools));
        // Thoughts of answers are whole, and are to stay so.
        let of_others = concat(&mut messages.iter().filter(|m| !is_answer(m)).chain(tools));
        self.joins_in(&all, false) || self.joins_in(&of_others, true)
    }

    fn joins_in(&self, all: &str, with_thoughts: bool) -> bool {
        let appears = |text: &str| {
            let mut found = self.controls.find_overlapping_iter(text);
            found.any(|found| with_thoughts || !self.thoughts[found.pattern().as_usize()])
        };
        if appears(all) {
            return true;
        }
        let mut without = all.to_owned();
        for literal in self
            .literals
            .iter()
            .filter(|literal| all.contains(literal.as_str()))
        {
            without = without.replace(literal.as_str(), "");
            if appears(&all.replace(literal.as_str(), "")) || appears(&without) {
                return true;
            }
        }
        false
    }
}

/// Keys whose values are not anybody's text.
const FIXED: [&str; 2] = ["role", "type"];

/// All strings in their order, and then all keys, so that strings that follow each other stand together.
fn collect<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    fn walk<'a>(value: &'a Value, out: &mut Vec<&'a str>, keys: &mut Vec<&'a str>) {
        match value {
            Value::String(text) => out.push(text),
            Value::Array(items) => items.iter().for_each(|item| walk(item, out, keys)),
            Value::Object(fields) => {
                for (key, item) in fields
                    .iter()
                    .filter(|(key, _)| !FIXED.contains(&key.as_str()))
                {
                    keys.push(key);
                    walk(item, out, keys);
                }
            }
            _ => {}
        }
    }
    let mut keys = Vec::new();
    walk(value, out, &mut keys);
    out.extend(keys);
}

/// Replaces strings, also keys, by what `change` makes of them. It is told the key under which one stands.
fn each_string(value: &mut Value, change: &mut dyn FnMut(&str, &str) -> Option<String>) {
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
                    if FIXED.contains(&name.as_str()) {
                        fields.insert(name, item);
                        continue;
                    }
                    // The parts of a content are that content's.
                    let under = if name == "text" { key } else { &name };
                    walk(under, &mut item, change);
                    let name = change("", &name).unwrap_or(name);
                    fields.insert(name, item);
                }
            }
            _ => {}
        }
    }
    walk("", value, change);
}

/// What stands in quotes inside the tags of a template, with its escapes resolved. May hold more than there is.
fn literals(template: &str) -> Vec<String> {
    let mut out = BTreeSet::new();
    for start in ["{{", "{%"] {
        for (at, _) in template.match_indices(start) {
            let mut rest = template[at + 2..].chars().peekable();
            while let Some(c) = rest.next() {
                match c {
                    '\'' | '"' => {
                        let mut text = String::new();
                        while let Some(inner) = rest.next() {
                            match inner {
                                '\\' => match rest.next() {
                                    Some('n') => text.push('\n'),
                                    Some('t') => text.push('\t'),
                                    Some('r') => text.push('\r'),
                                    Some(other) => text.push(other),
                                    None => {}
                                },
                                end if end == c => break,
                                other => text.push(other),
                            }
                        }
                        out.insert(text);
                    }
                    '}' if matches!(rest.peek(), Some('}')) => break,
                    '%' if matches!(rest.peek(), Some('}')) => break,
                    _ => {}
                }
            }
        }
    }
    out.remove("");
    out.into_iter().collect()
}
