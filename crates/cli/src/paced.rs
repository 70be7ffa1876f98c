//! Engines that take the time of a machine's profile and compute nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tandem_coordinator::machine_profile;
use tandem_engine::paced::{Pace, PacedEngine, PacedMachine, PacedModel, layer};
use tandem_engine::{Capacity, KvEngine};
use tandem_handoff::{LayerKind, LayerSpec};
use tandem_sched::cost::Speed;
use tandem_sched::profile::{Attention, Catalogue, Model};

use crate::numbers::{small, whole};

/// Before the name of the machine that is played.
const PREFIX: &str = "paced:";

/// The machine that is played, and how much faster than it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Paced {
    machine: String,
    speed: f64,
}

impl Paced {
    /// What `--engine` and `--speed` say.
    ///
    /// # Errors
    /// If it is another engine, or the speed is no such number.
    pub fn read(engine: &str, speed: f64) -> anyhow::Result<Self> {
        let machine = engine.strip_prefix(PREFIX).filter(|name| !name.is_empty());
        let Some(machine) = machine else {
            bail!(
                "--engine {engine}: write {PREFIX} and the name of a machine, such as {PREFIX}spark; `tandem plan --list` has them"
            );
        };
        check_speed(speed)?;
        Ok(Self {
            machine: machine.to_owned(),
            speed,
        })
    }

    /// Engines of these models of its profile, by the names under which they are asked for.
    ///
    /// # Errors
    /// If the machine or a model has no profile, or a figure is missing.
    pub fn load(
        &self,
        models: &[(String, String)],
        capacity: Capacity,
    ) -> anyhow::Result<Vec<(String, Box<dyn KvEngine>)>> {
        // It is read to the end of the process.
        let catalogue = Box::leak(Box::new(Catalogue::built_in()?));
        let name = machine_profile(catalogue, &self.machine)?;
        let catalogue: &'static Catalogue = catalogue;
        let machine = catalogue.machine(&name)?;
        let played = Arc::new(PacedMachine::default());
        let load = |(name, of): &(String, String)| {
            let model = catalogue.model(of)?;
            let speed = Speed::new(machine, model)?;
            let pace = ProfilePace {
                speed,
                times: self.speed,
            };
            let engine = PacedEngine::new(
                self.model(model),
                capacity,
                Box::new(pace),
                Arc::clone(&played),
            )?;
            Ok((name.clone(), Box::new(engine) as Box<dyn KvEngine>))
        };
        let load = |named: &(String, String)| {
            let loaded: anyhow::Result<_> = load(named);
            loaded.with_context(|| format!("--model `{}={}`", named.0, named.1))
        };
        models.iter().map(load).collect()
    }

    fn model(&self, model: &Model) -> PacedModel {
        let layers = model
            .attention
            .iter()
            .flat_map(|attention| self.layers(attention));
        let window = model.attention.iter().filter_map(|a| a.window).max();
        let mut played = PacedModel {
            name: match self.speed == 1.0 {
                true => model.name.clone(),
                false => format!("{} at {} times", model.name, self.speed),
            },
            layers: layers.collect(),
            // The token itself is no past token.
            window: window.map_or(0, |window| window.saturating_sub(1)),
            stays: None,
        };
        if let Some(latent) = &model.latent {
            let values = latent.token_bytes / 4.0 / f64::from(latent.layers.max(1));
            let spec = layer(LayerKind::Full, 1, self.values(values));
            played.layers.extend(vec![spec; latent.layers as usize]);
            played.stays = Some("its cache is no K and V, and stays where it is made".to_owned());
        }
        played
    }

    fn layers(&self, attention: &Attention) -> Vec<LayerSpec> {
        let kind = match attention.window {
            Some(_) => LayerKind::Window,
            None => LayerKind::Full,
        };
        let spec = match self.speed == 1.0 {
            true => layer(kind, attention.kv_heads, attention.head_dim),
            // Rows shrink as times do, so that a link has as much to do in a second.
            false => {
                let values = f64::from(attention.kv_heads) * f64::from(attention.head_dim);
                layer(kind, 1, self.values(values))
            }
        };
        vec![spec; attention.layers as usize]
    }

    fn values(&self, of: f64) -> u32 {
        small(of / self.speed).max(1)
    }
}

/// That machines can be played so many times faster.
///
/// # Errors
/// If it is no such number.
pub fn check_speed(speed: f64) -> anyhow::Result<()> {
    match (1.0..=50.0).contains(&speed) {
        true => Ok(()),
        false => {
            bail!("--speed is {speed}; it is a number from 1 to 50, because rows have whole values")
        }
    }
}

/// Bytes per second of a link of the profiles.
///
/// # Errors
/// If there is none of this name.
pub fn link_rate(name: &str) -> anyhow::Result<u64> {
    let catalogue = Catalogue::built_in()?;
    Ok(whole(catalogue.link(name)?.goodput_gb_s * 1e9))
}

struct ProfilePace {
    speed: Speed<'static>,
    times: f64,
}

impl Pace for ProfilePace {
    fn prefill(&self, have: u32, new: u32) -> Duration {
        let seconds = self.speed.prefill_s(f64::from(have), f64::from(new));
        Duration::from_secs_f64(seconds / self.times)
    }

    fn step(&self, held: &[u32]) -> Duration {
        let batch = f64::from(u32::try_from(held.len()).unwrap_or(u32::MAX));
        let tokens = held.iter().map(|tokens| f64::from(*tokens)).sum::<f64>() / batch.max(1.0);
        Duration::from_secs_f64(self.speed.step_s(batch, tokens) / self.times)
    }
}
