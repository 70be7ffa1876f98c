//! A request to a prefill node, and what it tells while it works.

use serde::{Deserialize, Serialize};

use crate::status::NodeError;
use crate::terms::HandoffTerms;

/// Body of `POST /node/v1/prefill`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillRequest {
    /// Id of the request; the same as at the decode node.
    pub request: String,
    /// Name of the model.
    pub model: String,
    /// All tokens of the prompt. KV is computed and sent for all but the last.
    pub tokens: Vec<u32>,
    /// Tokens per chunk.
    pub chunk: u32,
    /// Where the node that the ticket is from takes KV in, `host:port`.
    pub target: String,
    /// The only machine that KV may be sent to: its [`crate::NodeStatus::identity`]. Needed where
    /// nodes have identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_peer: Option<String>,
    /// Secret of the ticket, hex.
    pub ticket: String,
    /// Id of the handoff.
    pub handoff: u64,
    /// How it is made; the other node is told the same.
    #[serde(default)]
    pub terms: HandoffTerms,
}

impl std::fmt::Debug for PrefillRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefillRequest")
            .field("request", &self.request)
            .field("model", &self.model)
            .field("n_tokens", &self.tokens.len())
            .field("target", &self.target)
            .field("target_peer", &self.target_peer)
            .field("handoff", &self.handoff)
            .finish_non_exhaustive()
    }
}

/// One line of the answer to `POST /node/v1/prefill`. All times are on the prefill node's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum PrefillEvent {
    /// The other node has accepted contract and ticket.
    Accepted,
    /// KV up to here has been computed.
    Progress {
        /// Tokens computed.
        tokens: u32,
        /// Bytes of KV rows written to the connection.
        sent_bytes: u64,
    },
    /// Last: the other node has confirmed that it applied everything.
    Done {
        /// Time spent computing, in milliseconds.
        prefill_ms: f64,
        /// Tokens of the prompt that were computed; the rest was there.
        computed_tokens: u32,
        /// Time during which KV was on its way: blocks of which some was written and that were not yet acknowledged.
        transfer_ms: f64,
        /// The part of that after the last prompt token was computed.
        exposed_transfer_ms: f64,
        /// Bytes of KV rows sent.
        handoff_bytes: u64,
        /// Bytes written for them, with headers.
        wire_bytes: u64,
        /// Tokens that the other node had already.
        have_tokens: u32,
        /// Connections that broke and were replaced.
        reconnects: u32,
    },
    /// Last: the prefill or the handoff failed.
    Failed(NodeError),
    /// Nothing new, but the node is alive.
    Beat,
}

/// Body of `POST /node/v1/requests/{id}/prefill-failed`: the coordinator tells a node that no KV will come (any more) from
/// its prefill node, so that it computes what is missing at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffFailed {
    /// Why, for the timeline.
    pub reason: String,
}
