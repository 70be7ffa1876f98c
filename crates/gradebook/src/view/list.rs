//! Which works the queue lists, and in which order: what an address says, and how it is said again in links.

use std::fmt::Write;

use serde::Deserialize;
use tandem_grading::Points;

use crate::paths::Paths;

/// The list that a page works through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct List {
    /// `all` lists settled works, too; `mine` those of one's own share alone; `blind` those that one grades blind.
    list: Option<String>,
    /// The criterion that stays open through all works.
    pub(crate) by: Option<String>,
    /// Works alone that have these points for it.
    at: Option<String>,
    /// Works alone whose name has this in it.
    find: Option<String>,
}

impl List {
    pub(crate) fn shows_all(&self) -> bool {
        self.list.as_deref() == Some("all") || self.finds().is_some() || self.at().is_some()
    }

    pub(crate) fn is_mine(&self) -> bool {
        self.list.as_deref() == Some("mine")
    }

    pub(crate) fn is_blind(&self) -> bool {
        self.list.as_deref() == Some("blind")
    }

    pub(crate) fn at(&self) -> Option<Points> {
        let number: f64 = self.at.as_deref()?.parse().ok()?;
        Points::from_f64(number)
    }

    /// In lower case.
    pub(crate) fn finds(&self) -> Option<String> {
        let text = self.find.as_deref()?.trim().to_lowercase();
        (!text.is_empty()).then_some(text)
    }

    /// The same works in one of the lists: open ones, `mine`, `blind`, or `all`.
    pub(crate) fn with(&self, list: &str) -> Self {
        Self {
            list: (list != "open").then(|| list.to_owned()),
            by: self.by.clone(),
            at: None,
            find: None,
        }
    }

    /// The same by another criterion, or by submission.
    pub(crate) fn by(&self, criterion: Option<&str>) -> Self {
        Self {
            by: criterion.map(str::to_owned),
            ..self.with(self.list.as_deref().unwrap_or("open"))
        }
    }

    /// All works with these points for a criterion.
    pub(crate) fn at_points(criterion: &str, points: Points) -> Self {
        Self {
            by: Some(criterion.to_owned()),
            at: Some(points.to_string()),
            ..Self::default()
        }
    }

    /// A work in this list.
    pub(crate) fn href(&self, paths: Paths, work: i64) -> String {
        self.on(paths.work(work))
    }

    /// An address that leads back to this list.
    pub(crate) fn on(&self, mut href: String) -> String {
        let mut mark = '?';
        let fields = [
            ("list", &self.list),
            ("by", &self.by),
            ("at", &self.at),
            ("find", &self.find),
        ];
        for (name, value) in fields {
            let Some(value) = value else { continue };
            // Writing into a `String` cannot fail.
            let _ = write!(href, "{mark}{name}={}", escaped(value));
            mark = '&';
        }
        href
    }
}

/// A value of a query.
fn escaped(value: &str) -> String {
    let mut out = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                out.push(char::from(byte))
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
