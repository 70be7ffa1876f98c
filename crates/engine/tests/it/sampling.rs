//! The sampler against a straightforward one, and against the softmax.

use proptest::prelude::*;
use tandem_engine::EngineError;
use tandem_engine::constraint::ConstraintFactory;
use tandem_engine::fake::FakeTokenizer;
use tandem_engine::sampling::Sampler;
use tandem_proto::SamplingParams;

const CASES: u32 = 400;

fn params(temperature: f64, top_k: u32, top_p: f64, min_p: f64) -> SamplingParams {
    SamplingParams {
        temperature: Some(temperature),
        top_k: Some(top_k),
        top_p: Some(top_p),
        min_p: Some(min_p),
        seed: Some(11),
        ..SamplingParams::default()
    }
}

/// Probabilities of all tokens, written down as the textbook has it: no sharing with the sampler.
fn probabilities(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let (temperature, top_k, top_p, min_p) = given(params);
    let softmax = |alive: &[bool], temperature: f64| -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .zip(alive)
            .map(|(&l, &alive)| {
                if alive {
                    (f64::from(l) / temperature).exp()
                } else {
                    0.0
                }
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    };
    let mut alive = vec![true; logits.len()];
    let rank = |of: usize| {
        (0..logits.len())
            .filter(|&i| logits[i] > logits[of] || (logits[i] == logits[of] && i < of))
            .count()
    };
    if top_k > 0 {
        for (i, alive) in alive.iter_mut().enumerate() {
            *alive = rank(i) < top_k;
        }
    }
    if top_p < 1.0 {
        let p = softmax(&alive, 1.0);
        let before = |of: usize| -> f64 {
            (0..p.len())
                .filter(|&i| rank(i) < rank(of))
                .map(|i| p[i])
                .sum()
        };
        let kept: Vec<bool> = (0..p.len())
            .map(|i| alive[i] && before(i) < top_p)
            .collect();
        alive = kept;
    }
    if min_p > 0.0 {
        let p = softmax(&alive, 1.0);
        let best = p.iter().copied().fold(0.0, f64::max);
        for (alive, p) in alive.iter_mut().zip(&p) {
            *alive &= *p >= min_p * best;
        }
    }
    softmax(&alive, temperature)
}

/// Temperature, top-k, top-p and min-p as the sampler has them: in single precision.
fn given(params: &SamplingParams) -> (f64, usize, f64, f64) {
    let single = |x: Option<f64>| f64::from(x.unwrap() as f32);
    let top_k = params.top_k.unwrap() as usize;
    (
        single(params.temperature),
        top_k,
        single(params.top_p),
        single(params.min_p),
    )
}

fn frequencies(logits: &[f32], params: &SamplingParams, draws: u32) -> Vec<f64> {
    let mut sampler = Sampler::new(params);
    let mut counts = vec![0_u32; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits, None).unwrap() as usize] += 1;
    }
    let share = |&count: &u32| f64::from(count) / f64::from(draws);
    counts.iter().map(share).collect()
}

/// Logits with ties, on a grid: so no probability lies within rounding of a threshold but by
/// being equal to it.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-24_i8..24).prop_map(|x| f32::from(x) / 4.0), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn only_possible_tokens_are_drawn_and_all_likely_ones(
        logits in logits(),
        temperature in 0.2_f64..2.0,
        top_k in 0_u32..12,
        top_p in 0.05_f64..1.0,
        min_p in 0.0_f64..0.9,
    ) {
        let params = params(temperature, top_k, top_p, min_p);
        let p = probabilities(&logits, &params);
        let f = frequencies(&logits, &params, 400);
        for token in 0..logits.len() {
            prop_assert!(f[token] == 0.0 || p[token] > 0.0, "{} was drawn", token);
            // Seven standard deviations of 400 draws, and room for the rare ones.
            let bound = 7.0 * (p[token] * (1.0 - p[token]) / 400.0).sqrt() + 0.02;
            prop_assert!((f[token] - p[token]).abs() < bound, "{}: {} {}", token, f[token], p[token]);
        }
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_the_best(logits in logits()) {
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        let expected = logits.iter().position(|&l| l == best).unwrap();
        let token = Sampler::new(&SamplingParams::greedy()).sample(&logits, None).unwrap();
        prop_assert_eq!(token as usize, expected);
    }

    #[test]
    fn one_candidate_is_greedy(logits in logits(), temperature in 0.1_f64..3.0) {
        let greedy = Sampler::new(&SamplingParams::greedy()).sample(&logits, None).unwrap();
        let one = Sampler::new(&params(temperature, 1, 1.0, 0.0)).sample(&logits, None).unwrap();
        prop_assert_eq!(one, greedy);
    }
}

