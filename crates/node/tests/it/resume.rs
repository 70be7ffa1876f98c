//! A handoff whose connection breaks goes on over a new one: nothing is computed twice, nothing
//! that was acknowledged is sent twice, and the tokens are right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_handoff::LayerKind;
use tandem_handoff::frame::Kind;
use tandem_handoff::limits::{AHEAD_BYTES, CREDIT_BYTES};
use tandem_handoff::message::Accept;
use tandem_node::Limits;
use tandem_node::limits::{MAX_CHUNKS_WAITING, MAX_RECONNECTS, RECONNECT_PAUSE};
use tandem_proto::{CodecChoice, ErrorCode, HandoffTerms, PrefillEvent, Role};

use super::cluster::{
    Calls, Deal, Outcome, Reuse, Setup, endless, eventually, finish, heavy, limits, prompt,
};
use super::kills::Brake;
use super::proxy::{Fault, Proxy};
use super::rig::{Plan, Rig};

/// All ends and middles of these frames.
fn places(frames: &[(Kind, std::ops::Range<u64>)]) -> Vec<u64> {
    let ends = frames.iter().map(|(_, r)| r.end);
    let middles = frames.iter().map(|(_, r)| u64::midpoint(r.start, r.end));
    ends.chain(middles).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_at_every_frame_and_inside_each() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let rig = Rig::new(&config).await;
        let [sent, _] = rig.record().await;
        // From the end of the hello on there is something to go on with: the accept has come.
        let segments: Vec<_> = sent.iter().filter(|(k, _)| *k == Kind::Segment).collect();
        assert!(segments.len() >= 5, "{sent:?}");
        let commit = sent.iter().position(|(k, _)| *k == Kind::Commit).unwrap();
        for at in places(&sent[1..=commit]) {
            let what = format!("cut after {at} of {:?}", sent.last());
            let outcome = rig.run(&[Fault::Cut(at)]).await;
            outcome.whole(&rig.expected, &what);
            // With the whole commit the handoff may have been complete before the cut was noticed.
            let reconnects = outcome.answer.summary.reconnects;
            let is_late = at >= sent[commit].1.end;
            assert!(reconnects == 1 || (is_late && reconnects == 0), "{what}");
            assert_eq!(outcome.done().3, 1, "{what}");
            assert!(outcome.answer.parity.expect(&what).holds, "{what}");
            rig.once(&what);
        }
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_at_every_answer_of_the_receiver() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let rig = Rig::new(&config).await;
        let [_, answers] = rig.record().await;
        assert!(answers.iter().any(|(k, _)| *k == Kind::Ack));
        assert_eq!(answers.last().unwrap().0, Kind::Committed);
        for at in places(&answers[1..]) {
            let what = format!("cut after {at} bytes of answers");
            let outcome = rig.run(&[Fault::CutReply(at)]).await;
            outcome.whole(&rig.expected, &what);
            rig.once(&what);
            assert!(outcome.done().3 <= 1, "{what}");
        }
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_not_sent_again() {
    let rig = Rig::new(&FakeConfig::default()).await;
    let [sent, _] = rig.record().await;
    let whole = rig.proxy.forwarded();
    let commit = sent.iter().find(|(k, _)| *k == Kind::Commit).unwrap();
    rig.proxy.next(&[Fault::Cut(commit.1.end - 1)]);
    rig.deal
        .run(&rig.prefill, &rig.decode)
        .await
        .whole(&rig.expected, "cut in the commit");
    // What has been acknowledged is there, and what the answer to the new hello counts as there does not come again.
    let accept: Accept = serde_json::from_slice(&rig.proxy.answer(1, Kind::Accept)).unwrap();
    let [_, heard] = rig.proxy.frames(0);
    let acks = heard.iter().filter(|(k, _)| *k == Kind::Ack).count() as u32;
    assert!(accept.have_tokens >= (acks * rig.deal.chunk).min(rig.kv_end()));
    let count = |frames: &[(Kind, std::ops::Range<u64>)]| {
        frames.iter().filter(|(k, _)| *k == Kind::Segment).count()
    };
    let blocks = |tokens: u32| tokens.div_ceil(rig.deal.chunk) as usize;
    assert_eq!(count(&sent), blocks(rig.kv_end()));
    let [again, _] = rig.proxy.frames(1);
    assert_eq!(count(&again), blocks(rig.kv_end() - accept.have_tokens));
    assert!(rig.proxy.forwarded() < whole * 2);
    rig.once("cut in the commit");
    rig.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_cuts_in_a_row_and_too_many() {
    let rig = Rig::new(&FakeConfig::default()).await;
    let [sent, _] = rig.record().await;
    let (_, first) = &sent[1];
    let cut = Fault::Cut(first.start + 10);
    let outcome = rig.run(&[cut; 6]).await;
    outcome.whole(&rig.expected, "six cuts");
    assert_eq!(outcome.answer.summary.reconnects, 6);
    rig.once("six cuts");
    // A connection that never gets anywhere is given up.
    let outcome = rig.run(&[cut; MAX_RECONNECTS as usize + 8]).await;
    outcome.made_good(&rig.expected, "too many cuts");
    assert!(matches!(outcome.end, PrefillEvent::Failed(_)));
    assert_eq!(rig.proxy.connections(), MAX_RECONNECTS as usize + 1);
    rig.clean().await;
}

/// Each attempt at a new connection waits twice as long as the one before.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_at_a_new_connection_become_rarer() {
    let rig = Rig::new(&FakeConfig::default()).await;
    let [sent, _] = rig.record().await;
    // Five attempts end before the hello has come.
    let mut faults = vec![Fault::Cut(sent[1].1.start + 10)];
    faults.resize(6, Fault::Cut(0));
    let start = Instant::now();
    let outcome = rig.run(&faults).await;
    outcome.whole(&rig.expected, "six cuts");
    assert_eq!(outcome.answer.summary.reconnects, 1);
    let pauses = RECONNECT_PAUSE * (1 + 2 + 4 + 8 + 16 + 32);
    assert!(start.elapsed() >= pauses, "{:?}", start.elapsed());
    rig.clean().await;
}

/// A connection that is taken, and breaks before anything more has come over it, is no better than none.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_bring_nothing_become_rarer_too() {
    let rig = Rig::new(&FakeConfig::default()).await;
    let [sent, _] = rig.record().await;
    let cut = Fault::Cut(sent[1].1.start + 10);
    let start = Instant::now();
    let outcome = rig.run(&[cut; 6]).await;
    outcome.whole(&rig.expected, "six cuts");
    assert_eq!(outcome.answer.summary.reconnects, 6);
    let pauses = RECONNECT_PAUSE * (1 + 2 + 4 + 8 + 16 + 32);
    let without = start.elapsed();
    assert!(without >= pauses, "{without:?}");
    // Where some bring something, the next is as good as the first: a tenth of the pauses.
    let cut = |at: usize| Fault::Cut(sent[at].1.start + 10);
    let faults = [cut(1), cut(2), cut(1), cut(2), cut(1), cut(2)];
    let start = Instant::now();
    let outcome = rig.run(&faults).await;
    outcome.whole(&rig.expected, "six cuts that bring something");
    assert_eq!(outcome.answer.summary.reconnects, 6);
    let with = start.elapsed();
    assert!(with < without / 2, "{with:?} of {without:?}");
    rig.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_cannot_be_reached_again_computes_the_rest_itself() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut waits = limits();
        waits.resume = Duration::from_millis(300);
        let setup = |role| Setup {
            limits: waits,
            ..Setup::new(role, &config)
        };
        let prefill = setup(Role::Prefill).start().await;
        let decode = setup(Role::Decode).start().await;
        let proxy = Proxy::to(decode.port).await;
        let chunk = config.microbatch_tokens;
        let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
        deal.terms = HandoffTerms {
            reuse: false,
            ..HandoffTerms::default()
        };
        deal.via = Some(proxy.port);
        let expected = deal.expected(&config).await;
        proxy.next(&[]);
        deal.run(&prefill, &decode).await.whole(&expected, "whole");
        let [sent, _] = proxy.frames(0);
        // The first two blocks arrive; then there is no way to the receiver any more.
        proxy.next(&[Fault::Cut(sent[2].1.end)]);
        let (mut events, ticket) = deal.open(&decode).await;
        let down = async {
            while proxy.connections() == 0 {
                tokio::task::yield_now().await;
            }
            proxy.down(true);
        };
        let start = Instant::now();
        let sending = async {
            let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
            super::cluster::prefill_end(&mut sending).await
        };
        let answering = super::cluster::finish(&mut events);
        let ((), end, answer) = tokio::join!(down, sending, answering);
        assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
        assert!(answer.done && answer.summary.fallback.is_some());
        assert_eq!(answer.tokens, expected);
        // Nobody tells the decode node.
        assert!(start.elapsed() >= waits.resume);
        // What came is kept; a model with windows starts over.
        let kept = if config.window == 0 { chunk * 2 } else { 0 };
        assert_eq!(answer.summary.remote_tokens, kept);
        // What came is told, whatever was made of it: rows, and headers of the two blocks' segments.
        let (rows, wire) = (answer.summary.handoff_bytes, answer.summary.wire_bytes);
        assert!(
            rows > 0 && wire > rows && wire < rows + 8 * 64,
            "{rows} {wire}"
        );
        // After 50, 100 and 200 ms at most.
        assert!(proxy.refused() <= 3, "{}", proxy.refused());
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced() {
    let config = FakeConfig::default();
    let mut waits = endless();
    waits.handoff_silence = Duration::from_secs(2);
    waits.handoff_beat = Duration::from_millis(50);
    let setup = |role| Setup {
        limits: waits,
        ..Setup::new(role, &config)
    };
    let prefill = setup(Role::Prefill).start().await;
    let decode = setup(Role::Decode).start().await;
    let proxy = Proxy::to(decode.port).await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
    Reuse::Off.set(&mut deal.terms);
    deal.via = Some(proxy.port);
    let expected = deal.expected(&config).await;
    proxy.next(&[]);
    deal.run(&prefill, &decode).await.whole(&expected, "whole");
    let [sent, _] = proxy.frames(0);
    let commit = sent.iter().find(|(kind, _)| *kind == Kind::Commit).unwrap();
    for fault in [
        Fault::Hold(sent[2].1.end - 5),
        Fault::Vanish(sent[2].1.end - 5),
        // The commit arrives, and nothing comes back.
        Fault::Vanish(commit.1.end),
    ] {
        proxy.next(&[fault]);
        let start = Instant::now();
        let outcome = deal.run(&prefill, &decode).await;
        outcome.whole(&expected, &format!("{fault:?}"));
        assert!(start.elapsed() >= waits.handoff_silence, "{fault:?}");
        assert_eq!(proxy.connections(), 2, "{fault:?}");
    }
    prefill.clean().await;
    decode.settled().await;
}

/// Also one over which nothing is on its way, while the next chunk is computed: its sender has heard of all that it sent, and
/// would notice with the next block only, when the receiver has given the handoff up.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_becomes_silent_while_a_chunk_is_computed_is_replaced() {
    let config = FakeConfig::default();
    let mut waits = endless();
    waits.handoff_silence = Duration::from_secs(2);
    waits.handoff_beat = Duration::from_millis(50);
    let setup = |role, config: &FakeConfig| Setup {
        limits: waits,
        ..Setup::new(role, config)
    };
    let mut gated = config.clone();
    let brake = Brake::on(&mut gated, CallKind::Prefill, 1);
    let prefill = setup(Role::Prefill, &gated).start().await;
    let decode = setup(Role::Decode, &config).start().await;
    let proxy = Proxy::to(decode.port).await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
    Reuse::Off.set(&mut deal.terms);
    deal.via = Some(proxy.port);
    let (mut answers, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    brake.reached().await;
    let is_acked = || {
        proxy.frames(0)[1]
            .iter()
            .any(|(kind, _)| *kind == Kind::Ack)
    };
    eventually("the first block", || proxy.connections() == 1 && is_acked()).await;
    let start = Instant::now();
    proxy.hush();
    eventually("a new connection", || proxy.connections() == 2).await;
    assert!(start.elapsed() >= waits.handoff_silence);
    brake.release();
    let (answer, end) = tokio::join!(
        finish(&mut answers),
        super::cluster::prefill_end(&mut sending)
    );
    let outcome = Outcome { answer, end };
    outcome.whole(&deal.expected(&config).await, "hushed");
    assert_eq!(outcome.done().3, 1);
    prefill.clean().await;
    decode.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frequent_chunks_do_not_keep_an_end_from_showing_that_it_is_alive() {
    let mut waits = limits();
    waits.handoff_silence = Duration::from_millis(600);
    waits.handoff_beat = Duration::from_millis(100);
    let config = FakeConfig::default();
    let mut slow = config.clone();
    // Something happens more often than a beat is due, and for longer than the silence in all.
    slow.gate = Some(Arc::new(|call: &Call| {
        if call.kind() == CallKind::Prefill {
            std::thread::sleep(Duration::from_millis(40));
        }
    }));
    let setup = |role, config: &FakeConfig| Setup {
        limits: waits,
        ..Setup::new(role, config)
    };
    let prefill = setup(Role::Prefill, &slow).start().await;
    let decode = setup(Role::Decode, &config).start().await;
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 40 + 1), chunk);
    Reuse::Off.set(&mut deal.terms);
    // Nothing is sent before the last chunk has been computed.
    deal.terms.overlap = false;
    let expected = deal.expected(&config).await;
    let outcome = deal.run(&prefill, &decode).await;
    outcome.whole(&expected, "slow chunks");
    assert_eq!(outcome.answer.summary.reconnects, 0);
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_flips_on_the_way_costs_a_connection_and_no_token() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let rig = Rig::new(&config).await;
        let [sent, answers] = rig.record().await;
        let accept = answers[0].1.end;
        let hello = sent[0].1.end;
        let commit = sent.iter().find(|(k, _)| *k == Kind::Commit).unwrap();
        // A prime step, so that all parts of headers and payloads are hit in turn.
        for at in (hello..commit.1.end).step_by(241) {
            let what = format!("bit flipped in byte {at}");
            let outcome = rig.run(&[Fault::Flip(at)]).await;
            outcome.whole(&rig.expected, &what);
            assert_eq!(outcome.answer.summary.reconnects, 1, "{what}");
            rig.once(&what);
        }
        let committed = answers.last().unwrap().1.end;
        for at in (accept..committed).step_by(37) {
            let what = format!("bit flipped in byte {at} of the answers");
            let outcome = rig.run(&[Fault::FlipReply(at)]).await;
            outcome.whole(&rig.expected, &what);
            assert_eq!(outcome.done().3, 1, "{what}");
            rig.once(&what);
        }
        rig.clean().await;
        // Before the handoff has begun there is nothing to go on with, and nothing is waited for.
        let rig = Plan::new(&config, endless()).start().await;
        for fault in [Fault::Flip(70), Fault::Flip(3), Fault::FlipReply(80)] {
            let what = format!("{fault:?}");
            let outcome = rig.run(&[fault]).await;
            outcome.made_good(&rig.expected, &what);
            assert_eq!(outcome.answer.summary.remote_tokens, 0, "{what}");
            assert_eq!(rig.proxy.connections(), 1, "{what}");
        }
        rig.clean().await;
    }
}

