//! A run: how far it is, what the machines do, and what needs a person.

use std::collections::{BTreeMap, HashMap};

use askama::Template;
use tandem_grading::review::Decision;
use tandem_grading::{FindingKind, Status};

use super::live::{Lane, lanes};
use super::words;
use crate::activity::{Activity, WINDOW_MS};
use crate::paths::Paths;
use crate::runs::{Going, GoingState};
use crate::store::{Outcome, Reader, RunRow};

/// The part of the page that changes.
#[derive(Template)]
#[template(path = "parts/run.html")]
pub(crate) struct RunView {
    pub(crate) paths: Paths,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) number: i64,
    pub(crate) state: String,
    pub(crate) is_going: bool,
    pub(crate) is_stopping: bool,
    pub(crate) can_go_on: bool,
    /// All are graded, and those that speak to the grader are read without their comments.
    pub(crate) reads_again: bool,
    pub(crate) is_over: bool,
    pub(crate) problem: Option<String>,
    pub(crate) done: usize,
    pub(crate) all: usize,
    pub(crate) left: Option<String>,
    pub(crate) per_hour: Option<u64>,
    pub(crate) failed: usize,
    pub(crate) saved: Option<u64>,
    pub(crate) parts: Vec<(&'static str, usize, usize)>,
    pub(crate) counts: Vec<(&'static str, usize, &'static str)>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) needs: Vec<Need>,
    pub(crate) review: String,
    pub(crate) again: String,
    /// Who may stop it and go on with it.
    pub(crate) is_teacher: bool,
    pub(crate) stop: String,
    pub(crate) stop_now: String,
    pub(crate) go_on: String,
}

/// Works that need a person for the same reason.
pub(crate) struct Need {
    pub(crate) what: &'static str,
    pub(crate) works: usize,
    pub(crate) href: String,
    /// Why, in the words of the first one's machine, if it failed.
    pub(crate) cause: Option<String>,
    /// What to do.
    pub(crate) advice: &'static str,
    /// True if the same may go well when it is tried again.
    pub(crate) may_pass: bool,
}

/// A run in a list.
pub(crate) struct RunLink {
    pub(crate) href: String,
    pub(crate) number: i64,
    pub(crate) at: i64,
    pub(crate) state: &'static str,
}

const fn outcome(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Done) => "done",
        Some(Outcome::Stopped) => "stopped",
        Some(Outcome::Failed) => "could not go on",
        None => "not finished",
    }
}

impl RunLink {
    pub(crate) fn new(paths: Paths, run: &RunRow, is_going: bool) -> Self {
        Self {
            href: paths.run(run.id),
            number: run.number,
            at: run.created,
            state: match is_going {
                true => "going on",
                false => outcome(run.outcome),
            },
        }
    }
}

