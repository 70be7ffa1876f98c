//! What a decode node would have taken for an answer alone, by the profile of its machine.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use tandem_api::{AloneInfo, TandemInfo};
use tandem_sched::cost::Speed;
use tandem_sched::profile::{Catalogue, ProfileError};

use crate::error::ConfigError;

/// Largest profile that is read, in bytes.
pub const MAX_PROFILE_BYTES: u64 = 1 << 20;

/// Most tokens of a prompt and its answer for which anything is calculated.
const MOST_TOKENS: f64 = 4e6;

/// Profiles of nodes and models, by the names that they have in the configuration.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    /// Of each node all profiles that there are, with that of its own file, and the name of its machine there.
    nodes: HashMap<String, (Catalogue, String)>,
    models: HashMap<String, String>,
}

impl Profiles {
    /// Those that nodes and models have, by their names.
    ///
    /// # Errors
    /// Names the key of a profile that there is not.
    pub(crate) fn of<'a>(
        nodes: impl Iterator<Item = (&'a str, Option<&'a str>)>,
        models: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Self, ConfigError> {
        let fault = |key: String| {
            move |problem: String| ConfigError {
                key,
                problem: format!("cannot be used: {problem}"),
            }
        };
        let mut made = Self::default();
        for (i, (node, profile)) in nodes.enumerate() {
            let Some(profile) = profile else {
                continue;
            };
            let key = || format!("node[{i}].profile");
            let fault = |e: ProfileError| fault(key())(e.to_string());
            let mut all = Catalogue::built_in().map_err(fault)?;
            let machine = machine_profile(&mut all, profile).map_err(fault)?;
            made.nodes.insert(node.to_owned(), (all, machine));
        }
        for (i, (model, named)) in models.enumerate() {
            let profile = named.unwrap_or(model);
            if named.is_some() && !made.has_model(profile) {
                let problem = format!("no model is called `{profile}`");
                return Err(fault(format!("model[{i}].profile"))(problem));
            }
            made.models.insert(model.to_owned(), profile.to_owned());
        }
        Ok(made)
    }

    fn has_model(&self, name: &str) -> bool {
        let of_nodes = self.nodes.values().any(|(all, _)| all.model(name).is_ok());
        of_nodes || Catalogue::built_in().is_ok_and(|all| all.model(name).is_ok())
    }

    /// What the decode node would have taken alone, if profiles have the figures.
    pub(crate) fn alone(&self, model: &str, info: &TandemInfo) -> Option<AloneInfo> {
        let (all, machine) = self.nodes.get(&info.decode_node)?;
        let machine = all.machine(machine).ok()?;
        let model = all.model(self.models.get(model)?).ok()?;
        let speed = Speed::new(machine, model).ok()?;
        // What it had of the prompt it would have had alone, too.
        let (prompt, held) = (f64::from(info.prompt_tokens), f64::from(info.held_tokens));
        let answer = f64::from(info.generated_tokens);
        let phases = &info.phases_ms;
        let took = phases.first_token - phases.queue + phases.decode;
        // Nodes tell these figures.
        if !(1.0..=MOST_TOKENS).contains(&(prompt + answer)) || !(1e-3..1e12).contains(&took) {
            return None;
        }
        let read = speed.prefill_s(held, (prompt - held).max(0.0));
        let predicted_ms = (read + speed.decode_s(1.0, prompt, answer)) * 1e3;
        (answer > 0.0 && predicted_ms.is_finite()).then(|| AloneInfo {
            machine: machine.name.clone(),
            predicted_ms,
            speed_up: predicted_ms / took,
        })
    }
}

/// Adds the profile that a name or a file, such as `lab/mine.toml`, stands for, and gives the name of its machine.
///
/// # Errors
/// If there is none, or the file is no profile.
pub fn machine_profile(all: &mut Catalogue, profile: &str) -> Result<String, ProfileError> {
    let name = match Path::new(profile).extension() {
        None => profile.to_owned(),
        Some(_) => all.add_machine(profile, &text(profile)?)?,
    };
    all.machine(&name)?;
    Ok(name)
}

fn text(profile: &str) -> Result<String, ProfileError> {
    let fault = |problem: String| ProfileError::Form {
        file: profile.to_owned(),
        problem,
    };
    let mut text = String::new();
    let file = std::fs::File::open(profile).map_err(|e| fault(e.to_string()))?;
    let reading = file.take(MAX_PROFILE_BYTES + 1).read_to_string(&mut text);
    let read = reading.map_err(|e| fault(e.to_string()))?;
    match u64::try_from(read).is_ok_and(|read| read <= MAX_PROFILE_BYTES) {
        true => Ok(text),
        false => Err(fault(format!(
            "it is larger than {MAX_PROFILE_BYTES} bytes"
        ))),
    }
}
