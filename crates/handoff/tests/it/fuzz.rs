//! Fuzzing of everything that reads bytes of a peer. Each target starts from what valid handoffs look
//! like, edits it, puts most of it right again, and checks what must hold whatever was sent.
//!
//! A run of the tests gives each target [`SHORT`]; `cargo xtask fuzz` gives more.

mod edits;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bolero::{TypeGenerator, check};
use tandem_handoff::codec::{Codec, Decoder, Encoder, RunSpec};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tandem_handoff::limits::{MAX_CHUNK_TOKENS, MAX_STRING, MAX_TOKENS, MAX_WINDOW_BYTES};
use tandem_handoff::message::{
    Abort, Accept, Commit, Hello, Manifest, MessageError, Refuse, parse,
};
use tandem_handoff::receipt::Receipt;
use tandem_handoff::receiver::{
    Covers, Expectation, Inbound, Receiver, ReceiverError, Step, Terms,
};
use tandem_handoff::segment::{block_tokens, window_bytes};
use tandem_handoff::sender::{Offer, Outbound, Sender, SenderState};
use tandem_handoff::{Contract, KvBlock, Section};

use super::driver::{
    HANDOFF, Manner, Recording, Taker, blocks, contract, full, mixed, offer, run_with, send, split,
    windowed,
};
use edits::{Edit, Repair, control, edit, edit_bytes, put_right, seal};

/// Time of each target in a run of the tests.
const SHORT: Duration = Duration::from_millis(250);

/// Valid handoffs: shapes, codecs, and how they are cut.
static RECORDED: LazyLock<Vec<Recording>> = LazyLock::new(|| {
    let wide = vec![
        full(1, 32, 64),
        windowed(1, 32, 32),
        full(1, 64, 32),
        full(1, 32, 32),
        full(2, 16, 32),
        full(1, 5, 3),
    ];
    let shapes: [(Contract, u32, &[u32]); 5] = [
        (mixed(), 5, &[2, 3]),
        (mixed(), 0, &[]),
        (contract(2, vec![windowed(1, 2, 3)]), 3, &[]),
        (contract(3, wide), 4, &[3, 1]),
        (contract(0, vec![full(1, 2, 2)]), 9, &[1; 9]),
    ];
    let recorded = shapes.iter().flat_map(|(contract, kv_end, chunks)| {
        let manners = Codec::ALL
            .into_iter()
            .flat_map(|codec| [(codec, 0), (codec, 3)]);
        manners.map(|(codec, mixed)| {
            let mut rows = blocks(contract, *kv_end, chunks);
            let data = rows.iter_mut().flat_map(|b| &mut b.planes);
            // Finite, so that the lossy codecs are used.
            data.for_each(|p| {
                p.data
                    .iter_mut()
                    .skip(1)
                    .step_by(2)
                    .for_each(|b| *b &= 0xC3)
            });
            let manner = Manner {
                lazy: true,
                beats: codec == Codec::Plane,
                codec,
                mixed,
            };
            run_with(contract, *kv_end, rows, manner)
        })
    });
    recorded.collect()
});

fn recorded(seed: u8) -> &'static Recording {
    &RECORDED[usize::from(seed) % RECORDED.len()]
}

#[derive(Debug, Clone, TypeGenerator)]
struct Edits {
    seed: u8,
    #[generator(bolero::produce::<Vec<Edit>>().with().len(0..6usize))]
    edits: Vec<Edit>,
    repair: Repair,
}

impl Edits {
    /// The frames of the seed after the edits.
    fn frames(&self, of: impl FnOnce(&Recording) -> Vec<Vec<u8>>) -> (Vec<Vec<u8>>, bool) {
        let sound = of(recorded(self.seed));
        let mut frames = sound.clone();
        self.edits.iter().for_each(|e| edit(&mut frames, e));
        put_right(&mut frames, self.repair);
        let changed = frames != sound;
        (frames, changed)
    }

    /// Bytes after the edits.
    fn bytes(&self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        self.edits.iter().for_each(|e| edit_bytes(&mut bytes, e));
        bytes
    }
}

