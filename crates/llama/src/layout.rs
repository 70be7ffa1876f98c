//! Which layers live in which section of llama.cpp's cache, and the contract of a model.
//!
//! llama.cpp does not tell through its API which layers have a window, so it is derived from the
//! metadata by the rules of its loaders, for the architectures in the table below. The engine
//! checks the result against a real state blob at load time and refuses a model that does not fit.

use tandem_kv::contract::LAYOUT_VERSION;
use tandem_kv::{Contract, ElementType, LayerKind, LayerSpec};

use crate::build::ENGINE_NAME;
use crate::gguf::{Gguf, Value};

/// A model whose cache tandem cannot describe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this model cannot be used: metadata `{key}`: {reason}")]
pub struct LayoutError {
    /// The metadata key at fault.
    pub key: String,
    /// What is wrong, and what would help.
    pub reason: String,
}

/// Architectures with windows, and after how many layers one with full attention follows when the
/// file does not say so (llama.cpp's `set_swa_pattern`).
const WINDOWED: [(&str, usize); 3] = [("gemma2", 2), ("gemma3", 6), ("gpt-oss", 2)];

/// Architectures whose caches are recurrent, hybrid, latent or shared between layers, which have
/// no neutral layout yet; by prefix.
const UNSUPPORTED: [&str; 12] = [
    "deepseek",
    "mamba",
    "rwkv",
    "qwen3next",
    "qwen35",
    "falcon-h1",
    "granitehybrid",
    "lfm2",
    "jamba",
    "gemma3n",
    "gemma4",
    "nemotron_h",
];

/// The contract of a model.
///
/// # Errors
/// Names the metadata key that is missing or describes something unsupported.
pub fn contract(gguf: &Gguf) -> Result<Contract, LayoutError> {
    let arch = gguf.architecture();
    if let Some(prefix) = UNSUPPORTED.iter().find(|p| arch.starts_with(*p)) {
        return fail(
            "general.architecture",
            format!("`{arch}` ({prefix} family) has no neutral cache layout yet"),
        );
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
    let contract = Contract {
        layout_version: LAYOUT_VERSION,
        engine: ENGINE_NAME.to_owned(),
        architecture: arch.to_owned(),
        quantisation: gguf.quantisation.clone(),
        weights: gguf.weights_digest.clone(),
        tokenizer: gguf.tokenizer_digest.clone(),
        rope: rope(gguf),
        rotation: "none".to_owned(),
        window,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers,
    };
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