/// As many tokens as a large vocabulary has, a few of them far above the others, and ties.
fn many_logits(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 16_777_216.0
    };
    (0..count)
        .map(|_| {
            let bell = (next() + next() + next() + next() - 2.0) * 5.0;
            let tail = if next() < 0.001 { 8.0 * next() } else { 0.0 };
            ((bell + tail) * 64.0).round() / 64.0
        })
        .collect()
}

/// The tokens that may be drawn, in order, by sorting all.
fn kept_by_sorting(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
    let (_, top_k, top_p, min_p) = given(params);
    let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|l| f64::from(*l))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if top_k > 0 {
        all.truncate(top_k);
    }
    let max = all[0].1;
    let weight = |logit: f64| (logit - max).exp();
    if top_p < 1.0 {
        let total: f64 = all.iter().map(|a| weight(a.1)).sum();
        let mut sum = 0.0;
        let last = all.iter().position(|a| {
            sum += weight(a.1);
            sum >= top_p * total
        });
        all.truncate(last.map_or(all.len(), |last| last + 1));
    }
    all.retain(|a| weight(a.1) >= min_p);
    all.into_iter().map(|a| a.0).collect()
}

/// Only tokens near the best one are looked at: every setting draws from the same as if all were sorted, and reaches
/// the last of them.
#[test]
fn of_a_large_vocabulary_the_same_tokens_are_drawn_as_by_sorting_all() {
    for (seed, count) in [(1, 262_144), (2, 5_001)] {
        let mut logits = many_logits(seed, count);
        // Never to be drawn.
        for never in (0..count).step_by(7) {
            logits[never] = f32::NEG_INFINITY;
        }
        for (top_k, top_p, min_p) in [
            (0, 0.5, 0.0),
            (0, 0.95, 0.0),
            (0, 0.999_9, 0.0),
            (0, 1.0, 0.05),
            (0, 1.0, 1e-6),
            (1, 1.0, 0.0),
            (40, 1.0, 0.0),
            (3_000, 0.9, 0.001),
            (1_000_000, 0.95, 0.05),
            (40, 0.8, 0.1),
        ] {
            // So hot that all that are kept are nearly as likely as each other.
            let params = params(100.0, top_k, top_p, min_p);
            let possible = logits.iter().filter(|l| l.is_finite()).count();
            let mut kept = kept_by_sorting(&logits, &params);
            kept.truncate(possible);
            let mut sampler = Sampler::new(&params);
            let draws = if kept.len() < 50 { 600 } else { 60 };
            let drawn: Vec<u32> = (0..draws)
                .map(|_| sampler.sample(&logits, None).unwrap())
                .collect();
            let is_of = |tokens: &[u32]| {
                let tokens: std::collections::BTreeSet<u32> = tokens.iter().copied().collect();
                drawn.iter().filter(|t| tokens.contains(t)).count()
            };
            assert_eq!(is_of(&kept), draws, "{count}: {params:?}");
            // The worst is reached, too: half of them as often as the other half.
            let worse = is_of(&kept[kept.len() / 2..]);
            assert!(worse > draws / 5, "{count}: {worse}, {params:?}");
        }
    }
}

/// Without any limit every token is as likely as the softmax has it, wherever in the vocabulary it is.
#[test]
fn of_a_large_vocabulary_every_part_is_drawn_as_often_as_it_should_be() {
    let logits = many_logits(9, 262_144);
    let params = params(1.3, 0, 1.0, 0.0);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |l: &f32| (f64::from(l - max) / 1.3).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let draws = 4_000;
    let mut counts = [0_u32; 16];
    let mut sampler = Sampler::new(&params);
    for _ in 0..draws {
        let token = sampler.sample(&logits, None).unwrap();
        counts[token as usize / (262_144 / 16)] += 1;
    }
    for (part, count) in logits.chunks(262_144 / 16).zip(counts) {
        let p = part.iter().map(weight).sum::<f64>() / total;
        let share = f64::from(count) / f64::from(draws);
        let deviation = (p * (1.0 - p) / f64::from(draws)).sqrt();
        assert!((share - p).abs() < 5.0 * deviation, "{share} {p}");
    }
}

