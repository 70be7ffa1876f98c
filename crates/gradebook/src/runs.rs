//! The run that goes on: one at a time. What it makes is in the store at once; only what is in flight is here.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_grading::review::{Decision, Standing};
use tandem_grading::revision::{Inputs, Staleness};
use tandem_grading::{
    FeedbackMode, FindingKind, Graded, GradingConfig, GradingError, Held, Job, JobConfig,
    JobRecord, Layout, Progress, Rubric, Status, Style, Submission, grade,
};
use tokio::sync::Notify;

use crate::activity::CallId;
use crate::bare::{self, Unread};
use crate::error::{GradebookError, PageError};
use crate::platform::private_file;
use crate::store::{Kept, Outcome, Reader, Store, StoreError, Work, Writer, now_ms};
use crate::{ModelServer, Shared};

/// Which models a run asks, and how; a run keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) code_analysis: JobConfig,
    pub(crate) feedback: JobConfig,
    pub(crate) feedback_mode: FeedbackMode,
    /// Where the job stands in its prompts; runs that do not say so are older than the other place.
    #[serde(default)]
    pub(crate) layout: Layout,
    /// Each answer gets the same bits whenever it is asked for, which takes longer.
    #[serde(default)]
    pub(crate) reproducible: bool,
    /// How the feedback is written, where otherwise than the rubric says.
    #[serde(default)]
    pub(crate) style: Style,
    /// What was answered in earlier runs is asked once more.
    #[serde(default)]
    pub(crate) asks_anew: bool,
}

impl Settings {
    /// What a server has unless somebody chooses otherwise.
    pub(crate) fn of(server: &ModelServer) -> Self {
        Self {
            code_analysis: server.code_analysis.clone(),
            feedback: server.feedback.clone(),
            feedback_mode: FeedbackMode::After,
            layout: Layout::of(&server.code_analysis, &server.feedback),
            reproducible: server.reproducible,
            style: Style::default(),
            asks_anew: false,
        }
    }

    /// The rubric with the style that was chosen.
    pub(crate) fn applied(&self, mut rubric: Rubric) -> Rubric {
        rubric.style = self.style.or(&rubric.style);
        rubric
    }

    fn models(&self) -> [&str; 2] {
        [&self.code_analysis.model, &self.feedback.model]
    }

    /// The configuration of a run by a server that holds these models.
    pub(crate) async fn config(&self, server: &ModelServer) -> Result<GradingConfig, PageError> {
        let mut config = server.config();
        config.code_analysis = self.code_analysis.clone();
        config.feedback = self.feedback.clone();
        config.feedback_mode = self.feedback_mode;
        config.layout = self.layout;
        config.reproducible = self.reproducible;
        let told = server.told().await.map_err(|error| {
            tracing::warn!(%error, "the server does not say which models it has");
            PageError::NoAnswer
        })?;
        let served_by = told.map(|told| told.served_by(&self.models()));
        let served_by: Vec<String> = served_by.unwrap_or_default().into_iter().collect();
        config.served_by = served_by.join(SEPARATOR);
        Ok(config)
    }
}

/// Between what several servers tell.
const SEPARATOR: &str = "; ";
/// Most characters of what weights are called in a message.
const MAX_WEIGHTS_CHARS: usize = 40;
/// Between two looks at what serves the models of a run.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The run that goes on, if one does.
pub(crate) struct Runs {
    going: Mutex<Option<Arc<Going>>>,
    /// Who has it locked may run: the system frees it when a process ends, however it does.
    lock: PathBuf,
}

/// The right to run, until it is dropped.
pub(crate) struct Place {
    shared: Arc<Shared>,
    _lock: File,
}

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&self.shared.runs.going) = None;
    }
}

