//! What students handed in, and how far each work is.

use std::collections::HashMap;

use rusqlite::OptionalExtension;
use tandem_grading::review::Review;
use tandem_grading::{Graded, Submission};

use super::{Reader, Writer, json, read_json};

/// A submission with all that is known of it.
#[derive(Debug, Clone)]
pub struct Work {
    /// Number.
    pub id: i64,
    /// Its assignment.
    pub assignment: i64,
    /// What it is called.
    pub name: String,
    /// Its place in the random order.
    pub draw: u32,
    /// What models made of it; in lists without rationales, evidence and feedback.
    pub graded: Option<Graded>,
    /// What persons decided.
    pub review: Review,
    /// Counts the changes of the review.
    pub version: i64,
    /// When it was last changed, in milliseconds since 1970.
    pub changed: Option<i64>,
    /// Name of the person who did.
    pub changed_by: Option<String>,
}

/// What became of a submission that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// It is new.
    New(i64),
    /// It was there, and is the same.
    Same(i64),
    /// It takes the place of another one, whose values stay with that one.
    Again(i64),
}

impl Handed {
    /// Its number.
    #[must_use]
    pub const fn id(self) -> i64 {
        match self {
            Self::New(id) | Self::Same(id) | Self::Again(id) => id,
        }
    }
}

impl Reader<'_> {
    /// All current works of an assignment, in the order in which they came.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn works(&self, assignment: i64) -> rusqlite::Result<Vec<Work>> {
        let mut query = self.sql.prepare_cached(
            "SELECT id, name, draw FROM submission WHERE assignment = ?1 AND replaced_by IS NULL ORDER BY id",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Work {
                id: row.get(0)?,
                assignment,
                name: row.get(1)?,
                draw: row.get(2)?,
                graded: None,
                review: Review::default(),
                version: 0,
                changed: None,
                changed_by: None,
            })
        };
        let mut works: Vec<Work> = query
            .query_map([assignment], read)?
            .collect::<Result<_, _>>()?;
        let places: HashMap<i64, usize> =
            works.iter().enumerate().map(|(i, w)| (w.id, i)).collect();
        for (id, graded) in self.outlines(assignment)? {
            if let Some(place) = places.get(&id) {
                works[*place].graded = Some(graded);
            }
        }
        for (id, kept) in self.reviews(assignment)? {
            if let Some(place) = places.get(&id) {
                kept.put(&mut works[*place]);
            }
        }
        Ok(works)
    }

    /// One work with everything, but for its files.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn work(&self, id: i64) -> rusqlite::Result<Option<Work>> {
        let mut query = self
            .sql
            .prepare_cached("SELECT assignment, name, draw FROM submission WHERE id = ?1")?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Work {
                id,
                assignment: row.get(0)?,
                name: row.get(1)?,
                draw: row.get(2)?,
                graded: None,
                review: Review::default(),
                version: 0,
                changed: None,
                changed_by: None,
            })
        };
        let Some(mut work) = query.query_row([id], read).optional()? else {
            return Ok(None);
        };
        work.graded = self.graded(id, &work.name)?;
        if let Some(kept) = self.review(id)? {
            kept.put(&mut work);
        }
        Ok(Some(work))
    }

    /// The files of a work.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn submission(&self, id: i64) -> rusqlite::Result<Option<Submission>> {
        let mut query = self
            .sql
            .prepare_cached("SELECT content FROM submission WHERE id = ?1")?;
        query
            .query_row([id], |row| read_json(0, &row.get::<_, String>(0)?))
            .optional()
    }
}

impl Writer<'_> {
    /// Keeps submissions that were handed in; their numbers, in their order.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn hand_in_all(
        &self,
        assignment: i64,
        submissions: &[Submission],
    ) -> rusqlite::Result<Vec<i64>> {
        let one = |submission| Ok(self.hand_in(assignment, submission)?.id());
        submissions.iter().map(one).collect()
    }

    /// Keeps a submission that was handed in.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn hand_in(&self, assignment: i64, submission: &Submission) -> rusqlite::Result<Handed> {
        let content = json(submission);
        let earlier: Option<(i64, String)> = self
            .sql
            .query_row(
                "SELECT id, content FROM submission WHERE assignment = ?1 AND name = ?2 AND replaced_by IS NULL",
                (assignment, &submission.name),
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        match &earlier {
            Some((id, known)) if *known == content => return Ok(Handed::Same(*id)),
            // Only one may be the current one at a time.
            Some((id, _)) => self
                .sql
                .execute("UPDATE submission SET replaced_by = id WHERE id = ?1", [id])?,
            None => 0,
        };
        self.sql.execute(
            "INSERT INTO submission (assignment, name, draw, content, created) VALUES (?1, ?2, ?3, ?4, ?5)",
            (
                assignment,
                &submission.name,
                draw(assignment, &submission.name),
                content,
                self.now,
            ),
        )?;
        let id = self.sql.last_insert_rowid();
        let Some((earlier, _)) = earlier else {
            return Ok(Handed::New(id));
        };
        self.sql.execute(
            "UPDATE submission SET replaced_by = ?1 WHERE id = ?2",
            (id, earlier),
        )?;
        Ok(Handed::Again(id))
    }
}

/// A number that looks random and stays, so that no name has a better place than another in all assignments.
fn draw(assignment: i64, name: &str) -> u32 {
    let digest = blake3::hash(format!("{assignment} {name}").as_bytes());
    let bytes = digest.as_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
