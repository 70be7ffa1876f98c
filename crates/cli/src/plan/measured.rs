//! The nodes of a running cluster as machines of a plan, with the figures that they measured.
//!
//! What a node has not measured yet it is asked to do: a long prompt, a short one, several at once.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use serde_json::json;
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Calls, Config, Limits, ModelConfig, NodeConfig};
use tandem_proto::{LinkReport, ModelStatus, NodeStatus, StepTime};
use tandem_sched::plan::MAX_MACHINES;
use tandem_sched::profile::{Catalogue, Figures, Latent, Link, Machine, Model, Row, Source};

use super::Fleet;
use crate::asking::{Failed, ask, unseen};
use crate::coordinator::Coordinator;
use crate::probe::attention;
use crate::{links, version};

/// Tokens that a word of a prompt has at most and at least, and those around all words.
const WORD_TOKENS: u32 = 6;
const FEW_WORD_TOKENS: u32 = 3;
const AROUND_TOKENS: u32 = 256;
/// Words of a short prompt.
const FEW_WORDS: u32 = 8;
/// Tokens of each answer.
const ANSWER: u32 = 32;
/// Most tokens of a long prompt, which has two chunks and more.
const MOST_LONG: u32 = 8192;
/// A prefill step of so many tokens, or of a whole chunk if that is less, tells what long prompts take.
const LONG: u32 = 512;
/// Answers at once that are tried.
const AT_ONCE: u32 = 8;
/// Means of fewer steps of decode than this are left out where there are others.
const FEW_STEPS: u32 = 8;
/// Memory of a machine whose models are loaded already: what limits it is its places.
const ANY_MEMORY_GB: f64 = 1e6;
/// Needed only where all steps were of one depth. Then the context is short, and reading it adds nothing that counts.
const ANY_BANDWIDTH_GB_S: f64 = 1e6;

/// What is asked of a cluster.
pub struct Cluster<'a> {
    config: &'a Config,
    security: &'a Security,
    calls: Calls,
    /// Models that are looked at, and the tokens of their answers.
    models: Vec<(&'a ModelConfig, u32)>,
}

type Status<'a> = (&'a NodeConfig, NodeStatus);

impl<'a> Cluster<'a> {
    /// These models of a configuration, on nodes.
    ///
    /// # Errors
    /// If a model is not on nodes, or too many nodes have them.
    pub fn of(
        config: &'a Config,
        security: &'a Security,
        named: Vec<(String, u32)>,
    ) -> anyhow::Result<Self> {
        let mut models = Vec::new();
        for (name, answer) in named {
            let mut on_nodes = config.models.iter().filter(|m| !m.decode.is_empty());
            let found = on_nodes.find(|model| model.name == name);
            let found = found
                .with_context(|| format!("the configuration has no model `{name}` on nodes"))?;
            models.push((found, answer));
        }
        if models.is_empty() {
            bail!("the configuration has no model on nodes");
        }
        let cluster = Self {
            calls: Calls::new(security.clone(), config.identities(), Limits::default()),
            config,
            security,
            models,
        };
        let nodes = cluster.nodes().count();
        if nodes > MAX_MACHINES {
            bail!("{nodes} nodes have these models; the most is {MAX_MACHINES}: name fewer models");
        }
        Ok(cluster)
    }

