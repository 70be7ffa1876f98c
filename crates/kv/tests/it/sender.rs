//! The sending end: credit, order of what the caller gives it, and a peer that misbehaves.

use std::ops::Range;

use tandem_kv::frame::{FrameError, Header, Kind, encode_frame};
use tandem_kv::limits::{MAX_CHUNK_TOKENS, MAX_CHUNKS_IN_FLIGHT, MAX_STRING, MAX_TOKENS};
use tandem_kv::message::{Abort, Accept, RefusalCode, Refuse, abort_frame, control_frame, parse};
use tandem_kv::sender::{Sender, SenderError, SenderState};
use tandem_kv::{Contract, KvBlock, Section};

use super::driver::{
    HANDOFF, TICKET, block, contract, forged, full, mixed, prompt, run, split, windowed,
};

fn new(contract: &Contract, kv_end: u32) -> Sender {
    Sender::new(contract.clone(), HANDOFF, TICKET, &prompt(kv_end), kv_end)
        .unwrap()
        .0
}

fn accept(credit_blocks: u32) -> Vec<u8> {
    control_frame(Kind::Accept, HANDOFF, 0, &Accept { credit_blocks }).unwrap()
}

fn ack(sequence: u32, section: Section, tokens: Range<u32>) -> Vec<u8> {
    let mut header = Header::control(Kind::Ack, HANDOFF, sequence);
    header.section = section.wire();
    (header.token_start, header.token_end) = (tokens.start, tokens.end);
    encode_frame(header, &[])
}

fn committed(sequence: u32) -> Vec<u8> {
    encode_frame(Header::control(Kind::Committed, HANDOFF, sequence), &[])
}

fn give(sender: &mut Sender, frame: &[u8]) -> Result<(), SenderError> {
    let (header, payload) = split(frame);
    sender.receive(&header, payload)
}

/// A sender of `mixed()` with KV for 8 tokens that has been accepted with this credit.
fn streaming(credit: u32) -> Sender {
    let mut sender = new(&mixed(), 8);
    give(&mut sender, &accept(credit)).unwrap();
    assert_eq!(sender.state(), SenderState::Streaming);
    sender
}

fn full_block(tokens: Range<u32>) -> KvBlock {
    block(&mixed(), Section::Full, tokens)
}

fn window_block(tokens: Range<u32>) -> KvBlock {
    block(&mixed(), Section::Window, tokens)
}

/// The frame is refused and the handoff is over: nothing goes on from there.
fn fails(mut sender: Sender, frame: &[u8], expected: &str) {
    let error = give(&mut sender, frame).expect_err(expected);
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(sender.state(), SenderState::Failed);
    assert!(!sender.may_send());
    assert!(sender.block(&full_block(0..1)).is_err());
    assert!(sender.commit().is_err());
    for frame in [accept(4), committed(1)] {
        let error = give(&mut sender, &frame).unwrap_err();
        assert!(error.to_string().contains("the handoff is over"));
    }
}

#[test]
fn credit_is_used_up_and_given_back() {
    let mut sender = streaming(2);
    for (start, sequence) in (0..8).zip(1..) {
        if start >= 2 {
            assert!(!sender.may_send());
            let error = sender.block(&full_block(start..start + 1)).unwrap_err();
            assert!(matches!(error, SenderError::NotAllowed(_)), "{error}");
            let acked = start - 2..start - 1;
            give(&mut sender, &ack(sequence - 2, Section::Full, acked)).unwrap();
        }
        assert!(sender.may_send());
        sender.block(&full_block(start..start + 1)).unwrap();
    }
}

#[test]
fn credit_is_bounded_by_our_own_limit() {
    let mut sender = streaming(u32::MAX);
    for start in 0..MAX_CHUNKS_IN_FLIGHT {
        sender.block(&full_block(start..start + 1)).unwrap();
    }
    assert!(!sender.may_send());
    fails(new(&mixed(), 8), &accept(0), "`credit_blocks` is zero");
}

