//! A run: two jobs per submission, several submissions at once.
//!
//! Every request is kept when it ends, by what it asks: the same is not asked twice, however a run ended.
//!
//! Nothing is spawned: dropping the future of [`grade`] drops every request, which a server sees as
//! a client that went away.

use crate::client::{Answer, Client, JobError};
use crate::config::{FeedbackMode, GradingConfig, JobConfig};
use crate::disclosure;
use crate::error::GradingError;
use crate::feedback::{self, ItemKind, check_feedback, items, without_advice};
use crate::finding::{Finding, FindingKind};
use crate::graded::{CriterionResult, Graded, Job, JobRecord, Status};
use crate::hidden::mark_hidden;
use crate::limits;
use crate::request::{question, request};
use crate::rubric::Rubric;
use crate::schema::worst_case_bytes;
use crate::size::PromptSize;
use crate::style::word_count;
use crate::submission::Submission;
use crate::verdict::{Verdict, VerdictError, read_verdict};
use futures_util::StreamExt;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tandem_api::{ChatRequest, FinishReason};
use tokio::sync::Semaphore;

/// What a run reports while it goes on. Submissions are named by their place in the run.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Something to know beforehand, such as a limit that may be too low.
    Warning(String),
    /// A request is sent; what came of an earlier attempt counts no more.
    Asked {
        /// Which submission.
        index: usize,
        /// Which job.
        job: Job,
    },
    /// A part of an answer.
    Text {
        /// Which submission.
        index: usize,
        /// Which job.
        job: Job,
        /// What came since the part before.
        text: &'a str,
    },
    /// One job ended, well or not.
    JobFinished {
        /// Which submission.
        index: usize,
        /// What it is called.
        name: &'a str,
        /// The job's record.
        record: &'a JobRecord,
    },
    /// A submission is done.
    Finished {
        /// Which submission.
        index: usize,
        /// Its record.
        graded: &'a Graded,
        /// Submissions done so far, this one included.
        done: usize,
        /// Submissions in the run.
        total: usize,
    },
}

/// A job's record, and its answer if it is complete.
type Outcome = (JobRecord, Option<String>);

struct Run<'a> {
    config: &'a GradingConfig,
    rubric: &'a Rubric,
    client: Client,
    store: &'a dyn Store,
    /// Requests of each job at once.
    analyses: Semaphore,
    feedbacks: Semaphore,
    /// A request has waited for the server in vain.
    is_gone: AtomicBool,
    progress: &'a (dyn Fn(Progress<'_>) + Send + Sync),
}

/// Where results go as they are made.
pub trait Store: Send + Sync {
    /// What holds of an earlier result: these criteria are not asked for again.
    fn held(&self, _index: usize) -> Held {
        Held::default()
    }

    /// The answer that the same question got earlier: a complete one, or one that was cut at its limit.
    fn answered(&self, _index: usize, _job: Job, _question: &str) -> Option<JobRecord> {
        None
    }

    /// Keeps the record of a request.
    ///
    /// # Errors
    /// If that fails; the run ends.
    fn keep_answer(&self, _index: usize, _record: &JobRecord) -> Result<(), GradingError> {
        Ok(())
    }

    /// Keeps a new result.
    ///
    /// # Errors
    /// If that fails; the run ends.
    fn keep(&self, _index: usize, _graded: &Graded) -> Result<(), GradingError> {
        Ok(())
    }

    /// Whether another request may be begun; those that were begun come to their end.
    fn goes_on(&self) -> bool {
        true
    }

    /// A request has waited for its server in vain. Submissions that are left fail one by one, unless this ends the run.
    ///
    /// # Errors
    /// Whatever is to end the run.
    fn is_away(&self, _job: Job, _reason: &str) -> Result<(), GradingError> {
        Ok(())
    }
}

/// Keeps nothing.
impl Store for () {}

/// Keeps nothing, and takes no server that is away for an answer.
struct Present;