    /// Nodes that have one of these models.
    fn nodes(&self) -> impl Iterator<Item = &'a NodeConfig> {
        let has = |node: &&NodeConfig| self.models.iter().any(|(model, _)| has(node, model));
        self.config.nodes.iter().filter(has)
    }

    async fn statuses(&self) -> anyhow::Result<Vec<Status<'a>>> {
        let mut found = Vec::new();
        for node in self.nodes() {
            let status = self.calls.status(&node.address).await;
            let status = status.with_context(|| format!("node `{}`", node.name))?;
            found.push((node, *status));
        }
        Ok(found)
    }

    /// Each model with each node that has it.
    fn held<'s>(
        &self,
        statuses: &'s [Status<'a>],
    ) -> anyhow::Result<Vec<(&'a ModelConfig, &'a NodeConfig, &'s ModelStatus)>> {
        let mut held = Vec::new();
        for (model, _) in &self.models {
            for (node, status) in statuses.iter().filter(|(node, _)| has(node, model)) {
                held.push((*model, *node, told(node, status, &model.name)?));
            }
        }
        Ok(held)
    }

    /// Answers at once: the least of the nodes that decode.
    ///
    /// # Errors
    /// If a prompt of this size and its answer do not fit.
    fn places(&self, statuses: &[Status<'_>], prompt: u32) -> anyhow::Result<u32> {
        let mut places = u32::MAX;
        for (model, answer) in &self.models {
            for (node, status) in statuses.iter().filter(|(node, _)| has(node, model)) {
                let capacity = told(node, status, &model.name)?.capacity;
                let decodes = model.decode.contains(&node.name);
                let needed = prompt.saturating_add(if decodes { *answer } else { 0 });
                if needed > capacity.tokens_per_sequence {
                    bail!(
                        "--prompt {prompt} and answers of {answer} tokens: node `{}` has {} tokens for both; ask for less, or start it with a larger --context",
                        node.name,
                        capacity.tokens_per_sequence
                    );
                }
                if decodes {
                    places = places.min(capacity.sequences);
                }
            }
        }
        Ok(places)
    }

    /// Machines, models and the link, as measured. `prompt` is the longest that is to be planned.
    ///
    /// # Errors
    /// If a node does not answer, lacks a model or has no room for such a prompt, or something cannot be measured.
    pub async fn measure(&self, prompt: u32) -> anyhow::Result<Fleet> {
        let before = self.statuses().await?;
        let places = self.places(&before, prompt)?;
        for (model, node, told) in self.held(&before)? {
            self.complete(node, model, told).await?;
        }
        let statuses = self.statuses().await?;
        let held = self.held(&statuses)?;
        for (model, node, told) in &held {
            if let Some(missing) = self.missing(node, model, told) {
                bail!(
                    "node `{}` has been asked and still has measured no {missing} of `{}`",
                    node.name,
                    model.name
                );
            }
        }
        let mut catalogue = Catalogue::built_in()?;
        for (model, _) in &self.models {
            let of_model = held.iter().filter(|(of, ..)| of.name == model.name);
            let all: Vec<&ModelStatus> = of_model.map(|(.., told)| *told).collect();
            let known = catalogue.model(model.profile.as_ref().unwrap_or(&model.name));
            let shape = shape(&all, known.ok())?;
            catalogue.add_model(&model.name, shape)?;
        }
        let mut machines = Vec::new();
        for (node, status) in &statuses {
            let of_node = held.iter().filter(|(_, of, _)| of.name == node.name);
            let machine = Machine {
                figures: of_node.map(|(.., told)| figures(told, status)).collect(),
                ..machine(node, status)
            };
            catalogue.add(&node.name, machine.clone())?;
            machines.push(machine);
        }
        let (link, mut notes) = match self.link().await? {
            Some(link) => (link, Vec::new()),
            None => {
                let note = "there is one node, and so no link: ways of several machines would need one like this";
                (catalogue.link("10gbit")?.clone(), vec![note.to_owned()])
            }
        };
        notes.push("who prefills and who decodes is what the machines could do, whatever the configuration lets them".to_owned());
        let models = self.models.iter();
        Ok(Fleet {
            machines,
            link,
            models: models
                .map(|(m, answer)| (m.name.clone(), *answer))
                .collect(),
            places: Some(places),
            notes,
            catalogue,
        })
    }

    /// What a node has not measured of a model, if something.
    fn missing(
        &self,
        node: &NodeConfig,
        model: &ModelConfig,
        told: &ModelStatus,
    ) -> Option<&'static str> {
        let long = LONG.min(self.config.chunk);
        let mut prefill = told.steps.prefill.iter();
        // Where steps at the end of prompts are small, a long prompt may have only such steps.
        if !prefill.any(|step| step.count >= long || step.depth >= 2 * LONG) {
            return Some("prefill of a long prompt");
        }
        let alone = told.steps.decode.iter().filter(|step| step.count == 1);
        let alone = merged(alone, |step| step.depth + LONG);
        let has_room = told.capacity.tokens_per_sequence >= 4 * LONG;
        let decodes = model.decode.contains(&node.name);
        if alone.is_empty() || (decodes && has_room && alone.len() < 2) {
            return Some("decode after a short and after a long prompt");
        }
        let at_once = at_once(told);
        let has_batch = told.steps.decode.iter().any(|step| step.count == at_once);
        (decodes && !has_batch).then_some("decode of several answers at once")
    }

    /// Asks a node for what it has not measured of a model.
    async fn complete(
        &self,
        node: &NodeConfig,
        model: &ModelConfig,
        told: &ModelStatus,
    ) -> anyhow::Result<()> {
        let Some(missing) = self.missing(node, model, told) else {
            return Ok(());
        };
        eprintln!(
            "`{}` has measured no {missing} of `{}` yet: it is asked for some answers",
            node.name, model.name
        );
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let coordinator = Coordinator::start(
            any_port,
            Public::plaintext(),
            self.alone(node, model),
            self.security.clone(),
        )
        .await?;
        let (asked, decodes) = (&coordinator, model.decode.contains(&node.name));
        let ask_one = async |words: u32| {
            let mut body = json!({
                "messages": [{"role": "user", "content": unseen(usize::try_from(words)?)}],
                "max_tokens": ANSWER,
            });
            if !decodes {
                body["tandem"] = json!({"route": "remote"});
            }
            let answer = ask(asked, &model.name, body).await;
            answer.map_err(|Failed(problem, _)| {
                anyhow::anyhow!("`{}` of node `{}`: {problem}", model.name, node.name)
            })
        };
        // The first step of a size is measured, but does not count.
        for words in [long_words(told, self.config.chunk), FEW_WORDS] {
            ask_one(words).await?;
            ask_one(words).await?;
        }
        if decodes && at_once(told) > 1 {
            for _ in 0..2 {
                try_join_all((0..at_once(told)).map(|_| ask_one(FEW_WORDS))).await?;
            }
        }
        coordinator.stop().await
    }

    /// A cluster in which a model is prefilled by one node only, and decoded there if it decodes. Nothing is reused.
    fn alone(&self, node: &NodeConfig, model: &ModelConfig) -> Config {
        let mut alone = self.config.clone();
        alone.servers.clear();
        alone.handoff.reuse = false;
        let mut model = model.clone();
        model.servers.clear();
        if model.decode.contains(&node.name) {
            model.decode = vec![node.name.clone()];
            model.prefill.clear();
        } else {
            model.prefill = vec![node.name.clone()];
        }
        alone.nodes.retain(|other| has(other, &model));
        alone.models = vec![model];
        alone
    }

    /// The slowest link from a node that prefills to one that decodes, else of each node to the next; `None` of one node.
    async fn link(&self) -> anyhow::Result<Option<Link>> {
        let mut pairs = links::pairs(self.models.iter().map(|(model, _)| *model));
        if pairs.is_empty() {
            let nodes: Vec<&str> = self.nodes().map(|node| &*node.name).collect();
            pairs.extend(nodes.windows(2).map(|two| (two[0], two[1])));
        }
        let mut slowest: Option<Link> = None;
        for (from, to) in pairs {
            eprintln!("the link from `{from}` to `{to}` is tried");
            let tried = links::tried(&self.calls, self.config, (from, to)).await;
            let report = tried.with_context(|| format!("the link from `{from}` to `{to}`"))?;
            let link = self::link(from, to, &report);
            let is_slower = |other: &Link| link.goodput_gb_s < other.goodput_gb_s;
            if slowest.as_ref().is_none_or(is_slower) {
                slowest = Some(link);
            }
        }
        Ok(slowest)
    }
}