/// A run that goes on.
pub(crate) struct Going {
    pub(crate) run: i64,
    /// When it was started or continued, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    wants_stop: AtomicBool,
    /// Told when what is in flight is given up, too.
    gives_up: Notify,
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
    /// Of a gradebook in this file.
    pub(crate) fn new(gradebook: &Path) -> Self {
        let mut lock = gradebook.as_os_str().to_owned();
        lock.push(".run");
        Self {
            going: Mutex::default(),
            lock: lock.into(),
        }
    }

    /// The run, if it goes on.
    pub(crate) fn going(&self, run: i64) -> Option<Arc<Going>> {
        self.any().filter(|going| going.run == run)
    }

    /// Whichever goes on.
    pub(crate) fn any(&self) -> Option<Arc<Going>> {
        lock(&self.going).clone()
    }

    /// Tells a run to stop: what is in flight comes to its end, or is given up and asked once more when the run is
    /// continued.
    pub(crate) fn stop(&self, run: i64, is_now: bool) {
        if let Some(going) = self.going(run) {
            going.wants_stop.store(true, Ordering::Relaxed);
            if is_now {
                going.gives_up.notify_one();
            }
        }
    }
}

impl Place {
    /// Takes it, unless another run of this process or of another one has it.
    fn take(shared: &Arc<Shared>) -> Result<Self, PageError> {
        Ok(Self {
            shared: Arc::clone(shared),
            _lock: take_lock(shared)?,
        })
    }
}

fn take_lock(shared: &Shared) -> Result<File, PageError> {
    let file = File::create(&shared.runs.lock).map_err(|error| {
        tracing::error!(%error, "the lock of the runs cannot be made");
        PageError::Store
    })?;
    private_file(&shared.runs.lock);
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(PageError::Busy),
        Err(TryLockError::Error(error)) => {
            tracing::error!(%error, "the lock of the runs cannot be taken");
            Err(PageError::Store)
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

/// Who looks on while a run makes its results.
pub(crate) struct Observer<'a> {
    /// Hears how far it is.
    pub(crate) report: &'a (dyn Fn(&Progress<'_>) + Send + Sync),
    /// Gets each result, with the number of its work, before the store has it.
    pub(crate) keep: &'a (dyn Fn(i64, &Graded) -> Result<(), GradingError> + Send + Sync),
}

/// Nobody: pages look into the store.
const NOBODY: Observer<'static> = Observer {
    report: &|_| {},
    keep: &|_, _| Ok(()),
};

/// Starts a run of these works, or says why not.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    assignment: i64,
    works: Vec<i64>,
    settings: &Settings,
) -> Result<i64, PageError> {
    shared.server()?;
    let place = Place::take(shared)?;
    let run = make(shared, (assignment, works), settings, false).await?;
    let begun = begin(place, run).await?;
    tokio::spawn(async move { drive(begun, &NOBODY).await });
    Ok(run)
}

/// The right to run, for what comes before one.
pub(crate) fn place(shared: &Arc<Shared>) -> Result<Place, GradebookError> {
    Place::take(shared).map_err(|error| match error {
        PageError::Busy => GradebookError::Busy,
        _ => GradebookError::Run("the lock of the runs cannot be taken".to_owned()),
    })
}

/// Grades works to the end of their run, or says why that was not reached.
pub(crate) async fn grade_now(
    place: Place,
    works: (i64, Vec<i64>),
    settings: &Settings,
    observer: &Observer<'_>,
) -> Result<(), GradebookError> {
    let ended = |_| GradebookError::Run("the gradebook cannot be written".to_owned());
    let run = make(&place.shared, works, settings, true)
        .await
        .map_err(ended)?;
    let begun = begin(place, run).await.map_err(ended)?;
    match drive(begun, observer).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(GradebookError::Run("it was told to stop".to_owned())),
        Err(problem) => Err(GradebookError::Run(problem)),
    }
}

