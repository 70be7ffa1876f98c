//! Blocks that are sent while they are computed, layer by layer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, Failure, FakeConfig};
use tandem_handoff::frame::Kind;
use tandem_handoff::limits::CREDIT_BYTES;
use tandem_handoff::{LayerKind, LayerSpec};
use tandem_node::Limits;
use tandem_node::limits::{STAGING_UNIT, STAGING_UNITS};
use tandem_proto::{CodecChoice, GenerateEvent, HandoffStatus, PrefillEvent, Role};

use super::cluster::{
    Answer, Calls, Deal, Events, PATIENCE, Reuse, SHORT, Setup, TestNode, endless, eventually,
    finish, prefill_end, prompt,
};
use super::kills::{Brake, held};
use super::proxy::Fault;
use super::raw::Handoff;
use super::rig::{Plan, Rig};

/// Chunks of the usual request; the last one has two tokens.
const CHUNKS: u32 = 5;

fn models() -> [FakeConfig; 2] {
    [FakeConfig::default(), FakeConfig::windowed()].map(|config| FakeConfig {
        by_layer: true,
        ..config
    })
}

/// A model of four layers with 64 KiB of KV a token each, of which a chunk of 128 tokens is several blocks.
fn large(kinds: [LayerKind; 4]) -> FakeConfig {
    let layer = |kind| LayerSpec {
        kind,
        kv_heads: 32,
        key_dim: 512,
        value_dim: 512,
    };
    FakeConfig {
        layers: kinds.map(layer).to_vec(),
        window: if kinds.contains(&LayerKind::Window) {
            40
        } else {
            0
        },
        prefill_tokens: 128,
        microbatch_tokens: 128,
        by_layer: true,
        ..FakeConfig::default()
    }
}

/// Two nodes; the prefill node stands still before it gives the last layer of the last chunk.
async fn before_the_last_layer(config: &FakeConfig, limits: Limits) -> (Rig, Brake) {
    let mut plan = Plan::new(config, limits);
    let layers = config.layers.len() as u32;
    let brake = Brake::on(&mut plan.sending, CallKind::Give, CHUNKS * layers - 1);
    (plan.start().await, brake)
}

