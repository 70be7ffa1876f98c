//! The receipt: whether both ends compute the same, and what follows if they do not.

use std::sync::Arc;
use std::time::Duration;

use tandem_engine::fake::{Call, CallKind, Failure, FakeConfig};
use tandem_handoff::frame::Kind;
use tandem_handoff::receipt::{Receipt, TokenScore};
use tandem_node::Limits;
use tandem_proto::{GenerateEvent, HandoffTerms, PrefillEvent, PrefillMode, Role, Ticket};

use super::cluster::{
    Calls, Deal, PATIENCE, Reuse, SHORT, Setup, TestNode, endless, finish, limits, opened, prompt,
};
use super::kills::{Brake, held};
use super::proxy::Fault;
use super::raw::Handoff;
use super::rig::{Plan, Rig};

const CHUNK: u32 = 32;

/// The same contract, and other numbers.
pub fn different(config: &FakeConfig) -> FakeConfig {
    FakeConfig {
        seed: config.seed + 1,
        ..config.clone()
    }
}

#[tokio::test]
async fn equal_engines_agree() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let deal = Deal::new(&prompt(CHUNK * 3 + 5), CHUNK);
        let outcome = deal.run(&prefill, &decode).await;
        outcome.whole(&deal.expected(&config).await, "equal");
        let report = outcome.answer.parity.expect("parity");
        assert!(report.holds, "{report:?}");
        assert!(report.parity.kl < 1e-6, "{report:?}");
        assert!(report.parity.same_top && report.parity.max_difference < 1e-4);
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test]
async fn a_prefill_that_computes_something_else_is_reported() {
    let config = FakeConfig::default();
    let prefill = Setup::new(Role::Prefill, &different(&config)).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let deal = Deal::new(&prompt(CHUNK * 3 + 5), CHUNK);
    let outcome = deal.run(&prefill, &decode).await;
    assert!(outcome.answer.done && outcome.answer.summary.fallback.is_none());
    let report = outcome.answer.parity.expect("parity");
    assert!(!report.holds && report.parity.kl > 0.1, "{report:?}");
    nothing_is_kept(&deal, &config, &decode).await;
    prefill.clean().await;
    decode.clean().await;
}

/// Other requests get nothing of what one has found wrong.
async fn nothing_is_kept(deal: &Deal, config: &FakeConfig, decode: &TestNode) {
    decode.idle().await;
    assert_eq!(decode.handoffs().await.pages, 0);
    let next = deal.local(decode).await;
    assert_eq!(next.tokens, deal.expected(config).await);
    assert_eq!(next.summary.cached_tokens, 0);
}

/// Another quantisation of the weights, as the contract has it.
fn quantised(config: &FakeConfig) -> FakeConfig {
    FakeConfig {
        quantisation: "other".into(),
        ..config.clone()
    }
}