async fn make(
    shared: &Arc<Shared>,
    (assignment, works): (i64, Vec<i64>),
    settings: &Settings,
    ends_others: bool,
) -> Result<i64, PageError> {
    let settings = Settings {
        layout: Layout::of(&settings.code_analysis, &settings.feedback),
        ..settings.clone()
    };
    let text = serde_json::to_string(&settings).unwrap_or_default();
    let start = move |writer: &Writer<'_>| {
        if ends_others {
            writer.end_unfinished_runs(assignment)?;
        }
        writer.start_run(assignment, &works, &text).map(Ok)
    };
    Ok(shared.store.write::<i64, StoreError>(start).await?)
}

/// Goes on with a run that was stopped, failed or was interrupted.
pub(crate) async fn go_on(shared: &Arc<Shared>, run: i64) -> Result<(), PageError> {
    shared.server()?;
    if shared.runs.going(run).is_some() {
        return Ok(());
    }
    let place = Place::take(shared)?;
    let go_on = move |writer: &Writer<'_>| writer.continue_run(run).map(Ok);
    shared.store.write::<(), StoreError>(go_on).await?;
    let begun = begin(place, run).await?;
    tokio::spawn(async move { drive(begun, &NOBODY).await });
    Ok(())
}

/// A run that can go on.
struct Begun {
    place: Place,
    going: Arc<Going>,
    task: Task,
}

async fn begin(place: Place, run: i64) -> Result<Begun, PageError> {
    let shared = Arc::clone(&place.shared);
    // An earlier version may have taken the works in.
    let hide = move |writer: &Writer<'_>| match writer.run(run)? {
        Some(row) => writer.hide_people(row.assignment).map(Ok),
        None => Ok(Ok(())),
    };
    shared.store.write::<(), StoreError>(hide).await?;
    let read = move |reader: &Reader<'_>| task(reader, run);
    let task = shared.store.read(read).await?.ok_or(PageError::NotFound)?;
    let going = Arc::new(Going {
        run,
        since_ms: now_ms(),
        wants_stop: AtomicBool::new(false),
        gives_up: Notify::new(),
        state: Mutex::default(),
    });
    *lock(&shared.runs.going) = Some(Arc::clone(&going));
    Ok(Begun { place, going, task })
}

/// Runs it to its end: true if nothing of it is left, or why it could not go on.
async fn drive(begun: Begun, observer: &Observer<'_>) -> Result<bool, String> {
    let Begun { place, going, task } = begun;
    let shared = &place.shared;
    let done = work(shared, &going, task, observer).await;
    shared.activity.closed(&going.name());
    let (outcome, problem) = match &done {
        Ok(true) => (Outcome::Done, None),
        Ok(false) => (Outcome::Stopped, None),
        Err(problem) => (Outcome::Failed, Some(problem.clone())),
    };
    let run = going.run;
    let end = move |writer: &Writer<'_>| writer.end_run(run, outcome, problem.as_deref()).map(Ok);
    if let Err(error) = shared.store.write::<(), StoreError>(end).await {
        tracing::error!(%error, "the end of a run cannot be kept");
    }
    done
}

/// What is left of a run.
fn task(reader: &Reader<'_>, run: i64) -> rusqlite::Result<Option<Task>> {
    let Some(row) = reader.run(run)? else {
        return Ok(None);
    };
    let Some(held) = reader.rubric_of_run(run)? else {
        return Ok(None);
    };
    let Ok(settings) = serde_json::from_str::<Settings>(&row.settings) else {
        return Ok(None);
    };
    let works = reader.run_works(run)?.into_iter();
    let works: Vec<i64> = works.filter(|w| w.status.is_none()).map(|w| w.id).collect();
    Ok(Some(Task {
        rubric: settings.applied(held.rubric),
        submissions: reader.submissions(&works)?,
        works,
        settings,
    }))
}

