//! Payloads of the control frames, as JSON.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::contract::{Contract, Difference};
use crate::frame::{Header, Kind, encode_frame};
use crate::limits::MAX_STRING;

/// Sender to receiver, first frame of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The receiver's single-use permission, hex.
    pub ticket: String,
    /// The sender's contract.
    pub contract: Contract,
    /// KV covers tokens `[0, kv_end)` of the prompt.
    pub kv_end: u32,
    /// [`crate::digest::token_digest`] of the whole prompt, hex.
    pub token_digest: String,
}

/// Receiver to sender: the handoff may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accept {
    /// Blocks that may be sent without being acknowledged.
    pub credit_blocks: u32,
}

/// Why a handoff was refused before any KV moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The contracts differ.
    Contract,
    /// The ticket is unknown, used or expired.
    Ticket,
    /// The sender prefilled other tokens.
    Tokens,
    /// The first frame was not a readable hello.
    Hello,
}

/// Receiver to sender: the handoff may not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refuse {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason, naming the field and both values.
    pub message: String,
    /// Every differing field of the contract; `ours` is the receiver's value.
    pub differences: Vec<Difference>,
}

/// Sender to receiver: everything has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Number of segments sent.
    pub segments: u32,
    /// Bytes of all rows, before encoding.
    pub raw_bytes: u64,
    /// Digest of [`Manifest`] over all segments, hex.
    pub manifest: String,
}

/// Either way: the handoff ends here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// The reason, for a person.
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

/// At most [`MAX_STRING`] bytes of a text that may hold what a peer sent.
fn shorten(text: &str) -> String {
    text.chars().take(MAX_STRING / 4).collect()
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
    let fail = |reason: String| MessageError { kind, reason };
    let payload = serde_json::to_vec(message).map_err(|e| fail(e.to_string()))?;
    if payload.len() > kind.max_payload() as usize {
        return Err(fail(format!("{} bytes exceed the limit", payload.len())));
    }
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

/// Digest over the headers of all segments, kept by both ends and compared at commit.
#[derive(Debug, Clone)]
pub struct Manifest {
    hasher: blake3::Hasher,
    segments: u32,
    raw_bytes: u64,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key("tandem manifest v1"),
            segments: 0,
            raw_bytes: 0,
        }
    }
}

impl Manifest {
    /// Adds a segment. The header covers the payload by its checksum.
    pub fn add(&mut self, header: &Header) {
        self.hasher.update(&header.encode());
        self.segments = self.segments.saturating_add(1);
        self.raw_bytes += u64::from(header.raw_len);
    }

    /// Bytes of all rows so far, before encoding.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// The commit message for what has been added so far.
    #[must_use]
    pub fn commit(&self) -> Commit {
        Commit {
            segments: self.segments,
            raw_bytes: self.raw_bytes,
            manifest: self.hasher.finalize().to_hex().to_string(),
        }
    }
}
