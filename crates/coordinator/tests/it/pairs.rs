//! Terms of handoffs, and what is told of pairs of nodes.

use serde_json::{Value, json};
use tandem_api::TandemInfo;
use tandem_coordinator::{KeepAnswers, NodeList, PairReport, ParityAction};
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::Parity;
use tandem_proto::{
    CodecChoice, ErrorCode, GenerateEvent, HandoffTerms, ParityReport, PrefillEvent, PrefillMode,
    PrefillSummary, Role,
};

use crate::fake::{FakeNode, status};
use crate::rig::{Rig, config, whole_of};

const fn parity(kl: f64, holds: bool) -> ParityReport {
    ParityReport {
        parity: Parity {
            kl,
            same_top: holds,
            margin: 1.0,
            max_difference: if holds { 0.125 } else { 0.25 },
        },
        holds,
    }
}

/// One request from the prefill node to the decode node; the answer.
async fn answered(
    rig: &Rig,
    p: &FakeNode,
    d: &FakeNode,
    parity: Option<ParityReport>,
) -> TandemInfo {
    let answer = rig.chat(json!({}));
    let (_, decode) = d.generate().await.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.token(7, "Hel").await;
    decode.done_with(1, parity).await;
    whole_of(answer.await.unwrap()).await.1
}

#[tokio::test]
async fn an_answer_tells_what_its_decode_node_would_have_taken_alone() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut config = config(&[&p], &[&d]);
    // Of the node that prefills nothing needs to be known.
    config.nodes[1].profile = Some("m4-max".to_owned());
    for (profile, known) in [("qwen3-coder-30b", true), ("gemma-3-27b", false)] {
        config.models[0].profile = Some(profile.to_owned());
        let rig = Rig::start(config.clone()).await;
        let info = answered(&rig, &p, &d, None).await;
        let Some(alone) = info.alone else {
            assert!(!known, "{profile}");
            continue;
        };
        assert!(known && alone.machine == "m4-max", "{profile}");
        let phases = &info.phases_ms;
        let took = phases.first_token - phases.queue + phases.decode;
        assert!((alone.speed_up * took / alone.predicted_ms - 1.0).abs() < 1e-9);
        // One token takes a step, and the prompt, of which the decode node had nothing, some more.
        let step = 1000.0 / 83.16;
        assert!(alone.predicted_ms > step * 0.9, "{}", alone.predicted_ms);
        assert!(alone.predicted_ms < 20.0 * step, "{}", alone.predicted_ms);
    }
    config.nodes[1].profile = None;
    let rig = Rig::start(config).await;
    assert_eq!(answered(&rig, &p, &d, None).await.alone, None);
}

async fn pairs(rig: &Rig) -> Vec<PairReport> {
    let (_, nodes) = rig.get("/v1/nodes").await;
    serde_json::from_value::<NodeList>(nodes).unwrap().pairs
}

#[tokio::test]
async fn a_pair_that_does_not_compute_the_same_is_suspect_until_it_does() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    assert_eq!(pairs(&rig).await, []);
    let info = answered(&rig, &p, &d, Some(parity(0.4, false))).await;
    let compared = info.parity.unwrap();
    assert_eq!((compared.kl, compared.max_difference), (0.4, 0.25));
    assert_eq!((compared.same_top, compared.holds), (false, false));
    assert_eq!(
        (info.codec.as_deref(), info.wire_bytes),
        (Some("plane"), 585)
    );
    let event = &info.events[0];
    assert!(
        event.contains("`p` and `d` do not compute the same"),
        "{event}"
    );
    let told = pairs(&rig).await;
    assert!(told[0].suspect);
    assert_eq!((told[0].compared, told[0].parity_faults), (1, 1));
    let info = answered(&rig, &p, &d, Some(parity(0.001, true))).await;
    assert!(info.events.is_empty() && info.parity.unwrap().holds);
    let info = answered(&rig, &p, &d, None).await;
    assert_eq!(info.parity, None);
    let told = pairs(&rig).await;
    assert_eq!((&*told[0].prefill, &*told[0].decode), ("p", "d"));
    assert!(!told[0].suspect);
    assert_eq!(
        (told[0].handoffs, told[0].compared, told[0].parity_faults),
        (3, 2, 1)
    );
    assert_eq!(
        (told[0].handoff_bytes, told[0].wire_bytes),
        (3 * 576, 3 * 585)
    );
    assert_eq!((told[0].last_kl, told[0].max_kl), (Some(0.001), 0.4));
    assert_eq!((told[0].same_top, told[0].max_difference), (1, 0.25));
}

