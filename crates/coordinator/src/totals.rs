//! What was answered, by model and by who answered, for monitoring.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicI64;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tandem_api::TandemInfo;
use tandem_sched::NodeView;

/// Of one model, by one node or server.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    answers: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
}

/// Since the coordinator started.
#[derive(Default)]
pub(crate) struct Totals(Mutex<BTreeMap<(String, String), Total>>);

/// Name (the library adds `_total`), help, value.
type Metric = (&'static str, &'static str, fn(&Total) -> u64);

const COUNTERS: [Metric; 3] = [
    ("answers", "Requests that were answered", |t| t.answers),
    ("prompt_tokens", "Tokens of their prompts", |t| {
        t.prompt_tokens
    }),
    ("generated_tokens", "Tokens of their answers", |t| {
        t.generated_tokens
    }),
];

/// A name as the value of a label: the library writes it as it is.
pub(crate) fn label(name: &str) -> String {
    name.replace(['"', '\\', '\n'], "_")
}

/// How busy each node's engines are, of the last status of each.
pub(crate) fn register_busy(registry: &mut Registry, nodes: &[NodeView]) {
    let family = Family::<[(&'static str, String); 2], Gauge<i64, AtomicI64>>::default();
    for node in nodes {
        let models = node.state.iter().flat_map(|status| &status.models);
        for model in models {
            let labels = [("node", label(&node.name)), ("model", label(&model.name))];
            let percent = i64::from(model.busy_percent.min(100));
            family.get_or_create(&labels).set(percent);
        }
    }
    let help = "Percent of the last minute in which an engine had something to do";
    registry.register("busy_percent", help, family);
}

impl Totals {
    /// A request was answered.
    pub(crate) fn add(&self, model: &str, info: &TandemInfo) {
        let key = (model.to_owned(), info.decode_node.clone());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = all.entry(key).or_default();
        // What somebody says of itself may be anything.
        total.answers = total.answers.saturating_add(1);
        let (prompt, generated) = (info.prompt_tokens.into(), info.generated_tokens.into());
        total.prompt_tokens = total.prompt_tokens.saturating_add(prompt);
        total.generated_tokens = total.generated_tokens.saturating_add(generated);
    }

    /// Adds all of it to what is told, with the requests that wait for each model.
    pub(crate) fn register(&self, registry: &mut Registry, queued: &HashMap<String, usize>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, help, value) in COUNTERS {
            let family = Family::<[(&'static str, String); 2], Counter>::default();
            for ((model, by), total) in &*all {
                let labels = [("model", label(model)), ("by", label(by))];
                family.get_or_create(&labels).inc_by(value(total));
            }
            registry.register(name, help, family);
        }
        let family = Family::<[(&'static str, String); 1], Gauge<i64, AtomicI64>>::default();
        for (model, waiting) in queued {
            let waiting = i64::try_from(*waiting).unwrap_or(i64::MAX);
            family
                .get_or_create(&[("model", label(model))])
                .set(waiting);
        }
        registry.register("waiting", "Requests that wait for a model", family);
    }
}
