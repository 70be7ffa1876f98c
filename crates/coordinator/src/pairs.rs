//! Pairs of nodes between which KV passes, and how they get on: totals, and whether both compute the
//! same.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tandem_sched::Plan;

use crate::timeline::Timeline;
use crate::totals::label;

/// What is known of a prefill node and a decode node together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PairReport {
    /// The prefill node.
    pub prefill: String,
    /// The decode node.
    pub decode: String,
    /// Requests whose KV was to pass between them; [`PairReport::fallbacks`] of them lacked some of it.
    pub handoffs: u64,
    /// Bytes of KV that passed, decoded.
    pub handoff_bytes: u64,
    /// Bytes on the wire for them.
    pub wire_bytes: u64,
    /// Tokens that the decode node had already.
    pub held_tokens: u64,
    /// Connections that broke and were replaced.
    pub reconnects: u64,
    /// Requests in which the decode node computed (a part) itself after all.
    pub fallbacks: u64,
    /// Requests in which both ends were compared.
    pub compared: u64,
    /// Requests of these in which both found the same token likeliest.
    #[serde(default)]
    pub same_top: u64,
    /// Requests in which they differed by more than the bound.
    pub parity_faults: u64,
    /// True from a fault until a comparison is within the bound again.
    pub suspect: bool,
    /// The last divergence, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_kl: Option<f64>,
    /// The largest divergence, in nats.
    pub max_kl: f64,
    /// The largest difference of a log-probability, in nats.
    #[serde(default)]
    pub max_difference: f64,
}

/// All pairs that have been used.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    by_nodes: Mutex<BTreeMap<(String, String), PairReport>>,
}

impl Pairs {
    fn by_nodes(&self) -> MutexGuard<'_, BTreeMap<(String, String), PairReport>> {
        self.by_nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has been answered.
    pub(crate) fn answered(&self, plan: &Plan, timeline: &Timeline) {
        let Some(prefill) = plan.prefill.as_ref().filter(|_| !timeline.alone) else {
            return;
        };
        let key = (prefill.clone(), plan.decode.clone());
        let mut by_nodes = self.by_nodes();
        let pair = by_nodes.entry(key).or_insert_with(|| PairReport {
            prefill: prefill.clone(),
            decode: plan.decode.clone(),
            ..PairReport::default()
        });
        let summary = &timeline.summary;
        add(&mut pair.handoffs, 1);
        add(&mut pair.handoff_bytes, summary.handoff_bytes);
        add(&mut pair.wire_bytes, summary.wire_bytes);
        add(&mut pair.held_tokens, u64::from(summary.cached_tokens));
        add(&mut pair.reconnects, u64::from(summary.reconnects));
        add(&mut pair.fallbacks, u64::from(summary.fallback.is_some()));
        if let Some(report) = timeline.parity {
            add(&mut pair.compared, 1);
            add(&mut pair.same_top, u64::from(report.parity.same_top));
            add(&mut pair.parity_faults, u64::from(!report.holds));
            pair.suspect = !report.holds;
            pair.last_kl = Some(report.parity.kl);
            pair.max_kl = pair.max_kl.max(report.parity.kl);
            pair.max_difference = pair.max_difference.max(report.parity.max_difference);
        }
    }

    /// All of them, in order.
    pub(crate) fn reports(&self) -> Vec<PairReport> {
        self.by_nodes().values().cloned().collect()
    }

    /// Adds all of them to what is told.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let reports = self.reports();
        for (name, help, value) in COUNTERS {
            let family = Family::<Labels, Counter>::default();
            for pair in &reports {
                family.get_or_create(&labels(pair)).inc_by(value(pair));
            }
            registry.register(name, help, family);
        }
        for (name, help, value) in GAUGES {
            let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
            for pair in &reports {
                family.get_or_create(&labels(pair)).set(value(pair));
            }
            registry.register(name, help, family);
        }
    }
}

/// What a node says of itself may be anything.
const fn add(count: &mut u64, more: u64) {
    *count = count.saturating_add(more);
}

type Labels = [(&'static str, String); 2];

fn labels(pair: &PairReport) -> Labels {
    [
        ("prefill", label(&pair.prefill)),
        ("decode", label(&pair.decode)),
    ]
}

/// Name (the library adds `_total`), help, value.
type Metric<T> = (&'static str, &'static str, fn(&PairReport) -> T);

const COUNTERS: [Metric<u64>; 9] = [
    (
        "handoffs",
        "Requests whose KV was to pass from one node to another",
        |p| p.handoffs,
    ),
    ("handoff_bytes", "Bytes of KV that passed, decoded", |p| {
        p.handoff_bytes
    }),
    ("wire_bytes", "Bytes on the wire for them", |p| p.wire_bytes),
    (
        "held_tokens",
        "Prompt tokens whose KV the decode node had",
        |p| p.held_tokens,
    ),
    (
        "reconnects",
        "Connections that broke and were replaced",
        |p| p.reconnects,
    ),
    (
        "fallbacks",
        "Requests that the decode node prefilled itself after all, at least in part",
        |p| p.fallbacks,
    ),
    (
        "parity_compared",
        "Requests in which both ends were compared",
        |p| p.compared,
    ),
    (
        "parity_same_top",
        "Compared requests in which both ends found the same token likeliest",
        |p| p.same_top,
    ),
    (
        "parity_faults",
        "Requests in which both ends differed by more than the bound",
        |p| p.parity_faults,
    ),
];

const GAUGES: [Metric<f64>; 4] = [
    (
        "parity_kl",
        "Divergence of both ends at the last comparison, in nats",
        |p| p.last_kl.unwrap_or(0.0),
    ),
    (
        "parity_kl_max",
        "Largest divergence of both ends, in nats",
        |p| p.max_kl,
    ),
    (
        "parity_difference_max",
        "Largest difference of a log-probability between both ends, in nats",
        |p| p.max_difference,
    ),
    (
        "parity_suspect",
        "1 if the last comparison was beyond the bound",
        |p| f64::from(u8::from(p.suspect)),
    ),
];