/// Every byte that either end writes in a small handoff, from the hello to the receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_flips_in_any_byte_costs_no_token() {
    /// Handoffs at once; most of the time of each is a pause.
    const RIGS: u64 = 8;
    let rigs = [false, true]
        .into_iter()
        .flat_map(|by_layer| (0..RIGS).map(move |i| (i, by_layer)));
    let each = rigs.map(|(first, by_layer)| {
        tokio::spawn(async move {
            let waits = Limits {
                resume: Duration::from_secs(5),
                // A receipt that is damaged does not come.
                receipt: Duration::from_millis(20),
                ..limits()
            };
            let config = FakeConfig {
                by_layer,
                ..FakeConfig::windowed()
            };
            let mut plan = Plan::new(&config, waits);
            plan.deal.tokens = prompt(4);
            let rig = plan.start().await;
            let [sent, answers] = rig.record().await;
            let end = |frames: &[(Kind, std::ops::Range<u64>)]| frames.last().unwrap().1.end;
            let (hello, accept) = (sent[0].1.end, answers[0].1.end);
            let there = (first..end(&sent)).step_by(RIGS as usize);
            let back = (first..end(&answers)).step_by(RIGS as usize);
            let faults = there.map(Fault::Flip).chain(back.map(Fault::FlipReply));
            let (mut whole, mut count) = (0, 0);
            for fault in faults {
                let what = format!("{fault:?}");
                let outcome = rig.run(&[fault]).await;
                assert!(outcome.answer.done, "{what}: {outcome:?}");
                assert_eq!(outcome.answer.tokens, rig.expected, "{what}");
                let has_begun = match fault {
                    Fault::Flip(at) => at >= hello,
                    Fault::FlipReply(at) => at >= accept,
                    _ => false,
                };
                if has_begun {
                    outcome.whole(&rig.expected, &what);
                    whole += 1;
                }
                count += 1;
            }
            rig.clean().await;
            (whole, count)
        })
    });
    let (mut whole, mut count) = (0, 0);
    for task in each.collect::<Vec<_>>() {
        let of_rig = task.await.unwrap();
        whole += of_rig.0;
        count += of_rig.1;
    }
    assert!(whole > 3000 && count > 5000, "{whole} of {count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_and_reordered_segments_are_refused_and_made_good() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let [sent, _] = Rig::new(&config).await.record().await;
        let rig = Plan::new(&config, endless()).start().await;
        for frame in 1..sent.len() - 2 {
            for fault in [Fault::Repeat(frame), Fault::Swap(frame)] {
                let what = format!("{fault:?}");
                let outcome = rig.run(&[fault]).await;
                let reason = outcome.made_good(&rig.expected, &what);
                assert!(reason.contains("sequence"), "{what}: {reason}");
                let summary = &outcome.answer.summary;
                let all = summary.remote_tokens + summary.local_tokens;
                assert_eq!(all, rig.kv_end(), "{what}");
                assert_eq!(rig.proxy.connections(), 1, "{what}");
            }
        }
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_before_the_answer_to_the_hello_ends_the_handoff() {
    let config = FakeConfig::default();
    let [sent, answers] = Rig::new(&config).await.record().await;
    let rig = Plan::new(&config, endless()).start().await;
    let (hello, accept) = (sent[0].1.end, answers[0].1.end);
    for fault in [
        Fault::Cut(0),
        Fault::Cut(hello / 2),
        Fault::Cut(hello),
        Fault::CutReply(0),
        Fault::CutReply(accept - 1),
    ] {
        let what = format!("{fault:?}");
        let outcome = rig.run(&[fault]).await;
        outcome.made_good(&rig.expected, &what);
        assert!(matches!(outcome.end, PrefillEvent::Failed(_)), "{what}");
        assert_eq!(rig.proxy.connections(), 1, "{what}");
        rig.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_in_the_receipt_costs_the_comparison_at_most() {
    let rig = Rig::new(&FakeConfig::default()).await;
    let [sent, _] = rig.record().await;
    let (kind, receipt) = sent.last().unwrap();
    assert_eq!(*kind, Kind::Receipt);
    for at in [receipt.start + 1, receipt.end - 1] {
        let outcome = rig.run(&[Fault::Cut(at)]).await;
        outcome.whole(&rig.expected, "cut in the receipt");
        assert!(outcome.answer.parity.is_none_or(|p| p.holds));
        rig.once("cut in the receipt");
    }
    rig.clean().await;
}

/// A handoff whose second connection breaks before the answer to its hello has come: the sender
/// has only the session that it has said already.
#[tokio::test(flavor = "multi_thread")]
async fn cut_in_the_answer_to_the_hello_that_goes_on() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let rig = Rig::new(&config).await;
        let [sent, answers] = rig.record().await;
        // In the second segment; the answers of later connections are no shorter than the first.
        let first = Fault::Cut(sent[2].1.end - 5);
        let accept = answers[0].1.end;
        let run = async |faults: &[Fault], what: &str| {
            rig.proxy.next(faults);
            let outcome = rig.deal.run(&rig.prefill, &rig.decode).await;
            outcome.whole(&rig.expected, what);
            let reconnects = u32::try_from(faults.len()).unwrap();
            assert_eq!(outcome.done().3, reconnects, "{what}");
            assert_eq!(outcome.answer.summary.remote_tokens, rig.kv_end(), "{what}");
            rig.once(what);
        };
        for at in (0..accept).step_by(23).chain([1, 63, 64, 65, accept - 1]) {
            let what = format!("cut after {at} bytes of the accept");
            run(&[first, Fault::CutReply(at)], &what).await;
        }
        for at in [3, 70, accept - 1] {
            let what = format!("bit flipped in byte {at} of the accept");
            run(&[first, Fault::FlipReply(at)], &what).await;
        }
        // Several times in a row.
        let mut row = vec![first];
        row.extend([0, 64, accept / 2, accept - 1, 1].map(Fault::CutReply));
        run(&row, "cuts in a row").await;
        // As often as a handoff may break at all: now in the answer, now behind it.
        let again = Fault::Cut(sent[1].1.start + 10);
        let pairs = [again, Fault::CutReply(accept - 1)];
        let often: Vec<Fault> = pairs
            .into_iter()
            .cycle()
            .take(MAX_RECONNECTS as usize)
            .collect();
        run(&often, "as often as possible").await;
        rig.clean().await;
    }
}

/// All rows have come and the decode node decodes, but the sender has not heard so.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_is_lost_is_given_again() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let rig = Rig::new(&config).await;
        let [_, answers] = rig.record().await;
        let (kind, committed) = answers.last().unwrap();
        assert_eq!(*kind, Kind::Committed);
        let mut second = Vec::new();
        for at in committed.clone() {
            let what = format!("cut after {at} bytes of answers");
            let outcome = rig.run(&[Fault::CutReply(at)]).await;
            outcome.whole(&rig.expected, &what);
            assert_eq!(outcome.done().3, 1, "{what}");
            rig.once(&what);
            let [again, answers] = rig.proxy.frames(1);
            assert!(again.iter().all(|(k, _)| *k != Kind::Segment), "{what}");
            second = answers;
        }
        // And again, and before its answer.
        let (accept, committed) = (&second[0].1, &second[1].1);
        let cuts = [
            answers.last().unwrap().1.end - 1,
            accept.end / 2,
            committed.start,
            accept.end - 1,
            committed.end - 1,
        ];
        rig.proxy.next(&cuts.map(Fault::CutReply));
        let outcome = rig.deal.run(&rig.prefill, &rig.decode).await;
        outcome.whole(&rig.expected, "cuts in a row");
        assert_eq!(outcome.done().3, 5);
        rig.once("cuts in a row");
        // It is not held for ever, and holds up nobody meanwhile.
        rig.decode.until("received", |s| s.receiving == 0).await;
        rig.clean().await;
    }
}

