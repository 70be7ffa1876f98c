//! The sending end: credit, order of what the caller gives it, and a peer that misbehaves.

use std::ops::Range;

use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::frame::{FrameError, Header, Kind, encode_frame};
use tandem_handoff::limits::{
    AHEAD_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS_IN_FLIGHT, MAX_CHUNK_TOKENS, MAX_CONTINUATION,
    MAX_CREDIT_BYTES, MAX_STRING, MAX_TOKENS,
};
use tandem_handoff::message::{
    Abort, Accept, Committed, Hello, RefusalCode, Refuse, abort_frame, control_frame, parse,
};
use tandem_handoff::sender::{Offer, Outbound, Sender, SenderError, SenderState};
use tandem_handoff::{Contract, KvBlock, PerSection, Section};

use super::driver::{
    HANDOFF, SESSION, block, contract, forged, full, have_page, mixed, offer, receipt, run, send,
    split, windowed,
};

/// A sender with one connection.
#[derive(Debug)]
struct Side {
    sender: Sender,
    out: Outbound,
}

impl Side {
    fn block(&mut self, block: &KvBlock) -> Result<Vec<Vec<u8>>, SenderError> {
        send(&mut self.sender, &mut self.out, block, Codec::Raw)
    }

    fn commit(&mut self) -> Result<Vec<u8>, SenderError> {
        let commit = self.sender.commit()?;
        Ok(self.out.control(&commit))
    }
}

fn new(contract: &Contract, kv_end: u32) -> Side {
    let (sender, _) = Sender::new(offer(contract, kv_end)).unwrap();
    Side {
        out: sender.outbound(),
        sender,
    }
}

/// What a receiver with this much credit says that holds nothing yet.
fn terms(credit_bytes: u64) -> Accept {
    Accept {
        session: SESSION.into(),
        credit_bytes,
        have_tokens: 0,
        have_page: None,
        have_window: 0,
    }
}

fn said(accept: &Accept) -> Vec<u8> {
    control_frame(Kind::Accept, HANDOFF, 0, accept).unwrap()
}

/// Credit for this many tokens of the full layers of `mixed()`.
fn accept(tokens: u64) -> Vec<u8> {
    said(&terms(tokens * TOKEN))
}

/// Bytes of a token of the full layers of `mixed()`.
const TOKEN: u64 = 12;

fn ack(sequence: u32, section: Section, tokens: Range<u32>) -> Vec<u8> {
    let mut header = Header::control(Kind::Ack, HANDOFF, sequence);
    header.section = section.wire();
    (header.token_start, header.token_end) = (tokens.start, tokens.end);
    encode_frame(header, &[])
}

fn committed(sequence: u32) -> Vec<u8> {
    let committed = Committed { apply_ms: 0 };
    control_frame(Kind::Committed, HANDOFF, sequence, &committed).unwrap()
}

fn give(side: &mut Side, frame: &[u8]) -> Result<(), SenderError> {
    let (header, payload) = split(frame);
    side.sender.receive(&header, payload)
}

/// A sender of `mixed()` with KV for 8 tokens that has been accepted with credit for this many.
fn streaming(credit: u64) -> Side {
    let mut side = new(&mixed(), 8);
    give(&mut side, &accept(credit)).unwrap();
    assert_eq!(side.sender.state(), SenderState::Streaming);
    side
}

fn full_block(tokens: Range<u32>) -> KvBlock {
    block(&mixed(), Section::Full, tokens)
}

fn window_block(tokens: Range<u32>) -> KvBlock {
    block(&mixed(), Section::Window, tokens)
}

/// The frame is refused and the handoff is over: nothing goes on from there.
fn fails(mut side: Side, frame: &[u8], expected: &str) {
    let error = give(&mut side, frame).expect_err(expected);
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(side.sender.state(), SenderState::Failed);
    assert!(!side.sender.may_send(1));
    assert!(side.block(&full_block(0..1)).is_err());
    assert!(side.commit().is_err());
    assert!(side.sender.reconnect().is_err());
    for frame in [accept(4), committed(1)] {
        let error = give(&mut side, &frame).unwrap_err();
        assert!(error.to_string().contains("the handoff is over"));
    }
}