#[tokio::test]
async fn rows_of_another_quantisation_need_permission_and_serve_one_request() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut sending = quantised(&config);
        let computed = Calls::of(&mut sending);
        let prefill = Setup::new(Role::Prefill, &sending).start().await;
        let decode = Setup::new(Role::Decode, &config).start().await;
        let mut deal = Deal::new(&prompt(CHUNK * 8 + 5), CHUNK);
        let expected = deal.expected(&config).await;
        let outcome = deal.run(&prefill, &decode).await;
        let reason = outcome.made_good(&expected, "without permission");
        assert!(reason.contains("`quantisation`"), "{reason}");
        // Pages of the decode node's own quantisation are not put before other rows.
        let kept = HandoffTerms {
            reuse: true,
            keep: true,
            ..HandoffTerms::default()
        };
        deal.terms = kept.clone();
        assert_eq!(deal.local(&decode).await.tokens, expected);
        let own = u64::from(CHUNK * 8 / 64);
        decode.until("kept", |s| s.pages == own).await;
        for keep in [false, true] {
            deal.terms.mixed_quantisation = true;
            deal.terms.keep = keep;
            (if keep { Reuse::All } else { Reuse::Exact }).set(&mut deal.terms);
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&expected, "with permission");
            assert!(outcome.answer.parity.expect("parity").holds);
            let summary = &outcome.answer.summary;
            assert_eq!((summary.cached_tokens, outcome.done().2), (0, 0));
            decode.idle().await;
            // Nothing of it is kept there, and nothing goes back.
            assert_eq!(decode.handoffs().await.pages, own);
            assert_eq!(prefill.handoffs().await.returns, 0);
        }
        // The node that computed the rows may use them again.
        if config.window == 0 {
            computed.take();
            deal.terms.keep = false;
            Reuse::Exact.set(&mut deal.terms);
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&expected, "again");
            assert!(computed.prefilled() <= CHUNK + 4, "computed again");
        }
        // The decode node's own rows are shared as ever.
        deal.terms = kept;
        let alone = deal.local(&decode).await;
        assert_eq!(alone.tokens, expected);
        // Windows are kept at the end of an answer, which this prompt does not reach.
        let shared = alone.summary.cached_tokens;
        assert_eq!(shared > 0, config.window == 0, "{alone:?}");
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_another_quantisation_go_on_after_a_break_of_the_connection() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut plan = Plan::new(&config, limits());
        plan.limits.resume = std::time::Duration::from_secs(5);
        plan.sending = quantised(&config);
        plan.deal.terms.mixed_quantisation = true;
        let rig = plan.start().await;
        let [sent, _] = rig.record().await;
        // Behind more than a page.
        let (_, commit) = sent.iter().find(|(k, _)| *k == Kind::Commit).unwrap();
        assert!(rig.kv_end() > 64);
        let outcome = rig.run(&[Fault::Cut(commit.start + 8)]).await;
        outcome.whole(&rig.expected, "cut");
        rig.once("cut");
        assert_eq!(outcome.done().3, 1);
        assert!(outcome.answer.parity.expect("parity").holds);
        rig.clean().await;
    }
}

#[tokio::test]
async fn whoever_comes_again_comes_with_the_same_quantisation() {
    let config = FakeConfig::default();
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = Deal::new(&prompt(CHUNK * 3 + 5), CHUNK);
    deal.terms.mixed_quantisation = true;
    let (mut events, ticket) = deal.open(&decode).await;
    let first = quantised(&config);
    let handoff = Handoff::dial(&first, &deal, &ticket).await.unwrap();
    let again = Ticket {
        secret: handoff.sender.accepted().session.clone(),
        ..ticket
    };
    handoff.leave().await;
    let refused = Handoff::dial(&config, &deal, &again).await.err();
    let refused = refused.expect("a refusal");
    assert!(refused.contains("`quantisation`"), "{refused}");
    let answer = finish(&mut events).await;
    assert_eq!(answer.tokens, deal.expected(&config).await);
    assert_eq!(answer.summary.remote_tokens, 0);
    decode.clean().await;
}

/// Nothing is computed behind rows of another quantisation, though all have come.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_another_quantisation_are_not_used_when_the_prefill_node_is_lost() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut plan = Plan::new(&config, endless());
        plan.sending = quantised(&config);
        plan.deal.terms.mixed_quantisation = true;
        let [sent, _] = Rig::new(&config).await.record().await;
        let (_, commit) = sent.iter().find(|(k, _)| *k == Kind::Commit).unwrap();
        let rig = plan.start().await;
        let going = rig.held(Fault::Hold(commit.start + 8)).await;
        held(&rig.decode, rig.kv_end()).await;
        rig.prefill.kill();
        rig.decode.prefill_failed(&rig.deal.id, "it has gone").await;
        let answer = going.answer().await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        let summary = &answer.summary;
        assert!(summary.fallback.is_some(), "{summary:?}");
        let counts = (summary.remote_tokens, summary.local_tokens);
        assert_eq!(counts, (0, rig.kv_end()), "{summary:?}");
        rig.proxy.cut();
        rig.decode.clean().await;
    }
}

/// Also where the coordinator hears of the failure and says so before the engine has heard of it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_their_commit_contradicts_are_not_used_whoever_tells_first() {
    rows_are_not_used("`commit.manifest`").await;
}

