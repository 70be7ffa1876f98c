//! One submission graded live: nothing of it is stored, and only the last few are remembered.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_grading::{
    FeedbackMode, Graded, GradingConfig, Job, JobRecord, Progress, Rubric, Style, Submission, grade,
};
use tokio::task::AbortHandle;

use crate::activity::{Activity, CallId};
use crate::limits::MAX_TRIALS;
use crate::store::now_ms;

/// The trials that are remembered.
#[derive(Default)]
pub(crate) struct Trials {
    kept: Mutex<VecDeque<Arc<Trial>>>,
}

/// One trial.
pub(crate) struct Trial {
    pub(crate) id: u64,
    /// The assignment whose rubric it is.
    pub(crate) assignment: i64,
    pub(crate) rubric: Rubric,
    /// What was chosen, where otherwise than the rubric says.
    pub(crate) style: Style,
    pub(crate) submission: Submission,
    /// What was pasted, as it was.
    pub(crate) pasted: (String, String),
    pub(crate) models: [String; 2],
    pub(crate) mode: FeedbackMode,
    pub(crate) started_ms: u64,
    is_stopped: AtomicBool,
    state: Mutex<TrialState>,
    task: Mutex<Option<AbortHandle>>,
}

/// How far it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrialState {
    /// The analysis and the feedback.
    pub(crate) jobs: [JobState; 2],
    /// What came out.
    pub(crate) graded: Option<Graded>,
    /// Why nothing did.
    pub(crate) problem: Option<String>,
    pub(crate) ended_ms: Option<u64>,
}

/// One of the two jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobState {
    /// When it was sent, and when the first part of its answer came.
    pub(crate) asked_ms: Option<u64>,
    pub(crate) first_ms: Option<u64>,
    pub(crate) text: String,
    /// Parts of the answer that came; mostly one for each token.
    pub(crate) parts: u32,
    pub(crate) record: Option<JobRecord>,
}

/// The place of a job among the two.
pub(crate) const fn place(job: Job) -> usize {
    match job {
        Job::CodeAnalysis => 0,
        Job::Feedback => 1,
    }
}

impl Trials {
    /// A trial that is remembered.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Trial>> {
        self.lock().iter().find(|trial| trial.id == id).cloned()
    }

    /// Starts one.
    pub(crate) fn start(
        &self,
        (assignment, rubric, style): (i64, Rubric, Style),
        (pasted, submission): ((String, String), Submission),
        config: GradingConfig,
        activity: Arc<Activity>,
    ) -> Arc<Trial> {
        let evicted = Arc::clone(&activity);
        let trial = Arc::new(Trial {
            // An old page of an earlier process finds none of this one's.
            id: rand::random::<u32>().into(),
            assignment,
            rubric,
            style,
            submission,
            pasted,
            models: [
                config.code_analysis.model.clone(),
                config.feedback.model.clone(),
            ],
            mode: config.feedback_mode,
            started_ms: now_ms(),
            is_stopped: AtomicBool::new(false),
            state: Mutex::default(),
            task: Mutex::new(None),
        });
        let running = Arc::clone(&trial);
        let task = tokio::spawn(async move { running.run(&config, &activity).await });
        *trial.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        let mut kept = self.lock();
        kept.push_back(Arc::clone(&trial));
        if kept.len() > MAX_TRIALS
            && let Some(old) = kept.pop_front()
        {
            old.stop(&evicted);
        }
        trial
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Trial>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trial {
    /// How far it is now.
    pub(crate) fn state(&self) -> TrialState {
        self.lock().clone()
    }

    /// True if nothing more will come.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().ended_ms.is_some()
    }

    /// Ends it; what came stays.
    pub(crate) fn stop(&self, activity: &Activity) {
        self.abort();
        activity.closed(&self.name());
        let mut state = self.lock();
        if state.ended_ms.is_none() {
            state.ended_ms = Some(now_ms());
            state.problem = Some("Stopped.".to_owned());
        }
    }

    fn abort(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.as_ref() {
            task.abort();
        }
    }

    fn name(&self) -> String {
        format!("trial {}", self.id)
    }

    async fn run(&self, config: &GradingConfig, activity: &Activity) {
        let note = |progress: Progress<'_>| self.note(&progress, activity);
        let works = std::slice::from_ref(&self.submission);
        let done = grade(config, &self.rubric, works, &(), &note).await;
        let mut state = self.lock();
        match done {
            Ok(graded) => state.graded = graded.into_iter().next(),
            Err(error) => state.problem = Some(error.to_string()),
        }
        state.ended_ms = Some(now_ms());
    }

    fn note(&self, progress: &Progress<'_>, activity: &Activity) {
        let call = |job| CallId {
            of: self.name(),
            index: 0,
            job,
        };
        let now = now_ms();
        let mut state = self.lock();
        match progress {
            Progress::Asked { job, .. } => {
                let model = &self.models[place(*job)];
                state.jobs[place(*job)] = JobState {
                    asked_ms: Some(now),
                    ..JobState::default()
                };
                activity.asked(call(*job), model, now);
            }
            Progress::Text { job, text, .. } => {
                let of = &mut state.jobs[place(*job)];
                of.first_ms.get_or_insert(now);
                of.text.push_str(text);
                of.parts += 1;
                activity.answered(&call(*job), now);
            }
            Progress::JobFinished { record, .. } => {
                state.jobs[place(record.job)].record = Some((*record).clone());
                activity.ended(&call(record.job), record);
            }
            Progress::Warning(_) | Progress::Finished { .. } => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, TrialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
