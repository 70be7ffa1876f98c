//! Payloads of the control frames, as JSON.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::adaptive::DecodeRates;
use crate::contract::{Contract, Difference, Section};
use crate::frame::{Header, Kind, encode_frame};
use crate::plane::PerSection;
use crate::text::{shorten, text_of_a_peer};

/// Sender to receiver, first frame of the main connection of a handoff.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The receiver's single-use permission, hex: its ticket, or after a broken connection the
    /// session of the last accept.
    pub ticket: String,
    /// The sender's contract.
    pub contract: Contract,
    /// KV covers tokens `[0, kv_end)`.
    pub kv_end: u32,
    /// Tokens that follow the prompt which the ticket is for: an answer whose KV is handed back.
    pub continuation: Vec<u32>,
    /// [`crate::digest::token_digest`] of the prompt and the continuation, hex.
    pub token_digest: String,
    /// Bytes of rows that the sender computes, and sends, at the same time: at most those of the blocks of one step;
    /// 0 if all of its blocks are whole when it opens them. The receiver gives [credit for
    /// them](crate::receiver::credit_for) if it has the memory.
    pub step_bytes: u64,
    /// Tokens before this were computed in batches that every prompt has which begins with them, at most `kv_end`: the
    /// receiver keeps no more as the rows of such a prompt.
    pub exact_end: u32,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello")
            .field("kv_end", &self.kv_end)
            .field("n_continuation", &self.continuation.len())
            .field("step_bytes", &self.step_bytes)
            .finish_non_exhaustive()
    }
}

/// Sender to receiver, first frame of each further connection of a handoff. The receiver answers with a beat
/// on that connection, or closes it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The stream secret of the accept, hex.
    pub stream: String,
}

impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join").finish_non_exhaustive()
    }
}

/// Receiver to sender: the handoff may start, or go on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accept {
    /// What a hello on a new connection names as its ticket, should this one break, hex.
    pub session: String,
    /// What a join names, hex.
    pub stream: String,
    /// Connections of this handoff, the main one included.
    pub streams: u32,
    /// Bytes of blocks that may be sent without being acknowledged. One block may exceed it alone.
    pub credit_bytes: u64,
    /// Full-attention KV of tokens `[0, have_tokens)` is there already and must not be sent.
    pub have_tokens: u32,
    /// [`crate::page::PageId`] of the last complete page of these tokens, hex; absent if there is none.
    pub have_page: Option<String>,
    /// Rows of the window layers of the tokens from the start of the window to `have_window` are there
    /// already and must not be sent; 0 if there are none.
    pub have_window: u32,
    /// How fast the receiver decodes.
    pub decode_rates: DecodeRates,
}

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accept")
            .field("streams", &self.streams)
            .field("credit_bytes", &self.credit_bytes)
            .field("have_tokens", &self.have_tokens)
            .field("have_window", &self.have_window)
            .finish_non_exhaustive()
    }
}

/// Why a handoff was refused before any KV moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The contracts differ.
    Contract,
    /// The ticket is unknown, used, expired, or another peer's.
    Ticket,
    /// The sender prefilled other tokens.
    Tokens,
    /// The first frame was not a readable hello or join.
    Hello,
    /// The receiver has no memory for a further handoff now.
    Busy,
}

/// Receiver to sender: the handoff may not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refuse {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason, naming the field and both values.
    #[serde(deserialize_with = "text_of_a_peer")]
    pub message: String,
    /// Every differing field of the contract; `ours` is the receiver's value.
    pub differences: Vec<Difference>,
}

/// Sender to receiver: everything has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Number of segments sent since the last accept.
    pub segments: u32,
    /// Bytes of their rows, before encoding.
    pub raw_bytes: u64,
    /// Digest of the [`Manifest`] over all blocks sent since the last accept, hex.
    pub manifest: String,
}

/// Either way: the handoff ends here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// The reason, for a person.
    #[serde(deserialize_with = "text_of_a_peer")]
    pub reason: String,
}

/// A control payload that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} message: {reason}")]
pub struct MessageError {
    /// The kind of frame.
    pub kind: Kind,
    /// What is wrong, naming the field.
    pub reason: String,
}

