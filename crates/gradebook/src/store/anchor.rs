//! Anchors: works that persons grade before they see what a model gave, so that both can be compared.
//!
//! [`Writer::draw_anchors`] chooses them, [`Reader::works_for`] and [`Reader::work_for`] show them to a person as if no model
//! and nobody else had graded them, [`Writer::change`] takes that person's points, and [`Writer::save_blind`] ends it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::OptionalExtension;
use tandem_grading::Rubric;
use tandem_grading::review::{Change, Decision, PointsOf, Review, Standing};
use tandem_grading::revision::carried_review;

use super::review::{By, WriteError};
use super::{Reader, Work, Writer, json, read_json};

/// What a person gave an anchor without having seen a model's points, by the rubric that holds now.
#[derive(Debug, Clone, PartialEq)]
pub struct BlindReading {
    /// The work.
    pub work: i64,
    /// Who.
    pub person: i64,
    /// By criterion.
    pub points: PointsOf,
}

/// Anchors that a person has to grade without having seen a model's points.
const BLIND: &str = "SELECT anchor.submission, blind_reading.points, blind_reading.rubric_version, submission.assignment
    FROM anchor JOIN submission ON submission.id = anchor.submission
    LEFT JOIN blind_reading ON blind_reading.submission = anchor.submission AND blind_reading.person = ?2
    WHERE replaced_by IS NULL AND blind_reading.saved IS NULL
        AND NOT EXISTS (SELECT 1 FROM opened WHERE opened.submission = anchor.submission AND opened.person = ?2)";

/// Work, points so far, the version of the rubric that they were given by, and the assignment.
type Draft = (i64, PointsOf, Option<i64>, i64);

fn draft(row: &rusqlite::Row<'_>) -> rusqlite::Result<Draft> {
    let points: Option<String> = row.get(1)?;
    let points = points.map(|text| read_json(1, &text)).transpose()?;
    Ok((
        row.get(0)?,
        points.unwrap_or_default(),
        row.get(2)?,
        row.get(3)?,
    ))
}

impl Work {
    /// The same as a person sees it who grades it blind, with the points that they gave so far.
    fn blinded(self, points: PointsOf) -> Self {
        Self {
            is_blind: true,
            graded: None,
            review: Review {
                points,
                ..Review::default()
            },
            changed: None,
            changed_by: None,
            ..self
        }
    }
}

impl Reader<'_> {
    /// All current works of an assignment, as a person may see them.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn works_for(&self, assignment: i64, person: i64) -> rusqlite::Result<Vec<Work>> {
        let query = format!("{BLIND} AND submission.assignment = ?1");
        let mut query = self.sql.prepare_cached(&query)?;
        let drafts: Vec<Draft> = query
            .query_map((assignment, person), draft)?
            .collect::<Result<_, _>>()?;
        let mut hidden = HashMap::new();
        for found in drafts {
            hidden.insert(found.0, self.points_now(found)?);
        }
        let works = self.works(assignment)?.into_iter();
        let seen = works.map(|work| match hidden.remove(&work.id) {
            Some(points) => work.blinded(points),
            None => work,
        });
        Ok(seen.collect())
    }

    /// One work with everything but its files, as a person may see it.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn work_for(&self, id: i64, person: i64) -> rusqlite::Result<Option<Work>> {
        let work = self.work(id)?;
        Ok(match (work, self.blind_points(id, person)?) {
            (Some(work), Some(points)) => Some(work.blinded(points)),
            (work, _) => work,
        })
    }

    /// What a person gave so far to a work that they have to grade blind; nothing if it is no such work.
    pub(super) fn blind_points(
        &self,
        work: i64,
        person: i64,
    ) -> rusqlite::Result<Option<PointsOf>> {
        let query = format!("{BLIND} AND submission.id = ?1");
        let mut query = self.sql.prepare_cached(&query)?;
        let found = query.query_row((work, person), draft).optional()?;
        found.map(|found| self.points_now(found)).transpose()
    }

    /// The points of a draft by the rubric that holds now.
    fn points_now(&self, (_, points, version, assignment): Draft) -> rusqlite::Result<PointsOf> {
        match version {
            Some(version) if !points.is_empty() => {
                Ok(carried(points, &self.rubrics_from(assignment, version)?))
            }
            _ => Ok(points),
        }
    }

    /// Whether a person was shown what models made of a work.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn is_opened(&self, work: i64, person: i64) -> rusqlite::Result<bool> {
        let query = "SELECT count(*) FROM opened WHERE submission = ?1 AND person = ?2";
        let count: i64 = self
            .sql
            .query_row(query, (work, person), |row| row.get(0))?;
        Ok(count > 0)
    }

    /// How many current works of an assignment are anchors.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn count_anchors(&self, assignment: i64) -> rusqlite::Result<usize> {
        let query =
            "SELECT count(*) FROM anchor JOIN submission ON submission.id = anchor.submission
             WHERE assignment = ?1 AND replaced_by IS NULL";
        let count: i64 = self.sql.query_row(query, [assignment], |row| row.get(0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// Current works of an assignment that can become anchors, in the random order: those that nobody has graded, or
    /// was shown with the points of a model.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn possible_anchors(&self, assignment: i64) -> rusqlite::Result<Vec<i64>> {
        let mut query = self.sql.prepare_cached(
            "SELECT id FROM submission WHERE assignment = ?1 AND replaced_by IS NULL
                AND NOT EXISTS (SELECT 1 FROM anchor WHERE anchor.submission = submission.id)
                AND NOT EXISTS (SELECT 1 FROM opened WHERE opened.submission = submission.id)
                AND NOT EXISTS (SELECT 1 FROM history WHERE history.submission = submission.id)
             ORDER BY draw, id",
        )?;
        query.query_map([assignment], |row| row.get(0))?.collect()
    }

    /// What persons gave the current anchors of an assignment blind, and saved. A value that the rubric of now does not have
    /// is left out.
    ///
    /// # Errors
    /// If SQLite says no, or a rubric that was kept cannot be read any more.
    pub fn blind_readings(&self, assignment: i64) -> rusqlite::Result<Vec<BlindReading>> {
        let Some(now) = self.rubric(assignment)? else {
            return Ok(Vec::new());
        };
        let mut query = self.sql.prepare_cached(
            "SELECT blind_reading.submission, person, points, rubric_version
             FROM blind_reading JOIN submission ON submission.id = blind_reading.submission
             WHERE assignment = ?1 AND replaced_by IS NULL AND saved IS NOT NULL
             ORDER BY blind_reading.submission, person",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let reading = BlindReading {
                work: row.get(0)?,
                person: row.get(1)?,
                points: read_json(2, &row.get::<_, String>(2)?)?,
            };
            Ok((reading, row.get::<_, i64>(3)?))
        };
        let mut versions: HashMap<i64, Vec<Rubric>> = HashMap::new();
        let mut all = Vec::new();
        for row in query.query_map([assignment], read)? {
            let (mut reading, version) = row?;
            if version != now.id {
                let steps = match versions.entry(version) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => place.insert(self.rubrics_from(assignment, version)?),
                };
                reading.points = carried(reading.points, steps);
            }
            all.push(reading);
        }
        Ok(all)
    }
}

