//! What the configuration says of a pair of other engines.

use serde::Deserialize;

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
