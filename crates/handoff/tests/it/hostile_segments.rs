//! A sender that computes valid checksums but does not keep to the rules.

use std::time::Duration;

use tandem_handoff::codec::Codec;
use tandem_handoff::frame::{Header, Kind, encode_frame};
use tandem_handoff::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCKS_IN_FLIGHT, MAX_CHUNK_TOKENS, MAX_WINDOW_BYTES,
};
use tandem_handoff::message::{Commit, Hello, abort_frame, control_frame, parse};
use tandem_handoff::policy::Quality;
use tandem_handoff::receiver::{Expectation, Receiver, ReceiverError, Step, Terms};
use tandem_handoff::{Contract, Section};

use super::driver::{
    HANDOFF, Manner, Recording, Taker, blocks, contract, expectation, forged, full, mixed, run,
    run_with, split, terms, windowed, with_payload,
};

fn receiver(recording: &Recording) -> Taker {
    let (_, payload) = split(&recording.forward[0]);
    let hello: Hello = parse(Kind::Hello, payload).unwrap();
    Taker::accept(&hello, &recording.expectation(), 0, &recording.terms)
        .unwrap()
        .0
}

/// A receiver that has taken (and applied) the first frames of a recording.
fn after(recording: &Recording, frames: usize) -> Taker {
    let mut taker = receiver(recording);
    for frame in &recording.forward[1..frames] {
        taker.take(frame).unwrap();
        taker.apply();
    }
    taker
}

/// The header is refused for this field, without a payload, and then nothing is accepted.
fn refused(mut receiver: Taker, frame: &[u8], name: &str) {
    let (header, payload) = split(frame);
    let error = receiver.check(&header).expect_err(name);
    assert!(
        matches!(&error, ReceiverError::Field { field, .. } if *field == name),
        "expected `{name}`, got: {error}"
    );
    assert_eq!(receiver.check(&header), Err(ReceiverError::Over));
    assert_eq!(
        receiver.frame(&header, payload).err(),
        Some(ReceiverError::Over)
    );
    assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
}

type Change = fn(&mut Header);

#[test]
fn every_field_of_the_first_segment() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let table: [(&str, Change); 22] = [
        ("handoff", |h| h.handoff ^= 1),
        ("sequence", |h| h.sequence = 0),
        ("sequence", |h| h.sequence = 2),
        ("sequence", |h| h.sequence = u32::MAX),
        ("section", |h| h.section = 2),
        // The window starts at token 1.
        ("block_start", |h| h.section = 1),
        ("codec", |h| h.codec = 4),
        ("codec", |h| h.codec = 255),
        ("key_type", |h| h.key_type = 0),
        ("key_type", |h| h.key_type = 2),
        ("value_type", |h| h.value_type = 2),
        ("block_start", |h| h.block_start = 1),
        ("block_end", |h| h.block_end = 0),
        ("block_end", |h| h.block_end = 6),
        ("layer_start", |h| h.layer_start = 1),
        ("layer_end", |h| h.layer_end = 2),
        ("layer_end", |h| h.layer_end = 4),
        // No layer at all, and so no bytes: without an end if it were let through.
        ("layer_end", |h| {
            (h.layer_end, h.raw_len, h.payload_len) = (0, 0, 0)
        }),
        ("token_start", |h| h.token_start = 1),
        ("token_end", |h| h.token_end = 0),
        ("token_end", |h| h.token_end = 1),
        ("token_end", |h| h.token_end = 3),
    ];
    for (name, change) in table {
        let mut header = split(&sent.forward[1]).0;
        change(&mut header);
        let error = receiver(&sent).check(&header).expect_err(name);
        assert!(
            matches!(&error, ReceiverError::Field { field, .. } if *field == name),
            "expected `{name}`, got: {error}"
        );
    }
}

