//! Machines of a running cluster, with the figures that their nodes measured.
//!
//! What a node has not done yet it is asked to do: a long prompt, a short one, several at once.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use serde_json::json;
use tandem_coordinator::{Calls, Config, Limits, ModelConfig, NodeConfig};
use tandem_identity::{Public, Security};
use tandem_kv::Contract;
use tandem_proto::{LinkReport, LinkRequest, ModelStatus, NodeStatus, StepTime};
use tandem_sched::profile::{Catalogue, Figures, Latent, Link, Machine, Model, Row, Source};

use super::Fleet;
use crate::asking::{Failed, ask, unseen};
use crate::coordinator::Coordinator;
use crate::probe::attention;
use crate::{config, version};

/// Words of a long prompt, of which a part of the context is enough.
const WORDS: u32 = 600;
/// Tokens that a word of a prompt has at most, and those around all of them.
const WORD_TOKENS: u32 = 6;
const AROUND_TOKENS: u32 = 256;
/// Words of a short one.
const FEW_WORDS: usize = 8;
/// Tokens of each answer.
const ANSWER: u32 = 32;
/// A prefill of so many tokens from the beginning of a prompt tells what long ones take.
const LONG: u32 = 512;
/// Answers at once that are tried.
const AT_ONCE: u32 = 8;
/// Memory of a machine whose models are loaded already: what limits it is its places.
const ANY_MEMORY_GB: f64 = 1e6;
/// A figure that nothing limits.
const ANY_BANDWIDTH_GB_S: f64 = 1e6;

/// What is asked of a cluster.
pub struct Cluster<'a> {
    config: Config,
    security: &'a Security,
    calls: Calls,
    /// Models that are looked at; all if none is named.
    wanted: BTreeSet<String>,
}

impl<'a> Cluster<'a> {
    /// The cluster of a configuration, and those of its models that are named as `NAME[:ANSWER]`.
    ///
    /// # Errors
    /// If the file cannot be used, or a model is not in it.
    pub fn of(file: &Path, security: &'a Security, models: &[String]) -> anyhow::Result<Self> {
        let config = config::load(file)?.coordinator;
        let on_nodes = config.models.iter().filter(|m| !m.decode.is_empty());
        let known: BTreeSet<String> = on_nodes.map(|model| model.name.clone()).collect();
        let named = models.iter().map(|m| super::name_of(m).to_owned());
        let named: BTreeSet<String> = named.collect();
        if let Some(unknown) = named.difference(&known).next() {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            bail!(
                "no nodes of {} have the model `{unknown}`; there are {}",
                file.display(),
                known.join(", ")
            );
        }
        if known.is_empty() {
            bail!("{} has no model on nodes", file.display());
        }
        Ok(Self {
            calls: Calls::new(security.clone(), config.identities(), Limits::default()),
            config,
            security,
            wanted: if named.is_empty() { known } else { named },
        })
    }

    fn models(&self) -> impl Iterator<Item = &ModelConfig> {
        let models = self.config.models.iter();
        models.filter(|model| self.wanted.contains(&model.name))
    }

    /// Nodes that have one of these models.
    fn nodes(&self) -> impl Iterator<Item = &NodeConfig> {
        let used = |node: &&NodeConfig| {
            let mut models = self.models();
            models.any(|m| m.prefill.contains(&node.name) || m.decode.contains(&node.name))
        };
        self.config.nodes.iter().filter(used)
    }

    async fn statuses(&self) -> anyhow::Result<Vec<(&NodeConfig, NodeStatus)>> {
        let mut found = Vec::new();
        for node in self.nodes() {
            let status = self.calls.status(&node.address).await;
            let status = status.with_context(|| format!("node `{}`", node.name))?;
            found.push((node, *status));
        }
        Ok(found)
    }

