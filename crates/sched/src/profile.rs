//! What machines, links and models are known to do: figures, each with its source.
//!
//! Rates are tokens/s, sizes decimal gigabytes, times seconds unless a name says otherwise.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// A figure of a table: tokens (or sequences), depth, tokens/s.
pub type Row = (f64, f64, f64);

/// Most tokens, or sequences, of a figure.
const MOST_TOKENS: f64 = 1e7;
/// Most layers of a model, heads of a layer, values of a head, and experts.
const MOST_PARTS: u32 = 65_536;

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProfileError {
    /// It is not of the form that is expected.
    #[error("{file}: {problem}")]
    Form {
        /// The file.
        file: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// Nothing has that name.
    #[error("no {kind} is called `{name}`; there are {}", known.join(", "))]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
}

/// Where figures come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What to cite: an address, or a document with its place.
    pub at: String,
    /// When it was measured or published, as YYYY, YYYY-MM or YYYY-MM-DD.
    pub date: String,
}

/// Watts at the plug.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watts {
    /// While it waits.
    pub idle: f64,
    /// While it prefills.
    pub prefill: f64,
    /// While it decodes.
    pub decode: f64,
    /// Where from.
    pub source: Source,
}

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Short name.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Memory that models and caches can use.
    pub memory_gb: f64,
    /// Memory bandwidth, as its maker says.
    pub bandwidth_gb_s: f64,
    /// Where these two come from.
    pub source: Source,
    /// Watts, where known.
    pub watts: Option<Watts>,
    /// What it does with each model; of two of the same model the first holds.
    #[serde(default)]
    pub figures: Vec<Figures>,
    /// Models of these figures that no other file has.
    #[serde(default, rename = "model", skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<Model>,
}

impl Machine {
    /// The text of a file that [`Catalogue::add_machine`] reads.
    ///
    /// # Errors
    /// If a value has no form in such a file.
    pub fn text(&self) -> Result<String, ProfileError> {
        toml::to_string_pretty(self).map_err(|problem| ProfileError::Form {
            file: self.name.clone(),
            problem: problem.to_string(),
        })
    }
}

/// What a machine does with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The model.
    pub model: String,
    /// Engine and form of the weights.
    pub engine: String,
    /// Where from.
    pub source: Source,
    /// Rows of new tokens, tokens that are there already, tokens/s.
    #[serde(default)]
    pub prefill: Vec<Row>,
    /// Rows of sequences at once, tokens that each has already, tokens/s of all together.
    #[serde(default)]
    pub decode: Vec<Row>,
    /// What a reader should know.
    #[serde(default)]
    pub note: String,
}

/// Layers of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// How many.
    pub layers: u32,
    /// Heads of K and V.
    pub kv_heads: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// Tokens that a layer looks back, if not all.
    pub window: Option<u32>,
}

impl Attention {
    /// Bytes of K and V of one token, of f16, in all these layers.
    fn token_bytes(&self) -> f64 {
        2.0 * 2.0 * f64::from(self.layers) * f64::from(self.kv_heads) * f64::from(self.head_dim)
    }
}

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Short name.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Size of its weights, in the form that most run.
    pub weights_gb: f64,
    /// Parameters, in thousand millions, where known.
    pub parameters_b: Option<f64>,
    /// Those that one token uses.
    pub active_b: Option<f64>,
    /// Experts of a layer, of which each token uses some.
    pub experts: Option<Experts>,
    /// Its layers with a cache of K and V.
    #[serde(default)]
    pub attention: Vec<Attention>,
    /// A cache of another kind.
    pub latent: Option<Latent>,
    /// Where from.
    pub source: Source,
}

/// Experts of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many there are.
    pub count: u32,
    /// How many a token uses.
    pub used: u32,
    /// Share of all parameters that is in them.
    pub share: f64,
}

/// A cache that is not K and V.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Bytes of a token.
    pub token_bytes: f64,
    /// Bytes that do not grow with the prompt.
    pub fixed_bytes: f64,
    /// How many layers.
    pub layers: u32,
}

