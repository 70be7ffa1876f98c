//! Payloads of the control frames, as JSON.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::contract::{Contract, Difference};
use crate::frame::{Header, Kind, encode_frame};
use crate::text::{shorten, text_of_a_peer};

/// Sender to receiver, first frame of a connection.
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

/// Receiver to sender: the handoff may start, or go on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accept {
    /// What a hello on a new connection names as its ticket, should this one break, hex.
    pub session: String,
    /// Bytes of blocks that may be sent without being acknowledged. One block may exceed it alone.
    pub credit_bytes: u64,
    /// Full-attention KV of tokens `[0, have_tokens)` is there already and must not be sent.
    pub have_tokens: u32,
    /// [`crate::page::PageId`] of the last complete page of these tokens, hex; absent if there is none.
    pub have_page: Option<String>,
    /// Rows of the window layers of the tokens from the start of the window to `have_window` are there
    /// already and must not be sent; 0 if there are none.
    pub have_window: u32,
}

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accept")
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
    /// The first frame was not a readable hello.
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
    /// Digest of the [`Manifest`], hex.
    pub manifest: String,
}

/// Receiver to sender: everything has been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Committed {
    /// Milliseconds from the receiver's reading the commit until everything had been applied.
    pub apply_ms: u64,
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

/// Digest over the headers of all segments since the last accept, in the order of the connection; kept by both
/// ends and compared at commit. A header covers its payload by a checksum.
#[derive(Debug, Clone)]
pub struct Manifest {
    hasher: blake3::Hasher,
    segments: u32,
    raw_bytes: u64,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key("tandem manifest v4"),
            segments: 0,
            raw_bytes: 0,
        }
    }
}

impl Manifest {
    /// Adds the next segment. Its number is left out: it says no more than the order, and counts beats.
    pub fn add(&mut self, header: &Header) {
        let header = Header {
            sequence: 0,
            ..*header
        };
        self.hasher.update(&header.encode());
        self.segments = self.segments.saturating_add(1);
        self.raw_bytes += u64::from(header.raw_len);
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
