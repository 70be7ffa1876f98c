//! Runs: what they are to grade, how far they are, and the calls that they made.

use rusqlite::OptionalExtension;
use tandem_grading::revision::Inputs;
use tandem_grading::{Job, JobRecord, Submission};

use super::{Reader, Writer, json, read_json};

/// A run of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Number among all.
    pub id: i64,
    /// Its assignment.
    pub assignment: i64,
    /// Number among those of its assignment, from 1.
    pub number: i64,
    /// What it was started with.
    pub settings: String,
    /// When it was started, in milliseconds since 1970.
    pub created: i64,
    /// When it ended.
    pub ended: Option<i64>,
    /// How it ended; nothing while it goes on, and if its process is gone.
    pub outcome: Option<Outcome>,
    /// Why it failed.
    pub problem: Option<String>,
}

impl RunRow {
    /// True if nothing of it is left. One whose process ended has no outcome.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome == Some(Outcome::Done)
    }

    /// Milliseconds from its start to its end.
    #[must_use]
    pub fn took_ms(&self) -> Option<u64> {
        u64::try_from(self.ended? - self.created).ok()
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Each of its works has a result.
    Done,
    /// It was told to stop.
    Stopped,
    /// It could not go on.
    Failed,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    fn read(text: &str) -> Self {
        match text {
            "done" => Self::Done,
            "stopped" => Self::Stopped,
            _ => Self::Failed,
        }
    }
}

/// Sums over the calls of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Calls.
    pub calls: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Those of them that did not have to be read again.
    pub cached_tokens: u64,
}

/// A work of a run, and the status of the result that the run made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunWork {
    /// Its number.
    pub id: i64,
    /// Nothing while there is no result.
    pub status: Option<String>,
}

const RUN: &str =
    "SELECT id, assignment, number, settings, created, outcome, problem, ended FROM run";

fn read_run(row: &rusqlite::Row<'_>) -> rusqlite::Result<RunRow> {
    let outcome: Option<String> = row.get(5)?;
    Ok(RunRow {
        id: row.get(0)?,
        assignment: row.get(1)?,
        number: row.get(2)?,
        settings: row.get(3)?,
        created: row.get(4)?,
        outcome: outcome.map(|text| Outcome::read(&text)),
        problem: row.get(6)?,
        ended: row.get(7)?,
    })
}

impl Reader<'_> {
    /// A run.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn run(&self, id: i64) -> rusqlite::Result<Option<RunRow>> {
        let mut query = self.sql.prepare_cached(&format!("{RUN} WHERE id = ?1"))?;
        query.query_row([id], read_run).optional()
    }

    /// The run that made the result of a work.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn run_of_result(&self, work: i64) -> rusqlite::Result<Option<RunRow>> {
        let mut query = self.sql.prepare_cached(&format!(
            "{RUN} WHERE id = (SELECT run FROM result WHERE submission = ?1 ORDER BY id DESC LIMIT 1)"
        ))?;
        query.query_row([work], read_run).optional()
    }

    /// The runs of an assignment, the latest first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn runs(&self, assignment: i64) -> rusqlite::Result<Vec<RunRow>> {
        let mut query = self
            .sql
            .prepare_cached(&format!("{RUN} WHERE assignment = ?1 ORDER BY id DESC"))?;
        query.query_map([assignment], read_run)?.collect()
    }

    /// The works of a run, in its order.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn run_works(&self, run: i64) -> rusqlite::Result<Vec<RunWork>> {
        let mut query = self.sql.prepare_cached(
            "SELECT run_work.submission, (SELECT status FROM result WHERE run = ?1
                    AND submission = run_work.submission ORDER BY id DESC LIMIT 1)
             FROM run_work WHERE run_work.run = ?1 ORDER BY run_work.place",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(RunWork {
                id: row.get(0)?,
                status: row.get(1)?,
            })
        };
        query.query_map([run], read)?.collect()
    }

    /// What served the calls of a run, each once.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn weights_of_run(&self, run: i64) -> rusqlite::Result<Vec<String>> {
        let mut query = self
            .sql
            .prepare_cached("SELECT DISTINCT weights FROM model_call WHERE run = ?1")?;
        query.query_map([run], |row| row.get(0))?.collect()
    }

    /// When the results of a run were made that models had a part in, in milliseconds since 1970.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn result_times(&self, run: i64) -> rusqlite::Result<Vec<u64>> {
        let mut query = self.sql.prepare_cached(
            "SELECT created FROM result WHERE run = ?1 AND score IS NOT NULL ORDER BY created",
        )?;
        let read = |row: &rusqlite::Row<'_>| Ok(u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0));
        query.query_map([run], read)?.collect()
    }

    /// Sums over the calls of a run that were answered.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn run_sums(&self, run: i64) -> rusqlite::Result<Sums> {
        let mut query = self.sql.prepare_cached(
            "SELECT count(*), ifnull(sum(prompt_tokens), 0), ifnull(sum(cached_tokens), 0) FROM model_call
             WHERE run = ?1 AND is_answered = 1",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let whole = |i: usize| row.get::<_, i64>(i).map(|n| u64::try_from(n).unwrap_or(0));
            Ok(Sums {
                calls: whole(0)?,
                prompt_tokens: whole(1)?,
                cached_tokens: whole(2)?,
            })
        };
        query.query_row([run], read)
    }

    /// The answer that the same question got for a work, in one run if it is named.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn answered(
        &self,
        (work, run): (i64, Option<i64>),
        job: Job,
        question: &str,
    ) -> rusqlite::Result<Option<JobRecord>> {
        let mut query = self.sql.prepare_cached(
            "SELECT record FROM model_call
             WHERE submission = ?1 AND job = ?2 AND question = ?3 AND run = ifnull(?4, run)
                 AND (is_answered = 1 OR json_extract(record, '$.finish_reason') = 'length')
             ORDER BY is_answered DESC, id DESC LIMIT 1",
        )?;
        query
            .query_row((work, job.as_str(), question, run), |row| {
                read_json(0, &row.get::<_, String>(0)?)
            })
            .optional()
    }

    /// The files of some works, in their order.
    ///
    /// # Errors
    /// If SQLite says no, or a work is not there.
    pub fn submissions(&self, works: &[i64]) -> rusqlite::Result<Vec<Submission>> {
        let one = |id: &i64| {
            self.submission(*id)?
                .ok_or(rusqlite::Error::QueryReturnedNoRows)
        };
        works.iter().map(one).collect()
    }

    /// What the result of a work depends on; nothing if there is none, or an earlier version kept it.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn inputs_of(&self, work: i64) -> rusqlite::Result<Option<Inputs>> {
        let mut query = self.sql.prepare_cached(
            "SELECT inputs FROM result WHERE submission = ?1 ORDER BY id DESC LIMIT 1",
        )?;
        let read = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let found = query.query_row([work], read).optional()?;
        Ok(found.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// The same of each current work of an assignment that has a result.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn inputs(&self, assignment: i64) -> rusqlite::Result<Vec<(i64, Option<Inputs>)>> {
        let mut query = self.sql.prepare_cached(
            "SELECT submission.id, result.inputs FROM submission JOIN result ON result.id =
                (SELECT max(id) FROM result WHERE submission = submission.id)
             WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let inputs = serde_json::from_str(&row.get::<_, String>(1)?);
            Ok((row.get(0)?, inputs.ok()))
        };
        query.query_map([assignment], read)?.collect()
    }
}

