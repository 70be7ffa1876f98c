//! Rows that came with loss, kept for requests that allow as much.

use std::ops::Range;
use std::sync::Arc;

use tandem_engine::KvCache;
use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_handoff::codec::{Codec, Decoder, Encoder, RunSpec};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::ParityBound;
use tandem_handoff::{Contract, KvBlock, LayerKind, LayerSpec, Plane, PlaneKind, Section};
use tandem_node::Limits;
use tandem_node::chunking::Chunking;
use tandem_node::prefix_cache::keep_block;
use tandem_node::prefix_cache::{Keep, Tail};
use tandem_prefix_cache::{Held, PageStore, PagesConfig};
use tandem_proto::{CodecChoice, HandoffTerms, PrefillEvent, Role};

use super::cluster::{Deal, Outcome, Reuse, SHORT, Setup, finish, limits, prompt};
use super::codecs::config;
use super::conversation::{first_turn, next_turn};
use super::raw::Handoff;
use super::reuse::{CHUNK, SHARED, ending, pair, token_bytes, window_bytes};

const LOSSY: [(Codec, Quality); 1] = [(Codec::Q8, Quality::Q8)];

/// The fake engine turns the smallest difference into other tokens: a fault that would forget pages.
const ANY: ParityBound = ParityBound {
    kl: f64::MAX,
    margin: f64::MAX,
};

fn deal(tokens: &[u32], codec: Codec, quality: Quality) -> Deal {
    let mut deal = Deal::new(tokens, CHUNK);
    deal.terms.codec = CodecChoice::from(codec);
    deal.terms.quality = quality;
    deal.terms.bound = ANY;
    deal
}

fn lossless(deal: &Deal) -> Deal {
    let mut deal = deal.clone();
    deal.terms.codec = CodecChoice::Raw;
    deal.terms.quality = Quality::Lossless;
    deal
}

/// The same between nodes that have nothing.
async fn fresh(deal: &Deal, config: &FakeConfig) -> Outcome {
    let (prefill, decode) = pair(config).await;
    let outcome = deal.run(&prefill, &decode).await;
    decode.clean().await;
    prefill.clean().await;
    outcome
}

/// The same tokens, to the same comparison, of which these were there before and came in this codec.
fn same(outcome: &Outcome, expected: &Outcome, have: u32, codec: Option<Codec>) {
    outcome.whole(&expected.answer.tokens, "tokens");
    let figures = |o: &Outcome| o.answer.parity.as_ref().map(|p| (p.holds, p.parity));
    assert_eq!(figures(outcome), figures(expected));
    assert_eq!(outcome.answer.summary.cached_tokens, have);
    assert_eq!(outcome.answer.summary.codec, codec);
    assert_eq!(outcome.done().2, have);
}

#[tokio::test]
async fn a_shared_beginning_crosses_the_wire_once_with_loss_too() {
    for (config, (codec, quality)) in [config(false), config(true)]
        .iter()
        .flat_map(|c| LOSSY.map(|l| (c, l)))
    {
        let (prefill, decode) = pair(config).await;
        for (i, count) in [20, 33, 70].into_iter().enumerate() {
            let deal = deal(&ending(i as u32, count), codec, quality);
            let outcome = deal.run(&prefill, &decode).await;
            let have = if i == 0 { 0 } else { SHARED };
            same(&outcome, &fresh(&deal, config).await, have, Some(codec));
            let (raw, wire, ..) = outcome.done();
            let own = SHARED + count - 1 - have;
            assert_eq!(
                raw,
                u64::from(own) * token_bytes(config) + window_bytes(config)
            );
            assert!(wire < raw, "{codec}: {wire} of {raw}");
        }
        decode.clean().await;
        prefill.clean().await;
    }
}

