//! The KV of an answer, kept on both nodes for the next turn.

use std::sync::Arc;
use std::time::Instant;

use tandem_cluster::{Authority, Security};
use tandem_engine::KvCache;
use tandem_engine::fake::{CallKind, FakeConfig, FakeEngine};
use tandem_handoff::codec::Codec;
use tandem_handoff::digest::token_digest;
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind, encode_frame};
use tandem_handoff::message::{Hello, control_frame, parse};
use tandem_handoff::page::{Namespace, Origin, PageId};
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::{ParityBound, Receipt, ReturnTicket};
use tandem_handoff::sender::Offer;
use tandem_node::limits::{MAX_COMMANDS, MAX_HAND_BACKS, MAX_RETURNS, MAX_TAKEN_BACK};
use tandem_node::{Limits, PagesConfig};
use tandem_proto::{
    CodecChoice, ErrorCode, HandoffStatus, HandoffTerms, PrefillMode, Role, Ticket,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

use super::cluster::{
    Answer, Calls, Deal, PATIENCE, Reuse, SHORT, Setup, TestNode, bridge, finish, heavy, is_clean,
    limits, opened, prompt,
};
use super::codecs;
use super::kills::{Brake, held};
use super::peers::answer;
use super::proxy::Proxy;
use super::raw::Handoff;
use super::reuse;

const CHUNK: u32 = 32;

fn keeping() -> HandoffTerms {
    HandoffTerms {
        reuse: true,
        keep: true,
        ..HandoffTerms::default()
    }
}

/// A first turn whose answer is long enough for another page.
pub fn first_turn() -> Deal {
    let mut deal = Deal::new(&prompt(CHUNK * 3 + 4), CHUNK);
    deal.terms = keeping();
    deal.max_tokens = 70;
    deal
}

/// The next turn: what was said, and something new.
pub fn next_turn(first: &Deal, answer: &[u32]) -> Deal {
    let mut deal = first.clone();
    deal.tokens.extend_from_slice(answer);
    deal.tokens.extend((0..20).map(|i| 50 + i * 3 % 40));
    deal.max_tokens = 12;
    deal.id = "req-2".into();
    deal
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_prefills_only_what_is_new_on_either_node() {
    let configs = [FakeConfig::default(), FakeConfig::windowed()];
    let firsts = [Reuse::Exact, Reuse::All];
    let cases = configs.iter().flat_map(|c| firsts.map(|reuse| (c, reuse)));
    for (config, reuse) in cases {
        let (mut sending, mut receiving) = (config.clone(), config.clone());
        let (computed, decoded) = (Calls::of(&mut sending), Calls::of(&mut receiving));
        let prefill = Setup::new(Role::Prefill, &sending).start().await;
        let decode = Setup::new(Role::Decode, &receiving).start().await;
        let mut first = first_turn();
        (reuse).set(&mut first.terms);
        let outcome = first.run(&prefill, &decode).await;
        let answer = outcome.answer.tokens.clone();
        outcome.whole(&first.expected(config).await, "first turn");
        assert!(answer.len() > 40, "the answer fills no page: {answer:?}");
        // The last token that was sampled has no KV.
        let known = (first.tokens.len() + answer.len() - 1) as u32;
        let pages = u64::from(known / 64);
        // At the end of the prompt and at that of the answer.
        for node in [&prefill, &decode] {
            node.until("kept", |s| s.pages == pages && s.snapshots == 2)
                .await;
        }
        prefill.until("given back", |s| s.returns == 0).await;

        let mut second = next_turn(&first, &answer);
        Reuse::All.set(&mut second.terms);
        let new = second.tokens.len() as u32 - 1 - known;
        let expected = second.expected(config).await;
        computed.take();
        decoded.take();
        let outcome = second.run(&prefill, &decode).await;
        outcome.whole(&expected, "second turn");
        assert_eq!(computed.prefilled(), new, "the prefill node");
        assert_eq!(decoded.prefilled(), 0, "the decode node");
        assert_eq!(outcome.done().2, known - known % 64, "not sent");
        assert!(outcome.answer.parity.expect("parity").holds);

        // The same turn on the decode node alone.
        let mut third = second.clone();
        third.tokens.push(41);
        let expected = third.expected(config).await;
        third.terms.keep = false;
        decode.idle().await;
        decoded.take();
        let answer = third.local(&decode).await;
        assert_eq!(answer.tokens, expected, "local turn");
        let cached = answer.summary.cached_tokens;
        assert!(cached >= known, "{answer:?}");
        assert_eq!(decoded.prefilled(), third.tokens.len() as u32 - 1 - cached);
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_answer_is_kept_and_an_answer_of_others_is_not_shared() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let both = Setup::new(Role::Both, &config).start().await;
        let first = first_turn();
        let answer = first.local(&both).await;
        assert_eq!(answer.tokens, first.expected(&config).await);
        let known = (first.tokens.len() + answer.tokens.len() - 1) as u32;
        let pages = u64::from(known / 64);
        both.until("kept", |s| s.pages == pages).await;
        both.idle().await;
        let mut second = next_turn(&first, &answer.tokens);
        let expected = second.expected(&config).await;
        // Rows that were decoded are not those of a prefill: nobody gets them unasked.
        second.terms.keep = false;
        Reuse::Exact.set(&mut second.terms);
        let exact = second.local(&both).await;
        assert_eq!(exact.tokens, expected);
        assert_eq!(exact.summary.cached_tokens % 64, 0);
        assert!(exact.summary.cached_tokens < known - known % 64);
        Reuse::All.set(&mut second.terms);
        second.terms.salt = "another tenant".into();
        let other = second.local(&both).await;
        assert_eq!(other.tokens, expected);
        assert_eq!(other.summary.cached_tokens, 0);
        second.terms.salt = String::new();
        let own = second.local(&both).await;
        assert_eq!(own.tokens, expected);
        assert_eq!(own.summary.cached_tokens, known);
        both.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_node_that_has_gone_costs_only_its_copy() {
    let config = FakeConfig::default();
    let mut prefill = Setup::new(Role::Prefill, &config);
    prefill.mortal = true;
    let prefill = prefill.start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let first = first_turn();
    let (mut events, ticket) = first.open(&decode).await;
    let mut sending = prefill.prefill(&first.prefill(&ticket)).await.unwrap();
    super::cluster::prefill_end(&mut sending).await;
    prefill.kill();
    let answer = super::cluster::finish(&mut events).await;
    assert_eq!(answer.tokens, first.expected(&config).await);
    let known = (first.tokens.len() + answer.tokens.len() - 1) as u64;
    decode.until("kept", |s| s.pages == known / 64).await;
    decode.clean().await;
}

/// Over TLS only the machine that has the answer may bring it back.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_back_over_tls() {
    let authority = Authority::create().unwrap();
    let config = FakeConfig::default();
    let members: [Security; 2] =
        std::array::from_fn(|_| Security::Tls(Arc::new(authority.issue().unwrap())));
    let [prefill, decode] = [Role::Prefill, Role::Decode]
        .map(|role| (role, members[usize::from(role == Role::Decode)].clone()));
    let start = async |(role, security): (Role, Security)| {
        let setup = Setup {
            security,
            ..Setup::new(role, &config)
        };
        setup.start().await
    };
    let (prefill, decode) = (start(prefill).await, start(decode).await);
    let mut first = first_turn();
    let [p, d] = members.each_ref().map(|m| m.own_id().unwrap().to_string());
    first.peers = Some((p, d));
    let outcome = first.run(&prefill, &decode).await;
    let answer = outcome.answer.tokens.clone();
    outcome.whole(&first.expected(&config).await, "first turn");
    let known = (first.tokens.len() + answer.len() - 1) as u32;
    for node in [&prefill, &decode] {
        node.until("kept", |s| s.pages == u64::from(known / 64))
            .await;
    }
    prefill.until("given back", |s| s.returns == 0).await;
    let second = next_turn(&first, &answer);
    let outcome = second.run(&prefill, &decode).await;
    assert_eq!(outcome.done().2, known - known % 64, "not sent");
    outcome.whole(&second.expected(&config).await, "second turn");
    decode.clean().await;
    prefill.clean().await;
}

/// Over TLS the permission is that of one machine, and another one does not spoil it.
#[tokio::test(flavor = "multi_thread")]
async fn a_permission_to_hand_back_is_of_no_use_to_another_machine() {
    let authority = Authority::create().unwrap();
    let member = || Security::Tls(Arc::new(authority.issue().unwrap()));
    let (own, decoder, thief) = (member(), member(), member());
    let config = FakeConfig::default();
    let prefill = Setup {
        security: own.clone(),
        ..Setup::new(Role::Prefill, &config)
    };
    let prefill = prefill.start().await;
    // A decode node whose TLS is the test's, so that the receipt can be read.
    let decode = patient(&config).await;
    let proxy = Proxy::to(decode.port).await;
    let plain = ([127, 0, 0, 1], proxy.port).into();
    let mut deal = first_turn();
    deal.via = Some(
        bridge(decoder.clone(), Security::Plaintext, plain)
            .await
            .port(),
    );
    deal.prefill_terms = Some(deal.terms.clone());
    deal.terms.keep = false;
    let (mut events, ticket) = deal.open(&decode).await;
    let [own, decoding] = [&own, &decoder].map(|m| m.own_id().unwrap().to_string());
    deal.peers = Some((own, decoding));
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    super::cluster::prefill_end(&mut sending).await;
    assert!(super::cluster::finish(&mut events).await.done);
    let receipt: Receipt = serde_json::from_slice(&proxy.payload(0, Kind::Receipt)).unwrap();
    let ticket = receipt.hand_back.expect("a permission");

    let mut all = deal.tokens.clone();
    all.extend(40..68);
    let offer = handing_back(&config, &deal, &all, &ticket);
    let back = ([127, 0, 0, 1], ticket.port).into();
    let dial = async |member: &Security| {
        let port = bridge(Security::Plaintext, member.clone(), back)
            .await
            .port();
        Handoff::offer(FakeEngine::new(config.clone()), offer.clone(), port).await
    };
    let refused = dial(&thief).await.err().expect("refused");
    assert!(refused.contains("`ticket`"), "{refused}");
    let mut handoff = dial(&decoder).await.unwrap();
    handoff.blocks(64).await;
    handoff.commit().await;
    handoff.leave().await;
    prefill.until("kept", |s| s.pages == 2).await;
    prefill.clean().await;
    decode.clean().await;
}

/// What follows from lossy rows is as lossy, whoever computed it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_lossy_rows_is_not_kept() {
    // A parity fault would forget it anyway.
    let bound = ParityBound {
        kl: f64::MAX,
        margin: f64::MAX,
    };
    for length in [20, CHUNK * 3 + 4] {
        let config = codecs::config(false);
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut first = first_turn();
        first.tokens.truncate(length as usize);
        first.terms.quality = Quality::Q8;
        first.terms.codec = CodecChoice::Q8;
        first.terms.bound = bound;
        let outcome = first.run(&prefill, &decode).await;
        let answer = outcome.answer.tokens.clone();
        assert!(outcome.answer.done && answer.len() > 44, "{answer:?}");
        assert!(outcome.answer.parity.expect("parity").holds);
        assert_eq!(outcome.answer.summary.codec, Some(Codec::Q8));
        prefill.until("given up", |s| s.returns == 0).await;
        decode.idle().await;
        let mut second = next_turn(&first, &answer);
        second.terms = keeping();
        let outcome = second.run(&prefill, &decode).await;
        assert_eq!(outcome.answer.summary.cached_tokens, 0, "{length}");
        outcome.whole(&second.expected(&config).await, "second turn");
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_behind_rows_that_may_be_lossy_is_not_kept() {
    let config = codecs::config(false);
    for (quality, is_kept) in [(Quality::Lossless, true), (Quality::Q8, false)] {
        let decode = Setup {
            limits: Limits {
                resume: SHORT,
                ..limits()
            },
            ..Setup::new(Role::Decode, &config)
        };
        let decode = decode.start().await;
        let mut first = first_turn();
        first.terms.quality = quality;
        let (mut events, ticket) = first.open(&decode).await;
        let mut handoff = Handoff::dial(&config, &first, &ticket).await.unwrap();
        let block = handoff.compute(CHUNK);
        handoff.block(&block).await;
        assert_eq!(handoff.hear().await, Ok(Kind::Ack));
        handoff.leave().await;
        let answer = super::cluster::finish(&mut events).await;
        assert_eq!(answer.tokens, first.expected(&config).await);
        assert_eq!(answer.summary.remote_tokens, CHUNK, "{quality}");
        let known = (first.tokens.len() + answer.tokens.len() - 1) as u64;
        if is_kept {
            decode.until("kept", |s| s.pages == known / 64).await;
        }
        decode.clean().await;
        let pages = decode.handoffs().await.pages;
        assert_eq!(pages, if is_kept { known / 64 } else { 0 }, "{quality}");
    }
}

/// What the decode node has of the conversation it goes on from, also if no prefill node can be reached.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_prefill_node_the_next_turn_computes_only_what_is_new() {
    for config in &[FakeConfig::default(), FakeConfig::windowed()] {
        let mut receiving = config.clone();
        let decoded = Calls::of(&mut receiving);
        let prefill = Setup::new(Role::Prefill, config).start().await;
        let decode = Setup::new(Role::Decode, &receiving).start().await;
        let first = first_turn();
        let outcome = first.run(&prefill, &decode).await;
        let answer = outcome.answer.tokens.clone();
        outcome.whole(&first.expected(config).await, "first turn");
        let known = (first.tokens.len() + answer.len() - 1) as u32;
        decode
            .until("kept", |s| {
                s.pages == u64::from(known / 64) && s.snapshots == 2
            })
            .await;

        let mut second = next_turn(&first, &answer);
        // Nobody listens there.
        let deaf = TcpSocket::new_v4().unwrap();
        deaf.bind(([127, 0, 0, 1], 0).into()).unwrap();
        second.via = Some(deaf.local_addr().unwrap().port());
        let expected = second.expected(config).await;
        decode.idle().await;
        decoded.take();
        let outcome = second.run(&prefill, &decode).await;
        let reason = outcome.made_good(&expected, "second turn");
        assert!(reason.contains("cannot connect"), "{reason}");
        let new = second.tokens.len() as u32 - 1 - known;
        assert_eq!(decoded.prefilled(), new);
        let summary = &outcome.answer.summary;
        assert_eq!((summary.cached_tokens, summary.local_tokens), (known, new));
        decode.clean().await;
        prefill.clean().await;
    }
}

/// What a node computes behind rows of another one is not what a prefill computes alone, to the bit, where the two have
/// other steps: those who want that do not get it, though its tokens are of the prompt.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_behind_the_rows_of_others_is_not_exact() {
    for is_own in [false, true] {
        let config = FakeConfig::default();
        let mut sending = config.clone();
        let brake = Brake::on(&mut sending, CallKind::Prefill, 4);
        let prefill = Setup::new(Role::Prefill, &sending).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut first = Deal::new(&prompt(CHUNK * 10 + 4), CHUNK);
        first.terms.keep = true;
        let expected = first.expected(&config).await;
        let answer = if is_own {
            first.local(&decode).await
        } else {
            let (mut events, ticket) = first.open(&decode).await;
            let _sending = prefill.prefill(&first.prefill(&ticket)).await.unwrap();
            held(&decode, CHUNK * 4).await;
            decode.prefill_failed(&first.id, "the test says so").await;
            finish(&mut events).await
        };
        assert_eq!(answer.tokens, expected);
        let brought = if is_own { 0 } else { CHUNK * 4 };
        assert_eq!(answer.summary.remote_tokens, brought, "{answer:?}");
        let known = (first.tokens.len() + answer.tokens.len() - 1) as u64;
        decode.until("kept", |s| s.pages == known / 64).await;
        decode.idle().await;
        let mut second = first.clone();
        second.id = "req-2".into();
        second.terms.keep = false;
        for (reuse, cached) in [
            (Reuse::Exact, if is_own { CHUNK * 10 } else { brought }),
            (Reuse::All, CHUNK * 10),
        ] {
            (reuse).set(&mut second.terms);
            let answer = second.local(&decode).await;
            assert_eq!(answer.tokens, expected);
            assert_eq!(answer.summary.cached_tokens, cached, "{reuse:?} {is_own}");
        }
        // Not before: chunks that come late are a prefill's own, and are kept as exact.
        brake.release();
        decode.clean().await;
        prefill.clean().await;
    }
}

/// A decode node that has nearly all of a prompt needs no other node, and one that has less gives a ticket.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_which_nearly_all_is_here_is_prefilled_here() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut receiving = config.clone();
        let decoded = Calls::of(&mut receiving);
        let decode = Setup::new(Role::Decode, &receiving).start().await;
        let mut first = first_turn();
        // Nothing is here yet, however much may be missing.
        let mut request = first.generate(PrefillMode::Remote);
        request.alone_percent = 100;
        let mut events = decode.generate(&request).await.unwrap();
        assert!(opened(&mut events).await.is_some(), "a ticket");
        drop(events);
        decode.idle().await;
        first.id = "req-0".into();
        let answer = first.local(&decode).await.tokens;
        let known = (first.tokens.len() + answer.len() - 1) as u32;
        decode
            .until("kept", |s| {
                s.pages == u64::from(known / 64) && s.snapshots == 1
            })
            .await;
        let mut second = next_turn(&first, &answer);
        second.terms.keep = false;
        let expected = second.expected(&config).await;
        let kv_end = second.tokens.len() as u32 - 1;
        let new = kv_end - known;
        let enough = (new * 100).div_ceil(kv_end) as u8;
        // Later ones find the rows of the first in the engine; for so few tokens no window is copied.
        let mut counts = (known, new, new);
        for (alone_percent, alone) in [(enough, true), (enough - 1, false), (0, false), (100, true)]
        {
            decode.idle().await;
            decoded.take();
            let mut request = second.generate(PrefillMode::Remote);
            request.alone_percent = alone_percent;
            let mut events = decode.generate(&request).await.unwrap();
            let ticket = opened(&mut events).await;
            assert_eq!(ticket.is_none(), alone, "{alone_percent} %");
            if alone {
                let answer = finish(&mut events).await;
                assert_eq!(answer.tokens, expected);
                let summary = &answer.summary;
                let (cached, local) = (summary.cached_tokens, summary.local_tokens);
                assert_eq!((cached, local, decoded.prefilled()), counts);
                assert_eq!(summary.fallback, None);
                if config.window == 0 {
                    counts = (kv_end, 0, 0);
                }
            }
        }
        // Where no other node is to prefill, there is no ticket.
        decode.idle().await;
        let mut request = second.generate(PrefillMode::Local);
        request.alone_percent = enough - 1;
        let refused = decode.generate(&request).await.err().expect("refused");
        assert_eq!(refused.code, ErrorCode::Lacks, "{refused}");
        request.alone_percent = enough;
        decoded.take();
        let answer = finish(&mut decode.generate(&request).await.unwrap()).await;
        assert_eq!((answer.tokens, decoded.prefilled()), (expected, counts.2));
        let mut wrong = second.generate(PrefillMode::Remote);
        wrong.alone_percent = 101;
        let refused = decode.generate(&wrong).await.err().expect("refused");
        assert!(
            refused.message.contains("`alone_percent` is 101"),
            "{refused}"
        );
        decode.clean().await;
    }
}