/// Header, segments, commit, receipt.
fn forward(recording: &Recording) -> Vec<Vec<u8>> {
    let mut frames = recording.forward.clone();
    frames.push(recording.receipt.clone());
    frames
}

/// A header: what is read encodes to the same bytes and keeps to the limits.
#[test]
fn header() {
    check!()
        .with_type::<(Edits, bool)>()
        .with_test_time(SHORT)
        .for_each(|(edits, sealed)| {
            let frames = forward(recorded(edits.seed));
            let which = edits.edits.len() % frames.len();
            let mut bytes = edits.bytes(&frames[which][..HEADER_BYTES]);
            bytes.resize(HEADER_BYTES, 0);
            let Ok(mut head) = <[u8; HEADER_BYTES]>::try_from(bytes) else {
                return;
            };
            if *sealed {
                seal(&mut head);
            }
            if let Ok(header) = Header::parse(&head) {
                assert_eq!(header.encode(), head);
                assert!(header.payload_len <= header.kind.max_payload());
                assert!(header.token_start <= header.token_end);
                assert!(header.token_end <= MAX_TOKENS && header.block_end <= MAX_TOKENS);
            }
        });
}

/// What a receiver has given out must be whole, in order and once, whatever it was sent.
struct Given<'a> {
    recording: &'a Recording,
    next: u32,
    window: bool,
    applied: Vec<KvBlock>,
}

impl<'a> Given<'a> {
    fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            next: 0,
            window: false,
            applied: Vec::new(),
        }
    }

    fn take(&mut self, receiver: &mut Receiver) {
        while let Some(arrived) = receiver.next_block() {
            let block = arrived.block;
            block.validate(&self.recording.contract).unwrap();
            assert!(!self.window && !block.is_empty());
            match block.section {
                Section::Full => {
                    assert_eq!(block.tokens.start, self.next);
                    assert!(block.len() <= MAX_CHUNK_TOKENS);
                    self.next = block.tokens.end;
                }
                Section::Window => {
                    self.window = true;
                    let start = self.recording.contract.window_start(self.recording.kv_end);
                    assert_eq!(block.tokens, start..self.recording.kv_end);
                }
            }
            assert!(block.tokens.end <= self.recording.kv_end);
            self.applied.push(block);
            let _ = receiver.applied();
        }
        while receiver.ack_window().is_some() {}
    }

    /// All rows are there.
    fn complete(&self) -> bool {
        let contract = &self.recording.contract;
        let full = contract.section_layers(Section::Full).is_empty();
        let kv_end = self.recording.kv_end;
        (full || self.next == kv_end) && (self.window || !contract.has_window() || kv_end == 0)
    }
}

fn largest_block(recording: &Recording) -> u64 {
    let sections = Section::ALL.map(|s| recording.contract.section_layers(s));
    let bytes = sections.map(|layers| recording.contract.token_bytes(&layers));
    bytes.iter().max().unwrap() * u64::from(recording.kv_end)
}

fn start(recording: &Recording, hello: &Hello, terms: &Terms) -> Option<Taker> {
    let expected = recording.expectation();
    Some(Taker::accept(hello, &expected, 0, terms).ok()?.0)
}

/// A whole stream of frames, read as a decode node reads it.
#[test]
fn receiver() {
    check!()
        .with_type::<Edits>()
        .with_test_time(SHORT)
        .for_each(|edits| {
            let recording = recorded(edits.seed);
            let (frames, changed) = edits.frames(forward);
            let mut given = Given::new(recording);
            let mut committed = false;
            let result = read(recording, &frames.concat(), &mut given, &mut committed);
            assert!(!committed || given.complete(), "{result:?}");
            if !changed {
                assert!(committed && result.is_ok(), "{result:?}");
                assert_eq!(given.applied, recording.applied);
            }
            if edits.repair.none() {
                // Without sound checksums only what was sent is applied.
                let sent = &recording.applied[..given.applied.len()];
                assert_eq!(given.applied, sent);
            }
        });
}