/// Where that is wanted, they are not paired again: the decode node prefills by itself, and the answer says why.
#[tokio::test]
async fn a_pair_that_does_not_compute_the_same_may_be_refused() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut settings = config(&[&p], &[&d]);
    settings.handoff.parity = ParityAction::Refuse;
    let rig = Rig::start(settings).await;
    for report in [None, Some(parity(0.001, true)), Some(parity(0.4, false))] {
        assert_eq!(answered(&rig, &p, &d, report).await.mode, "remote");
    }
    let answer = rig.chat(json!({}));
    let (asked, decode) = d.generate().await.accept();
    assert_eq!(asked.prefill, PrefillMode::Local);
    decode.open(10, false).await;
    decode.prefilled(0, 9, None).await;
    decode.say_hello().await;
    let (_, info) = whole_of(answer.await.unwrap()).await;
    assert_eq!(info.mode, "local");
    let events = info.events.join(", ");
    assert!(events.contains("`p` is not to prefill for `d`"), "{events}");
}

/// Whatever nodes say of themselves, the coordinator goes on.
#[tokio::test]
async fn figures_beyond_all_bounds_end_nothing() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    for _ in 0..2 {
        let answer = rig.chat(json!({}));
        let (_, decode) = d.generate().await.accept();
        decode.open(10, true).await;
        let (_, prefill) = p.prefill_call().await.accept();
        let done = PrefillEvent::Done {
            prefill_ms: f64::MAX,
            computed_tokens: u32::MAX,
            transfer_ms: f64::MAX,
            exposed_transfer_ms: f64::MAX,
            handoff_bytes: u64::MAX,
            wire_bytes: u64::MAX,
            have_tokens: u32::MAX,
            reconnects: u32::MAX,
        };
        prefill.send(&done).await;
        let summary = PrefillSummary {
            remote_tokens: u32::MAX,
            cached_tokens: u32::MAX,
            local_tokens: u32::MAX,
            local_prefill_ms: f64::MAX,
            apply_ms: f64::MAX,
            handoff_bytes: u64::MAX,
            wire_bytes: u64::MAX,
            reconnects: u32::MAX,
            ..PrefillSummary::default()
        };
        decode.send(&GenerateEvent::Prefilled(summary)).await;
        decode.token(7, "Hel").await;
        decode.done_with(u32::MAX, None).await;
        whole_of(answer.await.unwrap()).await;
    }
    let told = pairs(&rig).await;
    assert_eq!((told[0].handoffs, told[0].handoff_bytes), (2, u64::MAX));
    assert!(rig.text("/metrics").await.ends_with("# EOF\n"));
}

#[tokio::test]
async fn metrics_tell_the_same() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    answered(&rig, &p, &d, Some(parity(0.4, false))).await;
    answered(&rig, &p, &d, Some(parity(0.001, true))).await;
    answered(&rig, &p, &d, Some(parity(0.5, false))).await;
    let text = rig.text("/metrics").await;
    let busy = text
        .lines()
        .filter(|line| line.starts_with("tandem_busy_percent{"));
    assert!(
        busy.clone().count() > 0 && busy.clone().all(|line| line.ends_with(" 40")),
        "{text}"
    );
    for line in [
        "tandem_handoffs_total{prefill=\"p\",decode=\"d\"} 3",
        "tandem_wire_bytes_total{prefill=\"p\",decode=\"d\"} 1755",
        "tandem_parity_compared_total{prefill=\"p\",decode=\"d\"} 3",
        "tandem_parity_same_top_total{prefill=\"p\",decode=\"d\"} 1",
        "tandem_parity_faults_total{prefill=\"p\",decode=\"d\"} 2",
        "tandem_parity_kl{prefill=\"p\",decode=\"d\"} 0.5",
        "tandem_parity_difference_max{prefill=\"p\",decode=\"d\"} 0.25",
        "tandem_parity_suspect{prefill=\"p\",decode=\"d\"} 1.0",
        "# TYPE tandem_parity_kl gauge",
        "# EOF",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
}

