//! What rows cannot be encoded and what bytes are no run.

/// Longest part of an unknown name that is repeated in the message, in characters.
const SHOWN_NAME: usize = 40;

/// Why a run could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The rows, or the space for them, have another size than the run.
    #[error("rows of {found} bytes, but the run has {expected}")]
    RawLength {
        /// Bytes given.
        found: u64,
        /// Bytes of the run.
        expected: u64,
    },
    /// Encoding: a NaN or an infinity, which a lossy codec has no code for.
    #[error("element {element} of the rows is not finite (f16 {bits:#06x}); send them lossless")]
    NotFinite {
        /// Index in the run.
        element: u64,
        /// The half float.
        bits: u16,
    },
    /// Decoding: the bytes end inside the run.
    #[error("`{field}` needs {needed} bytes, {found} are left")]
    Truncated {
        /// Which part of the run.
        field: &'static str,
        /// Its size.
        needed: u64,
        /// What is left.
        found: u64,
    },
    /// Decoding: a field has a value that no encoder writes.
    #[error("`{field}` is {found}, allowed {allowed}")]
    Field {
        /// Which field.
        field: &'static str,
        /// The value found.
        found: String,
        /// What is allowed.
        allowed: String,
    },
    /// zstd refused its settings, or the compressed bytes.
    #[error("zstd: {reason}")]
    Zstd {
        /// Its message.
        reason: String,
    },
}

/// A name that no codec has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec `{name}`, known are raw, plane, q8")]
pub struct UnknownCodec {
    /// The name, cut if it is long.
    pub name: String,
}

impl UnknownCodec {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.chars().take(SHOWN_NAME).collect(),
        }
    }
}
