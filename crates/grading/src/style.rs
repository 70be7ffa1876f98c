//! How the feedback is to be written.

use crate::limits;
use serde::{Deserialize, Serialize};

/// How the feedback is to be written; a teacher chooses it in the rubric, or for a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Style {
    /// Language, if not the model's own choice.
    pub language: Option<String>,
    /// Tone.
    pub tone: Option<String>,
    /// How much of it.
    pub length: Option<Length>,
    /// Advice also where all points were given.
    pub advice_at_full_marks: bool,
}

impl Style {
    /// This one where it says something, else the other.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            language: self.language.clone().or_else(|| other.language.clone()),
            tone: self.tone.clone().or_else(|| other.tone.clone()),
            length: self.length.or(other.length),
            advice_at_full_marks: self.advice_at_full_marks || other.advice_at_full_marks,
        }
    }
}

/// How long a feedback is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// A few lines.
    Short,
    /// Half a page.
    Medium,
    /// A page.
    Long,
}

impl Length {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Short, Self::Medium, Self::Long];

    /// As a rubric has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Medium => "medium",
            Self::Long => "long",
        }
    }

    /// Most words that are asked for.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::Short => limits::SHORT_WORDS,
            Self::Medium => limits::MEDIUM_WORDS,
            Self::Long => limits::LONG_WORDS,
        }
    }
}

/// Words in a text: what has a letter or a digit.
pub(crate) fn word_count(text: &str) -> usize {
    let words = text.split_whitespace();
    words
        .filter(|w| w.chars().any(char::is_alphanumeric))
        .count()
}