/// What nobody has to send because it came before is as lossy as it came, and serves whoever allows that.
#[tokio::test]
async fn lossy_pages_serve_only_requests_that_allow_as_much() {
    let config = config(false);
    let tokens = ending(1, 1);
    for (codec, quality) in LOSSY {
        for asked in Quality::ALL {
            let (prefill, decode) = pair(&config).await;
            let first = deal(&tokens, codec, quality);
            let before = first.run(&prefill, &decode).await;
            assert_ne!(
                before.answer.tokens,
                first.expected(&config).await,
                "{codec}"
            );
            // In a codec that all allow.
            let mut second = lossless(&first);
            second.terms.quality = asked;
            let outcome = second.run(&prefill, &decode).await;
            if asked.allows(codec) {
                same(&outcome, &before, SHARED, Some(codec));
                assert_eq!(outcome.done(), (0, 0, SHARED, 0));
            } else {
                outcome.whole(&first.expected(&config).await, "lossless");
                assert_eq!(outcome.answer.summary.cached_tokens, 0);
                assert_eq!(outcome.answer.summary.codec, Some(Codec::Raw));
                // From now on there are exact pages, which are better.
                let outcome = first.run(&prefill, &decode).await;
                outcome.whole(&first.expected(&config).await, "exact pages");
                assert_eq!(outcome.answer.summary.cached_tokens, SHARED);
                assert_eq!(outcome.answer.summary.codec, None);
            }
            decode.clean().await;
            prefill.clean().await;
        }
    }
}

#[tokio::test]
async fn lossy_pages_of_another_tenant_or_without_reuse_are_not_used() {
    let config = config(false);
    let (prefill, decode) = pair(&config).await;
    let mut deal = deal(&ending(1, 20), Codec::Q8, Quality::Q8);
    for (salt, reuse, have) in [
        ("one", Reuse::Off, 0),
        ("one", Reuse::Exact, 0),
        ("two", Reuse::Exact, 0),
        ("one", Reuse::Off, 0),
        ("one", Reuse::Exact, SHARED),
    ] {
        deal.terms.salt = salt.into();
        reuse.set(&mut deal.terms);
        let outcome = deal.run(&prefill, &decode).await;
        same(
            &outcome,
            &fresh(&deal, &config).await,
            have,
            Some(Codec::Q8),
        );
    }
    decode.clean().await;
    prefill.clean().await;
}

/// A fault of parity forgets the lossy pages, which may be its reason, and not the exact ones.
#[tokio::test]
async fn what_does_not_fit_forgets_lossy_pages_only() {
    let config = config(false);
    let (prefill, decode) = pair(&config).await;
    let exact = lossless(&Deal::new(&ending(1, 64), CHUNK));
    let expected = exact.expected(&config).await;
    exact
        .run(&prefill, &decode)
        .await
        .whole(&expected, "exact pages");
    // Two pages are there exactly; the third one comes with loss.
    let mut lossy = deal(&ending(1, 80), Codec::Q8, Quality::Q8);
    for (bound, have) in [
        (ANY, SHARED),
        (ANY, SHARED + 64),
        (ParityBound::default(), SHARED + 64),
        (ANY, SHARED),
    ] {
        lossy.terms.bound = bound;
        let outcome = lossy.run(&prefill, &decode).await;
        assert!(outcome.answer.done && outcome.answer.summary.fallback.is_none());
        assert_eq!(outcome.answer.summary.cached_tokens, have);
        assert_eq!(outcome.answer.parity.expect("parity").holds, bound == ANY);
    }
    let again = exact.run(&prefill, &decode).await;
    again.whole(&expected, "exact pages stay");
    assert_eq!(again.answer.summary.cached_tokens, SHARED);
    decode.clean().await;
    prefill.clean().await;
}

/// What the decode node computes itself from the start is right: it begins with exact pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_computed_here_does_not_begin_with_lossy_pages() {
    let config = config(false);
    let (prefill, decode) = pair(&config).await;
    let deal = deal(&ending(1, 20), Codec::Q8, Quality::Q8);
    let expected = deal.expected(&config).await;
    let lossy = deal.run(&prefill, &decode).await;
    assert_ne!(lossy.answer.tokens, expected);
    let alone = deal.local(&decode).await;
    assert_eq!(
        (alone.tokens, alone.summary.cached_tokens),
        (expected.clone(), 0)
    );
    let (mut events, _ticket) = deal.open(&decode).await;
    decode.prefill_failed(&deal.id, "it has gone").await;
    let answer = finish(&mut events).await;
    let end = PrefillEvent::Beat;
    let outcome = Outcome { answer, end };
    outcome.made_good(&expected, "no handoff");
    // Those that were made when it was computed here before.
    assert_eq!(outcome.answer.summary.cached_tokens, SHARED);
    assert_eq!(outcome.answer.summary.codec, None);
    decode.clean().await;
    prefill.clean().await;
}