impl Model {
    /// That its shape is one.
    fn check(&self, file: &str) -> Result<(), ProfileError> {
        let within = |figures: &[f64], range| check(file, &self.name, figures, range);
        let parts = 1.0..=f64::from(MOST_PARTS);
        let mut layers = 0.0;
        for a in &self.attention {
            let shape = [a.layers, a.kv_heads, a.head_dim].map(f64::from);
            within(&shape, parts.clone())?;
            within(&[a.window.map_or(1.0, f64::from)], 1.0..=MOST_TOKENS)?;
            layers += shape[0];
        }
        if let Some(latent) = &self.latent {
            within(&[latent.token_bytes], 1.0..=1e9)?;
            within(&[latent.fixed_bytes], 0.0..=1e12)?;
            layers += f64::from(latent.layers);
        }
        within(&[layers], parts.clone())?;
        if let Some(experts) = &self.experts {
            let counts = [experts.count, experts.used].map(f64::from);
            within(&counts, parts)?;
            within(&[counts[1]], 1.0..=counts[0])?;
            within(&[experts.share], 0.0..=1.0)?;
        }
        Ok(())
    }

    /// Bytes that cross for a prompt of which the receiver has `have` tokens: what is new, and whole what does not grow
    /// with the prompt, which comes last.
    #[must_use]
    pub fn handoff_bytes(&self, have: f64, prompt: f64) -> (f64, f64) {
        let full = self.attention.iter().filter(|a| a.window.is_none());
        let full: f64 = full.map(Attention::token_bytes).sum();
        let latent = self
            .latent
            .as_ref()
            .map_or(0.0, |latent| latent.token_bytes);
        let growing = (full + latent) * (prompt - have).max(0.0);
        (growing, self.kv_bytes(prompt) - (full + latent) * prompt)
    }

    /// Bytes of the cache of a prompt, of f16.
    #[must_use]
    pub fn kv_bytes(&self, tokens: f64) -> f64 {
        let of = |a: &Attention| {
            let window = a.window.map_or(f64::INFINITY, f64::from);
            a.token_bytes() * tokens.min(window)
        };
        let latent = self
            .latent
            .as_ref()
            .map_or(0.0, |latent| match tokens > 0.0 {
                true => latent.token_bytes * tokens + latent.fixed_bytes,
                false => 0.0,
            });
        self.attention.iter().map(of).sum::<f64>() + latent
    }

    /// Layers that have a cache.
    #[must_use]
    pub fn cached_layers(&self) -> u32 {
        let layers: u32 = self.attention.iter().map(|a| a.layers).sum();
        layers + self.latent.as_ref().map_or(0, |latent| latent.layers)
    }

    /// The part of the weights that so many tokens use in one step, each of them as likely to use any expert.
    #[must_use]
    pub fn used_share(&self, tokens: f64) -> f64 {
        let Some(experts) = &self.experts else {
            return 1.0;
        };
        let missed = 1.0 - f64::from(experts.used) / f64::from(experts.count);
        1.0 - experts.share + experts.share * (1.0 - missed.powf(tokens))
    }
}

/// A link between two machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Short name.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// What arrives of a stream, in each direction.
    pub goodput_gb_s: f64,
    /// Round trip.
    pub round_trip_ms: f64,
    /// Where from.
    pub source: Source,
}

/// What a file of models or links has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Lists {
    model: Vec<Model>,
    link: Vec<Link>,
}

/// All profiles by name.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    machines: BTreeMap<String, Machine>,
    models: BTreeMap<String, Model>,
    links: BTreeMap<String, Link>,
}

/// The profiles of `profiles/`.
const BUILT_IN: &[(&str, &str)] = &[
    ("models.toml", include_str!("../../../profiles/models.toml")),
    ("links.toml", include_str!("../../../profiles/links.toml")),
    ("spark.toml", include_str!("../../../profiles/spark.toml")),
    (
        "m3-ultra.toml",
        include_str!("../../../profiles/m3-ultra.toml"),
    ),
    (
        "m2-ultra.toml",
        include_str!("../../../profiles/m2-ultra.toml"),
    ),
    ("m4-max.toml", include_str!("../../../profiles/m4-max.toml")),
    ("m5-max.toml", include_str!("../../../profiles/m5-max.toml")),
];

impl Catalogue {
    /// What comes with the program.
    ///
    /// # Errors
    /// If one of its files is not whole, which a test excludes.
    pub fn built_in() -> Result<Self, ProfileError> {
        let mut all = Self::default();
        for (file, text) in BUILT_IN {
            match *file {
                "models.toml" | "links.toml" => all.add_lists(file, text)?,
                _ => {
                    all.add_machine(file, text)?;
                }
            }
        }
        Ok(all)
    }