/// The prefill node keeps exact rows only.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_handed_back_without_loss_whatever_is_permitted() {
    let config = codecs::config(false);
    for codec in [CodecChoice::Auto, CodecChoice::Q8] {
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut first = first_turn();
        first.terms.quality = Quality::Q8;
        // The prompt comes without loss, and what the decode node was told is how the answer goes back.
        let mut there = first.terms.clone();
        there.codec = CodecChoice::Raw;
        first.prefill_terms = Some(there);
        first.terms.codec = codec;
        let outcome = first.run(&prefill, &decode).await;
        outcome.whole(&first.expected(&config).await, "first turn");
        let known = (first.tokens.len() + outcome.answer.tokens.len() - 1) as u64;
        prefill
            .until("handed back", |s| s.pages == known / 64 && s.returns == 0)
            .await;
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_the_permission_to_hand_back_up() {
    let mut receiving = FakeConfig::default();
    // The answer does not end before the client has left.
    let brake = Brake::on(&mut receiving, CallKind::Decode, 4);
    let config = FakeConfig::default();
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &receiving).start().await;
    let first = first_turn();
    let (events, ticket) = first.open(&decode).await;
    let mut sending = prefill.prefill(&first.prefill(&ticket)).await.unwrap();
    super::cluster::prefill_end(&mut sending).await;
    brake.reached().await;
    prefill.until("promised", |s| s.returns == 1).await;
    drop(events);
    brake.release();
    prefill
        .until("given up", |s| s.returns == 0 && s.tickets == 0)
        .await;
    decode.clean().await;
    prefill.clean().await;
}

