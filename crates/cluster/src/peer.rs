//! Who is at the other end of a connection.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;

/// A machine: SHA-256 of the public key of its certificate (the DER of its `SubjectPublicKeyInfo`)
/// in 64 lower-case hex digits. It stays the same as long as the key does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(String);

/// A text is no [`PeerId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an identity is 64 lower-case hex digits; `tandem cluster show` prints a machine's own")]
pub struct PeerIdError;

impl PeerId {
    /// The peer with this certificate; `None` if it cannot be read.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let key = parsed.subject_public_key_info();
        Some(Self(hex(digest(&SHA256, &key).as_ref())))
    }

    /// The hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PeerId {
    type Err = PeerIdError;

    fn from_str(text: &str) -> Result<Self, PeerIdError> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != SHA256_OUTPUT_LEN * 2 || !text.bytes().all(digit) {
            return Err(PeerIdError);
        }
        Ok(Self(text.to_owned()))
    }
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