/// Whoever says such a thing is not believed about the rows, either.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_not_used_if_what_cannot_be_read_comes_before_all_is_applied() {
    rows_are_not_used(NO_RECEIPT).await;
}

/// How a node says so.
const NO_RECEIPT: &str = "Receipt message";

async fn rows_are_not_used(why: &str) {
    let mut config = FakeConfig::default();
    let plain = config.clone();
    // One block is in, and the next one waits.
    let brake = Brake::on(&mut config, CallKind::Import, 1);
    let setup = Setup {
        limits: endless(),
        ..Setup::new(Role::Decode, &config)
    };
    let decode = setup.start().await;
    let deal = Deal::new(&prompt(CHUNK * 3 + 5), CHUNK);
    let (mut events, ticket) = deal.open(&decode).await;
    let mut handoff = Handoff::dial(&plain, &deal, &ticket).await.unwrap();
    for end in [CHUNK, CHUNK * 2, CHUNK * 3, CHUNK * 3 + 4] {
        let block = handoff.compute(end);
        handoff.block(&block).await;
    }
    brake.reached().await;
    while handoff.sender.in_flight() > 3 {
        handoff.hear().await.unwrap();
    }
    if why == NO_RECEIPT {
        handoff.commit_without_a_receipt().await;
    } else {
        handoff.false_commit().await;
    }
    let telling = async {
        let reason = loop {
            if let Err(reason) = handoff.hear().await {
                break reason;
            }
        };
        decode.prefill_failed(&deal.id, &reason).await;
    };
    // Whoever tells first does so while the engine stands still.
    let releasing = async {
        tokio::time::sleep(SHORT).await;
        brake.release();
    };
    let (answer, ..) = tokio::join!(finish(&mut events), telling, releasing);
    assert_eq!(answer.tokens, deal.expected(&plain).await);
    assert_eq!(answer.summary.remote_tokens, 0);
    let reason = answer.summary.fallback.expect("fallback");
    assert!(reason.contains(why), "{reason}");
    decode.settled().await;
    assert_eq!(decode.handoffs().await.pages, 0);
}

#[tokio::test]
async fn two_quantisations_that_do_not_fit_are_found() {
    let config = FakeConfig::default();
    let other = quantised(&different(&config));
    let prefill = Setup::new(Role::Prefill, &other).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = Deal::new(&prompt(CHUNK * 3 + 5), CHUNK);
    deal.terms.mixed_quantisation = true;
    let outcome = deal.run(&prefill, &decode).await;
    assert!(outcome.answer.done && outcome.answer.summary.fallback.is_none());
    let report = outcome.answer.parity.expect("parity");
    assert!(!report.holds && report.parity.kl > 0.1, "{report:?}");
    decode.clean().await;
    prefill.clean().await;
}

/// A request that began with them before goes on, and nothing that follows from them stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_computed_behind_rows_that_turn_out_wrong_is_not_kept() {
    let mut config = FakeConfig::default();
    let plain = config.clone();
    // A long answer is a slow one.
    config.gate = Some(Arc::new(|call: &Call| {
        if call.kind() == CallKind::Decode {
            std::thread::sleep(Duration::from_millis(5));
        }
    }));
    let setup = Setup {
        limits: endless(),
        ..Setup::new(Role::Decode, &config)
    };
    let decode = setup.start().await;
    let mut deal = Deal::new(&prompt(CHUNK * 4 + 5), CHUNK);
    Reuse::All.set(&mut deal.terms);
    let (mut events, ticket) = deal.open(&decode).await;
    let mut handoff = Handoff::dial(&plain, &deal, &ticket).await.unwrap();
    handoff.blocks(CHUNK).await;
    handoff.commit().await;
    decode.until("kept", |s| s.pages == 2).await;
    // The pages are there, and have not been compared.
    let mut other = deal.clone();
    other.id = "other".into();
    other.tokens.extend(40..60);
    other.terms.keep = true;
    other.max_tokens = 200;
    let mut others = decode
        .generate(&other.generate(PrefillMode::Local))
        .await
        .unwrap();
    opened(&mut others).await;
    let begun = loop {
        if let GenerateEvent::Prefilled(summary) = others.next().await.unwrap() {
            break summary;
        }
    };
    assert!(begun.cached_tokens >= 128, "{begun:?}");
    handoff.receipt(&receipt("other tokens").unwrap()).await;
    handoff.leave().await;
    let answer = finish(&mut events).await;
    assert!(!answer.parity.expect("parity").holds);
    assert_eq!(decode.handoffs().await.pages, 0);
    assert!(finish(&mut others).await.done);
    decode.settled().await;
    assert_eq!(decode.handoffs().await.pages, 0);
}

