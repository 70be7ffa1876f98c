//! How far two who graded the same agree, by criterion.

use serde::Serialize;

use crate::points::Points;

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
