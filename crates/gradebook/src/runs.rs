//! The run that goes on: one at a time. What it makes is in the store at once; only what is in flight is here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tandem_grading::review::Decision;
use tandem_grading::{
    FeedbackMode, FindingKind, Graded, GradingConfig, GradingError, Job, JobConfig, JobRecord,
    Progress, Rubric, Status, Submission, grade, inputs,
};

use crate::activity::CallId;
use crate::error::PageError;
use crate::store::{Kept, Outcome, Reader, Store, StoreError, Writer, now_ms};
use crate::{ModelServer, Shared};

/// Which models a run asks, and how; a run keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) code_analysis: JobConfig,
    pub(crate) feedback: JobConfig,
    pub(crate) feedback_mode: FeedbackMode,
}

impl Settings {
    /// What a server has unless somebody chooses otherwise.
    pub(crate) fn of(server: &ModelServer) -> Self {
        Self {
            code_analysis: server.code_analysis.clone(),
            feedback: server.feedback.clone(),
            feedback_mode: FeedbackMode::After,
        }
    }

    /// The configuration of a run by a server that holds these models.
    pub(crate) async fn config(&self, server: &ModelServer) -> GradingConfig {
        let mut config = server.config();
        config.code_analysis = self.code_analysis.clone();
        config.feedback = self.feedback.clone();
        config.feedback_mode = self.feedback_mode;
        let models = [
            self.code_analysis.model.as_str(),
            self.feedback.model.as_str(),
        ];
        let told = server.told().await;
        config.served_by = told.map(|told| told.served_by(&models)).unwrap_or_default();
        config
    }
}

/// The run that goes on, if one does.
#[derive(Default)]
pub(crate) struct Runs {
    going: Mutex<Option<Arc<Going>>>,
}

/// A run that goes on.
pub(crate) struct Going {
    pub(crate) run: i64,
    /// When it was started or continued, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    wants_stop: AtomicBool,
    state: Mutex<GoingState>,
}

/// What is known of it beside the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct GoingState {
    /// Works in flight, by number.
    pub(crate) in_flight: HashMap<i64, Job>,
    /// Works that were finished since it was started or continued.
    pub(crate) finished: u64,
}

impl Going {
    pub(crate) fn state(&self) -> GoingState {
        lock(&self.state).clone()
    }

    /// True if it was told to stop and waits for what is in flight.
    pub(crate) fn is_stopping(&self) -> bool {
        self.wants_stop.load(Ordering::Relaxed)
    }

