//! Control messages between coordinator and nodes: JSON over HTTP; and [`generation`], how an answer is generated, from the
//! public API to the engine.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `GET /node/v1/status` | – | [`NodeStatus`] |
//! | `GET /node/v1/handoffs` | – | [`HandoffStatus`] |
//! | `POST /node/v1/tokenize` | [`TokenizeRequest`] | [`Tokenized`] |
//! | `POST /node/v1/generate` | [`GenerateRequest`] | a stream of [`GenerateEvent`], one JSON object per line |
//! | `POST /node/v1/prefill` | [`PrefillRequest`] | a stream of [`PrefillEvent`], one JSON object per line |
//! | `POST /node/v1/requests/{id}/prefill-failed` | [`HandoffFailed`] | 204 |
//! | `POST /node/v1/link` | [`LinkRequest`] | [`LinkReport`] |
//! | `POST /node/v1/link/sink` | bytes, which are dropped | 204 |
//! | `POST /node/v1/link/source` | [`BytesRequest`] | bytes |
//!
//! A request that cannot be started is answered with [`NodeError`] and a status from
//! [`ErrorCode::http_status`]. A stream that is closed by the coordinator cancels the work; a
//! stream is never silent for longer than [`limits::BEAT`] while the node is alive.
//! KV never passes through here: it goes from node to node (crate `handoff`).

pub mod generate;
pub mod generation;
pub mod limits;
pub mod link;
pub mod prefill;
pub mod status;
pub mod terms;
pub mod tokenize;

pub use generate::{
    GenerateEvent, GenerateRequest, Message, ParityReport, PrefillMode, PrefillSummary, Prompt,
    Ticket,
};
pub use generation::{FinishReason, Format, GenerationParams, NamedSchema, SamplingParams};
pub use link::{BytesRequest, LinkReport, LinkRequest};
pub use prefill::{HandoffFailed, PrefillEvent, PrefillRequest};
pub use status::{
    Capacity, ErrorCode, HandoffStatus, ModelStatus, NodeError, NodeStatus, Phase, Role,
    SequenceStatus, StepTime, StepTimes,
};
pub use terms::{CodecChoice, HandoffTerms};
pub use tokenize::{TokenizeRequest, Tokenized};

/// Version of these messages; a node and a coordinator with different versions do not work together.
pub const PROTOCOL_VERSION: u32 = 18;
