//! What a person decides about a submission, beside what a model suggested. Pure: who, when and where it is kept is
//! the store's business.

use crate::feedback::{Item, items};
use crate::finding::{Finding, FindingKind};
use crate::graded::{CriterionResult, Graded, Status};
use crate::limits::{MAX_COMMENTS, MAX_ITEM_CHARS, MAX_ITEMS, MAX_NOTE_CHARS, MAX_TITLE_CHARS};
use crate::points::Points;
use crate::rubric::{Criterion, Penalty, Rubric};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Points by the id of the criterion.
pub type PointsOf = BTreeMap<String, Points>;

/// All that persons decided about one submission. A model's values are never in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Review {
    /// Points that a person gave.
    pub points: PointsOf,
    /// The feedback in a person's words; nothing while the model's stands.
    pub text: Option<Vec<Item>>,
    /// The points that the text was written for.
    pub text_for: PointsOf,
    /// The text is a model's, which wrote it for points that a person gave.
    #[serde(default)]
    pub text_is_models: bool,
    /// What was decided at last.
    pub decision: Decision,
    /// Somebody should look once more.
    pub second_look: bool,
    /// For those who grade; no student sees it.
    pub note: String,
    /// Ids of the penalties that a person gave.
    #[serde(default)]
    pub penalties: BTreeSet<String>,
    /// Whether it counts as late, where a person says so.
    #[serde(default)]
    pub late: Option<bool>,
    /// Points that a person gives or takes off beside the rubric, with the reason.
    #[serde(default)]
    pub adjustment: Option<Correction>,
    /// Comments on single lines, in the order of files and lines as somebody wrote them.
    #[serde(default)]
    pub comments: Vec<Comment>,
}

impl Review {
    /// Nothing of it but for the note.
    fn reset(self) -> Self {
        Self {
            note: self.note,
            ..Self::default()
        }
    }
}

/// What a person says of one line; the student reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    /// Path of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The text.
    pub text: String,
}

/// What was decided about a submission as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Nothing yet.
    #[default]
    Open,
    /// The points and the text are right.
    Approved,
    /// There is nothing to give points for.
    WithoutPoints,
}

/// One act of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Gives points to a criterion, or goes back to the model's.
    Points {
        /// The criterion's id.
        criterion: String,
        /// The points; nothing for the model's.
        points: Option<Points>,
    },
    /// Writes one item of the feedback; an empty text removes it.
    Item {
        /// Which item, from 0.
        index: usize,
        /// What it said before.
        was: String,
        /// The item.
        item: Item,
    },
    /// Adds an item to the feedback.
    Add(Item),
    /// Goes back to the model's text.
    ModelText,
    /// Takes over what a model wrote for these points.
    Rewrite {
        /// The text.
        text: Vec<Item>,
        /// The points.
        points: PointsOf,
        /// Something is wrong with it, so that a person must look.
        is_doubtful: bool,
    },
    /// Approves points and text.
    Approve {
        /// The text was written for other points, and that is known.
        confirmed: bool,
    },
    /// Decides that there is nothing to give points for.
    WithoutPoints,
    /// Takes the decision back.
    Reopen,
    /// Asks for a second look, or no more.
    SecondLook(bool),
    /// Writes the note.
    Note(String),
    /// Gives a penalty of the rubric, by its id, or takes it back.
    Penalty {
        /// Its id.
        id: String,
        /// Given, or taken back.
        is_given: bool,
    },
    /// Comments on a line, which the submission has.
    Comment(Comment),
    /// Writes a comment anew; an empty text removes it.
    Recomment {
        /// Which one, from 0.
        index: usize,
        /// What it said before.
        was: String,
        /// What it says now.
        text: String,
    },
    /// Gives or takes off points beside the rubric, for a reason; nothing for none.
    Adjust(Option<Correction>),
    /// Says whether it counts as late; nothing for what the learning system says.
    Late(Option<bool>),
    /// Takes all back that a person decided, but for the note.
    Reset,
}

