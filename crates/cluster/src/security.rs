//! How a process connects to others and lets them connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::certificate::NODE_NAME;
use crate::explain::explain;
use crate::identity::Identity;
use crate::link::Link;
use crate::peer::PeerId;
use crate::tls::Tls;

/// How connections between the processes of a cluster are made.
#[derive(Debug, Clone)]
pub enum Security {
    /// Plain TCP, between loopback addresses only: everything else is refused.
    Plaintext,
    /// TLS 1.3, with certificates of the same authority on both sides.
    Tls(Arc<Identity>),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No TLS, and not on one machine.
    #[error(
        "{0} is not a loopback address, and without TLS (--plaintext) only those are allowed: make a cluster \
         (`tandem cluster init`), let the other machines join it (`tandem cluster invite`), and leave \
         --plaintext out"
    )]
    PlaintextElsewhere(String),
    /// No TLS for clients, and not on one machine.
    #[error(
        "{0} is reached from other machines, and without TLS prompts and answers would be read on the way: give \
         --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that speaks TLS"
    )]
    PublicPlaintext(SocketAddr),
    /// The name has no address.
    #[error("the address of {address} cannot be found: {source}")]
    Resolve {
        /// What was looked up.
        address: String,
        /// Why it was not found.
        source: io::Error,
    },
    /// Nobody takes the connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The other side did not connect or shake hands in time.
    #[error("the other side was silent for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The other side is not allowed, or does not allow this one. Says what is wrong with it.
    #[error("the other side is refused: {0}")]
    Handshake(String),
    /// The other side is another machine than expected.
    #[error("the other side is the machine {found} and not {expected}")]
    OtherPeer {
        /// Who should be there.
        expected: PeerId,
        /// Who is.
        found: PeerId,
    },
    /// A socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl Security {
    /// Who this process is for others; `None` without TLS.
    #[must_use]
    pub fn own_id(&self) -> Option<PeerId> {
        match self {
            Self::Plaintext => None,
            Self::Tls(identity) => Some(identity.id().clone()),
        }
    }

    /// True for [`Security::Tls`].
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Checks that a listener at this address is allowed.
    ///
    /// # Errors
    /// [`LinkError::PlaintextElsewhere`].
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), LinkError> {
        match self {
            Self::Plaintext if !is_loopback(address.ip()) => {
                Err(LinkError::PlaintextElsewhere(address.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Connects to `host:port` and shakes hands, all within `limit`.
    ///
    /// # Errors
    /// If the address is not allowed, nobody answers there, or either side refuses the other.
    pub async fn connect(&self, addr: &str, limit: Duration) -> Result<Link, LinkError> {
        let connecting = async {
            let tcp = self.reach(addr).await?;
            tcp.set_nodelay(true)?;
            self.shake_as_client(tcp).await
        };
        let done = timeout(limit, connecting).await;
        done.map_err(|_| LinkError::Silent(limit))?
    }

    /// The same, to a machine that is known. Nothing is written to another one.
    ///
    /// # Errors
    /// Besides: [`LinkError::OtherPeer`].
    pub async fn connect_to(
        &self,
        addr: &str,
        expected: &PeerId,
        limit: Duration,
    ) -> Result<Link, LinkError> {
        let link = self.connect(addr, limit).await?;
        match link.peer() {
            Some(found) if found != expected => Err(LinkError::OtherPeer {
                expected: expected.clone(),
                found: found.clone(),
            }),
            _ => Ok(link),
        }
    }

    /// Shakes hands with a peer that has connected, within `limit`.
    ///
    /// # Errors
    /// If the peer's address is not allowed, it says nothing, or it is not of the cluster.
    pub async fn accept(&self, tcp: TcpStream, limit: Duration) -> Result<Link, LinkError> {
        tcp.set_nodelay(true)?;
        let Self::Tls(identity) = self else {
            self.check_listen(tcp.local_addr()?)?;
            self.check_listen(tcp.peer_addr()?)?;
            return Ok(Link::plain(tcp));
        };
        let stream = timeout(limit, Tls::accept(tcp, identity.server()))
            .await
            .map_err(|_| LinkError::Silent(limit))?
            .map_err(|e| handshake(&e))?;
        let peer = peer(stream.peer_certificates())?;
        Ok(Link::tls(stream, peer))
    }

    async fn shake_as_client(&self, tcp: TcpStream) -> Result<Link, LinkError> {
        let Self::Tls(identity) = self else {
            return Ok(Link::plain(tcp));
        };
        let name =
            ServerName::try_from(NODE_NAME).map_err(|e| LinkError::Handshake(e.to_string()))?;
        let stream = Tls::connect(tcp, identity.client(), name)
            .await
            .map_err(|e| handshake(&e))?;
        let peer = peer(stream.peer_certificates())?;
        Ok(Link::tls(stream, peer))
    }

    /// A TCP connection, to the first address of the name that takes it.
    async fn reach(&self, addr: &str) -> Result<TcpStream, LinkError> {
        let resolve = |source| LinkError::Resolve {
            address: addr.to_owned(),
            source,
        };
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has none");
        let mut tried = false;
        for address in lookup_host(addr).await.map_err(resolve)? {
            self.check_listen(address)
                .map_err(|_| LinkError::PlaintextElsewhere(addr.to_owned()))?;
            match TcpStream::connect(address).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => (failed, tried) = (error, true),
            }
        }
        if !tried {
            return Err(resolve(failed));
        }
        Err(LinkError::Connect {
            address: addr.to_owned(),
            source: failed,
        })
    }
}

/// True for addresses that only this machine reaches, also if they are IPv4 written as IPv6.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

pub(crate) fn handshake(error: &io::Error) -> LinkError {
    LinkError::Handshake(explain(error).unwrap_or_else(|| match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection during the handshake".to_owned(),
        _ => error.to_string(),
    }))
}

fn peer(certificates: Option<&[CertificateDer<'_>]>) -> Result<PeerId, LinkError> {
    certificates
        .and_then(<[_]>::first)
        .and_then(PeerId::of)
        .ok_or_else(|| LinkError::Handshake("its certificate cannot be read".to_owned()))
}
