//! Faults in each phase of a handoff, as the tables of `docs/handoff.md` list them.
//!
//! All limits but the one that a row names are longer than a test is patient: what ends within it
//! ends for that limit, or at once.

use std::time::{Duration, Instant};

use tandem_engine::fake::{CallKind, FakeConfig};
use tandem_handoff::LayerKind;
use tandem_handoff::frame::{Header, Kind, encode_frame};
use tandem_node::Limits;
use tandem_node::limits::GOODBYE;
use tandem_proto::{HandoffStatus, PrefillEvent, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::cancel::CANCEL;
use super::cluster::{
    Answer, Deal, PATIENCE, Reuse, SHORT, Setup, TestNode, endless, eventually, finish, is_clean,
    limits, prefill_end, prompt,
};
use super::conversation::{first_turn, next_turn, permission_of};
use super::kills::{Brake, held};
use super::proxy::{Fault, Proxy};
use super::raw::Handoff;
use super::rig::{Frames, Going, Plan, Rig};

/// What a coordinator says whose prefill node has gone.
const GONE: &str = "the prefill node has gone";
/// Silence that is noticed, where a slow machine must not look silent.
pub const SILENCE: Duration = Duration::from_secs(1);

fn models() -> [FakeConfig; 2] {
    [FakeConfig::default(), FakeConfig::windowed()]
}

/// One limit is short.
pub fn only(shorten: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = endless();
    shorten(&mut limits);
    limits
}

/// Only silence is noticed soon.
pub fn silence() -> Limits {
    only(|l| {
        l.handoff_silence = SILENCE;
        l.handoff_beat = Duration::from_millis(50);
    })
}

fn over_tls(limits: Limits) -> Plan {
    Plan {
        tls: true,
        ..Plan::new(&FakeConfig::default(), limits)
    }
}

/// Frames of the usual handoff, to the receiver and to the sender.
async fn frames(config: &FakeConfig) -> [Frames; 2] {
    Rig::new(config).await.record().await
}

/// The first frame of a kind: its number and its place.
fn find(frames: &Frames, kind: Kind) -> (usize, std::ops::Range<u64>) {
    let number = frames.iter().position(|(k, _)| *k == kind).expect("frame");
    (number, frames[number].1.clone())
}

/// The answer is right. The decode node computed what it lacks of it, and says why; these tokens it had from the
/// other one.
fn made_good(rig: &Rig, answer: &Answer, reason: &str, remote: u32) {
    let summary = &answer.summary;
    assert!(answer.done, "{answer:?}");
    assert_eq!(answer.tokens, rig.expected, "wrong tokens");
    let told = summary.fallback.as_deref().expect("fallback");
    assert!(told.contains(reason), "{told:?} instead of {reason:?}");
    assert_eq!(summary.remote_tokens, remote, "{summary:?}");
    let all = summary.cached_tokens + remote + summary.local_tokens;
    assert_eq!(all, rig.kv_end(), "{summary:?}");
}

/// The answer is right, and came without a fault that the client sees.
fn whole(rig: &Rig, answer: &Answer) {
    assert!(answer.done, "{answer:?}");
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, rig.expected, "wrong tokens");
    assert_eq!(answer.summary.local_tokens, 0);
}

fn failed(end: PrefillEvent) -> String {
    match end {
        PrefillEvent::Failed(error) => error.message,
        other => panic!("the prefill ended well: {other:?}"),
    }
}

/// How a decode node loses its prefill node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Cut,
    Death,
    Cancel,
}

/// Loses the prefill node; the coordinator tells the decode node or does not. Gives the answer to come.
async fn lose(rig: &mut Rig, going: Going, loss: Loss, told: bool) -> JoinHandle<Answer> {
    let (reason, answer) = match loss {
        Loss::Cut => {
            rig.proxy.cut();
            let (end, answer) = going.end().await;
            rig.prefill.clean().await;
            (failed(end), answer)
        }
        Loss::Death => {
            rig.prefill.kill();
            (GONE.to_owned(), going.answer())
        }
        Loss::Cancel => {
            let answer = going.cancel_prefill().await;
            rig.prefill.clean().await;
            (GONE.to_owned(), answer)
        }
    };
    if told {
        rig.decode.prefill_failed(&rig.deal.id, &reason).await;
    }
    answer
}

/// The decode node dies before it can answer. The prefill node says why it ended, and the request can go to
/// another node.
async fn decode_dies(rig: Rig, going: Going, config: &FakeConfig) -> String {
    rig.decode.kill();
    rig.proxy.cut();
    let (end, answer) = going.end().await;
    assert!(!answer.await.unwrap().done);
    another_takes_over(rig, config).await;
    failed(end)
}

