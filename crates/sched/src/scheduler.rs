//! What events change, and what is then to be done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::event::{Action, Event, Failure, Rejection};
use crate::limits::{MAX_ATTEMPTS, MAX_BUSY_RETRIES, MAX_MISSES, MAX_QUEUED, MAX_UNREACHED};
use crate::pin::{self, Pin};
use crate::placement::Placement;
use crate::prefix::Prefixes;
use crate::state::{Model, Node, NodeState, Running, Scheduler, Topology, Waiting};

impl Scheduler {
    /// A scheduler with all nodes down and nothing to do.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let first_server = topology.nodes.len();
        let nodes: Vec<Node> = topology
            .nodes
            .into_iter()
            .chain(topology.servers)
            .map(|name| Node {
                name,
                state: NodeState::Down {
                    reason: "has not told its status yet".to_owned(),
                    may_return: false,
                },
                suspect: false,
                misses: 0,
                busy: BTreeSet::new(),
            })
            .collect();
        let indices = |names: &[String]| -> Vec<usize> {
            let index = |name: &String| nodes.iter().position(|n| n.name == *name);
            names.iter().filter_map(index).collect()
        };
        let models = topology
            .models
            .into_iter()
            .map(|routes| Model {
                prefill: indices(&routes.prefill),
                decode: indices(&routes.decode),
                name: routes.name,
                mixed_quantisation: routes.mixed_quantisation,
                pins: routes.pins,
                queue: VecDeque::new(),
            })
            .collect();
        Self {
            nodes,
            first_server,
            models,
            running: BTreeMap::new(),
            refused: BTreeSet::new(),
            arrivals: 0,
            prefixes: Prefixes::default(),
        }
    }

    /// Takes in an event and appends what is to be done. Events about unknown nodes and about
    /// requests that have ended are ignored.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::NodeUp { node, status } => self.set_state(&node, NodeState::Up(status)),
            Event::ServerUp { server, serves } => {
                self.set_state(&server, NodeState::Serves(serves));
            }
            Event::NodeDown {
                node,
                reason,
                may_return,
            } => self.set_state(&node, NodeState::Down { reason, may_return }),
            Event::Submit {
                request,
                model,
                route,
                prefix,
                goes_on,
            } => {
                let Some(index) = self.models.iter().position(|m| m.name == model) else {
                    return reject(request, Rejection::UnknownModel { model }, out);
                };
                let waiting = Waiting {
                    arrival: self.arrivals,
                    route,
                    tried: Vec::new(),
                    seen: self.prefixes.seen(index, &prefix),
                    prefix,
                    goes_on,
                    lacks: false,
                    too_short: 0,
                    busy_retries: 0,
                    unreached: 0,
                    request,
                };
                return self.submit(index, waiting, out);
            }
            Event::Cancel { request } => self.end(&request),
            Event::Finished { request, prefix } => {
                if let Some(running) = self.running.get(&request) {
                    self.nodes[running.decode].misses = 0;
                    self.prefixes.learn(running.model, &prefix, &running.seeing);
                }
                self.end(&request);
            }
            Event::PrefillEnded { request, computed } => self.end_prefill(&request, computed),
            Event::PairRefused {
                prefill,
                decode,
                model,
            } => self.refuse(&prefill, &decode, &model),
            Event::DecodeFailed {
                request,
                node,
                failure,
                retry,
            } => self.decode_failed(&request, &node, &failure, retry, out),
        }
        self.dispatch(out);
    }

    fn set_state(&mut self, name: &str, state: NodeState) {
        let Some(at) = self.nodes.iter().position(|n| n.name == name) else {
            return;
        };
        if matches!(state, NodeState::Down { .. }) {
            // It may be another one when it is back.
            self.refused.retain(|(a, b, _)| *a != at && *b != at);
        }
        let node = &mut self.nodes[at];
        node.state = state;
        node.suspect = false;
        node.misses = node.misses.saturating_sub(1);
        node.busy.clear();
    }

    fn refuse(&mut self, prefill: &str, decode: &str, model: &str) {
        let node = |name| self.nodes.iter().position(|n| n.name == name);
        let model = self.models.iter().position(|m| m.name == model);
        if let (Some(prefill), Some(decode), Some(model)) = (node(prefill), node(decode), model) {
            self.refused.insert((prefill, decode, model));
        }
    }

    fn submit(&mut self, model: usize, waiting: Waiting, out: &mut Vec<Action>) {
        let request = waiting.request.clone();
        if self.knows(&request) {
            let reason = Rejection::DuplicateRequest {
                request: request.clone(),
            };
            return reject(request, reason, out);
        }
        let Model { name, queue, .. } = &mut self.models[model];
        if queue.len() >= MAX_QUEUED {
            let reason = Rejection::QueueFull {
                model: name.clone(),
                limit: MAX_QUEUED,
            };
            return reject(request, reason, out);
        }
        queue.push_back(waiting);
        self.arrivals += 1;
        self.pin(model, out);
        self.dispatch(out);
        let queue = &self.models[model].queue;
        if let Some(before) = queue.iter().position(|w| w.request == request) {
            out.push(Action::Queued { request, before });
        }
    }

    /// What the name of a model stands for, with what would be pinned if it was used now: the model of the first decode
    /// node, and further quantisations where they are permitted.
    pub(crate) fn pins(&self, model: usize) -> Vec<Pin> {
        let Model {
            name,
            decode,
            prefill,
            mixed_quantisation,
            pins,
            ..
        } = &self.models[model];
        let mut pins = pins.clone();
        let held = |node: &usize| self.nodes[*node].model(name);
        if pins.is_empty() && !decode.iter().any(|node| held(node).is_some()) {
            return pins;
        }
        for held in decode.iter().chain(prefill).filter_map(held) {
            if let Ok(Some(further)) = pin::check(&pins, &held.contract, *mixed_quantisation) {
                pins.push(further);
            }
        }
        pins
    }

    /// The model is used.
    fn pin(&mut self, model: usize, out: &mut Vec<Action>) {
        let pins = self.pins(model);
        let of_model = &mut self.models[model];
        if of_model.pins != pins {
            of_model.pins.clone_from(&pins);
            let model = of_model.name.clone();
            out.push(Action::Pin { model, pins });
        }
    }

    /// Somebody has changed what names stand for. A name that is not among them stands for what it did: that it could
    /// not be written down must not let another model take its place.
    pub fn set_pins(&mut self, pins: &BTreeMap<String, Vec<Pin>>) {
        for model in &mut self.models {
            if let Some(pins) = pins.get(&model.name).filter(|pins| !pins.is_empty()) {
                model.pins.clone_from(pins);
            }
        }
    }

    fn knows(&self, request: &str) -> bool {
        let waits = |m: &Model| m.queue.iter().any(|w| w.request == request);
        self.running.contains_key(request) || self.models.iter().any(waits)
    }

    fn end(&mut self, request: &str) {
        if self.take_running(request).is_none() {
            for model in &mut self.models {
                model.queue.retain(|w| w.request != request);
            }
        }
    }

    fn end_prefill(&mut self, request: &str, computed: bool) {
        if let Some(running) = self.running.get_mut(request)
            && let Some(node) = running.prefill.take()
        {
            self.nodes[node].busy.remove(&running.model);
            if !computed {
                running.seeing.retain(|seeing| *seeing == running.decode);
                return;
            }
            let (model, prefix) = (running.model, running.waiting.prefix.clone());
            self.prefixes.learn(model, &prefix, &running.seeing);
            self.see_again(&[(model, prefix)]);
        }
    }

    /// Nodes have come to have beginnings of prompts: those who wait may go there.
    fn see_again(&mut self, learned: &[(usize, Vec<u64>)]) {
        for (model, prefix) in learned {
            for waiting in &mut self.models[*model].queue {
                if waiting.common(prefix) > 0 {
                    waiting.seen = self.prefixes.seen(*model, &waiting.prefix);
                }
            }
        }
    }

    /// Frees what a running request holds.
    fn take_running(&mut self, request: &str) -> Option<Running> {
        let running = self.running.remove(request)?;
        for node in [Some(running.decode), running.prefill]
            .into_iter()
            .flatten()
        {
            self.nodes[node].busy.remove(&running.model);
        }
        Some(running)
    }

    fn decode_failed(
        &mut self,
        request: &str,
        node: &str,
        failure: &Failure,
        retry: bool,
        out: &mut Vec<Action>,
    ) {
        let at_node = |r: &&Running| self.nodes[r.decode].name == node;
        if self.running.get(request).filter(at_node).is_none() {
            return;
        }
        let Some(running) = self.take_running(request) else {
            return;
        };
        let (model, decode, mut waiting) = (running.model, running.decode, running.waiting);
        if self.is_server(decode) && matches!(failure, Failure::Lost | Failure::Refused) {
            let misses = &mut self.nodes[decode].misses;
            *misses = misses.saturating_add(1).min(MAX_MISSES);
        }
        match failure {
            Failure::Busy => {
                self.nodes[decode].busy.insert(model);
                waiting.busy_retries += 1;
            }
            Failure::Unreachable => {
                self.nodes[decode].suspect = true;
                waiting.unreached += 1;
                // Its statuses come, and requests do not get there.
                if waiting.unreached > MAX_UNREACHED {
                    waiting.tried.push(decode);
                }
            }
            Failure::Lost | Failure::Stopping => {
                self.nodes[decode].suspect = true;
                waiting.tried.push(decode);
            }
            // What a server takes is not known to the token.
            Failure::TooLong if decode >= self.first_server => waiting.tried.push(decode),
            Failure::TooLong => {
                let held = self.nodes[decode].model(&self.models[model].name);
                let context = held.map_or(u32::MAX, |held| held.capacity.tokens_per_sequence);
                waiting.too_short = waiting.too_short.max(context);
            }
            Failure::Lacks if !waiting.lacks => waiting.lacks = true,
            Failure::Lacks | Failure::Refused => waiting.tried.push(decode),
        }
        if !retry {
            return;
        }
        if waiting.tried.len() >= MAX_ATTEMPTS || waiting.busy_retries > MAX_BUSY_RETRIES {
            let reason = Rejection::RetriesExhausted {
                model: self.models[model].name.clone(),
                attempts: waiting.tried.len() + waiting.busy_retries as usize,
            };
            return reject(waiting.request, reason, out);
        }
        let queue = &mut self.models[model].queue;
        let place = queue.partition_point(|w| w.arrival < waiting.arrival);
        queue.insert(place, waiting);
    }

    /// Starts every waiting request that fits, in order of arrival, and rejects those that no
    /// node can serve.
    fn dispatch(&mut self, out: &mut Vec<Action>) {
        // Models share servers, so that those of one must not pass those of another.
        let queues = self.models.iter_mut().enumerate();
        let mut all: Vec<(usize, Waiting)> = queues
            .flat_map(|(model, m)| {
                std::mem::take(&mut m.queue)
                    .into_iter()
                    .map(move |w| (model, w))
            })
            .collect();
        all.sort_by_key(|(_, waiting)| waiting.arrival);
        let mut reads: Vec<(usize, Vec<u64>)> = Vec::new();
        for (model, mut waiting) in all {
            if reads
                .iter()
                .any(|(of, prefix)| *of == model && waiting.common(prefix) > 0)
            {
                waiting.seen = self.prefixes.seen(model, &waiting.prefix);
            }
            match self.choose(model, &waiting) {
                Placement::Fits {
                    decode,
                    prefill,
                    plan,
                } => {
                    let request = waiting.request.clone();
                    // Unless the decode node may do without it.
                    if let Some(node) = prefill.filter(|_| plan.alone_percent == 0) {
                        // Others that begin alike had better go there, too, where it is read once.
                        self.prefixes.learn(model, &waiting.prefix, &[node]);
                        reads.push((model, waiting.prefix.clone()));
                    }
                    let running = Running {
                        model,
                        decode,
                        prefill,
                        seeing: [Some(decode), prefill].into_iter().flatten().collect(),
                        waiting,
                    };
                    self.running.insert(request.clone(), running);
                    out.push(Action::Start { request, plan });
                }
                Placement::Wait => self.models[model].queue.push_back(waiting),
                Placement::Never(reason) => reject(waiting.request, reason, out),
            }
        }
        self.see_again(&reads);
    }
}

fn reject(request: String, reason: Rejection, out: &mut Vec<Action>) {
    out.push(Action::Reject { request, reason });
}