impl Store for Present {
    fn is_away(&self, _job: Job, reason: &str) -> Result<(), GradingError> {
        Err(GradingError::Server(reason.to_owned()))
    }
}

/// What holds of an earlier result.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// The criteria, by the rubric of the run.
    pub criteria: Vec<CriterionResult>,
    /// What was found about them.
    pub findings: Vec<Finding>,
}

/// A submission of a run, and what is asked about it.
struct Task<'a> {
    index: usize,
    submission: &'a Submission,
    /// The rubric, with those criteria alone that are asked for.
    asked: Cow<'a, Rubric>,
    held: Held,
}

impl Task<'_> {
    /// What an answer says, with what holds already.
    fn verdict(&self, answer: &str, rubric: &Rubric) -> Result<Verdict, VerdictError> {
        let mut verdict = read_verdict(answer, &self.asked, self.submission)?;
        if self.held.criteria.is_empty() {
            return Ok(verdict);
        }
        verdict.criteria.extend(self.held.criteria.iter().cloned());
        let place = |id: &str| rubric.criteria.iter().position(|c| c.id == id);
        verdict.criteria.sort_by_key(|result| place(&result.id));
        verdict.total = verdict.criteria.iter().map(|c| c.points).sum();
        verdict.doubts.extend(self.held.findings.iter().cloned());
        Ok(verdict)
    }
}

