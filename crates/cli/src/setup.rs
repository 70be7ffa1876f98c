//! What a command works with: the nodes of a configuration file, or models of this machine.

use anyhow::bail;
use clap::Args;
use tandem_cluster::Security;
use tandem_coordinator::{Config as CoordinatorConfig, ModelConfig, NodeConfig};

use crate::config::{self, Config};
use crate::environment::Environment;
use crate::local::{self, LocalNode};
use crate::security;
use crate::servers::{self, ServerAddress, parse_server};
use crate::sources::{self, Source, Wanted, parse_wanted};

/// Arguments of every command that asks models.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// Without --config: a model of this machine, which this process loads; may be repeated. A path, or a name that
    /// Ollama, LM Studio or the Hugging Face cache has for it, such as qwen3-coder:30b; or hf:OWNER/REPO:FILE.gguf, which
    /// is fetched. With --config: which of its models to ask (`tandem run`).
    #[arg(long, value_name = "[NAME=]MODEL", value_parser = parse_wanted)]
    model: Vec<Wanted>,
    /// Without --config: a server that runs already and the name of the model that it is asked for; may be repeated, also
    /// with the same name for equal servers. Its own name of the model, where it has several, stands behind a `#`. A key
    /// is read from TANDEM_KEY_NAME.
    #[arg(long, value_name = "NAME=URL[#MODEL]", value_parser = parse_server)]
    server: Vec<ServerAddress>,
    #[command(flatten)]
    local: local::Arguments,
}

/// Everything that is there for a command.
pub struct Setup {
    /// What the coordinator is to work with, and more.
    pub config: Config,
    /// How it speaks to nodes.
    pub security: Security,
    /// The node in this process, if there is one.
    pub local: Option<LocalNode>,
}

impl Arguments {
    /// The model to ask, where a configuration says what there is.
    pub fn chosen(&self) -> Option<&str> {
        let one = self.model.first().filter(|_| self.config.file().is_some());
        one.map(|wanted| wanted.source.as_str())
    }

    /// Reads the configuration, or loads the models.
    ///
    /// # Errors
    /// If neither is there, something of it cannot be used, or a model cannot be loaded.
    pub async fn prepare(&self, environment: &Environment) -> anyhow::Result<Setup> {
        if self.config.file().is_some() {
            if let Some(server) = self.server.first() {
                bail!(
                    "--server {}: with --config, servers are in the file: add a [[server]]",
                    server.name
                );
            }
            let config = self.config.load(environment)?;
            let security = match config.coordinator.nodes.is_empty() {
                // Servers are no machines of a cluster.
                true => Security::Plaintext,
                false => self.security.security(environment)?,
            };
            return Ok(Setup {
                config,
                security,
                local: None,
            });
        }
        if self.model.is_empty() && self.server.is_empty() {
            bail!(
                "there is nothing to ask: give --model MODEL for one on this machine, --server NAME=URL for a server that \
                 runs already, or --config FILE for machines of a cluster; `tandem course open` shows the gradebook without any"
            );
        }
        let sources = self.sources(environment).await?;
        let models = sources.iter().map(|source| ModelConfig {
            name: source.name.clone(),
            prefill: Vec::new(),
            decode: vec![local::NAME.to_owned()],
            servers: Vec::new(),
            mixed_quantisation: false,
            profile: None,
        });
        let mut config = CoordinatorConfig::new(Vec::new(), models.collect());
        servers::add(&mut config, &self.server, environment);
        let mut local = None;
        if !sources.is_empty() {
            let node = LocalNode::start(sources, &self.local, environment).await?;
            config.nodes.push(NodeConfig {
                name: local::NAME.to_owned(),
                address: node.address.to_string(),
                identity: None,
                profile: None,
            });
            local = Some(node);
        }
        Ok(Setup {
            config: self.config.of(config)?,
            security: Security::Plaintext,
            local,
        })
    }

    /// The files of the models, with names that differ.
    async fn sources(&self, environment: &Environment) -> anyhow::Result<Vec<Source>> {
        let mut found = Vec::new();
        for wanted in &self.model {
            found.push(sources::obtain(wanted, environment).await?);
        }
        for (i, source) in found.iter().enumerate() {
            if found[..i].iter().any(|other| other.name == source.name) {
                bail!(
                    "two models have the name `{}`: give each one with --model NAME=MODEL",
                    source.name
                );
            }
        }
        Ok(found)
    }
}

impl Setup {
    /// One in which there is nothing to ask.
    pub fn without_models() -> Self {
        Self {
            config: Config::without_models(),
            security: Security::Plaintext,
            local: None,
        }
    }

    /// Waits for the node in this process to fail; for ever if there is none.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn failed(local: &mut Option<LocalNode>) -> anyhow::Result<()> {
        match local {
            Some(local) => local.failed().await,
            None => std::future::pending().await,
        }
    }
}