#[test]
fn lengths_must_be_those_of_the_contract() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let table: [(&str, Change); 4] = [
        ("raw_len", |h| h.raw_len += 1),
        ("raw_len", |h| h.raw_len = 0),
        ("payload_len", |h| h.payload_len -= 1),
        ("payload_len", |h| h.payload_len = 8 << 20),
    ];
    for (name, change) in table {
        let mut header = split(&sent.forward[1]).0;
        change(&mut header);
        let error = receiver(&sent).check(&header).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn blocks_repeated_overlapping_skipped_or_too_early() {
    let sent = run(&mixed(), 6, &[2, 2, 2], true);
    // Each block of this small contract is one segment: 1, 2, 4 full, 3, 5 window, 6 commit.
    assert_eq!(sent.block_starts(), [1, 2, 3, 4, 5]);
    let numbered = |i: usize, n: u32| forged(&sent.forward[i], |h| h.sequence = n);
    let moved = |by: u32| {
        forged(&sent.forward[3], |h| {
            (h.block_start, h.token_start) = (by, by);
        })
    };
    let table = [
        ("block_start", 2, numbered(1, 2)), // repeated
        ("block_start", 2, numbered(4, 2)), // skipped
        ("block_end", 6, numbered(4, 6)),   // a block after the last one
        ("block_start", 3, moved(1)),       // rows before the window
        ("block_start", 3, moved(3)),       // skipped rows of the window
        ("block_start", 3, numbered(5, 3)), // a block of the window
        ("block_start", 4, numbered(3, 4)), // repeated, before
        ("block_end", 6, numbered(5, 6)),   // and after the last one
    ];
    for (i, (name, frames, frame)) in table.into_iter().enumerate() {
        let mut receiver = after(&sent, frames);
        let error = receiver.check(&split(&frame).0).expect_err("accepted");
        let ReceiverError::Field { field, .. } = &error else {
            panic!("case {i}: {error}")
        };
        // A block after the last one is wrong in its start or its end, whichever is seen first.
        let late = name == "block_end" && *field == "block_start";
        assert!(*field == name || late, "case {i}: {error}");
    }
    // Sections do not wait for each other.
    let mut early = after(&sent, 1);
    for (sequence, frame) in [(1, 3), (2, 5), (3, 1)] {
        early.take(&numbered(frame, sequence)).unwrap();
    }
    // Overlap: a block of two tokens where the last of them has arrived already.
    let overlapping = forged(&sent.forward[2], |h| {
        (h.block_start, h.token_start) = (1, 1);
    });
    refused(after(&sent, 2), &overlapping, "block_start");
}

#[test]
fn a_block_in_progress_cannot_change() {
    // Two segments for each block: 768 KiB for each layer.
    let mut contract = contract(2, vec![full(16, 256, 256); 4]);
    contract.layers.push(windowed(1, 1, 1));
    let sent = run(&contract, 48, &[], true);
    assert_eq!(sent.forward.len(), 5);
    let table: [(&str, Change); 6] = [
        // No block in progress has this section or start, so they are of another block, and not its first.
        ("block_start", |h| h.section = 1),
        ("block_start", |h| h.block_start = 1),
        ("block_end", |h| h.block_end = 49),
        ("layer_start", |h| h.layer_start = 0),
        ("layer_start", |h| h.layer_start = 3),
        ("token_start", |h| h.token_start = 1),
    ];
    for (name, change) in table {
        refused(after(&sent, 2), &forged(&sent.forward[2], change), name);
    }
    let repeated = forged(&sent.forward[1], |h| h.sequence = 2);
    refused(after(&sent, 2), &repeated, "layer_start");
    let mut receiver = after(&sent, 2);
    let commit = forged(sent.forward.last().unwrap(), |h| h.sequence = 2);
    let (header, payload) = split(&commit);
    let error = receiver.check(&header).unwrap_err();
    let expected = "`kind`: found Commit, expected the rest of block 0..48";
    assert!(error.to_string().contains(expected), "{error}");
    let error = receiver.frame(&header, payload).unwrap_err();
    assert_eq!(error, ReceiverError::Over);
}

/// A handoff over one connection whose blocks grow together, three at a time: of each layer a segment.
fn run_mixed(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Recording {
    let manner = Manner {
        lazy: true,
        beats: false,
        codec: Codec::Raw,
        mixed: 3,
    };
    run_with(contract, kv_end, blocks(contract, kv_end, chunks), manner)
}

/// What identifies a segment: section, first token of its block, first layer.
fn named_segment(frame: &[u8]) -> (u8, u32, u16) {
    let header = split(frame).0;
    (header.section, header.block_start, header.layer_start)
}

#[test]
fn a_block_in_progress_cannot_change_while_another_is() {
    let sent = run_mixed(&mixed(), 6, &[2, 2, 2]);
    let order: Vec<_> = sent.forward[1..5]
        .iter()
        .map(|f| named_segment(f))
        .collect();
    // The window of four tokens starts at token 2, so the first chunk has no rows of it.
    assert_eq!(order, [(0, 0, 0), (0, 2, 0), (1, 2, 1), (0, 0, 2)]);
    let table: [(&str, Change); 6] = [
        // Those of the full block that began second.
        ("block_end", |h| (h.block_start, h.token_start) = (2, 2)),
        ("block_end", |h| (h.block_end, h.token_end) = (3, 3)),
        ("block_end", |h| h.block_end = 1),
        // A layer that is there already, of this block and of the other one.
        ("layer_start", |h| h.layer_start = 0),
        ("layer_start", |h| {
            (h.block_start, h.token_start) = (2, 2);
            (h.block_end, h.token_end) = (4, 4);
            (h.layer_start, h.layer_end) = (0, 1);
        }),
        // The block of the window is whole; another one starts behind it.
        ("block_start", |h| {
            h.section = 1;
            (h.block_start, h.token_start) = (2, 2);
            (h.block_end, h.token_end) = (4, 4);
        }),
    ];
    for (name, change) in table {
        refused(after(&sent, 4), &forged(&sent.forward[4], change), name);
    }
}

/// A commit waits for both of two blocks on its connection.
#[test]
fn a_commit_while_one_of_two_mixed_blocks_is_incomplete() {
    let sent = run_mixed(&contract(0, vec![full(1, 1, 1); 2]), 4, &[2, 2]);
    let order: Vec<_> = sent.forward[1..5]
        .iter()
        .map(|f| named_segment(f))
        .collect();
    assert_eq!(order, [(0, 0, 0), (0, 2, 0), (0, 0, 1), (0, 2, 1)]);
    let commit = |n: u32| forged(sent.forward.last().unwrap(), |h| h.sequence = n);
    for (taken, sequence, expected) in [
        (3, 3, "the rest of block 0..2"),
        (4, 4, "the rest of block 2..4"),
    ] {
        let mut receiver = after(&sent, taken);
        let error = receiver.check(&split(&commit(sequence)).0).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
    }
    // The second one is whole before the first one.
    let mut receiver = after(&sent, 3);
    let second = forged(&sent.forward[4], |h| h.sequence = 3);
    let error = receiver.take(&second).unwrap_err().to_string();
    assert!(error.contains("the rest of the block at 0"), "{error}");
    assert!(receiver.receiver.next_block().is_none());
}

/// Blocks that are only begun count, in bytes and in number.
#[test]
fn the_credit_is_kept_by_blocks_that_are_mixed() {
    let layers = contract(0, vec![full(1, 1, 1); 2]);
    let count = MAX_BLOCKS_IN_FLIGHT + 1;
    let kv_end = u32::try_from(count).unwrap();
    // 8 bytes for each token, a block each.
    for (credit_bytes, most, told) in [
        (24, 3, "a block without credit"),
        (31, 3, "a block without credit"),
        (u64::MAX, MAX_BLOCKS_IN_FLIGHT, "at most 256 unacknowledged"),
    ] {
        let terms = Terms {
            credit_bytes,
            ..terms()
        };
        let expected = expectation(&layers, kv_end);
        let hello = hello(&layers, kv_end);
        let mut taker = Taker::accept(&hello, &expected, 0, &terms).unwrap().0;
        for start in 0..count {
            let mut header = segment(&layers, Section::Full, 1);
            let start = u32::try_from(start).unwrap();
            header.sequence = start + 1;
            (header.block_start, header.block_end) = (start, start + 1);
            (header.token_start, header.token_end) = (start, start + 1);
            let frame = encode_frame(header, &[1, 2, 3, 4]);
            let result = taker.take(&frame);
            if (start as usize) < most {
                assert_eq!(result, Ok(Step::Wait));
                let bytes = u64::from(start + 1) * 8;
                assert_eq!(taker.receiver.staged_bytes(), bytes);
            } else {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(told), "{error}");
                break;
            }
        }
        assert!(taker.receiver.over().is_some());
        assert_eq!(taker.receiver.staged_bytes(), 8 * most as u64);
    }
}

#[test]
fn token_cuts_continue_where_the_last_one_ended() {
    let contract = contract(0, vec![full(64, 1024, 1024), full(1, 1, 1)]);
    let sent = run(&contract, 35, &[], true);
    let table: [(&str, Change); 5] = [
        ("token_start", |h| h.token_start = 0),
        ("token_start", |h| h.token_start = 9),
        ("layer_start", |h| h.layer_start = 1),
        // Two layers at once, although one of them has begun.
        ("token_start", |h| h.layer_end = 2),
        ("token_end", |h| h.token_end = 36),
    ];
    for (name, change) in table {
        refused(after(&sent, 2), &forged(&sent.forward[2], change), name);
    }
}

#[test]
fn commit_must_be_complete_and_match() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let last = sent.forward.len() - 1;
    let commit: Commit = parse(Kind::Commit, split(&sent.forward[last]).1).unwrap();
    let frame = |sequence: usize, commit: &Commit| {
        let sequence = u32::try_from(sequence).unwrap();
        control_frame(Kind::Commit, HANDOFF, sequence, commit).unwrap()
    };
    let changed = |change: fn(&mut Commit)| {
        let mut commit = commit.clone();
        change(&mut commit);
        frame(last, &commit)
    };
    let table = [
        ("commit.tokens", 1, frame(1, &commit)),
        ("commit.tokens", 2, frame(2, &commit)),
        ("commit.window", 4, frame(4, &commit)),
        ("commit.segments", last, changed(|c| c.segments += 1)),
        ("commit.raw_bytes", last, changed(|c| c.raw_bytes -= 1)),
        ("commit.manifest", last, changed(|c| c.manifest.clear())),
    ];
    for (name, frames, frame) in table {
        let mut receiver = after(&sent, frames);
        let (header, payload) = split(&frame);
        receiver.check(&header).unwrap();
        let error = receiver.frame(&header, payload).expect_err(name);
        assert!(
            matches!(&error, ReceiverError::Field { field, .. } if *field == name),
            "expected `{name}`, got: {error}"
        );
        assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
        let told = error.to_string();
        assert_eq!(receiver.receiver.discredited(), Some(told.as_str()));
    }
}