/// Also where the answer is not kept because of what came, and the receipt comes much later than the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_comes_late_is_given_up_where_nothing_is_kept() {
    let config = codecs::config(false);
    let mut deal = first_turn();
    deal.terms.quality = Quality::Q8;
    let (prefill, permission) = permission(&config, &deal).await;
    let mut receiving = config.clone();
    let brake = Brake::on(&mut receiving, CallKind::Decode, 2);
    let setup = Setup {
        limits: Limits {
            receipt: SHORT,
            ..super::cluster::endless()
        },
        ..Setup::new(Role::Decode, &receiving)
    };
    let decode = setup.start().await;
    let (events, ticket) = deal.open(&decode).await;
    let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
    let kv_end = deal.tokens.len() as u32 - 1;
    let mut at = 0;
    while at < kv_end {
        at = kv_end.min(at + deal.chunk);
        let block = handoff.compute(at);
        handoff.block_in(&block, Codec::Q8).await;
    }
    handoff.commit().await;
    brake.reached().await;
    tokio::time::sleep(SHORT * 3).await;
    assert_eq!(prefill.handoffs().await.returns, 1);
    let receipt = handoff.computed(Some(permission));
    handoff.receipt(&receipt).await;
    prefill
        .until("given up", |s| s.returns == 0 && s.tickets == 0)
        .await;
    brake.release();
    drop(events);
    handoff.leave().await;
    decode.settled().await;
    prefill.clean().await;
}