impl Writer<'_> {
    /// Starts a run of some works of an assignment, by the rubric that holds.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn start_run(
        &self,
        assignment: i64,
        works: &[i64],
        settings: &str,
    ) -> rusqlite::Result<i64> {
        self.sql.execute(
            "INSERT INTO run (id, assignment, number, rubric_version, settings, created)
             SELECT ?4, ?1, (SELECT count(*) + 1 FROM run WHERE assignment = ?1), id, ?2, ?3
             FROM rubric_version WHERE assignment = ?1 ORDER BY number DESC LIMIT 1",
            (assignment, settings, self.now, self.next_number("run")?),
        )?;
        let run = self.sql.last_insert_rowid();
        let mut insert = self
            .sql
            .prepare_cached("INSERT INTO run_work (run, submission, place) VALUES (?1, ?2, ?3)")?;
        for (place, work) in (0i64..).zip(works) {
            insert.execute((run, work, place))?;
        }
        Ok(run)
    }

    /// Says how a run ended.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn end_run(
        &self,
        run: i64,
        outcome: Outcome,
        problem: Option<&str>,
    ) -> rusqlite::Result<()> {
        self.sql.execute(
            "UPDATE run SET ended = ?2, outcome = ?3, problem = ?4 WHERE id = ?1",
            (run, self.now, outcome.as_str(), problem),
        )?;
        Ok(())
    }

    /// Ends the runs of an assignment that were broken off: what is left of them goes to the next one.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn end_unfinished_runs(&self, assignment: i64) -> rusqlite::Result<()> {
        self.sql.execute(
            "DELETE FROM run_work WHERE run IN
                (SELECT id FROM run WHERE assignment = ?1 AND ifnull(outcome, '') <> 'done')
             AND NOT EXISTS (SELECT 1 FROM result WHERE run = run_work.run AND submission = run_work.submission)",
            [assignment],
        )?;
        self.sql.execute(
            "UPDATE run SET outcome = 'done', problem = NULL, ended = ifnull(ended, ?2)
             WHERE assignment = ?1 AND ifnull(outcome, '') <> 'done'",
            (assignment, self.now),
        )?;
        Ok(())
    }

    /// A run that was stopped or interrupted goes on.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn continue_run(&self, run: i64) -> rusqlite::Result<()> {
        self.sql.execute(
            "UPDATE run SET ended = NULL, outcome = NULL, problem = NULL WHERE id = ?1",
            [run],
        )?;
        Ok(())
    }

    /// Keeps the record of a call.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_call(
        &self,
        (run, work): (i64, i64),
        weights: &str,
        record: &JobRecord,
    ) -> rusqlite::Result<()> {
        let cached = record.usage.and_then(|usage| usage.prompt_tokens_details);
        self.sql.execute(
            "INSERT INTO model_call
                (run, submission, job, model, weights, question, sampling, is_answered, record, created,
                 prompt_tokens, cached_tokens)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, settings, ?7, ?8, ?9, ?10, ?11 FROM run WHERE id = ?1",
            (
                run,
                work,
                record.job.as_str(),
                &record.model,
                weights,
                &record.question,
                record.error.is_none(),
                json(record),
                self.now,
                record.usage.map_or(0, |usage| usage.prompt_tokens),
                cached.map_or(0, |details| details.cached_tokens),
            ),
        )?;
        Ok(())
    }
}
