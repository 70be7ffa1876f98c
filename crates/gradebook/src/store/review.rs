//! What persons decided, and the history of it.

use std::collections::HashMap;

use rusqlite::OptionalExtension;
use tandem_grading::review::{Change, Decision, PointsOf, Refusal, Review, Standing};
use tandem_grading::revision::carried_review;
use tandem_grading::{Points, Rubric};

use super::session::Role;
use super::submission::{Seen, Work};
use super::{Reader, StoreError, Writer, json, read_json};
use crate::limits::MAX_UNDO;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is no such work.
    #[error("there is no such work")]
    Unknown,
    /// It was changed meanwhile.
    #[error("this submission was changed meanwhile")]
    Conflict {
        /// By the same person, on another page.
        is_own: bool,
    },
    /// The model's result or the rubric is another one than the page showed.
    #[error("a run or another rubric changed what the page showed")]
    Outdated,
    /// Another work took its place.
    #[error("it was handed in again")]
    Replaced(i64),
    /// The person grades it without having seen what others gave.
    #[error("you grade this submission blind; give all points, and save them first")]
    Blind,
    /// The rules do not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is nothing to undo.
    #[error("there is nothing to undo")]
    NothingToUndo,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Who makes a change.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// The person.
    pub person: i64,
    /// Digest of the browser's session.
    pub session: &'a str,
    /// Of the form, so that what is sent twice is done once.
    pub key: Option<&'a str>,
}

/// A change that was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The work.
    pub work: i64,
    /// What had been done.
    pub action: String,
}

/// A line of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// Who; empty if no name was told.
    pub who: String,
    /// What was done.
    pub action: String,
    /// True if it was taken back.
    pub is_undone: bool,
}

/// A review with who changed it last.
pub(super) struct KeptReview {
    review: Review,
    version: i64,
    changed: i64,
    by: String,
}

impl KeptReview {
    pub(super) fn put(self, work: &mut Work) {
        work.review = self.review;
        work.seen.review = self.version;
        work.changed = Some(self.changed);
        work.changed_by = Some(self.by);
    }
}

const REVIEW: &str = "SELECT review.submission, review.version, review.decision, review.text, review.text_for,
        review.second_look, review.note, review.changed, person.name, review.text_is_models, review.penalties, review.late,
        review.adjustment, review.comments
    FROM review JOIN person ON person.id = review.person JOIN submission ON submission.id = review.submission";

fn decision(text: &str) -> Decision {
    match text {
        "approved" => Decision::Approved,
        "without_points" => Decision::WithoutPoints,
        _ => Decision::Open,
    }
}

const fn decision_text(decision: Decision) -> &'static str {
    match decision {
        Decision::Open => "open",
        Decision::Approved => "approved",
        Decision::WithoutPoints => "without_points",
    }
}

fn read_review(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, KeptReview)> {
    let text: Option<String> = row.get(3)?;
    let review = Review {
        points: PointsOf::new(),
        text: text.map(|text| read_json(3, &text)).transpose()?,
        text_for: read_json(4, &row.get::<_, String>(4)?)?,
        decision: decision(&row.get::<_, String>(2)?),
        second_look: row.get(5)?,
        note: row.get(6)?,
        text_is_models: row.get(9)?,
        penalties: read_json(10, &row.get::<_, String>(10)?)?,
        late: row.get(11)?,
        adjustment: {
            let adjustment: Option<String> = row.get(12)?;
            adjustment.map(|text| read_json(12, &text)).transpose()?
        },
        comments: read_json(13, &row.get::<_, String>(13)?)?,
    };
    let kept = KeptReview {
        review,
        version: row.get(1)?,
        changed: row.get(7)?,
        by: row.get(8)?,
    };
    Ok((row.get(0)?, kept))
}

