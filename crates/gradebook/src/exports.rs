//! What an assignment's export writes: the same for a page, its preview, and the command line.

use tandem_grading::FindingKind;
use tandem_grading::export::{Choice, Export, Format, Refusal, Row, fill, write};
use tandem_grading::review::{Decision, State};

use crate::limits::QUICK_MS;
use crate::store::{Reader, Role, SheetFile, Store, StoreError, Work};

/// Where grades go.
#[derive(Debug, Clone)]
pub enum Target {
    /// Into a teacher's own gradebook.
    Sheet(SheetFile, Choice),
    /// Into a file of its own.
    File(Format),
}

/// What an export writes.
#[derive(Debug, Clone)]
pub struct Written {
    /// The file's name.
    pub name: String,
    /// The file, and the account of it; its rows are those of `works`.
    pub export: Export,
    /// Number and name of each submission.
    pub works: Vec<(i64, String)>,
}

/// How many submissions of an assignment are how far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Approved: they leave.
    pub approved: usize,
    /// With a suggestion that nobody has approved.
    pub open: usize,
    /// Without a suggestion.
    pub ungraded: usize,
    /// Failed.
    pub failed: usize,
    /// Not readable for a model: a person has to grade them.
    pub by_hand: usize,
    /// With nothing in them.
    pub not_attempted: usize,
    /// Settled without points.
    pub without_points: usize,
    /// Handed in again since an approval, and not approved since.
    pub again: usize,
    /// Of those that are approved, approved within [`QUICK_MS`] of being shown.
    pub quick: usize,
}

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no such assignment.
    #[error("there is no such assignment")]
    Unknown,
    /// The file cannot be filled in, or written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What would be written of an assignment there, and how many of its submissions are how far.
///
/// # Errors
/// If there is no such assignment, or its grades cannot go there.
pub fn preview(
    store: &Store,
    assignment: i64,
    target: &Target,
) -> Result<(Written, Counts), ExportError> {
    let rows = store.read_now(|reader| Rows::new(reader, assignment))?;
    let rows = rows.ok_or(ExportError::Unknown)?;
    Ok((rows.write(target)?, rows.counts))
}

/// Remembers that a file leaves which a preview showed.
///
/// # Errors
/// If the store fails.
pub fn keep(store: &Store, assignment: i64, written: &Written) -> Result<(), StoreError> {
    store.write_now(|writer| {
        let person = writer.person(Role::Teacher)?;
        let what = (written.name.as_str(), written.export.grades);
        let kept = writer.keep_export((assignment, person), what, &written.export.bytes);
        kept.map(Ok)
    })
}

/// Whether no model can read it.
fn is_by_hand(work: &Work) -> bool {
    let reasons = work.graded.iter().flat_map(|graded| &graded.reasons);
    reasons
        .into_iter()
        .any(|finding| finding.kind == FindingKind::Unreadable)
}

/// The submissions of an assignment as far as they may leave, with their numbers.
pub(crate) struct Rows {
    assignment: (String, String),
    works: Vec<(i64, String)>,
    rows: Vec<Row>,
    pub(crate) counts: Counts,
    first_again: Option<i64>,
    first_quick: Option<i64>,
    first_by_hand: Option<i64>,
    first_failed: Option<i64>,
}

impl Rows {
    /// Those of an assignment; nothing if there is no such.
    pub(crate) fn new(reader: &Reader<'_>, assignment: i64) -> rusqlite::Result<Option<Self>> {
        let (Some(of), Some(held)) = (reader.assignment(assignment)?, reader.rubric(assignment)?)
        else {
            return Ok(None);
        };
        let (mut works, mut rows, mut counts) = (Vec::new(), Vec::new(), Counts::default());
        let mut first_again = None;
        let (mut first_by_hand, mut first_failed) = (None, None);
        for outline in reader.works(assignment)? {
            // With its text, which outlines lack.
            let Some(work) = reader.work(outline.id)? else {
                continue;
            };
            let standing = work.standing(&held.rubric);
            let count = match standing.state() {
                State::Approved => &mut counts.approved,
                State::WithoutPoints => &mut counts.without_points,
                State::ToReview | State::ToApprove => &mut counts.open,
                State::Ungraded => &mut counts.ungraded,
                State::Failed if is_by_hand(&work) => &mut counts.by_hand,
                State::Failed => &mut counts.failed,
                State::NotAttempted => &mut counts.not_attempted,
            };
            *count += 1;
            if standing.state() == State::Failed {
                let first = match is_by_hand(&work) {
                    true => &mut first_by_hand,
                    false => &mut first_failed,
                };
                first.get_or_insert(work.id);
            }
            let earlier = work
                .earlier
                .map(|id| reader.work(id))
                .transpose()?
                .flatten();
            let was_approved = earlier.is_some_and(|w| w.review.decision == Decision::Approved);
            if was_approved && !standing.state().is_settled() {
                counts.again += 1;
                first_again.get_or_insert(work.id);
            }
            let submission = reader.submission(work.id)?;
            let origin = submission.map(|submission| submission.origin);
            let origin = origin.unwrap_or_default();
            rows.push(Row::new(&work.name, &origin, &standing));
            works.push((work.id, work.name));
        }
        let quick = reader.quick_approvals(assignment, QUICK_MS)?;
        counts.quick = quick.len();
        Ok(Some(Self {
            first_quick: quick.first().copied(),
            assignment: (held.rubric.id, of.title),
            works,
            rows,
            counts,
            first_again,
            first_by_hand,
            first_failed,
        }))
    }

    /// What would be written there.
    pub(crate) fn write(&self, target: &Target) -> Result<Written, Refusal> {
        let (id, title) = (&self.assignment.0, &self.assignment.1);
        let (name, export) = match target {
            Target::Sheet(file, choice) => (
                file.name.clone(),
                fill(&file.bytes, title, &self.rows, choice)?,
            ),
            Target::File(format) => (
                format!("{id}-{}", format.file()),
                write(*format, (id, title), &self.rows)?,
            ),
        };
        Ok(Written {
            name,
            export,
            works: self.works.clone(),
        })
    }

    /// The first submission in such a state.
    pub(crate) fn first(&self, is: impl Fn(State) -> bool) -> Option<i64> {
        let place = self.rows.iter().position(|row| is(row.state))?;
        Some(self.works[place].0)
    }

    /// The first one that was handed in again since it was approved.
    pub(crate) const fn first_again(&self) -> Option<i64> {
        self.first_again
    }

    /// The first ones that failed, and that a person has to grade.
    pub(crate) const fn first_failed(&self) -> [Option<i64>; 2] {
        [self.first_failed, self.first_by_hand]
    }

    /// The first one that was approved without being read.
    pub(crate) const fn first_quick(&self) -> Option<i64> {
        self.first_quick
    }

    /// The title of the assignment.
    pub(crate) fn title(&self) -> &str {
        &self.assignment.1
    }
}
