//! What is deleted: rows go for good, and with `secure_delete` their bytes, too.

use rusqlite::OptionalExtension;

use super::{Assignment, Reader, Writer, json};

/// Name of the setting with the highest number that a submission ever had: a page that is still open names no other one.
const FLOOR: &str = "last submission";

/// Name of an assistant whose name was deleted.
pub(crate) const FORGOTTEN: &str = "somebody who graded";

/// Tables with rows of a submission, in the order in which they can go.
const OF_SUBMISSIONS: &[&str] = &[
    "DELETE FROM ai_value WHERE result IN (SELECT id FROM result WHERE submission IN (SELECT value FROM json_each(?1)))",
    "DELETE FROM bare_reading WHERE result IN (SELECT id FROM result WHERE submission IN (SELECT value FROM json_each(?1)))",
    "DELETE FROM result WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM model_call WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run_work WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM human_value WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM review WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM history WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM picture WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM original WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM submission WHERE id IN (SELECT value FROM json_each(?1))",
];

/// The same of an assignment, once it has no submissions.
const OF_ASSIGNMENT: &[&str] = &[
    "DELETE FROM run WHERE assignment = ?1",
    "DELETE FROM rubric_version WHERE assignment = ?1",
    "DELETE FROM sheet WHERE assignment = ?1",
    "DELETE FROM export WHERE assignment = ?1",
    "DELETE FROM assignment WHERE id = ?1",
];

impl Reader<'_> {
    fn ids(&self, query: &str, of: i64) -> rusqlite::Result<Vec<i64>> {
        let mut query = self.sql.prepare_cached(query)?;
        query.query_map([of], |row| row.get(0))?.collect()
    }

    /// All that was handed in one after the other in place of each other, as a work was.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn versions(&self, work: i64) -> rusqlite::Result<Vec<i64>> {
        self.ids(
            "WITH RECURSIVE version (id) AS (
                SELECT id FROM submission WHERE id = ?1
                UNION SELECT submission.id FROM submission JOIN version ON submission.replaced_by = version.id
                UNION SELECT submission.replaced_by FROM submission JOIN version ON submission.id = version.id
                WHERE submission.replaced_by IS NOT NULL)
             SELECT id FROM version ORDER BY id",
            work,
        )
    }

    /// All works of the student whose a work is, by what the learning system knows them by. A name alone tells who it is
    /// within a course.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn works_of_student(&self, work: i64) -> rusqlite::Result<Vec<i64>> {
        let same = self.ids(
            "SELECT other.id FROM submission JOIN submission AS other ON other.key = submission.key
             JOIN assignment ON assignment.id = submission.assignment
             JOIN assignment AS its ON its.id = other.assignment
             WHERE submission.id = ?1 AND (submission.key <> submission.name OR its.course = assignment.course)",
            work,
        )?;
        let mut all = Vec::new();
        for one in same {
            all.extend(self.versions(one)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// All works of an assignment, those that count no more included.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn all_works(&self, assignment: i64) -> rusqlite::Result<Vec<i64>> {
        self.ids(
            "SELECT id FROM submission WHERE assignment = ?1",
            assignment,
        )
    }

    /// The assignments of the course that an assignment belongs to.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn course_of(&self, assignment: i64) -> rusqlite::Result<Vec<i64>> {
        self.ids(
            "SELECT id FROM assignment WHERE course = (SELECT course FROM assignment WHERE id = ?1)",
            assignment,
        )
    }

    /// When somebody or something last did anything in an assignment, in milliseconds since 1970.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn last_used(&self, assignment: i64) -> rusqlite::Result<i64> {
        let query = "SELECT max(
                (SELECT created FROM assignment WHERE id = ?1),
                ifnull((SELECT max(created) FROM submission WHERE assignment = ?1), 0),
                ifnull((SELECT max(created) FROM rubric_version WHERE assignment = ?1), 0),
                ifnull((SELECT max(ifnull(ended, created)) FROM run WHERE assignment = ?1), 0),
                ifnull((SELECT max(created) FROM export WHERE assignment = ?1), 0),
                ifnull((SELECT max(history.created) FROM history JOIN submission ON submission.id = history.submission
                        WHERE assignment = ?1), 0))";
        self.sql.query_row(query, [assignment], |row| row.get(0))
    }

    /// Numbers and names of works.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn names_of(&self, works: &[i64]) -> rusqlite::Result<Vec<String>> {
        let mut query = self.sql.prepare_cached(
            "SELECT DISTINCT name FROM submission WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY name",
        )?;
        query.query_map([json(&works)], |row| row.get(0))?.collect()
    }

    /// How many works of an assignment were approved since its grades last left.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn not_exported(&self, assignment: i64) -> rusqlite::Result<i64> {
        let query =
            "SELECT count(*) FROM review JOIN submission ON submission.id = review.submission
             WHERE assignment = ?1 AND replaced_by IS NULL AND decision = 'approved'
               AND changed > ifnull((SELECT max(created) FROM export WHERE assignment = ?1), 0)";
        self.sql.query_row(query, [assignment], |row| row.get(0))
    }
}

impl Writer<'_> {
    /// The number of the next submission, which none ever had.
    pub(super) fn next_submission(&self) -> rusqlite::Result<i64> {
        let last: Option<i64> = self
            .sql
            .query_row("SELECT max(id) FROM submission", [], |row| row.get(0))
            .optional()?
            .flatten();
        let floor: Option<i64> = self.setting(FLOOR)?.and_then(|text| text.parse().ok());
        Ok(last.max(floor).unwrap_or(0) + 1)
    }

    /// Deletes works with all that was made of them.
    ///
    /// # Errors
    /// If SQLite says no, as where another work was handed in in place of one of them.
    pub fn erase_works(&self, works: &[i64]) -> rusqlite::Result<()> {
        let last = self.next_submission()? - 1;
        self.set(FLOOR, &last.to_string())?;
        let works = json(&works);
        for statement in OF_SUBMISSIONS {
            self.sql.execute(statement, [&works])?;
        }
        Ok(())
    }

    /// Deletes an assignment with all that belongs to it, and its course if that has no other one.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn erase_assignment(&self, assignment: &Assignment) -> rusqlite::Result<()> {
        self.erase_works(&self.all_works(assignment.id)?)?;
        for statement in OF_ASSIGNMENT {
            self.sql.execute(statement, [assignment.id])?;
        }
        self.sql.execute(
            "DELETE FROM course WHERE id NOT IN (SELECT course FROM assignment)",
            [],
        )?;
        Ok(())
    }

    /// Forgets the teacher's own gradebook of an assignment, which has names of students.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn forget_sheet(&self, assignment: i64) -> rusqlite::Result<()> {
        self.sql
            .execute("DELETE FROM sheet WHERE assignment = ?1", [assignment])?;
        Ok(())
    }

    /// Takes the name of an assistant out of the history, and lets them in no more.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn forget_person(&self, person: i64) -> rusqlite::Result<()> {
        self.dismiss(person)?;
        self.sql.execute(
            "UPDATE person SET name = ?2 WHERE id = ?1 AND role = 'assistant'",
            (person, FORGOTTEN),
        )?;
        Ok(())
    }
}
