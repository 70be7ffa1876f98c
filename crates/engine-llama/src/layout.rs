//! Which layers live in which section of llama.cpp's cache, and the contract of a model.
//!
//! llama.cpp does not tell through its API which layers have a window, so it is derived from the
//! metadata by the rules of its loaders, for the architectures in the table below. The engine
//! checks the result against a real state blob at load time. KV of a model that does not fit is not handed over.

use tandem_handoff::contract::LAYOUT_VERSION;
use tandem_handoff::limits::MAX_LAYERS;
use tandem_handoff::{Contract, ElementType, LayerKind, LayerSpec};

use crate::build::ENGINE_NAME;
use crate::gguf::{Gguf, Value};

/// A model whose cache tandem cannot describe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metadata `{key}`: {reason}")]
pub struct LayoutError {
    /// The metadata key at fault.
    pub key: String,
    /// What is wrong, and what would help.
    pub reason: String,
}

impl LayoutError {
    /// The same without the key where the reason says what it is about.
    pub(crate) fn why(&self) -> String {
        match self.key.as_str() {
            ARCHITECTURE => self.reason.clone(),
            _ => self.to_string(),
        }
    }
}

const ARCHITECTURE: &str = "general.architecture";

/// Architectures with windows, and after how many layers one with full attention follows when the
/// file does not say so (llama.cpp's `set_swa_pattern`).
const WINDOWED: [(&str, usize); 3] = [("gemma2", 2), ("gemma3", 6), ("gpt-oss", 2)];

/// Architectures whose caches are not rows of K and V for each layer and token, by prefix, and what they have.
const OTHER_CACHES: [(&str, &str); 20] = [
    ("mamba", RECURRENT),
    ("rwkv", RECURRENT),
    ("arwkv", RECURRENT),
    ("jamba", HYBRID),
    ("falcon-h1", HYBRID),
    ("granitehybrid", HYBRID),
    ("lfm2", HYBRID),
    ("nemotron_h", HYBRID),
    ("plamo2", HYBRID),
    ("kimi-linear", HYBRID),
    ("qwen3next", HYBRID),
    ("qwen35", HYBRID),
    ("deepseek2", LATENT),
    ("deepseek3", LATENT),
    ("deepseek4", LATENT),
    ("glm-dsa", LATENT),
    ("minicpm3", LATENT),
    ("plm", LATENT),
    ("gemma3n", SHARED),
    ("gemma4", SHARED),
];

const RECURRENT: &str = "a recurrent state instead of KV";
const HYBRID: &str = "a recurrent state beside KV";
const LATENT: &str = "latent rows, or several caches, instead of K and V";
const SHARED: &str = "layers that share their KV";

/// That a model writes text token by token, and that its size is one that llama.cpp does not end the process for.
///
/// # Errors
/// Names the key that says otherwise.
pub fn check_writes(gguf: &Gguf) -> Result<(), LayoutError> {
    let arch = gguf.architecture();
    let others = ["t5", "eagle", "dflash", "wavtokenizer"];
    let gives_vectors = arch.contains("bert") || arch.contains("embed");
    if gives_vectors || others.iter().any(|other| arch.starts_with(other)) {
        let reason = format!("`{arch}` does not go on from a prompt by itself");
        return fail(ARCHITECTURE, reason);
    }
    if matches!(gguf.get("attention.causal"), Some(Value::Bool(false))) {
        let reason = "each token sees those behind it, so nothing can be added".to_owned();
        return fail(&format!("{arch}.attention.causal"), reason);
    }
    let layers = need(gguf, "block_count")?;
    if layers == 0 || layers as usize > MAX_LAYERS {
        let reason = format!("{layers} layers, allowed 1..={MAX_LAYERS}");
        return fail(&format!("{arch}.block_count"), reason);
    }
    Ok(())
}

/// The contract of a model.
///
/// # Errors
/// Names the metadata key that is missing or describes something unsupported.
pub fn contract(gguf: &Gguf) -> Result<Contract, LayoutError> {
    let arch = gguf.architecture();
    if let Some((_, has)) = OTHER_CACHES.iter().find(|(p, _)| arch.starts_with(*p)) {
        return fail(ARCHITECTURE, format!("`{arch}` has {has}"));
    }
    let n_layers = need(gguf, "block_count")?;
    let windows = window_layers(gguf, n_layers as usize)?;
    let mut layers = Vec::new();
    for (i, windowed) in windows.iter().enumerate() {
        layers.push(layer(gguf, i, *windowed)?);
    }
    // The attention window includes the token itself; what must be kept are the ones before it.
    let window = if windows.iter().any(|w| *w) {
        gguf.number("attention.sliding_window")
            .unwrap_or(0)
            .saturating_sub(1)
    } else {
        0
    };
    valid(Contract {
        window,
        layers,
        ..identity(gguf)
    })
}

