//! `tandem cluster repin`: the name of a model stands for another one from now on.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, bail};
use clap::Args;
use tandem_cluster::Public;
use tandem_coordinator::{ContractSummary, NodeList, Pin, Pins, read_pins, write_pins};

use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::{config, output, security};

/// Arguments of `tandem cluster repin`.
#[derive(Args)]
pub struct Arguments {
    /// Name of the model.
    model: String,
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// The node that holds the right one, where nodes differ.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// Asks the nodes what they hold under the name, and keeps that. A running coordinator takes notice within seconds.
///
/// # Errors
/// If no node that answers holds the model, or nodes differ and none is named.
pub async fn main(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let config = arguments.config.load(environment)?;
    let path = config.coordinator.pins.clone();
    let path = path.context("there is no folder to keep it in: set TANDEM_DATA to one")?;
    let model = &arguments.model;
    let configured = config.coordinator.models.iter().find(|m| m.name == *model);
    let Some(configured) = configured else {
        bail!("the model `{model}` is not configured");
    };
    let mut asking = config.coordinator.clone();
    asking.pins = None;
    let mixed = configured.mixed_quantisation;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let security = arguments.security.security(environment)?;
    let mut coordinator =
        Coordinator::start(any_port, Public::plaintext(), asking, security).await?;
    let nodes = coordinator.nodes().await?;
    coordinator.stop().await?;
    let pins = pins_of(&nodes, model, arguments.node.as_deref(), mixed)?;
    let said: Vec<String> = pins.iter().map(shown).collect();
    // What cannot be read is written anew.
    let mut all: Pins = read_pins(&path).unwrap_or_default();
    all.insert(model.clone(), pins);
    write_pins(&path, all).with_context(|| format!("cannot write {}", path.display()))?;
    output::print(&format!("`{model}` stands for {}", said.join(" and ")))
}

fn shown(pin: &Pin) -> String {
    format!(
        "{} {}, weights {}",
        pin.architecture, pin.quantisation, pin.weights
    )
}

/// What the nodes hold, or one of them: one pin, or one for each quantisation where several are permitted.
fn pins_of(
    nodes: &NodeList,
    model: &str,
    only: Option<&str>,
    mixed_quantisation: bool,
) -> anyhow::Result<Vec<Pin>> {
    let mut held: BTreeMap<String, (Pin, Vec<&str>)> = BTreeMap::new();
    for node in nodes
        .data
        .iter()
        .filter(|n| only.is_none_or(|only| n.name == only))
    {
        for found in node.models.iter().filter(|m| m.name == model) {
            let pin = pin(&found.contract);
            let known = held.entry(pin.weights.clone()).or_insert((pin, Vec::new()));
            known.1.push(&node.name);
        }
    }
    let mut quantisations: Vec<&str> = held.values().map(|(pin, _)| &*pin.quantisation).collect();
    quantisations.sort_unstable();
    quantisations.dedup();
    match held.len() {
        0 => bail!(
            "no node that answers holds `{model}`{}",
            only.map_or(String::new(), |n| format!(" (asked: `{n}`)"))
        ),
        1 => {}
        n if mixed_quantisation && quantisations.len() == n => {}
        _ => {
            let lines: Vec<String> = held
                .values()
                .map(|(pin, names)| format!("{}: {}", names.join(", "), shown(pin)))
                .collect();
            bail!(
                "nodes hold different models as `{model}`; name one that is right with --node:\n  {}",
                lines.join("\n  ")
            );
        }
    }
    Ok(held.into_values().map(|(pin, _)| pin).collect())
}

fn pin(contract: &ContractSummary) -> Pin {
    Pin {
        architecture: contract.architecture.clone(),
        tokenizer: contract.tokenizer.clone(),
        quantisation: contract.quantisation.clone(),
        weights: contract.weights.clone(),
    }
}
