//! The contract: everything that must be equal on both ends for KV to be exchangeable. Quantisations
//! may differ where an operator permits it ([`Contract::differences_but_quantisation`]).
//!
//! Same byte count is not compatibility, so each property is compared by itself
//! and a difference names the field and both values.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_HEAD_DIM, MAX_KV_HEADS, MAX_LAYERS, MAX_STRING};
use crate::text::{harmless, text_of_a_peer};

/// Version of the neutral plane layout: `[token][kv_head][dim]`, K after RoPE.
pub const LAYOUT_VERSION: u32 = 1;

/// Element type of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE 754 half precision, two bytes, little-endian.
    F16,
}

impl ElementType {
    /// Bytes per element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F16 => 2,
        }
    }

    /// The number of this type in a frame header.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Self::F16 => 1,
        }
    }
}

/// Which past tokens a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerKind {
    /// All tokens.
    Full,
    /// The last `window` tokens: only rows of those at the end of the KV travel.
    Window,
}

/// K or V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// Keys, after RoPE.
    Key,
    /// Values, as projected.
    Value,
}

/// Which layers a block of KV covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    /// The layers that attend to all tokens.
    Full,
    /// The layers with an attention window: their rows of the last tokens.
    Window,
}

impl Section {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Full, Self::Window];

    /// The kind of layer that travels in this section.
    #[must_use]
    pub const fn layer_kind(self) -> LayerKind {
        match self {
            Self::Full => LayerKind::Full,
            Self::Window => LayerKind::Window,
        }
    }

    /// The number of this section in a frame header.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Self::Full => 0,
            Self::Window => 1,
        }
    }

    /// The section with this wire number.
    #[must_use]
    pub const fn from_wire(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Full),
            1 => Some(Self::Window),
            _ => None,
        }
    }
}

/// Shape of one layer's cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// Which tokens are kept.
    pub kind: LayerKind,
    /// Number of KV heads.
    pub kv_heads: u32,
    /// Elements per head of K.
    pub key_dim: u32,
    /// Elements per head of V.
    pub value_dim: u32,
}

/// Everything that must be equal on both ends for KV to be exchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// [`LAYOUT_VERSION`] of the planes.
    pub layout_version: u32,
    /// Name and version of the engine that computes the rows.
    pub engine: String,
    /// Architecture name of the model, as in its GGUF.
    pub architecture: String,
    /// How the weights are quantised (the GGUF's file type or the multiset of tensor types).
    pub quantisation: String,
    /// BLAKE3 of the tensor table and tensor data, hex.
    pub weights: String,
    /// BLAKE3 of the vocabulary (all `tokenizer.*` metadata but the chat template), hex.
    pub tokenizer: String,
    /// Resolved rotary-embedding parameters, one `name=value` list.
    pub rope: String,
    /// Rotation applied to stored rows; `none` for f16 caches.
    pub rotation: String,
    /// Past tokens that [`LayerKind::Window`] layers attend to: the attention window less the token
    /// itself; 0 if there are no such layers.
    pub window: u32,
    /// Element type of K rows.
    pub key_type: ElementType,
    /// Element type of V rows.
    pub value_type: ElementType,
    /// One entry per layer, in order.
    pub layers: Vec<LayerSpec>,
}

/// One field in which two contracts differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Name of the field, e.g. `tokenizer` or `layers[3].kv_heads`.
    #[serde(deserialize_with = "text_of_a_peer")]
    pub field: String,
    /// The value on this side.
    #[serde(deserialize_with = "text_of_a_peer")]
    pub ours: String,
    /// The value on the other side.
    #[serde(deserialize_with = "text_of_a_peer")]
    pub theirs: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "contract field `{}` differs: ours {}, theirs {}",
            self.field, self.ours, self.theirs
        )
    }
}

/// A contract that no handoff can be based on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("contract field `{field}` is invalid: {reason}")]
pub struct InvalidContract {
    /// Name of the field.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl LayerSpec {
    /// Bytes of one token's row in the given plane.
    #[must_use]
    pub fn row_bytes(&self, plane: PlaneKind, element: ElementType) -> u64 {
        let dim = match plane {
            PlaneKind::Key => self.key_dim,
            PlaneKind::Value => self.value_dim,
        };
        u64::from(self.kv_heads) * u64::from(dim) * u64::from(element.bytes())
    }
}