    /// Machines, models and the link, as measured.
    ///
    /// # Errors
    /// If a node does not answer, or lacks a model.
    pub async fn measure(&self) -> anyhow::Result<Fleet> {
        for (node, status) in self.statuses().await? {
            for model in self.models() {
                let of_node = model.prefill.contains(&node.name);
                if of_node || model.decode.contains(&node.name) {
                    let told = told(node, &status, &model.name)?;
                    self.complete(node, model, told).await?;
                }
            }
        }
        let statuses = self.statuses().await?;
        let mut catalogue = Catalogue::built_in()?;
        let (mut machines, mut places, mut context) = (Vec::new(), u32::MAX, u32::MAX);
        for (node, status) in &statuses {
            let mut machine = machine(node, status);
            for model in self.models() {
                let decodes = model.decode.contains(&node.name);
                if !decodes && !model.prefill.contains(&node.name) {
                    continue;
                }
                let told = told(node, status, &model.name)?;
                machine.figures.push(figures(told));
                let known = catalogue.model(model.profile.as_ref().unwrap_or(&model.name));
                let shape = shape(told, known.ok());
                catalogue.add_model(&node.name, shape)?;
                context = context.min(told.capacity.tokens_per_sequence);
                if decodes {
                    places = places.min(told.capacity.sequences);
                }
            }
            catalogue.add(&node.name, machine.clone())?;
            machines.push(machine);
        }
        let link = match self.link().await? {
            Some(link) => link,
            None => catalogue.link("10gbit")?.clone(),
        };
        Ok(Fleet {
            machines,
            link,
            models: self.models().map(|model| model.name.clone()).collect(),
            room: Some((places, context)),
            catalogue,
        })
    }

    /// Asks a node for what it has not measured of a model.
    async fn complete(
        &self,
        node: &NodeConfig,
        model: &ModelConfig,
        told: &ModelStatus,
    ) -> anyhow::Result<()> {
        let has_long = told
            .steps
            .prefill
            .iter()
            .any(|step| step.depth == 0 && step.count >= LONG);
        let has_step = |count| told.steps.decode.iter().any(|step| step.count == count);
        let at_once = told.capacity.sequences.min(AT_ONCE);
        let decodes = model.decode.contains(&node.name);
        let has_batch = !decodes || at_once == 1 || has_step(at_once);
        if has_long && has_step(1) && has_batch {
            return Ok(());
        }
        eprintln!(
            "`{}` has not measured all of `{}` yet: it is asked for some answers",
            node.name, model.name
        );
        let alone = self.alone(node, model);
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let security = self.security.clone();
        let coordinator =
            Coordinator::start(any_port, Public::plaintext(), alone, security).await?;
        let most = told
            .capacity
            .tokens_per_sequence
            .saturating_sub(AROUND_TOKENS + ANSWER)
            / WORD_TOKENS;
        let words = usize::try_from(most.min(WORDS))?;
        let ask_one = async |words| {
            let body = json!({
                "messages": [{"role": "user", "content": unseen(words)}],
                "max_tokens": ANSWER,
            });
            let answer = ask(&coordinator, &model.name, body).await;
            answer.map_err(|Failed(problem, _)| {
                anyhow::anyhow!("`{}` of node `{}`: {problem}", model.name, node.name)
            })
        };
        ask_one(words).await?;
        ask_one(FEW_WORDS).await?;
        if decodes && at_once > 1 {
            try_join_all((0..at_once).map(|_| ask_one(FEW_WORDS))).await?;
        }
        coordinator.stop().await
    }

    /// A cluster in which a model is prefilled by one node only, and decoded there if it decodes.
    fn alone(&self, node: &NodeConfig, model: &ModelConfig) -> Config {
        let mut alone = self.config.clone();
        alone.servers.clear();
        let mut model = model.clone();
        model.servers.clear();
        if model.decode.contains(&node.name) {
            model.decode = vec![node.name.clone()];
            model.prefill.clear();
        } else {
            model.prefill = vec![node.name.clone()];
        }
        let used = |other: &NodeConfig| {
            model.prefill.contains(&other.name) || model.decode.contains(&other.name)
        };
        alone.nodes.retain(used);
        alone.models = vec![model];
        alone
    }