/// Grades what is left; true if nothing is left then.
async fn work(
    shared: &Shared,
    going: &Going,
    task: Task,
    observer: &Observer<'_>,
) -> Result<bool, String> {
    let server = shared
        .server()
        .map_err(|_| "no model is loaded".to_owned())?;
    let config = task.settings.config(server).await;
    let config = config.map_err(|_| "the models do not answer".to_owned())?;
    let told = server.told().await.ok().flatten();
    if let Some(problem) = told.and_then(|told| told.problem(task.settings.models())) {
        return Err(problem);
    }
    let run = going.run;
    let before = shared.store.read(move |r| r.weights_of_run(run)).await;
    let before = before.map_err(|_| "the gradebook cannot be read".to_owned())?;
    if is_other(&before, &config.served_by, task.settings.models()) {
        return Err(CHANGED.to_owned());
    }
    let store = RunStore {
        store: &shared.store,
        going,
        config: &config,
        task: &task,
        observer,
    };
    let note = |progress: Progress<'_>| {
        store.note(shared, &progress);
        (observer.report)(&progress);
    };
    let graded = tokio::select! {
        graded = grade(&config, &task.rubric, &task.submissions, &store, &note) => graded,
        why = changed(server, &task.settings, &config.served_by) => return Err(why),
        () = going.gives_up.notified() => return Ok(false),
    };
    let graded = graded.map_err(|error| {
        tracing::error!(%error, "a run cannot go on");
        match error {
            GradingError::Server(reason) => reason,
            GradingError::Write { .. } | GradingError::Config { .. } => error.to_string(),
            _ => "what it makes cannot be kept; look at what tandem printed".to_owned(),
        }
    })?;
    if let Some(why) = change(server, &task.settings, &config.served_by).await {
        return Err(why);
    }
    let is_whole = graded.len() == task.works.len();
    Ok(is_whole && read_flagged(shared, going, &task.rubric, &config).await?)
}

/// Has the works of a run that speak to the grader read without their comments; false if it was told to stop before all
/// were. What fails is tried again from its page.
async fn read_flagged(
    shared: &Shared,
    going: &Going,
    rubric: &Rubric,
    config: &GradingConfig,
) -> Result<bool, String> {
    let run = going.run;
    let unread = shared.store.read(move |reader| unread(reader, run)).await;
    let unread = unread.map_err(|error| {
        tracing::error!(%error, "what a run has to read again cannot be told");
        "the gradebook cannot be read; look at what tandem printed".to_owned()
    })?;
    for (work, submission) in unread {
        if going.is_stopping() {
            return Ok(false);
        }
        let reading = bare::read(&shared.store, (work, run), (config, rubric), &submission);
        tokio::select! {
            read = reading => if let Err(Unread::Away(reason)) = read {
                let model = &config.code_analysis.model;
                return Err(format!("`{model}` does not answer: {reason}"));
            },
            () = going.gives_up.notified() => return Ok(false),
        }
    }
    Ok(true)
}

/// Open works of a run that speak to the grader and were not read without their comments.
fn unread(reader: &Reader<'_>, run: i64) -> rusqlite::Result<Vec<(i64, Submission)>> {
    let mut unread = Vec::new();
    for of_run in reader.run_works(run)? {
        let Some(work) = reader.work(of_run.id)? else {
            continue;
        };
        let is_flagged = work.graded.as_ref().is_some_and(bare::is_flagged);
        let is_open = work.review.decision == Decision::Open && work.replaced_by.is_none();
        if is_flagged && is_open && reader.bare_reading(work.seen.result)?.is_none() {
            let submission = reader.submission(work.id)?;
            unread.extend(submission.map(|submission| (work.id, submission)));
        }
    }
    Ok(unread)
}

/// True if a model of a run is served by weights now that served none of its calls, while others did.
fn is_other(before: &[String], now: &str, models: [&str; 2]) -> bool {
    let of = |told: &str, model: &str| -> Vec<String> {
        let own = format!("{model}=");
        let entries = told.split(SEPARATOR).filter(|one| one.starts_with(&own));
        entries.map(str::to_owned).collect()
    };
    models.into_iter().any(|model| {
        let known: Vec<String> = before.iter().flat_map(|told| of(told, model)).collect();
        !known.is_empty() && of(now, model).iter().any(|one| !known.contains(one))
    })
}

