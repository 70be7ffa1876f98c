//! A rubric as somebody writes it, before it is checked: as YAML, in a form, as a table of another system.
//!
//! [`Draft::read`] takes any of them, [`Draft::source`] gives the YAML that [`Rubric::parse`](crate::Rubric::parse) checks.

mod tables;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{GradingError, fault};
use crate::limits;
use crate::style::Length;

/// A rubric, unchecked. The keys are those of the YAML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Draft {
    pub id: String,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_points: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<Length>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub advice_at_full_marks: bool,
    pub task: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guidelines: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub template: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub solution: Vec<PathBuf>,
    pub criteria: Vec<CriterionDraft>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub penalties: Vec<PenaltyDraft>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateDraft>,
}

/// Points that a person may take off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PenaltyDraft {
    pub id: String,
    pub title: String,
    pub points: f64,
}

/// What a late submission loses: points, or percent of the maximum.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LateDraft {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// A criterion of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CriterionDraft {
    pub id: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "Kind::is_code")]
    pub kind: Kind,
    pub description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_words: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    pub max_points: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bonus: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<Vec<LevelDraft>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
}

/// What is judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Code.
    #[default]
    Code,
    /// An answer in words.
    Reflection,
}

impl Kind {
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_code(&self) -> bool {
        *self == Self::Code
    }
}

/// A level of a criterion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LevelDraft {
    pub label: String,
    pub points: f64,
    pub description: String,
}

impl Draft {
    pub(crate) fn parse(text: &str) -> Result<Self, GradingError> {
        serde_saphyr::from_str(text).map_err(|e| fault("file", e.to_string()))
    }

    /// Reads YAML, a rubric of Canvas as CSV, or a table in Markdown. A table has no task, and its title is that of the file
    /// where it has none of its own.
    ///
    /// # Errors
    /// What is none of them, or has no criterion.
    pub fn read(text: &str, name: &str) -> Result<Self, GradingError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let first = text.lines().find(|line| !line.trim().is_empty());
        let first = first.unwrap_or_default();
        let draft = match (tables::is_canvas(first), tables::has_markdown(text)) {
            (true, _) => tables::of_canvas(text)?,
            (false, true) => tables::of_markdown(text, name)?,
            (false, false) => return Self::parse(text),
        };
        match draft.criteria.is_empty() {
            true => Err(fault("file", "it has no criterion")),
            false => Ok(draft),
        }
    }

    /// As YAML.
    #[must_use]
    pub fn source(&self) -> String {
        // Plain structs always serialise.
        serde_saphyr::to_string(self).unwrap_or_default()
    }

    /// Gives an id to what has none, by its title: no two alike.
    pub fn number(&mut self) {
        if self.id.trim().is_empty() {
            self.id = id_of(&self.title, "rubric");
        }
        let mut taken: Vec<String> = self.criteria.iter().map(|c| c.id.clone()).collect();
        for criterion in &mut self.criteria {
            if !criterion.id.trim().is_empty() {
                continue;
            }
            let base = id_of(&criterion.title, "criterion");
            let numbered = (2..).map(|number| format!("{base}-{number}"));
            let mut all = std::iter::once(base.clone()).chain(numbered);
            criterion.id = all.find(|id| !taken.contains(id)).unwrap_or(base);
            taken.push(criterion.id.clone());
        }
        for i in 0..self.penalties.len() {
            if self.penalties[i].id.trim().is_empty() {
                let base = id_of(&self.penalties[i].title, "penalty");
                let is_taken = |id: &String| self.penalties.iter().any(|one| one.id == *id);
                let numbered = (2..).map(|number| format!("{base}-{number}"));
                let mut all = std::iter::once(base.clone()).chain(numbered);
                let id = all.find(|id| !is_taken(id)).unwrap_or_else(|| base.clone());
                self.penalties[i].id = id;
            }
        }
    }
}

/// Letters and digits of a title.
fn id_of(title: &str, otherwise: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let id: String = title.chars().map(plain).collect();
    let parts: Vec<&str> = id.split('-').filter(|part| !part.is_empty()).collect();
    let id: String = parts
        .join("-")
        .chars()
        .take(limits::MAX_ID_CHARS / 2)
        .collect();
    let id = id.trim_matches('-');
    if id.is_empty() {
        otherwise.to_owned()
    } else {
        id.to_owned()
    }
}