    fn name(&self) -> String {
        format!("run {}", self.run)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runs {
    /// The run, if it goes on.
    pub(crate) fn going(&self, run: i64) -> Option<Arc<Going>> {
        self.any().filter(|going| going.run == run)
    }

    /// Whichever goes on.
    pub(crate) fn any(&self) -> Option<Arc<Going>> {
        lock(&self.going).clone()
    }

    /// Tells a run to stop: what is in flight comes to its end.
    pub(crate) fn stop(&self, run: i64) {
        if let Some(going) = self.going(run) {
            going.wants_stop.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the place; false if another run has it.
    fn take(&self, going: &Arc<Going>) -> bool {
        let mut place = lock(&self.going);
        let is_free = place.is_none();
        if is_free {
            *place = Some(Arc::clone(going));
        }
        is_free
    }

    fn free(&self, run: i64) {
        let mut place = lock(&self.going);
        if place.as_ref().is_some_and(|going| going.run == run) {
            *place = None;
        }
    }
}

/// What a run needs to know of its works.
struct Task {
    rubric: Rubric,
    works: Vec<i64>,
    submissions: Vec<Submission>,
    settings: Settings,
}

/// Starts a run of these works, or says why not.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    assignment: i64,
    works: Vec<i64>,
    settings: &Settings,
) -> Result<i64, PageError> {
    shared.server()?;
    if shared.runs.any().is_some() {
        return Err(PageError::Form(
            "Another run is going on. Wait for its end, or stop it.".to_owned(),
        ));
    }
    let text = serde_json::to_string(settings).unwrap_or_default();
    let start = move |writer: &Writer<'_>| writer.start_run(assignment, &works, &text).map(Ok);
    let run = shared.store.write::<i64, StoreError>(start).await?;
    spawn(shared, run).await?;
    Ok(run)
}

/// Goes on with a run that was stopped, failed or was interrupted.
pub(crate) async fn go_on(shared: &Arc<Shared>, run: i64) -> Result<(), PageError> {
    shared.server()?;
    if shared.runs.going(run).is_some() {
        return Ok(());
    }
    let go_on = move |writer: &Writer<'_>| writer.continue_run(run).map(Ok);
    shared.store.write::<(), StoreError>(go_on).await?;
    spawn(shared, run).await
}

async fn spawn(shared: &Arc<Shared>, run: i64) -> Result<(), PageError> {
    let going = Arc::new(Going {
        run,
        since_ms: now_ms(),
        wants_stop: AtomicBool::new(false),
        state: Mutex::default(),
    });
    if !shared.runs.take(&going) {
        return Err(PageError::Form(
            "Another run is going on. Wait for its end, or stop it.".to_owned(),
        ));
    }
    let read = move |reader: &Reader<'_>| task(reader, run);
    let task = match shared.store.read(read).await {
        Ok(Some(task)) => task,
        Ok(None) => {
            shared.runs.free(run);
            return Err(PageError::NotFound);
        }
        Err(error) => {
            shared.runs.free(run);
            return Err(error.into());
        }
    };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let outcome = work(&shared, &going, task).await;
        shared.activity.closed(&going.name());
        let (outcome, problem) = match outcome {
            Ok(true) => (Outcome::Done, None),
            Ok(false) => (Outcome::Stopped, None),
            Err(problem) => (Outcome::Failed, Some(problem)),
        };
        let end =
            move |writer: &Writer<'_>| writer.end_run(run, outcome, problem.as_deref()).map(Ok);
        if let Err(error) = shared.store.write::<(), StoreError>(end).await {
            tracing::error!(%error, "the end of a run cannot be kept");
        }
        shared.runs.free(run);
    });
    Ok(())
}

/// What is left of a run.
fn task(reader: &Reader<'_>, run: i64) -> rusqlite::Result<Option<Task>> {
    let Some(row) = reader.run(run)? else {
        return Ok(None);
    };
    let Some(held) = reader.rubric(row.assignment)? else {
        return Ok(None);
    };
    let Ok(settings) = serde_json::from_str(&row.settings) else {
        return Ok(None);
    };
    let works = reader.run_works(run)?.into_iter();
    let works: Vec<i64> = works.filter(|w| w.status.is_none()).map(|w| w.id).collect();
    Ok(Some(Task {
        rubric: held.rubric,
        submissions: reader.submissions(&works)?,
        works,
        settings,
    }))
}

/// Grades what is left; true if nothing is left then.
async fn work(shared: &Shared, going: &Going, task: Task) -> Result<bool, String> {
    let server = shared
        .server()
        .map_err(|_| "no model is loaded".to_owned())?;
    let config = task.settings.config(server).await;
    let store = RunStore {
        store: &shared.store,
        going,
        config: &config,
        task: &task,
    };
    let note = |progress: Progress<'_>| store.note(shared, &progress);
    let graded = grade(&config, &task.rubric, &task.submissions, &store, &note).await;
    let graded = graded.map_err(|e| e.to_string())?;
    Ok(graded.len() == task.works.len())
}

/// Keeps what a run makes.
struct RunStore<'a> {
    store: &'a Store,
    going: &'a Going,
    config: &'a GradingConfig,
    task: &'a Task,
}

