//! What models made: runs, calls and results. Nothing here is ever changed; the last result of a work holds.

use std::collections::HashMap;

use rusqlite::OptionalExtension;
use tandem_grading::review::PointsOf;
use tandem_grading::revision::Inputs;
use tandem_grading::{CriterionResult, Graded, JobRecord, Points, Status};

use super::{Reader, Writer, json, read_json};

/// Where a result comes from.
#[derive(Debug, Clone)]
pub struct Kept<'a> {
    /// The run.
    pub run: i64,
    /// The work.
    pub work: i64,
    /// What the result depends on, if that is known.
    pub inputs: Option<&'a Inputs>,
}

fn status(text: &str) -> Status {
    let all = [Status::Graded, Status::NeedsReview, Status::NotAttempted];
    all.into_iter()
        .find(|status| status.as_str() == text)
        .unwrap_or(Status::Failed)
}

fn points(thousandths: u32) -> Points {
    Points::from_thousandths(thousandths)
}

/// The columns that an outline has.
fn outline(row: &rusqlite::Row<'_>, from: usize, name: String) -> rusqlite::Result<Graded> {
    Ok(Graded {
        name,
        status: status(&row.get::<_, String>(from)?),
        score: row
            .get::<_, Option<u32>>(from + 1)?
            .map(|score| points(score).as_f64()),
        reasons: read_json(from + 2, &row.get::<_, String>(from + 2)?)?,
        max_score: 0.0,
        criteria: Vec::new(),
        feedback: None,
        flags: Vec::new(),
        notes: Vec::new(),
        jobs: Vec::new(),
    })
}

impl Reader<'_> {
    /// The results that hold, by work: without rationales, evidence and feedback.
    pub(super) fn outlines(&self, assignment: i64) -> rusqlite::Result<HashMap<i64, Graded>> {
        let mut query = self.sql.prepare_cached(
            "SELECT submission.id, result.status, result.score, result.findings, result.id
             FROM submission JOIN result ON result.id =
                (SELECT max(id) FROM result WHERE submission = submission.id)
             WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let graded = outline(row, 1, String::new())?;
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(4)?, graded))
        };
        let mut all = HashMap::new();
        let mut works = HashMap::new();
        for row in query.query_map([assignment], read)? {
            let (work, result, graded) = row?;
            works.insert(result, work);
            all.insert(work, graded);
        }
        let mut query = self.sql.prepare_cached(
            "SELECT ai_value.result, ai_value.criterion, ai_value.title, ai_value.points, ai_value.max_points,
                    ai_value.level
             FROM submission JOIN ai_value ON ai_value.result =
                (SELECT max(id) FROM result WHERE submission = submission.id)
             WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let result = CriterionResult {
                id: row.get(1)?,
                title: row.get(2)?,
                points: points(row.get(3)?),
                max_points: points(row.get(4)?),
                evidence: Vec::new(),
                rationale: String::new(),
                level: row.get(5)?,
            };
            Ok((row.get::<_, i64>(0)?, result))
        };
        for row in query.query_map([assignment], read)? {
            let (result, criterion) = row?;
            let graded = works.get(&result).and_then(|work| all.get_mut(work));
            if let Some(graded) = graded {
                graded.criteria.push(criterion);
            }
        }
        Ok(all)
    }

    /// The points that models had given the current works of an assignment when a run had ended, by work; nothing of those
    /// without a score.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn points_after(
        &self,
        assignment: i64,
        run: i64,
    ) -> rusqlite::Result<HashMap<i64, PointsOf>> {
        let mut query = self.sql.prepare_cached(
            "SELECT submission.id, ai_value.criterion, ai_value.points
             FROM submission JOIN result ON result.id =
                (SELECT max(id) FROM result WHERE submission = submission.id AND run <= ?2)
             JOIN ai_value ON ai_value.result = result.id
             WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL AND result.score IS NOT NULL",
        )?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, points(row.get(2)?)));
        let mut all: HashMap<i64, PointsOf> = HashMap::new();
        for row in query.query_map([assignment, run], read)? {
            let (work, criterion, points): (i64, String, Points) = row?;
            all.entry(work).or_default().insert(criterion, points);
        }
        Ok(all)
    }

    /// The result of a work that holds, with its number, but for its calls.
    pub(super) fn graded(&self, work: i64, name: &str) -> rusqlite::Result<Option<(i64, Graded)>> {
        let mut query = self.sql.prepare_cached(
            "SELECT id, status, score, findings, feedback, flags, notes FROM result WHERE submission = ?1
             ORDER BY id DESC LIMIT 1",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let mut graded = outline(row, 1, name.to_owned())?;
            graded.feedback = row.get(4)?;
            graded.flags = read_json(5, &row.get::<_, String>(5)?)?;
            graded.notes = read_json(6, &row.get::<_, String>(6)?)?;
            Ok((row.get::<_, i64>(0)?, graded))
        };
        let Some((result, mut graded)) = query.query_row([work], read).optional()? else {
            return Ok(None);
        };
        graded.criteria = self.ai_values(result)?;
        let maxima: Points = graded.criteria.iter().map(|c| c.max_points).sum();
        graded.max_score = maxima.as_f64();
        Ok(Some((result, graded)))
    }

    fn ai_values(&self, result: i64) -> rusqlite::Result<Vec<CriterionResult>> {
        let mut query = self.sql.prepare_cached(
            "SELECT criterion, title, points, max_points, level, rationale, evidence FROM ai_value WHERE result = ?1",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(CriterionResult {
                id: row.get(0)?,
                title: row.get(1)?,
                points: points(row.get(2)?),
                max_points: points(row.get(3)?),
                level: row.get(4)?,
                rationale: row.get(5)?,
                evidence: read_json(6, &row.get::<_, String>(6)?)?,
            })
        };
        query.query_map([result], read)?.collect()
    }

    /// What the model gave a work without its comments, beside the result with this number.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn bare_reading(&self, result: i64) -> rusqlite::Result<Option<PointsOf>> {
        let query = "SELECT points FROM bare_reading WHERE result = ?1";
        let read = |row: &rusqlite::Row<'_>| read_json(0, &row.get::<_, String>(0)?);
        self.sql.query_row(query, [result], read).optional()
    }

    /// The calls that the result of a work that holds was made of; none of what earlier versions kept.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn calls_of_result(&self, work: i64) -> rusqlite::Result<Vec<JobRecord>> {
        let mut query = self.sql.prepare_cached(
            "SELECT (SELECT record FROM model_call WHERE submission = ?1 AND question = asked.value
                     ORDER BY id DESC LIMIT 1)
             FROM json_each((SELECT questions FROM result WHERE submission = ?1 ORDER BY id DESC LIMIT 1)) AS asked
             ORDER BY asked.key",
        )?;
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Option<String>>(0);
        let found: Vec<Option<String>> =
            query.query_map([work], read)?.collect::<Result<_, _>>()?;
        found
            .iter()
            .flatten()
            .map(|text| read_json(0, text))
            .collect()
    }

    /// The calls that were made for a work, the latest first, with the time of each in milliseconds since 1970.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn calls(&self, work: i64) -> rusqlite::Result<Vec<(i64, JobRecord)>> {
        let mut query = self.sql.prepare_cached(
            "SELECT created, record FROM model_call WHERE submission = ?1 ORDER BY id DESC",
        )?;
        let read =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, read_json(1, &row.get::<_, String>(1)?)?));
        query.query_map([work], read)?.collect()
    }
}