/// Why a change cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The rubric has no such criterion.
    #[error("the rubric has no criterion '{0}'")]
    Criterion(String),
    /// The rubric has no such penalty, or no rule for late submissions.
    #[error("the rubric has no {0}")]
    Rule(String),
    /// The rubric does not allow these points.
    #[error("{criterion}: the rubric does not allow {points} points")]
    Points {
        /// The criterion's title.
        criterion: String,
        /// What was asked for.
        points: Points,
    },
    /// Something has no points yet.
    #[error("without points yet: {0}")]
    Missing(String),
    /// The text was written for other points.
    #[error("the feedback was written for other points")]
    Marked,
    /// No model wrote one, and no person.
    #[error("there is no feedback")]
    Textless,
    /// The text is not the one that was changed.
    #[error("the feedback was changed meanwhile; look at it and write it again")]
    Text,
    /// A text is too long, or there are too many.
    #[error("{0}")]
    Limit(String),
}

/// A submission as it stands: what the model suggested and what persons decided.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// The rubric that holds now.
    pub rubric: &'a Rubric,
    /// The model's result, if there is one.
    pub model: Option<&'a Graded>,
    /// What persons decided.
    pub review: &'a Review,
    /// The learning system says that it came late.
    pub is_late: bool,
}

/// Points beside the criteria.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// For what.
    pub title: String,
    /// How many.
    pub points: Points,
    /// They come on top; else they are taken off.
    pub is_on_top: bool,
}

impl Correction {
    /// The points with their sign.
    #[must_use]
    pub fn signed(&self) -> f64 {
        let points = self.points.as_f64();
        if self.is_on_top { points } else { -points }
    }
}

/// Nothing was decided.
static NOTHING: Review = Review {
    points: BTreeMap::new(),
    text: None,
    text_for: BTreeMap::new(),
    text_is_models: false,
    decision: Decision::Open,
    second_look: false,
    note: String::new(),
    penalties: BTreeSet::new(),
    late: None,
    adjustment: None,
    comments: Vec::new(),
};

impl<'a> Standing<'a> {
    /// Of a submission that came in time.
    #[must_use]
    pub const fn new(rubric: &'a Rubric, model: Option<&'a Graded>, review: &'a Review) -> Self {
        Self {
            rubric,
            model,
            review,
            is_late: false,
        }
    }

    /// What a model suggests, whatever persons made of it.
    #[must_use]
    pub const fn of_model(rubric: &'a Rubric, model: Option<&'a Graded>) -> Self {
        Self::new(rubric, model, &NOTHING)
    }

    /// Whether it counts as late: a person's word stands above the learning system's.
    #[must_use]
    pub fn counts_as_late(&self) -> bool {
        self.rubric.late.is_some() && self.review.late.unwrap_or(self.is_late)
    }

    /// What comes on top or is taken off: penalties in the rubric's order, lateness, and what a person gave beside the rubric.
    #[must_use]
    pub fn corrections(&self) -> Vec<Correction> {
        let given = |penalty: &&Penalty| self.review.penalties.contains(&penalty.id);
        let penalties = self.rubric.penalties.iter().filter(given);
        let late = self.rubric.late.iter().filter(|_| self.counts_as_late());
        let late = late.map(|late| (&late.title, late.points));
        let all = penalties.map(|one| (&one.title, one.points)).chain(late);
        let of_rubric = all.map(|(title, points)| Correction {
            title: title.clone(),
            points,
            is_on_top: false,
        });
        of_rubric.chain(self.review.adjustment.clone()).collect()
    }