/// A length of time as a person says it.
pub(crate) fn about(ms: u64) -> String {
    match ms.div_ceil(1000) {
        seconds @ 0..=90 => format!("about {seconds} s"),
        seconds if seconds < 5400 => format!("about {} min", seconds.div_ceil(60)),
        seconds => format!("about {} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Milliseconds that the last run with an end took for each of its works.
pub(crate) fn per_work_ms(reader: &Reader<'_>, runs: &[RunRow]) -> rusqlite::Result<Option<u64>> {
    for run in runs.iter().filter(|run| run.is_done()) {
        let times = reader.result_times(run.id)?;
        let mut gaps: Vec<u64> = times
            .windows(2)
            .map(|w| w[1].saturating_sub(w[0]))
            .collect();
        gaps.sort_unstable();
        // A pause, or a wait for a model, is no work of a model.
        gaps.truncate(gaps.len() - gaps.len().div_ceil(PAUSES));
        let sum: u64 = gaps.iter().sum();
        // The sample's own run was put in at once.
        if let Some(per_work) = sum.checked_div(u64::try_from(gaps.len()).unwrap_or(1))
            && sum > 0
        {
            return Ok(Some(per_work));
        }
        if let (Some(took), [_]) = (run.took_ms().filter(|took| *took > 0), times.as_slice()) {
            return Ok(Some(took));
        }
    }
    Ok(None)
}

/// Of so many gaps between two results the longest one is left out of a mean.
const PAUSES: usize = 10;

impl RunView {
    pub(crate) fn new(
        paths: Paths,
        reader: &Reader<'_>,
        (id, person): (i64, i64),
        going: Option<&Going>,
        activity: &Activity,
        now_ms: u64,
    ) -> rusqlite::Result<Option<Self>> {
        let Some(run) = reader.run(id)? else {
            return Ok(None);
        };
        let Some(assignment) = reader.assignment(run.assignment)? else {
            return Ok(None);
        };
        let works = reader.run_works(id)?;
        let state = going.map(Going::state).unwrap_or_default();
        let done = works.iter().filter(|w| w.status.is_some()).count();
        let with = |status: Status| {
            let is = |w: &&crate::store::RunWork| w.status.as_deref() == Some(status.as_str());
            works.iter().filter(is).count()
        };
        let failed = with(Status::Failed);
        let in_flight = state.in_flight.len();
        let counts = vec![
            (
                "m-person",
                with(Status::Graded) + with(Status::NotAttempted),
                "graded",
            ),
            ("m-review", with(Status::NeedsReview), "to review"),
            ("m-bad", failed, "failed"),
            ("m-run", in_flight, "running"),
            (
                "m-wait",
                works.len() - done - in_flight.min(works.len() - done),
                "waiting",
            ),
        ];
        let pace = pace(going, &state, now_ms);
        let sums = reader.run_sums(id)?;
        let begin = now_ms.saturating_sub(WINDOW_MS);
        let left = works.len() - done;
        Ok(Some(Self {
            paths,
            course: assignment.course,
            title: assignment.title,
            number: run.number,
            state: outcome(run.outcome).to_owned(),
            is_going: going.is_some(),
            is_stopping: going.is_some_and(Going::is_stopping),
            can_go_on: going.is_none() && !run.is_done(),
            reads_again: going.is_some() && left == 0,
            is_over: going.is_none(),
            problem: run.problem.clone(),
            done,
            all: works.len(),
            left: pace
                .filter(|_| left > 0)
                .map(|ms| about(ms * u64::try_from(left).unwrap_or(u64::MAX))),
            // Of a run that has ended nobody knows how long it stood still.
            per_hour: pace.map(|ms| 3_600_000 / ms.max(1)),
            failed,
            saved: (sums.cached_tokens * 100)
                .checked_div(sums.prompt_tokens)
                .filter(|percent| *percent > 0),
            parts: parts(&counts, works.len()),
            counts,
            lanes: lanes(activity, begin, now_ms),
            needs: needs(paths, reader, (&run, person), &works)?,
            review: paths.assignment(run.assignment),
            again: paths.runs(run.assignment),
            is_teacher: false,
            stop: paths.stop_run(id),
            stop_now: paths.stop_run_now(id),
            go_on: paths.continue_run(id),
        }))
    }
}

/// Milliseconds for each work, since the run was started or continued.
fn pace(going: Option<&Going>, state: &GoingState, now_ms: u64) -> Option<u64> {
    let going = going?;
    (state.finished > 0).then(|| (now_ms.saturating_sub(going.since_ms)) / state.finished)
}

/// First and size of each part, in hundredths.
fn parts(
    counts: &[(&'static str, usize, &'static str)],
    all: usize,
) -> Vec<(&'static str, usize, usize)> {
    let mut from = 0;
    let mut parts = Vec::new();
    for (class, count, _) in counts {
        let size = (count * 1000).div_ceil(all.max(1)).min(1000 - from);
        parts.push((*class, from, size));
        from += size;
    }
    parts
}

/// Why works of a run need a person, the most pressing first.
fn needs(
    paths: Paths,
    reader: &Reader<'_>,
    (run, person): (&RunRow, i64),
    works: &[crate::store::RunWork],
) -> rusqlite::Result<Vec<Need>> {
    let Some(held) = reader.rubric(run.assignment)? else {
        return Ok(Vec::new());
    };
    // Nothing is told of what this person grades blind.
    let all = reader.works_for(run.assignment, person)?;
    let of: HashMap<i64, &crate::store::Work> = all.iter().map(|w| (w.id, w)).collect();
    let mut kinds: BTreeMap<FindingKind, Need> = BTreeMap::new();
    // What an earlier run made of the others is about to be made anew.
    let made = works.iter().filter(|work| work.status.is_some());
    for work in made.filter_map(|work| of.get(&work.id)) {
        let standing = work.standing(&held.rubric);
        let failed = work
            .graded
            .as_ref()
            .is_some_and(|g| g.status == Status::Failed);
        let needs = work
            .graded
            .as_ref()
            .is_some_and(|g| matches!(g.status, Status::Failed | Status::NeedsReview));
        if let (Some(finding), true, Decision::Open) =
            (standing.first_finding(), needs, work.review.decision)
        {
            let may_pass = failed && words::may_pass(finding.kind);
            let need = kinds.entry(finding.kind).or_insert_with(|| Need {
                what: words::finding(finding.kind),
                works: 0,
                href: paths.work(work.id),
                cause: may_pass.then(|| finding.text.clone()),
                advice: words::advice(finding.kind),
                may_pass,
            });
            need.works += 1;
        }
    }
    Ok(kinds.into_values().collect())
}