/// A receipt that says what the engine would say, to be spoilt.
fn receipt(kind: &str) -> Option<Receipt> {
    let mut top: Vec<TokenScore> = (0..4u16)
        .map(|i| TokenScore {
            token: u32::from(i) + 40,
            logprob: -1.0 - f32::from(i) * 0.3,
        })
        .collect();
    match kind {
        "missing" => return None,
        "other tokens" => {}
        "a token outside the vocabulary" => top[3].token = 5000,
        "a token twice" => top[3].token = top[2].token,
        "out of order" => top.swap(0, 3),
        "more than all" => top.iter_mut().for_each(|s| s.logprob = 0.0),
        "next to nothing" => top.iter_mut().for_each(|s| s.logprob = -50.0),
        "empty" => top.clear(),
        "too long" => {
            top = (0..33)
                .map(|token| TokenScore {
                    token,
                    logprob: -9.0,
                })
                .collect();
        }
        other => panic!("{other}"),
    }
    Some(Receipt {
        top,
        hand_back: None,
    })
}

/// The prefill node evaluates the last token for its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_at_the_receipt_is_not_waited_for() {
    let mut plan = Plan::new(&FakeConfig::default(), endless());
    plan.sending.fail = Some(Failure {
        call: CallKind::Decode,
        nth: 0,
        every: 0,
    });
    let rig = plan.start().await;
    let (end, answer) = rig.begin(&[]).await.end().await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    let answer = answer.await.unwrap();
    assert_eq!(answer.tokens, rig.expected);
    assert_eq!(answer.parity, None);
    assert_eq!(answer.summary.fallback, None);
    rig.clean().await;
}

#[tokio::test]
async fn what_a_receipt_that_cannot_be_used_came_with_is_not_kept() {
    let config = FakeConfig::default();
    // Only one that is missing is waited for.
    let start = async |receipt| {
        let setup = Setup {
            limits: Limits {
                receipt,
                resume: receipt,
                ..endless()
            },
            ..Setup::new(Role::Decode, &config)
        };
        setup.start().await
    };
    let (patient, hasty) = (start(PATIENCE * 10).await, start(SHORT).await);
    for kind in [
        "missing",
        "other tokens",
        "a token outside the vocabulary",
        "a token twice",
        "out of order",
        "more than all",
        "next to nothing",
        "empty",
        "too long",
    ] {
        let decode = if kind == "missing" { &hasty } else { &patient };
        let deal = Deal::new(&prompt(CHUNK * 2 + 5), CHUNK);
        let (mut events, ticket) = deal.open(decode).await;
        let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
        handoff.blocks(CHUNK).await;
        handoff.commit().await;
        if let Some(receipt) = receipt(kind) {
            handoff.receipt(&receipt).await;
        }
        handoff.leave().await;
        let answer = finish(&mut events).await;
        assert!(answer.done, "{kind}: {answer:?}");
        assert_eq!(answer.tokens, deal.expected(&config).await, "{kind}");
        assert_eq!(answer.summary.fallback, None, "{kind}");
        // Only what is a distribution can be compared.
        let compared = answer.parity.is_some();
        assert_eq!(compared, kind == "other tokens", "{kind}: {answer:?}");
        // Nobody else gets what came with it, unless it is only the comparison that is missing.
        decode.idle().await;
        let is_kept = kind == "missing";
        let pages = decode.handoffs().await.pages;
        assert_eq!(pages, u64::from(is_kept), "{kind}: {answer:?}");
    }
    hasty.released().await;
    patient.settled().await;
}