/// Points by the last of several versions of a rubric, which were given by the first one.
fn carried(points: PointsOf, versions: &[Rubric]) -> PointsOf {
    let given = Review {
        points,
        ..Review::default()
    };
    let steps = versions.iter().zip(versions.iter().skip(1));
    let review = steps.fold(given, |review, (from, to)| {
        carried_review(&review, from, to, false)
    });
    review.points
}

impl Writer<'_> {
    /// Makes anchors of works.
    ///
    /// # Errors
    /// If SQLite says no, as where one is an anchor already.
    pub fn draw_anchors(&self, works: &[i64]) -> rusqlite::Result<()> {
        let mut insert = self
            .sql
            .prepare_cached("INSERT INTO anchor (submission, created) VALUES (?1, ?2)")?;
        for work in works {
            insert.execute((work, self.now))?;
        }
        Ok(())
    }

    /// Remembers that a person was shown what models made of a work, or wants to be.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn open_to(&self, work: i64, person: i64) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT OR IGNORE INTO opened (submission, person, created) VALUES (?1, ?2, ?3)",
            (work, person, self.now),
        )?;
        Ok(())
    }

    /// Takes the points of a person who grades a work blind; all other changes have to wait.
    pub(super) fn change_blind(
        &self,
        (work, rubric): (&Work, (i64, &Rubric)),
        given: PointsOf,
        (person, change): (i64, &Change),
    ) -> rusqlite::Result<Result<(), WriteError>> {
        if !matches!(change, Change::Points { .. }) {
            return Ok(Err(WriteError::Blind));
        }
        let review = Review {
            points: given,
            ..Review::default()
        };
        let standing = Standing::new(rubric.1, None, &review);
        let next = match standing.after(change) {
            Err(refusal) => return Ok(Err(refusal.into())),
            Ok(next) => next,
        };
        self.sql.execute(
            "INSERT INTO blind_reading (submission, person, rubric_version, points) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (submission, person) DO UPDATE SET rubric_version = ?3, points = ?4 WHERE saved IS NULL",
            (work.id, person, rubric.0, json(&next.points)),
        )?;
        Ok(Ok(()))
    }

    /// Keeps for good what a person gave a work blind. They become the points of the review, too, unless somebody has
    /// given some.
    ///
    /// # Errors
    /// If SQLite says no; inside, if it is no work that this person grades blind, or a criterion has no points.
    pub fn save_blind(&self, work: i64, by: &By<'_>) -> rusqlite::Result<Result<(), WriteError>> {
        let (Some(given), Some(held)) = (self.blind_points(work, by.person)?, self.work(work)?)
        else {
            return Ok(Err(WriteError::Unknown));
        };
        let Some(version) = self.rubric(held.assignment)? else {
            return Ok(Err(WriteError::Unknown));
        };
        let blind = held.clone().blinded(given);
        let standing = Standing::new(&version.rubric, None, &blind.review);
        if let Err(refusal) = standing.check_complete() {
            return Ok(Err(refusal.into()));
        }
        let points = standing.all_points();
        self.sql.execute(
            "UPDATE blind_reading SET saved = ?3, points = ?4, rubric_version = ?5 WHERE submission = ?1 AND person = ?2",
            (work, by.person, self.now, json(&points), version.id),
        )?;
        self.open_to(work, by.person)?;
        if held.review.decision == Decision::Open && held.review.points.is_empty() {
            let next = Review {
                points,
                ..held.review.clone()
            };
            self.keep_review(&held, &next, by.person)?;
            self.remember((work, by), "points given blind", (&held.review, &next))?;
        }
        Ok(Ok(()))
    }
}
