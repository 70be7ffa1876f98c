//! Which nodes there are and which may serve which model.

pub(crate) mod dialect;
pub(crate) mod pair;
pub(crate) mod server;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tandem_cluster::{PeerId, Security};
use tandem_handoff::limits::MAX_CHUNK_TOKENS;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::ParityBound;
use tandem_proto::{CodecChoice, HandoffTerms, Prompt};
use tandem_sched::{ModelRoutes, Plan, Topology};

use self::server::{PairEntry, ServerConfig};
use crate::alone::Profiles;
use crate::error::ConfigError;
use crate::limits::{Limits, MAX_MODELS, MAX_NAME_BYTES, MAX_NODES, MAX_SERVERS};
use crate::pins::Pins;
use crate::request::Request;

/// All pages may ask.
pub(crate) const ANY: &str = "*";

/// The configuration file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where clients are served, `IP:PORT`.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// The nodes.
    #[serde(default, rename = "node")]
    pub nodes: Vec<NodeConfig>,
    /// Servers that are no nodes, and stay as they are.
    #[serde(default, rename = "server")]
    pub servers: Vec<ServerConfig>,
    /// Pairs of other engines as they are written; [`Self::parse`] makes servers of them.
    #[serde(default, rename = "pair")]
    pub pairs: Vec<PairEntry>,
    /// The models that are offered.
    #[serde(default, rename = "model")]
    pub models: Vec<ModelConfig>,
    /// The table of the application, which reads it by itself.
    #[serde(default)]
    pub grading: IgnoredAny,
    /// Tokens per chunk of every prefill.
    #[serde(default = "default_chunk")]
    pub chunk: u32,
    /// How KV passes between nodes.
    #[serde(default)]
    pub handoff: HandoffConfig,
    /// Whether fields of requests that are not known or not done are ignored, and listed in the answer.
    #[serde(default)]
    pub lenient: bool,
    /// Which web pages may ask.
    #[serde(default)]
    pub cors: CorsConfig,
    /// File in which what the names of models stand for is kept; not part of a configuration file. Without one it is
    /// kept as long as the coordinator runs.
    #[serde(skip)]
    pub pins: Option<PathBuf>,
    /// Waits; not part of a configuration file.
    #[serde(skip)]
    pub limits: Limits,
}

/// Which web pages may ask.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorsConfig {
    /// Origins of other pages than those of this server, such as `https://course.example`; `*` for all.
    pub origins: Vec<String>,
    /// Names under which this server is reached although it listens on a loopback address, behind a proxy.
    pub hosts: Vec<String>,
}

impl CorsConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        for (i, origin) in self.origins.iter().enumerate() {
            let parts = origin.split_once("://");
            // A browser leaves the usual port out.
            let is_whole = parts.is_some_and(|(scheme, host)| {
                let usual = match scheme {
                    "http" => ":80",
                    _ => ":443",
                };
                !host.is_empty() && !host.contains('/') && !host.ends_with(usual)
            });
            if origin != ANY && !is_whole {
                let problem = format!(
                    "is \"{origin}\": write scheme://host or scheme://host:port without a path and without the usual port, or \"*\""
                );
                let key = format!("cors.origins[{i}]");
                return Err(ConfigError { key, problem });
            }
        }
        for (i, host) in self.hosts.iter().enumerate() {
            let is_ip = host.starts_with('[') && host.ends_with(']');
            if host.is_empty() || host.contains('/') || (host.contains(':') && !is_ip) {
                let problem = format!("is \"{host}\": write a name without scheme and port");
                let key = format!("cors.hosts[{i}]");
                return Err(ConfigError { key, problem });
            }
        }
        Ok(())
    }
}

/// What happens if two nodes do not compute the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParityAction {
    /// The request is told.
    #[default]
    Report,
    /// So it is, and the model is not handed over between the two again before one of them, or the coordinator, has
    /// restarted.
    Refuse,
}

/// How KV passes between nodes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HandoffConfig {
    /// How far KV may differ from what was computed: `lossless` or `q8`.
    pub quality: Quality,
    /// The codec: `auto` (within the quality), `raw`, `plane` or `q8`.
    pub codec: CodecChoice,
    /// Whether prompts that begin alike share KV.
    pub reuse: bool,
    /// Whether every answer has the same bits whatever else the nodes do, which costs much time: a request says so for
    /// itself otherwise.
    pub reproducible: bool,
    /// Whose answers are kept for the next turn, unless a request says that there will be none: those of all
    /// `chats`, those of `conversations`, or `never`.
    pub keep: KeepAnswers,
    /// Largest divergence between two nodes, in nats.
    pub parity_kl: f64,
    /// A different likeliest token is a fault if the prefill node's leads by more than this.
    pub parity_margin: f64,
    /// What happens beyond that: `report`, or `refuse` to pair the two nodes again.
    pub parity: ParityAction,
}