#[test]
fn nothing_is_sent_before_the_accept() {
    let mut sender = new(&mixed(), 8);
    assert!(!sender.may_send());
    for error in [
        sender.block(&full_block(0..1)).unwrap_err(),
        sender.commit().unwrap_err(),
    ] {
        assert!(error.to_string().contains("AwaitAccept"), "{error}");
    }
    assert_eq!(sender.state(), SenderState::AwaitAccept);
    assert_eq!(sender.raw_bytes(), 0);
}

#[test]
fn blocks_that_do_not_continue() {
    let mut sender = streaming(4);
    sender.block(&full_block(0..3)).unwrap();
    for start in [0, 2, 4] {
        let error = sender.block(&full_block(start..6)).unwrap_err();
        let expected = SenderError::Gap {
            found: start,
            expected: 3,
        };
        assert_eq!(error, expected);
    }
    let not_allowed = [
        (full_block(3..3), "an empty block"),
        (full_block(3..9), "ends at token 9 of 8"),
        (window_block(4..8), "the window before the last full block"),
    ];
    for (block, expected) in not_allowed {
        let error = sender.block(&block).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A refused call changes nothing.
    sender.block(&full_block(3..8)).unwrap();
    let error = sender.block(&window_block(3..7)).unwrap_err();
    assert!(matches!(error, SenderError::Gap { expected: 4, .. }));
    let error = sender.block(&window_block(4..7)).unwrap_err();
    assert!(
        error.to_string().contains("ends at token 7 of 8"),
        "{error}"
    );
    sender.block(&window_block(4..8)).unwrap();
    let error = sender.block(&window_block(4..8)).unwrap_err();
    assert!(error.to_string().contains("a second window"), "{error}");
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
        let error = streaming(4).block(&block).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A section without layers has no blocks.
    let only_window = contract(2, vec![windowed(1, 1, 1)]);
    let mut sender = new(&only_window, 8);
    give(&mut sender, &accept(4)).unwrap();
    let empty = block(&only_window, Section::Full, 0..8);
    let error = sender.block(&empty).unwrap_err();
    assert!(error.to_string().contains("an empty block"), "{error}");
}

#[test]
fn limits_of_the_own_side() {
    let small = contract(0, vec![full(1, 1, 1)]);
    let kv_end = MAX_CHUNK_TOKENS + 1;
    let mut sender = new(&small, kv_end);
    give(&mut sender, &accept(4)).unwrap();
    let error = sender
        .block(&block(&small, Section::Full, 0..kv_end))
        .unwrap_err();
    assert!(error.to_string().contains("16385 tokens, limit 16384"));
    sender
        .block(&block(&small, Section::Full, 0..MAX_CHUNK_TOKENS))
        .unwrap();
    let tokens = vec![0; MAX_TOKENS as usize + 1];
    for (tokens, kv_end) in [(&tokens[..5], 6), (&tokens, MAX_TOKENS + 1)] {
        let error = Sender::new(small.clone(), HANDOFF, TICKET, tokens, kv_end).unwrap_err();
        assert!(error.to_string().contains(&format!("kv_end {kv_end}")));
    }
    Sender::new(small, HANDOFF, TICKET, &tokens, MAX_TOKENS).unwrap();
}

#[test]
fn commit_only_when_complete_and_once() {
    let mut sender = streaming(4);
    let gap = SenderError::Gap {
        found: 8,
        expected: 0,
    };
    assert_eq!(sender.commit(), Err(gap));
    sender.block(&full_block(0..8)).unwrap();
    let error = sender.commit().unwrap_err();
    assert!(error.to_string().contains("without the window"), "{error}");
    sender.block(&window_block(4..8)).unwrap();
    let header = split(&sender.commit().unwrap()).0;
    assert_eq!((header.kind, header.sequence), (Kind::Commit, 3));
    assert_eq!(sender.state(), SenderState::Committing);
    assert!(!sender.may_send());
    let error = sender.commit().unwrap_err();
    assert!(error.to_string().contains("Committing"), "{error}");
}

#[test]
fn acknowledgements_out_of_order_or_for_nothing() {
    let with_two = || {
        let mut sender = streaming(4);
        sender.block(&full_block(0..3)).unwrap();
        sender.block(&full_block(3..5)).unwrap();
        sender
    };
    let oldest = "does not match the oldest unacknowledged block";
    let table = [
        (streaming(4), ack(1, Section::Full, 0..3), oldest),
        (with_two(), ack(1, Section::Full, 3..5), oldest),
        (with_two(), ack(1, Section::Full, 5..8), oldest),
        (with_two(), ack(1, Section::Full, 1..3), oldest),
        (with_two(), ack(1, Section::Window, 0..3), oldest),
        (with_two(), ack(0, Section::Full, 0..3), "out of sequence"),
        (with_two(), ack(2, Section::Full, 0..3), "out of sequence"),
        (
            new(&mixed(), 8),
            ack(0, Section::Full, 0..3),
            "not allowed in this state",
        ),
    ];
    for (sender, frame, expected) in table {
        fails(sender, &frame, expected);
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
    fails(streaming(4), &committed(1), "not allowed in this state");
    let committing = || {
        let mut sender = streaming(4);
        sender.block(&full_block(0..8)).unwrap();
        sender.block(&window_block(4..8)).unwrap();
        sender.commit().unwrap();
        sender
    };
    fails(committing(), &committed(1), "not allowed in this state");
    let mut sender = committing();
    give(&mut sender, &ack(1, Section::Full, 0..8)).unwrap();
    give(&mut sender, &ack(2, Section::Window, 4..8)).unwrap();
    give(&mut sender, &committed(3)).unwrap();
    assert_eq!(sender.state(), SenderState::Committed);
    let error = give(&mut sender, &committed(4)).unwrap_err();
    assert!(error.to_string().contains("the handoff is over"), "{error}");
    assert_eq!(sender.state(), SenderState::Committed);
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
    fails(streaming(4), &frame, "not allowed in this state");
}

#[test]
fn an_abort_ends_it_at_any_time() {
    for sequence in [0, 1, 99] {
        let frame = abort_frame(HANDOFF, sequence, "engine failed");
        let expected = "aborted by the decode node: engine failed";
        fails(new(&mixed(), 8), &frame, expected);
        fails(streaming(4), &frame, expected);
    }
    let mut sender = streaming(4);
    sender.block(&full_block(0..8)).unwrap();
    let frame = sender.abort("prefill was cancelled");
    let (header, payload) = split(&frame);
    assert_eq!((header.kind, header.sequence), (Kind::Abort, 2));
    let abort: Abort = parse(Kind::Abort, payload).unwrap();
    assert_eq!(abort.reason, "prefill was cancelled");
    assert_eq!(sender.state(), SenderState::Failed);
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
    for frame in &sent.forward {
        fails(new(&mixed(), 8), frame, "");
        fails(streaming(4), frame, "");
    }
    fails(streaming(4), &accept(4), "out of sequence");
    let second = control_frame(Kind::Accept, HANDOFF, 1, &Accept { credit_blocks: 4 }).unwrap();
    fails(streaming(4), &second, "not allowed in this state");
    let mut header = split(&accept(4)).0;
    header.handoff ^= 1;
    let other = encode_frame(header, split(&accept(4)).1);
    fails(new(&mixed(), 8), &other, "handoff id differs");
}

#[test]
fn damaged_payloads_are_refused() {
    let frame = accept(4);
    let (header, payload) = split(&frame);
    for at in 0..payload.len() {
        let mut damaged = payload.to_vec();
        damaged[at] ^= 1;
        let mut sender = new(&mixed(), 8);
        let error = sender.receive(&header, &damaged).unwrap_err();
        assert_eq!(error, SenderError::Frame(FrameError::PayloadChecksum));
        assert_eq!(sender.state(), SenderState::Failed);
    }
}