/// A handoff that began with lossy pages and brought nothing: the rest is computed behind them, as behind the same
/// rows that came otherwise, and nothing of it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_behind_lossy_pages_is_not_kept() {
    let config = config(false);
    let contract = full_contract(&config);
    let node = || {
        Setup {
            limits: Limits {
                resume: SHORT,
                ..limits()
            },
            ..Setup::new(Role::Decode, &config)
        }
        .start()
    };
    for (codec, quality) in LOSSY {
        let mut deal = deal(&ending(1, 20), codec, quality);
        deal.max_tokens = 70;
        Reuse::All.set(&mut deal.terms);
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = node().await;
        deal.run(&prefill, &decode).await;
        decode.until("kept", |s| s.pages == 2).await;
        deal.terms.keep = true;
        let (mut events, ticket) = deal.open(&decode).await;
        let handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
        handoff.leave().await;
        let answer = finish(&mut events).await;
        assert!(answer.done && answer.tokens.len() > 44);
        assert_eq!(answer.summary.cached_tokens, SHARED);
        assert_eq!(answer.summary.codec, Some(codec));
        assert!(answer.summary.fallback.is_some());
        decode.clean().await;
        assert_eq!(decode.handoffs().await.pages, 2, "{codec}");

        let other = node().await;
        let (mut events, ticket) = deal.open(&other).await;
        let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
        for end in (CHUNK..=SHARED).step_by(CHUNK as usize) {
            let mut block = handoff.compute(end);
            pass_through(&contract, codec, &mut block);
            handoff.block(&block).await;
            handoff.hear().await.unwrap();
        }
        handoff.leave().await;
        let same = finish(&mut events).await;
        assert_eq!(same.summary.remote_tokens, SHARED);
        assert_eq!(same.summary.codec, Some(Codec::Raw));
        assert_eq!(answer.tokens, same.tokens, "{codec}");
        other.clean().await;
        prefill.clean().await;
    }
}

/// Lossy pages before rows that came exactly: the answer behind both is not exact.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_begins_with_lossy_pages_is_not_kept() {
    let config = config(false);
    let (prefill, decode) = pair(&config).await;
    let mut first = first_turn();
    first.terms.quality = Quality::Q8;
    first.terms.codec = CodecChoice::Q8;
    first.terms.bound = ANY;
    first.terms.keep = false;
    first.run(&prefill, &decode).await;
    first.terms.codec = CodecChoice::Raw;
    first.terms.keep = true;
    let outcome = first.run(&prefill, &decode).await;
    let (answer, kept) = (outcome.answer, first.tokens.len() as u32 / 64 * 64);
    assert!(answer.done && answer.tokens.len() > 44);
    assert_eq!(answer.summary.cached_tokens, kept);
    assert_eq!(answer.summary.codec, Some(Codec::Q8));
    prefill.until("given up", |s| s.returns == 0).await;
    decode.idle().await;
    let second = lossless(&next_turn(&first, &answer.tokens));
    let outcome = second.run(&prefill, &decode).await;
    outcome.whole(&second.expected(&config).await, "second turn");
    assert_eq!(outcome.answer.summary.cached_tokens, 0);
    decode.clean().await;
    prefill.clean().await;
}

fn full_contract(config: &FakeConfig) -> Contract {
    use tandem_engine::KvCache;
    tandem_engine::fake::FakeEngine::new(config.clone())
        .contract()
        .clone()
}

/// Rows as they arrive.
fn pass_through(contract: &Contract, codec: Codec, block: &mut KvBlock) {
    let tokens = block.len();
    for plane in &mut block.planes {
        let run = RunSpec::of(contract, plane.layer, plane.kind, tokens).unwrap();
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
        let mut bytes = Vec::new();
        encoder
            .encode(codec, &run, &plane.data, &mut bytes)
            .unwrap();
        decoder
            .decode(codec, &run, &bytes, &mut plane.data)
            .unwrap();
    }
}

/// What a request of this quality keeps and finds.
fn keep(store: &PageStore, contract: &Arc<Contract>, chunking: Chunking, quality: Quality) -> Keep {
    let terms = HandoffTerms {
        quality,
        ..HandoffTerms::default()
    };
    Keep::new(store, contract, &terms, chunking)
}

fn in_memory() -> PageStore {
    let config = PagesConfig {
        ram_bytes: 1 << 30,
        disk: None,
    };
    PageStore::open(&config).unwrap()
}

/// Two layers without windows.
fn full_only() -> Arc<Contract> {
    let layer = LayerSpec {
        kind: LayerKind::Full,
        kv_heads: 1,
        key_dim: 2,
        value_dim: 1,
    };
    let config = FakeConfig {
        layers: vec![layer; 2],
        ..FakeConfig::default()
    };
    Arc::new(FakeEngine::new(config).contract().clone())
}