impl Default for HandoffConfig {
    fn default() -> Self {
        let bound = ParityBound::default();
        Self {
            quality: Quality::default(),
            codec: CodecChoice::default(),
            reuse: true,
            reproducible: false,
            keep: KeepAnswers::default(),
            parity_kl: bound.kl,
            parity_margin: bound.margin,
            parity: ParityAction::default(),
        }
    }
}

/// Whose answers are kept for the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepAnswers {
    /// Nobody's.
    Never,
    /// Those of chats that have had an answer already: the second turn prefills the first answer.
    Conversations,
    /// Those of all chats.
    #[default]
    Chats,
}

impl HandoffConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let fault = |key: &str, problem: String| {
            let key = format!("handoff.{key}");
            Err(ConfigError { key, problem })
        };
        let fixed = self.codec.fixed();
        if let Some(codec) = fixed.filter(|c| !self.quality.allows(*c)) {
            let problem = format!(
                "is {codec}, which `handoff.quality` = {} does not allow: raise the quality's bound to \"{codec}\"",
                self.quality
            );
            return fault("codec", problem);
        }
        for (key, value) in [
            ("parity_kl", self.parity_kl),
            ("parity_margin", self.parity_margin),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return fault(key, format!("is {value}, must be 0 or more"));
            }
        }
        Ok(())
    }

    /// True if answers to such a prompt are kept for the next turn.
    pub(crate) fn keeps(&self, prompt: &Prompt) -> bool {
        let kept = match self.keep {
            KeepAnswers::Never => false,
            KeepAnswers::Conversations => goes_on(prompt),
            KeepAnswers::Chats => matches!(prompt, Prompt::Chat(_)),
        };
        kept && self.reuse
    }

    /// True if a prompt may go on from an answer whose KV is kept.
    pub(crate) fn goes_on(&self, prompt: &Prompt) -> bool {
        self.reuse && self.keep != KeepAnswers::Never && goes_on(prompt)
    }

    /// True if nodes compute this request alone, with the same bits each time.
    pub(crate) const fn is_reproducible(&self, request: &Request) -> bool {
        self.reproducible || request.reproducible
    }

    /// The terms of one request.
    pub(crate) fn terms(&self, request: &Request, plan: &Plan) -> HandoffTerms {
        let prompt = &request.prompt;
        HandoffTerms {
            quality: self.quality,
            codec: self.codec,
            salt: request.cache_salt.clone(),
            reuse: self.reuse,
            reproducible: self.is_reproducible(request),
            keep: request.keep && self.keeps(prompt),
            bound: ParityBound {
                kl: self.parity_kl,
                margin: self.parity_margin,
            },
            mixed_quantisation: plan.mixed_quantisation,
            overlap: true,
        }
    }
}

/// True for a chat that has had an answer.
fn goes_on(prompt: &Prompt) -> bool {
    match prompt {
        Prompt::Chat(messages) => messages.iter().any(|m| m.role == "assistant"),
        Prompt::Text(_) | Prompt::Tokens(_) => false,
    }
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Name in routes and answers.
    pub name: String,
    /// Where its control API listens, `host:port`. Other nodes reach it at the same host.
    pub address: String,
    /// The only machine that this node may be (64 hex digits, as `tandem cluster show` prints them
    /// there). Without it any machine of the cluster is taken for the node at that address.
    #[serde(default)]
    pub identity: Option<String>,
    /// The profile of its machine, a name or a file: answers then tell what it would have taken alone.
    #[serde(default)]
    pub profile: Option<String>,
}

/// One model. The order of nodes decides between equally loaded ones.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name under which requests ask for it and nodes hold it.
    pub name: String,
    /// Names of nodes that may prefill it for others; none: the decode node prefills.
    #[serde(default)]
    pub prefill: Vec<String>,
    /// Names of nodes that may decode it.
    #[serde(default)]
    pub decode: Vec<String>,
    /// Names of servers that may answer with it.
    #[serde(default)]
    pub servers: Vec<String>,
    /// True if a node may prefill it with another quantisation of the weights than the decode node's.
    #[serde(default)]
    pub mixed_quantisation: bool,
    /// Its name in profiles, if that is another one.
    #[serde(default)]
    pub profile: Option<String>,
}

const fn default_chunk() -> u32 {
    Config::DEFAULT_CHUNK
}

fn default_listen() -> String {
    Config::DEFAULT_LISTEN.to_owned()
}

impl Config {
    /// Tokens per chunk if the configuration does not say.
    pub const DEFAULT_CHUNK: u32 = 512;
    /// Where clients are served if the configuration does not say.
    pub const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

