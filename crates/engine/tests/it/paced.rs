//! The paced engine: it conforms, takes the time that it is told, and agrees with no other rows.

use std::time::{Duration, Instant};

use tandem_engine::conformance::{self, F32_ROUNDING};
use tandem_engine::paced::{Pace, PacedEngine, PacedModel, layer};
use tandem_engine::{Capacity, Compute, DecodeStep, Item, KvCache, KvEngine};
use tandem_handoff::{LayerKind, Section};

/// Milliseconds of a token, and of a step.
struct Steady(u64, u64);

impl Pace for Steady {
    fn prefill(&self, _have: u32, new: u32) -> Duration {
        Duration::from_millis(self.0 * u64::from(new))
    }

    fn step(&self, held: &[u32]) -> Duration {
        Duration::from_millis(self.1 * u64::try_from(held.len()).unwrap())
    }
}

fn engine(has_window: bool, pace: Steady) -> PacedEngine {
    let full = layer(LayerKind::Full, 2, 64);
    let model = PacedModel {
        name: "a model".to_owned(),
        layers: match has_window {
            true => vec![full.clone(), layer(LayerKind::Window, 4, 32), full],
            false => vec![full; 3],
        },
        window: if has_window { 24 } else { 0 },
        stays: None,
    };
    let capacity = Capacity {
        sequences: 3,
        cached: 2,
        tokens_per_sequence: 1024,
        prefill_tokens: 64,
        microbatch_tokens: 16,
    };
    PacedEngine::new(model, capacity, Box::new(pace), std::sync::Arc::default()).unwrap()
}

#[test]
fn it_conforms() {
    for has_window in [false, true] {
        let make = || Box::new(engine(has_window, Steady(0, 0))) as Box<dyn KvEngine>;
        conformance::run(&make, F32_ROUNDING);
    }
}

#[test]
fn it_takes_the_time_it_is_told_and_gives_layers_meanwhile() {
    let mut engine = engine(false, Steady(2, 5));
    let sequence = engine.open().unwrap();
    let began = Instant::now();
    let mut given = Vec::new();
    let mut give = |_: &tandem_engine::LayerRows<'_>| given.push(began.elapsed());
    engine
        .evaluate(&[Item::chunk(sequence, 0, &[65; 30])], Some(&mut give))
        .unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(60), "{took:?}");
    assert_eq!(given.len(), 6);
    // K of the first layer comes when a third is computed.
    assert!(
        given[0] >= Duration::from_millis(20) && given[0] < given[2],
        "{given:?}"
    );
    let step = DecodeStep {
        sequence,
        token: 65,
        position: 30,
    };
    let began = Instant::now();
    engine.decode(&[step]).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(5));
}

#[test]
fn rows_that_are_not_its_own_are_refused() {
    for has_window in [false, true] {
        let mut source = engine(has_window, Steady(0, 0));
        let sequence = source.open().unwrap();
        source.prefill(sequence, 0, &[65; 60]).unwrap();
        let block = source.export(sequence, Section::Full, 0..60).unwrap();
        for (plane, byte) in [
            (0, 0),
            (1, 700),
            (block.planes.len() - 1, block.planes[0].data.len() - 1),
        ] {
            let mut broken = block.clone();
            let mut data = broken.planes[plane].data.to_vec();
            data[byte] ^= 1;
            broken.planes[plane].data = data.into();
            let mut other = engine(has_window, Steady(0, 0));
            let sequence = other.open().unwrap();
            let refused = other.import(sequence, &broken).unwrap_err().to_string();
            assert!(refused.contains("not the rows"), "{refused}");
        }
    }
}

#[test]
fn its_answers_and_its_contract_say_what_it_is() {
    let mut engine = engine(false, Steady(0, 0));
    let contract = engine.contract().clone();
    for field in [&contract.engine, &contract.architecture, &contract.weights] {
        assert!(field.starts_with("paced"), "{field}");
    }
    let tokenizer = engine.tokenizer();
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, 0, &[65; 5]).unwrap();
    let (mut token, mut text) = (65, Vec::new());
    for position in 5..25 {
        let step = DecodeStep {
            sequence,
            token,
            position,
        };
        let logits = engine.decode(&[step]).unwrap().remove(0);
        let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1));
        token = best.unwrap().0;
        assert!(!tokenizer.is_end(token));
        text.extend(tokenizer.bytes(token));
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("paced paced "), "{text}");
}