#[test]
fn credit_is_used_up_and_given_back() {
    let mut side = streaming(5);
    // Two tokens at a time: 4 of 5 tokens are used, and no block of two fits.
    for start in [0, 2, 4, 6] {
        if start >= 4 {
            assert!(!side.sender.may_send(2 * TOKEN));
            assert!(side.sender.may_send(TOKEN));
            let error = side.block(&full_block(start..start + 2)).unwrap_err();
            assert!(matches!(error, SenderError::NotAllowed(_)), "{error}");
            let ack = ack(start / 2 - 1, Section::Full, start - 4..start - 2);
            give(&mut side, &ack).unwrap();
        }
        assert!(side.sender.may_send(2 * TOKEN));
        side.block(&full_block(start..start + 2)).unwrap();
    }
}

#[test]
fn one_block_may_exceed_the_credit_alone() {
    let mut side = streaming(1);
    side.block(&full_block(0..5)).unwrap();
    assert!(!side.sender.may_send(1));
    give(&mut side, &ack(1, Section::Full, 0..5)).unwrap();
    side.block(&full_block(5..6)).unwrap();
    assert!(!side.sender.may_send(1));
}

#[test]
fn credit_is_bounded_by_our_own_limits() {
    let mut side = streaming(u64::MAX / TOKEN);
    assert!(side.sender.may_send(u64::MAX), "a first block");
    side.block(&full_block(0..1)).unwrap();
    assert!(side.sender.may_send(AHEAD_BYTES - TOKEN));
    assert!(!side.sender.may_send(AHEAD_BYTES - TOKEN + 1));
    assert!(side.sender.may_stream(MAX_CREDIT_BYTES - TOKEN));
    assert!(!side.sender.may_stream(MAX_CREDIT_BYTES - TOKEN + 1));
    fails(new(&mixed(), 8), &accept(0), "`credit_bytes` is zero");
    let small = contract(0, vec![full(1, 1, 1)]);
    let count = u32::try_from(MAX_BLOCKS_IN_FLIGHT).unwrap();
    let mut side = new(&small, count + 1);
    give(&mut side, &accept(u64::MAX / TOKEN)).unwrap();
    for start in 0..count {
        side.block(&block(&small, Section::Full, start..start + 1))
            .unwrap();
    }
    assert!(!side.sender.may_send(1));
}

#[test]
fn nothing_is_sent_before_the_accept() {
    let mut side = new(&mixed(), 8);
    assert!(!side.sender.may_send(1));
    for error in [
        side.block(&full_block(0..1)).unwrap_err(),
        side.commit().unwrap_err(),
        side.sender.reconnect().unwrap_err(),
        side.sender.receipt(&receipt()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("AwaitAccept"), "{error}");
    }
    assert_eq!(side.sender.state(), SenderState::AwaitAccept);
    assert_eq!(side.sender.raw_bytes(), 0);
}

#[test]
fn a_receiver_beats_before_its_accept_and_that_does_not_count() {
    let beat = |sequence| encode_frame(Header::control(Kind::Beat, HANDOFF, sequence), &[]);
    let mut side = new(&mixed(), 8);
    for _ in 0..3 {
        give(&mut side, &beat(0)).unwrap();
        assert_eq!(side.sender.state(), SenderState::AwaitAccept);
    }
    give(&mut side, &accept(100)).unwrap();
    // From then on it does.
    give(&mut side, &beat(1)).unwrap();
    give(&mut side, &beat(2)).unwrap();
    fails(side, &beat(2), "out of sequence");
    fails(new(&mixed(), 8), &beat(1), "out of sequence");
}