/// The contract of a model whose cache is not known: it tells models apart, and says nothing of layers, in whose place
/// there is one of the smallest size.
///
/// # Errors
/// If a value is too long.
pub fn unknown(gguf: &Gguf) -> Result<Contract, LayoutError> {
    valid(identity(gguf))
}

/// What tells models apart, with one layer of the smallest size.
fn identity(gguf: &Gguf) -> Contract {
    Contract {
        layout_version: LAYOUT_VERSION,
        engine: ENGINE_NAME.to_owned(),
        architecture: gguf.architecture().to_owned(),
        quantisation: gguf.quantisation.clone(),
        weights: gguf.weights_digest.clone(),
        tokenizer: gguf.tokenizer_digest.clone(),
        rope: rope(gguf),
        rotation: "none".to_owned(),
        window: 0,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers: vec![LayerSpec {
            kind: LayerKind::Full,
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
        }],
    }
}

fn valid(contract: Contract) -> Result<Contract, LayoutError> {
    contract.validate().map_err(|e| LayoutError {
        key: e.field,
        reason: e.reason,
    })?;
    Ok(contract)
}

fn fail<T>(key: &str, reason: String) -> Result<T, LayoutError> {
    Err(LayoutError {
        key: key.to_owned(),
        reason,
    })
}

fn need(gguf: &Gguf, key: &str) -> Result<u32, LayoutError> {
    let full = format!("{}.{key}", gguf.architecture());
    gguf.number(key).ok_or(LayoutError {
        key: full,
        reason: "missing or not a number".into(),
    })
}

/// True for each layer with a window.
fn window_layers(gguf: &Gguf, n_layers: usize) -> Result<Vec<bool>, LayoutError> {
    let arch = gguf.architecture();
    let has_window = gguf
        .number("attention.sliding_window")
        .is_some_and(|w| w > 0);
    let Some((_, default_period)) = WINDOWED.iter().find(|(name, _)| *name == arch) else {
        if has_window && arch != "qwen2" && arch != "qwen3" && arch != "qwen3moe" && arch != "llama"
        {
            return fail(
                &format!("{arch}.attention.sliding_window"),
                "sliding windows of this architecture are not supported yet".into(),
            );
        }
        return Ok(vec![false; n_layers]);
    };
    if !has_window {
        return Ok(vec![false; n_layers]);
    }
    let key = "attention.sliding_window_pattern";
    let period = match gguf.get(key) {
        Some(Value::List(items)) => {
            let flags: Vec<bool> = items
                .iter()
                .map(|v| matches!(v, Value::Bool(true)) || matches!(v, Value::Int(n) if *n != 0))
                .collect();
            if flags.len() != n_layers {
                return fail(
                    &format!("{arch}.{key}"),
                    format!("{} entries for {n_layers} layers", flags.len()),
                );
            }
            return Ok(flags);
        }
        Some(Value::Int(n)) => usize::try_from(*n).unwrap_or(0).max(1),
        _ => *default_period,
    };
    Ok((0..n_layers).map(|il| il % period < period - 1).collect())
}

fn layer(gguf: &Gguf, index: usize, windowed: bool) -> Result<LayerSpec, LayoutError> {
    let heads = per_layer(gguf, "attention.head_count", index)?;
    let kv_heads = match gguf.get("attention.head_count_kv") {
        None => heads,
        Some(_) => per_layer(gguf, "attention.head_count_kv", index)?,
    };
    let default_dim = need(gguf, "embedding_length")?
        .checked_div(heads)
        .unwrap_or(0);
    Ok(LayerSpec {
        kind: if windowed {
            LayerKind::Window
        } else {
            LayerKind::Full
        },
        kv_heads,
        key_dim: gguf.number("attention.key_length").unwrap_or(default_dim),
        value_dim: gguf.number("attention.value_length").unwrap_or(default_dim),
    })
}

fn per_layer(gguf: &Gguf, key: &str, index: usize) -> Result<u32, LayoutError> {
    match gguf.get(key) {
        Some(Value::List(items)) => match items.get(index) {
            Some(Value::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        },
        Some(Value::Int(n)) => u32::try_from(*n).ok(),
        _ => None,
    }
    .ok_or_else(|| LayoutError {
        key: format!("{}.{key}", gguf.architecture()),
        reason: format!("no value for layer {index}"),
    })
}

/// All `<architecture>.rope.*` values, in order of their keys, as one line.
fn rope(gguf: &Gguf) -> String {
    let prefix = format!("{}.rope.", gguf.architecture());
    let values: Vec<String> = gguf
        .metadata
        .iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix(&prefix)?;
            Some(match value {
                Value::Int(n) => format!("{name}={n}"),
                Value::Float(x) => format!("{name}={x}"),
                Value::Bool(b) => format!("{name}={b}"),
                Value::Text(t) => format!("{name}={t}"),
                Value::List(items) => format!("{name}={items:?}"),
            })
        })
        .collect();
    if values.is_empty() {
        "default".to_owned()
    } else {
        values.join(" ")
    }
}
