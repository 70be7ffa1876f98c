//! Works that speak to the grader, assessed once more without their comments: a teacher sees what the comments did.

use tandem_grading::review::PointsOf;
use tandem_grading::syntax::without_comments;
use tandem_grading::{
    FindingKind, Graded, GradingConfig, GradingError, Rubric, Submission, assess,
};

use crate::store::{Store, StoreError, Writer};

/// True if something in a work is meant for the grader, or for no eyes.
pub(crate) fn is_flagged(graded: &Graded) -> bool {
    let is_meant = |kind| matches!(kind, FindingKind::Orders | FindingKind::Hidden);
    graded.score.is_some() && graded.flags.iter().any(|flag| is_meant(flag.kind))
}

/// Why a work cannot be read so.
pub(crate) const HAS_NONE: &str =
    "It has no comments that can be told from the rest, so it cannot be graded without them.";

/// Why it cannot be said what the comments did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// There are none.
    #[error("it has no comments that can be told from the rest")]
    HasNone,
    /// The model is away, and why.
    #[error("{0}")]
    Away(String),
    /// The model gave no answer to this one.
    #[error("there is no answer")]
    NoAnswer,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Has a work assessed without its comments, and keeps what came of it beside the result that holds.
pub(crate) async fn read(
    store: &Store,
    (work, run): (i64, i64),
    (config, rubric): (&GradingConfig, &Rubric),
    submission: &Submission,
) -> Result<(), Unread> {
    let bare = without_comments(submission).ok_or(Unread::HasNone)?;
    let result = store
        .read(move |reader| reader.work(work))
        .await?
        .map_or(0, |work| work.seen.result);
    let assessed = assess(config, rubric, &bare).await;
    let assessed = assessed.map_err(|error| match error {
        GradingError::Server(reason) => Unread::Away(reason),
        error => {
            tracing::error!(%error, "a work cannot be read without its comments");
            Unread::NoAnswer
        }
    })?;
    let (mut record, verdict) = assessed;
    record.without_comments = true;
    let is_answered = record.answer.is_some();
    let criteria = verdict.map(|verdict| verdict.criteria).unwrap_or_default();
    let points: PointsOf = criteria.into_iter().map(|c| (c.id, c.points)).collect();
    let served_by = config.served_by.clone();
    let keep = move |writer: &Writer<'_>| {
        writer.keep_call((run, work), &served_by, &record)?;
        // A run may have made another result meanwhile, which it says nothing about.
        match is_answered {
            true => writer.keep_bare_reading(result, &points).map(Ok),
            false => Ok(Ok(())),
        }
    };
    store.write::<(), StoreError>(keep).await?;
    match is_answered {
        true => Ok(()),
        false => Err(Unread::NoAnswer),
    }
}