/// The layers of the last chunk that have passed.
fn of_the_last_chunk(rig: &Rig) -> Vec<u16> {
    let kv_end = rig.kv_end();
    let last = rig
        .proxy
        .segments(0)
        .into_iter()
        .filter(|s| s.1.end == kv_end);
    let mut layers: Vec<u16> = last.flat_map(|(_, _, layers)| layers).collect();
    layers.sort_unstable();
    layers
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_leave_while_the_next_one_is_computed() {
    for config in models() {
        let (rig, brake) = before_the_last_layer(&config, endless()).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        let layers = config.layers.len() as u16;
        // The last layer of each section, K and V, is all that is missing.
        let before: Vec<u16> = (0..layers - 1).collect();
        eventually("layers", || of_the_last_chunk(&rig) == before).await;
        brake.release();
        let answer = going.answer().await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        assert_eq!(answer.summary.fallback, None);
        let all: Vec<u16> = (0..layers).collect();
        assert_eq!(of_the_last_chunk(&rig), all);
        rig.once("layers");
    }
}

/// A request whose prefill node stands still when it has given all layers of the last chunk, and is not done.
struct BehindTheLastLayer {
    rig: Rig,
    brake: Brake,
    answer: Events<GenerateEvent>,
    sending: Events<PrefillEvent>,
}

impl BehindTheLastLayer {
    async fn new(config: &FakeConfig, faults: &[Fault], change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan::new(config, endless());
        change(&mut plan);
        let chunks = (plan.deal.tokens.len() as u32 - 1).div_ceil(plan.deal.chunk);
        let brake = Brake::on(&mut plan.sending, CallKind::Given, chunks - 1);
        let rig = plan.start().await;
        rig.proxy.next(faults);
        let (answer, ticket) = rig.deal.open(&rig.decode).await;
        let request = rig.deal.prefill(&ticket);
        let sending = rig.prefill.prefill(&request).await.unwrap();
        brake.reached().await;
        Self {
            rig,
            brake,
            answer,
            sending,
        }
    }

    async fn first_token(&mut self) -> u32 {
        let reading = async {
            loop {
                match self.answer.next().await.expect("a token") {
                    GenerateEvent::Token { id, .. } => return id,
                    GenerateEvent::Prefilled(_) | GenerateEvent::Beat => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        let first = tokio::time::timeout(PATIENCE, reading).await;
        first.expect("no token comes")
    }

    /// Of an answer whose first tokens have been read.
    async fn end(mut self, read: usize) -> (Answer, PrefillEvent) {
        let ending = tokio::join!(finish(&mut self.answer), prefill_end(&mut self.sending));
        assert_eq!(ending.0.tokens, self.rig.expected[read..]);
        assert_eq!(ending.0.summary.fallback, None);
        self.rig.decode.settled().await;
        self.rig.prefill.clean().await;
        ending
    }
}

/// What the prefill node has left to compute when it has given the last layer is nothing that the decode node needs.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_begins_before_the_last_layer_is_done() {
    for config in models() {
        let mut held = BehindTheLastLayer::new(&config, &[], |_| {}).await;
        assert_eq!(held.first_token().await, held.rig.expected[0]);
        eventually("the confirmation", || {
            let [_, answers] = held.rig.proxy.frames(0);
            answers.iter().any(|(kind, _)| *kind == Kind::Committed)
        })
        .await;
        tokio::time::sleep(SHORT).await;
        held.brake.release();
        let (answer, end) = held.end(1).await;
        assert!(answer.parity.is_some_and(|p| p.holds), "{answer:?}");
        let PrefillEvent::Done {
            exposed_transfer_ms,
            ..
        } = end
        else {
            panic!("{end:?}");
        };
        assert!(exposed_transfer_ms.abs() < f64::EPSILON);
        // Where rows may turn out to be wrong, it does not.
        let not_final = |plan: &mut Plan| plan.sending.final_rows = false;
        let mut held = BehindTheLastLayer::new(&config, &[], not_final).await;
        let early = tokio::time::timeout(SHORT, held.first_token()).await;
        assert!(early.is_err(), "{early:?}");
        held.brake.release();
        let (answer, _) = held.end(0).await;
        assert!(answer.parity.is_some_and(|p| p.holds), "{answer:?}");
    }
}

/// The answer is complete, and the decode node waits no longer for the receipt: what the last chunk is for the prefill node, pages
/// for later prompts, is kept all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_behind_the_commit_is_kept() {
    for config in models() {
        let change = |plan: &mut Plan| {
            plan.limits.receipt = SHORT;
            plan.deal.tokens = prompt(64 * 2 + 1);
            Reuse::All.set(&mut plan.deal.terms);
        };
        let mut held = BehindTheLastLayer::new(&config, &[], change).await;
        let answer = finish(&mut held.answer).await;
        assert_eq!(answer.tokens, held.rig.expected);
        assert_eq!(answer.parity, None);
        held.brake.release();
        let end = prefill_end(&mut held.sending).await;
        assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
        let snapshots = u64::from(config.window > 0);
        let kept = |s: &HandoffStatus| (s.pages, s.snapshots) == (2, snapshots);
        held.rig.prefill.until("kept", kept).await;
        held.rig.decode.settled().await;
        held.rig.prefill.clean().await;
    }
}

/// Of the commit, or of its confirmation.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_before_the_last_layer_is_done() {
    for config in models() {
        let undisturbed = Plan::new(&config, endless()).start().await;
        let [_, answers] = undisturbed.record().await;
        let confirmed = answers.iter().find(|(kind, _)| *kind == Kind::Committed);
        let at = confirmed.expect("a confirmation").1.start;
        let acks = |answers: &[(Kind, _)]| {
            let acks = answers.iter().filter(|(kind, _)| *kind == Kind::Ack);
            acks.count()
        };
        let all = acks(&answers);
        for fault in [Fault::HoldBefore(Kind::Commit), Fault::CutReply(at + 1)] {
            let mut held = BehindTheLastLayer::new(&config, &[fault], |_| {}).await;
            if matches!(fault, Fault::HoldBefore(_)) {
                held.rig.proxy.held().await;
                // What has not arrived comes again with its chunk only.
                let arrived = || acks(&held.rig.proxy.frames(0)[1]) == all;
                eventually("acknowledgements", arrived).await;
                held.rig.proxy.cut();
            }
            held.first_token().await;
            let goes_on = || held.rig.proxy.connections() > 1 && held.rig.proxy.written(1) > 0;
            eventually("another connection", goes_on).await;
            held.brake.release();
            let (answer, end) = held.end(1).await;
            assert!(answer.parity.is_some_and(|p| p.holds), "{answer:?}");
            let PrefillEvent::Done { reconnects, .. } = end else {
                panic!("{end:?}");
            };
            assert_eq!(reconnects, 1);
        }
    }
}

/// Fails when all layers of the last chunk have been given.
fn fails_behind_the_last_layer(plan: &mut Plan) {
    plan.sending.fail = Some(Failure {
        call: CallKind::Given,
        nth: CHUNKS - 1,
        every: 0,
    });
}

fn ended_early(end: &PrefillEvent) -> bool {
    matches!(end, PrefillEvent::Failed(error) if error.message == "the prefill ended early")
}

/// All rows have come then; only the receipt is missing, and nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_behind_the_last_layer_costs_nothing() {
    for config in models() {
        let mut held = BehindTheLastLayer::new(&config, &[], fails_behind_the_last_layer).await;
        held.first_token().await;
        held.brake.release();
        let (answer, end) = held.end(1).await;
        assert_eq!(answer.parity, None);
        assert!(ended_early(&end), "{end:?}");
    }
}