/// True if a node has a model.
fn has(node: &NodeConfig, model: &ModelConfig) -> bool {
    model.prefill.contains(&node.name) || model.decode.contains(&node.name)
}

/// Answers at once that a node is asked for.
fn at_once(told: &ModelStatus) -> u32 {
    told.capacity.sequences.min(AT_ONCE)
}

/// Words of a prompt of two chunks and more, as far as the context has room.
fn long_words(told: &ModelStatus, chunk: u32) -> u32 {
    let room = told.capacity.tokens_per_sequence;
    let room = room.saturating_sub(AROUND_TOKENS + ANSWER) / WORD_TOKENS;
    let wanted = chunk.saturating_mul(2).clamp(4 * LONG, MOST_LONG);
    (wanted / FEW_WORD_TOKENS).min(room)
}

fn told<'a>(
    node: &NodeConfig,
    status: &'a NodeStatus,
    model: &str,
) -> anyhow::Result<&'a ModelStatus> {
    let found = status.models.iter().find(|told| told.name == model);
    let found = found.with_context(|| format!("node `{}` has no model `{model}`", node.name))?;
    if found.capacity.sequences == 0 {
        bail!("node `{}` has no place for `{model}`", node.name);
    }
    Ok(found)
}

fn source(version: &str) -> Source {
    Source {
        at: format!("measured by tandem {version}"),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
    }
}