fn read(
    recording: &Recording,
    stream: &[u8],
    given: &mut Given,
    committed: &mut bool,
) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let mut rest = stream;
    let Some((header, payload)) = super::driver::next_frame(&mut rest, |_| Ok(()))? else {
        return Ok(());
    };
    if header.kind != Kind::Hello {
        return Err("not a hello".into());
    }
    header.check_payload(payload).map_err(|e| text(&e))?;
    let hello: Hello = parse(Kind::Hello, payload).map_err(|e| text(&e))?;
    let Some(mut taker) = start(recording, &hello, &recording.terms) else {
        return Err("refused".into());
    };
    let limit = recording.terms.credit_bytes.max(largest_block(recording));
    while let Some((header, payload)) =
        super::driver::next_frame(&mut rest, |h| taker.check(h).map_err(|e| text(&e)))?
    {
        let step = taker.frame(&header, payload);
        assert!(taker.receiver.staged_bytes() <= limit);
        given.take(&mut taker.receiver);
        *committed |= taker.receiver.finish(Duration::ZERO).is_some();
        if let Err(e) = step {
            assert!(taker.receiver.over().is_some() || e.is_damage());
            return Err(text(&e));
        }
    }
    Ok(())
}

/// What the receiver does before and after a frame.
#[derive(Debug, Clone, Copy, TypeGenerator)]
struct Turn {
    /// 0: resumes; others: nothing.
    event: u8,
    apply: bool,
}

/// Frames of a handoff in any order, with resumes and late applying.
#[test]
fn resumes() {
    check!()
        .with_type::<(Edits, Vec<Turn>)>()
        .with_test_time(SHORT)
        .for_each(|(edits, turns)| {
            let recording = recorded(edits.seed);
            let (frames, _) = edits.frames(forward);
            let hello: Hello = parse(Kind::Hello, split(&recording.forward[0]).1).unwrap();
            let terms = recording.terms.clone();
            let Some(taker) = start(recording, &hello, &terms) else {
                panic!("a recorded hello was refused");
            };
            let mut world = World {
                given: Given::new(recording),
                receiver: taker.receiver,
                decoder: taker.decoder,
                inbound: (taker.inbound, 1),
                stale: Vec::new(),
                terms,
            };
            let mut turns = turns.iter().cycle();
            for frame in frames.get(1..).unwrap_or_default() {
                world.turn(turns.next().copied(), frame);
            }
        });
}

struct World<'a> {
    given: Given<'a>,
    receiver: Receiver,
    decoder: Decoder,
    /// The connection, and the number of its next frame.
    inbound: (Inbound, u32),
    stale: Vec<Inbound>,
    terms: Terms,
}

impl World<'_> {
    fn turn(&mut self, turn: Option<Turn>, frame: &[u8]) {
        let turn = turn.unwrap_or(Turn {
            event: 9,
            apply: true,
        });
        if turn.event.is_multiple_of(64) {
            self.given.take(&mut self.receiver);
            let over = self.receiver.over().is_some();
            let resumed = self.receiver.resume(&self.terms);
            assert_eq!(resumed.is_err(), over);
            let new = (self.receiver.inbound(), 1);
            let (old, _) = std::mem::replace(&mut self.inbound, new);
            if resumed.is_ok() {
                self.stale.push(old);
            }
        }
        self.frame(frame);
        let limit = self.terms.credit_bytes;
        let limit = limit.max(largest_block(self.given.recording));
        assert!(self.receiver.staged_bytes() <= limit);
        if turn.apply {
            self.given.take(&mut self.receiver);
        }
        if self.receiver.finish(Duration::ZERO).is_some() {
            self.given.take(&mut self.receiver);
            assert!(self.given.complete() && self.receiver.over().is_none());
        }
    }

    /// The frame with the number that its connection waits for.
    fn frame(&mut self, frame: &[u8]) {
        let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let mut head = *head;
        let (inbound, number) = &mut self.inbound;
        head[16..20].copy_from_slice(&number.to_le_bytes());
        seal(&mut head);
        let Ok(header) = Header::parse(&head) else {
            return;
        };
        for stale in &mut self.stale {
            let error = stale.check(&mut self.receiver, &header);
            assert_eq!(error, Err(ReceiverError::Over));
        }
        let receiver = &mut self.receiver;
        let was_over = receiver.over().is_some();
        if let Err(e) = inbound.check(receiver, &header) {
            assert!(receiver.over().is_some(), "{e}");
            return;
        }
        assert!(!was_over, "a frame after the end");
        if payload.len() != header.payload_len as usize {
            return;
        }
        match inbound.frame(receiver, &mut self.decoder, &header, payload) {
            Ok(Step::Receipt(receipt)) => receipt.check_lengths().unwrap(),
            Ok(_) => {}
            Err(e) => {
                assert!(receiver.over().is_some() || e.is_damage(), "{e}");
                return;
            }
        }
        *number += 1;
    }
}

