//! A handoff in memory: frames of a sender piped into a receiver and back.

use std::collections::VecDeque;
use std::ops::Range;

use tandem_kv::frame::{HEADER_BYTES, Header, Kind, encode_frame};
use tandem_kv::message::{Hello, parse};
use tandem_kv::plane::plane_bytes;
use tandem_kv::receiver::{Expectation, Receiver, Step};
use tandem_kv::sender::{Sender, SenderState};
use tandem_kv::{Contract, ElementType, KvBlock, LayerKind, LayerSpec, Plane, PlaneKind, Section};

pub const HANDOFF: u64 = 0x0123_4567_89AB_CDEF;
pub const TICKET: &str = "00112233445566778899aabbccddeeff";

pub fn layer(kind: LayerKind, kv_heads: u32, key_dim: u32, value_dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        kv_heads,
        key_dim,
        value_dim,
    }
}

pub fn full(kv_heads: u32, key_dim: u32, value_dim: u32) -> LayerSpec {
    layer(LayerKind::Full, kv_heads, key_dim, value_dim)
}

pub fn windowed(kv_heads: u32, key_dim: u32, value_dim: u32) -> LayerSpec {
    layer(LayerKind::Window, kv_heads, key_dim, value_dim)
}

pub fn contract(window: u32, layers: Vec<LayerSpec>) -> Contract {
    Contract {
        layout_version: 1,
        engine: "fake 1".into(),
        architecture: "llama".into(),
        quantisation: "F16".into(),
        weights: "aa".repeat(32),
        tokenizer: "bb".repeat(32),
        rope: "base=10000".into(),
        rotation: "none".into(),
        window,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers,
    }
}

/// Three layers of which the middle one has a window of 4 tokens.
pub fn mixed() -> Contract {
    contract(4, vec![full(1, 2, 1), windowed(2, 1, 1), full(1, 1, 2)])
}

/// A prompt of `kv_end` tokens and the last one, which the decoder evaluates itself.
pub fn prompt(kv_end: u32) -> Vec<u32> {
    (0..=kv_end).map(|i| i * 7 + 3).collect()
}