    /// What the model said of a criterion, if all criteria were assessed; its points are those of the rubric then.
    #[must_use]
    pub fn model_result(&self, criterion: &Criterion) -> Option<&'a CriterionResult> {
        let graded = self.model.filter(|graded| graded.score.is_some())?;
        graded.criteria.iter().find(|c| c.id == criterion.id)
    }

    /// The points that the model suggests, by the rubric that holds now.
    #[must_use]
    pub fn model_points(&self, criterion: &Criterion) -> Option<Points> {
        carried_result(self.model_result(criterion)?, criterion)
    }

    /// What the model said of all criteria but some, by the rubric that holds now; nothing of those without a value.
    #[must_use]
    pub fn model_results_without(&self, stale: &[String]) -> Vec<CriterionResult> {
        let kept = self
            .rubric
            .criteria
            .iter()
            .filter(|c| !stale.contains(&c.id));
        let now = |c: &Criterion| {
            let points = self.model_points(c)?;
            Some(CriterionResult {
                title: c.title.clone(),
                level: c.level_of(points).map(str::to_owned),
                points,
                max_points: c.max_points,
                ..self.model_result(c)?.clone()
            })
        };
        kept.filter_map(now).collect()
    }

    /// The points that a person gave, if the rubric still allows them.
    #[must_use]
    pub fn person_points(&self, criterion: &Criterion) -> Option<Points> {
        let points = self.review.points.get(&criterion.id).copied();
        points.filter(|points| criterion.allowed().contains(points))
    }

    /// The points that hold: a person's, else the model's.
    #[must_use]
    pub fn points(&self, criterion: &Criterion) -> Option<Points> {
        self.person_points(criterion)
            .or_else(|| self.model_points(criterion))
    }

    /// The points that hold of all criteria that have some.
    #[must_use]
    pub fn all_points(&self) -> PointsOf {
        let criteria = self.rubric.criteria.iter();
        criteria
            .filter_map(|c| Some((c.id.clone(), self.points(c)?)))
            .collect()
    }

    /// What stands of each criterion, as a model is told it that writes the feedback; nothing while one has no points.
    #[must_use]
    pub fn assessment(&self) -> Option<Vec<CriterionResult>> {
        let one = |c: &Criterion| {
            let points = self.points(c)?;
            let said = self
                .model_result(c)
                .filter(|_| self.model_points(c) == Some(points));
            Some(CriterionResult {
                id: c.id.clone(),
                title: c.title.clone(),
                evidence: said.map(|said| said.evidence.clone()).unwrap_or_default(),
                // The model's reason is for other points.
                rationale: said
                    .map_or("The teacher gave these points.", |s| &s.rationale)
                    .to_owned(),
                level: c.level_of(points).map(str::to_owned),
                points,
                max_points: c.max_points,
            })
        };
        self.rubric.criteria.iter().map(one).collect()
    }

    /// Sum of the points that hold with what comes on top and what is taken off, 0 at the least; nothing while a criterion has
    /// none. The only place where a total is made.
    #[must_use]
    pub fn total(&self) -> Option<Points> {
        if self.review.decision == Decision::WithoutPoints {
            return None;
        }
        let sum = sum(self.rubric.criteria.iter().map(|c| self.points(c)))?;
        let corrections = self.corrections();
        let points = |is_on_top| -> Points {
            let of = corrections.iter().filter(|one| one.is_on_top == is_on_top);
            of.map(|one| one.points).sum()
        };
        let whole: Points = [sum, points(true)].into_iter().sum();
        Some(whole.less(points(false)))
    }

    /// Sum of the model's points; nothing while a criterion has none.
    #[must_use]
    pub fn model_total(&self) -> Option<Points> {
        sum(self.rubric.criteria.iter().map(|c| self.model_points(c)))
    }

    /// True if a person gave points.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.rubric
            .criteria
            .iter()
            .any(|c| self.person_points(c).is_some())
    }

    /// The model's text, item by item.
    #[must_use]
    pub fn model_text(&self) -> Vec<Item> {
        let text = self.model.and_then(|graded| graded.feedback.as_deref());
        items(text.unwrap_or_default())
    }

    /// The text that holds: a person's, else the model's.
    #[must_use]
    pub fn text(&self) -> Vec<Item> {
        match &self.review.text {
            Some(own) => own.clone(),
            None => self.model_text(),
        }
    }

    /// True if the text was written for other points than those that hold.
    #[must_use]
    pub fn text_is_marked(&self) -> bool {
        let written_for = match &self.review.text {
            Some(own) if own.is_empty() => return false,
            Some(_) => self.review.text_for.clone(),
            None if self.model_text().is_empty() => return false,
            None => {
                let criteria = self.rubric.criteria.iter();
                criteria
                    .filter_map(|c| Some((c.id.clone(), self.model_points(c)?)))
                    .collect()
            }
        };
        written_for != self.all_points()
    }

    /// True if there is no text, and no person wanted it so.
    #[must_use]
    pub fn lacks_text(&self) -> bool {
        self.review.text.is_none() && self.model_text().is_empty()
    }

    /// What to look at first: the kind that counts most, while nothing is decided.
    #[must_use]
    pub fn first_finding(&self) -> Option<&'a Finding> {
        self.findings().min_by_key(|finding| finding.kind)
    }

    /// What to look at, while nothing is decided. What was said of a text that was replaced since is not.
    pub fn findings(&self) -> impl Iterator<Item = &'a Finding> + use<'a> {
        let open = self.review.decision == Decision::Open;
        let has_other_text = self.review.text.is_some();
        let reasons = self.model.filter(|_| open).into_iter();
        reasons
            .flat_map(|graded| &graded.reasons)
            .filter(move |finding| !(has_other_text && finding.kind.is_of_text()))
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> State {
        match (self.review.decision, self.model) {
            (Decision::Approved, _) => State::Approved,
            (Decision::WithoutPoints, _) => State::WithoutPoints,
            (Decision::Open, None) => State::Ungraded,
            (Decision::Open, Some(graded)) => match graded.status {
                Status::Graded => State::ToApprove,
                Status::NeedsReview => State::ToReview,
                Status::NotAttempted => State::NotAttempted,
                Status::Failed => State::Failed,
            },
        }
    }

    /// The review after a change.
    ///
    /// # Errors
    /// If the change cannot be made; nothing is changed then.
    pub fn after(&self, change: &Change) -> Result<Review, Refusal> {
        let mut next = self.review.clone();
        match change {
            Change::Points { criterion, points } => {
                self.check_points(criterion, *points)?;
                match points {
                    Some(points) => next.points.insert(criterion.clone(), *points),
                    None => next.points.remove(criterion),
                };
                next.decision = Decision::Open;
            }
            Change::Item { index, was, item } => {
                next.text = Some(edited(self.text(), *index, was, item)?);
                self.becomes_own(&mut next);
            }
            Change::Add(item) => {
                next.text = Some(added(self.text(), item)?);
                self.becomes_own(&mut next);
            }
            Change::ModelText => {
                next.text = None;
                next.text_for = PointsOf::new();
                next.text_is_models = false;
                next.decision = Decision::Open;
            }
            Change::Rewrite {
                text,
                points,
                is_doubtful,
            } => {
                // What a person wrote or decided is never overwritten, and what was written for other points is of no use.
                if !self.may_rewrite() || *points != self.all_points() {
                    return Err(Refusal::Text);
                }
                next.second_look |= is_doubtful;
                next.text = Some(text.clone());
                next.text_for = points.clone();
                next.text_is_models = true;
                next.decision = Decision::Open;
            }
            Change::Approve { confirmed } => {
                self.check_complete()?;
                if self.text_is_marked() && !confirmed {
                    return Err(Refusal::Marked);
                }
                if self.lacks_text() && !confirmed {
                    return Err(Refusal::Textless);
                }
                // From here on they are the person's: no later run changes what was approved.
                next.points = self.all_points();
                next.text_is_models |= next.text.is_none();
                next.text = Some(self.text());
                next.text_for = self.all_points();
                next.decision = Decision::Approved;
                next.second_look = false;
            }
            Change::WithoutPoints => next.decision = Decision::WithoutPoints,
            Change::Reopen => next.decision = Decision::Open,
            Change::SecondLook(wanted) => next.second_look = *wanted,
            Change::Note(note) => {
                check_length("the note", note, MAX_NOTE_CHARS)?;
                next.note = note.trim().to_owned();
            }
            Change::Penalty { .. }
            | Change::Comment(_)
            | Change::Recomment { .. }
            | Change::Adjust(_)
            | Change::Late(_) => self.beside(&mut next, change)?,
            Change::Reset => next = next.reset(),
        }
        Ok(next)
    }

    /// What stands beside the criteria and the feedback.
    fn beside(&self, next: &mut Review, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Penalty { id, is_given } => {
                let is_known = self.rubric.penalties.iter().any(|one| one.id == *id);
                match (is_known, is_given) {
                    (false, true) => return Err(Refusal::Rule(format!("penalty '{id}'"))),
                    (_, true) => _ = next.penalties.insert(id.clone()),
                    (_, false) => _ = next.penalties.remove(id),
                }
            }
            Change::Comment(comment) => {
                next.comments = commented(std::mem::take(&mut next.comments), comment)?;
            }
            Change::Recomment { index, was, text } => {
                check_length("the comment", text, MAX_ITEM_CHARS)?;
                let known = next.comments.get_mut(*index).filter(|one| one.text == *was);
                text.trim()
                    .clone_into(&mut known.ok_or(Refusal::Text)?.text);
                next.comments.retain(|one| !one.text.is_empty());
            }
            Change::Adjust(adjustment) => {
                if let Some(one) = adjustment {
                    check_length("the reason", &one.title, MAX_TITLE_CHARS)?;
                    if one.title.trim().is_empty() {
                        return Err(Refusal::Limit(
                            "points beside the rubric need a reason".to_owned(),
                        ));
                    }
                }
                let some = adjustment.clone().filter(|one| one.points > Points::ZERO);
                next.adjustment = some;
            }
            Change::Late(late) => {
                if self.rubric.late.is_none() {
                    return Err(Refusal::Rule("rule for late submissions".to_owned()));
                }
                // What the learning system says needs no word of a person.
                next.late = late.filter(|late| *late != self.is_late);
            }
            _ => {}
        }
        next.decision = Decision::Open;
        Ok(())
    }

    /// True if a model may write the text once more: no person has written in it, and nothing is decided.
    #[must_use]
    pub fn may_rewrite(&self) -> bool {
        let is_models = self.review.text.is_none() || self.review.text_is_models;
        is_models && self.review.decision == Decision::Open
    }

    /// A person wrote in the text.
    fn becomes_own(&self, next: &mut Review) {
        next.text_for = self.all_points();
        next.text_is_models = false;
        next.decision = Decision::Open;
    }

    fn check_points(&self, id: &str, points: Option<Points>) -> Result<(), Refusal> {
        let criterion = self.rubric.criteria.iter().find(|c| c.id == id);
        let criterion = criterion.ok_or_else(|| Refusal::Criterion(id.to_owned()))?;
        match points {
            Some(points) if !criterion.allowed().contains(&points) => Err(Refusal::Points {
                criterion: criterion.title.clone(),
                points,
            }),
            _ => Ok(()),
        }
    }

    /// Whether all criteria have points.
    ///
    /// # Errors
    /// If one has none.
    pub fn check_complete(&self) -> Result<(), Refusal> {
        let criteria = self.rubric.criteria.iter();
        let missing: Vec<&str> = criteria
            .filter(|c| self.points(c).is_none())
            .map(|c| c.title.as_str())
            .collect();
        match missing.as_slice() {
            [] => Ok(()),
            missing => Err(Refusal::Missing(missing.join(", "))),
        }
    }
}