/// JSON of a hello and what it is compared with: what passes is what was permitted.
#[test]
fn hello() {
    check!()
        .with_type::<Edits>()
        .with_test_time(SHORT)
        .for_each(|edits| {
            let recording = recorded(edits.seed);
            let sound = split(&recording.forward[0]).1;
            let bytes = edits.bytes(sound);
            let hello: Hello = match parse(Kind::Hello, &bytes) {
                Ok(hello) => hello,
                Err(e) => return short(&e),
            };
            let covers = [Covers::All, Covers::Beyond];
            let covers = covers[usize::from(edits.seed) % 2];
            let expected = Expectation {
                covers,
                mixed_quantisation: edits.seed % 2 == 1,
                ..recording.expectation()
            };
            match Receiver::check_hello(&hello, &expected) {
                Ok(kv_end) => {
                    let differences = recording.contract.differences(&hello.contract);
                    let may = |d: &tandem_handoff::contract::Difference| {
                        d.field == "quantisation" || d.field == "weights"
                    };
                    assert!(differences.iter().all(may), "{differences:?}");
                    let (ours, theirs) = (&recording.contract, &hello.contract);
                    let is_other = ours.quantisation != theirs.quantisation;
                    assert!(differences.is_empty() || (expected.mixed_quantisation && is_other));
                    assert_eq!(kv_end, hello.kv_end);
                    assert!(match covers {
                        Covers::All => kv_end == expected.kv_end,
                        Covers::Beyond => kv_end >= expected.kv_end,
                    });
                    assert!(hello.continuation.is_empty() || covers == Covers::Beyond);
                    assert!(hello.ticket.len() <= MAX_STRING);
                }
                Err(refuse) => assert!(!refuse.message.is_empty()),
            }
        });
}

fn short(error: &MessageError) {
    assert!(error.reason.len() <= MAX_STRING);
}

/// A contract within its bounds has sizes that can be computed.
#[test]
fn a_contract() {
    check!()
        .with_type::<Edits>()
        .with_test_time(SHORT)
        .for_each(|edits| {
            let contract = &recorded(edits.seed).contract;
            let sound = serde_json::to_vec(contract).unwrap();
            let Ok(contract) = parse::<Contract>(Kind::Hello, &edits.bytes(&sound)) else {
                return;
            };
            if contract.validate().is_err() {
                return;
            }
            assert_eq!(contract.differences(&contract), []);
            for section in Section::ALL {
                let tokens = block_tokens(&contract, section);
                assert!((1..=MAX_CHUNK_TOKENS).contains(&tokens));
            }
            for kv_end in [0, 1, MAX_TOKENS, u32::MAX] {
                let _ = window_bytes(&contract, kv_end);
            }
            let offer = Offer {
                contract: Arc::new(contract),
                ..offer(&mixed(), 5)
            };
            let large = window_bytes(&offer.contract, 5) > MAX_WINDOW_BYTES;
            assert_eq!(Sender::new(offer).is_err(), large);
        });
}

