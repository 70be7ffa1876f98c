//! Every architecture runs, and its answers are those of a model, not of a constant.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use tandem_testkit::{Architecture, Spec, WeightType};

use crate::loaded::{context, load};

const CHUNK: usize = 512;

/// Readable bytes without a pattern that repeats, from a fixed linear congruential sequence.
fn prompt(len: usize, seed: u32) -> Vec<LlamaToken> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        LlamaToken::new(32 + i32::try_from((state >> 16) % 95).unwrap())
    })
    .take(len)
    .collect()
}

/// Decodes `tokens` at the positions from `start` on, in chunks, and returns the logits of the last.
fn decode(context: &mut LlamaContext, tokens: &[LlamaToken], start: usize) -> Vec<f32> {
    let mut batch = LlamaBatch::new(CHUNK, 1);
    let mut position = start;
    for chunk in tokens.chunks(CHUNK) {
        batch.clear();
        for (index, token) in chunk.iter().enumerate() {
            let at = i32::try_from(position).unwrap();
            batch
                .add(*token, at, &[0], index + 1 == chunk.len())
                .unwrap();
            position += 1;
        }
        context.decode(&mut batch).unwrap();
    }
    context.get_logits_ith(batch.n_tokens() - 1).to_vec()
}

fn best(logits: &[f32]) -> LlamaToken {
    let (index, _) = logits
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .unwrap();
    LlamaToken::new(i32::try_from(index).unwrap())
}

fn greedy(context: &mut LlamaContext, prompt: &[LlamaToken], count: usize) -> Vec<LlamaToken> {
    let mut answer = vec![best(&decode(context, prompt, 0))];
    while answer.len() < count {
        let last = *answer.last().unwrap();
        let logits = decode(context, &[last], prompt.len() + answer.len() - 1);
        answer.push(best(&logits));
    }
    answer
}

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f32, f32) {
    let n = values.len() as f32;
    let mean = values.iter().sum::<f32>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n;
    (mean, variance.sqrt())
}

/// Those with other caches, too.
fn every() -> impl Iterator<Item = Architecture> {
    Architecture::ALL
        .into_iter()
        .chain(Architecture::OTHER_CACHES)
}

fn specs() -> Vec<Spec> {
    every()
        .flat_map(|architecture| {
            [WeightType::F16, WeightType::Q8_0].map(|weights| Spec {
                weights,
                ..Spec::new(architecture)
            })
        })
        .collect()
}

#[test]
fn sizes_are_those_of_the_shape() {
    for architecture in Architecture::ALL {
        let model = load(&Spec::new(architecture));
        let shape = architecture.shape();
        assert_eq!(model.n_layer(), shape.layers);
        assert_eq!(model.n_head(), shape.heads);
        assert_eq!(model.n_head_kv(), shape.kv_heads);
        assert_eq!(model.n_ctx_train(), shape.context);
        let name = model.meta_val_str("general.architecture").unwrap();
        assert_eq!(name, architecture.name());
    }
}

#[test]
fn logits_are_finite_and_spread() {
    for spec in specs() {
        let model = load(&spec);
        let mut context = context(&model, 1_024);
        let logits = decode(&mut context, &prompt(600, 1), 0);
        assert!(logits.iter().all(|v| v.is_finite()), "{spec:?}");
        let readable = moments(&logits[32..127]);
        assert!((1.0..3.0).contains(&readable.1), "{spec:?} {readable:?}");
        assert!(best(&logits).0 < 256, "{spec:?}: a special token is best");
    }
}

#[test]
fn greedy_answers_vary() {
    for spec in specs() {
        let model = load(&spec);
        for seed in 1..4 {
            let mut context = context(&model, 1_024);
            let answer = greedy(&mut context, &prompt(600, seed), 32);
            let mut distinct: Vec<i32> = answer.iter().map(|t| t.0).collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() >= 4, "{spec:?} {answer:?}");
            assert!(answer.iter().all(|t| !model.vocab().is_eog(*t)), "{spec:?}");
        }
    }
}

/// The best two logits over many steps: mostly clearly apart, so that equal arithmetic gives equal
/// tokens, yet not so far apart that a damaged cache would go unnoticed.
#[test]
fn the_best_two_logits_are_apart() {
    for architecture in every() {
        let model = load(&Spec::new(architecture));
        let mut context = context(&model, 1_024);
        let prompt = prompt(64, 9);
        let mut gaps: Vec<f32> = (1..=prompt.len())
            .map(|n| {
                let mut logits = decode(&mut context, &prompt[n - 1..n], n - 1);
                logits.sort_unstable_by(|a, b| b.total_cmp(a));
                logits[0] - logits[1]
            })
            .collect();
        gaps.sort_unstable_by(f32::total_cmp);
        assert!(
            (0.1..3.0).contains(&gaps[gaps.len() / 2]),
            "{architecture} {gaps:?}"
        );
    }
}

/// Losing any part of the cache must show: the logits depend on tokens far back, and through the
/// windowed layers on the tokens in the window.
#[test]
fn logits_depend_on_distant_tokens() {
    for architecture in every() {
        let model = load(&Spec::new(architecture));
        let tokens = prompt(600, 5);
        let reference = decode(&mut context(&model, 1_024), &tokens, 0);
        for changed in [0, 100, 300, 598] {
            let mut tokens = tokens.clone();
            tokens[changed] = LlamaToken::new(if tokens[changed].0 == 90 { 91 } else { 90 });
            let logits = decode(&mut context(&model, 1_024), &tokens, 0);
            let difference = logits
                .iter()
                .zip(&reference)
                .fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(
                difference > 1e-3,
                "{architecture} token {changed}: {difference}"
            );
        }
    }
}

#[test]
fn two_thousand_tokens_stay_finite() {
    for architecture in every() {
        let model = load(&Spec::new(architecture));
        let mut context = context(&model, 2_048);
        let logits = decode(&mut context, &prompt(2_000, 3), 0);
        assert!(logits.iter().all(|v| v.is_finite()), "{architecture}");
        let (_, std) = moments(&logits[32..127]);
        assert!((1.0..3.0).contains(&std), "{architecture} {std}");
    }
}

#[test]
fn seeds_make_different_models() {
    let logits = [1, 2].map(|seed| {
        let model = load(&Spec {
            seed,
            ..Spec::new(Architecture::Llama)
        });
        decode(&mut context(&model, 128), &prompt(20, 1), 0)
    });
    assert_ne!(logits[0], logits[1]);
}

/// Both weight types are made from the same values, so llama.cpp computes nearly the same with them.
#[test]
fn q8_0_is_close_to_f16() {
    for architecture in [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ] {
        let logits = [WeightType::F16, WeightType::Q8_0].map(|weights| {
            let model = load(&Spec {
                weights,
                ..Spec::new(architecture)
            });
            decode(&mut context(&model, 128), &prompt(20, 1), 0)
        });
        let differences: Vec<f32> = logits[0]
            .iter()
            .zip(&logits[1])
            .map(|(a, b)| a - b)
            .collect();
        let (_, std) = moments(&differences);
        assert!(std > 0.0 && std < 0.2, "{architecture} {std}");
    }
}