/// Why a run ends when other weights answer than those that it began with.
const CHANGED: &str = "a machine has another model than when the run began, so that submissions would be graded by unequal ones";

/// Completes when there is a change, and says which.
async fn changed(server: &ModelServer, settings: &Settings, served_by: &str) -> String {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if let Some(why) = change(server, settings, served_by).await {
            return why;
        }
    }
}

/// Which weights serve a model that did not at the start: nobody would know which ones made a grade. What does not answer
/// now is looked at again.
async fn change(server: &ModelServer, settings: &Settings, served_by: &str) -> Option<String> {
    let told = server.told().await.ok().flatten()?;
    let known: Vec<&str> = served_by.split(SEPARATOR).collect();
    let now = told.served_by(&settings.models());
    let mut new = now.iter().filter(|one| !known.contains(&one.as_str()));
    let (model, new) = new
        .next()
        .filter(|_| !served_by.is_empty())?
        .split_once('=')?;
    let was = known
        .iter()
        .find_map(|one| one.strip_prefix(model)?.strip_prefix('='));
    let (was, new) = (short(was.unwrap_or("nothing")), short(new));
    Some(format!("{CHANGED}: `{model}` is `{new}`, was `{was}`"))
}

/// Enough of a digest to tell it from others, or the name that a server told.
fn short(weights: &str) -> String {
    let name = weights.split(" (").next().unwrap_or(weights);
    name.chars().take(MAX_WEIGHTS_CHARS).collect()
}

/// Keeps what a run makes.
struct RunStore<'a> {
    store: &'a Store,
    going: &'a Going,
    config: &'a GradingConfig,
    task: &'a Task,
    observer: &'a Observer<'a>,
}

