//! What a batch changes: rounding, by less than the bound that `docs/determinism.md` states.

use tandem_engine::{Capacity, Compute, Item, KvCache, KvEngine, Sequence, Token};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};

use super::nano;

/// Largest difference of a logit of a trained dense model.
const BOUND: f32 = 0.25;
const MICRO: u32 = 64;
const SEQUENCES: u32 = 4;

fn load(model: &str) -> LlamaEngine {
    let options = LlamaOptions {
        capacity: Capacity {
            sequences: SEQUENCES,
            cached: 4,
            tokens_per_sequence: 1024,
            prefill_tokens: 512,
            microbatch_tokens: MICRO,
        },
        threads: 2,
        ..LlamaOptions::default()
    };
    LlamaEngine::load(&nano::path(model), &options).unwrap()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

/// Logits of the last token of a prompt that is computed by itself.
fn alone(engine: &mut LlamaEngine, tokens: &[Token]) -> Vec<f32> {
    let sequence = engine.open().unwrap();
    let (last, body) = tokens.split_last().unwrap();
    for (i, part) in body.chunks(512).enumerate() {
        engine.prefill(sequence, count(i) * 512, part).unwrap();
    }
    let item = Item {
        logits: true,
        ..Item::chunk(sequence, count(body.len()), std::slice::from_ref(last))
    };
    let row = engine.evaluate(&[item], None).unwrap().remove(0);
    engine.release(sequence);
    row
}

/// The same of all prompts, read side by side in parts of odd sizes behind what they have in common, which was computed
/// once.
fn together(engine: &mut LlamaEngine, prompts: &[Vec<Token>], common: u32) -> Vec<Vec<f32>> {
    let first = engine.open().unwrap();
    engine
        .prefill(first, 0, &prompts[0][..common as usize])
        .unwrap();
    let places: Vec<Sequence> = prompts.iter().map(|_| engine.open().unwrap()).collect();
    let window = engine.contract().has_window().then(|| {
        let window = engine.contract().window_start(common)..common;
        engine
            .export(first, tandem_handoff::Section::Window, window)
            .unwrap()
    });
    for place in &places {
        engine.share(first, *place, common).unwrap();
        if let Some(window) = &window {
            engine.import(*place, window).unwrap();
        }
    }
    engine.release(first);
    let mut next = vec![common as usize; prompts.len()];
    let mut rows = vec![Vec::new(); prompts.len()];
    while next.iter().zip(prompts).any(|(n, p)| *n < p.len()) {
        let mut items = Vec::new();
        let mut whose = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let end = prompt.len().min(next[i] + 17 + 5 * i);
            if next[i] < end {
                let part = &prompt[next[i]..end];
                let mut item = Item::chunk(places[i], count(next[i]), part);
                item.logits = end == prompt.len();
                items.push(item);
                whose.push((i, item.logits));
                next[i] = end;
            }
        }
        let mut given = engine.evaluate(&items, None).unwrap().into_iter();
        for (i, _) in whose.into_iter().filter(|(_, logits)| *logits) {
            rows[i] = given.next().unwrap();
        }
    }
    for place in places {
        engine.release(place);
    }
    rows
}

#[test]
fn a_batch_and_a_shared_beginning_change_logits_by_rounding_only() {
    for model in ["nano-coder", "nano-writer"] {
        let mut engine = load(model);
        let tokenizer = engine.tokenizer();
        let rubric =
            "Read the code and say what it does. It must have a function with a name and a test. ";
        let text = |i: usize| {
            let lines: String = (0..9)
                .map(|n| format!("def f{n}(x):\n    return x * {n} + {i}\n"))
                .collect();
            format!("{}{i}\n{lines}", rubric.repeat(12))
        };
        let prompts: Vec<Vec<Token>> = (0..SEQUENCES as usize - 1)
            .map(|i| tokenizer.encode(&text(i), false))
            .collect();
        let pairs = prompts[0].iter().zip(&prompts[1]);
        let common = count(pairs.take_while(|(a, b)| a == b).count());
        assert!(common > 100, "{common}");
        let expected: Vec<_> = prompts.iter().map(|p| alone(&mut engine, p)).collect();
        let rows = together(&mut engine, &prompts, common);
        for (row, expected) in rows.iter().zip(&expected) {
            let pairs = row.iter().zip(expected);
            let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most < BOUND, "{model}: {most}");
        }
    }
}
