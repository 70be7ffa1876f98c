//! Bytes written down once: a change of them is a change of the wire format and needs another
//! [`WIRE_VERSION`], a line in the history of `docs/wire-format.md`, and new constants here.
//!
//! A second implementation, in another language with other implementations of XXH3 and BLAKE3, that was
//! written from that document gives the same constants.

use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::contract::Difference;
use tandem_handoff::digest::token_digest;
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind, WIRE_VERSION};
use tandem_handoff::message::{Abort, RefusalCode, Refuse, abort_frame, control_frame, parse};
use tandem_handoff::receipt::{Receipt, ReturnTicket, TokenScore};
use tandem_handoff::sender::Sender;
use tandem_handoff::{ElementType, KvBlock, Plane, PlaneKind, Section};

use super::driver::{contract, forged, full, mixed, offer, prompt, replay, run, send, split};

/// A segment header in which every field has another value, in hex.
pub const HEADER_HEX: &str = "544e444d0900041121222324252627283132333441424300515253000001020010111200030201002021220061627172818283848586878891a1b100691127bf";
/// BLAKE3 of the frames from sender to receiver of [`small`].
const FORWARD_BLAKE3: &str = "5981c0c862183d0e6a05b6885fe01b69c78e21a8f53c68a0c01a54b95c0d2357";
/// BLAKE3 of the frames from receiver to sender of [`small`].
const BACKWARD_BLAKE3: &str = "fb7f0ac878b7daa8976a6fd61b87543f21a7f41c6f1474e325a1441ff163e20c";
/// First frame after the hello of [`small`], in hex: header and 24 bytes of rows.
pub const SEGMENT_HEX: &str = "544e444d09000400efcdab89674523010100000018000000180000000000000002000000000000000200000000000300d3cfe2155ad1a25d00010100f67579e9009e3cda23c160fed775fb995ffd822136d573115af89735";
/// A `q8` segment: K of one token is 0, 1, 2, ... 31, V is 0, -1, -2, ... -31.
pub const ENCODED_HEX: &str = "544e444d09000402efcdab89674523010100000044000000800000000000000001000000000000000100000000000100b1175da4dc06d3150001010094a83e4bd0330004080c1014191d2125292d3135393d42464a4e52565a5e62666b6f73777b7fd03300fcf8f4f0ece7e3dfdbd7d3cfcbc7c3bebab6b2aeaaa6a29e9a95918d898581";
/// Digest of tokens 3, 10, 17, 24, 31, 38.
pub const TOKEN_DIGEST: &str = "0dc24467dc182c480b2992f490d95edda9b9cba13da14a4f31c27a8352fa87ad";
/// Payload of the accept of [`small`].
pub const ACCEPT_JSON: &str = r#"{"session":"0102030405060708090a0b0c0d0e0f10","credit_bytes":108,"have_tokens":0,"have_page":null,"have_window":0}"#;
/// Payload of the commit of [`small`].
pub const COMMIT_JSON: &str = r#"{"segments":4,"raw_bytes":92,"manifest":"92735506945835254bdc41bb8815716b5005b2997e3e5e282ba612335b8f93fd"}"#;
/// Payload of the confirmation of [`small`].
pub const COMMITTED_JSON: &str = r#"{"apply_ms":17}"#;
/// Payload of a receipt.
pub const RECEIPT_JSON: &str = r#"{"top":[{"token":1,"logprob":-0.5},{"token":3,"logprob":-1.25}],"hand_back":{"ticket":"ffeeddccbbaa99887766554433221100","handoff":72623859790382856,"port":7700}}"#;

/// The frame that refuses [`small`] for its contract.
pub const REFUSE_HEX: &str = "544e444d09000300efcdab8967452301000000008c0000000000000000000000000000000000000000000000000000008c626688eb6f75b400000000c75dd72f7b22636f6465223a22636f6e7472616374222c226d657373616765223a22636f6e7472616374206669656c64206077696e646f776020646966666572733a206f75727320342c207468656972732035222c22646966666572656e636573223a5b7b226669656c64223a2277696e646f77222c226f757273223a2234222c22746865697273223a2235227d5d7d";
/// The frame with which a sender ends [`small`] as its frame 3.
pub const ABORT_HEX: &str = "544e444d09000800efcdab89674523010300000022000000000000000000000000000000000000000000000000000000615f65a4428c318d00000000c8f291607b22726561736f6e223a2274686520726571756573742068617320656e646564227d";

pub fn header() -> Header {
    Header {
        kind: Kind::Segment,
        codec: 0x11,
        handoff: 0x2827_2625_2423_2221,
        sequence: 0x3433_3231,
        payload_len: 0x0043_4241,
        raw_len: 0x0053_5251,
        token_start: 0x0002_0100,
        token_end: 0x0012_1110,
        block_start: 0x0001_0203,
        block_end: 0x0022_2120,
        layer_start: 0x6261,
        layer_end: 0x7271,
        payload_checksum: 0x8887_8685_8483_8281,
        section: 0x91,
        key_type: 0xA1,
        value_type: 0xB1,
    }
}