    /// The slowest link from a node that prefills to one that decodes; `None` without two nodes.
    async fn link(&self) -> anyhow::Result<Option<Link>> {
        let mut pairs = BTreeSet::new();
        for model in self.models() {
            for from in &model.prefill {
                let others = model.decode.iter().filter(|to| *to != from);
                pairs.extend(others.map(|to| (from, to)));
            }
        }
        let find = |name: &str| {
            let found = self.config.nodes.iter().find(|node| node.name == name);
            found.with_context(|| format!("node `{name}` is not in the configuration"))
        };
        let mut slowest: Option<Link> = None;
        for (from, to) in pairs {
            let (near, far) = (find(from)?, find(to)?);
            let request = LinkRequest {
                to: far.address.clone(),
                peer: self.calls.status(&far.address).await?.identity,
            };
            let tried = self.calls.link(&near.address, &request).await;
            let report = tried.with_context(|| format!("the link `{from}` to `{to}`"))?;
            let link = self::link(from, to, &report);
            if slowest
                .as_ref()
                .is_none_or(|other| link.goodput_gb_s < other.goodput_gb_s)
            {
                slowest = Some(link);
            }
        }
        Ok(slowest)
    }
}

fn told<'a>(
    node: &NodeConfig,
    status: &'a NodeStatus,
    model: &str,
) -> anyhow::Result<&'a ModelStatus> {
    let found = status.models.iter().find(|told| told.name == model);
    found.with_context(|| format!("node `{}` has no model `{model}`", node.name))
}

fn source() -> Source {
    Source {
        at: format!("measured by a node of tandem {}", version::VERSION),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
    }
}

fn link(from: &str, to: &str, report: &LinkReport) -> Link {
    Link {
        name: "measured".to_owned(),
        title: format!(
            "the link from {from} to {to}, {:.2} GB/s measured",
            report.there / 1e9
        ),
        goodput_gb_s: (report.there / 1e9).max(1e-6),
        round_trip_ms: report.round_trip_ms.max(1e-6),
        source: source(),
    }
}

fn machine(node: &NodeConfig, status: &NodeStatus) -> Machine {
    Machine {
        name: node.name.clone(),
        title: format!("{}, tandem {}", node.address, status.version),
        memory_gb: ANY_MEMORY_GB,
        bandwidth_gb_s: ANY_BANDWIDTH_GB_S,
        source: source(),
        watts: None,
        figures: Vec::new(),
        models: Vec::new(),
    }
}

fn row(step: &StepTime) -> Row {
    let count = f64::from(step.count.max(1));
    let seconds = crate::numbers::float(step.micros.max(1)) / 1e6;
    (count, f64::from(step.depth), count / seconds)
}

/// Ends of prompts are short steps after many tokens: they do not tell what long steps there take.
fn figures(told: &ModelStatus) -> Figures {
    let fresh = told.steps.prefill.iter().filter(|step| step.depth == 0);
    let longest = fresh.map(|step| step.count).max().unwrap_or(0);
    let prefill = told
        .steps
        .prefill
        .iter()
        .filter(|step| step.depth == 0 || step.count > longest / 2);
    Figures {
        model: told.name.clone(),
        engine: told.contract.engine.clone(),
        source: source(),
        prefill: prefill.map(row).collect(),
        decode: told.steps.decode.iter().map(row).collect(),
        note: String::new(),
    }
}

/// The model of a node: its weights are loaded already.
fn shape(told: &ModelStatus, known: Option<&Model>) -> Model {
    let mut model = Model {
        name: told.name.clone(),
        title: format!("{}, {}", told.name, told.contract.architecture),
        weights_gb: 1e-6,
        parameters_b: known.and_then(|model| model.parameters_b),
        active_b: known.and_then(|model| model.active_b),
        experts: known.and_then(|model| model.experts.clone()),
        attention: attention(&told.contract),
        latent: None,
        source: source(),
    };
    if told.stays.is_some() {
        model.latent = Some(staying(&model, &told.contract));
        model.attention.clear();
    }
    model
}

/// A cache that is not handed over is like one of another kind.
fn staying(model: &Model, contract: &Contract) -> Latent {
    Latent {
        token_bytes: (model.kv_bytes(20_001.0) - model.kv_bytes(20_000.0)).max(1.0),
        fixed_bytes: 0.0,
        layers: u32::try_from(contract.layers.len()).unwrap_or(u32::MAX),
    }
}
