//! What is sent to a server for one job.

use crate::config::{FeedbackMode, GradingConfig, JobConfig};
use crate::finding::joined;
use crate::graded::{CriterionResult, Job};
use crate::prompt::build_prompt;
use crate::rubric::Rubric;
use crate::schema::verdict_schema;
use crate::submission::Submission;
use tandem_api::{ChatRequest, Format, Message, SamplingParams, StreamOptions, TandemOptions};

/// The request of a job for a submission. The analysis is asked for the criteria of `asked`, which may be fewer than the
/// rubric's.
pub(crate) fn request(
    config: &GradingConfig,
    (rubric, asked): (&Rubric, &Rubric),
    (job, assessment): (Job, Option<&[CriterionResult]>),
    submission: &Submission,
) -> ChatRequest {
    let settings = config.job(job);
    let response_format = match job {
        Job::Feedback => Format::Text,
        Job::CodeAnalysis => {
            let schema = verdict_schema(asked, submission, config.rationale_chars);
            Format::schema("verdict", schema)
        }
    };
    let mut prompt = build_prompt((config.layout, job), rubric, submission, assessment);
    if job == Job::CodeAnalysis && asked.criteria.len() < rubric.criteria.len() {
        let ids: Vec<&str> = asked.criteria.iter().map(|c| c.id.as_str()).collect();
        prompt.submission.push_str(" Of the criteria assess only: ");
        prompt.submission.push_str(&ids.join(", "));
        prompt.submission.push('.');
    }
    chat(config, settings, prompt.messages(), response_format)
}

/// A request of a job's model with these messages.
pub(crate) fn chat(
    config: &GradingConfig,
    settings: &JobConfig,
    messages: Vec<Message>,
    response_format: Format,
) -> ChatRequest {
    ChatRequest {
        model: settings.model.clone(),
        messages,
        sampling: SamplingParams {
            max_tokens: Some(settings.max_tokens),
            temperature: Some(settings.temperature),
            seed: settings.seed,
            ..SamplingParams::default()
        },
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
        },
        response_format,
        tandem: TandemOptions {
            route: config.route,
            return_tokens: config.return_tokens,
            cache_salt: config.cache_salt.clone(),
            keep: config.keep,
            reproducible: config.reproducible,
            lenient: None,
        },
        ignored: Vec::new(),
    }
}

/// A digest of what a request asks, and of whom: what serves another model is no matter, nor is how long the answer may be.
pub(crate) fn question(config: &GradingConfig, request: &ChatRequest) -> String {
    let mut digest = blake3::Hasher::new();
    let own = format!("{}=", request.model);
    let served_by = config.served_by.split("; ");
    for weights in served_by.filter(|one| one.starts_with(&own)) {
        digest.update(weights.as_bytes());
    }
    let mut asked = request.clone();
    asked.sampling.max_tokens = None;
    digest.update(&serde_json::to_vec(&asked).unwrap_or_default());
    digest.finalize().to_hex().to_string()
}

/// A digest of all that a result depends on: what is sent, and what was found in the submission.
pub fn inputs(config: &GradingConfig, rubric: &Rubric, submission: &Submission) -> String {
    let mut digest = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        digest.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        digest.update(part);
    };
    for job in [Job::CodeAnalysis, Job::Feedback] {
        let request = request(config, (rubric, rubric), (job, None), submission);
        add(&serde_json::to_vec(&request).unwrap_or_default());
    }
    add(&serde_json::to_vec(&rubric.style).unwrap_or_default());
    add(&config.rationale_chars.to_le_bytes());
    // Evidence is quoted from the files, also where a prompt does not show it.
    for file in &submission.files {
        add(file.name.as_bytes());
        for line in &file.lines {
            add(line.as_bytes());
        }
    }
    add(match config.feedback_mode {
        FeedbackMode::After => b"after",
        FeedbackMode::Parallel => b"parallel",
    });
    add(config.served_by.as_bytes());
    add(rubric.id.as_bytes());
    add(submission.name.as_bytes());
    add(joined(submission.problem.as_slice()).as_bytes());
    for finding in &submission.flags {
        add(finding.text.as_bytes());
    }
    for note in &submission.notes {
        add(note.as_bytes());
    }
    let untouched = submission.untouched(rubric).map(|how| how.as_str());
    add(untouched.unwrap_or_default().as_bytes());
    digest.finalize().to_hex().to_string()
}