    /// Adds models and links, in place of those of the same names.
    ///
    /// # Errors
    /// If the text is not of that form, or a figure is not above zero.
    pub fn add_lists(&mut self, file: &str, text: &str) -> Result<(), ProfileError> {
        let lists: Lists = read(file, text)?;
        for link in lists.link {
            let figures = [link.goodput_gb_s, link.round_trip_ms];
            check(file, &link.name, &figures, 1e-6..=1e6)?;
            self.links.insert(link.name.clone(), link);
        }
        self.add_models(file, lists.model)
    }

    fn add_models(&mut self, file: &str, models: Vec<Model>) -> Result<(), ProfileError> {
        models
            .into_iter()
            .try_for_each(|model| self.add_model(file, model))
    }

    /// Adds a model, in place of one of the same name.
    ///
    /// # Errors
    /// If a figure is out of its range; the message names `file`.
    pub fn add_model(&mut self, file: &str, model: Model) -> Result<(), ProfileError> {
        let sizes = [Some(model.weights_gb), model.parameters_b, model.active_b];
        let sizes: Vec<f64> = sizes.into_iter().flatten().collect();
        check(file, &model.name, &sizes, 1e-6..=1e6)?;
        model.check(file)?;
        self.models.insert(model.name.clone(), model);
        Ok(())
    }

    /// Adds a machine and the models that come with it, in place of those of the same names; its name.
    ///
    /// # Errors
    /// If the text is not of that form, or a figure is out of its range.
    pub fn add_machine(&mut self, file: &str, text: &str) -> Result<String, ProfileError> {
        let machine: Machine = read(file, text)?;
        let name = machine.name.clone();
        self.add(file, machine)?;
        Ok(name)
    }

    /// The same of a machine that is in no file.
    ///
    /// # Errors
    /// If a figure is out of its range; the message names `file`.
    pub fn add(&mut self, file: &str, mut machine: Machine) -> Result<(), ProfileError> {
        self.add_models(file, std::mem::take(&mut machine.models))?;
        check(
            file,
            &machine.name,
            &[machine.memory_gb, machine.bandwidth_gb_s],
            1e-3..=1e6,
        )?;
        if let Some(watts) = &machine.watts {
            let watts = [watts.idle, watts.prefill, watts.decode];
            check(file, &machine.name, &watts, 0.0..=1e5)?;
        }
        for figures in &machine.figures {
            let rows = figures.prefill.iter().chain(&figures.decode);
            for &(count, depth, rate) in rows {
                check(file, &figures.model, &[count], 1.0..=MOST_TOKENS)?;
                check(file, &figures.model, &[depth], 0.0..=MOST_TOKENS)?;
                check(file, &figures.model, &[rate], 1e-3..=1e7)?;
            }
        }
        self.machines.insert(machine.name.clone(), machine);
        Ok(())
    }

    /// A machine by its name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn machine(&self, name: &str) -> Result<&Machine, ProfileError> {
        find("machine", &self.machines, name)
    }

    /// A model by its name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn model(&self, name: &str) -> Result<&Model, ProfileError> {
        find("model", &self.models, name)
    }

    /// A link by its name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn link(&self, name: &str) -> Result<&Link, ProfileError> {
        find("link", &self.links, name)
    }

    /// All machines, models and links, by name.
    pub fn all(
        &self,
    ) -> (
        impl Iterator<Item = &Machine>,
        impl Iterator<Item = &Model>,
        impl Iterator<Item = &Link>,
    ) {
        (
            self.machines.values(),
            self.models.values(),
            self.links.values(),
        )
    }
}

fn read<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, ProfileError> {
    toml::from_str(text).map_err(|problem| ProfileError::Form {
        file: file.to_owned(),
        problem: problem.to_string(),
    })
}

fn check(
    file: &str,
    name: &str,
    figures: &[f64],
    within: RangeInclusive<f64>,
) -> Result<(), ProfileError> {
    match figures.iter().find(|f| !within.contains(*f)) {
        None => Ok(()),
        Some(figure) => Err(ProfileError::Form {
            file: file.to_owned(),
            problem: format!(
                "`{name}` has the figure {figure}, which must be from {} to {}",
                within.start(),
                within.end()
            ),
        }),
    }
}

fn find<'a, T>(
    kind: &'static str,
    all: &'a BTreeMap<String, T>,
    name: &str,
) -> Result<&'a T, ProfileError> {
    all.get(name).ok_or_else(|| ProfileError::Unknown {
        kind,
        name: name.to_owned(),
        known: all.keys().cloned().collect(),
    })
}
