//! A handoff in memory: frames of a sender piped into a receiver and back.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tandem_handoff::codec::{Codec, Decoder, Encoder};
use tandem_handoff::frame::{Checksum, HEADER_BYTES, Header, Kind, encode_frame};
use tandem_handoff::limits::{CREDIT_BYTES, MAX_BLOCK_BYTES};
use tandem_handoff::message::{Hello, Refuse, parse};
use tandem_handoff::page::{Namespace, Origin, PAGE_TOKENS, PageId};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::Receipt;
use tandem_handoff::receiver::{
    Covers, Expectation, Inbound, Receiver, ReceiverError, Step, Terms,
};
use tandem_handoff::segment::Segment;
use tandem_handoff::sender::{Offer, Outbound, Outgoing, Sender, SenderError, SenderState};
use tandem_handoff::{
    Contract, ElementType, KvBlock, LayerKind, LayerSpec, Plane, PlaneKind, Section,
};

pub const HANDOFF: u64 = 0x0123_4567_89AB_CDEF;
pub const TICKET: &str = "00112233445566778899aabbccddeeff";
/// Secrets of the accept.
pub const SESSION: &str = "0102030405060708090a0b0c0d0e0f10";

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
            let data = data.into();
            planes.push(Plane { layer, kind, data });
        }
    }
    KvBlock {
        section,
        tokens,
        planes,
    }
}

