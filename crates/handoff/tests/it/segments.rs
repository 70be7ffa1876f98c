//! The segments of a handoff, frame by frame: what may come where, in which order, and what is refused. (Whole handoffs:
//! `resume.rs`.)

use std::time::Duration;

use tandem_handoff::codec::{Codec, Decoder};
use tandem_handoff::frame::Kind;
use tandem_handoff::message::{Hello, parse};
use tandem_handoff::receiver::{ReceiverError, Step, Terms};
use tandem_handoff::sender::{Outbound, Sender};
use tandem_handoff::{Contract, KvBlock, Section};

use super::driver::{
    Taker, block, blocks, contract, expectation, forged, full, given_out, have_page, mixed, offer,
    send, split, terms,
};

/// A handoff of which nothing has been sent.
struct Begun {
    sender: Sender,
    taker: Taker,
    out: Outbound,
    blocks: Vec<KvBlock>,
}

impl Begun {
    fn new(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Self {
        let (mut sender, hello) = Sender::new(offer(contract, kv_end)).unwrap();
        let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
        let expected = expectation(contract, kv_end);
        let (taker, accept) = Taker::accept(&hello, &expected, 0, &terms()).unwrap();
        let (header, payload) = split(&accept);
        sender.receive(&header, payload).unwrap();
        Self {
            out: sender.outbound(),
            sender,
            taker,
            blocks: blocks(contract, kv_end, chunks),
        }
    }

    fn small() -> Self {
        Self::new(&mixed(), 6, &[2, 2, 2])
    }

    /// Two layers of 4 MiB in a block of a token: a segment each.
    fn halves() -> Self {
        let contract = contract(0, vec![full(1024, 1024, 1024); 2]);
        Self::new(&contract, 3, &[1, 1, 1])
    }

    fn frames(&mut self, block: usize) -> Vec<Vec<u8>> {
        let block = self.blocks[block].clone();
        send(&mut self.sender, &mut self.out, &block, Codec::Raw).unwrap()
    }
}

fn named(result: Result<Step, ReceiverError>, name: &str) {
    match result {
        Err(ReceiverError::Field { field, .. }) => assert_eq!(field, name),
        other => panic!("expected `{name}`, got {other:?}"),
    }
}

#[test]
fn segments_twice_or_out_of_order() {
    type Order = fn(&[Vec<u8>]) -> Vec<Vec<u8>>;
    let table: [(&str, Order); 6] = [
        // As they were sent, numbers and all.
        ("sequence", |f| vec![f[0].clone(), f[0].clone()]),
        ("sequence", |f| vec![f[1].clone()]),
        ("sequence", |f| vec![f[0].clone(), f[2].clone()]),
        // With the numbers that the receiver waits for.
        ("layer_start", |f| {
            vec![f[0].clone(), forged(&f[0], |h| h.sequence = 2)]
        }),
        ("layer_start", |f| vec![forged(&f[1], |h| h.sequence = 1)]),
        ("block_start", |f| {
            vec![
                f[0].clone(),
                f[1].clone(),
                forged(&f[0], |h| h.sequence = 3),
            ]
        }),
    ];
    for (name, order) in table {
        let mut begun = Begun::halves();
        let sent = [begun.frames(0), begun.frames(1)].concat();
        let frames = order(&sent);
        let (last, good) = frames.split_last().unwrap();
        for frame in good {
            begun.taker.take(frame).unwrap();
        }
        named(begun.taker.take(last), name);
        // Only what was whole before is given out.
        let whole = usize::from(good.len() == 2);
        assert_eq!(begun.taker.apply(), begun.blocks[..whole]);
        assert_eq!(begun.taker.receiver.finish(Duration::ZERO), None);
    }
}

/// The four segments of the first two blocks, in an order with the numbers 1 to 4: which are refused, and by what.
#[test]
fn segments_of_two_blocks_are_mixed() {
    for (order, refused) in [
        ([0, 2, 1, 3], None),
        ([0, 1, 2, 3], None),
        // Segments that are no next ones of their block, whatever is there of the other one.
        ([0, 2, 0, 1], Some((2, "layer_start"))),
        ([0, 2, 2, 1], Some((2, "layer_start"))),
        ([0, 2, 1, 1], Some((3, "block_start"))),
        // Blocks begin in order, and become whole in order.
        ([2, 0, 1, 3], Some((0, "block_start"))),
        ([0, 2, 3, 1], Some((2, "block_start"))),
    ] {
        let mut begun = Begun::halves();
        let sent = [begun.frames(0), begun.frames(1)].concat();
        let numbered = order.into_iter().zip(1..);
        let frames = numbered.map(|(at, n)| forged(&sent[at], |h| h.sequence = n));
        for (at, frame) in frames.enumerate() {
            let taken = begun.taker.take(&frame);
            match refused {
                Some((refused, name)) if refused == at => {
                    named(taken, name);
                    break;
                }
                _ => drop(taken.unwrap()),
            }
        }
        let whole = match refused {
            None => 2,
            Some((at, _)) => usize::from(at == 3),
        };
        assert_eq!(begun.taker.apply(), begun.blocks[..whole], "{order:?}");
        assert_eq!(begun.taker.receiver.finish(Duration::ZERO), None);
        assert_eq!(begun.taker.receiver.over().is_some(), refused.is_some());
    }
}

/// After a resume the connection of before is refused at every step, and the new one goes on.
#[test]
fn the_connection_of_before_a_resume() {
    let mut begun = Begun::small();
    let first = begun.frames(0);
    let (header, payload) = split(&first[0]);
    begun.taker.check(&header).unwrap();
    let accept = begun.taker.receiver.resume(&terms()).unwrap();
    // The segment that was half read, and the next one.
    let mut decoder = Decoder::new().unwrap();
    let (old, receiver) = (&mut begun.taker.inbound, &mut begun.taker.receiver);
    let late = old.frame(receiver, &mut decoder, &header, payload);
    assert_eq!(late, Err(ReceiverError::Over));
    assert_eq!(old.complete(receiver), Err(ReceiverError::Over));
    assert_eq!(old.check(receiver, &header), Err(ReceiverError::Over));
    assert!(receiver.over().is_none());
    assert_eq!(receiver.staged_bytes(), 0);
    // Nothing was whole, so everything comes again.
    begun.sender.reconnect().unwrap();
    let (header, payload) = split(&accept);
    begun.sender.receive(&header, payload).unwrap();
    begun.taker.inbound = begun.taker.receiver.inbound();
    begun.out = begun.sender.outbound();
    for i in 0..begun.blocks.len() {
        for frame in begun.frames(i) {
            begun.taker.take(&frame).unwrap();
        }
    }
    let commit = begun.out.control(&begun.sender.commit().unwrap());
    begun.taker.take(&commit).unwrap();
    assert_eq!(begun.taker.apply(), given_out(&begun.blocks));
    assert!(begun.taker.receiver.finish(Duration::ZERO).is_some());
}

/// What has been given out must be applied before a handoff goes on.
#[test]
fn no_resume_over_blocks_that_are_not_applied() {
    let mut begun = Begun::small();
    let frames = begun.frames(0);
    begun.taker.take(&frames[0]).unwrap();
    let receiver = &mut begun.taker.receiver;
    assert!(receiver.resume(&terms()).is_err());
    assert!(receiver.next_block().is_some());
    assert!(receiver.resume(&terms()).is_err());
    let _ = receiver.applied();
    receiver.resume(&terms()).unwrap();
    receiver.close("closed");
    assert!(receiver.resume(&terms()).is_err());
}

/// What is held already must not be sent again.
#[test]
fn blocks_before_what_is_held() {
    let contract = mixed();
    let terms = |have| Terms {
        have_page: have_page(&contract, 100, have),
        ..terms()
    };
    let (_, hello) = Sender::new(offer(&contract, 100)).unwrap();
    let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    let expected = expectation(&contract, 100);
    for (start, fits) in [(0, false), (64, true)] {
        // The sender has heard that so many tokens are held, and the receiver holds 64.
        let (mut sender, _) = Sender::new(offer(&contract, 100)).unwrap();
        let (_, accept) = Taker::accept(&hello, &expected, start, &terms(start)).unwrap();
        let (header, payload) = split(&accept);
        sender.receive(&header, payload).unwrap();
        let (mut taker, _) = Taker::accept(&hello, &expected, 64, &terms(64)).unwrap();
        assert_eq!(taker.receiver.next().full, 64);
        let block = block(&contract, Section::Full, start..100);
        let mut out = sender.outbound();
        let frames = send(&mut sender, &mut out, &block, Codec::Raw).unwrap();
        match taker.take(&frames[0]) {
            result if fits => assert_eq!(result, Ok(Step::Block)),
            result => named(result, "block_start"),
        }
    }
}
