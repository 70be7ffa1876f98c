//! Where a handoff goes, and how.

use std::sync::Arc;

use tandem_cluster::{PeerId, Security};

use crate::limits::Limits;
use crate::link_estimate::{CodecPolicy, LinkEstimates};

/// Where a handoff goes and how.
#[derive(Debug, Clone)]
pub struct Route {
    /// `host:port` on which the receiver takes KV in.
    pub target: String,
    /// Who must be there; `None` without TLS.
    pub peer: Option<PeerId>,
    /// How connections are made.
    pub security: Security,
    /// Waits.
    pub limits: Limits,
    /// How rows are encoded.
    pub choice: CodecPolicy,
    /// What is known of links.
    pub links: Arc<LinkEstimates>,
    /// False: nothing is sent before all of it is computed.
    pub overlap: bool,
}
