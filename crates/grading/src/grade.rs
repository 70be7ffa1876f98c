//! A run: two jobs per submission, both at once, several submissions at once.
//!
//! Nothing is spawned: dropping the future of [`grade`] drops every request, which a server sees as
//! a client that went away.

use crate::client::{Answer, Client, JobError};
use crate::config::{GradingConfig, JobConfig};
use crate::error::GradingError;
use crate::feedback::check_feedback;
use crate::graded::{Graded, Job, JobRecord, Status};
use crate::hidden::mark_hidden;
use crate::limits;
use crate::request::request;
use crate::rubric::Rubric;
use crate::schema::worst_case_bytes;
use crate::size::PromptSize;
use crate::submission::Submission;
use crate::verdict::read_verdict;
use futures_util::StreamExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tandem_openai::{ChatRequest, FinishReason};

/// What a run reports while it goes on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Something to know beforehand, such as a limit that may be too low.
    Warning(String),
    /// A submission's jobs were sent.
    Started {
        /// Which submission.
        name: &'a str,
    },
    /// One job ended, well or not.
    JobFinished {
        /// Which submission.
        name: &'a str,
        /// The job's record.
        record: &'a JobRecord,
    },
    /// A submission is done.
    Finished {
        /// Its record.
        graded: &'a Graded,
        /// Submissions done so far, this one included.
        done: usize,
        /// Submissions in the run.
        total: usize,
    },
}

/// A job's record, and its answer if it is complete.
type Outcome = (JobRecord, Option<Answer>);

struct Run<'a> {
    config: &'a GradingConfig,
    rubric: &'a Rubric,
    client: Client,
    /// A request has waited for the server in vain.
    is_gone: AtomicBool,
    progress: &'a (dyn Fn(Progress<'_>) + Send + Sync),
}

/// Where results go as they are made, and where earlier ones are.
pub trait Store {
    /// The result that a submission, by its place in the run, has already.
    fn earlier(&mut self, index: usize) -> Option<Graded>;

    /// Keeps a new result.
    ///
    /// # Errors
    /// If that fails; the run ends.
    fn keep(&mut self, index: usize, graded: &Graded) -> Result<(), GradingError>;
}

/// Keeps nothing.
impl Store for () {
    fn earlier(&mut self, _: usize) -> Option<Graded> {
        None
    }

    fn keep(&mut self, _: usize, _: &Graded) -> Result<(), GradingError> {
        Ok(())
    }
}

