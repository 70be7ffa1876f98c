//! Names of KV pages: a keyed hash chain over everything that KV depends on.
//!
//! A *page* is the KV of [`PAGE_TOKENS`] tokens that start at a multiple of it. Two pages have the
//! same [`PageId`] only if their [`Namespace`] (contract, salt, origin), their tokens and all tokens
//! before them are the same, up to a collision of BLAKE3; whoever loads a page by its id compares
//! the tokens all the same, so a collision is a miss.
//!
//! ```text
//! ns_key   = blake3::derive_key("tandem kv v1", field(every field of the contract) .. field(salt) field(origin))
//! page id  = blake3::keyed_hash(ns_key, field(parent) field(tokens as u32) field(extra))
//! field(x) = length of x in bytes as u64, then x; integers are little-endian
//! ```
//!
//! The parent of the first page is [`PageId::ROOT`]. The id of a *position*, after any number of
//! tokens, is the same hash over fewer than [`PAGE_TOKENS`] tokens, so it is never that of a page.
//! The byte tables are under "Pages" in `docs/wire-format.md`.

use std::fmt::{Debug, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use crate::codec::Codec;
use crate::contract::{Contract, LayerSpec, Section};

/// Tokens of one page.
pub const PAGE_TOKENS: u32 = 64;

/// The last page boundary at or before a position.
#[must_use]
pub const fn page_start(position: u32) -> u32 {
    position - position % PAGE_TOKENS
}

/// [`PAGE_TOKENS`] as a length of slices.
const PAGE_LEN: usize = PAGE_TOKENS as usize;

/// Purpose of the key of a namespace, as BLAKE3 wants it: it changes with the rules of this module.
const KEY_CONTEXT: &str = "tandem kv v1";

/// Name of a page or of a position, 32 bytes; written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId([u8; 32]);

impl PageId {
    /// The parent of the first page: 32 zero bytes.
    pub const ROOT: Self = Self([0; 32]);

    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Display for PageId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Debug for PageId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageId({self})")
    }
}

/// A text that is no page id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a page id is 64 lower-case hexadecimal digits")]
pub struct InvalidPageId;

impl FromStr for PageId {
    type Err = InvalidPageId;

    fn from_str(text: &str) -> Result<Self, InvalidPageId> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(InvalidPageId),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(InvalidPageId);
        }
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

/// What the rows of a namespace have been through. Copies that may differ have different ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Rows as an engine computed them after such rows.
    Exact,
    /// Rows that an engine computed after exact ones and that went through the lossy codec with this wire
    /// number.
    Lossy(u8),
}

impl Origin {
    /// Of rows that came in this codec.
    #[must_use]
    pub const fn of(codec: Codec) -> Self {
        match codec.is_lossless() {
            true => Self::Exact,
            false => Self::Lossy(codec.wire()),
        }
    }

    /// The lossy codec, if it was one that is known.
    #[must_use]
    pub const fn codec(self) -> Option<Codec> {
        match self {
            Self::Exact => None,
            Self::Lossy(number) => Codec::from_wire(number),
        }
    }
}

/// Everything beside the tokens that the ids of a chain depend on.
///
/// Nobody without the salt can compute ids of the namespace, so a tenant cannot probe for what
/// others have asked. For the same reason `Debug` shows neither salt nor key.
#[derive(Clone)]
pub struct Namespace {
    key: [u8; 32],
    contract: Arc<Contract>,
    origin: Origin,
}

impl Debug for Namespace {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace")
            .field("origin", &self.origin)
            .field("weights", &self.contract.weights)
            .finish_non_exhaustive()
    }
}

/// Equal exactly if all ids are.
impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        // A comparison that takes the same time wherever the keys differ.
        blake3::Hash::from_bytes(self.key) == blake3::Hash::from_bytes(other.key)
    }
}

impl Eq for Namespace {}