#[test]
fn what_is_no_receipt_discredits_the_rows_and_other_broken_rules_do_not() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let count = sent.forward.len();
    let number = u32::try_from(count).unwrap();
    let header = Header::control(Kind::Receipt, HANDOFF, number);
    for payload in [&b"nonsense"[..], b"{}", br#"{"top":[]}"#] {
        let mut receiver = after(&sent, count);
        assert_eq!(receiver.receiver.discredited(), None);
        let error = receiver.take(&encode_frame(header, payload)).unwrap_err();
        let told = error.to_string();
        assert_eq!(receiver.receiver.discredited(), Some(told.as_str()));
    }
    let again = forged(sent.forward.last().unwrap(), |h| h.sequence = number);
    let mut receiver = after(&sent, count);
    receiver.take(&again).unwrap_err();
    assert_eq!(receiver.receiver.discredited(), None);
}

#[test]
fn a_replaced_payload_is_found_by_the_manifest() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let mut receiver = receiver(&sent);
    let last = sent.forward.len() - 1;
    for (i, frame) in sent.forward.iter().enumerate().skip(1) {
        let payload = split(frame).1;
        if i == 1 {
            let other = with_payload(frame, &vec![7; payload.len()]);
            receiver.take(&other).unwrap();
        } else if i < last {
            receiver.take(frame).unwrap();
        } else {
            let error = receiver.take(frame).unwrap_err();
            assert!(error.to_string().contains("`commit.manifest`"), "{error}");
        }
        receiver.apply();
    }
    assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
}