/// Rows whose bytes depend on their token.
fn full_block(contract: &Contract, tokens: Range<u32>) -> KvBlock {
    let planes = contract.section_layers(Section::Full).into_iter();
    let planes = planes.flat_map(|layer| [(layer, PlaneKind::Key), (layer, PlaneKind::Value)]);
    let planes = planes.map(|(layer, kind)| {
        let row = plane_bytes(contract, layer, kind, 1).unwrap() as usize;
        let data = tokens.clone().flat_map(|t| vec![t as u8; row]);
        let data = data.collect::<Vec<u8>>().into();
        Plane { layer, kind, data }
    });
    KvBlock {
        section: Section::Full,
        planes: planes.collect(),
        tokens: tokens.clone(),
    }
}

/// Every way in which two pages can come in three blocks: a page is as lossy as the most lossy rows in it.
#[tokio::test]
async fn a_page_of_several_blocks_is_as_lossy_as_the_worst_of_them() {
    const BLOCKS: [std::ops::Range<u32>; 3] = [0..40, 40..100, 100..128];
    let contract = full_only();
    let tokens: Arc<[u32]> = prompt(128).into();
    let chunking = Chunking {
        kv_end: 128,
        chunk: 32,
        tail: 32,
    };
    let all = Codec::ALL;
    for codecs in all
        .iter()
        .flat_map(|a| all.iter().flat_map(move |b| all.map(|c| [*a, *b, c])))
    {
        let store = in_memory();
        let keep = |quality| keep(&store, &contract, chunking, quality);
        let mut tail = Tail::default();
        for (range, codec) in BLOCKS.into_iter().zip(codecs) {
            let block = Arc::new(full_block(&contract, range));
            let before = tail.then(&block, codec);
            keep_block(&keep(Quality::Q8), &tokens, &block, codec, before).await;
        }
        let worst = [codecs[0].max(codecs[1]), codecs[1].max(codecs[2])];
        for quality in Quality::ALL {
            let pages = worst
                .iter()
                .take_while(|codec| quality.allows(**codec))
                .count();
            let pinned = keep(quality).pin(&tokens);
            let held = pinned.as_ref().map_or_else(Held::default, |p| p.held());
            assert_eq!(held.tokens, pages as u32 * 64, "{codecs:?} for {quality}");
            let used = worst[..pages].iter().filter(|c| !c.is_lossless()).max();
            let codec = pinned.as_ref().and_then(|p| p.origin(&(0..128)).codec());
            assert_eq!(codec, used.copied(), "{codecs:?} for {quality}");
            if let Some(pinned) = pinned {
                for block in pinned.load(0..held.tokens).unwrap() {
                    assert_eq!(block, full_block(&contract, block.tokens.clone()));
                }
            }
            // What is computed here begins with exact rows.
            let exact = worst.iter().take_while(|codec| codec.is_lossless()).count();
            assert_eq!(keep(quality).held(&tokens).tokens, exact as u32 * 64);
        }
    }
}

/// A fault forgets all lossy copies, also those that the request may not use, and the exact ones that it brought.
#[tokio::test]
async fn a_fault_forgets_lossy_pages_and_what_came_with_them() {
    let contract = full_only();
    let tokens: Arc<[u32]> = prompt(256).into();
    let chunking = Chunking {
        kv_end: 256,
        chunk: 64,
        tail: 64,
    };
    for (asked, had) in [Quality::ALL, Quality::ALL]
        .concat()
        .into_iter()
        .zip([0, 0, 128, 128])
    {
        let store = in_memory();
        let keep = |quality| keep(&store, &contract, chunking, quality);
        let block = Arc::new(full_block(&contract, 0..256));
        for codec in Codec::ALL {
            let keep = keep(Quality::Q8);
            keep_block(&keep, &tokens, &block, codec, Tail::default()).await;
        }
        // Four exact pages and as many lossy ones.
        assert_eq!(store.stats().pages, 8);
        let forgotten = keep(asked).forget(&tokens, had);
        assert_eq!(forgotten, u64::from(8 - had / 64));
        let left = keep(Quality::Q8).pin(&tokens);
        let left = left.map_or_else(Held::default, |pinned| pinned.held());
        assert_eq!(left.tokens, had, "{asked}");
        assert_eq!(store.stats().pages, u64::from(had / 64));
    }
}
