//! Why the coordinator does not run, and why a call fails.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::client::legacy::Error as ClientError;
use tandem_cluster::LinkError;
use tandem_proto::{NodeError, PROTOCOL_VERSION};

/// A key of the configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct ConfigError {
    /// The key, such as `model[1].decode[0]`.
    pub key: String,
    /// What is wrong with its value, and the fix.
    pub problem: String,
}

/// Why the coordinator stopped or did not start.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The configuration cannot be used.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The file of what the names of models stand for cannot be used.
    #[error("{path}: {source}; `tandem cluster repin` writes it anew", path = .path.display())]
    Pins {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A server cannot be asked.
    #[error("server `{server}`: {reason}")]
    Server {
        /// Its name.
        server: String,
        /// Why.
        reason: String,
    },
    /// A listener cannot be used as it is meant to be.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] LinkError),
}

/// Why a call to a node failed. Reads as the end of a sentence that begins with the node.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error("cannot be reached: {0}")]
    Connect(String),
    /// Nothing came for this long.
    #[error("was silent for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The connection was lost, or something came that is no answer.
    #[error("{0}")]
    Broken(String),
    /// It answers, so it lives, but not as it should.
    #[error("{0}")]
    Odd(String),
    /// It answers, but it cannot be worked with.
    #[error("{0}")]
    Unusable(String),
    /// An event that is too long.
    #[error("sent a line longer than {0} bytes")]
    LongLine(usize),
    /// It says why.
    #[error("refused: {0}")]
    Refused(NodeError),
    /// It is of another version.
    #[error(
        "speaks protocol {theirs} (tandem {version}) and this coordinator protocol {PROTOCOL_VERSION}; \
         install the same version of tandem on both"
    )]
    Protocol {
        /// Its protocol.
        theirs: u32,
        /// Its version.
        version: String,
    },
}

impl CallError {
    /// True if the node had the request and may have died of it.
    pub(crate) fn may_have_died(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Broken(_))
    }

    /// The call failed before an answer.
    pub(crate) fn failed(error: &ClientError) -> Self {
        if error.is_connect() {
            return Self::Connect(innermost(error));
        }
        Self::broken(error)
    }

    /// The connection failed.
    pub(crate) fn broken(error: &(dyn Error + 'static)) -> Self {
        Self::Broken(format!("broke the connection: {}", innermost(error)))
    }
}

/// The innermost cause says what happened; the outer ones only repeat the address.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
