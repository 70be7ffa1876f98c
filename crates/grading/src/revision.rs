//! What another version of a rubric does to values that were given by an earlier one.
//!
//! Points, caps and titles are no matter of judgement: values are computed anew. What a criterion says is: where its words
//! or levels have changed, the model's result is stale, and is asked for again.

use crate::config::GradingConfig;
use crate::request;
use crate::review::{Decision, PointsOf, Review, Standing};
use crate::rubric::{Criterion, Rubric, Scale};
use crate::submission::Submission;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Digests of all that a result depends on: what is sent, and what was found in the submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// Of all but the criteria.
    rest: String,
    /// Of the words of each criterion, by its id.
    criteria: BTreeMap<String, String>,
}

/// What of a result would come out otherwise now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staleness {
    /// Nothing.
    Fresh,
    /// What is said of these criteria.
    Criteria(Vec<String>),
    /// Everything.
    All,
}

impl Inputs {
    /// Those of a submission now.
    #[must_use]
    pub fn new(config: &GradingConfig, rubric: &Rubric, submission: &Submission) -> Self {
        let bare = Rubric {
            title: String::new(),
            criteria: Vec::new(),
            ..rubric.clone()
        };
        let criteria = rubric.criteria.iter();
        Self {
            rest: request::inputs(config, &bare, submission),
            criteria: criteria.map(|c| (c.id.clone(), wording(c))).collect(),
        }
    }

    /// What of a result with these inputs is stale beside others. A criterion that is gone takes its value with it.
    #[must_use]
    pub fn staleness(&self, now: &Self) -> Staleness {
        if self.rest != now.rest {
            return Staleness::All;
        }
        let is_stale = |(id, words): &(&String, &String)| self.criteria.get(*id) != Some(words);
        let stale: Vec<String> = now
            .criteria
            .iter()
            .filter(is_stale)
            .map(|(id, _)| id.clone())
            .collect();
        match stale.len() {
            0 => Staleness::Fresh,
            count if count == now.criteria.len() => Staleness::All,
            _ => Staleness::Criteria(stale),
        }
    }
}

/// A digest of what a criterion asks for, but for its title and its points.
fn wording(criterion: &Criterion) -> String {
    let scale = match &criterion.scale {
        Scale::Levels(levels) => {
            let words = levels.iter().map(|l| json!([l.label, l.description]));
            json!(words.collect::<Vec<_>>())
        }
        Scale::Steps(steps) => json!(steps.len()),
    };
    let reflection = criterion.reflection.as_ref();
    let reflection = reflection.map(|r| (&r.question, r.min_words));
    let words = json!([criterion.description, reflection, criterion.answer, scale]);
    blake3::hash(words.to_string().as_bytes())
        .to_hex()
        .to_string()
}

/// What persons decided by a rubric, by the next version of it. Where no value stands for one that was given, the work is
/// open again and wants a second look; so it is where something else comes on top or is taken off.
#[must_use]
pub fn carried_review(review: &Review, from: &Rubric, to: &Rubric, is_late: bool) -> Review {
    let mut next = review.clone();
    let points = |given: &PointsOf| -> (PointsOf, bool) {
        let mut is_whole = true;
        let mut carried_points = PointsOf::new();
        for (id, points) in given {
            let of = |rubric: &Rubric| rubric.criteria.iter().find(|c| c.id == *id).cloned();
            let (Some(from), Some(to)) = (of(from), of(to)) else {
                // A criterion that is gone takes its value with it.
                continue;
            };
            match to.carried(from.level_of(*points), *points, from.max_points) {
                Some(points) => {
                    carried_points.insert(id.clone(), points);
                }
                None => is_whole = false,
            }
        }
        (carried_points, is_whole)
    };
    let is_whole;
    (next.points, is_whole) = points(&review.points);
    (next.text_for, _) = points(&review.text_for);
    let has = |id: &String| to.penalties.iter().any(|one| one.id == *id);
    next.penalties.retain(has);
    let is_complete = to.criteria.iter().all(|c| next.points.contains_key(&c.id));
    if next.decision == Decision::Approved && !(is_whole && is_complete) {
        next.decision = Decision::Open;
    }
    let corrections = |rubric, review| {
        let standing = Standing::new(rubric, None, review);
        Standing {
            is_late,
            ..standing
        }
        .corrections()
    };
    if next.decision == Decision::Approved && corrections(from, review) != corrections(to, &next) {
        next.decision = Decision::Open;
    }
    next.second_look |= !is_whole || next.decision != review.decision;
    next
}
