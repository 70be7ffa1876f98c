//! `GET /health` and `GET /v1/nodes`: what each node holds and does. No text of any prompt.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_handoff::{Contract, ElementType};
use tandem_proto::{Capacity, ModelStatus, Role, SequenceStatus};
use tandem_sched::{NodeView, ServerView};

use crate::backend::server::probe::{Served, in_words};
use crate::cluster::Look;
use crate::config::Config;
use crate::pairs::PairReport;
use crate::service::Service;

/// Answer to `GET /health`; 200 if `reasons` is empty, otherwise 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// `ok` or `unavailable`.
    pub status: String,
    /// Why models cannot be served now.
    pub reasons: Vec<String>,
    /// What of models that are served does not work, such as a chat template that cannot be rendered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Answer to `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeList {
    /// `list`.
    pub object: String,
    /// The nodes, in configured order.
    pub data: Vec<NodeReport>,
    /// The servers, in configured order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerReport>,
    /// The configured models with the requests that wait for each.
    pub queued: Vec<QueueReport>,
    /// Pairs of nodes between which KV has passed, since the coordinator started.
    #[serde(default)]
    pub pairs: Vec<PairReport>,
}

/// One server that is no node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Name in the configuration.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// Whether it can be used.
    pub up: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How it is spoken to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// What that dialect cannot do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// Whether it is taken to enforce schemas; otherwise the model is told them, and answers are asked for again. All are checked.
    #[serde(default)]
    pub enforces_schemas: bool,
    /// Requests that it is given at once.
    #[serde(default)]
    pub parallel: u32,
    /// Requests of this coordinator that it answers.
    #[serde(default)]
    pub requests: u32,
    /// Of a pair of other engines, how often each path was taken: `pd`, `local`, `fallback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<BTreeMap<String, u64>>,
    /// Where those are that prefill for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefill: Vec<String>,
    /// The configured models that it has.
    #[serde(default)]
    pub models: Vec<ServedReport>,
    /// Why it has not the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Which of these are other models than when they were first seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
}

/// One model of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedReport {
    /// Name in the configuration.
    pub name: String,
    /// Name on the server.
    pub model: String,
    /// Tokens of prompt and answer together, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// What the server tells of it beside its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reported: String,
    /// True if that includes a digest. Otherwise nobody knows whether it is the model of that name.
    #[serde(default)]
    pub verified: bool,
}

/// Requests that wait for a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Name of the model.
    pub model: String,
    /// How many wait.
    pub requests: usize,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name in the configuration.
    pub name: String,
    /// Address in the configuration.
    pub address: String,
    /// Whether it can be used.
    pub up: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Version of tandem there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// True if it takes nothing new, because it is about to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Its models.
    pub models: Vec<ModelReport>,
}

/// One model of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub name: String,
    /// What must be equal on both ends of a handoff.
    pub contract: ContractSummary,
    /// What fits.
    pub capacity: Capacity,
    /// Threads of the processor that compute each step; absent if something else computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Why chats cannot be answered, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_chat: Option<String>,
    /// Why its KV is not handed over, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
    /// Requests of this coordinator that decode there.
    pub decodes: usize,
    /// Requests of this coordinator that prefill there.
    pub prefills: usize,
    /// How busy its engine was over the last minute, in percent, as of its last status.
    #[serde(default)]
    pub busy_percent: u8,
    /// What the node says that it does, as of its last status.
    pub sequences: Vec<SequenceStatus>,
}

/// The fingerprint fields of a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractSummary {
    /// Version of the plane layout.
    pub layout_version: u32,
    /// Name and version of the engine.
    pub engine: String,
    /// Architecture of the model.
    pub architecture: String,
    /// How the weights are quantised.
    pub quantisation: String,
    /// Digest of the weights, hex.
    pub weights: String,
    /// Digest of the vocabulary, hex.
    pub tokenizer: String,
    /// Rotary-embedding parameters.
    pub rope: String,
    /// Rotation of stored rows.
    pub rotation: String,
    /// Sliding window in tokens; 0 if there is none.
    pub window: u32,
    /// Element type of K.
    pub key_type: ElementType,
    /// Element type of V.
    pub value_type: ElementType,
    /// Number of layers.
    pub layers: usize,
}

impl ContractSummary {
    /// Names and values, those first that tell most of why two models differ.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("architecture", self.architecture.clone()),
            ("layers", self.layers.to_string()),
            ("window", self.window.to_string()),
            ("tokenizer", self.tokenizer.clone()),
            ("rope", self.rope.clone()),
            ("rotation", self.rotation.clone()),
            ("engine", self.engine.clone()),
            ("layout_version", self.layout_version.to_string()),
            ("key_type", format!("{:?}", self.key_type)),
            ("value_type", format!("{:?}", self.value_type)),
            ("quantisation", self.quantisation.clone()),
            ("weights", self.weights.clone()),
        ]
    }
}

