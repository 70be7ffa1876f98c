//! Bytes written down once: a change of them is a change of the wire format and needs another
//! [`WIRE_VERSION`], a line in the history of `docs/wire-format.md`, and new constants here.
//!
//! The constants were checked with independent implementations of XXH3 and BLAKE3.

use tandem_kv::codec::Codec;
use tandem_kv::digest::token_digest;
use tandem_kv::frame::{HEADER_BYTES, Header, Kind, WIRE_VERSION};
use tandem_kv::{ElementType, Section};

use super::driver::{mixed, prompt, replay, run, split};

/// A segment header in which every field has another value, in hex.
pub const HEADER_HEX: &str = "544e444d0100041121222324252627283132333441424300515253000001020010111200030201002021220061627172818283848586878891a1b1002235cf07";
/// BLAKE3 of the frames from sender to receiver of [`small`].
const FORWARD_BLAKE3: &str = "81b4e973478b8decb66c40a320d14759136d48f3971fdd3d3eb98b43c5881bda";
/// BLAKE3 of the frames from receiver to sender of [`small`].
const BACKWARD_BLAKE3: &str = "a36cca0fd093e95db7e6d6546d78dcd31d05751ed565768476850163380b7819";
/// First frame after the hello of [`small`], in hex: header and 24 bytes of rows.
pub const SEGMENT_HEX: &str = "544e444d01000400efcdab89674523010100000018000000180000000000000002000000000000000200000000000300d3cfe2155ad1a25d0001010072278ba0009e3cda23c160fed775fb995ffd822136d573115af89735";
/// Digest of tokens 3, 10, 17, 24, 31, 38.
pub const TOKEN_DIGEST: &str = "0dc24467dc182c480b2992f490d95edda9b9cba13da14a4f31c27a8352fa87ad";
/// Payload of the commit of [`small`].
pub const COMMIT_JSON: &str = r#"{"segments":3,"raw_bytes":92,"manifest":"b66f1c2d56497792b0f716606c57e37d18cb079e62c4d240425470b39351969f"}"#;

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
    let commit = sent.forward.last().unwrap();
    assert_eq!(split(commit).1, COMMIT_JSON.as_bytes());
    let hash = |frames: &[Vec<u8>]| blake3::hash(&frames.concat()).to_hex().to_string();
    assert_eq!(hash(&sent.forward), FORWARD_BLAKE3);
    assert_eq!(hash(&sent.backward), BACKWARD_BLAKE3);
    assert!(replay(sent.expectation(), &sent.stream()).committed);
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
    assert_eq!(WIRE_VERSION, 1);
    assert_eq!((Codec::Raw.wire(), ElementType::F16.wire()), (0, 1));
    assert_eq!((Section::Full.wire(), Section::Window.wire()), (0, 1));
    for n in 0..=u8::MAX {
        assert_eq!(Codec::from_wire(n).map(Codec::wire), (n < 4).then_some(n));
        assert_eq!(
            Section::from_wire(n).map(Section::wire),
            (n < 2).then_some(n)
        );
    }
}