    /// A configuration with default chunk and limits.
    #[must_use]
    pub fn new(nodes: Vec<NodeConfig>, models: Vec<ModelConfig>) -> Self {
        Self {
            listen: default_listen(),
            nodes,
            servers: Vec::new(),
            pairs: Vec::new(),
            models,
            grading: IgnoredAny,
            chunk: Self::DEFAULT_CHUNK,
            handoff: HandoffConfig::default(),
            lenient: false,
            cors: CorsConfig::default(),
            pins: None,
            limits: Limits::default(),
        }
    }

    /// Reads a configuration file, which is [checked](Self::validate) later.
    ///
    /// # Errors
    /// Names the line and what is wrong there.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut config: Self = toml::from_str(text)?;
        let pairs = std::mem::take(&mut config.pairs);
        config.servers.extend(pairs.into_iter().map(Into::into));
        Ok(config)
    }

    /// The same where pages may be served alone: then there is nothing to ask, and nothing to check.
    ///
    /// # Errors
    /// As [`Config::validate`].
    pub fn validate_or_empty(&self) -> Result<(), ConfigError> {
        let is_empty = self.nodes.is_empty() && self.servers.is_empty() && self.models.is_empty();
        match is_empty {
            true => Ok(()),
            false => self.validate(),
        }
    }

    /// Checks every key.
    ///
    /// # Errors
    /// Names the first key at fault and the fix.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.handoff.validate()?;
        self.profiles().and(self.cors.validate())?;
        let least_nodes = usize::from(self.servers.is_empty());
        check_count("node", self.nodes.len(), least_nodes, MAX_NODES)?;
        check_count("server", self.servers.len(), 0, MAX_SERVERS)?;
        check_count("model", self.models.len(), 1, MAX_MODELS)?;
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for (i, node) in self.nodes.iter().enumerate() {
            check_name(format!("node[{i}].name"), &node.name, &mut names)?;
            let key = format!("node[{i}].address");
            if split_address(&node.address).is_none() {
                let problem = format!(
                    "is \"{}\": write host:port, such as 192.168.1.5:7001",
                    node.address
                );
                return Err(ConfigError { key, problem });
            }
            if let Some(Err(e)) = node.identity.as_ref().map(|id| id.parse::<PeerId>()) {
                let key = format!("node[{i}].identity");
                let problem = format!("cannot be used: {e}");
                return Err(ConfigError { key, problem });
            }
            if !addresses.insert(&node.address) {
                let problem = format!("repeats the address \"{}\"", node.address);
                return Err(ConfigError { key, problem });
            }
        }
        let mut servers = BTreeSet::new();
        for (i, server) in self.servers.iter().enumerate() {
            let key = format!("server[{i}]");
            check_name(format!("{key}.name"), &server.name, &mut servers)?;
            check_name(format!("{key}.name"), &server.name, &mut names.clone())?;
            server.validate(&key)?;
        }
        let mut models = BTreeSet::new();
        for (i, model) in self.models.iter().enumerate() {
            check_name(format!("model[{i}].name"), &model.name, &mut models)?;
            let key = |key: &str| format!("model[{i}].{key}");
            check_listed(&key("prefill"), &model.prefill, "node", &names)?;
            check_listed(&key("decode"), &model.decode, "node", &names)?;
            check_listed(&key("servers"), &model.servers, "server", &servers)?;
            if model.decode.is_empty() && model.servers.is_empty() {
                let problem = "is empty: name at least one node, or a server under `servers`";
                let (key, problem) = (key("decode"), problem.to_owned());
                return Err(ConfigError { key, problem });
            }
        }
        for (i, server) in self.servers.iter().enumerate() {
            let unknown = server
                .models
                .keys()
                .find(|name| !models.contains(name.as_str()));
            if let Some(name) = unknown {
                let known: Vec<&str> = models.iter().copied().collect();
                let problem = format!(
                    "names unknown model \"{name}\": use one of {}",
                    known.join(", ")
                );
                let key = format!("server[{i}].models");
                return Err(ConfigError { key, problem });
            }
        }
        if self.chunk == 0 || self.chunk > MAX_CHUNK_TOKENS {
            return Err(ConfigError {
                key: "chunk".to_owned(),
                problem: format!("is {}, allowed are 1 to {MAX_CHUNK_TOKENS}", self.chunk),
            });
        }
        Ok(())
    }

    /// Checks that nodes are reached in a way that is allowed: without TLS on this machine only, and
    /// then nobody can prove to be who the configuration names.
    ///
    /// # Errors
    /// Names the first key at fault and the fix.
    pub fn check_security(&self, security: &Security) -> Result<(), ConfigError> {
        if security.is_tls() {
            return Ok(());
        }
        for (i, node) in self.nodes.iter().enumerate() {
            // Names are checked when they are looked up.
            if let Ok(address) = node.address.parse()
                && let Err(e) = security.check_listen(address)
            {
                let key = format!("node[{i}].address");
                let problem = format!("cannot be used: {e}");
                return Err(ConfigError { key, problem });
            }
            if node.identity.is_some() {
                let key = format!("node[{i}].identity");
                let problem = "cannot be checked without TLS: leave out --plaintext, or this key";
                let problem = problem.to_owned();
                return Err(ConfigError { key, problem });
            }
        }
        Ok(())
    }

    /// The profiles that nodes and models name.
    ///
    /// # Errors
    /// Names the key of a profile that there is not.
    pub(crate) fn profiles(&self) -> Result<Profiles, ConfigError> {
        let nodes = self.nodes.iter().map(|n| (&*n.name, n.profile.as_deref()));
        let models = self.models.iter().map(|m| (&*m.name, m.profile.as_deref()));
        Profiles::of(nodes, models)
    }

    /// The machines that nodes must be, by address.
    #[must_use]
    pub fn identities(&self) -> HashMap<String, PeerId> {
        let named = |n: &NodeConfig| {
            let id = n.identity.as_ref()?.parse().ok()?;
            Some((n.address.clone(), id))
        };
        self.nodes.iter().filter_map(named).collect()
    }

    /// The same for the scheduler.
    pub(crate) fn topology(&self, pins: &Pins) -> Topology {
        let routes = |m: &ModelConfig| ModelRoutes {
            name: m.name.clone(),
            prefill: m.prefill.clone(),
            decode: m.decode.iter().chain(&m.servers).cloned().collect(),
            mixed_quantisation: m.mixed_quantisation,
            pins: pins.get(&m.name).cloned().unwrap_or_default(),
        };
        Topology {
            nodes: self.nodes.iter().map(|n| n.name.clone()).collect(),
            servers: self.servers.iter().map(|s| s.name.clone()).collect(),
            models: self.models.iter().map(routes).collect(),
        }
    }

    /// True for a model that no node has, but a server.
    pub(crate) fn is_served_only(&self, model: &str) -> bool {
        let model = self.models.iter().find(|m| m.name == model);
        model.is_some_and(|m| m.decode.is_empty() && !m.servers.is_empty())
    }

    /// How many servers may answer with a model.
    pub(crate) fn servers_of(&self, model: &str) -> usize {
        let model = self.models.iter().find(|m| m.name == model);
        model.map_or(0, |m| m.servers.len())
    }

    /// The models that a server is to answer with.
    pub(crate) fn models_of(&self, server: &str) -> Vec<String> {
        let named = |m: &&ModelConfig| m.servers.iter().any(|name| name == server);
        let models = self.models.iter().filter(named);
        models.map(|m| m.name.clone()).collect()
    }

    /// The address of a configured node; empty for another one.
    pub(crate) fn address(&self, name: &str) -> &str {
        let found = self.nodes.iter().find(|n| n.name == name);
        found.map_or("", |n| &n.address)
    }
}

