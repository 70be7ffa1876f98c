//! What is in every certificate of a cluster, and what tells one from another.

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::peer::hex;

/// The DNS name in every certificate of a machine.
pub const NODE_NAME: &str = "node.tandem.internal";
/// The DNS name in the certificate with which an authority answers those that join. It is not valid
/// for a node, nor for a client.
pub const JOIN_NAME: &str = "join.tandem.internal";

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
