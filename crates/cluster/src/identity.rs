//! What this machine is vouched for with.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore,
    ServerConfig, SignatureScheme, SupportedCipherSuite,
};

use crate::certificate::{NODE_NAME, fingerprint};
use crate::explain::explain;
use crate::peer::{PeerId, hex};

/// The end of the year 9999, the last that a certificate can name, since 1970.
const FAR_FUTURE: Duration = Duration::from_secs(253_402_300_800);

/// A machine's certificate and key, and the authority that it trusts, ready for connections.
pub struct Identity {
    id: PeerId,
    authority: String,
    until: SystemTime,
    certificate_pem: String,
    key_pem: String,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Shows who it is, not its key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("id", &self.id)
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

/// Why an identity cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A certificate or key is not what it should be.
    #[error("the {0} cannot be read")]
    Unreadable(&'static str),
    /// The certificate has expired.
    #[error(
        "the certificate of this machine has expired: `tandem cluster invite` on the machine that made the \
         cluster and `tandem cluster join` here give it a new one"
    )]
    Expired,
    /// The certificate is not valid yet.
    #[error("the certificate of this machine is not valid yet: set its clock")]
    NotYet,
    /// The certificate does not hold under the authority's.
    #[error("the certificate of this machine does not belong to the authority beside it: {0}")]
    Foreign(String),
    /// The key is not the certificate's.
    #[error("certificate and key of this machine do not belong together: {0}")]
    Mismatch(String),
    /// The system's clock shows a time before 1970.
    #[error("the clock of this machine is wrong")]
    Clock,
}

impl Identity {
    /// An identity from certificate and key of the machine and the certificate of its authority, all
    /// PEM.
    ///
    /// # Errors
    /// If one of them cannot be read, they do not belong together, or the certificate is not valid
    /// now.
    pub fn from_pem(
        certificate_pem: String,
        key_pem: String,
        authority_pem: &str,
    ) -> Result<Self, IdentityError> {
        let now = SystemTime::now();
        let now = now
            .duration_since(UNIX_EPOCH)
            .map_err(|_| IdentityError::Clock)?;
        let now = UnixTime::since_unix_epoch(now);
        let unreadable = IdentityError::Unreadable;
        let authority = CertificateDer::from_pem_slice(authority_pem.as_bytes())
            .map_err(|_| unreadable("certificate of the authority"))?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| unreadable("certificate of this machine"))?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|_| unreadable("key of this machine"))?;
        let verifier = NodeVerifier::new(&authority, NODE_NAME)
            .map_err(|e| IdentityError::Foreign(e.to_string()))?;
        // As the other machines will: what they would refuse is told here, with the fix.
        verifier
            .verify(&certificate, &[], now)
            .map_err(|e| refused(&e))?;
        let mismatch = |e: TlsError| IdentityError::Mismatch(e.to_string());
        let id = PeerId::of(&certificate).ok_or(unreadable("certificate of this machine"))?;
        let until = expiry(&verifier, &certificate);
        let until = until.ok_or(unreadable("certificate of this machine"))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(mismatch)?;
        let server = server_config(roots, certificate.clone(), key.clone_key());
        let client = client_config(Arc::new(verifier), (certificate, key));
        Ok(Self {
            id,
            authority: hex(&fingerprint(&authority)),
            until,
            certificate_pem,
            key_pem,
            client: Arc::new(client.map_err(mismatch)?),
            server: Arc::new(server.map_err(mismatch)?),
        })
    }

    /// Who this machine is for others.
    #[must_use]
    pub fn id(&self) -> &PeerId {
        &self.id
    }

    /// Fingerprint of the authority's certificate: SHA-256 of its DER, hex. Equal on all machines of
    /// a cluster.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Until when the certificate is valid.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// The certificate, PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key, PEM. A secret.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// Until when a certificate is valid. Asked about the far future, the verifier names the last moment.
fn expiry(verifier: &NodeVerifier, certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let refusal = verifier.verify(certificate, &[], UnixTime::since_unix_epoch(FAR_FUTURE));
    match refusal {
        Err(TlsError::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        })) => UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs())),
        _ => None,
    }
}

fn refused(error: &TlsError) -> IdentityError {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    match error {
        TlsError::InvalidCertificate(Expired | ExpiredContext { .. }) => IdentityError::Expired,
        TlsError::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            IdentityError::NotYet
        }
        other => IdentityError::Foreign(explain(other).unwrap_or_else(|| other.to_string())),
    }
}

/// What connections are encrypted with.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites(),
        ..aws_lc_rs::default_provider()
    })
}

/// The two suites of TLS 1.3 that today's processors compute in hardware, the faster one first.
fn suites() -> Vec<SupportedCipherSuite> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("vaes") && !is_x86_feature_detected!("avx512f") {
        // aws-lc has AES-GCM in vectors of AVX-512 only, ring in those of AVX2, too.
        use rustls::crypto::ring::cipher_suite as ring;
        return vec![
            ring::TLS13_AES_128_GCM_SHA256,
            ring::TLS13_AES_256_GCM_SHA384,
        ];
    }
    vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ]
}

pub(crate) type CertificateAndKey = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// TLS 1.3 as a client. No session is resumed: each connection proves anew who its ends are.
pub(crate) fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    (certificate, key): CertificateAndKey,
) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(vec![certificate], key)?;
    config.resumption = rustls::client::Resumption::disabled();
    // Every certificate has the same name; sending it would only tell who listens.
    config.enable_sni = false;
    Ok(config)
}

fn server_config(
    roots: RootCertStore,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|e| TlsError::General(e.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)?;
    no_sessions(&mut config);
    Ok(config)
}

/// Resumes no session, see [`client_config`].
pub(crate) fn no_sessions(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}

/// Accepts certificates under one authority with one DNS name, whatever address was connected to:
/// a certificate of a cluster says which machine it is, not where it is.
#[derive(Debug)]
pub(crate) struct NodeVerifier {
    inner: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl NodeVerifier {
    pub(crate) fn new(
        authority: &CertificateDer<'_>,
        name: &'static str,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        Ok(Self {
            inner: inner
                .build()
                .map_err(|e| TlsError::General(e.to_string()))?,
            name: ServerName::try_from(name).map_err(|e| TlsError::General(e.to_string()))?,
        })
    }

    pub(crate) fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.inner
            .verify_server_cert(certificate, intermediates, &self.name, &[], now)
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.verify(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
