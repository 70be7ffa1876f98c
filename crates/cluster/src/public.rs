//! How clients that belong to no cluster connect: with TLS and a certificate of the operator's, or on this machine.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::identity::{no_sessions, provider};
use crate::link::Link;
use crate::security::{LinkError, handshake, is_loopback};
use crate::tls::Tls;

/// How clients connect.
#[derive(Clone, Default)]
pub struct Public(Option<Arc<ServerConfig>>);

impl fmt::Debug for Public {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Public(tls: {})", self.is_tls())
    }
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .path.display())]
pub struct PublicError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Public {
    /// Without TLS, on loopback addresses.
    #[must_use]
    pub const fn plaintext() -> Self {
        Self(None)
    }

    /// TLS 1.3 with this certificate, its chain after it, and its key; both are PEM.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn tls(certificates: &Path, key: &Path) -> Result<Self, PublicError> {
        let fault = |path: &Path, reason: String| PublicError {
            path: path.to_owned(),
            reason,
        };
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| fault(certificates, e.to_string()))?;
        if chain.is_empty() {
            return Err(fault(certificates, "there is no certificate in it".into()));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| fault(certificates, e.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|e| fault(key, format!("{e}; is it the key of the certificate?")))?;
        no_sessions(&mut config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Some(Arc::new(config))))
    }

    /// True for [`Public::tls`].
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.0.is_some()
    }

    /// Checks that a listener at this address is allowed.
    ///
    /// # Errors
    /// [`LinkError::PublicPlaintext`].
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), LinkError> {
        match self.0 {
            None if !is_loopback(address.ip()) => Err(LinkError::PublicPlaintext(address)),
            _ => Ok(()),
        }
    }

    /// Shakes hands with a client, within `limit`.
    pub(crate) async fn accept(&self, tcp: TcpStream, limit: Duration) -> Result<Link, LinkError> {
        tcp.set_nodelay(true)?;
        let Some(config) = &self.0 else {
            self.check_listen(tcp.local_addr()?)?;
            self.check_listen(tcp.peer_addr()?)?;
            return Ok(Link::plain(tcp));
        };
        let stream = timeout(limit, Tls::accept(tcp, Arc::clone(config))).await;
        let stream = stream.map_err(|_| LinkError::Silent(limit))?;
        Ok(Link::anonymous(stream.map_err(|e| handshake(&e))?))
    }
}
