//! Records of TLS 1.3 (RFC 8446, section 5): what is encrypted, how, and what is refused.
//!
//! rustls shakes hands and derives keys; with them the bulk of a connection is sealed and opened here,
//! straight between the caller's memory and the socket's buffers. rustls itself would copy each byte
//! three times more on the way in, which costs more than decrypting it.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{ConnectionTrafficSecrets, Error as TlsError};

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;
/// Most plaintext in a record.
pub(crate) const MAX_PLAIN: usize = 1 << 14;
/// Bytes of the tag that seals a record.
pub(crate) const TAG: usize = 16;
/// The byte with the kind of content, behind it.
const KIND: usize = 1;
/// Longest sealed payload (section 5.2), padding and all.
const MAX_SEALED: usize = MAX_PLAIN + 256;
/// Longest payload once opened: content, its kind, padding.
const MAX_INNER: usize = MAX_PLAIN + KIND;
/// Longest record.
pub(crate) const MAX_RECORD: usize = HEADER + MAX_SEALED;
/// What every record's header says: application data, as TLS 1.2 wrote it.
const OUTER: [u8; 3] = [23, 3, 3];

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// It was changed on the way, repeated, left out, or comes from somebody else.
    #[error("a record was damaged on the way")]
    Damaged,
    /// Against the rules of TLS.
    #[error("the other side broke the rules of TLS: {0}")]
    Rules(&'static str),
    /// No more can be sealed.
    #[error("nothing more can be encrypted with this key")]
    Seal,
    /// The other side gave up, or keys cannot be derived.
    #[error("{0}")]
    Tls(#[from] TlsError),
}

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Alert,
    Handshake,
    Data,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => 23,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Alert, Self::Handshake, Self::Data]
            .into_iter()
            .find(|k| k.number() == number)
    }
}

/// A key of one direction, and the number of the next record.
struct Sequence {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    next: u64,
}

impl Sequence {
    fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, TlsError> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            _ => return Err(TlsError::General("a suite that is not offered".into())),
        };
        let unusable = |_| TlsError::General("keys that are not of their suite".into());
        let mut start = [0; NONCE_LEN];
        start.copy_from_slice(iv.as_ref());
        Ok(Self {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(unusable)?),
            iv: start,
            next,
        })
    }

    /// The nonce of the next record (section 5.3); none is given twice.
    fn nonce(&mut self) -> Result<Nonce, RecordError> {
        let mut nonce = self.iv;
        for (byte, n) in nonce[NONCE_LEN - 8..]
            .iter_mut()
            .zip(self.next.to_be_bytes())
        {
            *byte ^= n;
        }
        self.next = self.next.checked_add(1).ok_or(RecordError::Seal)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Seals what is sent.
pub(crate) struct Sealer(Sequence);

impl Sealer {
    /// With the number of the first record and its key.
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, TlsError> {
        Sequence::new(secrets).map(Self)
    }

    /// Records that have been sealed with this key.
    pub(crate) const fn sealed(&self) -> u64 {
        self.0.next
    }

    /// Appends a record with this content, at most [`MAX_PLAIN`] bytes, to `out`.
    pub(crate) fn seal(
        &mut self,
        kind: Kind,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let payload = content.len() + KIND + TAG;
        let length = u16::try_from(payload)
            .ok()
            .filter(|_| content.len() <= MAX_PLAIN)
            .ok_or(RecordError::Seal)?
            .to_be_bytes();
        let header = [OUTER[0], OUTER[1], OUTER[2], length[0], length[1]];
        let nonce = self.0.nonce()?;
        out.extend_from_slice(&header);
        let start = out.len();
        out.resize(start + payload, 0);
        let (sealed, kind_and_tag) = out[start..].split_at_mut(content.len());
        self.0
            .key
            .seal_out_of_place_scatter(
                nonce,
                Aad::from(header),
                content,
                sealed,
                &[kind.number()],
                kind_and_tag,
            )
            .map_err(|_| RecordError::Seal)
    }
}

/// Opens what has arrived.
pub(crate) struct Opener(Sequence);

/// How much room a record needs to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// Bytes of the whole record.
    pub(crate) length: usize,
    /// Bytes that opening it writes: content, kind and padding.
    pub(crate) room: usize,
}

/// The record at the start of `bytes`; `None` if it is not all there. Its length is checked as soon as
/// its header is.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<Record>, RecordError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if header[..3] != OUTER {
        return Err(RecordError::Rules("a record that is not encrypted"));
    }
    let payload = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if payload > MAX_SEALED {
        return Err(RecordError::Rules("a record that is too long"));
    }
    if payload < KIND + TAG {
        return Err(RecordError::Rules("a record that is too short"));
    }
    Ok((rest.len() >= payload).then_some(Record {
        length: HEADER + payload,
        room: payload - TAG,
    }))
}

impl Opener {
    /// With the number of the first record and its key.
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, TlsError> {
        Sequence::new(secrets).map(Self)
    }