impl Contract {
    /// Checks the bounds of every field, so that sizes derived from it cannot overflow.
    ///
    /// # Errors
    /// Names the first field that is out of bounds.
    pub fn validate(&self) -> Result<(), InvalidContract> {
        let fail = |field: &str, reason: String| {
            Err(InvalidContract {
                field: field.to_owned(),
                reason,
            })
        };
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            return fail(
                "layers",
                format!("{} layers, allowed 1..={MAX_LAYERS}", self.layers.len()),
            );
        }
        for (name, value) in self.strings() {
            if value.len() > MAX_STRING {
                return fail(name, format!("longer than {MAX_STRING} bytes"));
            }
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let dims = [
                ("kv_heads", layer.kv_heads, MAX_KV_HEADS),
                ("key_dim", layer.key_dim, MAX_HEAD_DIM),
                ("value_dim", layer.value_dim, MAX_HEAD_DIM),
            ];
            for (name, value, max) in dims {
                if value == 0 || value > max {
                    return fail(
                        &format!("layers[{i}].{name}"),
                        format!("{value}, allowed 1..={max}"),
                    );
                }
            }
        }
        if self.has_window() != (self.window > 0) {
            return fail(
                "window",
                "must be set exactly if a layer has a window".into(),
            );
        }
        Ok(())
    }

    fn strings(&self) -> [(&'static str, &str); 7] {
        [
            ("engine", &self.engine),
            ("architecture", &self.architecture),
            ("quantisation", &self.quantisation),
            ("tokenizer", &self.tokenizer),
            ("weights", &self.weights),
            ("rope", &self.rope),
            ("rotation", &self.rotation),
        ]
    }

    /// True if some layer keeps only a window of tokens.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.has_section(Section::Window)
    }

    /// True if some layer travels in this section.
    #[must_use]
    pub fn has_section(&self, section: Section) -> bool {
        let kind = section.layer_kind();
        self.layers.iter().any(|l| l.kind == kind)
    }

    /// Indices of the layers that travel in a section, ascending.
    #[must_use]
    pub fn section_layers(&self, section: Section) -> Vec<u32> {
        let kind = section.layer_kind();
        (0u32..)
            .zip(&self.layers)
            .filter(|(_, l)| l.kind == kind)
            .map(|(i, _)| i)
            .collect()
    }

    /// Bytes of one token's K and V rows over the given layers.
    #[must_use]
    pub fn token_bytes(&self, layers: &[u32]) -> u64 {
        layers
            .iter()
            .filter_map(|&i| self.layers.get(i as usize))
            .map(|l| {
                l.row_bytes(PlaneKind::Key, self.key_type)
                    + l.row_bytes(PlaneKind::Value, self.value_type)
            })
            .sum()
    }

    /// Bytes of the rows of a section for these tokens.
    #[must_use]
    pub fn block_bytes(&self, section: Section, tokens: &Range<u32>) -> u64 {
        self.token_bytes(&self.section_layers(section))
            .saturating_mul(tokens.len() as u64)
    }

    /// First token that the window section holds when KV covers `[0, end)`.
    #[must_use]
    pub fn window_start(&self, end: u32) -> u32 {
        end.saturating_sub(self.window)
    }

    /// First token of which a section holds rows when KV covers `[0, end)`.
    #[must_use]
    pub fn section_start(&self, section: Section, end: u32) -> u32 {
        match section {
            Section::Full => 0,
            Section::Window => self.window_start(end),
        }
    }

    /// Every field in which `theirs` differs from this contract.
    ///
    /// The more telling fields come first: two quantisations of one model differ in
    /// `quantisation` and in `weights`, and the former is what a person can act on.
    #[must_use]
    pub fn differences(&self, theirs: &Self) -> Vec<Difference> {
        let mut out = Vec::new();
        let mut check = |field: &str, ours: String, theirs: String| {
            if ours != theirs {
                out.push(Difference {
                    field: field.to_owned(),
                    ours: harmless(&ours),
                    theirs: harmless(&theirs),
                });
            }
        };
        check(
            "layout_version",
            self.layout_version.to_string(),
            theirs.layout_version.to_string(),
        );
        for ((name, a), (_, b)) in self.strings().into_iter().zip(theirs.strings()) {
            check(name, a.to_owned(), b.to_owned());
        }
        check("window", self.window.to_string(), theirs.window.to_string());
        check(
            "key_type",
            format!("{:?}", self.key_type),
            format!("{:?}", theirs.key_type),
        );
        check(
            "value_type",
            format!("{:?}", self.value_type),
            format!("{:?}", theirs.value_type),
        );
        check(
            "layers.len",
            self.layers.len().to_string(),
            theirs.layers.len().to_string(),
        );
        for (i, (a, b)) in self.layers.iter().zip(&theirs.layers).enumerate() {
            let field = |name: &str| format!("layers[{i}].{name}");
            check(
                &field("kind"),
                format!("{:?}", a.kind),
                format!("{:?}", b.kind),
            );
            check(
                &field("kv_heads"),
                a.kv_heads.to_string(),
                b.kv_heads.to_string(),
            );
            check(
                &field("key_dim"),
                a.key_dim.to_string(),
                b.key_dim.to_string(),
            );
            check(
                &field("value_dim"),
                a.value_dim.to_string(),
                b.value_dim.to_string(),
            );
        }
        out
    }

    /// The same without what another quantisation of the same model differs in: how the weights are
    /// quantised, and so their digest. Other weights of the same quantisation are another model.
    #[must_use]
    pub fn differences_but_quantisation(&self, theirs: &Self) -> Vec<Difference> {
        let mut all = self.differences(theirs);
        if self.quantisation != theirs.quantisation {
            all.retain(|d| d.field != "quantisation" && d.field != "weights");
        }
        all
    }
}
