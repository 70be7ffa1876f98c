//! How a command speaks to nodes: as a machine of a cluster, or without TLS on this machine only.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tandem_cluster::{ClusterDir, DirectoryError, Security};

use crate::environment::Environment;

/// Arguments of every command that connects to nodes or is one.
#[derive(Args)]
pub struct Arguments {
    /// Without TLS, for nodes that all run on this machine: loopback addresses only.
    #[arg(long, conflicts_with = "cluster_dir")]
    plaintext: bool,
    /// Where this machine's keys and certificates are [default: `cluster` below `TANDEM_DATA`,
    /// `$XDG_DATA_HOME/tandem` or ~/.local/share/tandem].
    #[arg(long, value_name = "DIR")]
    cluster_dir: Option<PathBuf>,
}

impl Arguments {
    /// True if any of them is there.
    pub const fn are_given(&self) -> bool {
        self.plaintext || self.cluster_dir.is_some()
    }

    /// The folder with the keys and certificates of this machine.
    ///
    /// # Errors
    /// If nothing says where it could be.
    pub fn directory(&self, environment: &Environment) -> anyhow::Result<ClusterDir> {
        directory(self.cluster_dir.as_ref(), environment)
    }

    /// How to speak to nodes.
    ///
    /// # Errors
    /// If there is no identity and none is renounced either, or it cannot be used.
    pub fn security(&self, environment: &Environment) -> anyhow::Result<Security> {
        if self.plaintext {
            return Ok(Security::Plaintext);
        }
        let identity = match self.directory(environment)?.load() {
            Err(error @ DirectoryError::Empty(_)) => {
                return Err(error).context(
                    "connections between machines are encrypted, and this one is of no cluster yet; if all \
                     nodes run on this machine, add --plaintext",
                );
            }
            other => other?,
        };
        tracing::info!(identity = %identity.id(), cluster = identity.authority(), "TLS is on");
        Ok(Security::Tls(Arc::new(identity)))
    }
}

/// The folder that is given, or the usual one.
///
/// # Errors
/// If nothing says where it could be.
pub fn directory(given: Option<&PathBuf>, environment: &Environment) -> anyhow::Result<ClusterDir> {
    match given {
        Some(path) => Ok(ClusterDir::new(path)),
        None => Ok(ClusterDir::new(environment.cluster()?)),
    }
}