/// Where a failure may be told when a layer that is wrong has been given, the last one is not sent before the chunk is computed.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_may_turn_out_to_be_wrong_are_not_whole_before_their_chunk() {
    for config in models() {
        let change = |plan: &mut Plan| {
            fails_behind_the_last_layer(plan);
            plan.sending.final_rows = false;
        };
        let mut held = BehindTheLastLayer::new(&config, &[], change).await;
        let layers = config.layers.len() as u16;
        let passed = || of_the_last_chunk(&held.rig);
        // Of each section, of which the windowed model has two, one is held back.
        let full = config
            .layers
            .iter()
            .rposition(|l| l.kind == LayerKind::Full);
        let window = config
            .layers
            .iter()
            .rposition(|l| l.kind == LayerKind::Window);
        let last = [full, window].map(|at| at.map(|at| at as u16));
        let before: Vec<u16> = (0..layers).filter(|l| !last.contains(&Some(*l))).collect();
        eventually("the layers before", || passed() == before).await;
        tokio::time::sleep(SHORT).await;
        assert_eq!(passed(), before);
        held.brake.release();
        let (answer, end) = tokio::join!(finish(&mut held.answer), prefill_end(&mut held.sending));
        assert_eq!(answer.tokens, held.rig.expected);
        assert!(answer.summary.fallback.is_some());
        assert!(answer.summary.remote_tokens < held.rig.kv_end());
        assert!(ended_early(&end), "{end:?}");
        held.rig.clean().await;
    }
}