impl RunStore<'_> {
    fn note(&self, shared: &Shared, progress: &Progress<'_>) {
        let call = |index, job| CallId {
            of: self.going.name(),
            index,
            job,
        };
        match progress {
            Progress::Asked { index, job } => {
                let model = match job {
                    Job::CodeAnalysis => &self.config.code_analysis.model,
                    Job::Feedback => &self.config.feedback.model,
                };
                shared.activity.asked(call(*index, *job), model, now_ms());
                lock(&self.going.state)
                    .in_flight
                    .insert(self.task.works[*index], *job);
            }
            Progress::Text { index, job, .. } => {
                shared.activity.answered(&call(*index, *job), now_ms());
            }
            Progress::JobFinished { index, record, .. } => {
                shared.activity.ended(&call(*index, record.job), record);
            }
            Progress::Finished { index, .. } => {
                let mut state = lock(&self.going.state);
                state.in_flight.remove(&self.task.works[*index]);
                state.finished += 1;
            }
            Progress::Warning(_) => {}
        }
    }

    fn write(
        &self,
        task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), GradingError> {
        let kept = self
            .store
            .write_now(|writer| task(writer).map(Ok::<_, StoreError>));
        kept.map_err(|e| GradingError::Store(e.to_string()))
    }
}

impl tandem_grading::Store for RunStore<'_> {
    fn answered(&self, index: usize, job: Job, question: &str) -> Option<JobRecord> {
        let work = self.task.works[index];
        let found = self
            .store
            .read_now(|reader| reader.answered(work, job, question));
        found.ok().flatten()
    }

    fn keep_answer(&self, index: usize, record: &JobRecord) -> Result<(), GradingError> {
        let of = (self.going.run, self.task.works[index]);
        self.write(|writer| writer.keep_call(of, &self.config.served_by, record))
    }

    fn keep(&self, index: usize, graded: &Graded) -> Result<(), GradingError> {
        let inputs = inputs(
            self.config,
            &self.task.rubric,
            &self.task.submissions[index],
        );
        let of = Kept {
            run: self.going.run,
            work: self.task.works[index],
            inputs: &inputs,
        };
        self.write(|writer| writer.keep_result(&of, graded))
    }

    fn goes_on(&self) -> bool {
        !self.going.is_stopping()
    }
}

/// Works by what a run would do with them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    /// Without a result.
    pub(crate) new: Vec<i64>,
    /// Whose result is a failure.
    pub(crate) failed: Vec<i64>,
    /// Whose result would come out otherwise now.
    pub(crate) stale: Vec<i64>,
    /// All others.
    pub(crate) fresh: Vec<i64>,
}

impl Choice {
    /// All that is not fresh, in one order.
    pub(crate) fn due(&self) -> Vec<i64> {
        let mut due = [self.new.as_slice(), &self.failed, &self.stale].concat();
        due.sort_unstable();
        due
    }
}

/// Sorts the works of an assignment.
pub(crate) fn choice(
    reader: &Reader<'_>,
    assignment: i64,
    rubric: &Rubric,
    config: &GradingConfig,
) -> rusqlite::Result<Choice> {
    let mut choice = Choice::default();
    let kept: HashMap<i64, String> = reader.inputs(assignment)?.into_iter().collect();
    let mut works = reader.works(assignment)?;
    // The order in which a teacher looks at the first ones: random, and the same each time.
    works.sort_by_key(|work| work.draw);
    // What was approved stays as it is.
    works.retain(|work| work.review.decision == Decision::Open);
    for work in works {
        let lacks_text = |g: &Graded| g.reasons.iter().any(|r| r.kind == FindingKind::NoText);
        let list = match (&work.graded, kept.get(&work.id)) {
            (None, _) | (_, None) => &mut choice.new,
            (Some(graded), _) if graded.status == Status::Failed || lacks_text(graded) => {
                &mut choice.failed
            }
            (Some(_), Some(known)) => {
                let submission = reader.submission(work.id)?;
                let is_fresh = submission.is_some_and(|s| inputs(config, rubric, &s) == *known);
                match is_fresh {
                    true => &mut choice.fresh,
                    false => &mut choice.stale,
                }
            }
        };
        list.push(work.id);
    }
    Ok(choice)
}