/// Host and port of `host:port`; an IPv6 host is in brackets and keeps them.
pub(crate) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|&p| p != 0)?;
    let inner = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|h| h.contains(':'))?,
        None => Some(host).filter(|h| !h.contains(':'))?,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    (!inner.is_empty() && inner.chars().all(plain)).then_some((host, port))
}

fn check_count(key: &str, count: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    let problem = match count {
        0 if min > 0 => format!("is missing: add at least one [[{key}]]"),
        _ if count > max => format!("has {count} entries, allowed are {min} to {max}"),
        _ => return Ok(()),
    };
    let key = key.to_owned();
    Err(ConfigError { key, problem })
}

fn check_name<'a>(
    key: String,
    name: &'a str,
    seen: &mut BTreeSet<&'a str>,
) -> Result<(), ConfigError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let problem = format!("must have 1 to {MAX_NAME_BYTES} bytes");
        return Err(ConfigError { key, problem });
    }
    if !seen.insert(name) {
        let problem = format!("repeats the name \"{name}\": names must differ");
        return Err(ConfigError { key, problem });
    }
    Ok(())
}

fn check_listed(
    key: &str,
    list: &[String],
    what: &str,
    known: &BTreeSet<&str>,
) -> Result<(), ConfigError> {
    let mut seen = BTreeSet::new();
    for (i, name) in list.iter().enumerate() {
        let problem = if !known.contains(name.as_str()) {
            format!("names unknown {what} \"{name}\": add it as a [[{what}]] or correct the name")
        } else if !seen.insert(name) {
            format!("names {what} \"{name}\" twice")
        } else {
            continue;
        };
        let key = format!("{key}[{i}]");
        return Err(ConfigError { key, problem });
    }
    Ok(())
}