/// The terms that both nodes get for a request.
async fn terms(rig: &Rig, p: &FakeNode, d: &FakeNode, request: Value) -> HandoffTerms {
    let answer = rig.chat(request);
    let (asked, decode) = d.generate().await.accept();
    decode.open(10, true).await;
    let (request, prefill) = p.prefill_call().await.accept();
    prefill.prefill_done().await;
    decode.prefilled(9, 0, None).await;
    decode.say_hello().await;
    answer.await.unwrap();
    assert_eq!(asked.terms, request.terms);
    asked.terms
}

#[tokio::test]
async fn every_chat_keeps_its_answers_and_goes_on_from_them() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let first = terms(&rig, &p, &d, json!({})).await;
    let kept = HandoffTerms {
        keep: true,
        ..HandoffTerms::default()
    };
    assert_eq!(first, kept);
    let turns = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]);
    let request = json!({"messages": turns, "tandem": {"cache_salt": "class 7b"}});
    let second = terms(&rig, &p, &d, request).await;
    assert_eq!(
        (second.reuse, second.keep, &*second.salt),
        (true, true, "class 7b")
    );
    let request = json!({"messages": turns, "tandem": {"keep": false}});
    let told = terms(&rig, &p, &d, request).await;
    assert_eq!((told.reuse, told.keep), (true, false));
    let told = terms(&rig, &p, &d, json!({"tandem": {"keep": false}})).await;
    assert_eq!(told, HandoffTerms::default());
}

/// Only a turn that goes on from an answer: what prompts of others begin with a prefill node is to have, too.
#[tokio::test]
async fn only_the_next_turn_may_be_computed_by_its_decode_node() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    // The decode node alone has seen it.
    had(&rig, &d).await;
    for (messages, percent) in [
        (next_turn(), 25),
        (json!([user(&format!("{} c", long()))]), 0),
    ] {
        let answer = rig.chat(json!({"messages": messages}));
        let (asked, decode) = d.generate().await.accept();
        assert_eq!(asked.alone_percent, percent, "{messages}");
        // It needs nobody.
        decode.open(710, false).await;
        decode.prefilled(0, 9, None).await;
        decode.say_hello().await;
        let (_, told) = whole_of(answer.await.unwrap()).await;
        let last = told.events.last().expect("a note");
        assert!(last.ends_with("`p` was not asked"), "{last}");
    }
    assert!(pairs(&rig).await.is_empty());
}