impl Reader<'_> {
    /// The reviews of an assignment's current works, by work.
    pub(super) fn reviews(&self, assignment: i64) -> rusqlite::Result<HashMap<i64, KeptReview>> {
        let mut query = self.sql.prepare_cached(&format!(
            "{REVIEW} WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL"
        ))?;
        let mut all: HashMap<i64, KeptReview> = query
            .query_map([assignment], read_review)?
            .collect::<Result<_, _>>()?;
        let mut query = self.sql.prepare_cached(
            "SELECT human_value.submission, human_value.criterion, human_value.points
             FROM submission JOIN human_value ON human_value.submission = submission.id
             WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL",
        )?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        for row in query.query_map([assignment], read)? {
            let (work, criterion, points): (i64, String, u32) = row?;
            if let Some(kept) = all.get_mut(&work) {
                let points = Points::from_thousandths(points);
                kept.review.points.insert(criterion, points);
            }
        }
        Ok(all)
    }

    /// The review of a work.
    pub(super) fn review(&self, work: i64) -> rusqlite::Result<Option<KeptReview>> {
        let mut query = self
            .sql
            .prepare_cached(&format!("{REVIEW} WHERE review.submission = ?1"))?;
        let Some((_, mut kept)) = query.query_row([work], read_review).optional()? else {
            return Ok(None);
        };
        let mut query = self
            .sql
            .prepare_cached("SELECT criterion, points FROM human_value WHERE submission = ?1")?;
        let read =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, Points::from_thousandths(row.get(1)?)));
        kept.review.points = query.query_map([work], read)?.collect::<Result<_, _>>()?;
        Ok(Some(kept))
    }

    /// Works that are approved, and had been shown for less than so many milliseconds then.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn quick_approvals(&self, assignment: i64, within: u32) -> rusqlite::Result<Vec<i64>> {
        let mut query = self.sql.prepare_cached(
            "SELECT submission.id FROM submission JOIN review ON review.submission = submission.id
             JOIN history ON history.id = (SELECT max(id) FROM history
                WHERE submission = submission.id AND action LIKE 'approved%' AND undone = 0)
             WHERE submission.assignment = ?1 AND replaced_by IS NULL AND review.decision = 'approved'
                AND history.shown < ?2
             ORDER BY submission.id",
        )?;
        query
            .query_map((assignment, within), |row| row.get(0))?
            .collect()
    }

    /// What persons said of lines in an assignment, the most frequent first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn comments(&self, assignment: i64, most: usize) -> rusqlite::Result<Vec<String>> {
        let mut query = self.sql.prepare_cached(
            "SELECT json_extract(one.value, '$.text') AS said FROM review
             JOIN submission ON submission.id = review.submission, json_each(review.comments) AS one
             WHERE submission.assignment = ?1 GROUP BY said ORDER BY count(*) DESC, said LIMIT ?2",
        )?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        query
            .query_map((assignment, most), |row| row.get(0))?
            .collect()
    }

    /// What persons did to a work, the latest first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn history(&self, work: i64) -> rusqlite::Result<Vec<Past>> {
        let mut query = self.sql.prepare_cached(
            "SELECT history.created, person.name, history.action, history.undone
             FROM history JOIN person ON person.id = history.person
             WHERE history.submission = ?1 ORDER BY history.id DESC",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Past {
                at: row.get(0)?,
                who: row.get(1)?,
                action: row.get(2)?,
                is_undone: row.get(3)?,
            })
        };
        query.query_map([work], read)?.collect()
    }
}