fn commented(mut comments: Vec<Comment>, comment: &Comment) -> Result<Vec<Comment>, Refusal> {
    check_length("the comment", &comment.text, MAX_ITEM_CHARS)?;
    let text = comment.text.trim().to_owned();
    if text.is_empty() {
        return Err(Refusal::Limit("a comment needs a text".to_owned()));
    }
    // Those of a file stay together, by their lines.
    let is_before = |one: &&Comment| one.file == comment.file && one.line <= comment.line;
    let last_before = comments.iter().rposition(|one| is_before(&one));
    let first_of_file = comments.iter().position(|one| one.file == comment.file);
    let place = last_before.map(|place| place + 1).or(first_of_file);
    let place = place.unwrap_or(comments.len());
    comments.insert(
        place,
        Comment {
            text,
            ..comment.clone()
        },
    );
    match comments.len() > MAX_COMMENTS {
        true => Err(Refusal::Limit(format!("more than {MAX_COMMENTS} comments"))),
        false => Ok(comments),
    }
}

fn sum(points: impl Iterator<Item = Option<Points>>) -> Option<Points> {
    let all: Option<Vec<Points>> = points.collect();
    all.map(|all| all.into_iter().sum())
}

fn check_length(what: &str, text: &str, limit: usize) -> Result<(), Refusal> {
    match text.chars().count() > limit {
        true => Err(Refusal::Limit(format!(
            "{what} is longer than {limit} characters"
        ))),
        false => Ok(()),
    }
}