impl From<&Contract> for ContractSummary {
    fn from(c: &Contract) -> Self {
        Self {
            layout_version: c.layout_version,
            engine: c.engine.clone(),
            architecture: c.architecture.clone(),
            quantisation: c.quantisation.clone(),
            weights: c.weights.clone(),
            tokenizer: c.tokenizer.clone(),
            rope: c.rope.clone(),
            rotation: c.rotation.clone(),
            window: c.window,
            key_type: c.key_type,
            value_type: c.value_type,
            layers: c.layers.len(),
        }
    }
}

pub(crate) fn health(look: &Look) -> HealthReport {
    let reasons: Vec<String> = look.unavailable.iter().map(ToString::to_string).collect();
    let status = if reasons.is_empty() {
        "ok"
    } else {
        "unavailable"
    };
    HealthReport {
        status: status.to_owned(),
        reasons,
        warnings: {
            let no_chats = look.nodes.iter().flat_map(no_chats);
            no_chats.chain(look.odd.iter().cloned()).collect()
        },
    }
}

/// Models of a node that answer no chats, and why.
fn no_chats(view: &NodeView) -> Vec<String> {
    let models = view.state.as_ref().map_or(&[][..], |status| &status.models);
    let no_chat = |m: &ModelStatus| {
        let reason = m.no_chat.as_ref()?;
        Some(format!(
            "model `{}` on node `{}` answers no chats: {reason}",
            m.name, view.name
        ))
    };
    models.iter().filter_map(no_chat).collect()
}

pub(crate) fn nodes(service: &Service, look: &Look, pairs: Vec<PairReport>) -> NodeList {
    let config = &service.config;
    let queued = |model: &crate::config::ModelConfig| QueueReport {
        model: model.name.clone(),
        requests: look.queued.get(&model.name).copied().unwrap_or(0),
    };
    NodeList {
        object: "list".to_owned(),
        data: look.nodes.iter().map(|n| node(config, n)).collect(),
        servers: look
            .servers
            .iter()
            .filter_map(|s| server(service, s))
            .collect(),
        queued: config.models.iter().map(queued).collect(),
        pairs,
    }
}

fn server(service: &Service, view: &ServerView) -> Option<ServerReport> {
    let server = service.servers.get(&view.name)?;
    let found = server.found();
    let found = found.as_deref();
    let served = |served: &Served| ServedReport {
        name: served.ours.clone(),
        model: served.theirs.clone(),
        context: served.context,
        reported: in_words(&served.reported),
        verified: served.verified,
    };
    Some(ServerReport {
        name: view.name.clone(),
        url: server.config.url.clone(),
        up: view.state.is_ok(),
        reason: view.state.as_ref().err().cloned(),
        dialect: found.map(|f| f.dialect.as_str().to_owned()),
        lacks: found.map_or(Vec::new(), |f| {
            f.dialect.lacks().into_iter().map(str::to_owned).collect()
        }),
        enforces_schemas: found.is_some_and(|f| server.enforces_all(f)),
        parallel: found.map_or(0, |f| server.parallel(f)),
        requests: view.requests,
        paths: server.paths(),
        prefill: server
            .config
            .pair
            .as_ref()
            .map_or(Vec::new(), |pair| pair.prefill.clone()),
        models: found.map_or(Vec::new(), |f| f.models.iter().map(served).collect()),
        missing: found.map_or(Vec::new(), |f| f.missing.clone()),
        changed: found.map_or(Vec::new(), |f| f.changed.clone()),
    })
}

fn node(config: &Config, view: &NodeView) -> NodeReport {
    let (status, reason) = match &view.state {
        Ok(status) => (Some(status), None),
        Err(reason) => (None, Some(reason.clone())),
    };
    let models = status.map_or(&[][..], |s| &s.models);
    NodeReport {
        name: view.name.clone(),
        address: config.address(&view.name).to_owned(),
        up: status.is_some(),
        reason,
        role: status.map(|s| s.role),
        version: status.map(|s| s.version.clone()),
        draining: status.is_some_and(|s| s.draining),
        models: models.iter().map(|m| model(view, m)).collect(),
    }
}

fn model(view: &NodeView, status: &ModelStatus) -> ModelReport {
    let load = view.load.iter().find(|l| l.model == status.name);
    ModelReport {
        name: status.name.clone(),
        contract: ContractSummary::from(&status.contract),
        capacity: status.capacity,
        threads: status.threads,
        no_chat: status.no_chat.clone(),
        stays: status.stays.clone(),
        decodes: load.map_or(0, |l| l.decodes),
        prefills: load.map_or(0, |l| l.prefills),
        busy_percent: status.busy_percent,
        sequences: status.sequences.clone(),
    }
}