/// The confirmation is lost, and there is no way to hear it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_is_lost_for_good_is_no_refusal() {
    let config = FakeConfig::default();
    for is_forgotten in [false, true] {
        let setup = |role, resume| Setup {
            limits: tandem_node::Limits {
                resume: Duration::from_millis(resume),
                ..limits()
            },
            ..Setup::new(role, &config)
        };
        // The decode node cannot be reached any more, or has forgotten the handoff by then.
        let (sender, receiver) = if is_forgotten {
            (20_000, 50)
        } else {
            (400, 400)
        };
        let prefill = setup(Role::Prefill, sender).start().await;
        let decode = setup(Role::Decode, receiver).start().await;
        let proxy = Proxy::to(decode.port).await;
        let chunk = config.microbatch_tokens;
        let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
        Reuse::Off.set(&mut deal.terms);
        deal.via = Some(proxy.port);
        let expected = deal.expected(&config).await;
        proxy.next(&[]);
        deal.run(&prefill, &decode).await.whole(&expected, "whole");
        let [_, answers] = proxy.frames(0);
        proxy.next(&[Fault::CutReply(answers.last().unwrap().1.end - 1)]);
        let breaking = async {
            while proxy.connections() == 0 {
                tokio::task::yield_now().await;
            }
            proxy.down(true);
            if is_forgotten {
                decode.until("begun", |s| s.secrets > 0).await;
                decode.clean().await;
                proxy.down(false);
            }
        };
        let (outcome, ()) = tokio::join!(deal.run(&prefill, &decode), breaking);
        outcome.whole(&expected, "lost");
        let PrefillEvent::Failed(error) = &outcome.end else {
            panic!("{:?}", outcome.end);
        };
        assert_eq!(error.code, ErrorCode::Handoff, "{error}");
        assert!(error.message.contains("is not known"), "{error}");
        decode.clean().await;
        prefill.clean().await;
    }
}

