//! Uploads that were read and not taken in yet: a person looks at what was found first.
//!
//! [`Intakes::add`] remembers one, [`Intakes::get`] shows it, [`Intakes::taken`] ends it. They are in memory alone, and only
//! the latest few: an upload that is gone is sent again.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_grading::export::Attendance;
use tandem_grading::{GradingError, Original, Rubric, Submission, TestResults, read_originals};

use crate::limits::MAX_INTAKES;
use crate::store::{SheetFile, Store, StoreError, Writer};
use crate::uploads::Upload;

/// One upload.
pub(crate) struct Intake {
    pub(crate) course: String,
    pub(crate) rubric: Rubric,
    /// The rubric is one to begin with, which a person has to look at.
    pub(crate) is_begun: bool,
    pub(crate) submissions: Vec<Submission>,
    /// The teacher's own gradebook that came beside it, and who of it handed something in.
    pub(crate) sheet: Option<(SheetFile, Attendance)>,
    /// What came of results of tests.
    pub(crate) tests: Option<TestResults>,
    /// Where the files of the submissions are.
    pub(crate) works: Vec<PathBuf>,
    /// Ends with it.
    pub(crate) _folder: Upload,
}

/// The latest ones, by their numbers.
#[derive(Default)]
pub(crate) struct Intakes {
    all: Mutex<VecDeque<(String, Arc<Intake>)>>,
    /// Where those that were taken in went: whoever sends the form twice goes there, too.
    taken: Mutex<VecDeque<(String, String)>>,
}

impl Intakes {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(String, Arc<Intake>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Remembers one by its number, which nobody guesses.
    pub(crate) fn add(&self, id: &str, intake: Intake) {
        let mut all = self.lock();
        all.push_back((id.to_owned(), Arc::new(intake)));
        while all.len() > MAX_INTAKES {
            all.pop_front();
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Intake>> {
        let all = self.lock();
        let found = all.iter().find(|(known, _)| known == id);
        found.map(|(_, intake)| Arc::clone(intake))
    }

    /// One was taken in, and its page is this one from now on.
    pub(crate) fn taken(&self, id: &str, page: &str) {
        self.lock().retain(|(known, _)| known != id);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.push_back((id.to_owned(), page.to_owned()));
        while taken.len() > MAX_INTAKES {
            taken.pop_front();
        }
    }

    /// Where one that was taken in went.
    pub(crate) fn page_of(&self, id: &str) -> Option<String> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let found = taken.iter().find(|(known, _)| known == id);
        found.map(|(_, page)| page.clone())
    }
}

/// Why an upload cannot be taken in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untaken {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Files(#[from] GradingError),
}

impl Intake {
    /// What a submission is called: where a learning system knows the student, as the teacher's own gradebook does.
    pub(crate) fn name(&self, index: usize) -> &str {
        let submission = &self.submissions[index];
        let students = self.sheet.as_ref().map(|(_, found)| &found.students[index]);
        match students.map(Vec::as_slice) {
            Some([one]) if submission.origin.key().is_some() => one,
            _ => &submission.name,
        }
    }

    /// Whether another submission is called the same.
    pub(crate) fn has_namesake(&self, index: usize) -> bool {
        let others = (0..self.submissions.len()).filter(|other| *other != index);
        others
            .into_iter()
            .any(|other| self.name(other) == self.name(index))
    }

    /// Takes in what is not left out; the number of the assignment, and that of each submission.
    pub(crate) fn keep(
        &self,
        writer: &Writer<'_>,
        is_left_out: &dyn Fn(usize) -> bool,
    ) -> rusqlite::Result<(i64, Vec<Option<i64>>)> {
        let assignment = writer.keep_assignment(&self.course, &self.rubric)?;
        let mut ids = vec![None; self.submissions.len()];
        for (index, submission) in self.submissions.iter().enumerate() {
            if is_left_out(index) {
                continue;
            }
            let mut submission = submission.clone();
            self.name(index).clone_into(&mut submission.name);
            let id = writer.hand_in(assignment, &submission)?.id();
            writer.forget_originals(id)?;
            ids[index] = Some(id);
        }
        match &self.sheet {
            Some((sheet, _)) => writer.keep_sheet(assignment, sheet)?,
            None => writer.hide_people(assignment)?,
        }
        Ok((assignment, ids))
    }

    /// Keeps the files as they came, one after the other: others write meanwhile.
    pub(crate) fn keep_originals(&self, store: &Store, ids: &[Option<i64>]) -> Result<(), Untaken> {
        let mut failed = None;
        read_originals(
            &self.works,
            &self.rubric,
            &mut |index, original: Original| {
                let Some(id) = ids.get(index).copied().flatten() else {
                    return true;
                };
                let kept = store.write_now(|writer| {
                    writer.keep_original(id, &original).map(Ok::<_, StoreError>)
                });
                failed = kept.err();
                failed.is_none()
            },
        )?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}
