//! The authority of a cluster: who vouches for its machines.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;

use crate::certificate::{JOIN_NAME, NODE_NAME, fingerprint};
use crate::identity::{Identity, IdentityError, NodeVerifier};
use crate::limits::{AUTHORITY_VALIDITY, CLOCK_SKEW, JOIN_VALIDITY, NODE_VALIDITY};
use crate::peer::{PeerId, hex};

/// Bytes of the digest of its key in the name of an authority, so that no two have the same.
const NAME_BYTES: usize = 8;
/// What a public key of ECDSA P-256 begins with as a `SubjectPublicKeyInfo` (RFC 5480, section 2); the
/// point follows.
const P256_KEY: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Bytes of an uncompressed point of that curve.
const P256_POINT: usize = 65;

/// The key and certificate that vouch for the machines of a cluster. The key never leaves the
/// machine that made it.
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
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
    /// A machine shows a key that is not of the kind that tandem makes.
    #[error("its key is not one of ECDSA P-256")]
    Key,
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
        let certificate = authority_params(&key).self_signed(&key)?.pem();
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
        Ok(Self {
            issuer: Issuer::new(authority_params(&key), key),
            certificate,
            certificate_pem,
            key_pem,
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

    /// A certificate, PEM, for the machine that has shown this certificate and proved in a handshake
    /// that it has its key; and who that is. Only the public key counts: everything else in the new
    /// certificate is the authority's choice.
    ///
    /// # Errors
    /// If the key is not of ECDSA P-256, or the certificate would not hold.
    pub(crate) fn sign_key_of(
        &self,
        shown: &CertificateDer<'_>,
    ) -> Result<(String, PeerId), AuthorityError> {
        let key = ParsedCertificate::try_from(shown).map_err(|_| AuthorityError::Key)?;
        let key = key.subject_public_key_info();
        let point = key.strip_prefix(&P256_KEY).ok_or(AuthorityError::Key)?;
        let point = point.try_into().map_err(|_| AuthorityError::Key)?;
        let pem = self.sign_node(&Point(point), Validity::starting_now(NODE_VALIDITY))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
        let certificate = certificate.map_err(|_| AuthorityError::Unreadable)?;
        // As the machines of the cluster will, before a token is used up for nothing.
        NodeVerifier::new(&self.certificate, NODE_NAME)
            .and_then(|v| v.verify(&certificate, &[], UnixTime::now()))
            .map_err(|e| IdentityError::Foreign(e.to_string()))?;
        let peer = PeerId::of(&certificate).ok_or(AuthorityError::Unreadable)?;
        Ok((pem, peer))
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
        valid(&mut params, validity);
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

/// What the certificate of an authority says. The name follows from the key, so that what the
/// authority signs later names it alike.
fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    valid(&mut params, Validity::starting_now(AUTHORITY_VALIDITY));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let id = digest(&SHA256, &key.subject_public_key_info());
    let name = format!("tandem cluster {}", hex(&id.as_ref()[..NAME_BYTES]));
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A public key of ECDSA P-256: an uncompressed point.
struct Point([u8; P256_POINT]);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn valid(params: &mut CertificateParams, validity: Validity) {
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
}