/// Blocks of several segments: a cut at the end of each, and inside each.
#[tokio::test(flavor = "multi_thread")]
async fn cut_at_every_segment_of_large_blocks() {
    let mut rig = Rig::new(&heavy()).await;
    rig.deal.terms.codec = CodecChoice::Raw;
    let [sent, _] = rig.record().await;
    let segments: Vec<_> = sent
        .iter()
        .filter(|(kind, _)| *kind == Kind::Segment)
        .cloned()
        .collect();
    let blocks = rig.kv_end().div_ceil(rig.deal.chunk) as usize;
    assert!(segments.len() > 2 * blocks, "{} segments", segments.len());
    for at in places(&segments) {
        let what = format!("cut after {at}");
        let outcome = rig.run(&[Fault::Cut(at)]).await;
        outcome.whole(&rig.expected, &what);
        assert_eq!(outcome.done().3, 1, "{what}");
        rig.once(&what);
    }
    rig.clean().await;
}

/// An engine that takes nothing in stops the other one: neither end keeps more than the credit and what
/// waits for a place in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_decoder_stops_the_prefill() {
    let full = FakeConfig {
        prefill_tokens: 16,
        ..heavy()
    };
    // Rows of a window do not wait for the engine, but behind full ones that do.
    let mut windowed = full.clone();
    windowed.layers.push(full.layers[0].clone());
    windowed.layers[1].kind = LayerKind::Window;
    windowed.window = 16 * 12;
    for config in [full, windowed] {
        for by_layer in [false, true] {
            let config = config.clone();
            a_slow_one_stops_the_prefill(FakeConfig { by_layer, ..config }).await;
        }
    }
}

