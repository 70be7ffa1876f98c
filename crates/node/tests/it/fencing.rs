//! A handoff belongs to one request, whatever happens to the place that it was given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, FakeConfig, FakeEngine};
use tandem_engine::generation::Generation;
use tandem_engine::{Compute, KvCache, Sequence};
use tandem_handoff::limits::{CREDIT_BYTES, MAX_SEGMENT_PAYLOAD};
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::ParityBound;
use tandem_handoff::{KvBlock, Section};
use tandem_node::limits::{
    MAX_CHUNKS_WAITING, MAX_CONFIRMED, MAX_HANDOFFS, STAGING_UNIT, STAGING_UNITS,
};
use tandem_node::model::Model;
use tandem_node::prefix_cache::Keep;
use tandem_node::sequence::{
    Carried, Command, GenerateSequence, HandedOver, Input, Origin, PagesHere, Parity,
    PrefillSequence, SequenceId, SequencePrompt, Source,
};
use tandem_prefix_cache::PageStore;
use tandem_proto::{Format, GenerationParams, SamplingParams};
use tandem_proto::{GenerateEvent, HandoffStatus, HandoffTerms, Role};
use tokio::sync::{mpsc, oneshot};

use super::cluster::{
    Calls, Deal, Reuse, Setup, endless, eventually, finish, limits, pages, prompt,
};
use super::raw::Handoff;

#[tokio::test(flavor = "multi_thread")]
async fn a_late_writer_does_not_reach_the_request_that_has_its_place_now() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut one = config.clone();
        one.sequences = 1;
        let calls = Calls::of(&mut one);
        let decode = Setup::new(Role::Decode, &one).start().await;
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let chunk = config.microbatch_tokens;
        let mut first = Deal::new(&prompt(chunk * 6 + 1), chunk);
        Reuse::Off.set(&mut first.terms);
        let (events, ticket) = first.open(&decode).await;
        let mut late = Handoff::dial(&config, &first, &ticket).await.unwrap();
        let block = late.compute(chunk);
        late.block(&block).await;
        late.hear().await.unwrap();
        drop(events);
        decode.idle().await;
        // Its only place goes to another request, whose handoff is going on.
        let mut second = first.clone();
        second.id = "req-2".into();
        second.tokens.iter_mut().for_each(|t| *t += 1);
        let (mut events, ticket) = second.open(&decode).await;
        calls.take();
        let block = late.compute(chunk * 2);
        late.block(&block).await;
        let heard = loop {
            if let Err(reason) = late.hear().await {
                break reason;
            }
        };
        assert!(
            heard.contains("ended") || heard.contains("closed"),
            "{heard}"
        );
        let sending = async {
            let mut sending = prefill.prefill(&second.prefill(&ticket)).await.unwrap();
            super::cluster::prefill_end(&mut sending).await
        };
        let (answer, _) = tokio::join!(finish(&mut events), sending);
        assert_eq!(answer.summary.fallback, None);
        assert_eq!(answer.tokens, second.expected(&config).await);
        let imported: u32 = calls
            .take()
            .iter()
            .map(|call| match call {
                Call::Import {
                    section: Section::Full,
                    tokens,
                    ..
                } => tokens.end - tokens.start,
                _ => 0,
            })
            .sum();
        assert_eq!(imported, chunk * 6, "rows of the other handoff");
        decode.clean().await;
        prefill.clean().await;
    }
}

/// An engine with one place.
fn one_place() -> (Arc<Model>, Calls) {
    let mut config = FakeConfig {
        sequences: 1,
        ..FakeConfig::default()
    };
    let calls = Calls::of(&mut config);
    let engine = Box::new(FakeEngine::new(config));
    let model = Arc::new(Model::start("m".into(), engine, limits()).unwrap());
    (model, calls)
}

/// A request that waits for a handoff, straight at the engine thread.
fn waiting(model: &Arc<Model>, tokens: &[u32]) -> (SequenceId, mpsc::Receiver<GenerateEvent>) {
    waiting_with(model, tokens, None)
}

