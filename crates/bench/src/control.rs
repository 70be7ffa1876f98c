//! A node of a measurement, called as a coordinator calls it: over connections that are kept.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use tandem_cluster::{PeerId, Security};
use tandem_coordinator::{CallError, Calls, Limits, Lines};
use tandem_proto::{GenerateEvent, GenerateRequest, PrefillEvent, PrefillRequest};

/// How often, and after which pause, a node is asked whether it is idle.
const IDLE_LOOKS: u32 = 500;
const IDLE_PAUSE: Duration = Duration::from_millis(20);

/// A node.
#[derive(Clone)]
pub struct Control {
    /// Where its control API listens.
    pub address: SocketAddr,
    /// How it is connected to.
    pub security: Security,
    /// Who it is; `None` without TLS.
    pub peer: Option<PeerId>,
    calls: Calls,
}

impl Control {
    /// Connects to a node, which must be this machine if one is given.
    ///
    /// # Errors
    /// If it cannot be reached, or is another one.
    pub async fn connect(
        address: SocketAddr,
        security: Security,
        peer: Option<PeerId>,
    ) -> anyhow::Result<Self> {
        let expected = peer.iter().map(|peer| (address.to_string(), peer.clone()));
        let calls = Calls::new(security.clone(), expected.collect(), Limits::default());
        let node = Self {
            address,
            security,
            peer,
            calls,
        };
        node.told(node.calls.status(&address.to_string()).await)?;
        Ok(node)
    }

    /// Waits until nothing runs there: the places of requests are free a little after their ends.
    ///
    /// # Errors
    /// If the node cannot be reached, or something runs on.
    pub async fn idle(&self) -> anyhow::Result<()> {
        let address = self.address.to_string();
        for _ in 0..IDLE_LOOKS {
            let status = self.told(self.calls.status(&address).await)?;
            if status.models.iter().all(|m| m.sequences.is_empty()) {
                return Ok(());
            }
            tokio::time::sleep(IDLE_PAUSE).await;
        }
        Err(anyhow!("the node at {address} is busy"))
    }

    /// `POST /node/v1/generate`.
    ///
    /// # Errors
    /// If the node cannot be reached or refuses.
    pub async fn generate(
        &self,
        request: &GenerateRequest,
    ) -> anyhow::Result<Lines<GenerateEvent>> {
        self.told(
            self.calls
                .generate(&self.address.to_string(), request)
                .await,
        )
    }

    /// `POST /node/v1/prefill`.
    ///
    /// # Errors
    /// If the node cannot be reached or refuses.
    pub async fn prefill(&self, request: &PrefillRequest) -> anyhow::Result<Lines<PrefillEvent>> {
        self.told(self.calls.prefill(&self.address.to_string(), request).await)
    }

    fn told<T>(&self, result: Result<T, CallError>) -> anyhow::Result<T> {
        result.map_err(|e| anyhow!("the node at {} {e}", self.address))
    }
}
