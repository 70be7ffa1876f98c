//! Streams that were damaged or cut: an error, no wrong block, never a commit.

use tandem_handoff::codec::Codec;
use tandem_handoff::sender::{Sender, SenderState};

use super::driver::{
    Manner, Outcome, Recording, Taker, blocks, mixed, next_frame, offer, replay, run, run_with,
    send, split,
};

fn small() -> Recording {
    undamaged(run(&mixed(), 5, &[2, 3], true))
}

/// The same rows through an encoder.
fn small_encoded() -> Recording {
    let manner = Manner {
        lazy: true,
        beats: true,
        codec: Codec::Plane,
        mixed: 0,
    };
    undamaged(run_with(&mixed(), 5, blocks(&mixed(), 5, &[2, 3]), manner))
}

/// Blocks that grow at the same time.
fn small_mixed() -> Recording {
    let manner = Manner {
        lazy: true,
        beats: false,
        codec: Codec::Raw,
        mixed: 3,
    };
    undamaged(run_with(&mixed(), 5, blocks(&mixed(), 5, &[2, 3]), manner))
}

fn undamaged(got: Recording) -> Recording {
    let outcome = again(&got, &got.stream());
    assert!(outcome.committed, "undamaged: {:?}", outcome.error);
    assert_eq!(outcome.applied, got.applied);
    got
}

fn again(sent: &Recording, stream: &[u8]) -> Outcome {
    replay(&sent.expectation(), &sent.terms, stream)
}

/// What was applied must be the first blocks of what was sent.
fn check_prefix(sent: &Recording, outcome: &Outcome, what: &str) {
    assert!(!outcome.committed, "{what}: committed");
    assert!(outcome.applied.len() <= sent.applied.len(), "{what}");
    let prefix = &sent.applied[..outcome.applied.len()];
    assert_eq!(outcome.applied, prefix, "{what}: another block was applied");
}

#[test]
fn every_flipped_byte_is_refused() {
    for sent in [small(), small_encoded(), small_mixed()] {
        let stream = sent.stream();
        for at in 0..stream.len() {
            for pattern in [0x01, 0x80, 0xFF] {
                let mut damaged = stream.clone();
                damaged[at] ^= pattern;
                let outcome = again(&sent, &damaged);
                let what = format!("byte {at} xor {pattern:#04x}");
                check_prefix(&sent, &outcome, &what);
                let error = outcome.error.expect("no error");
                assert_ne!(error, "incomplete", "{what}: went unnoticed");
            }
        }
    }
}

#[test]
fn every_truncation_stays_uncommitted() {
    for sent in [small(), small_mixed()] {
        let stream = sent.stream();
        for end in 0..stream.len() {
            let outcome = again(&sent, &stream[..end]);
            check_prefix(&sent, &outcome, &format!("cut at {end}"));
            assert_eq!(outcome.error.as_deref(), Some("incomplete"), "cut at {end}");
        }
    }
}

#[test]
fn every_missing_or_doubled_byte_is_refused() {
    for sent in [small(), small_mixed()] {
        let stream = sent.stream();
        for at in 0..stream.len() {
            let mut missing = stream.clone();
            missing.remove(at);
            let outcome = again(&sent, &missing);
            check_prefix(&sent, &outcome, &format!("byte {at} missing"));
            let mut doubled = stream.clone();
            doubled.insert(at, stream[at]);
            let outcome = again(&sent, &doubled);
            if !outcome.committed {
                check_prefix(&sent, &outcome, &format!("byte {at} doubled"));
            } else {
                // Doubling the last byte is the same as a byte after a complete handoff.
                let tail = &stream[at..];
                assert!(tail.iter().all(|b| *b == tail[0]), "byte {at} doubled");
                assert_eq!(outcome.applied, sent.applied);
            }
        }
    }
}

#[test]
fn every_missing_repeated_or_swapped_frame_is_refused() {
    for sent in [small(), small_mixed()] {
        let count = sent.forward.len();
        let check = |frames: Vec<Vec<u8>>, what: String| {
            let outcome = again(&sent, &frames.concat());
            check_prefix(&sent, &outcome, &what);
        };
        for i in 0..count {
            let mut frames = sent.forward.clone();
            frames.remove(i);
            check(frames, format!("frame {i} missing"));
            for j in 0..count {
                let mut frames = sent.forward.clone();
                frames.swap(i, j);
                if i != j {
                    check(frames, format!("frames {i} and {j} swapped"));
                }
                let mut frames = sent.forward.clone();
                frames.insert(j, sent.forward[i].clone());
                check(frames, format!("frame {i} again before {j}"));
            }
            let mut frames = sent.forward.clone();
            frames.push(sent.forward[i].clone());
            let outcome = again(&sent, &frames.concat());
            let error = outcome.error.expect("a frame after the commit");
            let named = ["`sequence`", "`kind`"].iter().any(|n| error.contains(n));
            assert!(named, "{error}");
            assert_eq!(outcome.applied, sent.applied);
        }
    }
}

