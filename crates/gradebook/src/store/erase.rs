//! What is deleted: rows go for good. Their bytes go when the store is swept, which a mark asks for.

use rusqlite::OptionalExtension;

use super::{Assignment, Reader, Writer, json};

/// Tables whose numbers stand in addresses: none is given twice, so that a page that is still open names nothing else.
const NUMBERED: [&str; 3] = ["submission", "assignment", "run"];

/// Name of the setting with the highest number that one of them ever had.
fn floor(table: &str) -> String {
    format!("last {table}")
}

/// Name of the setting that says that deleted bytes are still in the file.
const UNSWEPT: &str = "unswept";

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
    "DELETE FROM anchor WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM blind_reading WHERE submission IN (SELECT value FROM json_each(?1))",
    "DELETE FROM opened WHERE submission IN (SELECT value FROM json_each(?1))",
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

/// A name without the number that tells it from others.
fn without_number(name: &str) -> &str {
    match name
        .strip_suffix(')')
        .and_then(|name| name.rsplit_once(" ("))
    {
        Some((name, _)) => name,
        None => name,
    }
}

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

    /// All works of the student whose a work is, in all courses, by what the learning system knows them by. A name, and the
    /// number that Moodle gives anew in each assignment, tell who it is within a course alone, and only where nobody else in
    /// an assignment is called so.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn works_of_student(&self, work: i64) -> rusqlite::Result<Vec<i64>> {
        let mut query = self.sql.prepare_cached(
            "SELECT submission.key, submission.key = submission.name OR submission.key LIKE 'Moodle: %', assignment.course,
                    submission.name, submission.assignment
             FROM submission JOIN assignment ON assignment.id = submission.assignment WHERE submission.id = ?1",
        )?;
        type Known = (String, bool, i64, String, i64);
        let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Known> {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
            ))
        };
        let Some((key, is_of_course, course, name, own)) =
            query.query_row([work], read).optional()?
        else {
            return Ok(Vec::new());
        };
        let mut same: Vec<i64> = vec![work];
        if is_of_course {
            let name = without_number(&name);
            let mut others = self.sql.prepare_cached(
                "SELECT submission.id, submission.assignment, submission.name
                 FROM submission JOIN assignment ON assignment.id = submission.assignment
                 WHERE assignment.course = ?1 AND submission.replaced_by IS NULL",
            )?;
            let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(i64, i64, String)> {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            };
            let found = others.query_map([course], row)?;
            let found: Vec<(i64, i64, String)> = found.collect::<rusqlite::Result<_>>()?;
            let called: Vec<&(i64, i64, String)> = found
                .iter()
                .filter(|one| without_number(&one.2) == name)
                .collect();
            let is_only = |one: &&&(i64, i64, String)| {
                called.iter().filter(|other| other.1 == one.1).count() == 1
            };
            // Of two who are called so where the work is, nobody knows which one another work is of.
            if called.iter().filter(|one| one.1 == own).count() <= 1 {
                let others = called.iter().filter(|one| one.1 != own);
                same.extend(others.filter(is_only).map(|one| one.0));
            }
        } else {
            let mut query = self
                .sql
                .prepare_cached("SELECT id FROM submission WHERE key = ?1")?;
            let found = query.query_map([key], |row| row.get(0))?;
            same.extend(found.collect::<rusqlite::Result<Vec<i64>>>()?);
        }
        let mut all = Vec::new();
        for one in same {
            all.extend(self.versions(one)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Works of groups that a student is in, by the number of the learning system, with others.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn groups_of_student(&self, work: i64) -> rusqlite::Result<Vec<String>> {
        let mut query = self.sql.prepare_cached(
            "SELECT DISTINCT grouped.name FROM submission JOIN submission AS grouped
             ON ', ' || substr(grouped.key, instr(grouped.key, ': ') + 2) || ','
                LIKE '%, ' || substr(submission.key, instr(submission.key, ': ') + 2) || ',%'
             AND substr(grouped.key, 1, instr(grouped.key, ': ')) = substr(submission.key, 1, instr(submission.key, ': '))
             WHERE submission.id = ?1 AND grouped.key <> submission.key AND submission.key <> submission.name",
        )?;
        query.query_map([work], |row| row.get(0))?.collect()
    }

    /// Whether deleted bytes may still be in the file.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn is_unswept(&self) -> rusqlite::Result<bool> {
        Ok(self.setting(UNSWEPT)?.is_some())
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

    /// How many of these works were approved since the grades of their assignment last left.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn not_exported(&self, works: &[i64]) -> rusqlite::Result<i64> {
        let query =
            "SELECT count(*) FROM review JOIN submission ON submission.id = review.submission
             WHERE submission.id IN (SELECT value FROM json_each(?1)) AND replaced_by IS NULL AND decision = 'approved'
               AND changed > ifnull((SELECT max(created) FROM export WHERE export.assignment = submission.assignment), 0)";
        self.sql.query_row(query, [json(&works)], |row| row.get(0))
    }
}

impl Writer<'_> {
    /// The number of the next row of a table, which none ever had.
    pub(super) fn next_number(&self, table: &str) -> rusqlite::Result<i64> {
        let query = format!("SELECT max(id) FROM {table}");
        let last: Option<i64> = self.sql.query_row(&query, [], |row| row.get(0))?;
        let floor = self.setting(&floor(table))?;
        let floor: Option<i64> = floor.and_then(|text| text.parse().ok());
        Ok(last.max(floor).unwrap_or(0) + 1)
    }

    /// Remembers which numbers were given, before some of them go.
    fn keep_numbers(&self) -> rusqlite::Result<()> {
        for table in NUMBERED {
            let last = self.next_number(table)? - 1;
            self.set(&floor(table), &last.to_string())?;
        }
        self.set(UNSWEPT, "1")
    }

    /// Says that no deleted byte is left in the file.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn is_swept(&self) -> rusqlite::Result<()> {
        self.sql
            .execute("DELETE FROM setting WHERE name = ?1", [UNSWEPT])?;
        Ok(())
    }

    /// Deletes works with all that was made of them.
    ///
    /// # Errors
    /// If SQLite says no, as where another work was handed in in place of one of them.
    pub fn erase_works(&self, works: &[i64]) -> rusqlite::Result<()> {
        self.keep_numbers()?;
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
        for statement in [
            "DELETE FROM member WHERE course NOT IN (SELECT course FROM assignment)",
            "DELETE FROM course WHERE id NOT IN (SELECT course FROM assignment)",
        ] {
            self.sql.execute(statement, [])?;
        }
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
        self.set(UNSWEPT, "1")?;
        self.sql.execute(
            "UPDATE person SET name = ?2 WHERE id = ?1 AND role = 'assistant'",
            (person, FORGOTTEN),
        )?;
        Ok(())
    }
}
