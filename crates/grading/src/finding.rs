//! What a person should look at, with its kind, so that equal ones can be counted and get the same advice.

use serde::{Deserialize, Serialize};

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Finding {
    /// Of what kind it is.
    pub kind: FindingKind,
    /// What it is, for a person.
    pub text: String,
    /// Where in the submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// The criterion that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub criterion: Option<String>,
}

/// A line of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

/// Kinds of findings; the first ones are looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The submission speaks to the grader.
    Orders,
    /// It has characters that nobody sees.
    Hidden,
    /// The server gave no answer.
    NoAnswer,
    /// The server does not take the request.
    Refused,
    /// The answer was cut at its limit.
    Cut,
    /// The answer is not what was asked for.
    Unusable,
    /// The prompt is longer than the model can take.
    TooLong,
    /// The submission cannot be read.
    Unreadable,
    /// A file of it could not be read.
    LeftOut,
    /// Lines that are cited do not exist, or none are.
    Evidence,
    /// Something is said to be missing, and what is missing cannot be cited.
    Absence,
    /// A reflection is shorter than asked for.
    TooShort,
    /// The rationale says nothing.
    Rationale,
    /// The feedback repeats what only those who grade may see.
    Disclosed,
    /// The feedback names code that is neither in the submission nor in the rubric and its files.
    UnknownCode,
    /// The feedback gives scores, or is not what was asked for.
    TextRule,
    /// There is no feedback.
    NoText,
    /// The encoding of a file was guessed.
    Encoding,
    /// Nothing was written.
    Untouched,
    /// Of an earlier version, which did not tell kinds apart.
    Other,
}

impl FindingKind {
    /// True for what is said of the feedback alone.
    #[must_use]
    pub const fn is_of_text(self) -> bool {
        matches!(
            self,
            Self::Disclosed | Self::UnknownCode | Self::TextRule | Self::NoText
        )
    }
}

impl Finding {
    /// One without a place.
    pub fn new(kind: FindingKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            place: None,
            criterion: None,
        }
    }

    /// One about a criterion.
    pub(crate) fn about(kind: FindingKind, criterion: &str, what: &str) -> Self {
        Self {
            criterion: Some(criterion.to_owned()),
            ..Self::new(kind, format!("criterion '{criterion}': {what}"))
        }
    }

    /// One in a line of a file.
    pub(crate) fn at(kind: FindingKind, file: &str, line: usize, what: &str) -> Self {
        Self {
            place: Some(Place {
                file: file.to_owned(),
                line,
            }),
            ..Self::new(kind, format!("{file} line {line}: {what}"))
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// All of them in one line.
pub(crate) fn joined(findings: &[Finding]) -> String {
    let texts: Vec<&str> = findings.iter().map(|f| f.text.as_str()).collect();
    texts.join("; ")
}

/// As a result holds it; earlier versions wrote the text alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Whole {
        kind: FindingKind,
        text: String,
        #[serde(default)]
        place: Option<Place>,
        #[serde(default)]
        criterion: Option<String>,
    },
}

impl From<Stored> for Finding {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Text(text) => Self::new(FindingKind::Other, text),
            Stored::Whole {
                kind,
                text,
                place,
                criterion,
            } => Self {
                kind,
                text,
                place,
                criterion,
            },
        }
    }
}
