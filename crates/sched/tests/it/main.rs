//! Decisions of the scheduler, against tables and against an independent account of what runs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod decisions;
mod pins;
mod plans;
mod properties;
mod runs;
mod servers;

use tandem_handoff::{Contract, ElementType, LayerKind, LayerSpec};
use tandem_proto::{Capacity, ModelStatus, NodeStatus, PROTOCOL_VERSION, Role, StepTimes};
use tandem_sched::*;

/// A contract whose tokenizer digest is `tokenizer`.
fn contract(tokenizer: &str) -> Contract {
    Contract {
        layout_version: 1,
        engine: "fake 1".into(),
        architecture: "llama".into(),
        quantisation: "f16".into(),
        weights: "w".into(),
        tokenizer: tokenizer.into(),
        rope: "base=10000".into(),
        rotation: "none".into(),
        window: 0,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers: vec![LayerSpec {
            kind: LayerKind::Full,
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
        }],
    }
}

fn held(name: &str, sequences: u32, tokenizer: &str) -> ModelStatus {
    ModelStatus {
        name: name.into(),
        contract: contract(tokenizer),
        capacity: Capacity {
            sequences,
            tokens_per_sequence: 1024,
            prefill_tokens: 512,
            microbatch_tokens: 64,
        },
        threads: None,
        no_chat: None,
        stays: None,
        busy_percent: 0,
        steps: StepTimes::default(),
        sequences: Vec::new(),
    }
}

fn status(role: Role, models: Vec<ModelStatus>) -> Box<NodeStatus> {
    Box::new(NodeStatus {
        identity: None,
        protocol: PROTOCOL_VERSION,
        version: "0".into(),
        role,
        draining: false,
        handoff_port: role.decodes().then_some(1),
        models,
    })
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&n| n.to_owned()).collect()
}

fn routes(name: &str, prefill: &[&str], decode: &[&str]) -> ModelRoutes {
    ModelRoutes {
        name: name.into(),
        prefill: strings(prefill),
        decode: strings(decode),
        mixed_quantisation: false,
        pins: Vec::new(),
    }
}

fn up(node: &str, status: Box<NodeStatus>) -> Event {
    Event::NodeUp {
        node: node.into(),
        status,
    }
}

fn submit(request: &str, model: &str, route: Route) -> Event {
    Event::Submit {
        request: request.into(),
        model: model.into(),
        route,
        prefix: Vec::new(),
        goes_on: true,
    }
}

fn finished(request: &str) -> Event {
    Event::Finished {
        request: request.into(),
        prefix: Vec::new(),
    }
}

/// The same about a prompt that begins so.
fn about(event: Event, prefix: &[u64]) -> Event {
    let prefix = prefix.to_vec();
    match event {
        Event::Submit {
            request,
            model,
            route,
            goes_on,
            ..
        } => Event::Submit {
            request,
            model,
            route,
            prefix,
            goes_on,
        },
        Event::Finished { request, .. } => Event::Finished { request, prefix },
        other => panic!("{other:?} has no prompt"),
    }
}

fn cancel(request: &str) -> Event {
    Event::Cancel {
        request: request.into(),
    }
}

/// The same about a prompt that is no turn of a conversation.
fn begun_alike(event: Event) -> Event {
    match event {
        Event::Submit {
            request,
            model,
            route,
            prefix,
            ..
        } => Event::Submit {
            request,
            model,
            route,
            prefix,
            goes_on: false,
        },
        other => other,
    }
}

fn failed(request: &str, node: &str, failure: Failure, retry: bool) -> Event {
    Event::DecodeFailed {
        request: request.into(),
        node: node.into(),
        failure,
        retry,
    }
}

/// What is decided of requests; what is pinned is `pins`' business.
fn tell(scheduler: &mut Scheduler, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    scheduler.handle(event, &mut out);
    out.retain(|action| !matches!(action, Action::Pin { .. }));
    out
}

/// Requests that run: each decodes at exactly one node.
fn running(scheduler: &Scheduler) -> usize {
    let nodes = scheduler.nodes();
    nodes.iter().flat_map(|n| &n.load).map(|l| l.decodes).sum()
}