#[test]
fn nothing_follows_a_commit_but_a_receipt() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let count = sent.forward.len();
    let number = u32::try_from(count).unwrap();
    for frame in &sent.forward {
        let late = forged(frame, |h| h.sequence = number);
        refused(after(&sent, count), &late, "kind");
    }
    let early = forged(&sent.receipt, |h| h.sequence = number - 1);
    refused(after(&sent, count - 1), &early, "kind");
    let mut receiver = after(&sent, count);
    assert!(matches!(receiver.take(&sent.receipt), Ok(Step::Receipt(_))));
    let second = forged(&sent.receipt, |h| h.sequence = number + 1);
    refused(receiver, &second, "kind");
}

#[test]
fn kinds_that_a_sender_may_not_send() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    // A second hello, and everything that only a receiver sends.
    let mut frames = vec![forged(&sent.forward[0], |h| h.sequence = 1)];
    frames.extend(sent.backward.iter().map(|f| forged(f, |h| h.sequence = 1)));
    for frame in frames {
        refused(receiver(&sent), &frame, "kind");
    }
}

#[test]
fn beats_may_come_between_any_frames() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let beat = |sequence| encode_frame(Header::control(Kind::Beat, HANDOFF, sequence), &[]);
    let mut receiver = receiver(&sent);
    let mut applied = Vec::new();
    // Before each frame a beat, and numbers that count both: the manifest leaves them out.
    for (i, frame) in (0u32..).zip(&sent.forward[1..]) {
        receiver.take(&beat(2 * i + 1)).unwrap();
        receiver
            .take(&forged(frame, |h| h.sequence = 2 * i + 2))
            .unwrap();
        applied.extend(receiver.apply());
    }
    assert_eq!(applied, sent.applied);
    // The last token is computed after the commit.
    let count = u32::try_from(sent.forward.len()).unwrap();
    receiver.take(&beat(2 * count - 1)).unwrap();
    assert!(receiver.receiver.finish(Duration::ZERO).is_some());
    refused(after(&sent, 2), &beat(1), "sequence");
}

