//! How a machine joins: it makes its key, shows that it knows the secret, and gets a certificate.
//!
//! The machine connects to the address in the [`Token`] over TLS 1.3, and goes on only if the other
//! side proves to be the authority with the token's fingerprint. It shows a certificate that it has
//! signed itself: the handshake proves that it has the key, and the authority takes only the public
//! key from it. Then one message each way: a length (u32, little-endian, at most
//! [`MAX_JOIN_BYTES`]) and so many bytes of JSON, `Ask` and `Reply`. Keys never travel.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error as TlsError, SignatureScheme};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::certificate::{JOIN_NAME, NODE_NAME, fingerprint, fingerprint_of_pem};
use crate::explain::explain;
use crate::identity::{Identity, IdentityError, NodeVerifier, client_config, provider};
use crate::limits::MAX_JOIN_BYTES;
use crate::tls::Tls;
use crate::token::Token;

/// What a machine says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    /// The token's secret, base64.
    pub(crate) secret: String,
}

/// What it is answered.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// It is a member now.
    Welcome {
        /// Its certificate, PEM.
        certificate: String,
        /// The authority's, PEM.
        authority: String,
    },
    /// It is not; for a person.
    Refused(String),
}

/// Why a machine did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody answers.
    #[error(
        "cannot reach {address}: {source}; a token is good only while the `tandem cluster invite` that printed it \
         still waits, and only once: make a new one, with --address if this is not where that machine is reached"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The other side says nothing.
    #[error("{address} did not answer within {} s; is it the right address?", .limit.as_secs_f64())]
    Silent {
        /// Where.
        address: String,
        /// The limit.
        limit: Duration,
    },
    /// Somebody else is at the address.
    #[error(
        "{0} is not the authority of the token: the token is of another cluster, or somebody is in between"
    )]
    NotTheAuthority(String),
    /// The authority says no.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// The connection broke.
    #[error(
        "the connection to {address} broke: {reason}; if the invitation is over there, make a new one"
    )]
    Broken {
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
    /// A key or request cannot be made.
    #[error("certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    /// The certificate that came cannot be used.
    #[error("the certificate that came cannot be used: {0}")]
    Identity(#[from] IdentityError),
}

/// What a machine has when it has joined.
pub struct Membership {
    identity: Identity,
    authority_pem: String,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Membership {
    /// Who this machine is now.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The certificate of the authority, PEM.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }
}

/// Joins the cluster that the token is for, all within `limit`.
///
/// # Errors
/// If nobody answers, somebody else does, or the token is not valid any more.
pub async fn join(token: &Token, limit: Duration) -> Result<Membership, JoinError> {
    let done = timeout(limit, ask(token)).await;
    done.map_err(|_| JoinError::Silent {
        address: token.address().to_owned(),
        limit,
    })?
}

async fn ask(token: &Token) -> Result<Membership, JoinError> {
    let address = token.address();
    let broken = |e: &io::Error| match not_the_authority(e) {
        true => JoinError::NotTheAuthority(address.to_owned()),
        false => JoinError::Broken {
            address: address.to_owned(),
            reason: explain(e).unwrap_or_else(|| e.to_string()),
        },
    };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let own = CertificateParams::new([NODE_NAME.to_owned()])?.self_signed(&key)?;
    let own_key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let own = (own.der().clone(), own_key);
    let tcp = TcpStream::connect(address).await;
    let tcp = tcp.map_err(|source| JoinError::Unreachable {
        address: address.to_owned(),
        source,
    })?;
    let verifier = Arc::new(AuthorityVerifier {
        fingerprint: *token.fingerprint(),
    });
    let config = client_config(verifier, own).map_err(|e| broken(&io::Error::other(e)))?;
    let name = ServerName::try_from(JOIN_NAME).map_err(|e| broken(&io::Error::other(e)))?;
    let connecting = Tls::connect(tcp, Arc::new(config), name);
    let mut stream = connecting.await.map_err(|e| broken(&e))?;
    let ask = Ask {
        secret: token.secret().to_text(),
    };
    write(&mut stream, &ask).await.map_err(|e| broken(&e))?;
    let answer = read(&mut stream).await.map_err(|e| broken(&e))?;
    let (certificate, authority) = match answer {
        Reply::Refused(reason) => return Err(JoinError::Refused(reason)),
        Reply::Welcome {
            certificate,
            authority,
        } => (certificate, authority),
    };
    if fingerprint_of_pem(&authority) != Some(token.authority()) {
        return Err(JoinError::NotTheAuthority(address.to_owned()));
    }
    // Also checks that the certificate is for the key that was made here.
    let identity = Identity::from_pem(certificate, key.serialize_pem(), &authority)?;
    Ok(Membership {
        identity,
        authority_pem: authority,
    })
}

/// Writes a message.
pub(crate) async fn write<W: AsyncWrite + Unpin, T: Serialize>(
    stream: &mut W,
    message: &T,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|n| *n <= MAX_JOIN_BYTES);
    let length = length.ok_or_else(|| io::Error::other("the message is too long"))?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads a message.
pub(crate) async fn read<R: AsyncRead + Unpin, T: DeserializeOwned>(
    stream: &mut R,
) -> io::Result<T> {
    let length = stream.read_u32_le().await?;
    if length > MAX_JOIN_BYTES {
        return Err(io::Error::other("the message is too long"));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    // The error may hold a part of the message, which holds a secret.
    serde_json::from_slice(&bytes).map_err(|_| io::Error::other("the message cannot be read"))
}

/// Accepts only an authority with this fingerprint: the other side shows its certificate beside one
/// that the authority has signed for joining.
#[derive(Debug)]
struct AuthorityVerifier {
    fingerprint: [u8; 32],
}

fn not_the_authority(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    matches!(inner, Some(TlsError::InvalidCertificate(_)))
}

impl ServerCertVerifier for AuthorityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let authority = intermediates
            .iter()
            .find(|c| fingerprint(c) == self.fingerprint)
            .ok_or(TlsError::InvalidCertificate(
                CertificateError::UnknownIssuer,
            ))?;
        NodeVerifier::new(authority, JOIN_NAME)?.verify(end_entity, &[], now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
