//! The frame: a 64-byte header and a payload.
//!
//! The header has its own checksum, so that it can be trusted before the payload
//! has arrived; [`Header::parse`] checks every length against a limit before the
//! caller allocates anything. All integers are little-endian. Byte table: `docs/wire-format.md`.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::limits::{MAX_CONTROL_PAYLOAD, MAX_SEGMENT_PAYLOAD, MAX_TOKENS};

/// First four bytes of every frame: `TNDM`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TNDM");
/// Version of the wire format.
pub const WIRE_VERSION: u16 = 9;
/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sender to receiver, first: who sends what for which ticket (JSON).
    Hello,
    /// Receiver to sender: go on (JSON).
    Accept,
    /// Receiver to sender: no KV may be sent (JSON).
    Refuse,
    /// Sender to receiver: rows of some layers of a block.
    Segment,
    /// Receiver to sender: the block that ends here has been applied, or kept as a part of the window (no
    /// payload).
    Ack,
    /// Sender to receiver: everything has been sent (JSON manifest).
    Commit,
    /// Receiver to sender: everything has been applied (JSON).
    Committed,
    /// Either way: the handoff ends here (JSON).
    Abort,
    /// Either way: still computing, or still applying (no payload). Bounds silence, not work.
    Beat,
    /// Sender to receiver, after the commit: what the sender computed for the last token (JSON).
    Receipt,
}

impl Kind {
    /// True for what a receiver says: nothing else is read from it.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        match self {
            Self::Accept
            | Self::Refuse
            | Self::Ack
            | Self::Committed
            | Self::Abort
            | Self::Beat => true,
            Self::Hello | Self::Segment | Self::Commit | Self::Receipt => false,
        }
    }

    /// The number of this kind on the wire.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Accept => 2,
            Self::Refuse => 3,
            Self::Segment => 4,
            Self::Ack => 5,
            Self::Commit => 6,
            Self::Committed => 7,
            Self::Abort => 8,
            Self::Beat => 9,
            Self::Receipt => 10,
        }
    }

    /// The kind with this wire number.
    #[must_use]
    pub const fn from_wire(n: u8) -> Option<Self> {
        Some(match n {
            1 => Self::Hello,
            2 => Self::Accept,
            3 => Self::Refuse,
            4 => Self::Segment,
            5 => Self::Ack,
            6 => Self::Commit,
            7 => Self::Committed,
            8 => Self::Abort,
            9 => Self::Beat,
            10 => Self::Receipt,
            _ => return None,
        })
    }

    /// Largest payload of this kind, in bytes.
    #[must_use]
    pub const fn max_payload(self) -> u32 {
        match self {
            Self::Segment => MAX_SEGMENT_PAYLOAD,
            Self::Ack | Self::Beat => 0,
            _ => MAX_CONTROL_PAYLOAD,
        }
    }
}

/// The fields of a header. Those that a kind does not use are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Wire number of the codec (segments).
    pub codec: u8,
    /// Identifies the handoff on its connection; chosen by the receiver's ticket.
    pub handoff: u64,
    /// Number of this frame in its direction, from 0.
    pub sequence: u32,
    /// Bytes that follow the header.
    pub payload_len: u32,
    /// Bytes of the payload after decoding (segments).
    pub raw_len: u32,
    /// First token of the rows (segments); of the block (acks).
    pub token_start: u32,
    /// One past the last token of the rows (segments); of the block (acks).
    pub token_end: u32,
    /// First token of the block that the rows belong to.
    pub block_start: u32,
    /// One past the last token of the block.
    pub block_end: u32,
    /// First layer.
    pub layer_start: u16,
    /// One past the last layer; layers of other sections in between are not included.
    pub layer_end: u16,
    /// xxh3-64 of the payload.
    pub payload_checksum: u64,
    /// Wire number of the section.
    pub section: u8,
    /// Wire number of the element type of K.
    pub key_type: u8,
    /// Wire number of the element type of V.
    pub value_type: u8,
}