/// Rows that are lost with a connection come again from the chunk, which never comes of an engine that fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_while_the_last_rows_are_on_their_way() {
    for config in models() {
        let undisturbed = Plan::new(&config, endless()).start().await;
        undisturbed.record().await;
        let (_, first) = undisturbed.proxy.segment(0, 0);
        for is_cut_first in [false, true] {
            let hold = Fault::Hold(first.end);
            let fail = fails_behind_the_last_layer;
            let mut held = BehindTheLastLayer::new(&config, &[hold], fail).await;
            held.rig.proxy.held().await;
            // All that follows is written meanwhile, and the commit behind it.
            let is_commit = |(kind, _): &(Kind, _)| *kind == Kind::Commit;
            let commit = || held.rig.proxy.frames(0)[0].iter().any(is_commit);
            eventually("the commit", commit).await;
            if is_cut_first {
                held.rig.proxy.cut();
                let goes_on = || held.rig.proxy.connections() > 1;
                eventually("another connection", goes_on).await;
            }
            held.brake.release();
            if !is_cut_first {
                tokio::time::sleep(SHORT).await;
                held.rig.proxy.cut();
            }
            let (answer, end) =
                tokio::join!(finish(&mut held.answer), prefill_end(&mut held.sending));
            assert_eq!(answer.tokens, held.rig.expected);
            let told = answer.summary.fallback.expect("fallback");
            assert!(told.contains("the prefill ended early"), "{told}");
            assert!(ended_early(&end), "{end:?}");
            held.rig.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_blocks_of_a_step_leave_at_the_same_time() {
    use LayerKind::{Full, Window};
    for kinds in [[Full; 4], [Window, Full, Window, Full]] {
        for codec in [CodecChoice::Raw, CodecChoice::Plane] {
            let config = large(kinds);
            let mut plan = Plan::new(&config, endless());
            plan.deal = Deal::new(&prompt(128 * 2 + 1), 128);
            Reuse::Off.set(&mut plan.deal.terms);
            plan.deal.terms.codec = codec;
            // Before the third layer of the second chunk.
            let brake = Brake::on(&mut plan.sending, CallKind::Give, 6);
            let rig = plan.start().await;
            let going = rig.begin(&[]).await;
            brake.reached().await;
            let passed = || {
                let all = (0..rig.proxy.connections()).flat_map(|c| rig.proxy.segments(c));
                let second = all.filter(|s| s.1.start >= 128 && s.2.end <= 2);
                second.count()
            };
            // 128 tokens of two layers are 16 MiB: two blocks where all layers are full.
            let blocks = if kinds[0] == Full { 4 } else { 3 };
            eventually("segments", || passed() >= blocks).await;
            brake.release();
            let answer = going.answer().await.unwrap();
            let what = format!("{kinds:?}, {codec:?}");
            assert_eq!(answer.tokens, rig.expected, "{what}");
            assert_eq!(answer.summary.fallback, None, "{what}");
            rig.once(&what);
            rig.decode.settled().await;
            rig.prefill.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_anywhere_costs_no_token() {
    for config in models() {
        let rig = Rig::new(&config).await;
        rig.run(&[]).await.whole(&rig.expected, "undisturbed");
        rig.once("undisturbed");
        let [sent, _] = rig.proxy.frames(0);
        let of = |kind| sent.iter().find(|(k, _)| *k == kind).unwrap().1.clone();
        let (first, last) = (of(Kind::Segment).start, of(Kind::Commit).end);
        // Where a segment begins or ends, and anywhere else.
        let ends = sent.iter().map(|(_, place)| place.end);
        let all = ends.chain((first..last).step_by(53));
        for at in all.filter(|at| first < *at && *at < last) {
            let outcome = rig.run(&[Fault::Cut(at)]).await;
            let what = format!("cut after {at}");
            outcome.whole(&rig.expected, &what);
            rig.once(&what);
        }
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_in_the_middle_of_a_step_sends_its_blocks_again() {
    for config in models() {
        let (rig, brake) = before_the_last_layer(&config, endless()).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        eventually("a layer", || !of_the_last_chunk(&rig).is_empty()).await;
        // All blocks before have been taken.
        let blocks = rig.proxy.blocks(0).into_iter();
        let before = blocks.filter(|(_, tokens)| tokens.end != rig.kv_end());
        let before: BTreeSet<_> = before
            .map(|(section, tokens)| (section.wire(), tokens.start))
            .collect();
        let acks = || {
            let [_, answers] = rig.proxy.frames(0);
            answers.iter().filter(|(k, _)| *k == Kind::Ack).count()
        };
        // So are the rows of the last window, whose layers lie before the one that is missing.
        let count = before.len() + usize::from(config.window > 0);
        eventually("acknowledgements", || acks() == count).await;
        rig.proxy.cut();
        let goes_on = || rig.proxy.connections() > 1 && rig.proxy.written(1) > 0;
        eventually("another connection", goes_on).await;
        brake.release();
        let (end, answer) = going.end().await;
        let answer = answer.await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        assert_eq!(answer.summary.fallback, None);
        let PrefillEvent::Done { reconnects, .. } = end else {
            panic!("{end:?}");
        };
        assert_eq!(reconnects, 1);
        rig.once("cut in a step");
        // Of what was whole before nothing comes again.
        let again = rig.proxy.segments(1);
        assert!(again.iter().all(|s| s.1.end == rig.kv_end()), "{again:?}");
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_midway_costs_time_and_not_the_answer() {
    for config in models() {
        let layers = config.layers.len() as u32;
        let mut plan = Plan::new(&config, endless());
        plan.sending.fail = Some(Failure {
            call: CallKind::Give,
            nth: 2 * layers + 1,
            every: 0,
        });
        let rig = plan.start().await;
        // The coordinator tells nobody.
        let (end, answer) = rig.begin(&[]).await.end().await;
        let PrefillEvent::Failed(error) = end else {
            panic!("{end:?}");
        };
        assert!(error.message.contains("the prefill ended early"), "{error}");
        let answer = answer.await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        let told = answer.summary.fallback.as_deref().expect("fallback");
        assert!(told.contains("the prefill ended early"), "{told}");
        assert_eq!(answer.summary.remote_tokens, rig.came_to(&config));
        rig.clean().await;
    }
}

/// A chunk of 512 tokens of [`large`]: 128 MiB, in blocks of 8 MiB.
const STEP: u32 = 512;

/// Two such chunks.
fn large_steps(limits: Limits) -> Plan {
    let config = FakeConfig {
        prefill_tokens: STEP,
        microbatch_tokens: STEP,
        sequences: 80,
        ..large([LayerKind::Full; 4])
    };
    let mut plan = Plan::new(&config, limits);
    plan.deal = Deal::new(&prompt(STEP * 2 + 1), STEP);
    Reuse::Off.set(&mut plan.deal.terms);
    plan.deal.terms.codec = CodecChoice::Raw;
    plan
}

/// Handoffs that hold memory of a decode node, with their requests.
type Holding = Vec<(Events<GenerateEvent>, Handoff)>;

/// Half of the memory of the decode node is taken: a step of 128 MiB is twice as much as may be open at once.
async fn take_half(decode: &TestNode, config: &FakeConfig) -> Holding {
    let mut holding = Vec::new();
    let half = STAGING_UNITS as u64 * STAGING_UNIT / 2;
    while decode.handoffs().await.staging_bytes + CREDIT_BYTES < half {
        let mut deal = Deal::new(&prompt(65), config.prefill_tokens);
        deal.id = format!("silent-{}", holding.len());
        Reuse::Off.set(&mut deal.terms);
        let (events, ticket) = deal.open(decode).await;
        let handoff = Handoff::dial(config, &deal, &ticket).await;
        holding.push((events, handoff.expect("a place")));
    }
    holding
}

/// Blocks of the second chunk that have begun.
fn begun(rig: &Rig) -> usize {
    let segments = rig.proxy.segments(0).into_iter();
    let starts: BTreeSet<u32> = segments.map(|(_, tokens, _)| tokens.start).collect();
    starts.range(STEP..).count()
}

/// All of a large step leaves while it is computed, or what the credit is for where memory is short.
#[tokio::test(flavor = "multi_thread")]
async fn credit_follows_the_step_while_there_is_memory() {
    for (is_short, blocks) in [(false, 16), (true, (CREDIT_BYTES >> 23) as usize)] {
        let mut plan = large_steps(endless());
        let config = plan.receiving.clone();
        // Before the last layer.
        let brake = Brake::on(&mut plan.sending, CallKind::Give, 7);
        let rig = plan.start().await;
        let before = match is_short {
            true => take_half(&rig.decode, &config).await,
            false => Vec::new(),
        };
        let going = rig.begin(&[]).await;
        brake.reached().await;
        eventually("blocks", || begun(&rig) >= blocks).await;
        let last = || {
            let all = rig.proxy.segments(0).into_iter();
            let second = all.filter(|s| s.1.start >= STEP && s.2.end == 3);
            second.count()
        };
        eventually("the layers before the last one", || last() >= blocks).await;
        tokio::time::sleep(SHORT).await;
        assert_eq!((begun(&rig), last()), (blocks, blocks));
        brake.release();
        let answer = going.answer().await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        assert_eq!(answer.summary.fallback, None);
        rig.once("a large step");
        drop(before);
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_beyond_the_credit_that_fails_is_noticed_at_once() {
    let mut plan = large_steps(endless());
    let config = plan.receiving.clone();
    plan.sending.fail = Some(Failure {
        call: CallKind::Give,
        nth: 6,
        every: 0,
    });
    let rig = plan.start().await;
    let before = take_half(&rig.decode, &config).await;
    let (end, answer) = rig.begin(&[]).await.end().await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    let answer = answer.await.unwrap();
    assert_eq!(answer.tokens, rig.expected);
    assert_eq!(answer.summary.remote_tokens, STEP);
    drop(before);
    rig.clean().await;
}

/// What has not been opened before a break, and what has, comes with its chunk.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_in_the_middle_of_a_step_beyond_the_credit() {
    let mut plan = large_steps(endless());
    let config = plan.receiving.clone();
    let brake = Brake::on(&mut plan.sending, CallKind::Give, 6);
    let rig = plan.start().await;
    let before = take_half(&rig.decode, &config).await;
    let going = rig.begin(&[]).await;
    brake.reached().await;
    eventually("blocks", || begun(&rig) > 0).await;
    held(&rig.decode, STEP).await;
    rig.proxy.cut();
    let goes_on = || rig.proxy.connections() > 1 && rig.proxy.written(1) > 0;
    eventually("another connection", goes_on).await;
    brake.release();
    let (end, answer) = going.end().await;
    assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
    let answer = answer.await.unwrap();
    assert_eq!(answer.tokens, rig.expected);
    assert_eq!(answer.summary.fallback, None);
    rig.once("a cut beyond the credit");
    drop(before);
    rig.decode.settled().await;
    rig.prefill.clean().await;
}

/// The decode node has the first page of a chunk, and the prefill node has not.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lacked_of_a_streamed_block_comes_with_its_chunk() {
    let config = FakeConfig {
        prefill_tokens: 128,
        by_layer: true,
        ..FakeConfig::default()
    };
    let mut plan = Plan::new(&config, endless());
    plan.deal = Deal::new(&prompt(128 * 2 + 1), 128);
    let rig = plan.start().await;
    // Another prompt that begins alike has come from another node.
    let other = Setup::new(Role::Prefill, &config).start().await;
    let mut first = rig.deal.clone();
    (first.tokens, first.chunk, first.via) = (prompt(64 + 1), 64, None);
    first.id = "first".into();
    let outcome = first.run(&other, &rig.decode).await;
    assert!(outcome.answer.done, "{outcome:?}");
    rig.decode.until("kept", |s| s.pages == 1).await;
    rig.applied.take();
    let outcome = rig.run(&[]).await;
    outcome.whole(&rig.expected, "behind a page");
    let (_, _, have, _) = outcome.done();
    assert_eq!(have, 64);
    let blocks = rig.proxy.blocks(0);
    let starts: Vec<u32> = blocks.iter().map(|(_, tokens)| tokens.start).collect();
    assert_eq!(starts, [64, 128], "{blocks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_overlap_nothing_is_streamed() {
    for config in models() {
        let mut plan = Plan::new(&config, endless());
        plan.deal.terms.overlap = false;
        let brake = Brake::on(&mut plan.sending, CallKind::Prefill, CHUNKS - 1);
        let calls = Calls::of(&mut plan.sending);
        let rig = plan.start().await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        // An engine does not wait for the answer.
        eventually("the answer", || !rig.proxy.frames(0)[1].is_empty()).await;
        assert!(rig.proxy.segments(0).is_empty());
        brake.release();
        let answer = going.answer().await.unwrap();
        // Nor does it stop at a layer that nobody would send.
        let given = |call: &Call| call.kind() == CallKind::Give;
        assert!(!calls.take().iter().any(given));
        assert_eq!(answer.tokens, rig.expected);
        assert_eq!(answer.summary.fallback, None);
        rig.once("without overlap");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_layer_is_not_taken_for_silence() {
    let limits = Limits {
        handoff_silence: Duration::from_secs(1),
        handoff_beat: Duration::from_millis(50),
        ..endless()
    };
    for config in models() {
        let (rig, brake) = before_the_last_layer(&config, limits).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        eventually("a layer", || !of_the_last_chunk(&rig).is_empty()).await;
        tokio::time::sleep(limits.handoff_silence * 2).await;
        assert_eq!(rig.proxy.connections(), 1);
        brake.release();
        let answer = going.answer().await.unwrap();
        assert_eq!(answer.tokens, rig.expected);
        assert_eq!(answer.summary.fallback, None);
        rig.once("a long layer");
        // It beat while the block was incomplete.
        let [sent, _] = rig.proxy.frames(0);
        let kinds: Vec<Kind> = sent.into_iter().map(|(kind, _)| kind).collect();
        let is_between = |pair: &[Kind]| pair == [Kind::Segment, Kind::Beat];
        assert!(kinds.windows(2).any(is_between), "{kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_in_the_middle_of_a_step_is_noticed_at_once() {
    for config in models() {
        for leaves in ["request", "prefill"] {
            let (rig, brake) = before_the_last_layer(&config, endless()).await;
            let going = rig.begin(&[]).await;
            brake.reached().await;
            eventually("a layer", || !of_the_last_chunk(&rig).is_empty()).await;
            let start = Instant::now();
            if leaves == "request" {
                let end = going.cancel_request().await;
                // The engine is still in the middle of its step.
                rig.decode.clean().await;
                let end = end.await.unwrap();
                assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
                assert!(start.elapsed() < Duration::from_secs(1));
            } else {
                let answer = going.cancel_prefill().await;
                let answer = answer.await.unwrap();
                assert_eq!(answer.tokens, rig.expected);
                assert!(answer.summary.fallback.is_some());
                assert!(start.elapsed() < Duration::from_secs(1));
            }
            brake.release();
            rig.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_in_the_middle_of_a_step_costs_time_and_not_the_answer() {
    let limits = Limits {
        resume: SHORT,
        ..endless()
    };
    for config in models() {
        let (rig, brake) = before_the_last_layer(&config, limits).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        eventually("a layer", || !of_the_last_chunk(&rig).is_empty()).await;
        let whole = if config.window == 0 { 64 } else { 0 };
        held(&rig.decode, whole).await;
        rig.prefill.kill();
        rig.proxy.cut();
        let answer = going.answer().await.unwrap();
        brake.release();
        assert_eq!(answer.tokens, rig.expected);
        assert!(answer.summary.fallback.is_some());
        assert_eq!(answer.summary.remote_tokens, rig.came_to(&config));
        rig.decode.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_with_streamed_blocks() {
    for config in models() {
        let mut plan = Plan::new(&config, super::cluster::limits());
        Reuse::All.set(&mut plan.deal.terms);
        plan.deal.terms.keep = true;
        let rig = plan.start().await;
        let first = rig.run(&[]).await;
        first.whole(&rig.expected, "the first turn");
        rig.prefill.until("kept", |s| s.snapshots > 0).await;
        let mut next = rig.deal.clone();
        next.id = "req-2".into();
        next.tokens.extend(&first.answer.tokens);
        next.tokens.extend(prompt(21));
        let expected = next.expected(&config).await;
        let outcome = next.run(&rig.prefill, &rig.decode).await;
        outcome.whole(&expected, "the next turn");
        assert!(outcome.answer.summary.cached_tokens > 0, "{outcome:?}");
        rig.clean().await;
    }
}
