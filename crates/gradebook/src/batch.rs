//! A run without pages: its results go into a folder, too.

use tandem_grading::review::{Decision, Standing};
use tandem_grading::revision::Inputs;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Graded, GradingConfig, GradingError, Points, Progress,
    Rubric, Submission,
};

use crate::error::GradebookError;
use crate::runs::{self, Observer, Settings};
use crate::store::{Kept, Outcome, Reader, SheetFile, StoreError, Writer};
use crate::{Gradebook, Shared};

/// What is graded, and where its results go.
pub struct Batch<'a> {
    /// What the gradebook calls the course.
    pub course: &'a str,
    /// By what.
    pub rubric: &'a Rubric,
    /// Whose names differ.
    pub submissions: &'a [Submission],
    /// The teacher's own gradebook: no model is shown who is in it.
    pub roster: Option<&'a SheetFile>,
    /// When the feedback is written.
    pub feedback_mode: FeedbackMode,
    /// What becomes of results that are there.
    pub earlier_run: EarlierRun,
    /// Gets each result before the gradebook has it.
    pub folder: &'a Folder<'a>,
    /// Hears how far the run is.
    pub report: &'a (dyn Fn(&Progress<'_>) + Send + Sync),
}

impl Gradebook {
    /// Grades what is not graded yet, and returns all results, in the order of the submissions. Dropped in the middle, it
    /// keeps what there is; the next one goes on from there.
    ///
    /// # Errors
    /// Results of an earlier run where there must be none, or why the run did not come to its end.
    pub async fn grade(&self, batch: &Batch<'_>) -> Result<Vec<Graded>, GradebookError> {
        let shared = &self.shared;
        let ended = |why: &str| GradebookError::Run(why.to_owned());
        let server = shared.server().map_err(|_| ended("no model is loaded"))?;
        let mut settings = Settings::of(server);
        settings.feedback_mode = batch.feedback_mode;
        settings.asks_anew = batch.earlier_run == EarlierRun::Replace;
        let config = settings.config(server).await;
        let config = config.map_err(|_| ended("the models do not answer"))?;
        // Nothing of another run is touched: neither its files nor what it grades by.
        let place = runs::place(shared)?;
        let (assignment, works) = shared.store.write_now(|writer| {
            let assignment = writer.keep_assignment(batch.course, batch.rubric)?;
            let works = writer.hand_in_all(assignment, batch.submissions)?;
            if let Some(roster) = batch.roster {
                writer.keep_sheet(assignment, roster)?;
            }
            Ok(Ok::<_, StoreError>((assignment, works)))
        })?;
        match batch.earlier_run {
            EarlierRun::Refuse if has_result(shared, &works)? => {
                return Err(batch.folder.exists().into());
            }
            EarlierRun::Resume => batch.take_over(shared, (assignment, &works), &config)?,
            _ => {}
        }
        batch.folder.begin()?;
        let due = shared.store.read_now(|reader| {
            let choice = runs::choice(reader, assignment, batch.rubric, &config)?;
            let mut due = Vec::new();
            for (work, submission) in works.iter().zip(batch.submissions) {
                let is_due = match batch.earlier_run {
                    EarlierRun::Replace => choice.has(*work),
                    _ => choice.due().contains(work),
                };
                if is_due || result(reader, *work, batch.rubric, submission)?.is_none() {
                    due.push(*work);
                }
            }
            Ok(due)
        })?;
        if !due.is_empty() {
            let observer = Observer {
                report: batch.report,
                keep: &|work, graded| batch.keep(&works, work, graded),
            };
            runs::grade_now(place, (assignment, due), &settings, &observer).await?;
        }
        let all = shared.store.read_now(|reader| {
            let pairs = works.iter().zip(batch.submissions);
            let one =
                |(work, submission): (&i64, _)| result(reader, *work, batch.rubric, submission);
            pairs.map(one).collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let all: Option<Vec<Graded>> = all.into_iter().collect();
        let all = all.ok_or_else(|| ended("a result is missing; `--resume` makes it"))?;
        for graded in all.iter().filter(|one| !batch.folder.has(one)) {
            batch.folder.keep(graded)?;
        }
        batch.folder.finish(&all)?;
        Ok(all)
    }
}

impl Batch<'_> {
    /// Writes a result under the name that the submission has here; the gradebook may call it otherwise.
    fn keep(&self, works: &[i64], work: i64, graded: &Graded) -> Result<(), GradingError> {
        let index = works.iter().position(|known| *known == work);
        let submission = index.and_then(|index| self.submissions.get(index));
        let mut graded = graded.clone();
        if let Some(submission) = submission {
            graded.name.clone_from(&submission.name);
        }
        self.folder.keep(&graded)
    }

    /// Takes over what an earlier version of tandem left in the folder alone.
    fn take_over(
        &self,
        shared: &Shared,
        (assignment, works): (i64, &[i64]),
        config: &GradingConfig,
    ) -> Result<(), GradebookError> {
        let settings = "a folder of an earlier version";
        let take = |writer: &Writer<'_>| {
            let mut found = Vec::new();
            for (work, submission) in works.iter().zip(self.submissions) {
                let earlier = self.folder.earlier(config, submission);
                if let Some(graded) = earlier
                    && writer
                        .work(*work)?
                        .is_some_and(|work| work.graded.is_none())
                {
                    found.push((*work, submission, graded));
                }
            }
            if found.is_empty() {
                return Ok(Ok(()));
            }
            let ids: Vec<i64> = found.iter().map(|(work, ..)| *work).collect();
            let run = writer.start_run(assignment, &ids, settings)?;
            for (work, submission, graded) in found {
                let inputs = Inputs::new(config, self.rubric, submission);
                let of = Kept {
                    run,
                    work,
                    inputs: Some(&inputs),
                };
                writer.keep_made(&of, &config.served_by, &graded)?;
            }
            writer.end_run(run, Outcome::Done, None).map(Ok)
        };
        shared
            .store
            .write_now::<(), StoreError>(take)
            .map_err(Into::into)
    }
}

fn has_result(shared: &Shared, works: &[i64]) -> Result<bool, StoreError> {
    shared.store.read_now(|reader| {
        for work in works {
            if reader.work(*work)?.is_some_and(|w| w.graded.is_some()) {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// The result of a work as a run reports it: by the rubric that holds now, and with its calls.
fn result(
    reader: &Reader<'_>,
    work: i64,
    rubric: &Rubric,
    submission: &Submission,
) -> rusqlite::Result<Option<Graded>> {
    let Some(work_now) = reader.work(work)? else {
        return Ok(None);
    };
    let (review, Some(mut graded)) = (work_now.review, work_now.graded) else {
        return Ok(None);
    };
    let standing = Standing::of_model(rubric, Some(&graded));
    let (criteria, total) = (standing.model_results_without(&[]), standing.model_total());
    graded.name.clone_from(&submission.name);
    graded.max_score = rubric.max_points.as_f64();
    if graded.score.is_some() {
        (graded.criteria, graded.score) = (criteria, total.map(Points::as_f64));
    }
    // A step that the new points do not have.
    if graded.score.is_none() && !graded.criteria.is_empty() {
        return Ok(None);
    }
    if review.decision != Decision::Open {
        let note =
            "a person has settled it in the gradebook; this is what a model suggested before";
        graded.notes.push(note.to_owned());
    }
    graded.jobs = reader.calls_of_result(work)?;
    Ok(Some(graded))
}
