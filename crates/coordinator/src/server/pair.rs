//! What the configuration says of a pair of other engines.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::config::ServerConfig;
use super::dialect::Dialect;

/// Which engines a pair is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PairKind {
    /// vLLM with its NIXL connector, which pulls.
    #[serde(rename = "vllm")]
    Vllm,
    /// SGLang, through a room.
    #[serde(rename = "sglang")]
    Sglang,
    /// llm-d's side-car in front of the one that decodes.
    #[serde(rename = "llm-d")]
    LlmD,
}

/// What the configuration says of the other leg.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairConfig {
    /// The kind.
    pub kind: PairKind,
    /// Where those are that prefill, as URLs; they take turns.
    pub prefill: Vec<String>,
    /// SGLang: the port at which they meet.
    #[serde(default)]
    pub bootstrap_port: Option<u16>,
    /// Shortest prompt that is prefilled elsewhere, in tokens.
    #[serde(default)]
    pub from_tokens: Option<u32>,
}

/// A pair of other engines as the configuration file has it; a server as far as everybody else is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairEntry {
    name: String,
    kind: PairKind,
    prefill: Vec<String>,
    decode: String,
    bootstrap_port: Option<u16>,
    from_tokens: Option<u32>,
    key_env: Option<String>,
    key_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    context: Option<u32>,
    parallel: Option<u32>,
    silence: Option<u64>,
}

impl From<PairEntry> for ServerConfig {
    fn from(pair: PairEntry) -> Self {
        Self {
            // Each speaks that one.
            dialect: Some(Dialect::OpenAi),
            key_env: pair.key_env,
            key_file: pair.key_file,
            ca_file: pair.ca_file,
            models: pair.models,
            context: pair.context,
            parallel: pair.parallel,
            silence: pair.silence,
            pair: Some(PairConfig {
                kind: pair.kind,
                prefill: pair.prefill,
                bootstrap_port: pair.bootstrap_port,
                from_tokens: pair.from_tokens,
            }),
            ..Self::new(pair.name, pair.decode)
        }
    }
}
