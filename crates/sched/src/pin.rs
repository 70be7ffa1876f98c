//! Which model a name stands for. A node that has another one under the name gets nothing.

use serde::{Deserialize, Serialize};
use tandem_handoff::Contract;

/// What makes a model that model: fields of its contract. An upgrade of the engine changes none of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Architecture name, as in its GGUF.
    pub architecture: String,
    /// Digest of the vocabulary, hex.
    pub tokenizer: String,
    /// How the weights are quantised.
    pub quantisation: String,
    /// Digest of the weights, hex.
    pub weights: String,
}

/// The first field in which a model is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherModel {
    /// Name of the field.
    pub field: &'static str,
    /// What it is.
    pub found: String,
    /// What it was when the model was pinned.
    pub pinned: String,
}

impl Pin {
    /// Of a model as a node holds it.
    #[must_use]
    pub fn of(contract: &Contract) -> Self {
        Self {
            architecture: contract.architecture.clone(),
            tokenizer: contract.tokenizer.clone(),
            quantisation: contract.quantisation.clone(),
            weights: contract.weights.clone(),
        }
    }

    fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("architecture", &self.architecture),
            ("tokenizer", &self.tokenizer),
            ("quantisation", &self.quantisation),
            ("weights", &self.weights),
        ]
    }

    /// The first of some fields in which `found` differs.
    fn difference(&self, found: &Self, fields: usize) -> Option<OtherModel> {
        let pairs = self.fields().into_iter().zip(found.fields()).take(fields);
        let mut different = pairs.filter(|((_, ours), (_, theirs))| ours != theirs);
        different
            .next()
            .map(|((field, pinned), (_, found))| OtherModel {
                field,
                found: found.to_owned(),
                pinned: pinned.to_owned(),
            })
    }
}

/// Fields that two quantisations of one model have in common: the first of them.
const COMMON: usize = 2;

/// Whether a model may be used; `Some` is a pin to add, of a further quantisation where several are permitted.
///
/// # Errors
/// Names the field that differs, from the pin of the same quantisation if there is one.
pub(crate) fn check(
    pins: &[Pin],
    contract: &Contract,
    mixed_quantisation: bool,
) -> Result<Option<Pin>, OtherModel> {
    let found = Pin::of(contract);
    let alike = pins
        .iter()
        .find(|pin| pin.quantisation == found.quantisation);
    let Some(nearest) = alike.or(pins.first()) else {
        return Ok(Some(found));
    };
    if mixed_quantisation && alike.is_none() {
        return match nearest.difference(&found, COMMON) {
            Some(difference) => Err(difference),
            None => Ok(Some(found)),
        };
    }
    match nearest.difference(&found, nearest.fields().len()) {
        Some(difference) => Err(difference),
        None => Ok(None),
    }
}