fn trimmed(item: &Item) -> Result<Item, Refusal> {
    check_length("the text", &item.text, MAX_ITEM_CHARS)?;
    Ok(Item {
        text: item.text.trim().to_owned(),
        ..item.clone()
    })
}

fn edited(mut text: Vec<Item>, index: usize, was: &str, item: &Item) -> Result<Vec<Item>, Refusal> {
    let item = trimmed(item)?;
    let held = text.get_mut(index).filter(|held| held.text == was);
    let held = held.ok_or(Refusal::Text)?;
    *held = item;
    text.retain(|item| !item.text.is_empty());
    Ok(text)
}

fn added(mut text: Vec<Item>, item: &Item) -> Result<Vec<Item>, Refusal> {
    let item = trimmed(item)?;
    if !item.text.is_empty() {
        text.push(item);
    }
    match text.len() > MAX_ITEMS {
        true => Err(Refusal::Limit(format!(
            "the feedback has more than {MAX_ITEMS} items"
        ))),
        false => Ok(text),
    }
}

/// How far a submission is; the first ones need a person first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// There is something to look at.
    ToReview,
    /// There is no score.
    Failed,
    /// The model's score passed all checks.
    ToApprove,
    /// Nothing was written.
    NotAttempted,
    /// No model was asked yet.
    Ungraded,
    /// A person approved it.
    Approved,
    /// A person decided that there is nothing to give points for.
    WithoutPoints,
}

impl State {
    /// True if a person has decided.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Approved | Self::WithoutPoints)
    }
}

/// Where a submission stands in the queue: what needs a person first, then a random order that stays; never the
/// alphabet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    settled: bool,
    without_reason: bool,
    reason: Option<FindingKind>,
    draw: u32,
}

impl Rank {
    /// Of a submission whose random number is `draw`.
    #[must_use]
    pub fn new(
        state: State,
        reason: Option<FindingKind>,
        wants_second_look: bool,
        draw: u32,
    ) -> Self {
        let needs_a_person = matches!(state, State::ToReview | State::Failed);
        let has_reason = (needs_a_person || wants_second_look) && !state.is_settled();
        Self {
            settled: state.is_settled(),
            without_reason: !has_reason,
            reason: reason.filter(|_| has_reason),
            draw,
        }
    }
}

/// A model's result by the criterion as it is now; nothing if no value stands for it.
fn carried_result(result: &CriterionResult, to: &Criterion) -> Option<Points> {
    to.carried(result.level.as_deref(), result.points, result.max_points)
}