/// Reads the JSON payload of a control frame.
///
/// # Errors
/// Names the field that is missing, unknown or of the wrong type.
pub fn parse<T: DeserializeOwned>(kind: Kind, payload: &[u8]) -> Result<T, MessageError> {
    let fail = |reason: String| MessageError {
        kind,
        reason: shorten(&reason),
    };
    let mut json = serde_json::Deserializer::from_slice(payload);
    let message = serde_path_to_error::deserialize(&mut json).map_err(|e| fail(e.to_string()))?;
    json.end().map_err(|e| fail(e.to_string()))?;
    Ok(message)
}

/// The JSON payload of a control frame.
///
/// # Errors
/// If the message cannot be serialised or exceeds the limit of its kind.
pub fn control_payload<T: Serialize>(kind: Kind, message: &T) -> Result<Vec<u8>, MessageError> {
    let fail = |reason: String| MessageError { kind, reason };
    let payload = serde_json::to_vec(message).map_err(|e| fail(e.to_string()))?;
    if payload.len() > kind.max_payload() as usize {
        return Err(fail(format!("{} bytes exceed the limit", payload.len())));
    }
    Ok(payload)
}

/// A control frame with a JSON payload, as bytes.
///
/// # Errors
/// If the message cannot be serialised or exceeds the limit of its kind.
pub fn control_frame<T: Serialize>(
    kind: Kind,
    handoff: u64,
    sequence: u32,
    message: &T,
) -> Result<Vec<u8>, MessageError> {
    let payload = control_payload(kind, message)?;
    Ok(encode_frame(
        Header::control(kind, handoff, sequence),
        &payload,
    ))
}

/// An abort frame. The reason is shortened to the limit of strings.
#[must_use]
pub fn abort_frame(handoff: u64, sequence: u32, reason: &str) -> Vec<u8> {
    let reason = shorten(reason);
    control_frame(Kind::Abort, handoff, sequence, &Abort { reason }).unwrap_or_else(|_| {
        encode_frame(
            Header::control(Kind::Abort, handoff, sequence),
            b"{\"reason\":\"\"}",
        )
    })
}

/// Digest over the segments of one block, in their order.
#[derive(Debug, Clone)]
pub struct BlockDigest {
    hasher: blake3::Hasher,
    segments: u32,
    raw_bytes: u64,
}

impl Default for BlockDigest {
    fn default() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key("tandem block v2"),
            segments: 0,
            raw_bytes: 0,
        }
    }
}

impl BlockDigest {
    /// Adds a segment. The header covers the payload by its checksum; its place in the stream is
    /// left out, because blocks may travel on any stream.
    pub fn add(&mut self, header: &Header) {
        let header = Header {
            sequence: 0,
            ..*header
        };
        self.hasher.update(&header.encode());
        self.segments = self.segments.saturating_add(1);
        self.raw_bytes += u64::from(header.raw_len);
    }

    /// Bytes of the rows so far, before encoding.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }
}

/// Digest over all blocks since the last accept, those of each section in the order of tokens; kept by
/// both ends and compared at commit.
#[derive(Debug, Clone)]
pub struct Manifest {
    blocks: PerSection<blake3::Hasher>,
    segments: u32,
    raw_bytes: u64,
}

impl Default for Manifest {
    fn default() -> Self {
        let of_blocks = || blake3::Hasher::new_derive_key("tandem section v3");
        Self {
            blocks: PerSection {
                full: of_blocks(),
                window: of_blocks(),
            },
            segments: 0,
            raw_bytes: 0,
        }
    }
}

impl Manifest {
    /// Adds the next block of a section.
    pub fn add(&mut self, section: Section, block: &BlockDigest) {
        self.blocks[section].update(block.hasher.finalize().as_bytes());
        self.segments = self.segments.saturating_add(block.segments);
        self.raw_bytes += block.raw_bytes;
    }

    /// The commit message for what has been added so far.
    #[must_use]
    pub fn commit(&self) -> Commit {
        let mut all = blake3::Hasher::new_derive_key("tandem manifest v3");
        all.update(self.blocks.full.finalize().as_bytes());
        all.update(self.blocks.window.finalize().as_bytes());
        Commit {
            segments: self.segments,
            raw_bytes: self.raw_bytes,
            manifest: all.finalize().to_hex().to_string(),
        }
    }
}