async fn a_slow_one_stops_the_prefill(config: FakeConfig) {
    let (mut sending, mut receiving) = (config.clone(), config.clone());
    let computed = Calls::of(&mut sending);
    let brake = Brake::on(&mut receiving, CallKind::Import, 0);
    let prefill = Setup::new(Role::Prefill, &sending).start().await;
    let decode = Setup::new(Role::Decode, &receiving).start().await;
    // 128 MiB of a section, 8 MiB a chunk.
    let all = 16;
    let mut deal = Deal::new(&prompt(16 * all + 1), 16);
    Reuse::Off.set(&mut deal.terms);
    deal.terms.codec = CodecChoice::Raw;
    let expected = deal.expected(&config).await;
    let later = async {
        // Until nothing more is computed.
        let (mut tokens, mut quiet) = (0, 0);
        while quiet < 20 {
            tokio::time::sleep(Duration::from_millis(25)).await;
            let more = computed.prefilled();
            tokens += more;
            quiet = if more == 0 && tokens > 0 {
                quiet + 1
            } else {
                0
            };
        }
        brake.release();
        tokens / 16
    };
    let (outcome, chunks): (Outcome, u32) = tokio::join!(deal.run(&prefill, &decode), later);
    outcome.whole(&expected, "an engine that was held");
    // The credit, the chunks that wait for the pump, one in its hands and one in those of the engine.
    let ahead = if config.by_layer {
        CREDIT_BYTES
    } else {
        AHEAD_BYTES
    };
    let most = (ahead >> 23) as u32 + MAX_CHUNKS_WAITING as u32 + 2;
    assert!(most < all);
    assert!(chunks <= most, "{chunks} chunks, at most {most}");
    prefill.clean().await;
    decode.clean().await;
}