/// What a sender makes of the answers to a whole handoff: true if it ends committed.
fn answered(sent: &Recording, answers: &[u8]) -> Result<bool, String> {
    let (mut sender, _) = Sender::new(offer(&sent.contract, sent.kv_end)).unwrap();
    let mut out = sender.outbound();
    let mut rest = answers;
    let mut accepted = false;
    while let Some((header, payload)) = next_frame(&mut rest, |_| Ok(()))? {
        sender
            .receive(&header, payload)
            .map_err(|e| e.to_string())?;
        if !accepted {
            for block in &sent.sent {
                send(&mut sender, &mut out, block, Codec::Raw).unwrap();
            }
            sender.commit().unwrap();
            accepted = true;
        }
    }
    Ok(sender.state() == SenderState::Committed)
}

#[test]
fn damaged_answers_do_not_commit() {
    let sent = small();
    let answers = sent.backward.concat();
    assert_eq!(answered(&sent, &answers), Ok(true));
    for at in 0..answers.len() {
        for pattern in [0x01, 0x80, 0xFF] {
            let mut damaged = answers.clone();
            damaged[at] ^= pattern;
            let result = answered(&sent, &damaged);
            assert!(result.is_err(), "byte {at} xor {pattern:#04x}");
        }
        assert_eq!(answered(&sent, &answers[..at]), Ok(false), "cut at {at}");
    }
    for i in 0..sent.backward.len() {
        let mut frames = sent.backward.clone();
        frames.remove(i);
        assert_ne!(answered(&sent, &frames.concat()), Ok(true), "{i} missing");
        frames.insert(i, sent.backward[i].clone());
        frames.insert(i, sent.backward[i].clone());
        let result = answered(&sent, &frames.concat());
        assert!(result.is_err(), "frame {i} twice");
    }
}

/// A receipt comes after the commit: whatever happens to it, the handoff is committed, and what is
/// read is the receipt that was sent or none.
#[test]
fn damaged_receipts_are_refused() {
    let sent = small();
    let good = [sent.stream(), sent.receipt.clone()].concat();
    let outcome = again(&sent, &good);
    assert!(outcome.committed, "{:?}", outcome.error);
    for at in sent.stream().len()..good.len() {
        for pattern in [0x01, 0x80, 0xFF] {
            let mut damaged = good.clone();
            damaged[at] ^= pattern;
            let outcome = again(&sent, &damaged);
            assert_eq!(outcome.applied, sent.applied);
            let error = outcome.error.expect("no error");
            assert_ne!(error, "incomplete", "byte {at}: went unnoticed");
        }
    }
    let twice = [good, sent.receipt.clone()].concat();
    assert!(again(&sent, &twice).error.unwrap().contains("`sequence`"));
}

/// Damage is worth another connection; a broken rule with sound checksums is not.
#[test]
fn damage_is_told_from_broken_rules() {
    let sent = small();
    let taker = || {
        let hello = tandem_handoff::message::parse(
            tandem_handoff::frame::Kind::Hello,
            split(&sent.forward[0]).1,
        );
        let expected = sent.expectation();
        Taker::accept(&hello.unwrap(), &expected, 0, &sent.terms)
            .unwrap()
            .0
    };
    for parity in [1, 2] {
        // Both ways to read raw rows; see `Taker::frame`.
        let mut taker = taker();
        for frame in &sent.forward[1..parity] {
            taker.take(frame).unwrap();
        }
        let (header, payload) = split(&sent.forward[parity]);
        let mut damaged = payload.to_vec();
        damaged[0] ^= 1;
        taker.check(&header).unwrap();
        let error = taker.frame(&header, &damaged).unwrap_err();
        assert!(error.is_damage(), "{error}");
        assert!(taker.receiver.over().is_none());
        taker.apply();
        taker.receiver.resume(&sent.terms).unwrap();
    }
    let mut taker = taker();
    let error = taker.take(&sent.forward[2]).unwrap_err();
    assert!(!error.is_damage(), "{error}");
    assert!(taker.receiver.over().is_some());
    assert!(taker.receiver.resume(&sent.terms).is_err());
}