/// A header that is not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes are wrong: not a tandem peer, or the stream is out of step.
    #[error("frame field `magic`: not a tandem frame")]
    Magic,
    /// The peer speaks another version.
    #[error("frame field `version`: ours {WIRE_VERSION}, theirs {0}; update the older node")]
    Version(u16),
    /// The header was damaged.
    #[error("frame field `header_checksum` does not match")]
    HeaderChecksum,
    /// The payload was damaged.
    #[error("frame field `payload_checksum` does not match")]
    PayloadChecksum,
    /// Not a kind of frame.
    #[error("frame field `kind`: {0} is unknown")]
    Kind(u8),
    /// A reserved byte is not zero.
    #[error("frame field `reserved` is not zero")]
    Reserved,
    /// A length or range is beyond its limit.
    #[error("frame field `{field}`: {value} exceeds the limit {limit}")]
    Limit {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A range ends before it starts.
    #[error("frame field `{0}`: range ends before it starts")]
    Range(&'static str),
    /// A field that this kind of frame does not use is not zero.
    #[error("frame field `{0}` must be zero in this kind of frame")]
    Unused(&'static str),
}

impl Header {
    /// A header of a control frame, with all segment fields zero and lengths still unset.
    #[must_use]
    pub const fn control(kind: Kind, handoff: u64, sequence: u32) -> Self {
        Self {
            kind,
            codec: 0,
            handoff,
            sequence,
            payload_len: 0,
            raw_len: 0,
            token_start: 0,
            token_end: 0,
            block_start: 0,
            block_end: 0,
            layer_start: 0,
            layer_end: 0,
            payload_checksum: 0,
            section: 0,
            key_type: 0,
            value_type: 0,
        }
    }

    /// The 64 bytes of this header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &WIRE_VERSION.to_le_bytes());
        put(6, &[self.kind.wire(), self.codec]);
        put(8, &self.handoff.to_le_bytes());
        put(16, &self.sequence.to_le_bytes());
        put(20, &self.payload_len.to_le_bytes());
        put(24, &self.raw_len.to_le_bytes());
        put(28, &self.token_start.to_le_bytes());
        put(32, &self.token_end.to_le_bytes());
        put(36, &self.block_start.to_le_bytes());
        put(40, &self.block_end.to_le_bytes());
        put(44, &self.layer_start.to_le_bytes());
        put(46, &self.layer_end.to_le_bytes());
        put(48, &self.payload_checksum.to_le_bytes());
        put(56, &[self.section, self.key_type, self.value_type, 0]);
        let sum = header_checksum(&out);
        out[60..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads and checks a header: magic, version, checksum, kind, reserved bytes, every
    /// length and range against its limit, and that fields the kind does not use are zero.
    ///
    /// # Errors
    /// Names the field at fault.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        if u32_at(bytes, 0) != MAGIC {
            return Err(FrameError::Magic);
        }
        let version = u16_at(bytes, 4);
        if version != WIRE_VERSION {
            return Err(FrameError::Version(version));
        }
        if u32_at(bytes, 60) != header_checksum(bytes) {
            return Err(FrameError::HeaderChecksum);
        }
        if bytes[59] != 0 {
            return Err(FrameError::Reserved);
        }
        let header = Self {
            kind: Kind::from_wire(bytes[6]).ok_or(FrameError::Kind(bytes[6]))?,
            codec: bytes[7],
            handoff: u64_at(bytes, 8),
            sequence: u32_at(bytes, 16),
            payload_len: u32_at(bytes, 20),
            raw_len: u32_at(bytes, 24),
            token_start: u32_at(bytes, 28),
            token_end: u32_at(bytes, 32),
            block_start: u32_at(bytes, 36),
            block_end: u32_at(bytes, 40),
            layer_start: u16_at(bytes, 44),
            layer_end: u16_at(bytes, 46),
            payload_checksum: u64_at(bytes, 48),
            section: bytes[56],
            key_type: bytes[57],
            value_type: bytes[58],
        };
        header.check_limits()?;
        header.check_unused()?;
        Ok(header)
    }

    fn check_limits(&self) -> Result<(), FrameError> {
        let limits = [
            ("payload_len", self.payload_len, self.kind.max_payload()),
            ("raw_len", self.raw_len, MAX_SEGMENT_PAYLOAD),
            ("token_end", self.token_end, MAX_TOKENS),
            ("block_end", self.block_end, MAX_TOKENS),
        ];
        for (field, value, limit) in limits {
            if value > limit {
                return Err(FrameError::Limit {
                    field,
                    value: u64::from(value),
                    limit: u64::from(limit),
                });
            }
        }
        let ranges = [
            ("tokens", self.token_start, self.token_end),
            ("block", self.block_start, self.block_end),
            ("layers", self.layer_start.into(), self.layer_end.into()),
        ];
        for (field, start, end) in ranges {
            if start > end {
                return Err(FrameError::Range(field));
            }
        }
        Ok(())
    }

    fn check_unused(&self) -> Result<(), FrameError> {
        let of_segments = [
            ("codec", u32::from(self.codec)),
            ("raw_len", self.raw_len),
            ("block_start", self.block_start),
            ("block_end", self.block_end),
            ("layer_start", self.layer_start.into()),
            ("layer_end", self.layer_end.into()),
            ("key_type", self.key_type.into()),
            ("value_type", self.value_type.into()),
        ];
        let of_acks_too = [
            ("token_start", self.token_start),
            ("token_end", self.token_end),
            ("section", self.section.into()),
        ];
        let unused = match self.kind {
            Kind::Segment => return Ok(()),
            Kind::Ack => of_segments.iter().chain(&[]),
            _ => of_segments.iter().chain(&of_acks_too),
        };
        for (field, value) in unused {
            if *value != 0 {
                return Err(FrameError::Unused(field));
            }
        }
        Ok(())
    }

    /// Checks a payload that was read after this header.
    ///
    /// # Errors
    /// [`FrameError::PayloadChecksum`] if it is damaged or has another length.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        self.check_sum(&Checksum::of([payload]))
    }

    /// Like [`Self::check_payload`], for a payload that was summed while it was read.
    ///
    /// # Errors
    /// [`FrameError::PayloadChecksum`] if it is damaged or has another length.
    pub fn check_sum(&self, sum: &Checksum) -> Result<(), FrameError> {
        let length = u64::from(self.payload_len);
        if sum.length != length || sum.xxh3() != self.payload_checksum {
            return Err(FrameError::PayloadChecksum);
        }
        Ok(())
    }

    /// Sets length and checksum to those of a payload.
    #[must_use]
    pub fn with_parts<'a>(mut self, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let sum = Checksum::of(parts);
        self.payload_len = u32::try_from(sum.length).unwrap_or(u32::MAX);
        self.payload_checksum = sum.xxh3();
        self
    }
}

/// Header and payload of a frame, as bytes. Sets length and checksum of `header`.
///
/// # Panics
/// Never for payloads within [`Kind::max_payload`]; a larger one is cut off by no one and
/// would be refused by the peer, so it is a bug of the caller (checked in debug builds).
#[must_use]
pub fn encode_frame(mut header: Header, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= header.kind.max_payload() as usize);
    header.payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    header.payload_checksum = xxh3_64(payload);
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(payload);
    out
}

/// Length and XXH3-64 of a payload that comes in parts.
#[derive(Default, Clone)]
pub struct Checksum {
    hasher: Xxh3Default,
    length: u64,
}

impl Checksum {
    fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut sum = Self::default();
        for part in parts {
            sum.update(part);
        }
        sum
    }

    /// The next part.
    pub fn update(&mut self, part: &[u8]) {
        self.hasher.update(part);
        self.length += part.len() as u64;
    }

    fn xxh3(&self) -> u64 {
        self.hasher.digest()
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksum")
            .field("length", &self.length)
            .field("xxh3", &self.xxh3())
            .finish()
    }
}

fn header_checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let hash = xxh3_64(&bytes[..60]).to_le_bytes();
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
