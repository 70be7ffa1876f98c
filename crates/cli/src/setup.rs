//! What a command works with: the nodes of a configuration file, or models of this machine.

use anyhow::bail;
use clap::Args;
use tandem_coordinator::{Config as CoordinatorConfig, ModelConfig, NodeConfig};
use tandem_identity::Security;

use crate::config::{self, Config};
use crate::environment::Environment;
use crate::local::{self, LocalNode};
use crate::security;
use crate::sources::{self, Source, Wanted, parse_wanted};

/// Arguments of every command that asks models.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// Without --config: a model of this machine, which this process loads; may be repeated. A path, or a name that
    /// Ollama, LM Studio or the Hugging Face cache has for it, such as qwen3-coder:30b. With --config: which of its
    /// models to ask (`tandem run`).
    #[arg(long, value_name = "[NAME=]MODEL", value_parser = parse_wanted)]
    model: Vec<Wanted>,
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
            return Ok(Setup {
                config: self.config.load(environment)?,
                security: self.security.security(environment)?,
                local: None,
            });
        }
        if self.model.is_empty() {
            bail!(
                "there is nothing to ask: give --model MODEL for one on this machine, or --config FILE for machines that \
                 run already"
            );
        }
        let sources = self.sources(environment)?;
        let models = sources.iter().map(|source| ModelConfig {
            name: source.name.clone(),
            prefill: Vec::new(),
            decode: vec![local::NAME.to_owned()],
            mixed_quantisation: false,
        });
        let models = models.collect();
        let local = LocalNode::start(sources, &self.local, environment).await?;
        let node = NodeConfig {
            name: local::NAME.to_owned(),
            address: local.address.to_string(),
            identity: None,
        };
        Ok(Setup {
            config: self.config.of(CoordinatorConfig::new(vec![node], models))?,
            security: Security::Plaintext,
            local: Some(local),
        })
    }

    /// The files of the models, with names that differ.
    fn sources(&self, environment: &Environment) -> anyhow::Result<Vec<Source>> {
        let find = |wanted| sources::find(wanted, &environment.places);
        let found: Vec<Source> = self.model.iter().map(find).collect::<Result<_, _>>()?;
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