async fn another_takes_over(mut rig: Rig, config: &FakeConfig) {
    rig.prefill.clean().await;
    rig.deal.id = "req-2".into();
    rig.deal.via = None;
    let other = Setup::new(Role::Decode, config).start().await;
    let outcome = rig.deal.run(&rig.prefill, &other).await;
    outcome.whole(&rig.expected, "the other node");
    other.settled().await;
    rig.prefill.clean().await;
}

/// The prefill node is lost before anything has come of it, where a relay holds it.
async fn lost_early(plan: impl Fn(Limits) -> Plan, fault: Fault, limits: Limits, reason: &str) {
    for loss in [Loss::Death, Loss::Cancel] {
        for (told, limits, reason) in [(true, endless(), GONE), (false, limits, reason)] {
            let mut rig = plan(limits).start().await;
            let start = Instant::now();
            let going = rig.held(fault).await;
            let answer = lose(&mut rig, going, loss, told).await.await.unwrap();
            made_good(&rig, &answer, reason, 0);
            assert!(told || start.elapsed() >= SHORT);
            rig.decode.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_a_cut_or_damage_in_the_handshake() {
    for fault in [
        Fault::Cut(0),
        Fault::Cut(50),
        Fault::CutReply(50),
        // In what each end says by chance, which both sign.
        Fault::Flip(20),
        Fault::FlipReply(20),
    ] {
        let rig = over_tls(endless()).start().await;
        let outcome = rig.run(&[fault]).await;
        let reason = failed(outcome.end);
        made_good(&rig, &outcome.answer, &reason, 0);
        assert_eq!(rig.proxy.connections(), 1, "{fault:?}");
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_silence() {
    // In the length of the first message: an end may wait for more bytes than there are.
    for fault in [Fault::Hold(0), Fault::Flip(3), Fault::Flip(4)] {
        let start = Instant::now();
        let rig = over_tls(only(|l| l.connect = SILENCE)).start().await;
        let outcome = rig.run(&[fault]).await;
        let reason = failed(outcome.end);
        made_good(&rig, &outcome.answer, &reason, 0);
        assert!(start.elapsed() >= SILENCE || fault != Fault::Hold(0));
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_the_prefill_node_dies_or_is_cancelled() {
    let limits = only(|l| l.handoff_silence = SHORT);
    lost_early(
        over_tls,
        Fault::Hold(0),
        limits,
        "no prefill node connected",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_the_decode_node_dies() {
    let config = FakeConfig::default();
    let mut rig = Plan::new(&config, endless()).start().await;
    let (mut events, ticket) = rig.deal.open(&rig.decode).await;
    rig.decode.kill();
    let dying = async {
        while TcpStream::connect(("127.0.0.1", ticket.port)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let died = tokio::time::timeout(PATIENCE, dying).await;
    died.expect("somebody listens there");
    rig.deal.via = None;
    let sending = rig.prefill.prefill(&rig.deal.prefill(&ticket)).await;
    let reason = failed(prefill_end(&mut sending.unwrap()).await);
    assert!(reason.contains("cannot connect"), "{reason}");
    assert!(!finish(&mut events).await.done);
    another_takes_over(rig, &config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_peers_that_say_nothing_or_half_a_hello() {
    let limits = only(|l| l.connect = SILENCE);
    let rig = Plan::new(&FakeConfig::default(), limits).start().await;
    let (mut events, ticket) = rig.deal.open(&rig.decode).await;
    let mut hello = encode_frame(
        Header::control(Kind::Hello, ticket.handoff, 0),
        &[b' '; 200],
    );
    hello.truncate(hello.len() - 1);
    let silent = [&b""[..], b"TNDM", &[0; 63], &hello].map(|said| async move {
        let start = Instant::now();
        let mut stream = TcpStream::connect(("127.0.0.1", ticket.port))
            .await
            .unwrap();
        stream.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await;
        let _ = closed.expect("the node keeps the connection open");
        // It was taken a little later or earlier than it was opened here.
        assert!(start.elapsed() >= SILENCE / 2);
    });
    futures_util::future::join_all(silent).await;
    let request = rig.deal.prefill(&ticket);
    let mut sending = rig.prefill.prefill(&request).await.unwrap();
    let (answer, _) = tokio::join!(finish(&mut events), prefill_end(&mut sending));
    whole(&rig, &answer);
    rig.decode.settled().await;
    rig.prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_repeated() {
    for config in models() {
        for (fault, reason) in [
            (Fault::Repeat(0), "`sequence`"),
            (Fault::RepeatReply(0), "unexpected Accept"),
        ] {
            let rig = Plan::new(&config, endless()).start().await;
            let outcome = rig.run(&[fault]).await;
            let remote = rig.came_to(&config);
            assert!(remote == 0 || fault != Fault::Repeat(0));
            made_good(&rig, &outcome.answer, reason, remote);
            assert!(failed(outcome.end).contains(reason));
            rig.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_the_prefill_node_dies_or_is_cancelled() {
    let config = FakeConfig::default();
    let [sent, _] = frames(&config).await;
    let plan = |limits| Plan::new(&config, limits);
    let half = Fault::Hold(sent[0].1.end / 2);
    let limits = only(|l| l.handoff_silence = SHORT);
    lost_early(plan, half, limits, "no prefill node connected").await;
    let limits = only(|l| l.resume = SHORT);
    lost_early(plan, Fault::HoldReply(0), limits, "closed the connection").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_the_decode_node_dies() {
    let config = FakeConfig::default();
    let rig = Plan::new(&config, endless()).start().await;
    let going = rig.held(Fault::HoldReply(0)).await;
    decode_dies(rig, going, &config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_the_request_is_cancelled() {
    let config = FakeConfig::default();
    let [sent, _] = frames(&config).await;
    for (fault, reason) in [
        (Fault::Hold(sent[0].1.end / 2), "`ticket`"),
        (Fault::HoldReply(0), "the request has ended"),
    ] {
        let rig = Plan::new(&config, endless()).start().await;
        let going = rig.held(fault).await;
        let start = Instant::now();
        let end = going.cancel_request().await;
        rig.decode.clean().await;
        assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
        rig.proxy.release();
        let told = failed(end.await.unwrap());
        assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
        assert!(told.contains(reason), "{told}");
        rig.prefill.clean().await;
    }
}

/// Tokens of the pages that the decode node has in the tests of pages.
const PAGES: u32 = 128;

/// A rig whose decode node has the first pages of the prompt, and whose engine stands still when it puts them into
/// place, until it is let go.
async fn with_pages(config: &FakeConfig, limits: Limits) -> (Rig, Brake) {
    let mut plan = Plan::new(config, limits);
    plan.deal.tokens = prompt(PAGES + 20);
    Reuse::All.set(&mut plan.deal.terms);
    // Rows that are still in its cache would be shared.
    plan.receiving.cached = 0;
    let brake = Brake::on(&mut plan.receiving, CallKind::Import, 0);
    let rig = plan.start().await;
    let mut before = rig.deal.clone();
    before.tokens = prompt(PAGES);
    before.tokens.push(40);
    before.max_tokens = 2;
    before.terms.keep = true;
    before.local(&rig.decode).await;
    rig.decode.idle().await;
    rig.decode.until("kept", |s| s.pages == 2).await;
    (rig, brake)
}

/// What is kept of pages: a model with windows starts over.
fn pages(config: &FakeConfig) -> u32 {
    if config.window > 0 { 0 } else { PAGES }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_a_cut_and_a_prefill_node_that_dies_or_is_cancelled() {
    for config in models() {
        for loss in [Loss::Cut, Loss::Death, Loss::Cancel] {
            let short = only(|l| l.resume = SHORT);
            for (told, limits) in [(true, endless()), (false, short)] {
                let (mut rig, brake) = with_pages(&config, limits).await;
                let start = Instant::now();
                let going = rig.begin(&[]).await;
                brake.reached().await;
                let answer = lose(&mut rig, going, loss, told).await;
                brake.release();
                let answer = answer.await.unwrap();
                let is_from_the_coordinator = told && loss != Loss::Cut;
                let reason = if is_from_the_coordinator {
                    GONE
                } else {
                    "connection"
                };
                made_good(&rig, &answer, reason, 0);
                assert_eq!(answer.summary.cached_tokens, pages(&config));
                assert_eq!(answer.summary.handoff_bytes, 0);
                assert!(told || start.elapsed() >= SHORT);
                rig.decode.clean().await;
            }
        }
    }
}

/// Nobody tells the decode node, whose engine stands still: its beats find out that there is no sender any more.
#[tokio::test(flavor = "multi_thread")]
async fn pages_a_sender_that_has_gone_is_noticed_by_beats() {
    for config in models() {
        for loss in [Loss::Cut, Loss::Death, Loss::Cancel] {
            let limits = only(|l| l.handoff_beat = Duration::from_millis(50));
            let (mut rig, brake) = with_pages(&config, limits).await;
            let going = rig.begin(&[]).await;
            brake.reached().await;
            let answer = lose(&mut rig, going, loss, false).await;
            let is_free = |s: &HandoffStatus| [s.receiving, s.staging_bytes, s.pins] == [0; 3];
            rig.decode.until("free", is_free).await;
            brake.release();
            let answer = answer.await.unwrap();
            made_good(&rig, &answer, "connection", 0);
            assert_eq!(answer.summary.handoff_bytes, 0);
            rig.decode.settled().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_the_answer_is_damaged_or_comes_twice() {
    for config in models() {
        for (fault, reason) in [
            (Fault::FlipReply(80), "checksum"),
            (Fault::RepeatReply(0), "unexpected Accept"),
        ] {
            let (rig, brake) = with_pages(&config, endless()).await;
            brake.release();
            let outcome = rig.run(&[fault]).await;
            let summary = &outcome.answer.summary;
            let remote = rig.came_to(&config).saturating_sub(PAGES);
            made_good(&rig, &outcome.answer, reason, remote);
            assert_eq!(summary.cached_tokens, pages(&config));
            assert!(failed(outcome.end).contains(reason));
            rig.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_the_decode_node_dies() {
    let config = FakeConfig::default();
    let (rig, brake) = with_pages(&config, endless()).await;
    let going = rig.begin(&[]).await;
    brake.reached().await;
    decode_dies(rig, going, &config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_a_peer_that_cannot_be_told_of_a_cancel() {
    let config = FakeConfig::default();
    let [sent, _] = frames(&config).await;
    let fault = Fault::Vanish(sent[2].1.end - 5);
    // The prefill node waits for the other one to read why it ends.
    let rig = Plan::new(&config, endless()).start().await;
    let going = rig.held(fault).await;
    held(&rig.decode, rig.deal.chunk).await;
    let start = Instant::now();
    let answer = going.cancel_prefill().await;
    rig.prefill.clean().await;
    assert!(start.elapsed() >= GOODBYE);
    rig.decode.prefill_failed(&rig.deal.id, GONE).await;
    made_good(&rig, &answer.await.unwrap(), GONE, rig.deal.chunk);
    rig.decode.clean().await;
    // The decode node waits for nobody, and the prefill node hears nothing.
    let rig = Plan::new(&config, silence()).start().await;
    let going = rig.held(fault).await;
    let end = going.cancel_request().await;
    rig.decode.clean().await;
    let told = failed(end.await.unwrap());
    assert!(told.contains("`ticket`"), "{told}");
    rig.prefill.clean().await;
}

/// A rig whose decode engine stands still before it takes in the last block.
async fn before_the_last_block(config: &FakeConfig, limits: Limits) -> (Rig, Brake) {
    let mut plan = Plan::new(config, limits);
    let full = plan.deal.tokens.len() as u32 / plan.deal.chunk;
    let last = full + u32::from(config.window > 0);
    let brake = Brake::on(&mut plan.receiving, CallKind::Import, last);
    (plan.start().await, brake)
}

/// Waits until a frame of a kind has passed the relay: 0 to the receiver, 1 to the sender.
async fn passed(rig: &Rig, way: usize, kind: Kind) {
    let has_passed = || rig.proxy.frames(0)[way].iter().any(|(k, _)| *k == kind);
    eventually("the frame", has_passed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_silence_for_good() {
    for config in models() {
        let [sent, _] = frames(&config).await;
        let mut waits = silence();
        waits.resume = SHORT;
        let rig = Plan::new(&config, waits).start().await;
        // New connections are taken, and nothing passes on them.
        let mut faults = vec![Fault::Vanish(sent[2].1.end - 5)];
        faults.resize(8, Fault::Hold(0));
        let start = Instant::now();
        let (end, answer) = rig.begin(&faults).await.end().await;
        failed(end);
        let answer = answer.await.unwrap();
        let kept = if config.window > 0 { 0 } else { rig.deal.chunk };
        made_good(&rig, &answer, "silent", kept);
        assert!(start.elapsed() >= SILENCE + SHORT);
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_a_cut_while_the_decode_engine_is_busy() {
    for config in models() {
        let [sent, _] = frames(&config).await;
        let (_, commit) = find(&sent, Kind::Commit);
        // The answer to the new connection says what was applied, and so it waits for the step.
        let mut limits = silence();
        limits.resume = Duration::from_secs(1);
        let (rig, brake) = before_the_last_block(&config, limits).await;
        let going = rig.held(Fault::Hold(commit.start)).await;
        brake.reached().await;
        rig.proxy.cut();
        passed_again(&rig).await;
        // Only a new connection has to be there within `resume`, and nobody is silent.
        tokio::time::sleep(limits.resume + SILENCE).await;
        brake.release();
        let (end, answer) = going.end().await;
        whole(&rig, &answer.await.unwrap());
        assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
        rig.once("busy");
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

/// Waits until a second connection has said hello.
async fn passed_again(rig: &Rig) {
    let has_passed = || rig.proxy.connections() > 1 && rig.proxy.written(1) > 0;
    eventually("a second hello", has_passed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_acknowledgements_repeated_or_reordered() {
    for config in models() {
        for fault in [Fault::RepeatReply(1), Fault::SwapReply(1)] {
            let (rig, brake) = before_the_last_block(&config, endless()).await;
            let (end, answer) = rig.begin(&[fault]).await.end().await;
            let told = failed(end);
            assert!(told.contains("out of sequence"), "{told}");
            brake.release();
            let answer = answer.await.unwrap();
            made_good(&rig, &answer, "out of sequence", rig.came_to(&config));
            assert_eq!(rig.proxy.connections(), 1);
            rig.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_silence() {
    for (config, has_come) in models().into_iter().zip([false, true]) {
        let [sent, _] = frames(&config).await;
        let (_, commit) = find(&sent, Kind::Commit);
        let at = if has_come {
            commit.end
        } else {
            commit.start + 8
        };
        let rig = Plan::new(&config, silence()).start().await;
        let start = Instant::now();
        let outcome = rig.run(&[Fault::Vanish(at)]).await;
        whole(&rig, &outcome.answer);
        assert!(start.elapsed() >= SILENCE);
        assert!(outcome.done().3 >= 1);
        let [again, _] = rig.proxy.frames(1);
        assert!(again.iter().all(|(k, _)| *k != Kind::Segment));
        rig.once("silence");
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_a_cut_for_good_and_a_prefill_node_that_dies() {
    for config in models() {
        let [sent, _] = frames(&config).await;
        let (_, commit) = find(&sent, Kind::Commit);
        let short = only(|l| l.resume = SHORT);
        for (loss, told, limits) in [
            (Loss::Cut, false, short),
            (Loss::Death, false, short),
            (Loss::Death, true, endless()),
        ] {
            let mut rig = Plan::new(&config, limits).start().await;
            let going = rig.held(Fault::Hold(commit.start + 8)).await;
            held(&rig.decode, rig.kv_end()).await;
            let start = Instant::now();
            rig.proxy.down(true);
            let answer = lose(&mut rig, going, loss, told).await;
            rig.proxy.cut();
            let answer = answer.await.unwrap();
            let reason = if told { GONE } else { "the prefill node" };
            made_good(&rig, &answer, reason, rig.kv_end());
            assert!(told || start.elapsed() >= SHORT);
            rig.decode.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_the_prefill_node_dies_behind_it() {
    for config in models() {
        let limits = only(|l| l.receipt = SHORT);
        let (mut rig, brake) = before_the_last_block(&config, limits).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        passed(&rig, 0, Kind::Commit).await;
        let answer = lose(&mut rig, going, Loss::Death, false).await;
        brake.release();
        whole(&rig, &answer.await.unwrap());
        rig.decode.released().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_repeated_or_reordered() {
    for config in models() {
        let [sent, answers] = frames(&config).await;
        let (commit, _) = find(&sent, Kind::Commit);
        for fault in [Fault::Repeat(commit), Fault::Swap(commit)] {
            let (rig, brake) = before_the_last_block(&config, endless()).await;
            let going = rig.begin(&[fault]).await;
            brake.reached().await;
            let (end, answer) = going.end().await;
            let told = failed(end);
            assert!(told.contains("`sequence`"), "{told}");
            brake.release();
            made_good(&rig, &answer.await.unwrap(), "`sequence`", rig.kv_end());
            rig.clean().await;
        }
        // Nobody listens behind the confirmation.
        let last = answers.len() - 1;
        assert_eq!(answers[last].0, Kind::Committed);
        let rig = Plan::new(&config, endless()).start().await;
        let outcome = rig.run(&[Fault::RepeatReply(last)]).await;
        outcome.whole(&rig.expected, "confirmed twice");
        outcome.done();
        // A confirmation that comes too early is not believed; the decode node knows better.
        let outcome = rig.run(&[Fault::SwapReply(last - 1)]).await;
        whole(&rig, &outcome.answer);
        assert!(failed(outcome.end).contains("out of sequence"));
        rig.decode.settled().await;
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_the_decode_node_dies() {
    let config = FakeConfig::default();
    let [_, answers] = frames(&config).await;
    let (_, confirmation) = find(&answers, Kind::Committed);
    let mut plan = Plan::new(&config, only(|l| l.resume = SHORT));
    let _brake = Brake::on(&mut plan.receiving, CallKind::Decode, 0);
    let rig = plan.start().await;
    // Once a byte of it is there, the decode node has the commit.
    let going = rig.held(Fault::HoldReply(confirmation.start + 1)).await;
    let reason = decode_dies(rig, going, &config).await;
    assert!(reason.contains("is not known"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_the_request_or_the_prefill_is_cancelled() {
    for config in models() {
        let (rig, brake) = before_the_last_block(&config, endless()).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        passed(&rig, 0, Kind::Commit).await;
        let start = Instant::now();
        let end = going.cancel_request().await;
        rig.decode.until("freed", is_clean).await;
        let told = failed(end.await.unwrap());
        assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
        assert!(told.contains("the request has ended"), "{told}");
        rig.prefill.clean().await;
        brake.release();
        rig.decode.clean().await;

        let (mut rig, brake) = before_the_last_block(&config, endless()).await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        passed(&rig, 0, Kind::Commit).await;
        let answer = lose(&mut rig, going, Loss::Cancel, false).await;
        brake.release();
        let answer = answer.await.unwrap();
        made_good(&rig, &answer, "the coordinator has gone", rig.kv_end());
        rig.decode.clean().await;
    }
}

/// The answer came without a comparison.
fn not_compared(rig: &Rig, answer: &Answer) {
    assert_eq!(answer.parity, None);
    whole(rig, answer);
}

/// What ends the wait of a complete answer for a receipt.
fn without_receipt() -> Limits {
    only(|l| l.receipt = SHORT)
}

/// A handoff whose commit is confirmed, and whose prefill node stands still before its receipt.
async fn before_the_receipt(
    config: &FakeConfig,
    limits: Limits,
    fault: Fault,
) -> (Rig, Brake, Going) {
    braked_before_the_receipt(Plan::new(config, limits), fault).await
}

async fn braked_before_the_receipt(mut plan: Plan, fault: Fault) -> (Rig, Brake, Going) {
    let brake = Brake::on(&mut plan.sending, CallKind::Decode, 0);
    let rig = plan.start().await;
    let going = rig.begin(&[fault]).await;
    brake.reached().await;
    passed(&rig, 1, Kind::Committed).await;
    (rig, brake, going)
}

#[tokio::test(flavor = "multi_thread")]
async fn receipt_that_does_not_come() {
    for config in models() {
        let [sent, _] = frames(&config).await;
        let (_, receipt) = find(&sent, Kind::Receipt);
        for fault in [
            Fault::Cut(receipt.start + 8),
            Fault::Flip(receipt.start + 70),
            Fault::Hold(receipt.start + 8),
        ] {
            let (rig, brake, going) = before_the_receipt(&config, without_receipt(), fault).await;
            let begun = going.begun;
            brake.release();
            let (end, answer) = going.end().await;
            assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
            not_compared(&rig, &answer.await.unwrap());
            assert!(begun.elapsed() >= SHORT);
            assert_eq!(rig.proxy.connections(), 1);
            rig.decode.released().await;
            rig.prefill.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipt_the_prefill_node_dies_or_is_cancelled() {
    for config in models() {
        let (mut rig, brake, going) =
            before_the_receipt(&config, without_receipt(), Fault::None).await;
        let begun = going.begun;
        let answer = lose(&mut rig, going, Loss::Death, false).await;
        not_compared(&rig, &answer.await.unwrap());
        assert!(begun.elapsed() >= SHORT);
        rig.decode.released().await;
        drop(brake);

        let (rig, brake, going) = before_the_receipt(&config, endless(), Fault::None).await;
        let answer = going.cancel_prefill().await;
        not_compared(&rig, &answer.await.unwrap());
        rig.decode.settled().await;
        brake.release();
        rig.prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipt_the_request_is_cancelled_or_the_decode_node_dies() {
    let config = FakeConfig::default();
    let mut plan = Plan::new(&config, endless());
    plan.deal.terms.keep = true;
    Reuse::Exact.set(&mut plan.deal.terms);
    let (rig, brake, going) = braked_before_the_receipt(plan, Fault::None).await;
    rig.prefill.until("a permission", |s| s.returns == 1).await;
    let start = Instant::now();
    let end = going.cancel_request().await;
    rig.decode.settled().await;
    // Though its engine is still busy with the receipt.
    let end = end.await.unwrap();
    assert!(start.elapsed() < CANCEL, "{:?}", start.elapsed());
    assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
    // Nobody has heard of it.
    rig.prefill.until("no permission", |s| s.returns == 0).await;
    brake.release();
    rig.prefill.clean().await;

    let (rig, brake, going) = before_the_receipt(&config, endless(), Fault::None).await;
    rig.decode.kill();
    brake.release();
    let (end, answer) = going.end().await;
    assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
    assert!(!answer.await.unwrap().done);
    another_takes_over(rig, &config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipt_repeated_and_frames_behind_the_commit() {
    let config = FakeConfig::default();
    for is_repeated in [true, false] {
        let decode = Setup {
            limits: endless(),
            ..Setup::new(Role::Decode, &config)
        };
        let decode = decode.start().await;
        let mut deal = Deal::new(&prompt(32 * 2 + 5), 32);
        Reuse::Off.set(&mut deal.terms);
        let expected = deal.expected(&config).await;
        let (mut events, ticket) = deal.open(&decode).await;
        let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
        handoff.blocks(32).await;
        handoff.commit().await;
        if is_repeated {
            let receipt = handoff.computed(None);
            handoff.receipt(&receipt).await;
            handoff.receipt(&receipt).await;
        } else {
            let hello = handoff.hello().to_vec();
            handoff.write(&hello).await;
        }
        let answer = finish(&mut events).await;
        assert!(answer.done);
        assert_eq!(answer.tokens, expected);
        assert_eq!(answer.parity.is_some(), is_repeated);
        assert_eq!(answer.summary.fallback, None);
        handoff.leave().await;
        decode.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decoding_needs_nobody_and_no_frame() {
    for config in models() {
        let mut plan = Plan::new(&config, endless());
        let brake = Brake::on(&mut plan.receiving, CallKind::Decode, 2);
        let rig = plan.start().await;
        let going = rig.begin(&[]).await;
        brake.reached().await;
        let (end, answer) = going.end().await;
        assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
        rig.decode.until("received", |s| s.receiving == 0).await;
        let [sent, _] = rig.proxy.frames(0);
        assert_eq!(sent.first().unwrap().0, Kind::Hello);
        assert_eq!(sent.last().unwrap().0, Kind::Receipt);
        let written = rig.proxy.written(0);
        assert_eq!(written, sent.last().unwrap().1.end);
        // There is nothing left that could be cut, be silent, be damaged or break a rule.
        rig.prefill.kill();
        rig.proxy.down(true);
        rig.proxy.cut();
        brake.release();
        let answer = answer.await.unwrap();
        whole(&rig, &answer);
        assert!(answer.parity.expect("parity").holds);
        assert_eq!((rig.proxy.connections(), rig.proxy.refused()), (1, 0));
        assert_eq!(rig.proxy.written(0), written);
        rig.decode.settled().await;
    }
}

/// Models whose blocks are one page each, and that have much to say.
pub fn paged() -> [FakeConfig; 2] {
    models().map(|mut config| {
        config.seed = 3;
        let mut layers = config.layers.iter_mut();
        let layer = layers.find(|l| l.kind == LayerKind::Full).unwrap();
        (layer.kv_heads, layer.key_dim, layer.value_dim) = (32, 512, 512);
        config
    })
}

/// An answer of some blocks that a decode node hands back to its prefill node, with a relay between them.
struct Back {
    prefill: TestNode,
    decode: TestNode,
    proxy: Proxy,
    /// Pages that both have when all is well.
    pages: u64,
    /// The next turn, and its answer.
    next: (Deal, Vec<u32>),
}

impl Back {
    async fn begin(config: &FakeConfig, limits: Limits, faults: &[Fault]) -> Self {
        let setup = |role| Setup {
            limits,
            mortal: true,
            ..Setup::new(role, config)
        };
        let mut deal = first_turn();
        deal.max_tokens = 100;
        let (prefill, mut permission) = permission_of(setup(Role::Prefill), &deal).await;
        let proxy = Proxy::to(prefill.port).await;
        proxy.next(faults);
        permission.port = proxy.port;
        let decode = setup(Role::Decode).start().await;
        let (mut events, ticket) = deal.open(&decode).await;
        let mut handoff = Handoff::dial(config, &deal, &ticket).await.unwrap();
        handoff.blocks(deal.chunk).await;
        handoff.commit().await;
        let receipt = handoff.computed(Some(permission));
        handoff.receipt(&receipt).await;
        handoff.leave().await;
        let answer = finish(&mut events).await;
        assert!(answer.done, "{answer:?}");
        assert_eq!(answer.tokens, deal.expected(config).await);
        let known = deal.tokens.len() + answer.tokens.len() - 1;
        let pages = known as u64 / 64;
        assert_eq!(pages, 3, "that of the prompt, and two of the answer");
        // Its own copy is kept, whatever becomes of the other one.
        decode.until("kept", |s| s.pages == pages).await;
        let next = next_turn(&deal, &answer.tokens);
        let expected = next.expected(config).await;
        Self {
            prefill,
            decode,
            proxy,
            pages,
            next: (next, expected),
        }
    }

    async fn held(config: &FakeConfig, limits: Limits, fault: Fault) -> Self {
        let back = Self::begin(config, limits, &[fault]).await;
        back.proxy.held().await;
        back
    }

    /// Both have ended, and the prefill node has so many pages; from these the next turn goes on rightly.
    async fn over(&self, pages: impl Fn(u64) -> bool) {
        self.decode.settled().await;
        self.prefill.settled().await;
        let found = self.prefill.handoffs().await.pages;
        assert!(pages(found), "{found} pages");
        let (deal, expected) = &self.next;
        let outcome = deal.run(&self.prefill, &self.decode).await;
        outcome.whole(expected, "the next turn");
    }

    /// The answer has come back, whatever happened to its connections.
    async fn whole(&self, connections: usize) {
        let all = |s: &HandoffStatus| s.pages == self.pages && s.returns == 0;
        self.prefill.until("given back", all).await;
        self.over(|pages| pages == self.pages).await;
        assert_eq!(self.proxy.connections(), connections);
    }

    /// The middle of the first segment of the second block, and the number of its frame.
    async fn segment(config: &FakeConfig) -> (u64, usize) {
        let back = Self::begin(config, limits(), &[]).await;
        back.whole(1).await;
        let (number, segment) = back.proxy.segment(0, 128);
        (u64::midpoint(segment.start, segment.end), number)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_back_a_cut_damage_and_silence() {
    for config in paged() {
        let (at, _) = Back::segment(&config).await;
        for fault in [Fault::Cut(at), Fault::Flip(at)] {
            let back = Back::begin(&config, endless(), &[fault]).await;
            back.whole(2).await;
        }
        let start = Instant::now();
        let back = Back::begin(&config, silence(), &[Fault::Hold(at)]).await;
        back.whole(2).await;
        assert!(start.elapsed() >= SILENCE);
    }
    // Before the first answer there is nothing to go on with.
    let [config, _] = paged();
    for (fault, limits) in [
        (Fault::Hold(0), only(|l| l.handoff_silence = SILENCE)),
        (Fault::Cut(0), endless()),
        (Fault::FlipReply(80), only(|l| l.resume = SHORT)),
    ] {
        let start = Instant::now();
        let back = Back::begin(&config, limits, &[fault]).await;
        back.over(|pages| pages == 1).await;
        assert!(start.elapsed() >= SHORT || fault == Fault::Cut(0));
        assert_eq!(back.proxy.connections(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_back_repeated_frames() {
    // Beats would be frames, too.
    let quiet = only(|l| l.handoff_beat = PATIENCE * 10);
    for config in paged() {
        let (_, segment) = Back::segment(&config).await;
        // What comes meanwhile is not certain where the decode node is the one to notice.
        for (fault, kept) in [
            (Fault::Repeat(0), 1..=1),
            (Fault::Repeat(segment), 2..=2),
            (Fault::Swap(segment), 2..=2),
            (Fault::RepeatReply(0), 1..=3),
            (Fault::RepeatReply(1), 2..=3),
        ] {
            let back = Back::begin(&config, quiet, &[fault]).await;
            back.over(|pages| kept.contains(&pages)).await;
            assert_eq!(back.proxy.connections(), 1, "{fault:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_back_a_cut_for_good_and_a_node_that_dies() {
    let short = only(|l| l.resume = SHORT);
    for config in paged() {
        let (at, _) = Back::segment(&config).await;
        let back = Back::held(&config, short, Fault::Hold(at)).await;
        let start = Instant::now();
        back.proxy.down(true);
        back.proxy.cut();
        // The block that came whole.
        back.over(|pages| pages == 2).await;
        assert!(start.elapsed() >= SHORT);

        let back = Back::held(&config, short, Fault::Hold(at)).await;
        back.prefill.kill();
        back.proxy.cut();
        back.decode.settled().await;
        assert_eq!(back.decode.handoffs().await.pages, back.pages);

        let back = Back::held(&config, short, Fault::Hold(at)).await;
        let start = Instant::now();
        back.decode.kill();
        back.proxy.cut();
        back.prefill.settled().await;
        assert!(start.elapsed() >= SHORT);
        let found = back.prefill.handoffs().await;
        assert_eq!((found.pages, found.returns), (2, 0));
    }
}