impl RunStore<'_> {
    fn model(&self, job: Job) -> &str {
        match job {
            Job::CodeAnalysis => &self.config.code_analysis.model,
            Job::Feedback => &self.config.feedback.model,
        }
    }

    fn note(&self, shared: &Shared, progress: &Progress<'_>) {
        let call = |index, job| CallId {
            of: self.going.name(),
            index,
            job,
        };
        match progress {
            Progress::Asked { index, job } => {
                let model = self.model(*job);
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
    fn held(&self, index: usize) -> Held {
        let id = self.task.works[index];
        let submission = &self.task.submissions[index];
        let now = Inputs::new(self.config, &self.task.rubric, submission);
        let held = self.store.read_now(|reader| {
            let (Some(work), Some(then)) = (reader.work(id)?, reader.inputs_of(id)?) else {
                return Ok(Held::default());
            };
            Ok(held(&work, &then.staleness(&now), &self.task.rubric))
        });
        held.unwrap_or_default()
    }

    fn answered(&self, index: usize, job: Job, question: &str) -> Option<JobRecord> {
        let work = self.task.works[index];
        let run = self.task.settings.asks_anew.then_some(self.going.run);
        let found = self
            .store
            .read_now(|reader| reader.answered((work, run), job, question));
        found.ok().flatten()
    }

    fn keep_answer(&self, index: usize, record: &JobRecord) -> Result<(), GradingError> {
        let of = (self.going.run, self.task.works[index]);
        self.write(|writer| writer.keep_call(of, &self.config.served_by, record))
    }

    fn keep(&self, index: usize, graded: &Graded) -> Result<(), GradingError> {
        let submission = &self.task.submissions[index];
        let inputs = Inputs::new(self.config, &self.task.rubric, submission);
        let of = Kept {
            run: self.going.run,
            work: self.task.works[index],
            inputs: Some(&inputs),
        };
        (self.observer.keep)(of.work, graded)?;
        self.write(|writer| writer.keep_result(&of, graded))
    }

    fn is_away(&self, job: Job, reason: &str) -> Result<(), GradingError> {
        let model = self.model(job);
        Err(GradingError::Server(format!(
            "`{model}` does not answer: {reason}"
        )))
    }

    fn goes_on(&self) -> bool {
        !self.going.is_stopping()
    }
}

/// What holds of a work's result where only some criteria are stale.
fn held(work: &Work, staleness: &Staleness, rubric: &Rubric) -> Held {
    let (Staleness::Criteria(stale), Some(graded)) = (staleness, &work.graded) else {
        return Held::default();
    };
    let standing = Standing::new(rubric, Some(graded), &work.review);
    let criteria = standing.model_results_without(stale);
    let holds = |id: &String| criteria.iter().any(|c| c.id == *id);
    let findings = graded.reasons.iter();
    let findings = findings.filter(|f| f.criterion.as_ref().is_some_and(holds));
    Held {
        findings: findings.cloned().collect(),
        criteria,
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
    /// How many of them for the words of each criterion alone, by its title.
    pub(crate) stale_for: BTreeMap<String, usize>,
    /// All others that are open.
    pub(crate) fresh: Vec<i64>,
    /// How many a person has settled; they stay as they are.
    pub(crate) settled: usize,
}

impl Choice {
    /// Whether a work of the assignment is one that a run may grade.
    pub(crate) fn has(&self, work: i64) -> bool {
        let all = [&self.new, &self.failed, &self.stale, &self.fresh];
        all.into_iter().any(|list| list.contains(&work))
    }

    /// All that is not fresh, in one order.
    pub(crate) fn due(&self) -> Vec<i64> {
        let mut due = [self.new.as_slice(), &self.failed, &self.stale].concat();
        due.sort_unstable();
        due
    }
}

/// The same where no model can be asked: what would come out otherwise cannot be told.
pub(crate) fn choice_without_models(
    reader: &Reader<'_>,
    assignment: i64,
) -> rusqlite::Result<Choice> {
    let mut choice = Choice::default();
    for work in reader.works(assignment)? {
        let list = match (work.review.decision, &work.graded) {
            (Decision::Open, None) => &mut choice.new,
            (Decision::Open, Some(graded)) if graded.status == Status::Failed => &mut choice.failed,
            (Decision::Open, Some(_)) => &mut choice.fresh,
            _ => {
                choice.settled += 1;
                continue;
            }
        };
        list.push(work.id);
    }
    Ok(choice)
}

/// Sorts the works of an assignment.
pub(crate) fn choice(
    reader: &Reader<'_>,
    assignment: i64,
    rubric: &Rubric,
    config: &GradingConfig,
) -> rusqlite::Result<Choice> {
    let mut choice = Choice::default();
    let kept: HashMap<i64, Option<Inputs>> = reader.inputs(assignment)?.into_iter().collect();
    let mut works = reader.works(assignment)?;
    // The order in which a teacher looks at the first ones: random, and the same each time.
    works.sort_by_key(|work| work.draw);
    let all = works.len();
    works.retain(|work| work.review.decision == Decision::Open);
    choice.settled = all - works.len();
    for work in works {
        let lacks_text = |g: &Graded| g.reasons.iter().any(|r| r.kind == FindingKind::NoText);
        let list = match (&work.graded, kept.get(&work.id)) {
            (None, _) | (_, None) => &mut choice.new,
            (Some(graded), _) if graded.status == Status::Failed || lacks_text(graded) => {
                &mut choice.failed
            }
            (Some(_), Some(known)) => {
                let submission = reader.submission(work.id)?;
                let now = submission.map(|s| Inputs::new(config, rubric, &s));
                let staleness = match (known, &now) {
                    (Some(known), Some(now)) => known.staleness(now),
                    _ => Staleness::All,
                };
                if let Staleness::Criteria(ids) = &staleness {
                    let titled = rubric.criteria.iter().filter(|c| ids.contains(&c.id));
                    for criterion in titled {
                        *choice.stale_for.entry(criterion.title.clone()).or_default() += 1;
                    }
                }
                match staleness {
                    Staleness::Fresh => &mut choice.fresh,
                    _ => &mut choice.stale,
                }
            }
        };
        list.push(work.id);
    }
    Ok(choice)
}
