//! What a run says about each submission.

use crate::finding::Finding;
use crate::points::Points;
use serde::{Deserialize, Serialize};
use tandem_api::{FinishReason, TandemInfo, Usage};

/// How far a submission got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A score that passed all checks; a suggestion until a person approves it.
    Graded,
    /// There is something a person must look at first; a score may be there.
    NeedsReview,
    /// Blank, or equal to the template; no model was asked.
    NotAttempted,
    /// No score could be made.
    Failed,
}

impl Status {
    /// As it stands in JSON and CSV.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graded => "graded",
            Self::NeedsReview => "needs_review",
            Self::NotAttempted => "not_attempted",
            Self::Failed => "failed",
        }
    }
}

/// The two jobs of each submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Assesses each criterion under a JSON schema.
    CodeAnalysis,
    /// Writes to the student; gives no scores.
    Feedback,
}

impl Job {
    /// As it stands in JSON and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CodeAnalysis => "code_analysis",
            Self::Feedback => "feedback",
        }
    }
}

/// The record of one submission.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Graded {
    /// Which submission.
    pub name: String,
    /// How far it got.
    pub status: Status,
    /// Why it is not simply graded.
    pub reasons: Vec<Finding>,
    /// Sum of the criteria's points, made in code; null unless all criteria were assessed.
    pub score: Option<f64>,
    /// Points for full marks.
    pub max_score: f64,
    /// The criteria, in the rubric's order; empty without a score.
    pub criteria: Vec<CriterionResult>,
    /// Markdown for the student.
    pub feedback: Option<String>,
    /// What was found in the submission itself, such as hidden characters.
    pub flags: Vec<Finding>,
    /// What is good to know and asks for nothing, such as files that were not read.
    pub notes: Vec<String>,
    /// The requests that were made; empty if no model was asked.
    pub jobs: Vec<JobRecord>,
}

/// One criterion's assessment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriterionResult {
    /// The criterion's id.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// Where in the submission it can be seen.
    pub evidence: Vec<Evidence>,
    /// Why these points.
    pub rationale: String,
    /// The level that gives these points, if the criterion has levels.
    pub level: Option<String>,
    /// The points.
    pub points: Points,
    /// Points for full marks.
    pub max_points: Points,
}

/// Lines of a submission. The quote is taken from the submission by code, so it cannot be invented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The file.
    pub file: String,
    /// First line, from 1.
    pub line_start: usize,
    /// Last line, included.
    pub line_end: usize,
    /// These lines; long quotes are cut.
    pub quote: String,
}

/// One request to a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobRecord {
    /// Which job.
    pub job: Job,
    /// Which model was asked.
    pub model: String,
    /// Digest of what was asked, and of whom.
    #[serde(default)]
    pub question: String,
    /// When it was sent, in milliseconds since 1970.
    #[serde(default)]
    pub started_ms: u64,
    /// Milliseconds from sending to the first part of the answer, of the last attempt.
    #[serde(default)]
    pub first_ms: Option<f64>,
    /// Why its answer ended.
    pub finish_reason: Option<FinishReason>,
    /// Milliseconds from sending to the end of the answer, all attempts together.
    pub wall_ms: f64,
    /// Attempts made.
    pub attempts: u32,
    /// Token counts, if the server reports them.
    pub usage: Option<Usage>,
    /// How a tandem server served it.
    pub tandem: Option<TandemInfo>,
    /// Why there is no usable answer.
    pub error: Option<Finding>,
    /// The answer as it came, for the record.
    pub answer: Option<String>,
    /// The submission was sent without its comments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_comments: bool,
}