/// The decode node has only what it has computed and what has come to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_prompt_the_prefill_node_has_forgotten_is_not_handed_back() {
    let config = FakeConfig::default();
    let prefill = Setup {
        pages: PagesConfig {
            ram_bytes: 1,
            disk: None,
        },
        ..Setup::new(Role::Prefill, &config)
    };
    let prefill = prefill.start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let first = first_turn();
    let outcome = first.run(&prefill, &decode).await;
    let answer = outcome.answer.tokens.clone();
    outcome.whole(&first.expected(&config).await, "first turn");
    prefill.until("over", |s| s.returns == 0).await;
    let second = next_turn(&first, &answer);
    let outcome = second.run(&prefill, &decode).await;
    let known = (first.tokens.len() + answer.len() - 1) as u32;
    assert_eq!(outcome.done().2, known - known % 64, "not sent");
    outcome.whole(&second.expected(&config).await, "second turn");
    assert_eq!(prefill.handoffs().await.pages, 0);
    decode.clean().await;
    prefill.clean().await;
}

/// A decode node that has heard the receipt before it says that an answer is complete.
async fn patient(config: &FakeConfig) -> TestNode {
    let setup = Setup {
        limits: Limits {
            receipt: PATIENCE,
            ..limits()
        },
        ..Setup::new(Role::Decode, config)
    };
    setup.start().await
}

