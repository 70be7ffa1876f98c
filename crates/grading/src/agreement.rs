//! How far two who graded the same agree, by criterion, and what changes from the one to the other.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::points::Points;
use crate::review::PointsOf;
use crate::rubric::{Criterion, Rubric};

/// What one gave, by the names of the submissions.
pub type Given = BTreeMap<String, PointsOf>;

/// Two who graded the same submissions, side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Submissions that both have points for.
    pub compared: usize,
    /// Those with equal points for each criterion.
    pub equal: usize,
    /// Submissions that only one of both has points for.
    pub only_one: usize,
    /// Mean of the second total less the first one.
    pub mean_change: f64,
    /// By criterion.
    pub criteria: Vec<CriterionAgreement>,
    /// Submissions that change, those that change most first.
    pub changes: Vec<Changed>,
}

/// How far both agree in a criterion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CriterionAgreement {
    /// The criterion.
    pub id: String,
    /// What the rubric calls it.
    pub title: String,
    /// How far.
    #[serde(flatten)]
    pub agreement: Agreement,
}

/// A submission that both gave other points.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changed {
    /// What it is called.
    pub name: String,
    /// The first total, of the criteria that both have.
    pub before: f64,
    /// The second one.
    pub after: f64,
    /// Each criterion that changes, and the points of both.
    pub criteria: Vec<(String, f64, f64)>,
}

impl Comparison {
    /// Of the criteria of a rubric.
    #[must_use]
    pub fn new(rubric: &Rubric, first: &Given, second: &Given) -> Self {
        let both: Vec<(&String, &PointsOf, &PointsOf)> = first
            .iter()
            .filter_map(|(name, before)| Some((name, before, second.get(name)?)))
            .collect();
        let pairs = both.iter().map(|(_, before, after)| (*before, *after));
        let mut all: Vec<Changed> = both
            .iter()
            .map(|(name, before, after)| Changed::new(rubric, name, before, after))
            .collect();
        let sum: f64 = all.iter().map(|one| one.after - one.before).sum();
        let compared = all.len();
        all.retain(|one| !one.criteria.is_empty());
        let size = |one: &Changed| (one.after - one.before).abs();
        all.sort_by(|a, b| {
            size(b)
                .total_cmp(&size(a))
                .then_with(|| a.name.cmp(&b.name))
        });
        Self {
            compared,
            equal: compared - all.len(),
            only_one: first.len() + second.len() - 2 * compared,
            // The sum of none is -0 in Rust.
            mean_change: sum / float(compared.max(1)) + 0.0,
            criteria: Agreement::by_criterion(rubric, pairs),
            changes: all,
        }
    }
}

impl Changed {
    fn new(rubric: &Rubric, name: &str, before: &PointsOf, after: &PointsOf) -> Self {
        let ids = rubric.criteria.iter().map(|c| &c.id);
        let pairs: Vec<(&String, f64, f64)> = ids
            .filter_map(|id| Some((id, before.get(id)?.as_f64(), after.get(id)?.as_f64())))
            .collect();
        let changed = pairs.iter().filter(|(_, a, b)| a != b);
        Self {
            name: name.to_owned(),
            before: pairs.iter().map(|(_, a, _)| a).sum(),
            after: pairs.iter().map(|(_, _, b)| b).sum(),
            criteria: changed.map(|(id, a, b)| ((*id).clone(), *a, *b)).collect(),
        }
    }
}

/// What two gave the same submissions for one criterion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Submissions that both gave points.
    pub count: usize,
    /// Those with the same points.
    pub equal: usize,
    /// Those with the same points, or the next ones on the scale.
    pub within_one: usize,
    /// Mean of the second one's points less the first one's, in points.
    pub bias: f64,
    /// Cohen's kappa with quadratic weights over the places of the scale (Cohen, Psychological Bulletin 70, 1968): 1 is full
    /// agreement, 0 what chance gives. Nothing where one of both always gave the same.
    pub kappa: Option<f64>,
    /// How many would be equal if the second one always gave what the first one gave most often.
    pub constant: usize,
}

impl Agreement {
    /// How far two agree in each criterion of a rubric for which both gave points.
    #[must_use]
    pub fn by_criterion<'a>(
        rubric: &Rubric,
        pairs: impl IntoIterator<Item = (&'a PointsOf, &'a PointsOf)>,
    ) -> Vec<CriterionAgreement> {
        let pairs: Vec<(&PointsOf, &PointsOf)> = pairs.into_iter().collect();
        let of = |criterion: &Criterion| {
            let points = pairs
                .iter()
                .filter_map(|(a, b)| Some((*a.get(&criterion.id)?, *b.get(&criterion.id)?)));
            let points: Vec<(Points, Points)> = points.collect();
            Some(CriterionAgreement {
                id: criterion.id.clone(),
                title: criterion.title.clone(),
                agreement: Agreement::new(&points, &criterion.allowed())?,
            })
        };
        rubric.criteria.iter().filter_map(of).collect()
    }

    /// Of pairs of points, each of which is on the scale; nothing if there are none.
    ///
    /// `scale` has all points that can be given, ascending. Pairs with other points are left out.
    #[must_use]
    pub fn new(pairs: &[(Points, Points)], scale: &[Points]) -> Option<Self> {
        let place = |points: Points| scale.iter().position(|known| *known == points);
        let ranks = pairs
            .iter()
            .filter_map(|(first, second)| Some((place(*first)?, place(*second)?)));
        let ranks: Vec<(usize, usize)> = ranks.collect();
        if ranks.is_empty() {
            return None;
        }
        let points = |rank: usize| scale[rank].as_f64();
        let sum: f64 = ranks.iter().map(|(a, b)| points(*b) - points(*a)).sum();
        let times = |rank: usize| ranks.iter().filter(|(a, _)| *a == rank).count();
        Some(Self {
            count: ranks.len(),
            equal: ranks.iter().filter(|(a, b)| a == b).count(),
            within_one: ranks.iter().filter(|(a, b)| a.abs_diff(*b) <= 1).count(),
            bias: sum / float(ranks.len()),
            kappa: kappa(&ranks),
            constant: (0..scale.len()).map(times).max().unwrap_or(0),
        })
    }
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// One less the squared distances that are there, by those that chance gives to the same frequencies. The squared width of
/// the scale, by which both are divided in the definition, falls out.
fn kappa(ranks: &[(usize, usize)]) -> Option<f64> {
    let squared = |a: usize, b: usize| float(a.abs_diff(b)).powi(2);
    let seen: f64 = ranks.iter().map(|(a, b)| squared(*a, *b)).sum();
    let all = ranks
        .iter()
        .flat_map(|(a, _)| ranks.iter().map(move |(_, b)| (*a, *b)));
    let by_chance: f64 = all.map(|(a, b)| squared(a, b)).sum::<f64>() / float(ranks.len());
    let varies =
        |of: fn(&(usize, usize)) -> usize| ranks.iter().any(|pair| of(pair) != of(&ranks[0]));
    (varies(|pair| pair.0) && varies(|pair| pair.1)).then(|| 1.0 - seen / by_chance)
}