/// The same where pages can come instead.
fn waiting_with(
    model: &Arc<Model>,
    tokens: &[u32],
    instead: Option<oneshot::Sender<()>>,
) -> (SequenceId, mpsc::Receiver<GenerateEvent>) {
    let admission = model.admit().unwrap();
    let id = admission.sequence;
    let (events, receiver) = mpsc::channel(64);
    let params = GenerationParams {
        sampling: SamplingParams {
            max_tokens: Some(12),
            temperature: Some(0.8),
            seed: Some(7),
            ..SamplingParams::default()
        },
        format: Format::Text,
    };
    let tokenizer = Arc::clone(&model.tokenizer);
    let sequence = GenerateSequence {
        prompt: SequencePrompt {
            request: format!("request-{}", id.0),
            tokens: tokens.to_vec(),
            chunk: 16,
            pages: instead.map(|ask| PagesHere { tokens: None, ask }),
            salt: None,
            reproducible: true,
        },
        source: Source::Remote,
        parity: Parity {
            expected: false,
            bound: ParityBound::default(),
            quality: Quality::Lossless,
            mixed_quantisation: false,
        },
        keep: Keep::new(
            &PageStore::open(&pages()).unwrap(),
            &model.contract,
            &HandoffTerms::default(),
            model.chunking(0, 16),
        ),
        retire: None,
        generation: Generation::new(&params, tokenizer, &model.constraints).unwrap(),
        events,
    };
    model
        .command(Command::Generate(admission, Box::new(sequence)))
        .unwrap();
    (id, receiver)
}

/// One whose handoff has been given up, and that waits for pages instead.
async fn seeding(
    model: &Arc<Model>,
    tokens: &[u32],
) -> (SequenceId, mpsc::Receiver<GenerateEvent>) {
    let (ask, asked) = oneshot::channel();
    let (id, events) = waiting_with(model, tokens, Some(ask));
    model
        .command(Command::HandoffFailed(id, "given up".into()))
        .unwrap();
    asked.await.expect("pages are asked for");
    (id, events)
}

async fn apply(model: &Model, id: SequenceId, block: &Arc<KvBlock>) -> Result<(), String> {
    model
        .apply(id, Origin::Handoff(Carried::default()), Arc::clone(block))
        .await
}

/// Rows that an engine computes for these tokens.
fn rows(tokens: &[u32]) -> Arc<KvBlock> {
    let mut source = FakeEngine::new(FakeConfig::default());
    let sequence = source.open().unwrap();
    source.prefill(sequence, 0, tokens).unwrap();
    let end = tokens.len() as u32;
    Arc::new(source.export(sequence, Section::Full, 0..end).unwrap())
}

