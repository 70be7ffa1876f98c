//! Agreement of two who graded the same, against its definition.

use proptest::prelude::*;
use tandem_grading::{Agreement, Points};

fn points(halves: u32) -> Points {
    Points::from_thousandths(halves * 500)
}

/// Cohen's kappa with quadratic weights from the tables of what is there and of what chance gives.
fn kappa(ranks: &[(usize, usize)], places: usize) -> f64 {
    let count = ranks.len() as f64;
    let (mut seen, mut first, mut second) = (
        vec![vec![0.0; places]; places],
        vec![0.0; places],
        vec![0.0; places],
    );
    for (a, b) in ranks {
        seen[*a][*b] += 1.0;
        first[*a] += 1.0;
        second[*b] += 1.0;
    }
    let (mut above, mut below) = (0.0, 0.0);
    for i in 0..places {
        for j in 0..places {
            let weight = ((i as f64 - j as f64) / (places as f64 - 1.0)).powi(2);
            above += weight * seen[i][j];
            below += weight * first[i] * second[j] / count;
        }
    }
    1.0 - above / below
}

#[test]
fn a_table_of_three_places() {
    let counts = [[75, 1, 4], [5, 4, 1], [0, 0, 10]];
    let mut pairs = Vec::new();
    for (a, row) in (0..).zip(counts) {
        for (b, count) in (0..).zip(row) {
            pairs.extend((0..count).map(|_| (points(a), points(b))));
        }
    }
    let scale = [0, 1, 2].map(points);
    let found = Agreement::new(&pairs, &scale).unwrap();
    assert_eq!(
        (found.count, found.equal, found.within_one, found.constant),
        (100, 89, 96, 80)
    );
    let ranks: Vec<(usize, usize)> = pairs
        .iter()
        .map(|(a, b)| {
            (
                (a.thousandths() / 500) as usize,
                (b.thousandths() / 500) as usize,
            )
        })
        .collect();
    assert!((found.kappa.unwrap() - kappa(&ranks, 3)).abs() < 1e-12);
    assert!((found.bias - 0.5 * f64::from(1 + 8 - 5 + 1) / 100.0).abs() < 1e-12);
}

proptest! {
    #[test]
    fn it_is_what_its_definition_says(ranks in proptest::collection::vec((0..5u32, 0..5u32), 1..60)) {
        let scale: Vec<Points> = (0..5).map(points).collect();
        let pairs: Vec<(Points, Points)> = ranks.iter().map(|(a, b)| (points(*a), points(*b))).collect();
        let found = Agreement::new(&pairs, &scale).unwrap();
        let ranks: Vec<(usize, usize)> = ranks.iter().map(|(a, b)| (*a as usize, *b as usize)).collect();
        let is_constant = |of: fn(&(usize, usize)) -> usize| ranks.iter().all(|pair| of(pair) == of(&ranks[0]));
        match found.kappa {
            None => prop_assert!(is_constant(|pair| pair.0) || is_constant(|pair| pair.1)),
            Some(found) => prop_assert!((found - kappa(&ranks, 5)).abs() < 1e-9),
        }
        // With oneself, and the other way round.
        let own: Vec<(Points, Points)> = pairs.iter().map(|(a, _)| (*a, *a)).collect();
        let own = Agreement::new(&own, &scale).unwrap();
        prop_assert!(own.equal == own.count && own.bias == 0.0 && own.kappa.is_none_or(|k| k == 1.0));
        let turned: Vec<(Points, Points)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
        let turned = Agreement::new(&turned, &scale).unwrap();
        prop_assert_eq!((turned.equal, turned.within_one), (found.equal, found.within_one));
        prop_assert!((turned.bias + found.bias).abs() < 1e-9);
        // What is on no scale counts nowhere.
        let odd = [pairs.clone(), vec![(points(99), points(0))]].concat();
        prop_assert_eq!(Agreement::new(&odd, &scale), Some(found));
    }
}