impl Writer<'_> {
    /// Makes a change that a person made on a version of a work; returns the work as it is then.
    ///
    /// # Errors
    /// If SQLite says no; inside, if the change was not made.
    pub fn change(
        &self,
        (work, seen): (i64, Seen),
        by: &By<'_>,
        change: &Change,
    ) -> rusqlite::Result<Result<(), WriteError>> {
        if self.was_done(work, by.key)? {
            return Ok(Ok(()));
        }
        let Some(held) = self.work(work)? else {
            return Ok(Err(WriteError::Unknown));
        };
        let Some(rubric) = self.rubric(held.assignment)? else {
            return Ok(Err(WriteError::Unknown));
        };
        if let Some(next) = held.replaced_by {
            return Ok(Err(WriteError::Replaced(next)));
        }
        if let Some(given) = self.blind_points(work, by.person)? {
            let rubric = (rubric.id, &rubric.rubric);
            return self.change_blind((&held, rubric), given, (by.person, change));
        }
        if held.seen.review != seen.review {
            let query = "SELECT count(*) FROM review WHERE submission = ?1 AND person = ?2";
            let own: i64 = self
                .sql
                .query_row(query, (work, by.person), |row| row.get(0))?;
            return Ok(Err(WriteError::Conflict { is_own: own > 0 }));
        }
        let is_free = matches!(
            change,
            Change::Note(_) | Change::SecondLook(_) | Change::Reopen
        );
        if held.seen != seen && !is_free {
            return Ok(Err(WriteError::Outdated));
        }
        let standing = held.standing(&rubric.rubric);
        match standing.after(change) {
            Err(refusal) => Ok(Err(refusal.into())),
            Ok(next) if next == held.review => Ok(Ok(())),
            Ok(next) => {
                let mut action = action(change, &standing);
                let is_reopened =
                    held.review.decision != Decision::Open && next.decision == Decision::Open;
                if is_reopened && *change != Change::Reopen {
                    action.push_str("; open again");
                }
                self.keep_review(&held, &next, by.person)?;
                self.remember((work, by), &action, (&held.review, &next))?;
                Ok(Ok(()))
            }
        }
    }

    /// Keeps how long a work had been shown when the form with this key changed it, in milliseconds.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn keep_shown(&self, work: i64, key: &str, shown: u32) -> rusqlite::Result<()> {
        self.sql.execute(
            "UPDATE history SET shown = ?3 WHERE submission = ?1 AND key = ?2",
            (work, key, shown),
        )?;
        Ok(())
    }

    /// Takes what persons decided about the works of an assignment over to a new version of its rubric.
    pub(super) fn carry_reviews(
        &self,
        assignment: i64,
        (from, to): (&Rubric, &Rubric),
    ) -> rusqlite::Result<()> {
        let by = By {
            person: self.person(Role::Teacher)?,
            session: "",
            key: None,
        };
        for work in self.works(assignment)? {
            let next = carried_review(&work.review, from, to, work.is_late);
            if next != work.review {
                self.keep_review(&work, &next, by.person)?;
                let action = "values by the new version of the rubric";
                self.remember((work.id, &by), action, (&work.review, &next))?;
            }
        }
        Ok(())
    }

    /// Whether the form with this key was taken before.
    fn was_done(&self, work: i64, key: Option<&str>) -> rusqlite::Result<bool> {
        let query = "SELECT count(*) FROM history WHERE key = ?1 AND submission = ?2";
        let count = |key| {
            self.sql
                .query_row(query, (key, work), |row| row.get::<_, i64>(0))
        };
        Ok(key.map(count).transpose()?.is_some_and(|count| count > 0))
    }

    /// Takes back the last change that a browser made to a work of an assignment, but for works that somebody has changed
    /// since.
    ///
    /// # Errors
    /// If SQLite says no; inside, if there is none.
    pub fn undo(
        &self,
        assignment: i64,
        by: &By<'_>,
    ) -> rusqlite::Result<Result<Undone, WriteError>> {
        let mut query = self.sql.prepare_cached(
            "SELECT history.id, history.submission, history.action, history.before, history.after
                 FROM history JOIN submission ON submission.id = history.submission
                 WHERE submission.assignment = ?1 AND submission.replaced_by IS NULL
                    AND history.session = ?2 AND history.undone = 0
                 ORDER BY history.id DESC LIMIT ?3",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let before: Review = read_json(3, &row.get::<_, String>(3)?)?;
            let after: Review = read_json(4, &row.get::<_, String>(4)?)?;
            let undone = Undone {
                work: row.get(1)?,
                action: row.get(2)?,
            };
            Ok((row.get::<_, i64>(0)?, undone, before, after))
        };
        for row in query.query_map((assignment, by.session, MAX_UNDO), read)? {
            let (id, undone, before, after) = row?;
            let held = self.work(undone.work)?;
            let Some(held) = held.filter(|held| held.review == after) else {
                continue;
            };
            self.keep_review(&held, &before, by.person)?;
            self.sql
                .execute("UPDATE history SET undone = 1 WHERE id = ?1", [id])?;
            return Ok(Ok(undone));
        }
        Ok(Err(WriteError::NothingToUndo))
    }

    pub(super) fn keep_review(
        &self,
        held: &Work,
        next: &Review,
        person: i64,
    ) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT INTO review (submission, version, decision, text, text_for, second_look, note, changed, person,
                text_is_models, penalties, late, adjustment, comments)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
             ON CONFLICT (submission) DO UPDATE SET version = ?2, decision = ?3, text = ?4, text_for = ?5,
                second_look = ?6, note = ?7, changed = ?8, person = ?9, text_is_models = ?10, penalties = ?11,
                late = ?12, adjustment = ?13, comments = ?14",
            (
                held.id,
                held.seen.review + 1,
                decision_text(next.decision),
                next.text.as_ref().map(json),
                json(&next.text_for),
                next.second_look,
                &next.note,
                self.now,
                person,
                next.text_is_models,
                json(&next.penalties),
                next.late,
                next.adjustment.as_ref().map(json),
                json(&next.comments),
            ),
        )?;
        self.sql
            .execute("DELETE FROM human_value WHERE submission = ?1", [held.id])?;
        for (criterion, points) in &next.points {
            self.sql.execute(
                "INSERT INTO human_value (submission, criterion, points) VALUES (?1, ?2, ?3)",
                (held.id, criterion, points.thousandths()),
            )?;
        }
        Ok(())
    }

    pub(super) fn remember(
        &self,
        (work, by): (i64, &By<'_>),
        action: &str,
        (before, after): (&Review, &Review),
    ) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT INTO history (submission, person, created, action, before, after, session, key)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            (
                work,
                by.person,
                self.now,
                action,
                json(before),
                json(after),
                by.session,
                by.key,
            ),
        )?;
        Ok(())
    }
}