/// The tokens of an answer to its end, and why no handoff brought its prompt.
async fn answered(mut events: mpsc::Receiver<GenerateEvent>) -> (Vec<u32>, Option<String>) {
    let (mut tokens, mut fallback) = (Vec::new(), None);
    while let Some(event) = events.recv().await {
        match event {
            GenerateEvent::Token { id, .. } => tokens.push(id),
            GenerateEvent::Prefilled(summary) => fallback = summary.fallback,
            GenerateEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, fallback)
}

#[tokio::test]
async fn a_handoff_that_is_given_up_brings_nothing_among_the_pages_that_come_instead() {
    let (model, _) = one_place();
    let tokens = prompt(17);
    let (id, events) = seeding(&model, &tokens).await;
    let refused = apply(&model, id, &rows(&prompt(40)[10..26])).await;
    let refused = refused.unwrap_err();
    assert!(refused.contains("no longer waits"), "{refused}");
    let page = rows(&tokens[..16]);
    model.apply(id, Origin::Pages, page).await.unwrap();
    model.deliver(Command::Seeded(id, true)).await;
    let (answer, fallback) = answered(events).await;
    assert_eq!(fallback.as_deref(), Some("given up"));
    let deal = Deal::new(&tokens, 16);
    assert_eq!(answer, deal.expected(&FakeConfig::default()).await);
    model.stop();
}

/// Pages may end where no undisturbed prefill begins a batch: one of them could not be read.
#[tokio::test]
async fn behind_pages_that_broke_off_a_prefill_begins_with_a_batch() {
    let tokens = prompt(40);
    for (exact, begins) in [(true, 16), (false, 20)] {
        let (model, calls) = one_place();
        let (id, events) = seeding(&model, &tokens).await;
        let part = Arc::new(rows(&tokens[..32]).part(0..20));
        model.apply(id, Origin::Pages, part).await.unwrap();
        calls.take();
        model.deliver(Command::Seeded(id, exact)).await;
        let (answer, _) = answered(events).await;
        let deal = Deal::new(&tokens, 16);
        assert_eq!(answer, deal.expected(&FakeConfig::default()).await);
        let computed = calls.take().into_iter().find_map(|call| match call {
            Call::Prefill { tokens, .. } => Some(tokens.start),
            _ => None,
        });
        assert_eq!(computed, Some(begins), "exact: {exact}");
        model.stop();
    }
}

#[tokio::test]
async fn kv_commands_of_an_earlier_epoch_are_refused_by_the_engine_thread() {
    let (model, calls) = one_place();
    let (old, new) = (prompt(17), prompt(40)[10..27].to_vec());
    let (old_rows, new_rows) = (rows(&old[..16]), rows(&new[..16]));

    let (first, events) = waiting(&model, &old);
    model.command(Command::Cancel(first)).unwrap();
    drop(events);
    let (second, events) = loop {
        // The place is free once the engine thread has seen the cancel.
        if model.admit().is_ok() {
            break waiting(&model, &new);
        }
        tokio::task::yield_now().await;
    };
    assert_ne!(first, second);
    let refused = apply(&model, first, &old_rows).await.unwrap_err();
    assert!(refused.contains(&format!("epoch {}", first.0)), "{refused}");
    let handed = || Box::new(HandedOver::default());
    model.command(Command::Committed(first, handed())).unwrap();
    model
        .command(Command::HandoffFailed(first, "late".into()))
        .unwrap();
    model.command(Command::Cancel(first)).unwrap();
    apply(&model, second, &new_rows).await.unwrap();
    model.command(Command::Committed(second, handed())).unwrap();
    // What comes after the commit is refused, too.
    let again = apply(&model, second, &new_rows).await.unwrap_err();
    assert!(again.contains("no longer waits"), "{again}");
    let (tokens, fallback) = answered(events).await;
    assert_eq!(fallback, None);
    let deal = Deal::new(&new, 16);
    assert_eq!(tokens, deal.expected(&FakeConfig::default()).await);
    let places: Vec<Sequence> = calls
        .take()
        .into_iter()
        .filter_map(|call| match call {
            Call::Import { sequence, .. } => Some(sequence),
            _ => None,
        })
        .collect();
    assert_eq!(places, [Sequence(0)], "one import, into the only place");
    model.stop();
}

/// A prefill that is read slowly, straight at the engine thread.
fn reading(model: &Arc<Model>, tokens: &[u32]) -> (SequenceId, mpsc::Receiver<Input>) {
    let admission = model.admit().unwrap();
    let id = admission.sequence;
    let (chunks, computed) = mpsc::channel(MAX_CHUNKS_WAITING + 1);
    let sequence = PrefillSequence {
        prompt: SequencePrompt {
            request: format!("request-{}", id.0),
            tokens: tokens.to_vec(),
            chunk: 16,
            pages: None,
            salt: None,
            reproducible: false,
        },
        by_layer: true,
        hand_back: None,
        chunks,
    };
    model
        .command(Command::Prefill(admission, Box::new(sequence)))
        .unwrap();
    (id, computed)
}

#[tokio::test]
async fn a_late_reader_gets_nothing_of_the_request_that_has_its_place_now() {
    let (model, calls) = one_place();
    let old = prompt(16 * 6 + 1);
    let new: Vec<u32> = old.iter().map(|t| t + 1).collect();
    let mut source = FakeEngine::new(FakeConfig::default());
    let mut rows = |tokens: &[u32]| {
        let sequence = source.open().unwrap();
        for start in [0, 48] {
            let chunk = &tokens[start as usize..][..48];
            source.prefill(sequence, start, chunk).unwrap();
        }
        let all = source.export(sequence, Section::Full, 0..96).unwrap();
        source.release(sequence);
        all
    };
    let (old_rows, new_rows) = (rows(&old), rows(&new));

    let (first, mut late) = reading(&model, &old);
    // It computes as far as there is room for chunks that nobody reads.
    eventually("a chunk", || late.len() >= MAX_CHUNKS_WAITING).await;
    model.command(Command::Cancel(first)).unwrap();
    eventually("a place", || model.admit().is_ok()).await;
    calls.take();
    let (_, mut second) = reading(&model, &new);
    let mut read = 0;
    let mut check = |given: Input, rows: &KvBlock| {
        let Input::Chunk(chunk) = given else {
            panic!("a receipt before the last chunk")
        };
        for block in chunk.blocks {
            assert_eq!(*block, rows.part(block.tokens.clone()));
            read += block.len();
        }
        chunk.last
    };
    // The place is the other's now, and the late reader reads before it and after it.
    assert!(!check(late.recv().await.unwrap(), &old_rows));
    while !check(second.recv().await.unwrap(), &new_rows) {}
    assert!(!check(late.recv().await.unwrap(), &old_rows));
    assert!(late.recv().await.is_none(), "rows after the end");
    assert_eq!(read, 16 * 2 + 96);
    let exported: u32 = calls
        .take()
        .iter()
        .map(|call| match call {
            Call::Export { tokens, .. } => tokens.end - tokens.start,
            _ => 0,
        })
        .sum();
    assert_eq!(exported, 96, "rows that are read for the new request only");
    model.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn before_its_commit_or_its_end_a_handoff_decodes_nothing() {
    let config = FakeConfig::default();
    let mut receiving = config.clone();
    let calls = Calls::of(&mut receiving);
    let mut waits = limits();
    waits.resume = Duration::from_millis(200);
    let decode = Setup {
        limits: waits,
        ..Setup::new(Role::Decode, &receiving)
    };
    let decode = decode.start().await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 2 + 1), chunk);
    Reuse::Off.set(&mut deal.terms);
    let (mut events, ticket) = deal.open(&decode).await;
    let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
    handoff.blocks(chunk).await;
    // All rows are there and acknowledged.
    let status = decode.status().await;
    assert_eq!(status.models[0].sequences[0].held_tokens, chunk * 2);
    assert!(
        calls
            .take()
            .iter()
            .all(|c| !matches!(c, Call::Decode { .. })),
        "decoded without a commit"
    );
    let start = Instant::now();
    drop(handoff);
    let answer = finish(&mut events).await;
    assert!(start.elapsed() >= waits.resume);
    let summary = &answer.summary;
    assert!(summary.fallback.is_some());
    assert_eq!(
        (summary.remote_tokens, summary.local_tokens),
        (chunk * 2, 0)
    );
    assert_eq!(answer.tokens, deal.expected(&config).await);
    decode.clean().await;
}