    /// Opens a whole record, as [`first`] found it, into `out`, which is as long as its `room`. Gives
    /// the kind and length of its content; what is behind that in `out` means nothing.
    pub(crate) fn open(
        &mut self,
        record: &[u8],
        out: &mut [u8],
    ) -> Result<(Kind, usize), RecordError> {
        let (header, payload) = record
            .split_first_chunk::<HEADER>()
            .ok_or(RecordError::Damaged)?;
        let (sealed, tag) = payload
            .split_at_checked(out.len())
            .ok_or(RecordError::Damaged)?;
        let nonce = self.0.nonce()?;
        self.0
            .key
            .open_separate_gather(nonce, Aad::from(*header), sealed, tag, out)
            .map_err(|_| RecordError::Damaged)?;
        if out.len() > MAX_INNER {
            return Err(RecordError::Rules("a record with too much content"));
        }
        // The kind is the last byte that is not padding (section 5.4).
        let length = out.iter().rposition(|b| *b != 0);
        let kind = length.and_then(|at| Some((Kind::from_number(out[at])?, at)));
        kind.ok_or(RecordError::Rules("a record of no known kind"))
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn secrets() -> (u64, ConnectionTrafficSecrets) {
        let key = AeadKey::from([7; 32]);
        let iv = Iv::from([9; NONCE_LEN]);
        (5, ConnectionTrafficSecrets::Aes256Gcm { key, iv })
    }

    fn ends() -> (Sealer, Opener) {
        (
            Sealer::new(secrets()).unwrap(),
            Opener::new(secrets()).unwrap(),
        )
    }

    fn sealed(sealer: &mut Sealer, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(Kind::Data, content, &mut out).unwrap();
        out
    }

    fn opened(opener: &mut Opener, bytes: &[u8]) -> Result<Vec<u8>, RecordError> {
        let found = first(bytes)?.ok_or(RecordError::Rules("a part"))?;
        let mut out = vec![0; found.room];
        let (kind, length) = opener.open(&bytes[..found.length], &mut out)?;
        assert_eq!(kind, Kind::Data);
        out.truncate(length);
        Ok(out)
    }

    #[test]
    fn what_is_sealed_is_opened_and_cannot_be_read() {
        let (mut sealer, mut opener) = ends();
        for length in [0, 1, 15, 16, 17, 1000, MAX_PLAIN - 1, MAX_PLAIN] {
            let content: Vec<u8> = (0..=250).cycle().take(length).collect();
            let record = sealed(&mut sealer, &content);
            assert_eq!(record.len(), HEADER + length + KIND + TAG);
            assert!(length < 15 || !record.windows(15).any(|w| w == &content[..15]));
            assert_eq!(opened(&mut opener, &record).unwrap(), content);
        }
        let mut out = Vec::new();
        let long = vec![0; MAX_PLAIN + 1];
        assert!(sealer.seal(Kind::Data, &long, &mut out).is_err());
        assert!(out.is_empty());
    }

    #[test]
    fn every_changed_byte_is_found() {
        let (mut sealer, _) = ends();
        let record = sealed(&mut sealer, b"some content");
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut damaged = record.clone();
                damaged[at] ^= 1 << bit;
                // A longer length makes it a part of a record, which the rest must follow.
                damaged.extend_from_slice(&[0; 1 << 8]);
                let (_, mut opener) = ends();
                assert!(opened(&mut opener, &damaged).is_err(), "{at} {bit}");
            }
        }
    }

    #[test]
    fn records_that_are_repeated_swapped_or_left_out_are_found() {
        let (mut sealer, _) = ends();
        let (a, b) = (sealed(&mut sealer, b"a"), sealed(&mut sealer, b"b"));
        for order in [[&a, &a], [&b, &a], [&b, &b]] {
            let (_, mut opener) = ends();
            let both = order.map(|record| opened(&mut opener, record));
            assert!(both.iter().any(Result::is_err));
        }
        let (_, mut opener) = ends();
        assert_eq!(opened(&mut opener, &a).unwrap(), b"a");
        assert_eq!(opened(&mut opener, &b).unwrap(), b"b");
    }

    #[test]
    fn lengths_are_checked_before_the_rest_is_there() {
        let header = |payload: usize| {
            let [high, low] = u16::try_from(payload).unwrap().to_be_bytes();
            [OUTER[0], OUTER[1], OUTER[2], high, low]
        };
        for bad in [0, 1, TAG, MAX_SEALED + 1, 65_535] {
            assert!(first(&header(bad)).is_err(), "{bad}");
        }
        for good in [KIND + TAG, MAX_SEALED] {
            assert_eq!(first(&header(good)).unwrap(), None, "{good}");
        }
        assert_eq!(first(&header(100)[..4]).unwrap(), None);
        // An alert in the clear, as somebody in between could send it.
        assert!(first(&[21, 3, 3, 0, 2, 2, 40]).is_err());
    }

    #[test]
    fn padding_is_taken_away_and_nothing_but_padding_is_refused() {
        let (mut sealer, mut opener) = ends();
        // Content that ends with a kind and zeros, in a record that is then marked as padding: sealed by
        // hand, because the sealer never pads.
        let pad = |sealer: &mut Sealer, inner: &[u8]| {
            let length = u16::try_from(inner.len() + TAG).unwrap().to_be_bytes();
            let header = [OUTER[0], OUTER[1], OUTER[2], length[0], length[1]];
            let mut sealed = inner.to_vec();
            let nonce = sealer.0.nonce().unwrap();
            let key = &sealer.0.key;
            key.seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed)
                .unwrap();
            [&header[..], &sealed].concat()
        };
        let record = pad(&mut sealer, b"ab\x17\0\0\0");
        assert_eq!(opened(&mut opener, &record).unwrap(), b"ab");
        let record = pad(&mut sealer, &[0; 9]);
        assert!(opened(&mut opener, &record).is_err());
        let (mut sealer, mut opener) = ends();
        let record = pad(&mut sealer, &[23; MAX_INNER + 1]);
        assert!(opened(&mut opener, &record).is_err());
    }
}
