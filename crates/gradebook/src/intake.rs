//! Uploads that were read and not taken in yet: a person looks at what was found first.
//!
//! [`Intakes::add`] remembers one, [`Intakes::get`] shows it, [`Intakes::take`] ends it. They are in memory alone, and only the
//! latest few: an upload that is gone is sent again.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_grading::export::Attendance;
use tandem_grading::{GradingError, Original, Rubric, Submission, read_originals};

use crate::limits::MAX_INTAKES;
use crate::security::random_text;
use crate::store::{SheetFile, StoreError, Writer};
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
    /// Where the files of the submissions are.
    pub(crate) works: Vec<PathBuf>,
    /// Ends with it.
    pub(crate) _folder: Upload,
}

/// The latest ones, by their numbers.
#[derive(Default)]
pub(crate) struct Intakes {
    all: Mutex<VecDeque<(String, Arc<Intake>)>>,
}

impl Intakes {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(String, Arc<Intake>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one; its number, which nobody guesses.
    pub(crate) fn add(&self, intake: Intake) -> String {
        let id = random_text();
        let mut all = self.lock();
        all.push_back((id.clone(), Arc::new(intake)));
        while all.len() > MAX_INTAKES {
            all.pop_front();
        }
        id
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Intake>> {
        let all = self.lock();
        let found = all.iter().find(|(known, _)| known == id);
        found.map(|(_, intake)| Arc::clone(intake))
    }

    /// The same, which is forgotten.
    pub(crate) fn take(&self, id: &str) -> Option<Arc<Intake>> {
        let mut all = self.lock();
        let place = all.iter().position(|(known, _)| known == id)?;
        all.remove(place).map(|(_, intake)| intake)
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

    /// Takes in what is not left out, with the files as they came; the number of the assignment.
    pub(crate) fn keep(
        &self,
        writer: &Writer<'_>,
        is_left_out: &dyn Fn(usize) -> bool,
    ) -> rusqlite::Result<Result<i64, Untaken>> {
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
        if let Some((sheet, _)) = &self.sheet {
            writer.keep_sheet(assignment, sheet)?;
        }
        let mut failed = None;
        let read = read_originals(&self.works, &mut |index, original: Original| {
            let Some(id) = ids.get(index).copied().flatten() else {
                return true;
            };
            match writer.keep_original(id, &original) {
                Ok(()) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        match (failed, read) {
            (Some(error), _) => Err(error),
            (None, read) => Ok(read.map(|()| assignment).map_err(Untaken::Files)),
        }
    }
}
