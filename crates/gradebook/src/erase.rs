//! Deleting: a submission, all of a student, an assignment, a course; for a page and for the command line.
//!
//! [`Gradebook::would_erase`] says what would go, [`Gradebook::erase`] deletes it. While a run goes on nothing is deleted.

use std::path::Path;

use crate::error::GradebookError;
use crate::platform::private_file;
use crate::runs;
use crate::store::{Assignment, Reader, StoreError, Writer};
use crate::{Gradebook, Shared};

/// What is to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A submission, with those that it took the place of.
    Submission(i64),
    /// All submissions of the student whose this one is, in all courses.
    Student(i64),
    /// An assignment.
    Assignment(i64),
    /// The course that this assignment belongs to.
    Course(i64),
}

/// What goes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Erasure {
    /// Whole assignments.
    pub assignments: Vec<Assignment>,
    /// Submissions, by number, those that count no more included.
    pub works: Vec<i64>,
    /// What they are called.
    pub names: Vec<String>,
    /// Approved grades among them that have not left since.
    pub not_exported: i64,
    /// Assignments of the courses that a student is in: the teacher's own gradebook, which has the name, is forgotten there.
    pub sheets: Vec<Assignment>,
    /// Works of groups that a student is in, which stay, as they are others', too.
    pub groups: Vec<String>,
}

impl Erasure {
    fn new(reader: &Reader<'_>, scope: Scope) -> rusqlite::Result<Option<Self>> {
        let mut erasure = Self::default();
        let assignments = match scope {
            Scope::Submission(work) => {
                erasure.works = reader.versions(work)?;
                Vec::new()
            }
            Scope::Student(work) => {
                erasure.works = reader.works_of_student(work)?;
                erasure.groups = reader.groups_of_student(work)?;
                let mut places = Vec::new();
                for work in &erasure.works {
                    places.extend(reader.work(*work)?.map(|work| work.assignment));
                }
                // The name may also stand where nothing was handed in.
                for place in places.clone() {
                    places.extend(reader.course_of(place)?);
                }
                places.sort_unstable();
                places.dedup();
                for place in places {
                    erasure.sheets.extend(reader.assignment(place)?);
                }
                Vec::new()
            }
            Scope::Assignment(id) => vec![id],
            Scope::Course(id) => reader.course_of(id)?,
        };
        for id in assignments {
            erasure.works.extend(reader.all_works(id)?);
            erasure.assignments.extend(reader.assignment(id)?);
        }
        erasure.not_exported = reader.not_exported(&erasure.works)?;
        erasure.names = reader.names_of(&erasure.works)?;
        let is_nothing = erasure.works.is_empty() && erasure.assignments.is_empty();
        Ok((!is_nothing).then_some(erasure))
    }

    /// Of what goes: a page deletes what it showed, and nothing that came since.
    pub(crate) fn digest(&self) -> String {
        let ids: Vec<i64> = self.assignments.iter().map(|one| one.id).collect();
        let text = format!("{:?} {ids:?}", self.works);
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }

    fn run(&self, writer: &Writer<'_>) -> rusqlite::Result<()> {
        writer.erase_works(&self.works)?;
        for assignment in &self.assignments {
            writer.erase_assignment(assignment)?;
        }
        for assignment in &self.sheets {
            writer.forget_sheet(assignment.id)?;
        }
        Ok(())
    }
}

impl Shared {
    pub(crate) fn would_erase(&self, scope: Scope) -> Result<Option<Erasure>, StoreError> {
        self.store.read_now(|reader| Erasure::new(reader, scope))
    }
}

impl Gradebook {
    /// What would go; nothing if there is nothing of it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn would_erase(&self, scope: Scope) -> Result<Option<Erasure>, GradebookError> {
        Ok(self.shared.would_erase(scope)?)
    }

    /// Deletes it for good.
    ///
    /// # Errors
    /// While a run goes on, or if the store fails.
    pub fn erase(&self, scope: Scope) -> Result<Option<Erasure>, GradebookError> {
        self.erase_seen(scope, None)
    }

    /// The same, if it is still what a page showed.
    pub(crate) fn erase_seen(
        &self,
        scope: Scope,
        seen: Option<&str>,
    ) -> Result<Option<Erasure>, GradebookError> {
        let place = runs::place(&self.shared)?;
        let store = &self.shared.store;
        let erased = store.write_now(|writer| {
            let erasure = Erasure::new(writer, scope)?;
            if let Some(erasure) = &erasure {
                if seen.is_some_and(|seen| seen != erasure.digest()) {
                    return Ok(Err(GradebookError::Seen));
                }
                erasure.run(writer)?;
            }
            Ok(Ok(erasure))
        })?;
        // What waits to be taken in may have the same names.
        self.shared.intakes.clear();
        // It is deleted; that the rest waits is another matter than that nothing was done.
        store.sweep().map_err(|error| {
            tracing::warn!(%error, "bytes of what was deleted are still in the gradebook");
            StoreError::Busy
        })?;
        drop(place);
        Ok(erased)
    }

    /// Assignments in which nobody and nothing did anything since then, in milliseconds since 1970.
    ///
    /// # Errors
    /// If the store fails.
    pub fn unused(&self, since_ms: i64) -> Result<Vec<Assignment>, GradebookError> {
        let found = self.shared.store.read_now(|reader| {
            let mut unused = Vec::new();
            for assignment in reader.assignments()? {
                if reader.last_used(assignment.id)? < since_ms {
                    unused.push(assignment);
                }
            }
            Ok(unused)
        });
        Ok(found?)
    }

    /// Writes all of the gradebook into another file, which only its owner may read; nothing stops meanwhile.
    ///
    /// # Errors
    /// If there is such a file, or it cannot be written.
    pub fn back_up(&self, file: &Path) -> Result<(), GradebookError> {
        let write = |source: std::io::Error| GradebookError::Backup {
            file: file.to_owned(),
            problem: match source.kind() {
                std::io::ErrorKind::AlreadyExists => "it is there already".to_owned(),
                _ => source.to_string(),
            },
        };
        let mut options = std::fs::OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .open(file)
            .map_err(write)?;
        private_file(file);
        let written = self.shared.store.copy_to(file);
        if written.is_err() {
            let _ = std::fs::remove_file(file);
        }
        Ok(written?)
    }
}