/// So many handoffs are going on that a further one finds no place or no memory, and its answer is computed
/// here. What they hold then.
async fn full(config: FakeConfig, handoffs: usize, are_committed: bool) -> HandoffStatus {
    let config = FakeConfig {
        sequences: 80,
        ..config
    };
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 4 + 1), chunk);
    Reuse::Off.set(&mut deal.terms);
    let expected = deal.expected(&config).await;
    let mut open = Vec::new();
    for i in 0..handoffs {
        deal.id = format!("silent-{i}");
        let (events, ticket) = deal.open(&decode).await;
        let handoff = Handoff::dial(&config, &deal, &ticket).await;
        let mut handoff = handoff.expect("a place");
        if are_committed {
            handoff.blocks(chunk).await;
            handoff.commit().await;
        }
        open.push((events, handoff));
    }
    let full = decode.handoffs().await;
    deal.id = "one-more".into();
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&expected, "full");
    assert!(reason.contains("no memory"), "{reason}");
    drop(open);
    decode.clean().await;
    deal.id = "after".into();
    deal.run(&prefill, &decode).await.whole(&expected, "after");
    decode.clean().await;
    prefill.clean().await;
    full
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_for_a_further_handoff_the_answer_is_computed_here() {
    // A window of 32 MiB, for which memory is set aside before it comes.
    let mut config = FakeConfig::windowed();
    config.window = 64;
    let layer = &mut config.layers[0];
    (layer.kv_heads, layer.key_dim, layer.value_dim) = (256, 512, 512);
    // The other layer with a window needs a unit more.
    let window = (32 << 20) + STAGING_UNIT;
    let each = CREDIT_BYTES + window + u64::from(MAX_SEGMENT_PAYLOAD);
    let all = STAGING_UNITS as u64 * STAGING_UNIT;
    let most = all / each;
    assert!(most < MAX_HANDOFFS as u64 - 8, "places run out first");
    let held = full(config, most as usize, false).await;
    assert_eq!(held.receiving, most);
    assert!(held.staging_bytes <= all && held.staging_bytes + each > all);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_place_for_a_further_handoff_the_answer_is_computed_here() {
    // Those that wait for a receipt need no memory.
    let held = full(FakeConfig::default(), MAX_HANDOFFS, true).await;
    assert_eq!(held.receiving, MAX_HANDOFFS as u64);
    assert_eq!(held.staging_bytes, 0);
}

/// What is remembered of complete handoffs has a limit, and takes no place from others.
#[tokio::test(flavor = "multi_thread")]
async fn complete_handoffs_are_remembered_up_to_a_limit() {
    let config = FakeConfig::default();
    let decode = Setup {
        limits: endless(),
        ..Setup::new(Role::Decode, &config)
    };
    let (prefill, decode) = (Setup::new(Role::Prefill, &config), decode.start().await);
    let prefill = prefill.start().await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk + 1), chunk);
    Reuse::Off.set(&mut deal.terms);
    deal.max_tokens = 1;
    let expected = deal.expected(&config).await;
    let first = deal.run(&prefill, &decode).await;
    first.whole(&expected, "the first");
    decode.until("received", |s| s.receiving == 0).await;
    let each = decode.handoffs().await.secrets;
    assert!(each > 0);
    for i in 0..MAX_CONFIRMED + 8 {
        let outcome = deal.run(&prefill, &decode).await;
        outcome.whole(&expected, &format!("handoff {i}"));
        outcome.done();
    }
    let most = MAX_CONFIRMED as u64 * each;
    decode
        .until("full", |s| s.receiving == 0 && s.secrets == most)
        .await;
    assert_eq!(decode.handoffs().await.staging_bytes, 0);
    decode.settled().await;
    prefill.clean().await;
}