#[test]
fn an_abort_ends_it_at_any_time() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    for frames in 1..=sent.forward.len() {
        for sequence in [0, 1, 77] {
            let mut receiver = after(&sent, frames);
            let frame = abort_frame(HANDOFF, sequence, "out of memory");
            let (header, payload) = split(&frame);
            receiver.check(&header).unwrap();
            let error = receiver.frame(&header, payload).unwrap_err();
            assert_eq!(error, ReceiverError::Aborted("out of memory".into()));
            assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
        }
    }
}

#[test]
fn a_receiver_that_aborts_accepts_nothing_more() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let mut receiver = after(&sent, sent.forward.len());
    let (header, payload) = {
        let frame = receiver.receiver.abort("engine failed");
        let (header, payload) = split(&frame);
        (header, payload.to_vec())
    };
    assert_eq!(header.kind, Kind::Abort);
    assert_eq!(payload, br#"{"reason":"engine failed"}"#);
    assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
}

/// A sender that sends whatever it likes is stopped at the first header beyond its credit.
#[test]
fn the_credit_is_kept() {
    let contract = contract(0, vec![full(1, 2, 1), full(1, 1, 2)]);
    let sent = run(&contract, 8, &[1; 8], true);
    assert_eq!(sent.terms.credit_bytes, 36, "three blocks of 12 bytes");
    let mut receiver = receiver(&sent);
    for frame in &sent.forward[1..4] {
        receiver.take(frame).unwrap();
    }
    assert!(receiver.receiver.next_block().is_some());
    // Given out, but not applied yet.
    let staged = receiver.receiver.staged_bytes();
    assert_eq!((staged, receiver.receiver.unapplied()), (36, 1));
    let _ = receiver.receiver.applied();
    receiver.take(&sent.forward[4]).unwrap();
    let (header, _) = split(&sent.forward[5]);
    let error = receiver.check(&header).unwrap_err();
    assert!(error.to_string().contains("without credit"), "{error}");
    assert_eq!(receiver.receiver.staged_bytes(), 36);
    assert!(receiver.receiver.over().is_some());
}

#[test]
fn one_block_may_exceed_the_credit_alone() {
    let sent = run(&mixed(), 8, &[4, 4], true);
    let small = Terms {
        credit_bytes: 1,
        ..terms()
    };
    let hello: Hello = parse(Kind::Hello, split(&sent.forward[0]).1).unwrap();
    let mut taker = Taker::accept(&hello, &sent.expectation(), 0, &small)
        .unwrap()
        .0;
    taker.take(&sent.forward[1]).unwrap();
    assert_eq!(taker.receiver.staged_bytes(), 48);
    let error = taker.take(&sent.forward[2]).unwrap_err();
    assert!(error.to_string().contains("at most 1 bytes"), "{error}");
}

#[test]
fn blocks_in_flight_are_counted() {
    for small in [
        contract(0, vec![full(1, 1, 1)]),
        // Blocks of a window are joined before they are acknowledged.
        contract(9999, vec![windowed(1, 1, 1)]),
    ] {
        in_flight_are_counted(&small);
    }
}