/// While no prefill node has room. Who has less of it than was thought says so, and the turn waits like others.
#[tokio::test]
async fn the_next_turn_is_computed_by_its_decode_node_or_waits() {
    for lacks in [false, true] {
        let p = FakeNode::start("p", status(Role::Prefill, 1, "t")).await;
        let d = FakeNode::decode("d", 9).await;
        let rig = Rig::start(config(&[&p], &[&d])).await;
        had(&rig, &d).await;
        let long = rig.chat(json!({}));
        let (_, other) = d.generate().await.accept();
        other.open(10, true).await;
        let (_, prefill) = p.prefill_call().await.accept();
        let answer = rig.chat(json!({"messages": next_turn()}));
        let call = d.generate().await;
        let asked = &call.request;
        assert_eq!(
            (asked.prefill, asked.alone_percent),
            (PrefillMode::Local, 25)
        );
        let decode = if lacks {
            call.refuse(
                ErrorCode::Lacks,
                "more than 25 % of the prompt is missing here",
            );
            prefill.prefill_done().await;
            other.prefilled(9, 0, None).await;
            let (asked, decode) = d.generate().await.accept();
            assert_eq!(asked.prefill, PrefillMode::Remote);
            decode
        } else {
            call.accept().1
        };
        decode.open(710, false).await;
        decode.prefilled(0, 9, None).await;
        decode.say_hello().await;
        let (_, told) = whole_of(answer.await.unwrap()).await;
        let note = if lacks {
            "more than 25 % of the prompt is missing here; started over"
        } else {
            "no prefill node has room"
        };
        assert!(told.events.iter().any(|e| e.contains(note)), "{told:?}");
        drop((long, other));
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// A prompt of several blocks.
fn long() -> String {
    "word ".repeat(600)
}

/// The turn after [`long`].
fn next_turn() -> Value {
    let said = json!({"role": "assistant", "content": "Hello"});
    json!([user(&long()), said, user("c")])
}

/// A first turn on a decode node alone.
async fn had(rig: &Rig, d: &FakeNode) {
    let local = json!({"messages": [user(&long())], "tandem": {"route": "local"}});
    let answer = rig.chat(local);
    let (_, decode) = d.generate().await.accept();
    decode.open(700, false).await;
    decode.prefilled(0, 699, None).await;
    decode.say_hello().await;
    answer.await.unwrap();
}

#[tokio::test]
async fn whose_answers_are_kept_is_configured() {
    let turns = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]);
    for (keep, expected) in [
        (KeepAnswers::Never, [false, false]),
        (KeepAnswers::Conversations, [false, true]),
        (KeepAnswers::Chats, [true, true]),
    ] {
        let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
        let mut settings = config(&[&p], &[&d]);
        settings.handoff.keep = keep;
        let rig = Rig::start(settings).await;
        let first = terms(&rig, &p, &d, json!({})).await;
        let second = terms(&rig, &p, &d, json!({"messages": turns})).await;
        assert_eq!([first.keep, second.keep], expected, "{keep:?}");
    }
}

#[tokio::test]
async fn two_quantisations_are_told_apart_and_told_to_both_nodes() {
    let mut other = status(Role::Prefill, 8, "t");
    let contract = &mut other.models[0].contract;
    contract.quantisation = "q8_0".into();
    contract.weights = "v".into();
    let p = FakeNode::start("p", other).await;
    let d = FakeNode::decode("d", 1).await;
    let mut settings = config(&[&p], &[&d]);
    settings.models[0].mixed_quantisation = true;
    settings.handoff.keep = KeepAnswers::Chats;
    let rig = Rig::start(settings).await;
    let told = terms(&rig, &p, &d, json!({})).await;
    assert!(told.mixed_quantisation);
    assert!(!told.keeps_answer());
    assert!(!told.at_decode().reuse);
    let info = answered(&rig, &p, &d, Some(parity(0.01, true))).await;
    let note = "prefill with quantisation q8_0 on `p`, decode with quantisation f16 on `d`";
    assert_eq!(info.events, [note]);
}

#[tokio::test]
async fn the_configuration_rules_the_terms() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let mut settings = config(&[&p], &[&d]);
    settings.handoff.quality = Quality::Q8;
    settings.handoff.codec = CodecChoice::Q8;
    settings.handoff.reuse = false;
    settings.handoff.keep = KeepAnswers::Never;
    let rig = Rig::start(settings).await;
    let told = terms(&rig, &p, &d, json!({})).await;
    assert_eq!((told.quality, told.codec), (Quality::Q8, CodecChoice::Q8));
    assert_eq!((told.reuse, told.keep), (false, false));
}

#[test]
fn terms_that_cannot_be_are_refused_by_key() {
    let faults: [(&str, Value); 3] = [
        ("handoff.codec", json!({"codec": "q8"})),
        ("handoff.parity_kl", json!({"parity_kl": -1.0})),
        ("handoff.parity_margin", json!({"parity_margin": -0.5})),
    ];
    for (key, handoff) in faults {
        let config = json!({
            "node": [{"name": "d", "address": "127.0.0.1:1"}],
            "model": [{"name": "m", "decode": ["d"]}],
            "handoff": handoff,
        });
        let config: tandem_coordinator::Config = serde_json::from_value(config).unwrap();
        let error = config.validate().unwrap_err();
        assert_eq!(error.key, key, "{error}");
    }
}
