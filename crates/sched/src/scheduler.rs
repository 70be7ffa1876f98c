//! The state: nodes, models, what runs and what waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tandem_proto::{ModelStatus, NodeStatus};

use crate::choice::Choice;
use crate::event::{Action, Event, Failure, Rejection, Route, Serves};
use crate::limits::{MAX_ATTEMPTS, MAX_BUSY_RETRIES, MAX_QUEUED, MAX_UNREACHED, PREFILL_ADVANTAGE};
use crate::pin::{self, Pin};
use crate::prefix::{Prefixes, Seen};

/// Which nodes may serve a model. The order decides between nodes that are equally loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRoutes {
    /// Name of the model.
    pub name: String,
    /// Names of nodes that may prefill it for others.
    pub prefill: Vec<String>,
    /// Names of nodes that may generate with it, and of servers that may answer.
    pub decode: Vec<String>,
    /// True if a node may prefill with another quantisation of the weights than the decode node's.
    pub mixed_quantisation: bool,
    /// What its name stands for; empty before its first use. Several quantisations have one each.
    pub pins: Vec<Pin>,
}

/// What the configuration says about nodes and models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Names of the servers, which differ from those of nodes.
    pub servers: Vec<String>,
    /// The models. Names that neither [`Topology::nodes`] nor [`Topology::servers`] has are ignored.
    pub models: Vec<ModelRoutes>,
}

/// Decides for each request where it runs.
#[derive(Debug, Clone)]
pub struct Scheduler {
    /// The nodes, and behind them the servers.
    pub(crate) nodes: Vec<Node>,
    /// Index of the first server.
    pub(crate) first_server: usize,
    pub(crate) models: Vec<Model>,
    pub(crate) running: BTreeMap<String, Running>,
    arrivals: u64,
    prefixes: Prefixes,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: NodeState,
    /// The connection to it failed since its last status.
    pub(crate) suspect: bool,
    /// Models for which it said that it is busy, since a sequence ended or its last status.
    pub(crate) busy: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum NodeState {
    Up(Box<NodeStatus>),
    /// Only of a server.
    Serves(Serves),
    Down {
        reason: String,
        may_return: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// Indices of nodes, in configured order.
    pub(crate) prefill: Vec<usize>,
    pub(crate) decode: Vec<usize>,
    pub(crate) mixed_quantisation: bool,
    pub(crate) pins: Vec<Pin>,
    pub(crate) queue: VecDeque<Waiting>,
}

#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) request: String,
    /// Order of submission.
    arrival: u64,
    pub(crate) route: Route,
    /// Decode nodes that failed it.
    pub(crate) tried: Vec<usize>,
    /// What nodes had seen of its prompt when it came.
    pub(crate) seen: Seen,
    /// Blocks of its prompt.
    blocks: usize,
    /// True for a turn of a conversation.
    pub(crate) goes_on: bool,
    /// True once a node had less of its prompt than it was taken to have.
    lacks: bool,
    /// Longest context, in tokens, that was too short for it.
    pub(crate) too_short: u32,
    busy_retries: u32,
    /// How often there was no connection to a node.
    unreached: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) model: usize,
    pub(crate) decode: usize,
    /// Until the prefill has ended.
    pub(crate) prefill: Option<usize>,
    /// The nodes that see its prompt.
    seeing: Vec<usize>,
    waiting: Waiting,
}

impl Waiting {
    /// Blocks of its prompt that the node has seen before.
    pub(crate) fn seen_by(&self, node: usize) -> usize {
        let seen = self.seen.iter().find(|(known, _)| *known == node);
        seen.map_or(0, |(_, blocks)| *blocks)
    }

    /// [`Plan::alone_percent`](crate::Plan::alone_percent) of two nodes.
    pub(crate) fn alone_percent(&self, decode: usize, prefill: usize) -> u8 {
        let seen = self.seen_by(prefill);
        let is_auto = self.route == Route::Auto;
        if !is_auto || !self.goes_on || self.seen_by(decode) <= seen {
            return 0;
        }
        let percent = 100 * (self.blocks - seen) / (PREFILL_ADVANTAGE * self.blocks);
        u8::try_from(percent).unwrap_or(100)
    }

    /// True if the node is taken to lack no more than this part of the prompt, in percent; false of 0, which stands for none
    /// that matters, and once a node has lacked more.
    pub(crate) fn lacks_at_most(&self, node: usize, percent: u8) -> bool {
        let lacks = self.blocks.saturating_sub(self.seen_by(node));
        !self.lacks && percent > 0 && 100 * lacks <= usize::from(percent) * self.blocks
    }
}

impl Node {
    /// The node's status of the model with this name.
    pub(crate) fn model(&self, name: &str) -> Option<&ModelStatus> {
        match &self.state {
            NodeState::Up(status) => status.models.iter().find(|m| m.name == name),
            NodeState::Serves(_) | NodeState::Down { .. } => None,
        }
    }
}

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
                    blocks: prefix.len(),
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
                    self.prefixes.learn(running.model, &prefix, &running.seeing);
                }
                self.end(&request);
            }
            Event::PrefillEnded { request, computed } => self.end_prefill(&request, computed),
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
        if let Some(node) = self.nodes.iter_mut().find(|n| n.name == name) {
            node.state = state;
            node.suspect = false;
            node.busy.clear();
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
        {
            for (model, waiting) in all {
                match self.choose(model, &waiting) {
                    Choice::Fits {
                        decode,
                        prefill,
                        plan,
                    } => {
                        let request = waiting.request.clone();
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
                    Choice::Wait => self.models[model].queue.push_back(waiting),
                    Choice::Never(reason) => reject(waiting.request, reason, out),
                }
            }
        }
    }
}

fn reject(request: String, reason: Rejection, out: &mut Vec<Action>) {
    out.push(Action::Reject { request, reason });
}