fn in_flight_are_counted(small: &Contract) {
    let count = u32::try_from(MAX_BLOCKS_IN_FLIGHT).unwrap() + 1;
    let sizes = vec![1; MAX_BLOCKS_IN_FLIGHT + 1];
    let sent = run(small, count, &sizes, false);
    let all = Terms {
        credit_bytes: u64::MAX,
        ..terms()
    };
    let hello: Hello = parse(Kind::Hello, split(&sent.forward[0]).1).unwrap();
    let mut taker = Taker::accept(&hello, &sent.expectation(), 0, &all)
        .unwrap()
        .0;
    for frame in &sent.forward[1..=MAX_BLOCKS_IN_FLIGHT] {
        taker.take(frame).unwrap();
    }
    let error = taker
        .take(&sent.forward[MAX_BLOCKS_IN_FLIGHT + 1])
        .unwrap_err();
    assert!(
        // Of a window that is joined only the blocks are left, and no bytes.
        error.to_string().contains("at most 256 unacknowledged"),
        "{error}"
    );
}

/// Lossless codecs always may be used; lossy ones up to what the request allows.
#[test]
fn codecs_beyond_the_ceiling_are_refused() {
    let contract = contract(0, vec![full(1, 32, 32)]);
    for codec in Codec::ALL {
        let manner = Manner {
            lazy: true,
            beats: false,
            codec,
            mixed: 0,
        };
        let mut rows = blocks(&contract, 4, &[4]);
        // Nothing infinite: such rows travel raw.
        for plane in &mut rows[0].planes {
            plane.data.fill(0x11);
        }
        let sent = run_with(&contract, 4, rows, manner);
        assert_eq!(split(&sent.forward[1]).0.codec, codec.wire());
        for quality in Quality::ALL {
            let expected = Expectation {
                quality,
                ..sent.expectation()
            };
            let hello: Hello = parse(Kind::Hello, split(&sent.forward[0]).1).unwrap();
            let mut taker = Taker::accept(&hello, &expected, 0, &sent.terms).unwrap().0;
            let result = taker.check(&split(&sent.forward[1]).0);
            let allowed = match quality {
                Quality::Lossless => codec.is_lossless(),
                Quality::Q8 => true,
            };
            assert_eq!(result.is_ok(), allowed, "{codec} under {quality}");
            if let Err(e) = result {
                assert!(e.to_string().contains("`codec`"), "{e}");
            }
        }
    }
}

/// Payloads of a codec whose length varies: within its bounds, used up to the last byte.
#[test]
fn encoded_payloads_of_the_wrong_length() {
    let contract = contract(0, vec![full(1, 64, 64)]);
    let mut rows = blocks(&contract, 4, &[4]);
    for plane in &mut rows[0].planes {
        plane.data.fill(0);
    }
    let manner = Manner {
        lazy: true,
        beats: false,
        codec: Codec::Plane,
        mixed: 0,
    };
    let sent = run_with(&contract, 4, rows, manner);
    let good = split(&sent.forward[1]).1;
    let longer = [good, &[0]].concat();
    let frame = with_payload(&sent.forward[1], &longer);
    let mut taker = receiver(&sent);
    let error = taker.take(&frame).unwrap_err();
    assert!(error.to_string().contains("`payload_len`"), "{error}");
    let frame = with_payload(&sent.forward[1], &good[..good.len() - 1]);
    let mut taker = receiver(&sent);
    let error = taker.take(&frame).unwrap_err();
    assert!(matches!(error, ReceiverError::Codec(_)), "{error}");
    // Two runs of 256 elements: at least 262 bytes each, at most 517.
    for (length, fits) in [(523, false), (524, true), (1034, true), (1035, false)] {
        let mut header = split(&sent.forward[1]).0;
        header.payload_len = length;
        let result = receiver(&sent).check(&header);
        assert_eq!(result.is_ok(), fits, "{length}: {result:?}");
    }
}

/// A segment header with the lengths that the contract implies.
fn segment(contract: &Contract, section: Section, end: u32) -> Header {
    let layers = contract.section_layers(section);
    let mut header = Header::control(Kind::Segment, HANDOFF, 1);
    header.section = section.wire();
    (header.key_type, header.value_type) = (1, 1);
    (header.block_end, header.token_end) = (end, end.min(1));
    header.layer_end = 1;
    let bytes = contract.token_bytes(&layers[..1]);
    header.raw_len = u32::try_from(bytes).unwrap();
    header.payload_len = header.raw_len;
    header
}