/// What a receiver says, to a sender that does something between any two frames.
#[test]
fn sender() {
    check!()
        .with_type::<(Edits, Vec<u8>)>()
        .with_test_time(SHORT)
        .for_each(|(edits, acts)| {
            let recording = recorded(edits.seed);
            let (frames, changed) = edits.frames(|r| r.backward.clone());
            let (sender, _) = Sender::new(offer(&recording.contract, recording.kv_end)).unwrap();
            let mut side = Side {
                out: sender.outbound(),
                sender,
                recording,
            };
            let mut acts = acts.iter().cycle();
            for frame in &frames {
                side.frame(frame);
                let act = acts.next().copied().unwrap_or(0);
                side.act(if changed { act } else { 0 });
            }
            if !changed {
                assert_eq!(side.sender.state(), SenderState::Committed);
            }
        });
}

struct Side<'a> {
    sender: Sender,
    out: Outbound,
    recording: &'a Recording,
}

impl Side<'_> {
    fn frame(&mut self, frame: &[u8]) {
        let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let Ok(header) = Header::parse(head) else {
            return;
        };
        let before = (self.sender.state(), self.sender.acknowledged());
        let result = self.sender.receive(&header, payload);
        let state = self.sender.state();
        let (next, acked) = (self.sender.next(), self.sender.acknowledged());
        for section in Section::ALL {
            assert!(acked[section] >= before.1[section]);
            assert!(acked[section] <= self.recording.kv_end);
            assert!(next[section] >= acked[section]);
        }
        match result {
            Ok(()) if state == SenderState::Committed => {
                assert_eq!(before.0, SenderState::Committing);
                assert_eq!(self.sender.in_flight(), 0);
            }
            Ok(()) => assert_ne!(state, SenderState::Failed),
            Err(_) => assert!(state == before.0 || state == SenderState::Failed),
        }
    }

    /// Sends what there is to send, or goes on over a new connection.
    fn act(&mut self, act: u8) {
        if act % 32 == 31 && self.sender.reconnect().is_ok() {
            self.out = self.sender.outbound();
            return;
        }
        let blocks = self.recording.sent.iter();
        for block in blocks {
            let next = self.sender.next()[block.section];
            if !block.tokens.contains(&next) {
                continue;
            }
            let part = block.part(next..block.tokens.end);
            let sent = send(&mut self.sender, &mut self.out, &part, Codec::Plane);
            if sent.is_err() {
                return;
            }
        }
        let _ = self.sender.commit();
    }
}

/// A receipt, edited as JSON and in its numbers: what is compared gives numbers.
#[test]
fn receipt() {
    check!()
        .with_type::<(Edits, Vec<f32>, Vec<f32>)>()
        .with_test_time(SHORT)
        .for_each(|(edits, theirs, ours)| {
            let sound = serde_json::to_vec(&Receipt::of(theirs, None)).unwrap();
            let Ok(receipt) = parse::<Receipt>(Kind::Receipt, &edits.bytes(&sound)) else {
                return;
            };
            for logits in [theirs, ours] {
                if let Ok(parity) = receipt.compare(logits) {
                    let numbers = [parity.kl, parity.margin, parity.max_difference];
                    assert!(
                        numbers.iter().all(|n| n.is_finite() && *n >= 0.0),
                        "{parity:?}"
                    );
                }
            }
        });
}

