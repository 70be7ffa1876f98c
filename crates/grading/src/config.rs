//! What a run needs to know besides rubric and submissions.

use crate::error::GradingError;
use crate::graded::Job;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tandem_api::RouteChoice;

/// When the feedback is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedbackMode {
    /// After the analysis, from its points; while it is written, the analysis of other submissions goes on.
    #[default]
    After,
    /// At the same time; it knows of no points, and is told to judge nothing.
    Parallel,
}

/// Configuration of a run.
#[derive(Debug, Clone)]
pub struct GradingConfig {
    /// Where the API is, with its version: `http://127.0.0.1:8080/v1`.
    pub base_url: String,
    /// The job that assesses each criterion.
    pub code_analysis: JobConfig,
    /// The job that writes to the student.
    pub feedback: JobConfig,
    /// When the feedback is written.
    pub feedback_mode: FeedbackMode,
    /// Where the job stands in a prompt.
    pub layout: Layout,
    /// Requests of each job at once.
    pub parallel: usize,
    /// Where the prefill may run; only sent when not `auto`, so that any server can be used.
    pub route: RouteChoice,
    /// Ask for the generated token ids.
    pub return_tokens: bool,
    /// Runs with different salts share no KV; empty: none is sent.
    pub cache_salt: String,
    /// Whether the server may keep the KV of answers for a next turn; only sent when not, which a tandem
    /// server understands.
    pub keep: bool,
    /// Whether answers have the same bits whatever else the server does, which takes longer; only sent when so, which a tandem
    /// server understands.
    pub reproducible: bool,
    /// What serves the models, such as digests of their weights: results of something else are not kept by a later run.
    pub served_by: String,
    /// Most characters of one rationale.
    pub rationale_chars: u32,
    /// Longest silence of the server.
    pub idle_limit: Duration,
    /// Longest time to connect.
    pub connect_limit: Duration,
    /// Attempts at one job, the first included.
    pub attempts: u32,
    /// Pause before the second attempt, doubled before each further one.
    pub retry_delay: Duration,
    /// How long a server that is away, or has no node, is waited for.
    pub node_wait: Duration,
}

/// Where the job stands in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// First: each job has a model of its own, which may have been trained on this.
    #[default]
    JobFirst,
    /// Last: one model does both jobs.
    JobLast,
}

impl Layout {
    /// For jobs of these models.
    pub fn of(one: &JobConfig, other: &JobConfig) -> Self {
        match one.model == other.model {
            true => Self::JobLast,
            false => Self::JobFirst,
        }
    }
}

/// Configuration of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobConfig {
    /// Which model to ask.
    pub model: String,
    /// Most tokens of the answer. An answer cut there is not used.
    pub max_tokens: u32,
    /// 0 (the default) always takes the likeliest token.
    #[serde(default)]
    pub temperature: f64,
    /// Seed of the sampler.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl GradingConfig {
    /// A configuration with one submission at a time and the default limits.
    pub fn new(base_url: impl Into<String>, code_analysis: JobConfig, feedback: JobConfig) -> Self {
        Self {
            base_url: base_url.into(),
            layout: Layout::of(&code_analysis, &feedback),
            code_analysis,
            feedback,
            feedback_mode: FeedbackMode::default(),
            parallel: 1,
            route: RouteChoice::Auto,
            return_tokens: false,
            cache_salt: String::new(),
            keep: true,
            reproducible: false,
            served_by: String::new(),
            rationale_chars: limits::DEFAULT_RATIONALE_CHARS,
            idle_limit: limits::DEFAULT_IDLE_LIMIT,
            connect_limit: limits::DEFAULT_CONNECT_LIMIT,
            attempts: limits::DEFAULT_ATTEMPTS,
            retry_delay: limits::DEFAULT_RETRY_DELAY,
            node_wait: limits::DEFAULT_NODE_WAIT,
        }
    }

    /// The configuration of a job.
    pub(crate) fn job(&self, job: Job) -> &JobConfig {
        match job {
            Job::CodeAnalysis => &self.code_analysis,
            Job::Feedback => &self.feedback,
        }
    }

    pub(crate) fn check(&self) -> Result<(), GradingError> {
        let fault = |field, problem: String| Err(GradingError::Config { field, problem });
        if !self.base_url.starts_with("http://") {
            return fault(
                "base_url",
                format!(
                    "'{}' must start with http:// and end with the version, as /v1",
                    self.base_url
                ),
            );
        }
        if self.parallel == 0 || self.parallel > limits::MAX_PARALLEL {
            return fault("parallel", format!("must be 1 to {}", limits::MAX_PARALLEL));
        }
        if self.attempts == 0 {
            return fault("attempts", "must be at least 1".to_owned());
        }
        if self.rationale_chars == 0 || self.rationale_chars > limits::MAX_RATIONALE_CHARS {
            return fault(
                "rationale_chars",
                format!("must be 1 to {}", limits::MAX_RATIONALE_CHARS),
            );
        }
        for (field, job) in [
            ("code_analysis", &self.code_analysis),
            ("feedback", &self.feedback),
        ] {
            if job.model.is_empty() || job.max_tokens == 0 {
                return fault(
                    field,
                    "needs a model and max_tokens of at least 1".to_owned(),
                );
            }
        }
        Ok(())
    }
}