/// The blocks of a handoff cut after `chunks` tokens each; the last chunk takes what is left. Rows of the
/// window come with the full ones of the same tokens.
pub fn blocks(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Vec<KvBlock> {
    let mut out = Vec::new();
    let sections = Section::ALL
        .into_iter()
        .filter(|s| contract.has_section(*s));
    let sections: Vec<_> = sections.collect();
    // More than the largest block is refused.
    let bytes = sections
        .iter()
        .map(|&s| contract.token_bytes(&contract.section_layers(s)));
    let most = MAX_BLOCK_BYTES / bytes.max().unwrap();
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let (mut at, mut sizes) = (0, chunks.iter().copied());
    while at < kv_end {
        let size = sizes.next().unwrap_or(kv_end).clamp(1, most);
        let end = kv_end.min(at + size);
        for &section in &sections {
            let start = at.max(contract.section_start(section, kv_end));
            if start < end {
                out.push(block(contract, section, start..end));
            }
        }
        at = end;
    }
    out
}

/// What a receiver gives out of these blocks: full ones as they are, then the whole window.
pub fn given_out(sent: &[KvBlock]) -> Vec<KvBlock> {
    let (mut out, windows): (Vec<_>, Vec<_>) = sent
        .iter()
        .cloned()
        .partition(|b| b.section == Section::Full);
    let joined = windows.into_iter().reduce(|mut whole, part| {
        assert_eq!(whole.tokens.end, part.tokens.start);
        for (plane, more) in whole.planes.iter_mut().zip(part.planes) {
            plane.data.extend_from_slice(&more.data);
        }
        whole.tokens.end = part.tokens.end;
        whole
    });
    out.extend(joined);
    out
}

/// The page chain of the prompt.
pub fn pages(contract: &Contract, kv_end: u32) -> Vec<PageId> {
    let namespace = Namespace::new(Arc::new(contract.clone()), b"tenant", Origin::Exact);
    namespace.chain(&prompt(kv_end))
}

/// What a receiver that holds `have` tokens names as its last page.
pub fn have_page(contract: &Contract, kv_end: u32, have: u32) -> Option<String> {
    let count = have / PAGE_TOKENS;
    let last = count.checked_sub(1)?;
    Some(pages(contract, kv_end)[last as usize].to_string())
}

pub fn offer(contract: &Contract, kv_end: u32) -> Offer {
    Offer {
        contract: Arc::new(contract.clone()),
        handoff: HANDOFF,
        ticket: TICKET.into(),
        tokens: prompt(kv_end),
        continuation: 0,
        kv_end,
        pages: pages(contract, kv_end),
        step_bytes: 0,
        exact_end: kv_end,
    }
}

pub fn expectation(contract: &Contract, kv_end: u32) -> Expectation {
    Expectation {
        contract: Arc::new(contract.clone()),
        handoff: HANDOFF,
        tokens: prompt(kv_end),
        kv_end,
        covers: Covers::All,
        quality: Quality::Q8,
        mixed_quantisation: false,
    }
}

/// What a receiver says that it needed to apply.
const APPLYING: Duration = Duration::from_millis(17);

/// As much credit as we ever give.
pub fn terms() -> Terms {
    Terms {
        session: SESSION.into(),
        credit_bytes: CREDIT_BYTES,
        have_page: None,
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

/// A block as frames.
pub fn send(
    sender: &mut Sender,
    out: &mut Outbound,
    block: &KvBlock,
    codec: Codec,
) -> Result<Vec<Vec<u8>>, SenderError> {
    let mut encoder = Encoder::new().unwrap();
    let mut cutter = sender.open(block)?;
    let mut frames = Vec::new();
    while let Some(segment) = cutter.next(&block.planes, codec, &mut encoder)? {
        frames.push(frame(out, &segment));
    }
    sender.close(block.bytes());
    Ok(frames)
}

pub fn frame(out: &mut Outbound, segment: &Segment) -> Vec<u8> {
    let mut frame = out.segment(&segment.header).to_vec();
    frame.extend(segment.parts().concat());
    frame
}

/// Blocks that grow at the same time, a layer of each in turn, as frames.
pub fn send_mixed(
    sender: &mut Sender,
    out: &mut Outbound,
    blocks: &[KvBlock],
    codec: Codec,
) -> Result<Vec<Vec<u8>>, SenderError> {
    let mut encoder = Encoder::new().unwrap();
    let mut streamed = Vec::new();
    for block in blocks {
        let cutter = sender.open_streamed(block.section, block.tokens.clone())?;
        streamed.push((block, cutter, false));
    }
    let most = blocks.iter().map(|b| b.planes.len()).max().unwrap_or(0);
    let mut frames = Vec::new();
    for count in (2..=most).step_by(2) {
        // The blocks of a section begin in their order.
        let mut waits_for_first = Vec::new();
        for (block, cutter, begun) in &mut streamed {
            if waits_for_first.contains(&block.section) {
                continue;
            }
            let planes = &block.planes[..count.min(block.planes.len())];
            while let Some(segment) = cutter.next(planes, codec, &mut encoder)? {
                frames.push(frame(out, &segment));
                *begun = true;
            }
            if !*begun {
                waits_for_first.push(block.section);
            }
        }
    }
    for (block, cutter, _) in streamed {
        assert_eq!(cutter.left(), 0);
        sender.close(block.bytes());
    }
    Ok(frames)
}

/// A receiver with its connection.
pub struct Taker {
    pub receiver: Receiver,
    pub inbound: Inbound,
    pub decoder: Decoder,
}

impl Taker {
    /// Accepts this hello, and gives the accept frame.
    pub fn accept(
        hello: &Hello,
        expected: &Expectation,
        have: u32,
        terms: &Terms,
    ) -> Result<(Self, Vec<u8>), Box<Refuse>> {
        let kv_end = Receiver::check_hello(hello, expected)?;
        let (receiver, frame) = Receiver::accept(expected, kv_end, have, terms).unwrap();
        let taker = Self {
            inbound: receiver.inbound(),
            receiver,
            decoder: Decoder::new().unwrap(),
        };
        Ok((taker, frame))
    }

    pub fn check(&mut self, header: &Header) -> Result<(), ReceiverError> {
        self.inbound.check(&mut self.receiver, header)
    }

    /// A frame whose header passed [`Self::check`]. Raw rows go straight into the block for every
    /// second frame, as both ways must give the same.
    pub fn frame(&mut self, header: &Header, payload: &[u8]) -> Result<Step, ReceiverError> {
        if header.sequence.is_multiple_of(2)
            && header.kind == Kind::Segment
            && let Some(slices) = self.inbound.rows()
        {
            let mut rest = payload;
            let mut sum = Checksum::default();
            for slice in slices {
                let (now, later) = rest.split_at(slice.len());
                slice.copy_from_slice(now);
                // As it comes from a socket, in parts of any length.
                let (one, two) = now.split_at(now.len() / 3);
                sum.update(one);
                sum.update(two);
                rest = later;
            }
            assert!(rest.is_empty(), "`rows` are not `payload_len` bytes");
            self.inbound.rows_read(&sum)?;
            return self.inbound.complete(&mut self.receiver);
        }
        self.inbound
            .frame(&mut self.receiver, &mut self.decoder, header, payload)
    }

    pub fn take(&mut self, frame: &[u8]) -> Result<Step, ReceiverError> {
        let (header, payload) = split(frame);
        self.check(&header)?;
        self.frame(&header, payload)
    }

    /// Gives out and applies everything that is ready.
    pub fn apply(&mut self) -> Vec<KvBlock> {
        let mut out = Vec::new();
        while let Some(arrived) = self.receiver.next_block() {
            let _ = self.receiver.applied();
            out.push(arrived.block);
        }
        while self.receiver.ack_window().is_some() {}
        out
    }
}

/// What went over the wire in a handoff in which nothing went wrong.
pub struct Recording {
    pub contract: Contract,
    pub kv_end: u32,
    pub terms: Terms,
    pub sent: Vec<KvBlock>,
    pub applied: Vec<KvBlock>,
    /// Sender to receiver: hello, segments, commit.
    pub forward: Vec<Vec<u8>>,
    /// Sender to receiver, after the commit.
    pub receipt: Vec<u8>,
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

/// How a handoff is run.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Acknowledgements are held back as long as the credit lasts.
    pub lazy: bool,
    /// A beat after each block.
    pub beats: bool,
    pub codec: Codec,
    /// Up to so many blocks at the same time, as far as the credit lasts, a layer of each in turn.
    pub mixed: usize,
}

/// The first of `blocks` as frames.
fn send_some(
    sender: &mut Sender,
    outbound: &mut Outbound,
    blocks: &[KvBlock],
    manner: Manner,
) -> (usize, Vec<Vec<u8>>) {
    if manner.mixed == 0 {
        let frames = send(sender, outbound, &blocks[0], manner.codec).unwrap();
        return (1, frames);
    }
    let bytes = |count| blocks[..count].iter().map(KvBlock::bytes).sum();
    let most = manner.mixed.min(blocks.len());
    let fits = |count: &usize| *count == 1 || sender.may_send(bytes(*count));
    let count = (1..=most).rev().find(fits).unwrap();
    let frames = send_mixed(sender, outbound, &blocks[..count], manner.codec).unwrap();
    (count, frames)
}

/// Runs a handoff with raw rows; acknowledgements are held back as long as the credit lasts if `lazy`.
pub fn run(contract: &Contract, kv_end: u32, chunks: &[u32], lazy: bool) -> Recording {
    let sent = blocks(contract, kv_end, chunks);
    let manner = Manner {
        lazy,
        beats: false,
        codec: Codec::Raw,
        mixed: 0,
    };
    run_with(contract, kv_end, sent, manner)
}

/// Credit for this many of the blocks, which is soon used up.
pub fn credit_of(blocks: &[KvBlock], count: u64) -> u64 {
    let largest = blocks.iter().map(KvBlock::bytes).max();
    largest.unwrap_or(1).saturating_mul(count)
}

pub fn receipt() -> Receipt {
    let logits = [0.5, 3.0, -1.0, 2.5];
    Receipt::of(&logits, None)
}

pub fn run_with(contract: &Contract, kv_end: u32, sent: Vec<KvBlock>, manner: Manner) -> Recording {
    let terms = Terms {
        credit_bytes: credit_of(&sent, 3),
        ..terms()
    };
    let (mut sender, hello) = Sender::new(offer(contract, kv_end)).unwrap();
    let hello_message: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    let expected = expectation(contract, kv_end);
    let (mut taker, accept) = Taker::accept(&hello_message, &expected, 0, &terms).unwrap();
    let mut out = Recording {
        contract: contract.clone(),
        kv_end,
        terms,
        sent,
        applied: Vec::new(),
        forward: vec![hello],
        receipt: Vec::new(),
        backward: Vec::new(),
    };
    let mut outbound = sender.outbound();
    answer(&mut sender, &mut out.backward, accept);
    let sent = out.sent.clone();
    let mut rest = sent.as_slice();
    while let [block, ..] = rest {
        while !sender.may_send(block.bytes()) || (!manner.lazy && sender.in_flight() > 0) {
            apply(&mut taker, &mut sender, &mut out);
        }
        let (count, frames) = send_some(&mut sender, &mut outbound, rest, manner);
        rest = &rest[count..];
        for frame in frames {
            taker.take(&frame).unwrap();
            out.forward.push(frame);
        }
        if manner.beats {
            let beat = outbound.control(&Outgoing::beat());
            assert_eq!(taker.take(&beat).unwrap(), Step::Wait);
            out.forward.push(beat);
        }
    }
    let commit = outbound.control(&sender.commit().unwrap());
    assert_eq!(taker.take(&commit).unwrap(), Step::Commit);
    out.forward.push(commit);
    out.receipt = outbound.control(&sender.receipt(&receipt()).unwrap());
    assert_eq!(taker.take(&out.receipt).unwrap(), Step::Receipt(receipt()));
    let committed = loop {
        match taker.receiver.finish(APPLYING) {
            Some(frame) => break frame,
            None => apply(&mut taker, &mut sender, &mut out),
        }
    };
    assert_eq!(
        sender.in_flight(),
        0,
        "committed before all was acknowledged"
    );
    if manner.codec.is_lossless() {
        assert_eq!(out.applied, given_out(&out.sent));
    }
    assert_eq!(
        taker.receiver.finish(Duration::ZERO),
        None,
        "committed twice"
    );
    answer(&mut sender, &mut out.backward, committed);
    assert_eq!(sender.state(), SenderState::Committed);
    assert_eq!(sender.applying(), APPLYING);
    assert_eq!(sender.raw_bytes(), taker.receiver.raw_bytes());
    assert_eq!(taker.receiver.staged_bytes(), 0);
    out
}

/// A block of the window is acknowledged, or the oldest block is applied and acknowledged.
fn apply(taker: &mut Taker, sender: &mut Sender, out: &mut Recording) {
    if let Some(ack) = taker.receiver.ack_window() {
        return answer(sender, &mut out.backward, ack);
    }
    let arrived = taker.receiver.next_block().expect("credit without a block");
    let ack = taker.receiver.applied();
    assert_eq!(ack.is_some(), arrived.block.section == Section::Full);
    if let Some(ack) = ack {
        answer(sender, &mut out.backward, ack);
    }
    out.applied.push(arrived.block);
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
pub fn replay(expected: &Expectation, terms: &Terms, stream: &[u8]) -> Outcome {
    let mut applied = Vec::new();
    let result = read_stream(expected, terms, stream, &mut applied);
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
    expected: &Expectation,
    terms: &Terms,
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
    let (mut taker, _) = Taker::accept(&hello, expected, 0, terms).map_err(|r| r.message)?;
    let mut committed = false;
    while let Some((header, payload)) =
        next_frame(&mut rest, |h| taker.check(h).map_err(|e| e.to_string()))?
    {
        taker.frame(&header, payload).map_err(|e| e.to_string())?;
        applied.extend(taker.apply());
        committed |= taker.receiver.finish(Duration::ZERO).is_some();
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
