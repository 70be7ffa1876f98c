//! A listener that shakes hands with many peers at once.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

use crate::limits::{ACCEPT_RETRY, MAX_HANDSHAKES, MAX_LINKS_WAITING};
use crate::link::Link;
use crate::log_throttle::LogThrottle;
use crate::public::Public;
use crate::security::{LinkError, Security};

/// Takes connections and shakes hands with each in a task of its own, so that a peer that says
/// nothing holds nobody up. Dropping it closes the listener and ends the handshakes.
#[derive(Debug)]
pub struct Gate {
    links: mpsc::Receiver<(Link, SocketAddr)>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Gate {
    /// Starts to take connections; each has `limit` for its handshake.
    ///
    /// # Errors
    /// [`LinkError::PlaintextElsewhere`] if TLS is needed where the listener is, or if the listener
    /// has no address.
    pub fn start(
        listener: TcpListener,
        security: Security,
        limit: Duration,
    ) -> Result<Self, LinkError> {
        security.check_listen(listener.local_addr()?)?;
        Self::taking(listener, Hands::Cluster(security), limit)
    }

    /// The same for whoever comes.
    ///
    /// # Errors
    /// [`LinkError::PublicPlaintext`] if there is no certificate where TLS is needed, or if the listener has no
    /// address.
    pub fn public(
        listener: TcpListener,
        public: Public,
        limit: Duration,
    ) -> Result<Self, LinkError> {
        public.check_listen(listener.local_addr()?)?;
        Self::taking(listener, Hands::Public(public), limit)
    }

    fn taking(listener: TcpListener, hands: Hands, limit: Duration) -> Result<Self, LinkError> {
        let address = listener.local_addr()?;
        let (taken, links) = mpsc::channel(MAX_LINKS_WAITING);
        let accepting = tokio::spawn(accept(listener, hands, limit, taken));
        Ok(Self {
            links,
            address,
            accepting,
        })
    }

    /// The next peer that has shaken hands. Safe to drop and call again.
    pub async fn next(&mut self) -> (Link, SocketAddr) {
        match self.links.recv().await {
            Some(link) => link,
            // The task ends only with the gate.
            None => std::future::pending().await,
        }
    }

    /// Where the listener is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Ends the handshakes that are going on when it is dropped.
#[derive(Default)]
struct Shaking(VecDeque<AbortHandle>);

impl Shaking {
    /// Adds a handshake; the oldest gives way if there are too many.
    fn add(&mut self, task: AbortHandle, from: IpAddr, log_throttle: &LogThrottle) {
        self.0.retain(|t| !t.is_finished());
        if self.0.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
            let reason = "too many peers connect and say nothing; the oldest is dropped";
            if let Some(unsaid) = log_throttle.says(Instant::now(), from, reason) {
                tracing::warn!(%from, unsaid, "{reason}");
            }
        }
        self.0.push_back(task);
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Who may connect, and how.
#[derive(Debug, Clone)]
enum Hands {
    Cluster(Security),
    Public(Public),
}

impl Hands {
    const fn is_plain(&self) -> bool {
        match self {
            Self::Cluster(security) => !security.is_tls(),
            Self::Public(public) => !public.is_tls(),
        }
    }
}

async fn accept(
    listener: TcpListener,
    hands: Hands,
    limit: Duration,
    taken: mpsc::Sender<(Link, SocketAddr)>,
) {
    let mut shaking = Shaking::default();
    let log_throttle = Arc::new(LogThrottle::default());
    loop {
        // Without a handshake nothing is gained by taking one before there is room for it.
        if hands.is_plain() && taken.reserve().await.is_err() {
            return;
        }
        match listener.accept().await {
            Ok((tcp, from)) => {
                let (hands, taken, heard) =
                    (hands.clone(), taken.clone(), Arc::clone(&log_throttle));
                let task = tokio::spawn(async move {
                    if let Err(reason) = shake(tcp, from, hands, limit, taken).await
                        && let Some(unsaid) =
                            heard.says(Instant::now(), from.ip(), &reason.to_string())
                    {
                        tracing::warn!(%from, %reason, unsaid, "connection refused");
                    }
                });
                shaking.add(task.abort_handle(), from.ip(), &log_throttle);
            }
            Err(error) => {
                tracing::error!(%error, "cannot take a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn shake(
    tcp: TcpStream,
    from: SocketAddr,
    hands: Hands,
    limit: Duration,
    taken: mpsc::Sender<(Link, SocketAddr)>,
) -> Result<(), LinkError> {
    let link = match hands {
        Hands::Cluster(security) => security.accept(tcp, limit).await,
        Hands::Public(public) => public.accept(tcp, limit).await,
    }?;
    // If nobody takes it any more, it is closed.
    let _ = taken.send((link, from)).await;
    Ok(())
}