#[test]
fn accepts_that_are_out_of_bounds() {
    type Change = fn(&mut Accept);
    let table: [(&str, Change); 8] = [
        ("`credit_bytes` is zero", |a| a.credit_bytes = 0),
        ("`session` is empty", |a| a.session.clear()),
        ("`session` is empty or too long", |a| {
            a.session = "x".repeat(MAX_STRING + 1)
        }),
        ("`have_tokens` lies beyond", |a| a.have_tokens = 151),
        ("`have_page`", |a| a.have_tokens = 128),
        ("`have_page`", |a| {
            (a.have_tokens, a.have_page) = (128, Some("00".repeat(32)));
        }),
        ("`have_page`", |a| {
            // The page before the last one, and one where there is none.
            (a.have_tokens, a.have_page) = (128, have_page(&mixed(), 150, 64));
        }),
        ("`have_page`", |a| {
            (a.have_tokens, a.have_page) = (63, have_page(&mixed(), 150, 64));
        }),
    ];
    for (expected, change) in table {
        let mut accept = terms(100);
        change(&mut accept);
        fails(new(&mixed(), 150), &said(&accept), expected);
    }
    // Only tokens 146 to 149 have rows of the window, and only where there is one.
    let full_only = contract(0, vec![full(1, 1, 1)]);
    for (contract, have_window) in [
        (&mixed(), 1),
        (&mixed(), 146),
        (&mixed(), 151),
        (&mixed(), u32::MAX),
        (&full_only, 150),
    ] {
        let window = Accept {
            have_window,
            ..terms(100)
        };
        let outside = "`have_window` lies outside of the window";
        fails(new(contract, 150), &said(&window), outside);
    }
}

/// What the receiver holds is not sent, and it must be the same pages.
#[test]
fn what_is_held_is_left_out() {
    for have in [0, 1, 63, 64, 65, 128, 149, 150] {
        let mut side = new(&mixed(), 150);
        let accept = Accept {
            have_tokens: have,
            have_page: have_page(&mixed(), 150, have),
            // The window may come before the rest, too.
            have_window: [0, 147, 150][have as usize % 3],
            ..terms(10_000)
        };
        give(&mut side, &said(&accept)).unwrap();
        let window = accept.have_window.max(146);
        let there = PerSection { full: have, window };
        assert_eq!(side.sender.next(), there);
        assert_eq!(side.sender.acknowledged(), there);
        assert_eq!(side.sender.accepted(), &accept);
        for (section, have) in [(Section::Window, window), (Section::Full, have)] {
            if have < 150 {
                assert!(!side.sender.is_sent(section));
                assert!(matches!(side.commit(), Err(SenderError::Gap { .. })));
                side.block(&block(&mixed(), section, have..150)).unwrap();
            }
            assert!(side.sender.is_sent(section));
        }
        side.commit().unwrap();
    }
}