/// Grades submissions; the results stand in the order of the submissions. A run that is told to stop returns those that
/// there are.
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
    store: &dyn Store,
    progress: &(dyn Fn(Progress<'_>) + Send + Sync),
) -> Result<Vec<Graded>, GradingError> {
    config.check()?;
    let run = Run::new(config, rubric, store, progress)?;
    run.warn(submissions);
    let run = &run;
    let mut results: Vec<Option<Graded>> = submissions.iter().map(|_| None).collect();
    let mut done = 0;
    let tasks = submissions.iter().enumerate();
    let tasks =
        tasks.map(|(i, submission)| async move { (i, run.submission(i, submission).await) });
    // While the feedback on some is written, the analysis of as many others goes on; none waits for long before its feedback.
    let at_once = match config.feedback_mode {
        FeedbackMode::Parallel => config.parallel,
        FeedbackMode::After => config.parallel.saturating_mul(2),
    };
    let mut tasks = futures_util::stream::iter(tasks.collect::<Vec<_>>()).buffer_unordered(at_once);
    while let Some((i, graded)) = tasks.next().await {
        let Some(graded) = graded? else { continue };
        store.keep(i, &graded)?;
        done += 1;
        progress(Progress::Finished {
            index: i,
            graded: &graded,
            done,
            total: submissions.len(),
        });
        results[i] = Some(graded);
    }
    Ok(results.into_iter().flatten().collect())
}

impl<'a> Run<'a> {
    fn new(
        config: &'a GradingConfig,
        rubric: &'a Rubric,
        store: &'a dyn Store,
        progress: &'a (dyn Fn(Progress<'_>) + Send + Sync),
    ) -> Result<Self, GradingError> {
        Ok(Self {
            config,
            rubric,
            client: Client::new(config)?,
            store,
            analyses: Semaphore::new(config.parallel),
            feedbacks: Semaphore::new(config.parallel),
            is_gone: AtomicBool::new(false),
            progress,
        })
    }
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

    /// The result of a submission; none if the run was told to stop before there was one.
    async fn submission(
        &self,
        index: usize,
        submission: &Submission,
    ) -> Result<Option<Graded>, GradingError> {
        let without = |status, reason| Ok(Some(self.without_models(submission, status, reason)));
        if let Some(problem) = &submission.problem {
            return without(Status::Failed, problem.clone());
        }
        if let Some(how) = submission.untouched(self.rubric) {
            let how = Finding::new(FindingKind::Untouched, how.as_str());
            return without(Status::NotAttempted, how);
        }
        if !self.store.goes_on() {
            return Ok(None);
        }
        let task = self.task(index, submission);
        let is_counted = match self.size(&task).await {
            Some(Some(problem)) => return without(Status::Failed, problem),
            size => size.is_some(),
        };
        let combined = |analysis, feedback| {
            let mut graded = self.combined(&task, analysis, feedback);
            if !is_counted {
                graded.notes.push(UNCOUNTED.to_owned());
            }
            Ok(Some(graded))
        };
        let (analysis, feedback) = match self.config.feedback_mode {
            FeedbackMode::Parallel => {
                let (analysis, feedback) = tokio::join!(
                    self.job(Job::CodeAnalysis, &task, None),
                    self.job(Job::Feedback, &task, None)
                );
                (analysis?, feedback?)
            }
            FeedbackMode::After => {
                let Some(analysis) = self.job(Job::CodeAnalysis, &task, None).await? else {
                    return Ok(None);
                };
                let verdict = analysis.1.as_deref();
                let verdict = verdict.and_then(|a| task.verdict(a, self.rubric).ok());
                let Some(verdict) = verdict else {
                    return combined(analysis, None);
                };
                let assessment = Some(verdict.criteria.as_slice());
                let feedback = self.job(Job::Feedback, &task, assessment).await?;
                (Some(analysis), feedback)
            }
        };
        let (Some(analysis), Some(feedback)) = (analysis, feedback) else {
            return Ok(None);
        };
        combined(analysis, Some(feedback))
    }

    /// Why the code analysis cannot be asked for, if it is too large; no score could be made. Nothing at all if the server
    /// counts no tokens.
    async fn size(&self, task: &Task<'_>) -> Option<Option<Finding>> {
        let job = Job::CodeAnalysis;
        let request = self.request(task, (job, None));
        let counted = self.client.count(&request).await.ok()??;
        let size = PromptSize {
            prompt: counted.count,
            answer: u64::from(self.config.job(job).max_tokens),
            context: counted.context,
            estimated: false,
        };
        Some(size.problem(job))
    }

    fn task<'a>(&'a self, index: usize, submission: &'a Submission) -> Task<'a> {
        let held = self.store.held(index);
        let is_held = |id: &str| held.criteria.iter().any(|c| c.id == id);
        let mut asked = Cow::Borrowed(self.rubric);
        if !held.criteria.is_empty() {
            asked.to_mut().criteria.retain(|c| !is_held(&c.id));
        }
        Task {
            index,
            submission,
            asked,
            held,
        }
    }

    /// Whether an earlier answer to the same question is the one that would come again: one that was complete, and one that was
    /// cut where this run would cut it, too, unless chance makes it shorter.
    fn holds(&self, job: Job, record: &JobRecord) -> bool {
        let settings = self.config.job(job);
        let is_cut = record
            .usage
            .is_some_and(|usage| usage.completion_tokens >= settings.max_tokens);
        record.error.is_none() || (is_cut && settings.temperature <= 0.0)
    }

    fn request(&self, task: &Task<'_>, of: (Job, Option<&[CriterionResult]>)) -> ChatRequest {
        request(self.config, (self.rubric, &task.asked), of, task.submission)
    }

    fn without_models(&self, submission: &Submission, status: Status, reason: Finding) -> Graded {
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

    /// Asks for one job, unless the same was answered earlier; none if the run was told to stop.
    async fn job(
        &self,
        job: Job,
        task: &Task<'_>,
        assessment: Option<&[CriterionResult]>,
    ) -> Result<Option<Outcome>, GradingError> {
        let index = task.index;
        let places = match job {
            Job::CodeAnalysis => &self.analyses,
            Job::Feedback => &self.feedbacks,
        };
        // The semaphore is never closed.
        let _place = places.acquire().await;
        if !self.store.goes_on() {
            return Ok(None);
        }
        let request = self.request(task, (job, assessment));
        let question = question(self.config, &request);
        let earlier = self.store.answered(index, job, &question);
        if let Some(record) = earlier.filter(|record| self.holds(job, record)) {
            let answer = record.answer.clone().filter(|_| record.error.is_none());
            return Ok(Some((record, answer)));
        }
        let started_ms = since_1970();
        let started = Instant::now();
        let (attempts, answer) = self.ask((index, job), &request).await;
        if let Err(error) = answer.as_ref()
            && error.is_away()
        {
            self.store.is_away(job, &error.reason())?;
        }
        let asked = Asked {
            question,
            started_ms,
            attempts,
            wall_ms: started.elapsed().as_secs_f64() * 1000.0,
        };
        let mut outcome = outcome(job, self.config.job(job), asked, answer);
        self.check_answer(job, task, &mut outcome);
        self.store.keep_answer(index, &outcome.0)?;
        (self.progress)(Progress::JobFinished {
            index,
            name: &task.submission.name,
            record: &outcome.0,
        });
        Ok(Some(outcome))
    }

    /// An analysis that gives no score is no answer: it is not kept as one.
    fn check_answer(&self, job: Job, task: &Task<'_>, (record, answer): &mut Outcome) {
        let Some(text) = answer.as_ref().filter(|_| job == Job::CodeAnalysis) else {
            return;
        };
        if let Err(error) = task.verdict(text, self.rubric) {
            record.error = Some(Finding::new(FindingKind::Unusable, error.to_string()));
            *answer = None;
        }
    }

    /// The number of attempts made, and how the last one ended. A server that is away is asked for as long as it is
    /// waited for, one that fails a few times. Where one request has waited in vain, others do not wait before one succeeds.
    async fn ask(
        &self,
        (index, job): (usize, Job),
        request: &ChatRequest,
    ) -> (u32, Result<Answer, JobError>) {
        let text = |text: &str| (self.progress)(Progress::Text { index, job, text });
        let first = self.config.retry_delay;
        let (mut delay, mut attempts, mut failures) = (first, 0, 0);
        let mut away: Option<Instant> = None;
        loop {
            attempts += 1;
            (self.progress)(Progress::Asked { index, job });
            let error = match self.client.ask(request, &text).await {
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

    /// Both answers together; no feedback was asked for where the analysis gave nothing to write about.
    fn combined(&self, task: &Task<'_>, analysis: Outcome, feedback: Option<Outcome>) -> Graded {
        let submission = task.submission;
        let (mut analysis_record, analysis_answer) = analysis;
        let none = Finding::new(FindingKind::Other, "");
        let mut graded = self.without_models(submission, Status::Failed, none);
        graded.reasons.clear();
        if let Some(answer) = analysis_answer {
            match task.verdict(&answer, self.rubric) {
                Ok(verdict) => {
                    graded.score = Some(verdict.total.as_f64());
                    graded.criteria = verdict.criteria;
                    graded.reasons.extend(verdict.doubts);
                }
                Err(e) => {
                    let unusable = Finding::new(FindingKind::Unusable, e.to_string());
                    analysis_record.error = Some(unusable);
                }
            }
        }
        if let Some(error) = &analysis_record.error {
            let text = format!("code_analysis: {error}");
            graded.reasons.push(Finding::new(error.kind, text));
        }
        graded.jobs = vec![analysis_record];
        if let Some((record, answer)) = feedback {
            let is_full =
                graded.score.is_some() && graded.criteria.iter().all(|c| c.points == c.max_points);
            match answer {
                Some(answer) => {
                    put_feedback(&mut graded, &answer, (self.rubric, submission), is_full)
                }
                None => lacks_feedback(&mut graded, &record),
            }
            graded.jobs.push(record);
        }
        graded.reasons.extend(submission.flags.iter().cloned());
        graded.status = match (graded.score, graded.reasons.is_empty()) {
            (None, _) => Status::Failed,
            (Some(_), true) => Status::Graded,
            (Some(_), false) => Status::NeedsReview,
        };
        graded
    }
}

/// Says why there is no feedback.
fn lacks_feedback(graded: &mut Graded, record: &JobRecord) {
    let error = record.error.as_ref();
    let why = error.map_or("no answer", |e| e.text.as_str());
    let text = format!("feedback: {why}");
    graded.reasons.push(Finding::new(FindingKind::NoText, text));
}

/// Takes over the feedback, and says what is wrong with it, and what could not be checked.
fn put_feedback(
    graded: &mut Graded,
    answer: &str,
    (rubric, submission): (&Rubric, &Submission),
    is_full: bool,
) {
    let (mut text, hidden) = mark_hidden(&submission.named(answer.trim()));
    let mut find = |kind, what: String| {
        graded
            .reasons
            .push(Finding::new(kind, format!("feedback: {what}")));
    };
    if text.is_empty() {
        find(FindingKind::NoText, "it is empty".to_owned());
        return;
    }
    let has_advice = items(&text)
        .iter()
        .any(|item| item.kind == ItemKind::NextStep);
    if is_full && has_advice && !rubric.style.advice_at_full_marks {
        match without_advice(&text) {
            Some(strengths) => {
                text = strengths;
                graded
                    .notes
                    .push("feedback: its advice was left out, as all points were given".to_owned());
            }
            None => find(
                FindingKind::TextRule,
                "it is all advice, and all points were given".to_owned(),
            ),
        }
    }
    check_text(&text, (rubric, submission), &mut find);
    if hidden > 0 {
        find(
            FindingKind::TextRule,
            format!("contains {hidden} hidden character(s)"),
        );
    }
    for secret in disclosure::too_short(rubric) {
        let note = format!(
            "not checked: whether the feedback repeats {secret}, which is too short for that"
        );
        graded.notes.push(note);
    }
    if let Some(language) = rubric
        .style
        .language
        .as_deref()
        .filter(|l| !feedback::knows(l))
    {
        let note = format!(
            "not checked: words for grades in the feedback, which are not known of '{language}'"
        );
        graded.notes.push(note);
    }
    graded.feedback = Some(text);
}

/// Marks between which models write their thoughts; in a feedback they say that some of it was not meant for the student.
const THOUGHT_MARKS: &[&str] = &[
    "<think>",
    "</think>",
    "<thinking>",
    "</thinking>",
    "[THINK]",
    "[/THINK]",
    "<|channel|>",
    "<seed:think>",
    "</seed:think>",
];

/// What is wrong with a feedback's text.
fn check_text(
    text: &str,
    (rubric, submission): (&Rubric, &Submission),
    find: &mut dyn FnMut(FindingKind, String),
) {
    for what in check_feedback(text) {
        find(FindingKind::TextRule, format!("contains {what}"));
    }
    let maxima = rubric.criteria.iter().map(|c| c.max_points.as_f64());
    let maxima: Vec<f64> = maxima.chain([rubric.max_points.as_f64()]).collect();
    if feedback::echoes_points(text, &maxima) {
        find(
            FindingKind::TextRule,
            "contains points of a maximum".to_owned(),
        );
    }
    for what in disclosure::disclosed(text, rubric, submission) {
        find(FindingKind::Disclosed, format!("repeats {what}"));
    }
    let unknown = disclosure::unknown_code(text, rubric, submission);
    if !unknown.is_empty() {
        let what = format!("names code that is in no file: {}", unknown.join(", "));
        find(FindingKind::UnknownCode, what);
    }
    if THOUGHT_MARKS.iter().any(|mark| text.contains(mark)) {
        find(
            FindingKind::TextRule,
            "has a mark of the model's thoughts".to_owned(),
        );
    }
    if let Some(length) = rubric.style.length
        && word_count(text) > 2 * length.words()
    {
        let (count, most) = (word_count(text), length.words());
        find(
            FindingKind::TextRule,
            format!("has {count} words; at most {most} were asked for"),
        );
    }
}

/// The note on a work whose prompt was not counted.
const UNCOUNTED: &str =
    "not checked: whether the prompt is too long for the model; its server counts no tokens";

/// A feedback that was written once more, for points that a person gave.
#[derive(Debug)]
pub struct Rewritten {
    /// The record of the request.
    pub record: JobRecord,
    /// The text; nothing if there is no usable answer.
    pub text: Option<String>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// One job for one submission, outside of a run.
async fn once<'a>(
    run: &'a Run<'a>,
    job: Job,
    submission: &'a Submission,
    assessment: Option<&[CriterionResult]>,
) -> Result<Outcome, GradingError> {
    run.config.check()?;
    let task = run.task(0, submission);
    // Nothing tells it to stop.
    let stopped = || GradingError::Server("it was told to stop".to_owned());
    run.job(job, &task, assessment).await?.ok_or_else(stopped)
}

/// Assesses a submission alone, such as one without its comments; nothing if the answer gives no score.
///
/// # Errors
/// A configuration that cannot be used, or a server that is away.
pub async fn assess(
    config: &GradingConfig,
    rubric: &Rubric,
    submission: &Submission,
) -> Result<(JobRecord, Option<Verdict>), GradingError> {
    let run = Run::new(config, rubric, &Present, &|_| {})?;
    let (record, answer) = once(&run, Job::CodeAnalysis, submission, None).await?;
    let verdict = answer.and_then(|answer| read_verdict(&answer, rubric, submission).ok());
    Ok((record, verdict))
}

/// Writes the feedback on a submission for points that stand.
///
/// # Errors
/// A configuration that cannot be used.
pub async fn rewrite(
    config: &GradingConfig,
    rubric: &Rubric,
    submission: &Submission,
    criteria: &[CriterionResult],
) -> Result<Rewritten, GradingError> {
    let run = Run::new(config, rubric, &(), &|_| {})?;
    let (record, answer) = once(&run, Job::Feedback, submission, Some(criteria)).await?;
    let none = Finding::new(FindingKind::Other, "");
    let mut graded = run.without_models(submission, Status::Graded, none);
    graded.reasons.clear();
    let is_full = criteria.iter().all(|c| c.points == c.max_points);
    match answer {
        Some(answer) => put_feedback(&mut graded, &answer, (rubric, submission), is_full),
        None => lacks_feedback(&mut graded, &record),
    }
    Ok(Rewritten {
        record,
        text: graded.feedback,
        findings: graded.reasons,
    })
}

/// What is known of a request besides its answer.
struct Asked {
    question: String,
    started_ms: u64,
    attempts: u32,
    wall_ms: f64,
}

/// Milliseconds.
fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// An answer that was cut at its limit is an error, never a result.
fn outcome(
    job: Job,
    settings: &JobConfig,
    asked: Asked,
    answer: Result<Answer, JobError>,
) -> Outcome {
    let (answer, mut error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(e) => (None, Some(e.finding())),
    };
    let finish_reason = answer.as_ref().and_then(|a| a.finish);
    if finish_reason == Some(FinishReason::Length) {
        let text = format!(
            "the answer was cut at {} tokens; raise `max_tokens` of [grading.{}] in the configuration, or --{}-tokens",
            settings.max_tokens,
            job.as_str(),
            match job {
                Job::CodeAnalysis => "analysis",
                Job::Feedback => "feedback",
            }
        );
        error = Some(Finding::new(FindingKind::Cut, text));
    }
    if matches!(
        finish_reason,
        Some(FinishReason::ContentFilter | FinishReason::ToolCalls | FinishReason::Other)
    ) {
        let text = "the server ended the answer before its end";
        error = Some(Finding::new(FindingKind::Unusable, text));
    }
    let record = JobRecord {
        job,
        model: settings.model.clone(),
        finish_reason,
        question: asked.question,
        started_ms: asked.started_ms,
        first_ms: answer.as_ref().and_then(|a| a.first_ms),
        wall_ms: asked.wall_ms,
        attempts: asked.attempts,
        usage: answer.as_ref().and_then(|a| a.usage),
        tandem: answer.as_ref().and_then(|a| a.tandem.clone()),
        answer: answer.as_ref().map(|a| a.text.clone()),
        without_comments: false,
        error,
    };
    let complete = answer.filter(|_| record.error.is_none());
    (record, complete.map(|answer| answer.text))
}
