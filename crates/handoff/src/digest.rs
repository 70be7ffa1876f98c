//! The one way token sequences are hashed.

/// BLAKE3 of `tokens` as little-endian u32, prefixed with their count.
///
/// Both ends of a handoff compare it, so that KV is never applied to other tokens.
#[must_use]
pub fn token_digest(tokens: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("tandem tokens v1");
    hasher.update(&(tokens.len() as u64).to_le_bytes());
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}
