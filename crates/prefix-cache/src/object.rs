//! What is stored: a page or a snapshot, and the bytes of its file.
//!
//! A file is a head, the tokens as u32, and the rows. All integers are little-endian.
//!
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 4 | the bytes `TNDP` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | 0: page, 1: snapshot |
//! | 7 | 1 | provenance: 0 prefilled, 1 decoded |
//! | 8 | 4 | 0 |
//! | 12 | 4 | number of tokens: 64 of a page, 0 to 63 of a snapshot |
//! | 16 | 4 | one past the last token |
//! | 20 | 4 | 0 |
//! | 24 | 8 | bytes of rows |
//! | 32 | 32 | id |
//! | 64 | 32 | id of the page before |
//! | 96 | 32 | BLAKE3 of the rows |
//! | 128 | 32 | BLAKE3 of bytes 0 to 127 and the tokens |
//!
//! The digests find damage; a forger who can write to the directory owns the account anyway.

use std::sync::Arc;

use tandem_handoff::page::{PAGE_TOKENS, PageId};

use super::Provenance;
use super::limits::{ENTRY_OVERHEAD, MAX_OBJECT_BYTES};

/// Rows of an object, shared with those who read or write them at the moment.
pub type Rows = Arc<Vec<u8>>;

/// Bytes of a file before the tokens.
pub const HEAD_BYTES: usize = 160;
/// Bytes of the longest head with its tokens.
pub const MAX_HEAD_BYTES: usize = HEAD_BYTES + PAGE_TOKENS as usize * 4;

const MAGIC: &[u8; 4] = b"TNDP";
const VERSION: u16 = 1;
/// Where the second digest stands: after everything of the head that it covers.
const DIGEST_AT: usize = 128;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The rows of all full layers for the tokens of one page.
    Page,
    /// The window at one position, if the model has one, after the rows of all full layers for the
    /// tokens since the last page boundary.
    Snapshot,
}

impl Kind {
    /// How file names of this kind end.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Everything about an object but its rows.
#[derive(Clone, PartialEq, Eq)]
pub struct Meta {
    pub kind: Kind,
    pub provenance: Provenance,
    /// The page before.
    pub parent: PageId,
    /// One past the last token.
    pub end: u32,
    /// Its own tokens: those of the page, or those since the last page boundary.
    pub tokens: Box<[u32]>,
    /// Bytes of rows.
    pub bytes: u64,
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} up to token {}", self.kind, self.end)
    }
}

/// Why the head of a file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Another version wrote it.
    Version,
    /// It is not what was written.
    Damaged,
}

impl Meta {
    /// Memory that an object takes.
    pub fn cost(&self) -> u64 {
        self.bytes + self.tokens.len() as u64 * 4 + ENTRY_OVERHEAD
    }

    /// Bytes of its file before the rows.
    pub fn head_bytes(&self) -> usize {
        HEAD_BYTES + self.tokens.len() * 4
    }

    /// Bytes of its file.
    pub fn file_bytes(&self) -> u64 {
        self.head_bytes() as u64 + self.bytes
    }

    /// True if these are the tokens that a chain has where this object would be used: an id says
    /// so already, unless it collides.
    pub fn is(&self, kind: Kind, end: u32, tokens: &[u32]) -> bool {
        self.kind == kind && self.end == end && *self.tokens == *tokens
    }

    /// The first bytes of its file: head and tokens.
    pub fn encode(&self, id: &PageId, rows: &[u8]) -> Vec<u8> {
        let provenance = match self.provenance {
            Provenance::Prefilled => 0,
            Provenance::Decoded => 1,
        };
        let count = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(MAX_HEAD_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(u8::from(self.kind == Kind::Snapshot));
        out.extend_from_slice(&[provenance, 0, 0, 0, 0]);
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&self.end.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(self.parent.as_bytes());
        out.extend_from_slice(blake3::hash(rows).as_bytes());
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let digest = digest(&out, &tokens);
        out.extend_from_slice(digest.as_bytes());
        out.extend_from_slice(&tokens);
        out
    }

    /// Reads head and tokens from the start of a file of `file_bytes` bytes; `start` is as much of
    /// it as there is of the first [`MAX_HEAD_BYTES`]. Also gives the digest of the rows.
    ///
    /// # Errors
    /// If they are not those of a whole file of the object `id`.
    pub fn parse(
        id: &PageId,
        kind: Kind,
        file_bytes: u64,
        start: &[u8],
    ) -> Result<(Self, blake3::Hash), Unusable> {
        let (head, rest) = start
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or(Unusable::Damaged)?;
        if head[..4] != *MAGIC {
            return Err(Unusable::Damaged);
        }
        if u16::from_le_bytes([head[4], head[5]]) != VERSION {
            return Err(Unusable::Version);
        }
        let count = number(head, 12);
        let fits = match kind {
            Kind::Page => count == PAGE_TOKENS,
            Kind::Snapshot => count < PAGE_TOKENS,
        };
        let tokens = rest.get(..count as usize * 4).filter(|_| fits);
        let tokens = tokens.ok_or(Unusable::Damaged)?;
        if digest(&head[..DIGEST_AT], tokens) != hash_at(head, DIGEST_AT) {
            return Err(Unusable::Damaged);
        }
        let meta = Self {
            kind,
            provenance: match head[7] {
                0 => Provenance::Prefilled,
                1 => Provenance::Decoded,
                _ => return Err(Unusable::Damaged),
            },
            parent: PageId::from_bytes(*hash_at(head, 64).as_bytes()),
            end: number(head, 16),
            tokens: tokens
                .as_chunks::<4>()
                .0
                .iter()
                .map(|t| u32::from_le_bytes(*t))
                .collect(),
            bytes: u64::from(number(head, 24)) | u64::from(number(head, 28)) << 32,
        };
        // A file that somebody renamed is of no use, nor is one that ends too soon.
        let is_named = head[6] == u8::from(kind == Kind::Snapshot)
            && hash_at(head, 32).as_bytes() == id.as_bytes();
        if !is_named || meta.bytes > MAX_OBJECT_BYTES || meta.file_bytes() != file_bytes {
            return Err(Unusable::Damaged);
        }
        Ok((meta, hash_at(head, 96)))
    }
}

fn digest(head: &[u8], tokens: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(head).update(tokens).finalize()
}

fn number(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn hash_at(head: &[u8; HEAD_BYTES], at: usize) -> blake3::Hash {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(&head[at..at + 32]);
    blake3::Hash::from_bytes(bytes)
}