#[test]
fn blocks_beyond_the_limits_are_refused_by_their_first_header() {
    let accept = |contract: &Contract, kv_end: u32| {
        let hello = hello(contract, kv_end);
        Taker::accept(&hello, &expectation(contract, kv_end), 0, &terms())
            .unwrap()
            .0
    };
    for (small, section) in [
        (contract(0, vec![full(1, 1, 1)]), Section::Full),
        (contract(99_999, vec![windowed(1, 1, 1)]), Section::Window),
    ] {
        let kv_end = MAX_CHUNK_TOKENS + 1;
        let header = segment(&small, section, MAX_CHUNK_TOKENS);
        accept(&small, kv_end).check(&header).unwrap();
        let header = segment(&small, section, kv_end);
        let error = accept(&small, kv_end).check(&header).unwrap_err();
        assert!(error.to_string().contains("`block_end`"), "{error}");
    }
    // 4 MiB for each token: 4 of them are the most of a block, 256 of a window.
    let large = |window, spec| contract(window, vec![spec]);
    let (full, windowed) = (full(1024, 1024, 1024), windowed(1024, 1024, 1024));
    let windows = large(9999, windowed);
    let token = windows.token_bytes(&[0]);
    let most = u32::try_from(MAX_WINDOW_BYTES / token).unwrap();
    for (kv_end, fits) in [(most, true), (most + 1, false)] {
        let expected = expectation(&windows, kv_end);
        let checked = Receiver::check_hello(&hello(&windows, kv_end), &expected);
        assert_eq!(checked.is_ok(), fits);
        if let Err(refusal) = checked {
            let message = "a window of 1077936128 bytes, limit 1073741824";
            assert!(refusal.message.contains(message), "{}", refusal.message);
        }
    }
    for (contract, section) in [(large(0, full), Section::Full), (windows, Section::Window)] {
        let most = u32::try_from(MAX_BLOCK_BYTES / token).unwrap();
        let header = segment(&contract, section, most);
        accept(&contract, most).check(&header).unwrap();
        let header = segment(&contract, section, most + 1);
        let error = accept(&contract, most + 1).check(&header).unwrap_err();
        assert!(error.to_string().contains("`block_end`"), "{error}");
    }
}

fn hello(contract: &Contract, kv_end: u32) -> Hello {
    let digest = tandem_handoff::digest::token_digest(&super::driver::prompt(kv_end));
    Hello {
        ticket: String::new(),
        contract: contract.clone(),
        kv_end,
        continuation: Vec::new(),
        token_digest: blake3::Hash::from(digest).to_hex().to_string(),
        step_bytes: 0,
        exact_end: 0,
    }
}

#[test]
fn unreadable_control_payloads() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    let last = sent.forward.len() - 1;
    let good = std::str::from_utf8(split(&sent.forward[last]).1).unwrap();
    let payloads = [
        String::new(),
        "{".into(),
        "null".into(),
        format!("{good} x"),
        good.replace("\"segments\"", "\"other\""),
        good.replace('{', "{\"other\":1,"),
        good.replace('{', "{\"segments\":1,"),
        good.replace("\"segments\":", "\"segments\":-"),
        good.replace("\"segments\":", "\"segments\":NaN"),
        good.replace("\"segments\":", "\"segments\":1e999"),
        good.replace("\"segments\":", "\"segments\":99999999999"),
        "[".repeat(100_000),
    ];
    for payload in payloads {
        let frame = with_payload(&sent.forward[last], payload.as_bytes());
        let mut receiver = after(&sent, last);
        let (header, payload) = split(&frame);
        let error = receiver.frame(&header, payload).unwrap_err();
        assert!(matches!(error, ReceiverError::Message(_)), "{error}");
        assert_eq!(receiver.receiver.finish(Duration::ZERO), None);
    }
    let mut receiver = receiver(&sent);
    let frame = encode_frame(Header::control(Kind::Abort, HANDOFF, 1), b"{}");
    let (header, payload) = split(&frame);
    let error = receiver.frame(&header, payload).unwrap_err();
    assert!(error.to_string().contains("missing field `reason`"));
}
