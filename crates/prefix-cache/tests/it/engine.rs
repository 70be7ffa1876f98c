//! An engine that continues from loaded pages computes what one does that computed everything.

use std::sync::Arc;

use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_engine::{Compute, DecodeStep, KvCache, Sequence};
use tandem_handoff::Section;
use tandem_handoff::page::{Namespace, Origin};
use tandem_prefix_cache::{PageStore, Provenance, Wanted};

use super::rig::{PATIENCE, private_dir, with_disk};

fn prefill(engine: &mut FakeEngine, sequence: Sequence, from: usize, tokens: &[u32]) {
    let mut at = from;
    for chunk in tokens[from..].chunks(64) {
        let start = u32::try_from(at).unwrap();
        engine.prefill(sequence, start, chunk).unwrap();
        at += chunk.len();
    }
}

fn logits(engine: &mut FakeEngine, sequence: Sequence, position: usize, token: u32) -> Vec<f32> {
    let step = DecodeStep {
        sequence,
        token,
        position: u32::try_from(position).unwrap(),
    };
    engine.decode(&[step]).unwrap().remove(0)
}

/// Keeps the KV of a sequence as a node would after its prefill.
fn keep(store: &PageStore, space: &Namespace, engine: &mut FakeEngine, tokens: &[u32]) {
    let sequence = engine.open().unwrap();
    prefill(engine, sequence, 0, tokens);
    let end = u32::try_from(tokens.len()).unwrap();
    let rows = engine.export(sequence, Section::Full, 0..end).unwrap();
    store
        .put(space, tokens, &rows, Provenance::Prefilled)
        .unwrap();
    let window = space.contract().has_window().then(|| {
        let start = space.contract().window_start(end);
        engine
            .export(sequence, Section::Window, start..end)
            .unwrap()
    });
    let provenance = Provenance::Prefilled;
    let kept = store.put_snapshot(space, tokens, Some(&rows), window.as_ref(), provenance);
    assert_eq!(kept, Ok(true));
    engine.release(sequence);
}

fn continues(config: FakeConfig) {
    let dir = private_dir();
    let mut engine = FakeEngine::new(config.clone());
    let contract = Arc::new(engine.contract().clone());
    let space = Namespace::new(contract, b"salt", Origin::Exact);
    let turn: Vec<u32> = (0..200).map(|i| i % 90 + 32).collect();
    let mut next = turn.clone();
    next.extend((0..60).map(|i| i % 50 + 40));
    // Little memory, so that rows come from disk, and after a restart.
    let store = with_disk(2 * 8192, dir.path(), 1 << 24);
    keep(&store, &space, &mut engine, &turn);
    assert!(store.flush(PATIENCE));
    drop(store);
    let store = with_disk(2 * 8192, dir.path(), 1 << 24);

    let pinned = store.pin(&space, &[], &next, Wanted::Prefilled);
    let position = pinned.held().snapshot.unwrap_or(pinned.held().tokens);
    let held = u32::try_from(turn.len()).unwrap();
    assert_eq!(position, held);
    let mut other = FakeEngine::new(config);
    let loaded = other.open().unwrap();
    for block in pinned.load(0..position / 64 * 64).unwrap() {
        other.import(loaded, &block).unwrap();
    }
    let snapshot = pinned.load_snapshot().unwrap();
    other.import(loaded, &snapshot.tail.unwrap()).unwrap();
    if let Some(window) = snapshot.window {
        other.import(loaded, &window).unwrap();
    }
    assert_eq!(other.held(loaded), held);
    prefill(&mut other, loaded, held as usize, &next);
    let computed = engine.open().unwrap();
    prefill(&mut engine, computed, 0, &next);
    assert_eq!(
        logits(&mut other, loaded, next.len(), 77),
        logits(&mut engine, computed, next.len(), 77)
    );
}

#[test]
fn without_windows() {
    continues(FakeConfig::default());
}

#[test]
fn with_windows() {
    continues(FakeConfig::windowed());
}