/// The permission that a prefill node gave with its receipt, unused.
async fn permission(config: &FakeConfig, deal: &Deal) -> (TestNode, ReturnTicket) {
    permission_of(Setup::new(Role::Prefill, config), deal).await
}

/// The same of a node like this.
pub async fn permission_of(prefill: Setup, deal: &Deal) -> (TestNode, ReturnTicket) {
    let config = &prefill.config.clone();
    let prefill = prefill.start().await;
    let decode = patient(config).await;
    let proxy = Proxy::to(decode.port).await;
    let mut deal = deal.clone();
    // The decode node is not told to keep anything.
    deal.prefill_terms = Some(deal.terms.clone());
    deal.terms.keep = false;
    deal.via = Some(proxy.port);
    proxy.next(&[]);
    deal.run(&prefill, &decode).await;
    decode.settled().await;
    let receipt: Receipt = serde_json::from_slice(&proxy.payload(0, Kind::Receipt)).unwrap();
    let ticket = receipt.hand_back.expect("a permission");
    assert_eq!(ticket.port, prefill.port);
    (prefill, ticket)
}

/// A hand-back whose second block breaks a rule ends, and the first one stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_in_a_lossy_codec_is_refused() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let all = continued(&deal, 192);
    let (prefill, ticket) = permission(&config, &deal).await;
    let mut handoff = begun(&config, &deal, &all, &ticket).await.unwrap();
    let have = handoff.sender.accepted().have_tokens;
    assert_eq!(have, 64, "the page of the prompt");
    handoff.compute(have);
    let rows = handoff.compute(128);
    handoff.block(&rows).await;
    while handoff.sender.in_flight() > 0 {
        handoff.hear().await.unwrap();
    }
    let rows = handoff.compute(192);
    handoff.block_in(&rows, Codec::Q8).await;
    let refused = loop {
        if let Err(reason) = handoff.hear().await {
            break reason;
        }
    };
    assert!(refused.contains("codec"), "{refused}");
    handoff.leave().await;
    prefill.settled().await;
    assert_eq!(prefill.handoffs().await.pages, 2);
}

/// Whoever goes on with a hand-back over another connection brings what was begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_back_that_comes_again_with_other_tokens_is_refused() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let mut all = continued(&deal, 128);
    let (prefill, ticket) = permission(&config, &deal).await;
    let handoff = begun(&config, &deal, &all, &ticket).await.unwrap();
    let (_, payload) = handoff.hello().split_at(HEADER_BYTES);
    let mut hello: Hello = parse(Kind::Hello, payload).unwrap();
    hello.ticket.clone_from(&handoff.sender.accepted().session);
    *hello.continuation.last_mut().unwrap() += 1;
    *all.last_mut().unwrap() += 1;
    hello.token_digest = PageId::from_bytes(token_digest(&all)).to_string();
    let again = control_frame(Kind::Hello, ticket.handoff, 0, &hello).unwrap();
    let heard = answer(ticket.port, &again).await;
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.contains("`token_digest`"), "{heard}");
    handoff.leave().await;
    prefill.settled().await;
    assert_eq!(prefill.handoffs().await.pages, 1);
}

