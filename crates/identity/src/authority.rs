//! The authority of a cluster: who vouches for its machines.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::identity::{Identity, IdentityError};
use crate::limits::{AUTHORITY_VALIDITY, CLOCK_SKEW, JOIN_VALIDITY, NODE_VALIDITY};
use crate::peer::{PeerId, hex};

/// The DNS name in every certificate of a machine.
pub const NODE_NAME: &str = "node.tandem.internal";
/// The DNS name in the certificate with which an authority answers those that join. It is not valid
/// for a node, nor for a client.
pub const JOIN_NAME: &str = "join.tandem.internal";
/// Random bytes in the name of an authority, so that no two have the same.
const NAME_BYTES: usize = 8;

/// The key and certificate that vouch for the machines of a cluster. The key never leaves the
/// machine that made it.
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
    until: SystemTime,
}

/// Shows the fingerprint, not the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("fingerprint", &hex(&self.fingerprint()))
            .finish_non_exhaustive()
    }
}

/// Why an authority cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A key or certificate cannot be made or read.
    #[error("certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    /// A certificate is not readable as PEM.
    #[error("the certificate of the authority cannot be read")]
    Unreadable,
    /// There is no randomness.
    #[error("this machine gives no random numbers")]
    Random,
    /// What a machine sent is no request for a certificate that can be given.
    #[error("the request for a certificate cannot be used: {0}")]
    Request(String),
    /// The certificate that was made cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// From when until when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// From [`CLOCK_SKEW`] ago until `length` from now.
    #[must_use]
    pub fn starting_now(length: Duration) -> Self {
        let now = SystemTime::now();
        Self {
            from: now - CLOCK_SKEW,
            until: now + length,
        }
    }
}

/// A certificate and its key, both PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// Makes an authority with a new key, valid for [`AUTHORITY_VALIDITY`].
    ///
    /// # Errors
    /// If there is no randomness or a certificate cannot be made.
    pub fn create() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut name = [0; NAME_BYTES];
        aws_lc_rs::rand::fill(&mut name).map_err(|_| AuthorityError::Random)?;
        let mut params = CertificateParams::default();
        valid(&mut params, Validity::starting_now(AUTHORITY_VALIDITY));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = format!("tandem cluster {}", hex(&name));
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key)?.pem();
        Self::from_pem(certificate, key.serialize_pem())
    }

    /// An authority from its certificate and key.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn from_pem(certificate_pem: String, key_pem: String) -> Result<Self, AuthorityError> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| AuthorityError::Unreadable)?;
        let key = KeyPair::from_pem(&key_pem)?;
        let until = expiry(&certificate).ok_or(AuthorityError::Unreadable)?;
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&certificate, key)?,
            certificate,
            certificate_pem,
            key_pem,
            until,
        })
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

    /// SHA-256 of the certificate's DER.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; SHA256_OUTPUT_LEN] {
        fingerprint(&self.certificate)
    }

    /// A new identity for a machine of this cluster, valid for [`NODE_VALIDITY`].
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn issue(&self) -> Result<Identity, AuthorityError> {
        self.issue_for(Validity::starting_now(NODE_VALIDITY))
    }

    /// A new identity that is valid at this time only.
    ///
    /// # Errors
    /// If it cannot be made, or is not valid now: [`IdentityError::Expired`].
    pub fn issue_for(&self, validity: Validity) -> Result<Identity, AuthorityError> {
        let issued = self.issue_pem(validity)?;
        let identity = Identity::from_pem(issued.certificate, issued.key, &self.certificate_pem)?;
        Ok(identity)
    }

    pub(crate) fn issue_pem(&self, validity: Validity) -> Result<Issued, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(Issued {
            certificate: self.sign_node(&key, validity)?,
            key: key.serialize_pem(),
        })
    }

    /// The certificate, PEM, for a machine that asks with this request (PKCS #10, PEM), and who that
    /// is. Only the request's public key counts, and that the asker has the private one: everything
    /// else in the certificate is the authority's choice.
    ///
    /// # Errors
    /// If the request cannot be read, is not signed with its key, or its key is of another kind than
    /// ECDSA P-256.
    pub fn sign_pem(&self, request: &str) -> Result<(String, PeerId), AuthorityError> {
        let unusable = |e: rcgen::Error| AuthorityError::Request(e.to_string());
        let asked = CertificateSigningRequestParams::from_pem(request).map_err(unusable)?;
        if asked.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(AuthorityError::Request("its key is not ECDSA P-256".into()));
        }
        let validity = Validity::starting_now(NODE_VALIDITY);
        let certificate = self.sign_node(&asked.public_key, validity)?;
        let read = CertificateDer::from_pem_slice(certificate.as_bytes());
        let peer = read.ok().and_then(|c| PeerId::of(&c));
        Ok((certificate, peer.ok_or(AuthorityError::Unreadable)?))
    }

    fn sign_node(
        &self,
        key: &impl PublicKeyData,
        validity: Validity,
    ) -> Result<String, AuthorityError> {
        let both = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.sign_leaf(key, NODE_NAME, &both, validity)
    }

    /// A certificate with which this authority answers those that join.
    pub(crate) fn issue_join(&self) -> Result<Issued, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let server = [ExtendedKeyUsagePurpose::ServerAuth];
        let validity = Validity::starting_now(JOIN_VALIDITY);
        Ok(Issued {
            certificate: self.sign_leaf(&key, JOIN_NAME, &server, validity)?,
            key: key.serialize_pem(),
        })
    }

    fn sign_leaf(
        &self,
        key: &impl PublicKeyData,
        name: &str,
        usages: &[ExtendedKeyUsagePurpose],
        validity: Validity,
    ) -> Result<String, AuthorityError> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        valid(
            &mut params,
            Validity {
                from: validity.from,
                until: validity.until.min(self.until),
            },
        );
        let id = digest(&SHA256, &key.subject_public_key_info());
        params
            .distinguished_name
            .push(DnType::CommonName, hex(id.as_ref()));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

fn valid(params: &mut CertificateParams, validity: Validity) {
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
}

/// SHA-256 of a certificate's DER.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; SHA256_OUTPUT_LEN] {
    let mut out = [0; SHA256_OUTPUT_LEN];
    out.copy_from_slice(digest(&SHA256, certificate).as_ref());
    out
}

/// The same of a certificate in PEM, hex.
pub(crate) fn fingerprint_of_pem(pem: &str) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(hex(&fingerprint(&certificate)))
}

/// Until when a certificate is valid.
pub(crate) fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
