//! What a machine needs to know to join: where, whom to trust, and a secret.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::limits::{MAX_ADDRESS_BYTES, MAX_TOKEN_CHARS};
use crate::peer::hex;

/// What every token begins with; the digit is its version.
const PREFIX: &str = "tandem-join-1-";
/// Bytes of the secret: 128 bits.
pub(crate) const SECRET_BYTES: usize = 16;
/// Bytes of the checksum, which finds tokens that were copied in part.
const CHECKSUM_BYTES: usize = 4;

/// Permission for one machine to join a cluster. Used once; worthless when its invitation is over.
///
/// As text: a prefix with the version, then in base64 (URL alphabet, no padding) the fingerprint of
/// the authority (32 bytes), the secret (16), the address (up to 255, UTF-8), and the first 4 bytes
/// of SHA-256 of all that.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    address: String,
    fingerprint: [u8; SHA256_OUTPUT_LEN],
    secret: Secret,
}

/// Shows where, not the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A text is no token. Does not repeat it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not of this kind.
    #[error(
        "this is no token: `tandem cluster invite` on the machine that made the cluster prints one that begins with {PREFIX}"
    )]
    Kind,
    /// Some of it is missing or changed.
    #[error("the token is damaged: copy all of it, without spaces or line breaks")]
    Damaged,
    /// An address that cannot be in a token.
    #[error("the address {0} is not host:port, or longer than {MAX_ADDRESS_BYTES} bytes")]
    Address(String),
    /// There is no randomness.
    #[error("this machine gives no random numbers")]
    Random,
}

/// A secret that is compared in constant time and shown nowhere.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; SECRET_BYTES]);

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Secret {}

impl Secret {
    fn new() -> Result<Self, TokenError> {
        let mut bytes = [0; SECRET_BYTES];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| TokenError::Random)?;
        Ok(Self(bytes))
    }

    /// For the message of a join.
    pub(crate) fn to_text(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Reads what [`Secret::to_text`] wrote.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; SECRET_BYTES];
        // A longer or shorter one does not fit.
        let written = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        (written == SECRET_BYTES).then_some(Self(bytes))
    }
}

impl Token {
    /// A token with a new secret for this address and authority.
    ///
    /// # Errors
    /// If the address is not `host:port`, or there is no randomness.
    pub fn new(address: &str, fingerprint: [u8; SHA256_OUTPUT_LEN]) -> Result<Self, TokenError> {
        if !plausible(address) {
            return Err(TokenError::Address(address.to_owned()));
        }
        Ok(Self {
            address: address.to_owned(),
            fingerprint,
            secret: Secret::new()?,
        })
    }

    /// Where to join, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Fingerprint of the authority's certificate, hex.
    #[must_use]
    pub fn authority(&self) -> String {
        hex(&self.fingerprint)
    }

    pub(crate) const fn fingerprint(&self) -> &[u8; SHA256_OUTPUT_LEN] {
        &self.fingerprint
    }

    pub(crate) const fn secret(&self) -> Secret {
        self.secret
    }

    /// The whole token, secret included: for the person who carries it, and for nobody's log.
    #[must_use]
    pub fn reveal(&self) -> String {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(&self.secret.0);
        bytes.extend_from_slice(self.address.as_bytes());
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let rest = text.strip_prefix(PREFIX).ok_or(TokenError::Kind)?;
        if text.len() > MAX_TOKEN_CHARS {
            return Err(TokenError::Damaged);
        }
        let bytes = URL_SAFE_NO_PAD
            .decode(rest)
            .map_err(|_| TokenError::Damaged)?;
        parse(&bytes).ok_or(TokenError::Damaged)
    }
}

fn parse(bytes: &[u8]) -> Option<Token> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    if checksum(body) != sum {
        return None;
    }
    let (fingerprint, rest) = body.split_first_chunk::<SHA256_OUTPUT_LEN>()?;
    let (secret, address) = rest.split_first_chunk::<SECRET_BYTES>()?;
    let address = std::str::from_utf8(address).ok().filter(|a| plausible(a))?;
    Some(Token {
        address: address.to_owned(),
        fingerprint: *fingerprint,
        secret: Secret(*secret),
    })
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut out = [0; CHECKSUM_BYTES];
    out.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..CHECKSUM_BYTES]);
    out
}

/// True for `host:port` of bounded length.
fn plausible(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    let port = parts.is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    let plain = |c: char| c.is_ascii_graphic();
    port && address.len() <= MAX_ADDRESS_BYTES && address.chars().all(plain)
}
