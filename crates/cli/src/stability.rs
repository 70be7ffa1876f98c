//! `tandem grade --stability`: how far a model gives the same submission the same, alone, once more, and beside others.

use anyhow::bail;
use comfy_table::{Cell, CellAlignment};
use tandem_grading::{
    Comparison, Given, Graded, GradingConfig, GradingError, Job, Progress, Rubric, Submission,
    grade,
};

use crate::progress::Reporter;
use crate::{output, tables};

/// The ways in which each is graded.
const WAYS: [&str; 3] = ["alone", "alone again", "all at once, in reverse"];

/// Grades some submissions in three ways, and shows what differs. Nothing is kept.
///
/// # Errors
/// A configuration that cannot be used, or models that are gone.
pub async fn show(
    settings: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
    count: usize,
) -> anyhow::Result<Option<bool>> {
    // No model is asked about the others.
    let is_asked = |one: &&Submission| one.problem.is_none() && one.untouched(rubric).is_none();
    let chosen: Vec<Submission> = submissions
        .iter()
        .filter(is_asked)
        .take(count)
        .cloned()
        .collect();
    if chosen.is_empty() {
        bail!("none of the submissions is one that a model is asked about");
    }
    if chosen.len() < count {
        eprintln!(
            "tandem: a model is asked about {} of the submissions alone",
            chosen.len()
        );
    }
    let mut ways = Vec::new();
    for way in &WAYS[..2] {
        ways.push(alone(settings, rubric, &chosen, way).await?);
    }
    let reversed: Vec<Submission> = chosen.iter().rev().cloned().collect();
    let reporter = Reporter::new(WAYS[2], reversed.len());
    let report = |progress: Progress<'_>| reporter.report(&progress);
    let mut together = grade(settings, rubric, &reversed, &(), &report).await?;
    reporter.finish();
    together.reverse();
    ways.push(together);
    print(rubric, &chosen, &ways)
}

/// Grades one after the other, each when nothing else is asked.
async fn alone(
    settings: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
    way: &'static str,
) -> Result<Vec<Graded>, GradingError> {
    let reporter = Reporter::new(way, submissions.len());
    let report = |progress: Progress<'_>| reporter.report(&progress);
    let mut all = Vec::new();
    for submission in submissions {
        let one = std::slice::from_ref(submission);
        all.extend(grade(settings, rubric, one, &(), &report).await?);
    }
    reporter.finish();
    Ok(all)
}

fn given(graded: &[Graded]) -> Given {
    let scored = graded.iter().filter(|one| one.score.is_some());
    scored
        .map(|one| {
            let points = one.criteria.iter().map(|c| (c.id.clone(), c.points));
            (one.name.clone(), points.collect())
        })
        .collect()
}

/// The answer of the analysis, as it came.
fn answer(graded: &Graded) -> Option<&str> {
    let mut analyses = graded.jobs.iter();
    let last = analyses.rfind(|record| record.job == Job::CodeAnalysis);
    last?.answer.as_deref()
}

/// A line for each submission, and one for each way; whether all points are the same, or nothing if some have none.
fn print(
    rubric: &Rubric,
    chosen: &[Submission],
    ways: &[Vec<Graded>],
) -> anyhow::Result<Option<bool>> {
    let mut table = tables::new(&["submission", WAYS[0], WAYS[1], WAYS[2], "what differs"]);
    let points: Vec<Given> = ways.iter().map(|way| given(way)).collect();
    let of_first = |way: usize| Comparison::new(rubric, &points[0], &points[way]);
    let compared = [of_first(1), of_first(2)];
    for (i, submission) in chosen.iter().enumerate() {
        let mut row = vec![Cell::new(&submission.name)];
        for way in ways {
            let score = way.get(i).and_then(|one| one.score);
            let score = score.map_or_else(|| "–".to_owned(), |score| score.to_string());
            row.push(Cell::new(score).set_alignment(CellAlignment::Right));
        }
        let changes = compared.iter().flat_map(|both| &both.changes);
        let changes = changes.filter(|change| change.name == submission.name);
        let criteria = changes.flat_map(|change| &change.criteria);
        let criteria: Vec<String> = criteria
            .map(|(id, a, b)| format!("{id} {a} → {b}"))
            .collect();
        row.push(Cell::new(criteria.join(", ")));
        table.add_row(row);
    }
    output::print(&table.to_string())?;
    for (way, both) in (1..).zip(&compared) {
        let pairs = ways[0].iter().zip(&ways[way]);
        let same = pairs.filter(|(a, b)| answer(a).is_some() && answer(a) == answer(b));
        output::print(&format!(
            "{}: {} of {} have the same points for each criterion, {} the same answer",
            WAYS[way],
            both.equal,
            chosen.len(),
            same.count()
        ))?;
    }
    let is_whole = points.iter().all(|way| way.len() == chosen.len());
    let is_same = compared.iter().all(|both| both.changes.is_empty());
    Ok(is_whole.then_some(is_same))
}
