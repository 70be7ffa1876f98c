//! Who may call the control API.

use std::io;
use std::net::SocketAddr;

use axum::serve::Listener;
use tandem_identity::{Gate, Link, LinkError};
use tokio::net::TcpListener;

use crate::NodeConfig;

/// The listener of the control API: only machines of the cluster get in.
#[derive(Debug)]
pub struct Door(Gate);

impl Door {
    /// Starts to take connections.
    ///
    /// # Errors
    /// If the listener needs TLS where it is, and the node has none.
    pub fn open(listener: TcpListener, config: &NodeConfig) -> Result<Self, LinkError> {
        let gate = Gate::start(listener, config.security.clone(), config.limits.connect)?;
        Ok(Self(gate))
    }
}

impl Listener for Door {
    type Io = Link;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Link, SocketAddr) {
        self.0.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.local_addr())
    }
}