/// The other messages: read or refused, in few words.
#[test]
fn messages() {
    check!()
        .with_type::<Edits>()
        .with_test_time(SHORT)
        .for_each(|edits| {
            fn read<T: serde::de::DeserializeOwned + serde::Serialize>(kind: Kind, payload: &[u8]) {
                match parse::<T>(kind, payload) {
                    Ok(message) => drop(serde_json::to_vec(&message).unwrap()),
                    Err(e) => short(&e),
                }
            }
            let recording = recorded(edits.seed);
            let accept = edits.bytes(split(&recording.backward[0]).1);
            read::<Accept>(Kind::Accept, &accept);
            let commit = serde_json::to_vec(&Manifest::default().commit()).unwrap();
            read::<Commit>(Kind::Commit, &edits.bytes(&commit));
            let refuse = br#"{"code":"tokens","message":"a","differences":[{"field":"b","ours":"1","theirs":"2"}]}"#;
            read::<Refuse>(Kind::Refuse, &edits.bytes(refuse));
            read::<Abort>(Kind::Abort, &edits.bytes(br#"{"reason":"x"}"#));
            // An abort of any content ends a handoff.
            let (header, payload) = control(Kind::Abort, HANDOFF, 1, &edits.bytes(b"{\"reason\":1}"));
            let (mut sender, _) = Sender::new(offer(&mixed(), 5)).unwrap();
            assert!(sender.receive(&header, &payload).is_err());
            assert_eq!(sender.state(), SenderState::Failed);
        });
}

/// Runs and their bytes, by the number of the codec.
type Runs = BTreeMap<u8, Vec<(RunSpec, Vec<u8>)>>;

/// Runs of every shape, encoded.
static RUNS: LazyLock<Runs> = LazyLock::new(|| {
    let shapes = [
        (1, 64, 2),
        (2, 32, 3),
        (4, 8, 4),
        (1, 5, 3),
        (1, 128, 1),
        (3, 48, 1),
    ];
    let mut out = BTreeMap::new();
    for codec in Codec::ALL {
        let mut encoder = Encoder::new().unwrap();
        let runs = shapes.map(|(heads, dim, tokens)| RunSpec { heads, dim, tokens });
        let runs = runs.into_iter();
        let encoded = runs.map(|run| {
            let elements = u16::try_from(run.raw_bytes() / 2).unwrap();
            let half = |i: u16| 0x3800 | (i.wrapping_mul(7919) & 0x81FF);
            let raw: Vec<u8> = (0..elements).flat_map(|i| half(i).to_le_bytes()).collect();
            let mut bytes = Vec::new();
            encoder.encode(codec, &run, &raw, &mut bytes).unwrap();
            (run, bytes)
        });
        out.insert(codec.wire(), encoded.collect());
    }
    out
});

/// Edited runs: refused, or rows that this codec can give.
fn decoder(codec: Codec) {
    check!()
        .with_type::<Edits>()
        .with_test_time(SHORT)
        .for_each(|edits| {
            let runs = &RUNS[&codec.wire()];
            let (run, sound) = &runs[usize::from(edits.seed) % runs.len()];
            let bytes = edits.bytes(sound);
            let mut rows = vec![0xEE; usize::try_from(run.raw_bytes()).unwrap()];
            let Ok(used) = Decoder::new()
                .unwrap()
                .decode(codec, run, &bytes, &mut rows)
            else {
                return;
            };
            assert!(used <= bytes.len());
            assert!(codec.encoded_bytes(run).contains(&(used as u64)));
            let encoded = |rows: &[u8]| {
                let mut again = Vec::new();
                let mut encoder = Encoder::new().unwrap();
                encoder.encode(codec, run, rows, &mut again).map(|()| again)
            };
            // Whatever is decoded can be encoded. Rows of a lossy codec are finite, unless they went raw.
            let result = encoded(&rows);
            let raw = used as u64 == run.raw_bytes();
            if codec.is_lossless() {
                let mut twice = vec![0; rows.len()];
                let again = result.unwrap();
                Decoder::new()
                    .unwrap()
                    .decode(codec, run, &again, &mut twice)
                    .unwrap();
                assert_eq!(twice, rows);
            } else if !raw {
                let (halves, _) = rows.as_chunks::<2>();
                let finite = |h: &[u8; 2]| u16::from_le_bytes(*h) & 0x7C00 != 0x7C00;
                assert!(halves.iter().all(finite));
            }
        });
}

#[test]
fn raw() {
    decoder(Codec::Raw);
}

#[test]
fn plane() {
    decoder(Codec::Plane);
}

#[test]
fn q8() {
    decoder(Codec::Q8);
}
