//! A test of the link between two nodes.

use serde::{Deserialize, Serialize};

/// Asks a node to test its link to another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// `host:port` of the other node's control API.
    pub to: String,
    /// Who must be there; `None` without TLS.
    pub peer: Option<String>,
}

/// Asks a node for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesRequest {
    /// How many; [`crate::limits::MAX_BODY_BYTES`] at most.
    pub bytes: usize,
}

/// What a link carries, by one connection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkReport {
    /// Bytes per second to the other end.
    pub there: f64,
    /// Bytes per second from there.
    pub back: f64,
    /// The shortest time of a request and its answer, in milliseconds.
    pub round_trip_ms: f64,
    /// Bytes of the largest packet, where the system tells.
    pub mtu: Option<u32>,
}
