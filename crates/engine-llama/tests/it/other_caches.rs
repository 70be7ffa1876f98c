//! Models whose cache is not rows of K and V: they run where they are, and compute what llama.cpp does.

use std::num::NonZeroU32;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use tandem_engine::{Compute, DecodeStep, EngineError, KvCache, KvEngine, Sequence, Token};
use tandem_handoff::Section;
use tandem_testkit::{Architecture, Spec};

use super::models::{CHUNK, engine, fixture, prefill, prompt};

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    u32::try_from(best.unwrap()).unwrap()
}

/// Greedy tokens of llama.cpp as it is by default: one sequence, and the whole prompt at once.
fn reference(architecture: Architecture, tokens: &[Token], steps: usize) -> Vec<Token> {
    drop(engine(architecture));
    let backend = tandem_engine_llama::engine::shared_backend().expect("backend");
    let path = fixture(&Spec::new(architecture));
    let model = LlamaModel::load_from_file(backend, path, &LlamaModelParams::default());
    let model = model.expect("model");
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(1024))
        .with_n_batch(1024)
        .with_n_threads(1)
        .with_n_threads_batch(1);
    let mut context = model.new_context(backend, params).expect("context");
    let mut batch = LlamaBatch::new(tokens.len(), 1);
    let native = |token: u32| LlamaToken(i32::try_from(token).unwrap());
    for (position, token) in (0..).zip(tokens) {
        let is_last = position as usize + 1 == tokens.len();
        batch
            .add(native(*token), position, &[0], is_last)
            .expect("room");
    }
    let mut answer = Vec::new();
    for position in (i32::try_from(tokens.len()).unwrap()..).take(steps) {
        context.decode(&mut batch).expect("decode");
        let next = argmax(context.get_logits_ith(batch.n_tokens() - 1));
        answer.push(next);
        batch.clear();
        batch.add(native(next), position, &[0], true).expect("room");
    }
    answer
}

/// Greedy tokens of several prompts at once, by one engine.
fn answers(engine: &mut dyn KvEngine, prompts: &[Vec<Token>], steps: usize) -> Vec<Vec<Token>> {
    let sequences: Vec<Sequence> = prompts
        .iter()
        .map(|tokens| {
            let sequence = engine.open().expect("open");
            prefill(engine, sequence, tokens, CHUNK as usize);
            sequence
        })
        .collect();
    let mut next: Vec<Token> = prompts.iter().map(|p| *p.last().unwrap()).collect();
    let mut answers = vec![Vec::new(); prompts.len()];
    for _ in 0..steps {
        let steps: Vec<DecodeStep> = sequences
            .iter()
            .zip(&next)
            .map(|(sequence, token)| DecodeStep {
                sequence: *sequence,
                token: *token,
                position: engine.held(*sequence),
            })
            .collect();
        let rows = engine.decode(&steps).expect("decode");
        next = rows.iter().map(|row| argmax(row)).collect();
        for (answer, token) in answers.iter_mut().zip(&next) {
            answer.push(*token);
        }
    }
    for sequence in sequences {
        engine.release(sequence);
    }
    answers
}

#[test]
fn greedy_tokens_are_those_of_llama_cpp() {
    for architecture in Architecture::OTHER_CACHES {
        let mut engine = engine(architecture);
        let prompts: Vec<Vec<Token>> = [2, CHUNK, CHUNK + 1, 301]
            .map(|n| prompt(n, n + 7))
            .to_vec();
        let expected: Vec<Vec<Token>> = prompts
            .iter()
            .map(|tokens| reference(architecture, tokens, 24))
            .collect();
        let distinct: std::collections::BTreeSet<Token> =
            expected.iter().flatten().copied().collect();
        assert!(distinct.len() > 8, "{architecture}: {expected:?}");
        for (tokens, expected) in prompts.iter().zip(&expected) {
            let found = answers(&mut engine, std::slice::from_ref(tokens), 24);
            assert_eq!(
                found,
                std::slice::from_ref(expected),
                "{architecture}, alone"
            );
        }
        let found = answers(&mut engine, &prompts, 24);
        assert_eq!(found, expected, "{architecture}, all at once");
    }
}

#[test]
fn their_kv_stays_and_they_say_why() {
    let expected = ["recurrent", "recurrent", "latent"];
    for (architecture, word) in Architecture::OTHER_CACHES.into_iter().zip(expected) {
        let mut engine = engine(architecture);
        let reason = engine.stays().expect("a reason").to_owned();
        assert!(
            reason.contains(word) && reason.contains(architecture.name()),
            "{reason}"
        );
        let sequence = engine.open().unwrap();
        prefill(&mut engine, sequence, &prompt(50, 1), CHUNK as usize);
        let refused = engine.export(sequence, Section::Full, 0..49);
        assert!(
            matches!(&refused, Err(EngineError::Refused(m)) if m.contains(&reason)),
            "{refused:?}"
        );
        assert!(!engine.gives_layers());
    }
}

/// A state does not go back: what is left of a sequence that is cut is nothing.
#[test]
fn a_sequence_that_is_cut_starts_over() {
    for architecture in Architecture::OTHER_CACHES {
        let mut engine = engine(architecture);
        let tokens = prompt(90, 4);
        let sequence = engine.open().unwrap();
        prefill(&mut engine, sequence, &tokens, CHUNK as usize);
        engine.truncate(sequence, 89);
        assert_eq!(engine.held(sequence), 89, "{architecture}: nothing to cut");
        engine.truncate(sequence, 40);
        assert_eq!(engine.held(sequence), 0, "{architecture}");
        engine.release(sequence);
        let expected = reference(architecture, &tokens, 8);
        assert_eq!(answers(&mut engine, &[tokens], 8), [expected]);
    }
}
