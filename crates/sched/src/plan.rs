//! What machines can do together: one request by each way, and a course at the best rate of each way.
//!
//! `docs/scheduling.md` has the formulas.

mod course;
mod request;
mod run;

use serde::Serialize;

use crate::cost::Missing;
use crate::profile::{Machine, Model};

pub use course::{Course, MAX_MACHINES, Part, Wanted, course};
pub use request::{Answered, BreakEven, Phase, break_even, request, served_alone, served_by_pair};
pub use run::{Ran, Served, Setup, run};

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The model that answers.
    pub model: &'a Model,
    /// Tokens of the prompt.
    pub prompt: f64,
    /// Tokens at its beginning that a course's works share, and that each machine computes once.
    pub shared: f64,
    /// Tokens of the answer.
    pub answer: f64,
}

/// A way to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One machine does all.
    Alone,
    /// One machine prefills, another decodes.
    Pair,
    /// The first layers of each chunk on one machine, the others on another, which decodes.
    LayerSplit,
    /// Each machine is a whole server of its own.
    Servers,
    /// Machines prefill for others, and serve whole requests in the time that is left.
    Mixed,
}

impl Way {
    /// Whether tandem does it with this model: a cache that is no K and V stays where it is made.
    #[must_use]
    pub const fn is_built_for(self, model: &Model) -> bool {
        match self {
            Self::Alone | Self::Servers => true,
            Self::Pair => model.latent.is_none(),
            Self::LayerSplit | Self::Mixed => false,
        }
    }
}

/// A candidate, or what is missing to judge it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Judged<T> {
    /// What it does.
    Known(T),
    /// It cannot be judged.
    Unknown {
        /// The way.
        way: Way,
        /// Its machines.
        machines: Vec<String>,
        /// The figure that is missing.
        missing: String,
    },
}

impl<T> Judged<T> {
    /// What it does, if that is known.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(known) => Some(known),
            Self::Unknown { .. } => None,
        }
    }

    fn of(way: Way, machines: &[&Machine], made: Result<T, Missing>) -> Self {
        match made {
            Ok(known) => Self::Known(known),
            Err(missing) => Self::Unknown {
                way,
                machines: machines.iter().map(|m| m.name.clone()).collect(),
                missing: missing.to_string(),
            },
        }
    }
}