/// A change in words, with the titles as they are now, and the points that held before.
fn action(change: &Change, standing: &Standing<'_>) -> String {
    match change {
        Change::Points { criterion, points } => {
            let known = standing.rubric.criteria.iter().find(|c| c.id == *criterion);
            let title = known.map_or(criterion.as_str(), |c| c.title.as_str());
            let before = known.and_then(|c| standing.points(c));
            let before = before.map(|points| format!(" (before: {points})"));
            let before = before.unwrap_or_default();
            match points {
                Some(points) => format!("{title}: {points} points{before}"),
                None => format!("{title}: back to the model's points{before}"),
            }
        }
        Change::Item { index, item, .. } if item.text.trim().is_empty() => {
            format!("feedback: item {} removed", index + 1)
        }
        Change::Item { index, .. } => format!("feedback: item {} written", index + 1),
        Change::Add(_) => "feedback: an item added".to_owned(),
        Change::ModelText => "feedback: back to the model's text".to_owned(),
        Change::Rewrite { .. } => "feedback: written by the model for these points".to_owned(),
        Change::Approve { .. } if standing.text_is_marked() => {
            "approved with the feedback for other points".to_owned()
        }
        Change::Approve { .. } if standing.lacks_text() => "approved without feedback".to_owned(),
        Change::Approve { .. } => "approved".to_owned(),
        Change::WithoutPoints => "settled without points".to_owned(),
        Change::Reopen => "opened again".to_owned(),
        Change::SecondLook(true) => "second look wanted".to_owned(),
        Change::SecondLook(false) => "no second look wanted".to_owned(),
        Change::Note(_) => "note written".to_owned(),
        Change::Penalty { id, is_given } => {
            let known = standing.rubric.penalties.iter().find(|one| one.id == *id);
            let title = known.map_or(id.as_str(), |one| one.title.as_str());
            match is_given {
                true => format!("taken off: {title}"),
                false => format!("no more taken off: {title}"),
            }
        }
        Change::Comment(one) => format!("comment on {}, line {}", one.file, one.line),
        Change::Recomment { text, .. } if text.trim().is_empty() => "a comment removed".to_owned(),
        Change::Recomment { .. } => "a comment written anew".to_owned(),
        Change::Adjust(Some(one)) => {
            let sign = if one.is_on_top { '+' } else { '−' };
            format!("beside the rubric: {sign}{}, {}", one.points, one.title)
        }
        Change::Adjust(None) => "nothing beside the rubric".to_owned(),
        Change::Late(Some(true)) => "counts as late".to_owned(),
        Change::Late(Some(false)) => "does not count as late".to_owned(),
        Change::Late(None) => "late as the learning system says".to_owned(),
        Change::Reset => "back to the model's values".to_owned(),
    }
}