fn small() -> super::driver::Recording {
    run(&mixed(), 5, &[2, 3], true)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn header_bytes() {
    let bytes = header().encode();
    assert_eq!(hex(&bytes), HEADER_HEX);
    assert_eq!(bytes.len(), HEADER_BYTES);
    assert_eq!(Header::parse(&bytes), Ok(header()));
}

#[test]
fn handoff_bytes() {
    let sent = small();
    assert_eq!(hex(&sent.forward[1]), SEGMENT_HEX);
    assert_eq!(split(&sent.backward[0]).1, ACCEPT_JSON.as_bytes());
    let commit = sent.forward.last().unwrap();
    assert_eq!(split(commit).1, COMMIT_JSON.as_bytes());
    let committed = sent.backward.last().unwrap();
    assert_eq!(split(committed).1, COMMITTED_JSON.as_bytes());
    // The manifest by its definition.
    let mut manifest = blake3::Hasher::new_derive_key("tandem manifest v4");
    for frame in &sent.forward {
        if split(frame).0.kind == Kind::Segment {
            let unnumbered = forged(frame, |h| h.sequence = 0);
            manifest.update(&unnumbered[..HEADER_BYTES]);
        }
    }
    let manifest = manifest.finalize().to_hex();
    assert!(COMMIT_JSON.contains(manifest.as_str()));
    let hash = |frames: &[Vec<u8>]| blake3::hash(&frames.concat()).to_hex().to_string();
    assert_eq!(hash(&sent.forward), FORWARD_BLAKE3);
    assert_eq!(hash(&sent.backward), BACKWARD_BLAKE3);
    assert!(replay(&sent.expectation(), &sent.terms, &sent.stream()).committed);
}

/// One layer of one head of 32 elements, and the block of [`ENCODED_HEX`].
fn numbers() -> (tandem_handoff::Contract, KvBlock) {
    let row = |sign: u16| {
        let half = |i: u16| half::f16::from_f32(f32::from(i)).to_bits() | sign;
        let row = (0..32).map(|i| if i == 0 { 0 } else { half(i) });
        row.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
    };
    let plane = |kind, sign| Plane {
        layer: 0,
        kind,
        data: row(sign).into(),
    };
    let block = KvBlock {
        section: Section::Full,
        tokens: 0..1,
        planes: vec![plane(PlaneKind::Key, 0), plane(PlaneKind::Value, 0x8000)],
    };
    (contract(0, vec![full(1, 32, 32)]), block)
}

#[test]
fn encoded_segment_bytes() {
    let (contract, block) = numbers();
    let (mut sender, _) = Sender::new(offer(&contract, 1)).unwrap();
    let (header, payload) = (
        Header::control(Kind::Accept, super::driver::HANDOFF, 0),
        ACCEPT_JSON,
    );
    sender
        .receive(&header.with_parts([payload.as_bytes()]), payload.as_bytes())
        .unwrap();
    let mut out = sender.outbound();
    let frames = send(&mut sender, &mut out, &block, Codec::Q8).unwrap();
    assert_eq!(
        frames.iter().map(|f| hex(f)).collect::<Vec<_>>(),
        [ENCODED_HEX]
    );
    // The same through the pieces that pumps use.
    let mut encoder = Encoder::new().unwrap();
    let run = tandem_handoff::codec::RunSpec::of(&contract, 0, PlaneKind::Key, 1).unwrap();
    let mut bytes = Vec::new();
    encoder
        .encode(Codec::Q8, &run, &block.planes[0].data, &mut bytes)
        .unwrap();
    assert_eq!(&split(&frames[0]).1[..34], bytes);
}

#[test]
fn last_words_bytes() {
    let refuse = Refuse {
        code: RefusalCode::Contract,
        message: "contract field `window` differs: ours 4, theirs 5".into(),
        differences: vec![Difference {
            field: "window".into(),
            ours: "4".into(),
            theirs: "5".into(),
        }],
    };
    let handoff = super::driver::HANDOFF;
    let frame = control_frame(Kind::Refuse, handoff, 0, &refuse).unwrap();
    assert_eq!(hex(&frame), REFUSE_HEX);
    assert_eq!(parse(Kind::Refuse, split(&frame).1), Ok(refuse));
    let frame = abort_frame(handoff, 3, "the request has ended");
    assert_eq!(hex(&frame), ABORT_HEX);
    let abort: Abort = parse(Kind::Abort, split(&frame).1).unwrap();
    assert_eq!(abort.reason, "the request has ended");
}

#[test]
fn receipt_bytes() {
    let score = |token, logprob| TokenScore { token, logprob };
    let receipt = Receipt {
        top: vec![score(1, -0.5), score(3, -1.25)],
        hand_back: Some(ReturnTicket {
            ticket: "ffeeddccbbaa99887766554433221100".into(),
            handoff: 0x0102_0304_0506_0708,
            port: 7700,
        }),
    };
    assert_eq!(serde_json::to_string(&receipt).unwrap(), RECEIPT_JSON);
    assert_eq!(parse(Kind::Receipt, RECEIPT_JSON.as_bytes()), Ok(receipt));
}

#[test]
fn digest_bytes() {
    assert_eq!(prompt(5), [3, 10, 17, 24, 31, 38]);
    assert_eq!(hex(&token_digest(&prompt(5))), TOKEN_DIGEST);
    // The count is part of it, and so is the order.
    assert_ne!(token_digest(&[]), token_digest(&[0]));
    assert_ne!(token_digest(&[1, 2]), token_digest(&[2, 1]));
}

#[test]
fn wire_numbers() {
    assert_eq!(WIRE_VERSION, 9);
    assert_eq!((Codec::Raw.wire(), ElementType::F16.wire()), (0, 1));
    assert_eq!((Section::Full.wire(), Section::Window.wire()), (0, 1));
    for n in 0..=u8::MAX {
        assert_eq!(Codec::from_wire(n).map(Codec::wire), (n < 3).then_some(n));
        assert_eq!(
            Section::from_wire(n).map(Section::wire),
            (n < 2).then_some(n)
        );
    }
}
