//! Courses, assignments and the versions of their rubrics.

use rusqlite::OptionalExtension;
use tandem_grading::{Material, Rubric};

use super::{Reader, Writer, json, read_json};

/// An assignment of a course.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Number.
    pub id: i64,
    /// The course's name.
    pub course: String,
    /// What it is called.
    pub title: String,
}

/// A version of an assignment's rubric.
#[derive(Debug, Clone)]
pub struct RubricVersion {
    /// Number among all.
    pub id: i64,
    /// Number among those of its assignment, from 1.
    pub number: i64,
    /// The rubric.
    pub rubric: Rubric,
}

const ASSIGNMENT: &str = "SELECT assignment.id, course.name, assignment.title
    FROM assignment JOIN course ON course.id = assignment.course";

const RUBRIC: &str = "SELECT id, number, source, templates, solutions FROM rubric_version";

fn rubric_version(row: &rusqlite::Row<'_>) -> rusqlite::Result<RubricVersion> {
    let source: String = row.get(2)?;
    let mut rubric = Rubric::parse(&source).map_err(|e| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(2, kind, Box::new(e))
    })?;
    rubric.templates = read_json::<Vec<Material>>(3, &row.get::<_, String>(3)?)?;
    rubric.solutions = read_json::<Vec<Material>>(4, &row.get::<_, String>(4)?)?;
    Ok(RubricVersion {
        id: row.get(0)?,
        number: row.get(1)?,
        rubric,
    })
}

fn assignment(row: &rusqlite::Row<'_>) -> rusqlite::Result<Assignment> {
    Ok(Assignment {
        id: row.get(0)?,
        course: row.get(1)?,
        title: row.get(2)?,
    })
}

impl Reader<'_> {
    /// All assignments, the latest first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn assignments(&self) -> rusqlite::Result<Vec<Assignment>> {
        let mut query = self
            .sql
            .prepare_cached(&format!("{ASSIGNMENT} ORDER BY assignment.id DESC"))?;
        query.query_map([], assignment)?.collect()
    }

    /// One assignment.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn assignment(&self, id: i64) -> rusqlite::Result<Option<Assignment>> {
        let mut query = self
            .sql
            .prepare_cached(&format!("{ASSIGNMENT} WHERE assignment.id = ?1"))?;
        query.query_row([id], assignment).optional()
    }

    /// The version of an assignment's rubric that holds.
    ///
    /// # Errors
    /// If SQLite says no, or the rubric that was kept cannot be read any more.
    pub fn rubric(&self, assignment: i64) -> rusqlite::Result<Option<RubricVersion>> {
        let mut query = self.sql.prepare_cached(&format!(
            "{RUBRIC} WHERE assignment = ?1 ORDER BY number DESC LIMIT 1"
        ))?;
        query.query_row([assignment], rubric_version).optional()
    }

    /// The version of a rubric that a run was started with.
    ///
    /// # Errors
    /// If SQLite says no, or the rubric that was kept cannot be read any more.
    pub fn rubric_of_run(&self, run: i64) -> rusqlite::Result<Option<RubricVersion>> {
        let mut query = self.sql.prepare_cached(&format!(
            "{RUBRIC} WHERE id = (SELECT rubric_version FROM run WHERE id = ?1)"
        ))?;
        query.query_row([run], rubric_version).optional()
    }

    /// The versions of an assignment's rubric from one of them on.
    pub(super) fn rubrics_from(&self, assignment: i64, id: i64) -> rusqlite::Result<Vec<Rubric>> {
        let mut query = self.sql.prepare_cached(&format!(
            "{RUBRIC} WHERE assignment = ?1 AND id >= ?2 ORDER BY number"
        ))?;
        let all = query.query_map((assignment, id), rubric_version)?;
        all.map(|version| Ok(version?.rubric)).collect()
    }
}

impl Writer<'_> {
    /// The assignment of a course with this rubric's id, which is made if there is none; a rubric that differs from the
    /// one that holds becomes its next version.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_assignment(&self, course: &str, rubric: &Rubric) -> rusqlite::Result<i64> {
        self.sql.execute(
            "INSERT INTO course (name, created) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
            (course, self.now),
        )?;
        let course: i64 =
            self.sql
                .query_row("SELECT id FROM course WHERE name = ?1", [course], |row| {
                    row.get(0)
                })?;
        self.sql.execute(
            "INSERT INTO assignment (id, course, key, title, created) VALUES (?5, ?1, ?2, ?3, ?4)
             ON CONFLICT (course, key) DO UPDATE SET title = ?3",
            (
                course,
                &rubric.id,
                &rubric.title,
                self.now,
                self.next_number("assignment")?,
            ),
        )?;
        let id: i64 = self.sql.query_row(
            "SELECT id FROM assignment WHERE course = ?1 AND key = ?2",
            (course, &rubric.id),
            |row| row.get(0),
        )?;
        let held = self.rubric(id)?;
        let is_same = held.as_ref().is_some_and(|held| {
            let held = &held.rubric;
            (&held.source, &held.templates, &held.solutions)
                == (&rubric.source, &rubric.templates, &rubric.solutions)
        });
        if !is_same {
            self.sql.execute(
                "INSERT INTO rubric_version (assignment, number, source, templates, solutions, created)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (
                    id,
                    held.as_ref().map_or(1, |held| held.number + 1),
                    &rubric.source,
                    json(&rubric.templates),
                    json(&rubric.solutions),
                    self.now,
                ),
            )?;
            if let Some(held) = &held {
                self.carry_reviews(id, (&held.rubric, rubric))?;
            }
        }
        Ok(id)
    }
}