fn link(from: &str, to: &str, report: &LinkReport) -> Link {
    Link {
        name: "measured".to_owned(),
        title: format!(
            "the link from {from} to {to}, {:.2} GB/s measured",
            report.there / 1e9
        ),
        goodput_gb_s: (report.there / 1e9).max(1e-6),
        round_trip_ms: report.round_trip_ms.max(1e-6),
        source: source(version::VERSION),
    }
}

fn machine(node: &NodeConfig, status: &NodeStatus) -> Machine {
    Machine {
        name: node.name.clone(),
        title: format!("{}, tandem {}", node.address, status.version),
        memory_gb: ANY_MEMORY_GB,
        bandwidth_gb_s: ANY_BANDWIDTH_GB_S,
        source: source(&status.version),
        watts: None,
        figures: Vec::new(),
        models: Vec::new(),
    }
}

fn row(step: &StepTime) -> Row {
    let count = f64::from(step.count.max(1));
    let seconds = crate::numbers::float(step.micros.max(1)) / 1e6;
    (count, f64::from(step.depth), count / seconds)
}

/// Steps whose sizes differ by less than a factor of two, as one: between such the noise is larger than the difference.
fn merged<'a>(
    steps: impl Iterator<Item = &'a StepTime>,
    size: impl Fn(&StepTime) -> u32,
) -> Vec<StepTime> {
    let mut sorted: Vec<&StepTime> = steps.collect();
    sorted.sort_by_key(|step| size(step));
    let mut groups: Vec<Vec<&StepTime>> = Vec::new();
    for step in sorted {
        let group = groups.last_mut();
        match group.filter(|group| size(step) / 2 < size(group[0])) {
            Some(group) => group.push(step),
            None => groups.push(vec![step]),
        }
    }
    groups.iter().map(|group| mean(group)).collect()
}

fn mean(group: &[&StepTime]) -> StepTime {
    let steps: u64 = group.iter().map(|step| u64::from(step.steps.max(1))).sum();
    let of = |figure: fn(&StepTime) -> u64| {
        let each = group.iter().map(|step| {
            let weight = u128::from(step.steps.max(1));
            u128::from(figure(step)) * weight
        });
        u64::try_from(each.sum::<u128>() / u128::from(steps.max(1))).unwrap_or(u64::MAX)
    };
    let small = |figure| u32::try_from(of(figure)).unwrap_or(u32::MAX);
    StepTime {
        count: small(|step| step.count.into()),
        depth: small(|step| step.depth.into()),
        micros: of(|step| step.micros),
        steps: u32::try_from(steps).unwrap_or(u32::MAX),
    }
}

/// Rows of prefill. Ends of prompts are short steps after many tokens: they do not tell what long steps there take.
fn prefill_rows(steps: &[StepTime]) -> Vec<Row> {
    let longest = steps.iter().map(|step| step.count).max().unwrap_or(0);
    let fresh = merged(steps.iter().filter(|step| step.depth == 0), |step| {
        step.count
    });
    let deep = steps
        .iter()
        .filter(|step| step.depth > 0 && step.count > longest / 2);
    let deep = merged(deep, |step| step.depth + LONG);
    fresh.iter().chain(&deep).map(row).collect()
}

