//! `Header::parse`: what is refused before a payload is read.

use proptest::prelude::*;
use tandem_handoff::frame::{FrameError, HEADER_BYTES, Header, Kind, MAGIC, WIRE_VERSION};
use tandem_handoff::limits::{MAX_CONTROL_PAYLOAD, MAX_SEGMENT_PAYLOAD, MAX_TOKENS};

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Accept,
    Kind::Refuse,
    Kind::Segment,
    Kind::Ack,
    Kind::Commit,
    Kind::Committed,
    Kind::Abort,
    Kind::Beat,
    Kind::Receipt,
];

/// Bytes of a header with valid checksum after `change` to its bytes.
fn with_bytes(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> [u8; HEADER_BYTES] {
    let mut bytes = Header::control(Kind::Commit, 1, 2).encode();
    change(&mut bytes);
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes()[..4]);
    bytes
}

#[test]
fn fixed_fields_are_checked_in_order() {
    let table = [
        (with_bytes(|b| b[0] = 0), FrameError::Magic),
        (with_bytes(|b| b[4] = 1), FrameError::Version(1)),
        (with_bytes(|b| b[4] = 2), FrameError::Version(2)),
        (with_bytes(|b| b[4] = 3), FrameError::Version(3)),
        (with_bytes(|b| b[5] = 1), FrameError::Version(265)),
        (with_bytes(|b| b[59] = 1), FrameError::Reserved),
        (with_bytes(|b| b[6] = 0), FrameError::Kind(0)),
        (with_bytes(|b| b[6] = 11), FrameError::Kind(11)),
        (with_bytes(|b| b[6] = 255), FrameError::Kind(255)),
    ];
    for (bytes, expected) in table {
        assert_eq!(Header::parse(&bytes), Err(expected));
    }
    assert_eq!(&MAGIC.to_le_bytes(), b"TNDM");
    // Another version is named even if its header has another checksum.
    let mut bytes = with_bytes(|_| ());
    bytes[4] = 10;
    assert_eq!(Header::parse(&bytes), Err(FrameError::Version(10)));
    let message = FrameError::Version(9).to_string();
    assert!(message.contains(&format!("ours {WIRE_VERSION}, theirs 9")));
    let mut bytes = with_bytes(|_| ());
    bytes[30] = 1;
    assert_eq!(Header::parse(&bytes), Err(FrameError::HeaderChecksum));
}

#[test]
fn lengths_beyond_their_limit_are_refused_without_a_payload() {
    for kind in KINDS {
        let limit = match kind {
            Kind::Segment => MAX_SEGMENT_PAYLOAD,
            Kind::Ack | Kind::Beat => 0,
            _ => MAX_CONTROL_PAYLOAD,
        };
        let mut header = Header::control(kind, 1, 2);
        header.payload_len = limit;
        assert_eq!(Header::parse(&header.encode()), Ok(header));
        for value in [limit + 1, u32::MAX] {
            header.payload_len = value;
            let error = limit_error("payload_len", value, limit);
            assert_eq!(Header::parse(&header.encode()), error, "{kind:?}");
        }
    }
    type Set = fn(&mut Header, u32);
    let of_segments: [(&str, Set, u32); 3] = [
        ("raw_len", |h, v| h.raw_len = v, MAX_SEGMENT_PAYLOAD),
        ("token_end", |h, v| h.token_end = v, MAX_TOKENS),
        ("block_end", |h, v| h.block_end = v, MAX_TOKENS),
    ];
    for (field, set, limit) in of_segments {
        let mut header = Header::control(Kind::Segment, 1, 2);
        set(&mut header, limit);
        assert_eq!(Header::parse(&header.encode()), Ok(header));
        for value in [limit + 1, u32::MAX] {
            set(&mut header, value);
            let error = limit_error(field, value, limit);
            assert_eq!(Header::parse(&header.encode()), error);
        }
    }
}

fn limit_error(field: &'static str, value: u32, limit: u32) -> Result<Header, FrameError> {
    Err(FrameError::Limit {
        field,
        value: value.into(),
        limit: limit.into(),
    })
}

#[test]
fn ranges_do_not_end_before_they_start() {
    type Set = fn(&mut Header);
    let table: [(&str, Set); 3] = [
        ("tokens", |h| h.token_start = 1),
        ("block", |h| h.block_start = u32::MAX),
        ("layers", |h| h.layer_start = 1),
    ];
    for (field, set) in table {
        let mut header = Header::control(Kind::Segment, 1, 2);
        set(&mut header);
        assert_eq!(
            Header::parse(&header.encode()),
            Err(FrameError::Range(field))
        );
    }
}

#[test]
fn fields_that_a_kind_does_not_use_are_zero() {
    type Set = fn(&mut Header);
    let of_segments: [(&str, Set); 6] = [
        ("codec", |h| h.codec = 1),
        ("raw_len", |h| h.raw_len = 1),
        ("block_end", |h| h.block_end = 1),
        ("layer_end", |h| h.layer_end = 1),
        ("key_type", |h| h.key_type = 1),
        ("value_type", |h| h.value_type = 1),
    ];
    let of_acks_too: [(&str, Set); 2] = [
        ("token_end", |h| h.token_end = 1),
        ("section", |h| h.section = 1),
    ];
    for kind in KINDS {
        let unused = |field| match kind {
            Kind::Segment => None,
            _ => Some(FrameError::Unused(field)),
        };
        for (field, set) in of_segments {
            let mut header = Header::control(kind, 1, 2);
            set(&mut header);
            assert_eq!(Header::parse(&header.encode()).err(), unused(field));
        }
        for (field, set) in of_acks_too {
            let mut header = Header::control(kind, 1, 2);
            set(&mut header);
            let expected = unused(field).filter(|_| kind != Kind::Ack);
            assert_eq!(Header::parse(&header.encode()).err(), expected);
        }
    }
}

#[test]
fn wire_numbers_of_kinds_are_closed() {
    for n in 0..=u8::MAX {
        let kind = Kind::from_wire(n);
        assert_eq!(kind.map(Kind::wire), (1..=10).contains(&n).then_some(n));
    }
}

#[test]
fn payload_must_match_length_and_checksum() {
    let mut header = Header::control(Kind::Abort, 1, 2);
    header.payload_len = 2;
    header.payload_checksum = xxhash_rust::xxh3::xxh3_64(b"{}");
    assert_eq!(header.check_payload(b"{}"), Ok(()));
    for other in [b"".as_slice(), b"{", b"{ }", b"[]"] {
        assert_eq!(
            header.check_payload(other),
            Err(FrameError::PayloadChecksum)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes with a valid checksum: parsed or refused, and what is parsed encodes to the same.
    #[test]
    fn any_header_is_refused_or_read_back(noise in proptest::collection::vec((6usize..60, any::<u8>()), 0..24)) {
        let bytes = with_bytes(|b| for (at, value) in noise { b[at] = value; });
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
            prop_assert!(header.payload_len <= header.kind.max_payload());
        }
    }
}
