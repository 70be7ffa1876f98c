//! What left the gradebook, and the teacher's own file that takes it.

use rusqlite::OptionalExtension;

use super::{Reader, Writer};

/// A teacher's own gradebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SheetFile {
    /// The file's name.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A file that left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastExport {
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// Name of the person; empty if none was told.
    pub who: String,
    /// The file's name.
    pub file: String,
    /// How many grades it had.
    pub grades: i64,
}

impl Reader<'_> {
    /// The teacher's own gradebook of an assignment.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn sheet(&self, assignment: i64) -> rusqlite::Result<Option<SheetFile>> {
        let query = "SELECT name, bytes FROM sheet WHERE assignment = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(SheetFile {
                name: row.get(0)?,
                bytes: row.get(1)?,
            })
        };
        self.sql.query_row(query, [assignment], read).optional()
    }

    /// The files that left an assignment, the latest first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn exports(&self, assignment: i64) -> rusqlite::Result<Vec<PastExport>> {
        let mut query = self.sql.prepare_cached(
            "SELECT export.created, person.name, export.file, export.grades
             FROM export JOIN person ON person.id = export.person
             WHERE assignment = ?1 ORDER BY export.id DESC LIMIT 20",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(PastExport {
                at: row.get(0)?,
                who: row.get(1)?,
                file: row.get(2)?,
                grades: row.get(3)?,
            })
        };
        query.query_map([assignment], read)?.collect()
    }
}

impl Writer<'_> {
    /// Keeps a teacher's own gradebook in place of the one before; models are not shown who is in it.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_sheet(&self, assignment: i64, sheet: &SheetFile) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT OR REPLACE INTO sheet (assignment, name, bytes, created) VALUES (?1, ?2, ?3, ?4)",
            (assignment, &sheet.name, &sheet.bytes, self.now),
        )?;
        self.hide_people(assignment)
    }

    /// Remembers that a file leaves.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_export(
        &self,
        (assignment, person): (i64, i64),
        (file, grades): (&str, usize),
        bytes: &[u8],
    ) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT INTO export (assignment, person, file, grades, digest, created)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (
                assignment,
                person,
                file,
                i64::try_from(grades).unwrap_or(i64::MAX),
                blake3::hash(bytes).to_hex().to_string(),
                self.now,
            ),
        )?;
        Ok(())
    }
}