/// A sender that only shows that it lives holds a place for a limited time: there is no request that ends it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_come_is_given_up() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let all = continued(&deal, 128);
    let setup = Setup {
        limits: Limits {
            hand_back: SHORT,
            ..super::cluster::endless()
        },
        ..Setup::new(Role::Prefill, &config)
    };
    let (prefill, ticket) = permission_of(setup, &deal).await;
    let start = Instant::now();
    let handoff = begun(&config, &deal, &all, &ticket).await.unwrap();
    prefill.settled().await;
    assert!(start.elapsed() >= SHORT);
    handoff.leave().await;
}

/// However many answers come back at once, there are places for handoffs of requests.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_taken_back_at_once_are_bounded() {
    let config = FakeConfig::default();
    let mut deal = Deal::new(&prompt(CHUNK + 4), CHUNK);
    deal.max_tokens = 1;
    deal.prefill_terms = Some(keeping());
    let setup = Setup {
        limits: super::cluster::endless(),
        ..Setup::new(Role::Prefill, &config)
    };
    let prefill = setup.start().await;
    let decode = patient(&config).await;
    let proxy = Proxy::to(decode.port).await;
    deal.via = Some(proxy.port);
    let all = continued(&deal, deal.tokens.len() + 30);
    let begin = async || {
        proxy.next(&[]);
        assert!(deal.run(&prefill, &decode).await.answer.done);
        let receipt = proxy.payload(0, Kind::Receipt);
        let receipt: Receipt = serde_json::from_slice(&receipt).unwrap();
        let ticket = receipt.hand_back.expect("a permission");
        begun(&config, &deal, &all, &ticket).await
    };
    let mut taken = Vec::new();
    for _ in 0..MAX_TAKEN_BACK {
        taken.push(begin().await.unwrap());
    }
    let refused = begin().await.err().expect("refused");
    assert!(refused.contains("no memory"), "{refused}");
    // One that ends makes room.
    let mut first = taken.swap_remove(0);
    first.blocks(64).await;
    first.commit().await;
    first.leave().await;
    let room = |s: &HandoffStatus| s.receiving == MAX_TAKEN_BACK as u64 - 1;
    prefill.until("room", room).await;
    taken.push(begin().await.unwrap());
    for mut handoff in taken {
        handoff.blocks(64).await;
        handoff.commit().await;
        handoff.leave().await;
    }
    decode.clean().await;
    prefill.settled().await;
}

/// The tokens of a request, and some more up to so many.
fn continued(deal: &Deal, count: usize) -> Vec<u32> {
    let answer = (0..50).map(|i| 40 + i).cycle();
    deal.tokens
        .iter()
        .copied()
        .chain(answer)
        .take(count)
        .collect()
}

/// Begins to hand back what follows the prompt of a request.
async fn begun(
    config: &FakeConfig,
    deal: &Deal,
    all: &[u32],
    ticket: &ReturnTicket,
) -> Result<Handoff, String> {
    let offer = handing_back(config, deal, all, ticket);
    Handoff::offer(FakeEngine::new(config.clone()), offer, ticket.port).await
}