/// Rows of decode: of each number of sequences the means of many steps, or of few if there are no others.
fn decode_rows(steps: &[StepTime]) -> Vec<Row> {
    let counts: BTreeSet<u32> = steps.iter().map(|step| step.count).collect();
    let rows = counts.into_iter().flat_map(|count| {
        let of_count = || steps.iter().filter(move |step| step.count == count);
        let has_many = of_count().any(|step| step.steps >= FEW_STEPS);
        let enough = of_count().filter(|step| !has_many || step.steps >= FEW_STEPS);
        merged(enough, |step| step.depth + LONG)
    });
    rows.map(|step| row(&step)).collect()
}

fn figures(told: &ModelStatus, status: &NodeStatus) -> Figures {
    Figures {
        model: told.name.clone(),
        engine: told.contract.engine.clone(),
        source: source(&status.version),
        prefill: prefill_rows(&told.steps.prefill),
        decode: decode_rows(&told.steps.decode),
        note: String::new(),
    }
}

/// The model of some nodes, which have loaded its weights already.
///
/// # Errors
/// If no node has it.
fn shape(all: &[&ModelStatus], known: Option<&Model>) -> anyhow::Result<Model> {
    let told = all.first().context("no node has the model")?;
    let mut model = Model {
        name: told.name.clone(),
        title: format!("{}, {}", told.name, told.contract.architecture),
        weights_gb: 1e-6,
        parameters_b: known.and_then(|model| model.parameters_b),
        active_b: known.and_then(|model| model.active_b),
        experts: known.and_then(|model| model.experts.clone()),
        attention: attention(&told.contract),
        latent: known.and_then(|model| model.latent.clone()),
        source: source(version::VERSION),
    };
    if model.latent.is_some() {
        model.attention.clear();
    } else if all.iter().any(|told| told.stays.is_some()) {
        // What is not handed over is planned like a cache that is no K and V.
        let token_bytes = model.kv_bytes(20_001.0) - model.kv_bytes(20_000.0);
        model.latent = Some(Latent {
            token_bytes: token_bytes.max(1.0),
            fixed_bytes: 0.0,
            layers: model.cached_layers().max(1),
        });
        model.attention.clear();
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn step(count: u32, depth: u32, micros: u64, steps: u32) -> StepTime {
        StepTime {
            count,
            depth,
            micros,
            steps,
        }
    }

    /// Two sizes side by side would make a slope of their noise.
    #[test]
    fn neighbours_are_one_row() {
        let decode = [
            step(1, 1012, 10_000, 40),
            step(1, 1030, 10_300, 40),
            step(1, 4000, 12_000, 30),
            step(1, 9000, 90_000, 1),
            step(4, 500, 20_000, 2),
        ];
        let rows = decode_rows(&decode);
        let sizes: Vec<_> = rows.iter().map(|row| (row.0, row.1)).collect();
        assert_eq!(sizes, [(1.0, 1021.0), (1.0, 4000.0), (4.0, 500.0)]);
        assert!((rows[0].2 - 1e6 / 10_150.0).abs() < 0.1, "{rows:?}");
        assert!((rows[2].2 - 200.0).abs() < 0.1, "{rows:?}");
    }

    #[test]
    fn ends_of_prompts_are_no_long_steps() {
        let steps = [
            step(2048, 0, 1_000_000, 3),
            step(20, 0, 40_000, 9),
            step(2048, 2048, 1_200_000, 3),
            step(60, 4096, 90_000, 3),
        ];
        let rows = prefill_rows(&steps);
        let sizes: Vec<_> = rows.iter().map(|row| (row.0, row.1)).collect();
        assert_eq!(sizes, [(20.0, 0.0), (2048.0, 0.0), (2048.0, 2048.0)]);
        // Where the engine always ends in small steps, those are what a prompt takes.
        let small = [step(64, 0, 1000, 5), step(64, 2000, 1500, 5)];
        assert_eq!(prefill_rows(&small).len(), 2);
    }
}
