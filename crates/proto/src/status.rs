//! What a node holds and does, and how it says no.

use serde::{Deserialize, Serialize};
use tandem_handoff::Contract;

/// What a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes KV of prompts for other nodes.
    Prefill,
    /// Takes KV in and generates; can prefill for itself.
    Decode,
    /// Both.
    Both,
}

impl Role {
    /// True if the node computes KV for others.
    #[must_use]
    pub const fn prefills(self) -> bool {
        matches!(self, Self::Prefill | Self::Both)
    }

    /// True if the node generates.
    #[must_use]
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::Both)
    }
}

/// What fits into a model's engine at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Sequences at once.
    pub sequences: u32,
    /// Tokens of one sequence, prompt and answer together.
    pub tokens_per_sequence: u32,
    /// Largest chunk of a prefill, in tokens.
    pub prefill_tokens: u32,
    /// Chunks must be multiples of this, in tokens.
    pub microbatch_tokens: u32,
}

/// What a sequence is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waits for KV from another node.
    Receiving,
    /// Computes KV.
    Prefilling,
    /// Generates.
    Decoding,
}

/// One sequence of a model. No text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceStatus {
    /// Id of its request.
    pub request: String,
    /// What it is doing.
    pub phase: Phase,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens whose KV is here.
    pub held_tokens: u32,
    /// Tokens generated so far.
    pub generated_tokens: u32,
}

/// What a step of an engine took, on average over steps of about this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTime {
    /// New tokens of a step of prefill; sequences of a step of decode.
    pub count: u32,
    /// Tokens that were there before, of each sequence.
    pub depth: u32,
    /// Microseconds of the step.
    pub micros: u64,
    /// How many such steps this is the mean of.
    pub steps: u32,
}

/// What the steps of a model took since its node started; later ones count more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTimes {
    /// Of prefill.
    pub prefill: Vec<StepTime>,
    /// Of decode.
    pub decode: Vec<StepTime>,
}

/// One model of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelStatus {
    /// Name under which requests ask for it.
    pub name: String,
    /// What must be equal on both ends of a handoff.
    pub contract: Contract,
    /// What fits.
    pub capacity: Capacity,
    /// Threads of the processor that compute each step; `None` if something else computes.
    pub threads: Option<u32>,
    /// Why chats cannot be answered; `None` if they can.
    pub no_chat: Option<String>,
    /// Why its KV is not handed over; `None` if it is.
    pub stays: Option<String>,
    /// How busy its engine was over the last minute, in percent.
    pub busy_percent: u8,
    /// What its steps took.
    pub steps: StepTimes,
    /// What it does now.
    pub sequences: Vec<SequenceStatus>,
}

/// Answer to `GET /node/v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeStatus {
    /// [`crate::PROTOCOL_VERSION`] of the node.
    pub protocol: u32,
    /// Version of the tandem binary.
    pub version: String,
    /// What it is for.
    pub role: Role,
    /// True if it takes nothing new, because it is about to end.
    pub draining: bool,
    /// TCP port on which it takes KV in; only on nodes that decode.
    pub handoff_port: Option<u16>,
    /// Who it is for its peers: SHA-256 of its public key, hex. `None` without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Its models.
    pub models: Vec<ModelStatus>,
}

/// Answer to `GET /node/v1/handoffs`: what handoffs hold now. Without any going on everything but the
/// pages is zero; tickets, `returns` and `secrets` become so with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffStatus {
    /// Tickets that may still be used, those for answers that are handed back included.
    pub tickets: u64,
    /// Handoffs that are being received.
    pub receiving: u64,
    /// Handoffs that are being sent, with the blocks that are on their way.
    pub sending: u64,
    /// Sessions with which these go on over a new connection, and those that are complete are confirmed again.
    pub secrets: u64,
    /// Memory set aside for them, in bytes.
    pub staging_bytes: u64,
    /// Permissions to hand an answer back that are open.
    pub returns: u64,
    /// Pages that are kept, in memory or on disk.
    pub pages: u64,
    /// Snapshots that are kept.
    pub snapshots: u64,
    /// Promises that pages stay.
    pub pins: u64,
    /// Memory of pages and snapshots, in bytes.
    pub page_bytes: u64,
    /// Bytes of their files.
    pub disk_bytes: u64,
    /// Operations on these that failed.
    pub disk_errors: u64,
}

/// Why a node says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed or asks for something impossible.
    InvalidRequest,
    /// The prompt, or the prompt and the answer together, exceed the context.
    ContextLength,
    /// The JSON schema takes more time or memory than an answer may.
    SchemaBudget,
    /// The node does not have the model.
    UnknownModel,
    /// The node's role does not include this.
    WrongRole,
    /// All sequences are in use; try later or elsewhere.
    Busy,
    /// More of the prompt is missing here than [`crate::GenerateRequest::alone_percent`] allows.
    Lacks,
    /// The other node refused the handoff, naming the field.
    Refused,
    /// The connection between the nodes failed.
    Handoff,
    /// The engine failed.
    Engine,
    /// The node is shutting down.
    Stopping,
}

impl ErrorCode {
    /// The HTTP status that goes with it.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ContextLength | Self::SchemaBudget | Self::WrongRole => {
                400
            }
            Self::UnknownModel => 404,
            Self::Refused | Self::Lacks => 409,
            Self::Busy => 429,
            Self::Engine => 500,
            Self::Handoff => 502,
            Self::Stopping => 503,
        }
    }

    /// True if the same request may succeed on another node.
    #[must_use]
    pub const fn try_elsewhere(self) -> bool {
        !matches!(
            self,
            Self::InvalidRequest | Self::ContextLength | Self::SchemaBudget
        )
    }
}

/// A refusal or failure, as body of an error answer or inside an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(deny_unknown_fields)]
pub struct NodeError {
    /// The kind of reason.
    pub code: ErrorCode,
    /// For a person: the field or cause, and the fix. No prompt text.
    pub message: String,
}

impl NodeError {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}