fn handing_back(config: &FakeConfig, deal: &Deal, all: &[u32], ticket: &ReturnTicket) -> Offer {
    let contract = Arc::new(FakeEngine::new(config.clone()).contract().clone());
    let salt = deal.terms.salt.as_bytes();
    Offer {
        pages: Namespace::new(Arc::clone(&contract), salt, Origin::Exact).chain(all),
        contract,
        handoff: ticket.handoff,
        ticket: ticket.ticket.clone(),
        tokens: all.to_vec(),
        continuation: (all.len() - deal.tokens.len()) as u32,
        kv_end: all.len() as u32,
        step_bytes: 0,
        exact_end: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permission_to_hand_an_answer_back_cannot_be_misused() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let mut all = deal.tokens.clone();
    all.extend((0..28).map(|i| 40 + i));
    assert_eq!(all.len(), 128);
    let dial = |offer: Offer, port| {
        let engine = FakeEngine::new(config.clone());
        async move { Handoff::offer(engine, offer, port).await }
    };

    // A wrong number of the handoff, or a guess, does not spoil it; other tokens use it up.
    let (prefill, ticket) = permission(&config, &deal).await;
    let good = handing_back(&config, &deal, &all, &ticket);
    let mut wrong = good.clone();
    wrong.handoff ^= 1;
    let mut guess = good.clone();
    guess.ticket = "00".repeat(16);
    for offer in [wrong, guess] {
        let refused = dial(offer, ticket.port).await.err().expect("refused");
        assert!(refused.contains("`ticket`"), "{refused}");
    }
    // The right one works, once.
    let mut handoff = dial(good.clone(), ticket.port).await.unwrap();
    handoff.blocks(64).await;
    handoff.commit().await;
    handoff.leave().await;
    prefill.until("kept", |s| s.pages == 2).await;
    let refused = dial(good, ticket.port).await.err().expect("refused");
    assert!(refused.contains("`ticket`"), "{refused}");
    prefill.clean().await;

    let (prefill, ticket) = permission(&config, &deal).await;
    let mut other = all.clone();
    other[3] += 1;
    let offer = handing_back(&config, &deal, &other, &ticket);
    let refused = dial(offer, ticket.port).await.err().expect("refused");
    assert!(refused.contains("`token_digest`"), "{refused}");
    let good = handing_back(&config, &deal, &all, &ticket);
    let refused = dial(good, ticket.port).await.err().expect("refused");
    assert!(refused.contains("`ticket`"), "{refused}");
    assert_eq!(prefill.handoffs().await.pages, 1, "its own page only");
    prefill.clean().await;

    // What was prefilled there is not replaced.
    let (prefill, ticket) = permission(&config, &deal).await;
    let mut offer = handing_back(&config, &deal, &all, &ticket);
    offer.kv_end = deal.tokens.len() as u32 - 2;
    let refused = dial(offer, ticket.port).await.err().expect("refused");
    assert!(refused.contains("`kv_end`"), "{refused}");
    prefill.clean().await;

    // It is no ticket for anything else.
    let (prefill, ticket) = permission(&config, &deal).await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let (events, own) = deal.open(&decode).await;
    let stolen = Ticket {
        secret: ticket.ticket,
        ..own
    };
    let refused = Handoff::dial(&config, &deal, &stolen).await.err();
    assert!(refused.expect("refused").contains("`ticket`"));
    drop(events);
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_to_hand_back_that_nobody_uses_expires() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let prefill = Setup {
        limits: Limits {
            return_ticket: SHORT,
            ..limits()
        },
        ..Setup::new(Role::Prefill, &config)
    };
    let (prefill, ticket) = permission_of(prefill, &deal).await;
    prefill
        .until("expired", |s| s.tickets == 0 && s.returns == 0)
        .await;
    let mut all = deal.tokens.clone();
    all.extend(40..68);
    let offer = handing_back(&config, &deal, &all, &ticket);
    let refused = Handoff::offer(FakeEngine::new(config), offer, ticket.port).await;
    let refused = refused.err().expect("refused");
    assert!(refused.contains("`ticket`"), "{refused}");
    prefill.clean().await;
}

/// A prefill node promises to take so many answers and no more; requests go on without.
#[tokio::test(flavor = "multi_thread")]
async fn permissions_to_hand_back_are_bounded() {
    let config = FakeConfig::default();
    let mut deal = Deal::new(&prompt(CHUNK + 4), CHUNK);
    deal.max_tokens = 1;
    deal.prefill_terms = Some(keeping());
    let expected = deal.expected(&config).await;
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = patient(&config).await;
    let proxy = Proxy::to(decode.port).await;
    deal.via = Some(proxy.port);
    let promised = async || {
        proxy.next(&[]);
        deal.run(&prefill, &decode).await.whole(&expected, "kept");
        let receipt = proxy.payload(0, Kind::Receipt);
        let receipt: Receipt = serde_json::from_slice(&receipt).unwrap();
        receipt.hand_back
    };
    let mut tickets = Vec::new();
    for _ in 0..MAX_RETURNS {
        tickets.push(promised().await.expect("a permission"));
    }
    assert_eq!(prefill.handoffs().await.returns, MAX_RETURNS as u64);
    assert_eq!(promised().await, None);
    // One that is used makes room.
    let all: Vec<u32> = deal.tokens.iter().copied().chain(40..70).collect();
    let ticket = &tickets[MAX_RETURNS / 2];
    let offer = handing_back(&config, &deal, &all, ticket);
    let handoff = Handoff::offer(FakeEngine::new(config.clone()), offer, ticket.port).await;
    let mut handoff = handoff.unwrap();
    handoff.blocks(64).await;
    handoff.commit().await;
    handoff.leave().await;
    prefill
        .until("room", |s| s.returns == MAX_RETURNS as u64 - 1)
        .await;
    assert!(promised().await.is_some());
    assert_eq!(promised().await, None);
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_take_an_answer_back_holds_nobody_up() {
    // The answer is more blocks than may wait anywhere.
    let config = heavy();
    let decode = Setup {
        pages: PagesConfig {
            ram_bytes: 256 << 20,
            disk: None,
        },
        // Nothing else may free the place.
        limits: Limits {
            handoff_silence: PATIENCE * 10,
            ..limits()
        },
        ..Setup::new(Role::Decode, &config)
    };
    let decode = decode.start().await;
    let deal = first_turn();
    // It takes the connection, and then says nothing.
    let silent = super::cluster::bind().await;
    let port = silent.local_addr().unwrap().port();
    let answer = answered(&config, &deal, &decode, port).await;
    assert_eq!(answer.tokens, deal.expected(&config).await);
    let (connection, _) = silent.accept().await.unwrap();
    assert!(answer.parity.expect("parity").holds);
    // The pages do not wait for it, and the place for a limited time.
    let known = (deal.tokens.len() + answer.tokens.len() - 1) as u64;
    decode.until("kept", |s| s.pages == known / 64).await;
    decode.idle().await;
    // Only the handing back itself goes on, for as long as the answer to its hello may take.
    let nothing_else = |s: &HandoffStatus| {
        let rest = HandoffStatus { sending: 0, ..*s };
        s.sending == 1 && is_clean(&rest)
    };
    decode.until("nothing else", nothing_else).await;
    drop((connection, silent));
    decode.clean().await;
}

/// Nobody finds what is handed back before it is committed; what does not fit its commit leaves again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_commit_does_not_fit_leaves_what_was_there() {
    let config = FakeConfig::default();
    let deal = first_turn();
    let mut all = deal.tokens.clone();
    all.extend((0..28).map(|i| 40 + i));
    for is_false in [true, false] {
        let (prefill, ticket) = permission(&config, &deal).await;
        let offer = handing_back(&config, &deal, &all, &ticket);
        let engine = FakeEngine::new(config.clone());
        let mut handoff = Handoff::offer(engine, offer, ticket.port).await.unwrap();
        handoff.blocks(64).await;
        assert_eq!(prefill.handoffs().await.pages, 2);
        if is_false {
            handoff.false_commit().await;
        } else {
            handoff.commit().await;
        }
        handoff.leave().await;
        prefill.settled().await;
        let pages = if is_false { 1 } else { 2 };
        prefill.until("judged", |s| s.pages == pages).await;
    }
}

/// A request to `decode` whose prefill node takes the answer at this port; the answer.
async fn answered(config: &FakeConfig, deal: &Deal, decode: &TestNode, port: u16) -> Answer {
    let (mut events, ticket) = deal.open(decode).await;
    let mut handoff = Handoff::dial(config, deal, &ticket).await.unwrap();
    handoff.blocks(CHUNK).await;
    handoff.commit().await;
    let ticket = ReturnTicket {
        ticket: "00".repeat(16),
        handoff: 1,
        port,
    };
    let receipt = handoff.computed(Some(ticket));
    handoff.receipt(&receipt).await;
    handoff.leave().await;
    super::cluster::finish(&mut events).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_beats_and_takes_nothing_is_given_up() {
    let config = FakeConfig::default();
    let decode = Setup {
        limits: Limits {
            hand_back: SHORT,
            ..limits()
        },
        ..Setup::new(Role::Decode, &config)
    };
    let decode = decode.start().await;
    let deal = first_turn();
    let listener = super::cluster::bind().await;
    let port = listener.local_addr().unwrap().port();
    // It has the pages of the prompt, as it should.
    let contract = Arc::new(FakeEngine::new(config.clone()).contract().clone());
    let names = Namespace::new(contract, deal.terms.salt.as_bytes(), Origin::Exact);
    let pages = names.chain(&deal.tokens[..64]);
    let claim = reuse::Claim {
        tokens: 64,
        page: pages.last().map(ToString::to_string),
        window: 0,
    };
    let beating = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let start = Instant::now();
        let handoff = reuse::accept(&mut stream, claim).await;
        for sequence in 1.. {
            let beat = encode_frame(Header::control(Kind::Beat, handoff, sequence), &[]);
            if stream.write_all(&beat).await.is_err() {
                break;
            }
            tokio::time::sleep(SHORT / 20).await;
        }
        start.elapsed()
    });
    let answer = answered(&config, &deal, &decode, port).await;
    assert_eq!(answer.tokens, deal.expected(&config).await);
    let took = tokio::time::timeout(PATIENCE, beating).await;
    assert!(took.expect("given up").unwrap() >= SHORT);
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_handed_back_at_once_are_bounded() {
    let config = FakeConfig::default();
    let decode = patient(&config).await;
    let mut deal = Deal::new(&prompt(CHUNK + 4), CHUNK);
    deal.max_tokens = 3;
    deal.terms = keeping();
    let expected = deal.expected(&config).await;
    // It takes connections, and says nothing.
    let silent = super::cluster::bind().await;
    let port = silent.local_addr().unwrap().port();
    let mut connections = Vec::new();
    for _ in 0..MAX_HAND_BACKS {
        let answer = answered(&config, &deal, &decode, port).await;
        assert_eq!(answer.tokens, expected);
        connections.push(silent.accept().await.unwrap());
    }
    assert_eq!(decode.handoffs().await.sending, MAX_HAND_BACKS as u64);
    let answer = answered(&config, &deal, &decode, port).await;
    assert_eq!(answer.tokens, expected);
    decode.idle().await;
    // One that ends makes room.
    connections.pop();
    let ended = |s: &HandoffStatus| s.sending == MAX_HAND_BACKS as u64 - 1;
    decode.until("one has ended", ended).await;
    answered(&config, &deal, &decode, port).await;
    connections.push(silent.accept().await.unwrap());
    // The one that found no room has not come.
    let further = tokio::time::timeout(SHORT, silent.accept()).await;
    assert!(further.is_err());
    drop((connections, silent));
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_is_refused_leaves_no_permission() {
    let mut config = FakeConfig {
        sequences: 2 * MAX_COMMANDS as u32,
        ..FakeConfig::default()
    };
    let brake = Brake::on(&mut config, CallKind::Prefill, 0);
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    // Nobody listens there.
    let nowhere = Ticket {
        secret: "0".repeat(32),
        handoff: 1,
        ip: None,
        port: 1,
    };
    let mut deal = first_turn();
    deal.terms = HandoffTerms::default();
    let mut asked = 0;
    // The engine stands still, so that its queue fills.
    let refused = loop {
        match prefill.prefill(&deal.prefill(&nowhere)).await {
            // Leaving at once is a command, too.
            Ok(events) => drop(events),
            Err(error) => break error,
        }
        asked += 1;
        assert!(asked <= MAX_COMMANDS, "the queue does not fill");
    };
    assert!(refused.message.contains("commands waiting"), "{refused}");
    deal.terms = keeping();
    let refused = prefill.prefill(&deal.prefill(&nowhere)).await;
    let refused = refused.err().expect("a refusal");
    assert!(refused.message.contains("commands waiting"), "{refused}");
    let held = prefill.handoffs().await;
    assert_eq!((held.returns, held.tickets), (0, 0));
    brake.release();
    prefill.clean().await;
    // Where it is taken, there is a permission as long as the handoff may come about.
    let brake = Brake::on(&mut config, CallKind::Prefill, 0);
    let other = Setup::new(Role::Prefill, &config).start().await;
    let silent = super::cluster::bind().await;
    deal.via = Some(silent.local_addr().unwrap().port());
    let events = other.prefill(&deal.prefill(&nowhere)).await.unwrap();
    assert_eq!(other.handoffs().await.returns, 1);
    brake.release();
    drop(events);
    other.clean().await;
}