impl Writer<'_> {
    /// Keeps what the model gave a work without its comments.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_bare_reading(&self, result: i64, points: &PointsOf) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT OR REPLACE INTO bare_reading (result, points, created) VALUES (?1, ?2, ?3)",
            (result, json(points), self.now),
        )?;
        Ok(())
    }

    /// Keeps a result that was made elsewhere, with its calls.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_made(&self, of: &Kept<'_>, weights: &str, graded: &Graded) -> rusqlite::Result<()> {
        for record in &graded.jobs {
            self.keep_call((of.run, of.work), weights, record)?;
        }
        self.keep_result(of, graded)
    }

    /// Keeps a result; what persons decided stays as it is.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_result(&self, of: &Kept<'_>, graded: &Graded) -> rusqlite::Result<()> {
        let score = graded.score.and_then(Points::from_f64);
        self.sql.execute(
            "INSERT INTO result
                (run, submission, inputs, status, score, findings, feedback, flags, notes, created, questions)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            (
                of.run,
                of.work,
                of.inputs.map(json).unwrap_or_default(),
                graded.status.as_str(),
                score.map(Points::thousandths),
                json(&graded.reasons),
                &graded.feedback,
                json(&graded.flags),
                json(&graded.notes),
                self.now,
                json(&graded.jobs.iter().map(|job| &job.question).collect::<Vec<_>>()),
            ),
        )?;
        let result = self.sql.last_insert_rowid();
        for criterion in &graded.criteria {
            self.sql.execute(
                "INSERT INTO ai_value (result, criterion, title, points, max_points, level, rationale, evidence)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                (
                    result,
                    &criterion.id,
                    &criterion.title,
                    criterion.points.thousandths(),
                    criterion.max_points.thousandths(),
                    &criterion.level,
                    &criterion.rationale,
                    json(&criterion.evidence),
                ),
            )?;
        }
        Ok(())
    }
}
