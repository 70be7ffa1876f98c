//! Why the coordinator does not run.

use std::path::PathBuf;

use tandem_identity::LinkError;

/// A key of the configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct ConfigError {
    /// The key, such as `model[1].decode[0]`.
    pub key: String,
    /// What is wrong with its value, and the mend.
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