/// A block whose bytes tell layer, plane, position and section apart.
pub fn block(contract: &Contract, section: Section, tokens: Range<u32>) -> KvBlock {
    let mut planes = Vec::new();
    for layer in contract.section_layers(section) {
        for kind in [PlaneKind::Key, PlaneKind::Value] {
            let row = plane_bytes(contract, layer, kind, 1).unwrap();
            let mut data = Vec::new();
            for token in tokens.clone() {
                let seed = u64::from(token) << 16 | u64::from(layer) << 1 | kind as u64;
                data.extend((0..row).map(|i| {
                    let mixed = (seed * 1_000_003 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    mixed.to_be_bytes()[0]
                }));
            }
            planes.push(Plane { layer, kind, data });
        }
    }
    KvBlock {
        section,
        tokens,
        planes,
    }
}

/// The blocks of a handoff cut after `chunks` tokens each; the last chunk takes what is left.
pub fn blocks(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Vec<KvBlock> {
    let mut out = Vec::new();
    if !contract.section_layers(Section::Full).is_empty() {
        let (mut at, mut sizes) = (0, chunks.iter().copied());
        while at < kv_end {
            let end = kv_end.min(at + sizes.next().unwrap_or(kv_end).max(1));
            out.push(block(contract, Section::Full, at..end));
            at = end;
        }
    }
    if contract.has_window() && kv_end > 0 {
        let tokens = contract.window_start(kv_end)..kv_end;
        out.push(block(contract, Section::Window, tokens));
    }
    out
}

pub fn expectation(contract: &Contract, kv_end: u32) -> Expectation {
    Expectation {
        contract: contract.clone(),
        handoff: HANDOFF,
        tokens: prompt(kv_end),
        kv_end,
    }
}

pub fn split(frame: &[u8]) -> (Header, &[u8]) {
    let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = Header::parse(head).unwrap();
    header.check_payload(payload).unwrap();
    (header, payload)
}

/// The frame again after `change` to its header, with valid checksums.
pub fn forged(frame: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let (mut header, payload) = split(frame);
    change(&mut header);
    let mut out = header.encode().to_vec();
    out.extend_from_slice(payload);
    out
}

/// The frame again with another payload and the checksum of that.
pub fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    encode_frame(split(frame).0, payload)
}

/// What went over the wire in a handoff in which nothing went wrong.
pub struct Recording {
    pub contract: Contract,
    pub kv_end: u32,
    pub sent: Vec<KvBlock>,
    pub applied: Vec<KvBlock>,
    /// Sender to receiver: hello, segments, commit.
    pub forward: Vec<Vec<u8>>,
    /// Receiver to sender: accept, acks, committed.
    pub backward: Vec<Vec<u8>>,
}

impl Recording {
    pub fn stream(&self) -> Vec<u8> {
        self.forward.concat()
    }

    pub fn expectation(&self) -> Expectation {
        expectation(&self.contract, self.kv_end)
    }

    /// Indices in `forward` of the first segment of each block.
    pub fn block_starts(&self) -> Vec<usize> {
        let mut out: Vec<usize> = Vec::new();
        let mut previous = None;
        for (i, frame) in self.forward.iter().enumerate() {
            let (h, _) = split(frame);
            let block = (h.kind == Kind::Segment).then_some((h.section, h.block_start));
            if block.is_some() && block != previous {
                out.push(i);
            }
            previous = block;
        }
        out
    }
}

/// Runs a handoff; acknowledgements are held back as long as the credit lasts if `lazy`.
pub fn run(contract: &Contract, kv_end: u32, chunks: &[u32], lazy: bool) -> Recording {
    run_with(contract, kv_end, chunks, lazy, false)
}

/// Like [`run`], with a beat after each block.
pub fn run_with_beats(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Recording {
    run_with(contract, kv_end, chunks, true, true)
}

fn run_with(
    contract: &Contract,
    kv_end: u32,
    chunks: &[u32],
    lazy: bool,
    beats: bool,
) -> Recording {
    let sent = blocks(contract, kv_end, chunks);
    let (mut sender, hello) =
        Sender::new(contract.clone(), HANDOFF, TICKET, &prompt(kv_end), kv_end).unwrap();
    let (header, payload) = split(&hello);
    let hello_message: Hello = parse(header.kind, payload).unwrap();
    let (mut receiver, accept) =
        Receiver::accept(&hello_message, expectation(contract, kv_end)).unwrap();
    let mut out = Recording {
        contract: contract.clone(),
        kv_end,
        sent,
        applied: Vec::new(),
        forward: vec![hello],
        backward: Vec::new(),
    };
    answer(&mut sender, &mut out.backward, accept);
    let mut waiting: VecDeque<(Section, Range<u32>)> = VecDeque::new();
    for block in out.sent.clone() {
        while !sender.may_send() || (!lazy && !waiting.is_empty()) {
            let (section, tokens) = waiting.pop_front().expect("credit without a block");
            let ack = receiver.applied(section, &tokens);
            answer(&mut sender, &mut out.backward, ack);
        }
        for frame in sender.block(&block).unwrap() {
            let (header, payload) = split(&frame);
            receiver.check(&header).unwrap();
            if let Step::Apply(block) = receiver.frame(&header, payload).unwrap() {
                waiting.push_back((block.section, block.tokens.clone()));
                out.applied.push(block);
            }
            out.forward.push(frame);
        }
        if beats {
            let beat = sender.beat();
            let (header, payload) = split(&beat);
            receiver.check(&header).unwrap();
            assert_eq!(receiver.frame(&header, payload).unwrap(), Step::Wait);
            out.forward.push(beat);
        }
    }
    let commit = sender.commit().unwrap();
    let (header, payload) = split(&commit);
    receiver.check(&header).unwrap();
    assert_eq!(receiver.frame(&header, payload).unwrap(), Step::AllSent);
    out.forward.push(commit);
    assert_eq!(receiver.unapplied() as usize, waiting.len());
    while let Some((section, tokens)) = waiting.pop_front() {
        assert_eq!(receiver.finish(), None, "committed before all was applied");
        let ack = receiver.applied(section, &tokens);
        answer(&mut sender, &mut out.backward, ack);
    }
    let committed = receiver.finish().unwrap();
    assert_eq!(receiver.finish(), None, "committed twice");
    answer(&mut sender, &mut out.backward, committed);
    assert_eq!(sender.state(), SenderState::Committed);
    assert_eq!(sender.raw_bytes(), receiver.raw_bytes());
    out
}

fn answer(sender: &mut Sender, backward: &mut Vec<Vec<u8>>, frame: Vec<u8>) {
    let (header, payload) = split(&frame);
    sender.receive(&header, payload).unwrap();
    backward.push(frame);
}

/// What a receiver makes of a stream of bytes.
#[derive(Debug)]
pub struct Outcome {
    pub applied: Vec<KvBlock>,
    pub committed: bool,
    /// Why it ended, if not by a commit; `incomplete` if the bytes ended first.
    pub error: Option<String>,
}

/// Reads a stream like a decode node: header, check, payload, frame; applies at once.
pub fn replay(expected: Expectation, stream: &[u8]) -> Outcome {
    let mut applied = Vec::new();
    let result = read_stream(expected, stream, &mut applied);
    Outcome {
        applied,
        committed: result == Ok(true),
        error: match result {
            Ok(true) => None,
            Ok(false) => Some("incomplete".into()),
            Err(e) => Some(e),
        },
    }
}

/// True if committed, false if the bytes ended before that.
fn read_stream(
    expected: Expectation,
    stream: &[u8],
    applied: &mut Vec<KvBlock>,
) -> Result<bool, String> {
    let mut rest = stream;
    let Some((header, payload)) = next_frame(&mut rest, |_| Ok(()))? else {
        return Ok(false);
    };
    if (header.kind, header.handoff, header.sequence) != (Kind::Hello, HANDOFF, 0) {
        return Err("not a hello".into());
    }
    header.check_payload(payload).map_err(|e| e.to_string())?;
    let hello: Hello = parse(Kind::Hello, payload).map_err(|e| e.to_string())?;
    let (mut receiver, _) = Receiver::accept(&hello, expected).map_err(|r| r.message)?;
    let mut committed = false;
    while let Some((header, payload)) =
        next_frame(&mut rest, |h| receiver.check(h).map_err(|e| e.to_string()))?
    {
        match receiver
            .frame(&header, payload)
            .map_err(|e| e.to_string())?
        {
            Step::Wait => {}
            Step::Apply(block) => {
                let _ = receiver.applied(block.section, &block.tokens);
                applied.push(block);
            }
            Step::AllSent => committed = receiver.finish().is_some(),
        }
    }
    Ok(committed)
}

/// The next frame, if all of its bytes are there.
pub fn next_frame<'a>(
    rest: &mut &'a [u8],
    check: impl FnOnce(&Header) -> Result<(), String>,
) -> Result<Option<(Header, &'a [u8])>, String> {
    let Some((head, tail)) = rest.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let header = Header::parse(head).map_err(|e| e.to_string())?;
    check(&header)?;
    let Some((payload, tail)) = tail.split_at_checked(header.payload_len as usize) else {
        return Ok(None);
    };
    *rest = tail;
    Ok(Some((header, payload)))
}
