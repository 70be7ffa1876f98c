//! The sampler against a straightforward one, and against the softmax.

use proptest::prelude::*;
use tandem_engine::EngineError;
use tandem_engine::constraint::ConstraintFactory;
use tandem_engine::fake::FakeTokenizer;
use tandem_engine::sampling::{Sampler, SamplingParams};

const CASES: u32 = 400;

fn params(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        seed: 11,
    }
}

/// Probabilities of all tokens, written down as the textbook has it: no sharing with the sampler.
fn probabilities(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
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
    if params.top_k > 0 {
        for (i, alive) in alive.iter_mut().enumerate() {
            *alive = rank(i) < params.top_k as usize;
        }
    }
    if params.top_p < 1.0 {
        let p = softmax(&alive, 1.0);
        let before = |of: usize| -> f64 {
            (0..p.len())
                .filter(|&i| rank(i) < rank(of))
                .map(|i| p[i])
                .sum()
        };
        let kept: Vec<bool> = (0..p.len())
            .map(|i| alive[i] && before(i) < f64::from(params.top_p))
            .collect();
        alive = kept;
    }
    if params.min_p > 0.0 {
        let p = softmax(&alive, 1.0);
        let best = p.iter().copied().fold(0.0, f64::max);
        for (alive, p) in alive.iter_mut().zip(&p) {
            *alive &= *p >= f64::from(params.min_p) * best;
        }
    }
    softmax(&alive, f64::from(params.temperature))
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
        temperature in 0.2_f32..2.0,
        top_k in 0_u32..12,
        top_p in 0.05_f32..1.0,
        min_p in 0.0_f32..0.9,
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
        let token = Sampler::new(&SamplingParams::default()).sample(&logits, None).unwrap();
        prop_assert_eq!(token as usize, expected);
    }

    #[test]
    fn one_candidate_is_greedy(logits in logits(), temperature in 0.1_f32..3.0) {
        let greedy = Sampler::new(&SamplingParams::default()).sample(&logits, None).unwrap();
        let one = Sampler::new(&params(temperature, 1, 1.0, 0.0)).sample(&logits, None).unwrap();
        prop_assert_eq!(one, greedy);
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
            seed,
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
    let bad = [
        ("temperature", params(-0.1, 0, 1.0, 0.0)),
        ("temperature", params(f32::NAN, 0, 1.0, 0.0)),
        ("temperature", params(f32::INFINITY, 0, 1.0, 0.0)),
        ("top_p", params(1.0, 0, 0.0, 0.0)),
        ("top_p", params(1.0, 0, 1.1, 0.0)),
        ("top_p", params(1.0, 0, f32::NAN, 0.0)),
        ("min_p", params(1.0, 0, 1.0, -0.1)),
        ("min_p", params(1.0, 0, 1.0, 1.5)),
    ];
    for (field, params) in bad {
        let error = params.validate().unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(field));
    }
}