#[test]
fn blocks_that_do_not_continue() {
    let mut side = streaming(100);
    side.block(&full_block(0..3)).unwrap();
    for start in [0, 2, 4] {
        let error = side.block(&full_block(start..6)).unwrap_err();
        let expected = SenderError::Gap {
            found: start,
            expected: 3,
        };
        assert_eq!(error, expected);
    }
    let not_allowed = [
        (full_block(3..3), "an empty block"),
        (full_block(3..9), "ends at token 9 of 8"),
        (window_block(4..9), "ends at token 9 of 8"),
    ];
    for (block, expected) in not_allowed {
        let error = side.block(&block).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A refused call changes nothing.
    side.block(&full_block(3..8)).unwrap();
    side.block(&window_block(4..6)).unwrap();
    for start in [3, 4, 5, 7] {
        let error = side.block(&window_block(start..8)).unwrap_err();
        assert!(matches!(error, SenderError::Gap { expected: 6, .. }));
    }
    side.block(&window_block(6..8)).unwrap();
    let error = side.block(&window_block(4..8)).unwrap_err();
    assert!(matches!(error, SenderError::Gap { expected: 8, .. }));
}

#[test]
fn blocks_that_do_not_fit_the_contract() {
    type Change = fn(&mut KvBlock);
    let table: [(&str, Change); 6] = [
        ("2 planes, expected 4", |b| b.planes.truncate(2)),
        ("0 planes, expected 4", |b| b.planes.clear()),
        ("expected layer 0 Key", |b| b.planes.swap(0, 1)),
        ("expected layer 2 Key", |b| b.planes[2].layer = 1),
        ("layer 0 Value has 3 bytes", |b| {
            b.planes[1].data.truncate(3)
        }),
        ("start after end", |b| b.tokens = Range { start: 2, end: 0 }),
    ];
    for (expected, change) in table {
        let mut block = full_block(0..2);
        change(&mut block);
        let error = streaming(100).block(&block).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A section without layers has no blocks.
    let only_window = contract(2, vec![windowed(1, 1, 1)]);
    let mut side = new(&only_window, 8);
    give(&mut side, &accept(100)).unwrap();
    let empty = block(&only_window, Section::Full, 0..8);
    let error = side.block(&empty).unwrap_err();
    assert!(error.to_string().contains("an empty block"), "{error}");
}

/// What [`Sender::open_streamed`] refuses changes nothing, as with whole blocks.
#[test]
fn growing_blocks_that_may_not_be_opened() {
    let mut side = streaming(5);
    let mut refused = |section, tokens: Range<u32>, expected: &str| {
        let before = (side.sender.next(), side.sender.in_flight());
        let error = side.sender.open_streamed(section, tokens).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!((side.sender.next(), side.sender.in_flight()), before);
    };
    refused(Section::Full, 1..2, "starts at token 1, expected 0");
    refused(Section::Window, 0..2, "starts at token 0, expected 4");
    refused(Section::Full, 0..0, "an empty block");
    refused(Section::Full, Range { start: 2, end: 0 }, "an empty block");
    refused(Section::Full, 0..9, "ends at token 9 of 8");
    let cutter = side.sender.open_streamed(Section::Full, 0..3).unwrap();
    assert!(cutter.left() > 0);
    assert_eq!(side.sender.next().full, 3);
    // 36 of 60 bytes are on their way.
    let error = side.sender.open_streamed(Section::Full, 3..6).unwrap_err();
    assert!(error.to_string().contains("1 unacknowledged"), "{error}");
    side.sender.open_streamed(Section::Full, 3..5).unwrap();
    // A section without layers, and the limits.
    let one = contract(2, vec![windowed(1, 1, 1)]);
    let small = contract(0, vec![full(1, 1, 1)]);
    let large = contract(0, vec![full(1024, 1024, 1024)]);
    for (contract, tokens, expected) in [
        (one, 8, "an empty block"),
        (small, MAX_CHUNK_TOKENS + 1, "16385 tokens, limit 16384"),
        (large, 5, "20971520 bytes, limit 16777216"),
    ] {
        let mut side = new(&contract, tokens);
        let error = side
            .sender
            .open_streamed(Section::Full, 0..tokens)
            .unwrap_err();
        assert!(error.to_string().contains("AwaitAccept"), "{error}");
        give(&mut side, &accept(100)).unwrap();
        let error = side
            .sender
            .open_streamed(Section::Full, 0..tokens)
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// A segment is cut as soon as its planes are there, and never before.
#[test]
fn planes_come_one_by_one() {
    let mut side = streaming(100);
    let block = full_block(0..2);
    let mut cutter = side.sender.open_streamed(Section::Full, 0..2).unwrap();
    let mut encoder = Encoder::new().unwrap();
    let mut cut = Vec::new();
    for count in 0..=4 {
        let planes = &block.planes[..count];
        while let Some(segment) = cutter.next(planes, Codec::Raw, &mut encoder).unwrap() {
            cut.push((count, segment.header.layer_start, segment.parts().concat()));
        }
    }
    let rows = |at: usize| [0, 1].map(|k| block.planes[at + k].data.to_vec()).concat();
    assert_eq!(cut, [(2, 0, rows(0)), (4, 2, rows(2))]);
    assert_eq!(cutter.left(), 0);
    let error = side.sender.commit().unwrap_err();
    assert!(matches!(error, SenderError::Gap { .. }));
    side.sender.close(block.bytes());
    assert_eq!(side.sender.raw_bytes(), block.bytes());
}

/// What is given to a cutter is looked at, whether it was opened with planes or without.
#[test]
fn wrong_planes_are_not_cut() {
    type Change = fn(&mut KvBlock);
    let table: [(&str, Change); 6] = [
        ("expected layer 0 Key", |b| b.planes.swap(0, 1)),
        ("expected layer 0 Value", |b| b.planes[1].layer = 2),
        ("expected layer 0 Key", |b| *b = window_block(4..8)),
        ("layer 0 Key has 7 bytes", |b| b.planes[0].data.truncate(7)),
        ("layer 0 Key has 0 bytes", |b| b.planes[0].data.clear()),
        ("layer 0 Value has 5 bytes", |b| b.planes[1].data.push(0)),
    ];
    for (expected, change) in table {
        for codec in Codec::ALL {
            let whole = streaming(100).sender.open(&full_block(0..2)).unwrap();
            let mut side = streaming(100);
            let streamed = side.sender.open_streamed(Section::Full, 0..2).unwrap();
            for mut cutter in [whole, streamed] {
                let mut other = full_block(0..2);
                change(&mut other);
                let mut encoder = Encoder::new().unwrap();
                let cut = cutter.next(&other.planes, codec, &mut encoder);
                // A window of one layer has fewer planes than all of a full block.
                if let Ok(None) = cut {
                    assert!(other.planes.len() < 4);
                    continue;
                }
                let error = cut.unwrap_err().to_string();
                let told = format!("KV block for tokens 0..2: {expected}");
                assert_eq!(error, told);
            }
        }
    }
}

#[test]
fn limits_of_the_own_side() {
    let small = contract(0, vec![full(1, 1, 1)]);
    let kv_end = MAX_CHUNK_TOKENS + 1;
    let mut side = new(&small, kv_end);
    give(&mut side, &accept(100)).unwrap();
    let large = block(&small, Section::Full, 0..kv_end);
    let error = side.block(&large).unwrap_err();
    assert!(error.to_string().contains("16385 tokens, limit 16384"));
    side.block(&block(&small, Section::Full, 0..MAX_CHUNK_TOKENS))
        .unwrap();
    // 4 MiB for each token of the window.
    let large = contract(257, vec![windowed(1024, 1024, 1024)]);
    assert!(Sender::new(super::driver::offer(&large, 256)).is_ok());
    let error = Sender::new(super::driver::offer(&large, 257)).unwrap_err();
    let expected = "a window of 1077936128 bytes, limit 1073741824";
    assert!(error.to_string().contains(expected), "{error}");
    let tokens = vec![0; MAX_TOKENS as usize + 1];
    let offer = |tokens: &[u32], continuation, kv_end| Offer {
        tokens: tokens.to_vec(),
        continuation,
        kv_end,
        ..offer(&small, 0)
    };
    for (tokens, kv_end) in [(&tokens[..5], 6), (&tokens, MAX_TOKENS + 1)] {
        let error = Sender::new(offer(tokens, 0, kv_end)).unwrap_err();
        assert!(error.to_string().contains(&format!("kv_end {kv_end}")));
    }
    Sender::new(offer(&tokens, 0, MAX_TOKENS)).unwrap();
    let most = u32::try_from(MAX_CONTINUATION).unwrap();
    for (tokens, continuation) in [(&tokens[..5], 6), (&tokens, most + 1)] {
        let error = Sender::new(offer(tokens, continuation, 5)).unwrap_err();
        let expected = format!("a continuation of {continuation}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// The longest continuation fits a hello.
#[test]
fn the_longest_continuation_is_named() {
    let most = u32::try_from(MAX_CONTINUATION).unwrap();
    let mut tokens = vec![7; 3];
    tokens.extend((0..most).map(|i| u32::MAX - i));
    let offer = Offer {
        kv_end: 3 + most,
        continuation: most,
        tokens,
        ..offer(&mixed(), 0)
    };
    let (_, hello) = Sender::new(offer.clone()).unwrap();
    let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    assert_eq!(hello.continuation, offer.tokens[3..]);
}

#[test]
fn a_block_has_at_most_so_many_bytes() {
    // 4 MiB for each token.
    let large = contract(0, vec![full(1024, 1024, 1024)]);
    let most = u32::try_from(MAX_BLOCK_BYTES / large.token_bytes(&[0])).unwrap();
    let mut side = new(&large, most + 1);
    give(&mut side, &accept(1)).unwrap();
    let error = side
        .block(&block(&large, Section::Full, 0..most + 1))
        .unwrap_err();
    assert!(
        error.to_string().contains("bytes, limit 16777216"),
        "{error}"
    );
    side.sender
        .open(&block(&large, Section::Full, 0..most))
        .unwrap();
}

#[test]
fn commit_only_when_complete_and_once() {
    let mut side = streaming(100);
    let gap = SenderError::Gap {
        found: 8,
        expected: 0,
    };
    assert_eq!(side.commit(), Err(gap));
    side.block(&full_block(0..8)).unwrap();
    let gap = SenderError::Gap {
        found: 8,
        expected: 4,
    };
    assert_eq!(side.commit(), Err(gap));
    side.block(&window_block(4..8)).unwrap();
    let header = split(&side.commit().unwrap()).0;
    assert_eq!((header.kind, header.sequence), (Kind::Commit, 3));
    assert_eq!(side.sender.state(), SenderState::Committing);
    assert!(!side.sender.may_send(1));
    let error = side.commit().unwrap_err();
    assert!(error.to_string().contains("Committing"), "{error}");
}

/// Their payload is not even read.
#[test]
fn frames_that_no_receiver_sends() {
    for kind in [Kind::Hello, Kind::Segment, Kind::Commit, Kind::Receipt] {
        let mut header = Header::control(kind, HANDOFF, 1);
        header.payload_len = kind.max_payload();
        let mut side = streaming(100);
        let error = side.sender.receive(&header, &[]).unwrap_err();
        assert!(
            error.to_string().contains("no receiver sends it"),
            "{error}"
        );
        assert_eq!(side.sender.state(), SenderState::Failed);
    }
}

#[test]
fn acknowledgements_out_of_order_or_for_nothing() {
    let with_two = || {
        let mut side = streaming(100);
        side.block(&full_block(0..3)).unwrap();
        side.block(&full_block(3..5)).unwrap();
        side
    };
    let with_window = || {
        let mut side = with_two();
        side.block(&window_block(4..6)).unwrap();
        side.block(&window_block(6..8)).unwrap();
        side
    };
    // Each section has an order of its own.
    let mut any_order = with_window();
    let acks = [
        (Section::Window, 4..6),
        (Section::Full, 0..3),
        (Section::Window, 6..8),
        (Section::Full, 3..5),
    ];
    for (number, (section, tokens)) in (1..).zip(acks) {
        give(&mut any_order, &ack(number, section, tokens.clone())).unwrap();
        assert_eq!(any_order.sender.acknowledged()[section], tokens.end);
    }
    assert_eq!(any_order.sender.in_flight(), 0);
    let oldest = "does not match the oldest unacknowledged block";
    let table = [
        (streaming(100), ack(1, Section::Full, 0..3), oldest),
        (with_two(), ack(1, Section::Full, 3..5), oldest),
        (with_two(), ack(1, Section::Full, 5..8), oldest),
        (with_two(), ack(1, Section::Full, 1..3), oldest),
        (with_two(), ack(1, Section::Window, 0..3), oldest),
        (with_window(), ack(1, Section::Window, 6..8), oldest),
        (with_window(), ack(1, Section::Window, 0..3), oldest),
        (with_two(), ack(0, Section::Full, 0..3), "out of sequence"),
        (with_two(), ack(2, Section::Full, 0..3), "out of sequence"),
        (
            new(&mixed(), 8),
            ack(0, Section::Full, 0..3),
            "not allowed in this state",
        ),
    ];
    for (side, frame, expected) in table {
        fails(side, &frame, expected);
    }
    let mut twice = with_two();
    give(&mut twice, &ack(1, Section::Full, 0..3)).unwrap();
    fails(twice, &ack(2, Section::Full, 0..3), oldest);
    let mut bad_section = split(&ack(1, Section::Full, 0..3)).0;
    bad_section.section = 2;
    fails(with_two(), &encode_frame(bad_section, &[]), oldest);
}

#[test]
fn committed_too_early_or_twice() {
    fails(new(&mixed(), 8), &committed(0), "not allowed in this state");
    fails(streaming(100), &committed(1), "not allowed in this state");
    let committing = || {
        let mut side = streaming(100);
        side.block(&full_block(0..8)).unwrap();
        side.block(&window_block(4..8)).unwrap();
        side.commit().unwrap();
        side
    };
    fails(committing(), &committed(1), "not allowed in this state");
    let mut side = committing();
    give(&mut side, &ack(1, Section::Full, 0..8)).unwrap();
    give(&mut side, &ack(2, Section::Window, 4..8)).unwrap();
    give(&mut side, &committed(3)).unwrap();
    assert_eq!(side.sender.state(), SenderState::Committed);
    let error = give(&mut side, &committed(4)).unwrap_err();
    assert!(error.to_string().contains("the handoff is over"), "{error}");
    assert_eq!(side.sender.state(), SenderState::Committed);
}

#[test]
fn a_refusal_carries_its_reason() {
    let refuse = Refuse {
        code: RefusalCode::Ticket,
        message: "the ticket has been used".into(),
        differences: Vec::new(),
    };
    let frame = control_frame(Kind::Refuse, HANDOFF, 0, &refuse).unwrap();
    let error = give(&mut new(&mixed(), 8), &frame).unwrap_err();
    assert_eq!(error, SenderError::Refused(refuse));
    fails(new(&mixed(), 8), &frame, "the ticket has been used");
    // A hello that could not be read has no handoff to name.
    let nameless = forged(&frame, |h| h.handoff = 0);
    fails(new(&mixed(), 8), &nameless, "the ticket has been used");
    // Only before any KV moved.
    fails(streaming(100), &frame, "not allowed in this state");
}

#[test]
fn an_abort_ends_it_at_any_time() {
    for sequence in [0, 1, 99] {
        let frame = abort_frame(HANDOFF, sequence, "engine failed");
        let expected = "aborted by the receiver: engine failed";
        fails(new(&mixed(), 8), &frame, expected);
        fails(streaming(100), &frame, expected);
    }
    let mut side = streaming(100);
    side.block(&full_block(0..8)).unwrap();
    let frame = side.sender.abort("prefill was cancelled");
    let (header, payload) = split(&frame);
    assert_eq!(header.kind, Kind::Abort);
    let abort: Abort = parse(Kind::Abort, payload).unwrap();
    assert_eq!(abort.reason, "prefill was cancelled");
    assert_eq!(side.sender.state(), SenderState::Failed);
}

#[test]
fn long_reasons_are_shortened() {
    let frame = abort_frame(HANDOFF, 1, &"\u{1F980}".repeat(100_000));
    let abort: Abort = parse(Kind::Abort, split(&frame).1).unwrap();
    assert_eq!(abort.reason, "\u{1F980}".repeat(MAX_STRING / 4));
}

#[test]
fn frames_that_a_receiver_may_not_send() {
    let sent = run(&mixed(), 5, &[2, 3], true);
    for frame in sent.forward.iter().chain([&sent.receipt]) {
        fails(new(&mixed(), 8), frame, "");
        fails(streaming(100), frame, "");
    }
    fails(streaming(100), &accept(100), "out of sequence");
    let second = control_frame(Kind::Accept, HANDOFF, 1, &terms(100)).unwrap();
    fails(streaming(100), &second, "not allowed in this state");
    let mut header = split(&accept(100)).0;
    header.handoff ^= 1;
    let other = encode_frame(header, split(&accept(100)).1);
    fails(new(&mixed(), 8), &other, "handoff id differs");
}

#[test]
fn damaged_payloads_are_refused() {
    let frame = accept(100);
    let (header, payload) = split(&frame);
    for at in 0..payload.len() {
        let mut damaged = payload.to_vec();
        damaged[at] ^= 1;
        let mut side = new(&mixed(), 8);
        let error = side.sender.receive(&header, &damaged).unwrap_err();
        assert_eq!(error, SenderError::Frame(FrameError::PayloadChecksum));
        // The connection is of no use any more, the handoff may be.
        assert_eq!(side.sender.state(), SenderState::AwaitAccept);
        assert!(!side.sender.may_send(1));
    }
}

/// An accept after a break, from a receiver that has these tokens and so much of the window.
fn resumed(have_tokens: u32, have_window: u32) -> Vec<u8> {
    said(&Accept {
        session: "fe".repeat(16),
        have_tokens,
        have_window,
        ..terms(100 * TOKEN)
    })
}

#[test]
fn a_new_connection_goes_on_where_the_receiver_is() {
    let mut side = streaming(100);
    side.block(&full_block(0..3)).unwrap();
    side.block(&full_block(3..5)).unwrap();
    give(&mut side, &ack(1, Section::Full, 0..3)).unwrap();
    let hello = side.sender.reconnect().unwrap();
    let (header, payload) = split(&hello);
    assert_eq!((header.kind, header.sequence), (Kind::Hello, 0));
    let hello: Hello = parse(Kind::Hello, payload).unwrap();
    assert_eq!(hello.ticket, SESSION, "the session of the accept");
    assert_eq!(side.sender.in_flight(), 0);
    assert!(!side.sender.may_send(1), "before the new accept");
    side.out = side.sender.outbound();
    // The acknowledgement of the second block was lost.
    give(&mut side, &resumed(5, 0)).unwrap();
    let there = PerSection { full: 5, window: 4 };
    assert_eq!(side.sender.next(), there);
    assert_eq!(side.sender.acknowledged(), there);
    let frames = side.block(&full_block(5..8)).unwrap();
    assert_eq!(split(&frames[0]).0.sequence, 1);
    side.block(&window_block(4..8)).unwrap();
    give(&mut side, &ack(1, Section::Full, 5..8)).unwrap();
    give(&mut side, &ack(2, Section::Window, 4..8)).unwrap();
    side.commit().unwrap();
    // The confirmation is lost: once more, with nothing left to send, under the new session.
    let hello = side.sender.reconnect().unwrap();
    let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    assert_eq!(hello.ticket, "fe".repeat(16));
    side.out = side.sender.outbound();
    give(&mut side, &resumed(8, 8)).unwrap();
    let commit = side.commit().unwrap();
    let empty = tandem_handoff::message::Manifest::default().commit();
    assert_eq!(parse(Kind::Commit, split(&commit).1), Ok(empty));
    give(&mut side, &committed(1)).unwrap();
    assert_eq!(side.sender.state(), SenderState::Committed);
    assert!(side.sender.reconnect().is_err());
}

/// What was acknowledged has not been kept, so a receiver that has lost it cannot be served.
#[test]
fn what_was_acknowledged_cannot_be_asked_for_again() {
    let mut side = streaming(100);
    side.block(&full_block(0..8)).unwrap();
    side.block(&window_block(4..8)).unwrap();
    give(&mut side, &ack(1, Section::Full, 0..8)).unwrap();
    side.sender.reconnect().unwrap();
    fails(side, &resumed(5, 0), "`have_tokens` lies before");
    for have_window in [0, 5] {
        let mut side = streaming(100);
        side.block(&full_block(0..8)).unwrap();
        side.block(&window_block(4..6)).unwrap();
        side.block(&window_block(6..8)).unwrap();
        give(&mut side, &ack(1, Section::Full, 0..8)).unwrap();
        give(&mut side, &ack(2, Section::Window, 4..6)).unwrap();
        side.sender.reconnect().unwrap();
        let lost = "`have_window` lies before what was acknowledged";
        fails(side, &resumed(8, have_window), lost);
    }
}

#[test]
fn no_commit_over_a_block_that_is_being_written() {
    let mut side = streaming(100);
    side.block(&full_block(0..8)).unwrap();
    let window = window_block(4..8);
    side.sender.open(&window).unwrap();
    let error = side.sender.commit().unwrap_err().to_string();
    assert!(error.contains("still being written"), "{error}");
    side.sender.close(window.bytes());
    side.commit().unwrap();
}

#[test]
fn a_receipt_comes_after_the_commit() {
    let mut side = streaming(100);
    side.block(&full_block(0..8)).unwrap();
    assert!(side.sender.receipt(&receipt()).is_err());
    side.block(&window_block(4..8)).unwrap();
    side.commit().unwrap();
    let message = side.sender.receipt(&receipt()).unwrap();
    let frame = side.out.control(&message);
    let (header, payload) = split(&frame);
    assert_eq!((header.kind, header.sequence), (Kind::Receipt, 4));
    assert_eq!(parse(Kind::Receipt, payload), Ok(receipt()));
}
