//! Several connections of one handoff, frame by frame: what may come where, in which order, and what
//! is refused. (Whole handoffs over several connections: `resume.rs`.)

use tandem_kv::adaptive::DecodeRates;
use tandem_kv::codec::{Codec, Decoder};
use tandem_kv::frame::{HEADER_BYTES, Header, Kind, encode_frame};
use tandem_kv::message::{Hello, parse};
use tandem_kv::receiver::{Inbound, ReceiverError, Step, Terms};
use tandem_kv::segment::Cutter;
use tandem_kv::sender::{Outbound, Outgoing, Sender};
use tandem_kv::{Contract, KvBlock, Section};

use super::driver::{
    Taker, blocks, contract, expectation, forged, full, given_out, have_page, mixed, offer,
    receipt, split, terms, windowed,
};

/// A handoff with three streams, of which nothing has been sent.
struct Three {
    sender: Sender,
    taker: Taker,
    outbound: Outbound,
    blocks: Vec<KvBlock>,
}

impl Three {
    fn new(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Self {
        let terms = Terms {
            streams: 3,
            ..terms()
        };
        let (mut sender, hello) = Sender::new(offer(contract, kv_end)).unwrap();
        let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
        let expected = expectation(contract, kv_end);
        let (taker, accept) = Taker::accept(&hello, &expected, 0, &terms).unwrap();
        let (header, payload) = split(&accept);
        sender.receive(&header, payload).unwrap();
        Self {
            outbound: sender.outbound(),
            sender,
            taker,
            blocks: blocks(contract, kv_end, chunks),
        }
    }

    fn small() -> Self {
        Self::new(&mixed(), 6, &[2, 2, 2])
    }

    /// Frames of a block over a stream.
    fn frames(&mut self, block: usize, out: &mut Outbound) -> Vec<Vec<u8>> {
        let block = self.blocks[block].clone();
        super::driver::send(&mut self.sender, out, &block, Codec::Raw).unwrap()
    }

    fn join(&mut self) -> (Outbound, Inbound) {
        let (out, _) = self.sender.join().unwrap();
        (out, self.answer())
    }

    /// The receiver reads a join, and the sender its answer.
    fn answer(&mut self) -> Inbound {
        let inbound = self.taker.receiver.join(3).unwrap();
        let answer = self.taker.receiver.joined();
        self.sender.joined(&split(&answer).0).unwrap();
        inbound
    }

    /// A frame comes over a further connection.
    fn take(&mut self, inbound: &mut Inbound, frame: &[u8]) -> Result<Step, ReceiverError> {
        let (header, payload) = split(frame);
        inbound.check(&mut self.taker.receiver, &header)?;
        let mut decoder = Decoder::new().unwrap();
        inbound.frame(&mut self.taker.receiver, &mut decoder, &header, payload)
    }
}

fn named(result: Result<Step, ReceiverError>, name: &str) {
    match result {
        Err(ReceiverError::Field { field, .. }) => assert_eq!(field, name),
        other => panic!("expected `{name}`, got {other:?}"),
    }
}

/// Blocks are given out in order, whatever the order in which they become whole.
#[test]
fn blocks_wait_for_their_turn() {
    let mut three = Three::small();
    let (mut out, mut inbound) = three.join();
    let (mut out3, mut inbound3) = three.join();
    let first = three.frames(0, &mut out);
    let second = three.frames(1, &mut out3);
    let mut main = three.sender.outbound();
    let window = three.frames(2, &mut out);
    let third = three.frames(3, &mut main);
    let last = three.frames(4, &mut out3);
    // The end of the window first, then the blocks from the last to the first.
    assert_eq!(three.take(&mut inbound3, &second[0]), Ok(Step::Wait));
    assert_eq!(three.take(&mut inbound3, &last[0]), Ok(Step::Wait));
    assert_eq!(three.taker.take(&third[0]), Ok(Step::Wait));
    assert_eq!(three.taker.receiver.next_block(), None);
    let commit = main.control(&three.sender.commit().unwrap());
    assert_eq!(three.taker.take(&commit), Ok(Step::Commit));
    assert!(!three.taker.receiver.all_sent(), "a block is missing");
    let note = main.control(&three.sender.receipt(&receipt()).unwrap());
    assert_eq!(three.taker.take(&note), Ok(Step::Receipt(receipt())));
    assert_eq!(three.take(&mut inbound, &first[0]), Ok(Step::Block));
    assert!(
        !three.taker.receiver.all_sent(),
        "rows of the window are missing"
    );
    let mut applied = three.taker.apply();
    assert_eq!(applied.len(), 3, "no window yet");
    assert_eq!(three.take(&mut inbound, &window[0]), Ok(Step::Block));
    assert!(three.taker.receiver.all_sent());
    assert_eq!(
        three.taker.receiver.finish(),
        None,
        "the window is not applied"
    );
    applied.extend(three.taker.apply());
    assert_eq!(applied, given_out(&three.blocks));
    assert!(three.taker.receiver.finish().is_some());
}

/// Blocks may arrive over the main connection before the others have announced themselves, and the
/// commit before what travels on those.
#[test]
fn a_join_may_be_overtaken() {
    let mut three = Three::small();
    let (mut out, _) = three.sender.join().unwrap();
    // It is written once the join has been answered.
    let first = three.frames(0, &mut out);
    let mut main = three.sender.outbound();
    let rest: Vec<_> = (1..5).flat_map(|i| three.frames(i, &mut main)).collect();
    for frame in &rest {
        // Rows of the window do not wait for full ones.
        let step = match Section::from_wire(split(frame).0.section) {
            Some(Section::Window) => Step::Block,
            _ => Step::Wait,
        };
        assert_eq!(three.taker.take(frame), Ok(step));
    }
    let mut inbound = three.answer();
    let commit = main.control(&three.sender.commit().unwrap());
    assert_eq!(three.taker.take(&commit), Ok(Step::Commit));
    let beat = main.control(&Outgoing::beat());
    assert_eq!(three.taker.take(&beat), Ok(Step::Wait));
    assert_eq!(three.take(&mut inbound, &first[0]), Ok(Step::Block));
    // Each connection shows that it lives.
    let beat = out.control(&Outgoing::beat());
    assert_eq!(three.take(&mut inbound, &beat), Ok(Step::Wait));
    assert_eq!(three.taker.apply(), given_out(&three.blocks));
    assert!(three.taker.receiver.finish().is_some());
}

#[test]
fn a_join_is_answered_by_a_beat_and_nothing_else() {
    let three = Three::small();
    let answer = three.taker.receiver.joined();
    let header = |frame: &[u8]| Header::parse(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(answer.len(), HEADER_BYTES);
    assert_eq!(three.sender.joined(&header(&answer)), Ok(()));
    let handoff = header(&answer).handoff;
    for (kind, handoff, sequence) in [
        (Kind::Beat, handoff, 1),
        (Kind::Beat, handoff + 1, 0),
        (Kind::Ack, handoff, 0),
        (Kind::Refuse, handoff, 0),
        (Kind::Committed, handoff, 0),
    ] {
        let other = encode_frame(Header::control(kind, handoff, sequence), &[]);
        assert!(three.sender.joined(&header(&other)).is_err(), "{kind:?}");
    }
}

#[test]
fn no_more_streams_than_agreed() {
    let mut three = Three::small();
    let _ = three.join();
    // The lower of the two limits counts.
    assert!(three.taker.receiver.join(2).is_err());
    let _ = three.join();
    let error = three.taker.receiver.join(9).unwrap_err();
    assert!(error.to_string().contains("at most 3"), "{error}");
    assert!(three.taker.receiver.over().is_none(), "the others go on");
    assert!(three.sender.join().is_err());
}

/// Two layers of 4 MiB in a block of a token: a segment each.
fn halves() -> Three {
    let contract = contract(0, vec![full(1024, 1024, 1024); 2]);
    Three::new(&contract, 3, &[1, 1, 1])
}

/// All segments of a block go over the stream on which it started.
#[test]
fn a_block_stays_on_its_stream() {
    let mut three = halves();
    let (mut out, mut inbound) = three.join();
    let first = three.frames(0, &mut out);
    assert_eq!(first.len(), 2);
    assert_eq!(three.take(&mut inbound, &first[0]), Ok(Step::Wait));
    // Its other half over the main connection, with the number that is next there.
    let other = forged(&first[1], |h| h.sequence = 1);
    named(three.taker.take(&other), "block_start");
    assert_eq!(
        three.take(&mut inbound, &first[1]),
        Err(ReceiverError::Over)
    );
    // Whichever connection is heard of, what the first one told is known.
    let _ = three.taker.receiver.abort("another reason");
    let why = three.taker.receiver.over().unwrap();
    assert!(why.contains("`block_start`"), "{why}");
}

#[test]
fn segments_twice_or_out_of_order_within_a_stream() {
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
        let mut three = halves();
        let mut main = three.sender.outbound();
        let mut sent = three.frames(0, &mut main);
        sent.extend(three.frames(1, &mut main));
        let frames = order(&sent);
        let (last, good) = frames.split_last().unwrap();
        for frame in good {
            three.taker.take(frame).unwrap();
        }
        named(three.taker.take(last), name);
        // Only what was whole before is given out.
        let whole = usize::from(good.len() == 2);
        assert_eq!(three.taker.apply(), three.blocks[..whole]);
        assert_eq!(three.taker.receiver.finish(), None);
    }
}

/// A handoff and the four segments of its first two blocks, with the numbers 1 to 4 in this order.
fn two_blocks(order: [usize; 4]) -> (Three, Vec<Vec<u8>>) {
    let mut three = halves();
    let mut main = three.sender.outbound();
    let mut sent = three.frames(0, &mut main);
    sent.extend(three.frames(1, &mut main));
    let numbered = order.into_iter().zip(1..);
    let frames = numbered.map(|(at, n)| forged(&sent[at], |h| h.sequence = n));
    (three, frames.collect())
}

#[test]
fn segments_of_two_blocks_are_mixed() {
    for order in [
        [0, 2, 1, 3],
        [0, 2, 3, 1],
        [2, 0, 1, 3],
        [2, 0, 3, 1],
        [2, 3, 0, 1],
    ] {
        let (mut three, frames) = two_blocks(order);
        for frame in &frames {
            three.taker.take(frame).unwrap();
        }
        assert_eq!(three.taker.apply(), three.blocks[..2]);
        let again = forged(&frames[3], |h| h.sequence = 5);
        named(three.taker.take(&again), "block_start");
    }
}

/// Segments that are no next ones of their block, whatever is there of the other one.
#[test]
fn mixed_segments_twice_or_out_of_order() {
    for (order, name) in [
        ([0, 2, 0, 1], "layer_start"),
        ([0, 2, 2, 1], "layer_start"),
        ([2, 0, 0, 1], "layer_start"),
        // The first block is whole before.
        ([2, 0, 1, 1], "block_start"),
    ] {
        let (mut three, frames) = two_blocks(order);
        let (last, good) = match name {
            "layer_start" => (&frames[2], &frames[..2]),
            _ => (&frames[3], &frames[..3]),
        };
        for frame in good {
            three.taker.take(frame).unwrap();
        }
        named(three.taker.take(last), name);
        let whole = usize::from(good.len() == 3);
        assert_eq!(three.taker.apply(), three.blocks[..whole]);
        assert_eq!(three.taker.receiver.finish(), None);
    }
}

#[test]
fn blocks_that_overlap_on_two_streams() {
    overlap_on_two_streams(&mixed(), 0);
    // Window layers only, which keep all of six tokens.
    overlap_on_two_streams(&contract(9, vec![windowed(2, 2, 1)]), 1);
}

fn overlap_on_two_streams(contract: &Contract, section: u8) {
    // Tokens 2 and 3 have come and wait for 0 and 1.
    for (start, end, fits) in [
        (0, 3, false),
        (0, 6, false),
        (1, 4, false),
        (2, 3, false),
        (2, 4, false),
        (3, 4, false),
        (3, 6, false),
        (0, 1, true),
        (1, 2, true),
        (4, 5, true),
    ] {
        let mut three = Three::new(contract, 6, &[2, 2, 2]);
        let (mut out, mut inbound) = three.join();
        let mut main = three.sender.outbound();
        let first = three.frames(0, &mut main);
        let second = three.frames(1, &mut out);
        assert_eq!(three.take(&mut inbound, &second[0]), Ok(Step::Wait));
        let mut header = split(&first[0]).0;
        assert_eq!(header.section, section);
        (header.block_start, header.token_start) = (start, start);
        (header.block_end, header.token_end) = (end, end);
        // 12 bytes for each token.
        (header.raw_len, header.payload_len) = (12 * (end - start), 12 * (end - start));
        let result = three.taker.check(&header);
        if fits {
            assert_eq!(result, Ok(()));
        } else {
            named(result.map(|()| Step::Wait), "block_start");
        }
    }
}

/// What only the main connection carries.
#[test]
fn control_frames_over_a_further_connection() {
    let mut three = Three::small();
    for i in 0..5 {
        let mut out = std::mem::replace(&mut three.outbound, three.sender.outbound());
        let frames = three.frames(i, &mut out);
        three.outbound = out;
        three.taker.take(&frames[0]).unwrap();
    }
    let (_, mut inbound) = three.join();
    let commit = three
        .sender
        .outbound()
        .control(&three.sender.commit().unwrap());
    named(three.take(&mut inbound, &commit), "kind");
}

#[test]
fn a_commit_that_does_not_match_is_found_when_the_last_block_comes() {
    let mut three = Three::small();
    let (mut out, mut inbound) = three.join();
    let first = three.frames(0, &mut out);
    let mut main = three.sender.outbound();
    for i in 1..5 {
        let frames = three.frames(i, &mut main);
        three.taker.take(&frames[0]).unwrap();
    }
    let commit = main.control(&three.sender.commit().unwrap());
    three.taker.take(&commit).unwrap();
    let payload = vec![7; split(&first[0]).1.len()];
    let other = super::driver::with_payload(&first[0], &payload);
    named(three.take(&mut inbound, &other), "commit.manifest");
    assert_eq!(three.taker.receiver.finish(), None);
}

/// After a resume the streams of before are refused at every step, and the new one goes on.
#[test]
fn streams_of_before_a_resume() {
    let mut three = Three::small();
    let (mut out, mut old) = three.join();
    let first = three.frames(0, &mut out);
    let mut main = three.sender.outbound();
    let second = three.frames(1, &mut main);
    let (header, payload) = split(&first[0]);
    old.check(&mut three.taker.receiver, &header).unwrap();
    three.taker.take(&second[0]).unwrap();
    let terms = Terms {
        streams: 3,
        ..terms()
    };
    let accept = three.taker.receiver.resume(&terms).unwrap();
    // The segment that was half read, and the next one.
    let mut decoder = Decoder::new().unwrap();
    let receiver = &mut three.taker.receiver;
    let late = old.frame(receiver, &mut decoder, &header, payload);
    assert_eq!(late, Err(ReceiverError::Over));
    assert_eq!(old.complete(receiver), Err(ReceiverError::Over));
    assert_eq!(old.check(receiver, &header), Err(ReceiverError::Over));
    assert_eq!(three.taker.check(&header), Err(ReceiverError::Over));
    assert!(three.taker.receiver.over().is_none());
    assert_eq!(three.taker.receiver.staged_bytes(), 0);
    // Nothing was whole, so everything comes again.
    three.sender.reconnect().unwrap();
    let (header, payload) = split(&accept);
    three.sender.receive(&header, payload).unwrap();
    three.taker.inbound = three.taker.receiver.main();
    let mut main = three.sender.outbound();
    for i in 0..three.blocks.len() {
        for frame in three.frames(i, &mut main) {
            three.taker.take(&frame).unwrap();
        }
    }
    let commit = main.control(&three.sender.commit().unwrap());
    three.taker.take(&commit).unwrap();
    assert_eq!(three.taker.apply(), given_out(&three.blocks));
    assert!(three.taker.receiver.finish().is_some());
}

/// What has been given out must be applied before a handoff goes on.
#[test]
fn no_resume_over_blocks_that_are_not_applied() {
    let mut three = Three::small();
    let mut main = three.sender.outbound();
    let frames = three.frames(0, &mut main);
    three.taker.take(&frames[0]).unwrap();
    assert!(three.taker.receiver.resume(&terms()).is_err());
    assert!(three.taker.receiver.next_block().is_some());
    assert!(three.taker.receiver.resume(&terms()).is_err());
    let _ = three.taker.receiver.applied();
    three.taker.receiver.resume(&terms()).unwrap();
    three.taker.receiver.close("closed");
    assert!(three.taker.receiver.resume(&terms()).is_err());
    assert!(three.taker.receiver.join(3).is_err());
}

/// What is held already must not be sent again.
#[test]
fn blocks_before_what_is_held() {
    let contract = mixed();
    let (mut sender, hello) = Sender::new(offer(&contract, 100)).unwrap();
    let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    let terms = |have| Terms {
        have_page: have_page(&contract, 100, have),
        streams: 2,
        ..terms()
    };
    let expected = expectation(&contract, 100);
    let nothing = Taker::accept(&hello, &expected, 0, &terms(0)).unwrap().1;
    let (header, payload) = split(&nothing);
    sender.receive(&header, payload).unwrap();
    for (block, fits) in [(0..64, false), (63..100, false), (64..100, true)] {
        let (mut taker, _) = Taker::accept(&hello, &expected, 64, &terms(64)).unwrap();
        assert_eq!(taker.receiver.next().full, 64);
        let mut main = sender.outbound();
        let block = super::driver::block(&contract, tandem_kv::Section::Full, block);
        let frame = segment(&contract, &block, &mut main);
        let result = taker.take(&frame);
        if fits {
            assert_eq!(result, Ok(Step::Block));
        } else {
            named(result, "block_start");
        }
    }
}

/// The only segment of a block, cut for a handoff that holds nothing.
fn segment(contract: &Contract, block: &KvBlock, out: &mut Outbound) -> Vec<u8> {
    let mut sender = Sender::new(offer(contract, 100)).unwrap().0;
    let have = block.tokens.start;
    let accept = tandem_kv::message::Accept {
        session: "a".into(),
        stream: "b".into(),
        streams: 1,
        credit_bytes: 1,
        have_tokens: have,
        have_page: have_page(contract, 100, have),
        have_window: 0,
        decode_rates: DecodeRates::default(),
    };
    let frame = tandem_kv::message::control_frame(Kind::Accept, super::driver::HANDOFF, 0, &accept)
        .unwrap();
    let (header, payload) = split(&frame);
    sender.receive(&header, payload).unwrap();
    let (_, mut cutter): (u64, Cutter) = sender.open(block).unwrap();
    let mut encoder = tandem_kv::codec::Encoder::new().unwrap();
    let segment = cutter
        .next(&block.planes, Codec::Raw, &mut encoder)
        .unwrap()
        .unwrap();
    super::driver::frame(out, &segment)
}