impl Namespace {
    /// The namespace of KV under this contract, for one tenant.
    ///
    /// `salt` separates tenants: random bytes that stay with the tenant, of any length.
    #[must_use]
    pub fn new(contract: Arc<Contract>, salt: &[u8], origin: Origin) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hash_contract(&mut hasher, &contract);
        field(&mut hasher, salt);
        match origin {
            Origin::Exact => field(&mut hasher, &[0]),
            Origin::Lossy(codec) => field(&mut hasher, &[1, codec]),
        }
        Self {
            key: *hasher.finalize().as_bytes(),
            contract,
            origin,
        }
    }

    /// The contract that the rows follow.
    #[must_use]
    pub fn contract(&self) -> &Arc<Contract> {
        &self.contract
    }

    /// What the rows have been through.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The id of the page of these tokens after the page `parent`.
    ///
    /// `extra` is whatever else changes its KV, such as the digest and offset of an image in it;
    /// empty for plain text.
    #[must_use]
    pub fn page(&self, parent: &PageId, tokens: &[u32; PAGE_LEN], extra: &[u8]) -> PageId {
        self.hash(parent, tokens, extra)
    }

    /// The ids of the complete pages of a sequence, from its first token; `tokens.len() / 64` ids.
    #[must_use]
    pub fn chain(&self, tokens: &[u32]) -> Vec<PageId> {
        let mut parent = PageId::ROOT;
        let pages = tokens.as_chunks::<PAGE_LEN>().0.iter();
        pages
            .map(|page| {
                parent = self.page(&parent, page, &[]);
                parent
            })
            .collect()
    }

    /// The id of the position after `tokens`, which follow the page `parent` (at a page boundary
    /// there are none). Complete pages among the tokens are chained first.
    ///
    /// State that is not made of rows per token, such as an attention window, has this name.
    #[must_use]
    pub fn position(&self, parent: &PageId, tokens: &[u32]) -> PageId {
        let (pages, tail) = tokens.as_chunks::<PAGE_LEN>();
        let parent = pages
            .iter()
            .fold(*parent, |p, page| self.page(&p, page, &[]));
        self.hash(&parent, tail, &[])
    }

    fn hash(&self, parent: &PageId, tokens: &[u32], extra: &[u8]) -> PageId {
        // All fields of an ordinary page in one buffer: one call of the hash instead of 64.
        let mut bytes = Vec::with_capacity(3 * 8 + 32 + tokens.len() * 4 + extra.len());
        let mut put = |field: &[u8]| {
            bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
            bytes.extend_from_slice(field);
        };
        put(&parent.0);
        let mut little_endian = [[0; 4]; PAGE_LEN];
        for (to, token) in little_endian.iter_mut().zip(tokens) {
            *to = token.to_le_bytes();
        }
        put(little_endian[..tokens.len().min(PAGE_LEN)].as_flattened());
        put(extra);
        PageId(*blake3::keyed_hash(&self.key, &bytes).as_bytes())
    }
}

fn field(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// Every field of the contract in the order of the table in `docs/wire-format.md`.
fn hash_contract(hasher: &mut blake3::Hasher, contract: &Contract) {
    // Without `..`, so that a new field cannot be forgotten here.
    let Contract {
        layout_version,
        engine,
        architecture,
        quantisation,
        weights,
        tokenizer,
        rope,
        rotation,
        window,
        key_type,
        value_type,
        layers,
    } = contract;
    field(hasher, &layout_version.to_le_bytes());
    for text in [
        engine,
        architecture,
        quantisation,
        weights,
        tokenizer,
        rope,
        rotation,
    ] {
        field(hasher, text.as_bytes());
    }
    field(hasher, &window.to_le_bytes());
    field(hasher, &[key_type.wire()]);
    field(hasher, &[value_type.wire()]);
    field(hasher, &(layers.len() as u64).to_le_bytes());
    for layer in layers {
        let LayerSpec {
            kind,
            kv_heads,
            key_dim,
            value_dim,
        } = layer;
        let section = match kind {
            crate::LayerKind::Full => Section::Full,
            crate::LayerKind::Window => Section::Window,
        };
        field(hasher, &[section.wire()]);
        for number in [kv_heads, key_dim, value_dim] {
            field(hasher, &number.to_le_bytes());
        }
    }
}
