//! How large the prompts of a run are, before any of them is sent.

use crate::client::{Client, Counted, JobError};
use crate::config::{FeedbackMode, GradingConfig, JobConfig};
use crate::error::GradingError;
use crate::finding::{Finding, FindingKind};
use crate::graded::{CriterionResult, Job};
use crate::limits;
use crate::request::request;
use crate::rubric::{Criterion, Rubric};
use crate::submission::Submission;
use futures_util::{StreamExt, TryStreamExt};
use std::time::Instant;
use tandem_api::ChatRequest;

/// The size of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSize {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Most tokens of its answer.
    pub answer: u64,
    /// Most tokens of both together; nothing if the server does not say.
    pub context: Option<u64>,
    /// True if the tokens are guessed from bytes, because the server does not count.
    pub estimated: bool,
}

impl PromptSize {
    /// Tokens of prompt and answer together.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.prompt + self.answer
    }

    /// By how many tokens it is too large; 0 if it fits or that is not known.
    #[must_use]
    pub fn excess(&self) -> u64 {
        self.context
            .map_or(0, |context| self.needed().saturating_sub(context))
    }

    /// Why it is too large, for a person.
    pub(crate) fn problem(&self, job: Job) -> Option<Finding> {
        let (excess, context) = (self.excess(), self.context?);
        (excess > 0).then(|| {
            let text = format!(
                "too large: its {} prompt has {} tokens and the answer may take {}, together {excess} more than \
                 the context of {context}; start the nodes with --context {}, or grade it by hand",
                job.as_str(),
                self.prompt,
                self.answer,
                self.needed()
            );
            Finding::new(FindingKind::TooLong, text)
        })
    }
}

/// What will become of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forecast {
    /// It cannot be read, or not within the limits; why.
    Problem(String),
    /// Nothing was written; how.
    NotAttempted(&'static str),
    /// Models are asked.
    Asked {
        /// The prompt of the code analysis.
        analysis: PromptSize,
        /// The prompt of the feedback; where it is written from the analysis, with the longest one.
        feedback: PromptSize,
    },
}

/// Counts the prompts of all submissions, with the server's tokenizers if it has the route for that.
///
/// # Errors
/// A configuration that cannot be used, or a server that does not answer.
pub async fn forecast(
    config: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
) -> Result<Vec<Forecast>, GradingError> {
    config.check()?;
    let client = Client::new(config)?;
    let one = |submission| of_submission(config, rubric, &client, submission);
    let all = futures_util::stream::iter(submissions).map(one);
    all.buffered(limits::MAX_COUNTING).try_collect().await
}

async fn of_submission(
    config: &GradingConfig,
    rubric: &Rubric,
    client: &Client,
    submission: &Submission,
) -> Result<Forecast, GradingError> {
    if let Some(problem) = &submission.problem {
        return Ok(Forecast::Problem(problem.text.clone()));
    }
    if let Some(how) = submission.untouched(rubric) {
        return Ok(Forecast::NotAttempted(how.as_str()));
    }
    let size = |job, settings| of_prompt(config, rubric, client, submission, (job, settings));
    let (analysis, feedback) = tokio::join!(
        size(Job::CodeAnalysis, &config.code_analysis),
        size(Job::Feedback, &config.feedback)
    );
    match (analysis, feedback) {
        (Ok(analysis), Ok(feedback)) => Ok(Forecast::Asked { analysis, feedback }),
        // The request itself would be refused, too.
        (Err(e @ JobError::Refused { .. }), _) | (_, Err(e @ JobError::Refused { .. })) => {
            Ok(Forecast::Problem(e.to_string()))
        }
        (Err(e), _) | (_, Err(e)) => Err(GradingError::Server(e.to_string())),
    }
}

/// Counts, and waits for a server that is away as long as a run would.
async fn counted(
    config: &GradingConfig,
    client: &Client,
    request: &ChatRequest,
) -> Result<Option<Counted>, JobError> {
    let (since, mut delay) = (Instant::now(), config.retry_delay);
    loop {
        match client.count(request).await {
            Err(error) if error.is_away() && since.elapsed() < config.node_wait => {}
            counted => return counted,
        }
        tokio::time::sleep(delay).await;
        delay = delay.saturating_mul(2).min(limits::MAX_RETRY_DELAY);
    }
}

/// The longest that an analysis may hand to the feedback: of the rubric's own words, so that it has about as many tokens as
/// a model's.
fn longest_assessment(config: &GradingConfig, rubric: &Rubric) -> Vec<CriterionResult> {
    let count = usize::try_from(config.rationale_chars).unwrap_or(usize::MAX);
    let one = |criterion: &Criterion| {
        let words = format!("{} {} ", criterion.title, criterion.description);
        let letters = words.chars().cycle().take(count);
        CriterionResult {
            id: criterion.id.clone(),
            title: criterion.title.clone(),
            evidence: Vec::new(),
            rationale: letters.collect(),
            level: None,
            points: criterion.max_points,
            max_points: criterion.max_points,
        }
    };
    rubric.criteria.iter().map(one).collect()
}

async fn of_prompt(
    config: &GradingConfig,
    rubric: &Rubric,
    client: &Client,
    submission: &Submission,
    (job, settings): (Job, &JobConfig),
) -> Result<PromptSize, JobError> {
    let is_after = job == Job::Feedback && config.feedback_mode == FeedbackMode::After;
    let longest = is_after.then(|| longest_assessment(config, rubric));
    let request = request(
        config,
        (rubric, rubric),
        (job, longest.as_deref()),
        submission,
    );
    let counted = counted(config, client, &request).await?;
    let bytes: usize = request.messages.iter().map(|m| m.content.len()).sum();
    let whole = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let (prompt, context) = match counted {
        Some(Counted { count, context }) => (count, context),
        None => (whole(bytes.div_ceil(limits::BYTES_PER_TOKEN)), None),
    };
    Ok(PromptSize {
        prompt,
        answer: u64::from(settings.max_tokens),
        context,
        estimated: counted.is_none(),
    })
}