/// Grades submissions; the results stand in the order of the submissions.
///
/// A submission that fails gets a record that says so and stops nothing. Runs on any Tokio runtime
/// with time and network enabled.
///
/// # Errors
/// A configuration that cannot be used, or a result that cannot be kept.
pub async fn grade(
    config: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
    store: &mut (dyn Store + Send),
    progress: &(dyn Fn(Progress<'_>) + Send + Sync),
) -> Result<Vec<Graded>, GradingError> {
    config.check()?;
    let run = Run {
        config,
        rubric,
        client: Client::new(config)?,
        is_gone: AtomicBool::new(false),
        progress,
    };
    run.warn(submissions);
    let run = &run;
    let mut results: Vec<Option<Graded>> =
        (0..submissions.len()).map(|i| store.earlier(i)).collect();
    let mut done = results.iter().flatten().count();
    let left = submissions.iter().enumerate();
    let left: Vec<_> = left.filter(|(i, _)| results[*i].is_none()).collect();
    let tasks = left
        .into_iter()
        .map(|(i, submission)| async move { (i, run.submission(submission).await) });
    let mut tasks =
        futures_util::stream::iter(tasks.collect::<Vec<_>>()).buffer_unordered(config.parallel);
    while let Some((i, graded)) = tasks.next().await {
        store.keep(i, &graded)?;
        done += 1;
        progress(Progress::Finished {
            graded: &graded,
            done,
            total: submissions.len(),
        });
        results[i] = Some(graded);
    }
    Ok(results.into_iter().flatten().collect())
}

impl Run<'_> {
    fn warn(&self, submissions: &[Submission]) {
        for warning in &self.rubric.warnings {
            (self.progress)(Progress::Warning(warning.clone()));
        }
        let chars = self.config.rationale_chars;
        let worst = submissions
            .iter()
            .map(|s| worst_case_bytes(self.rubric, s, chars))
            .max()
            .unwrap_or(0);
        let max_tokens = self.config.code_analysis.max_tokens;
        if worst > usize::try_from(max_tokens).unwrap_or(usize::MAX) {
            (self.progress)(Progress::Warning(format!(
                "code_analysis.max_tokens is {max_tokens}; the longest answer has {worst} bytes and would be cut if \
                 every token were one byte; raise it if answers are cut"
            )));
        }
    }

    async fn submission(&self, submission: &Submission) -> Graded {
        if let Some(problem) = &submission.problem {
            return self.without_models(submission, Status::Failed, problem.clone());
        }
        if let Some(how) = submission.untouched(self.rubric) {
            return self.without_models(submission, Status::NotAttempted, how.as_str().to_owned());
        }
        if let Some(problem) = self.too_large(submission).await {
            return self.without_models(submission, Status::Failed, problem);
        }
        (self.progress)(Progress::Started {
            name: &submission.name,
        });
        let (analysis, feedback) = tokio::join!(
            self.job(Job::CodeAnalysis, submission),
            self.job(Job::Feedback, submission)
        );
        self.combined(submission, analysis, feedback)
    }

    /// Why the code analysis cannot be asked for; no score could be made. Nothing if that is not known.
    async fn too_large(&self, submission: &Submission) -> Option<String> {
        let job = Job::CodeAnalysis;
        let request = request(self.config, self.rubric, job, submission);
        let counted = self.client.count(&request).await.ok()??;
        let size = PromptSize {
            prompt: counted.count,
            answer: u64::from(self.config.job(job).max_tokens),
            context: counted.context,
            estimated: false,
        };
        size.problem(job)
    }

    fn without_models(&self, submission: &Submission, status: Status, reason: String) -> Graded {
        Graded {
            name: submission.name.clone(),
            status,
            reasons: vec![reason],
            score: None,
            max_score: self.rubric.max_points.as_f64(),
            criteria: Vec::new(),
            feedback: None,
            flags: submission.flags.clone(),
            notes: submission.notes.clone(),
            jobs: Vec::new(),
        }
    }

    async fn job(&self, job: Job, submission: &Submission) -> Outcome {
        let settings = self.config.job(job);
        let request = request(self.config, self.rubric, job, submission);
        let started = Instant::now();
        let (attempts, answer) = self.ask(&request).await;
        let wall_ms = started.elapsed().as_secs_f64() * 1000.0;
        let outcome = outcome(job, settings, attempts, wall_ms, answer);
        (self.progress)(Progress::JobFinished {
            name: &submission.name,
            record: &outcome.0,
        });
        outcome
    }

    /// The number of attempts made, and how the last one ended. A server that is away is asked for as long as it is
    /// waited for, one that fails a few times. Where one request has waited in vain, others do not wait before one succeeds.
    async fn ask(&self, request: &ChatRequest) -> (u32, Result<Answer, JobError>) {
        let first = self.config.retry_delay;
        let (mut delay, mut attempts, mut failures) = (first, 0, 0);
        let mut away: Option<Instant> = None;
        loop {
            attempts += 1;
            let error = match self.client.ask(request).await {
                Err(e) if e.is_retryable() => e,
                result => {
                    self.is_gone.store(false, Ordering::Relaxed);
                    return (attempts, result);
                }
            };
            let since = *away.get_or_insert_with(Instant::now);
            let waits = error.is_away()
                && since.elapsed() < self.config.node_wait
                && !self.is_gone.load(Ordering::Relaxed);
            if !waits {
                failures += 1;
                if failures >= self.config.attempts {
                    self.is_gone.fetch_or(error.is_away(), Ordering::Relaxed);
                    return (attempts, Err(error));
                }
            }
            tokio::time::sleep(delay).await;
            delay = delay.saturating_mul(2).min(limits::MAX_RETRY_DELAY);
        }
    }

    fn combined(&self, submission: &Submission, analysis: Outcome, feedback: Outcome) -> Graded {
        let (mut analysis_record, analysis_answer) = analysis;
        let (feedback_record, feedback_answer) = feedback;
        let mut graded = self.without_models(submission, Status::Failed, String::new());
        graded.reasons.clear();
        if let Some(answer) = analysis_answer {
            match read_verdict(&answer.text, self.rubric, submission) {
                Ok(verdict) => {
                    graded.score = Some(verdict.total.as_f64());
                    graded.criteria = verdict.criteria;
                    graded.reasons.extend(verdict.doubts);
                }
                Err(e) => analysis_record.error = Some(e.to_string()),
            }
        }
        if let Some(error) = &analysis_record.error {
            graded.reasons.push(format!("code_analysis: {error}"));
        }
        match (feedback_answer, &feedback_record.error) {
            (Some(answer), _) => {
                let (text, hidden) = mark_hidden(answer.text.trim());
                graded.reasons.extend(
                    check_feedback(&text)
                        .into_iter()
                        .map(|f| format!("feedback: contains {f}")),
                );
                if hidden > 0 {
                    graded
                        .reasons
                        .push(format!("feedback: contains {hidden} hidden character(s)"));
                }
                if text.is_empty() {
                    graded.reasons.push("feedback: it is empty".to_owned());
                } else {
                    graded.feedback = Some(text);
                }
            }
            (None, error) => {
                graded.reasons.push(format!(
                    "feedback: {}",
                    error.as_deref().unwrap_or("no answer")
                ));
            }
        }
        graded.reasons.extend(submission.flags.iter().cloned());
        graded.status = match (graded.score, graded.reasons.is_empty()) {
            (None, _) => Status::Failed,
            (Some(_), true) => Status::Graded,
            (Some(_), false) => Status::NeedsReview,
        };
        graded.jobs = vec![analysis_record, feedback_record];
        graded
    }
}

/// An answer that was cut at its limit is an error, never a result.
fn outcome(
    job: Job,
    settings: &JobConfig,
    attempts: u32,
    wall_ms: f64,
    answer: Result<Answer, JobError>,
) -> Outcome {
    let (answer, mut error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(e) => (None, Some(e.to_string())),
    };
    let finish_reason = answer.as_ref().and_then(|a| a.finish);
    if finish_reason == Some(FinishReason::Length) {
        error = Some(format!(
            "the answer was cut at {} tokens; raise {}.max_tokens",
            settings.max_tokens,
            job.as_str()
        ));
    }
    if matches!(
        finish_reason,
        Some(FinishReason::ContentFilter | FinishReason::ToolCalls | FinishReason::Other)
    ) {
        error = Some("the server ended the answer before its end".to_owned());
    }
    let record = JobRecord {
        job,
        model: settings.model.clone(),
        finish_reason,
        wall_ms,
        attempts,
        usage: answer.as_ref().and_then(|a| a.usage),
        tandem: answer.as_ref().and_then(|a| a.tandem.clone()),
        answer: answer.as_ref().map(|a| a.text.clone()),
        error,
    };
    let complete = answer.filter(|_| record.error.is_none());
    (record, complete)
}