#[test]
fn frequencies_are_the_softmax() {
    let logits = [1.0, 3.0, 2.0, -1.0, 2.5, f32::NEG_INFINITY];
    for temperature in [0.5, 1.0, 1.7] {
        let params = params(temperature, 0, 1.0, 0.0);
        let p = probabilities(&logits, &params);
        let f = frequencies(&logits, &params, 200_000);
        for (p, f) in p.iter().zip(&f) {
            // Five standard deviations.
            assert!(
                (p - f).abs() <= 5.0 * (p * (1.0 - p) / 200_000.0).sqrt(),
                "{p} {f}"
            );
        }
    }
}

/// The tokens themselves: if these change, so do the answers of everyone who set a seed.
#[test]
fn a_seed_gives_these_tokens_everywhere() {
    let logits: Vec<f32> = (0_u16..64).map(|i| f32::from(i * 37 % 64) / 16.0).collect();
    let mut sampler = Sampler::new(&params(0.8, 40, 0.95, 0.02));
    let tokens: Vec<u32> = (0..12)
        .map(|_| sampler.sample(&logits, None).unwrap())
        .collect();
    assert_eq!(tokens, GOLDEN);
}

/// Computed by another program from the ChaCha8 of RFC 8439 with 8 rounds and the textbook softmax.
const GOLDEN: [u32; 12] = [31, 31, 17, 22, 53, 31, 31, 24, 50, 50, 31, 55];

#[test]
fn different_seeds_differ() {
    let logits = vec![0.0; 1000];
    let draw = |seed| {
        let params = SamplingParams {
            seed: Some(seed),
            ..params(1.0, 0, 1.0, 0.0)
        };
        Sampler::new(&params).sample(&logits, None).unwrap()
    };
    assert_ne!(draw(1), draw(2));
    assert_ne!(draw(1), draw(1 + (1 << 32)));
    assert_eq!(draw(3), draw(3));
}

#[test]
fn unusable_logits_are_errors() {
    let factory = ConstraintFactory::new(std::sync::Arc::new(FakeTokenizer)).unwrap();
    let mask = factory.json_object().unwrap().mask().unwrap();
    for temperature in [0.0, 1.0] {
        let sample = |logits: &[f32], masked: bool| {
            let mask = masked.then_some(&mask);
            Sampler::new(&params(temperature, 0, 1.0, 0.0)).sample(logits, mask)
        };
        for bad in [
            vec![],
            vec![1.0, f32::NAN],
            vec![f32::INFINITY, 1.0],
            vec![f32::NEG_INFINITY; 3],
        ] {
            let result = sample(&bad, false);
            assert!(matches!(result, Err(EngineError::Failed(_))), "{bad:?}");
        }
        // The only byte that begins an object is beyond these logits.
        assert!(sample(&[1.0; 100], true).is_err());
        assert_eq!(sample(&[1.0; 259], true), Ok(u32::from(b'{')));
    }
}

#[test]
fn ranges_are_checked() {
    let good = params(0.7, 40, 0.9, 0.05);
    assert!(good.validate().is_ok());
    assert!(SamplingParams::default().validate().is_ok());
    let open = SamplingParams::default();
    assert_eq!((open.temperature(), open.seed()), (1.0, 0));
    // Just the best.
    let none = params(1.0, 0, 0.0, 0.0);
    assert!(none.validate().is_ok());
    let logits = [1.0, 3.0, 2.9, 3.0];
    for _ in 0..20 {
        assert_eq!(Sampler::new(&none).sample(&logits, None), Ok(1));
    }
    let bad = [
        ("temperature", params(-0.1, 0, 1.0, 0.0)),
        ("temperature", params(f64::NAN, 0, 1.0, 0.0)),
        ("temperature", params(f64::INFINITY, 0, 1.0, 0.0)),
        ("top_p", params(1.0, 0, -0.1, 0.0)),
        ("top_p", params(1.0, 0, 1.1, 0.0)),
        ("top_p", params(1.0, 0, f64::NAN, 0.0)),
        ("min_p", params(1.0, 0, 1.0, -0.1)),
        ("min_p", params(1.0, 0, 1.0, 1.5)),
    ];
    for (field, params) in bad {
        let error = params.validate().unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(field));
    }
}
