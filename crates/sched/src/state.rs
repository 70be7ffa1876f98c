//! The state: nodes, models, what runs and what waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tandem_proto::{ModelStatus, NodeStatus};

use crate::event::{Route, Serves};
use crate::limits::PREFILL_ADVANTAGE;
use crate::pin::Pin;
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
    /// Prefill node, decode node and model of pairs that do not compute the same.
    pub(crate) refused: BTreeSet<(usize, usize, usize)>,
    pub(crate) arrivals: u64,
    pub(crate) prefixes: Prefixes,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: NodeState,
    /// The connection to it failed since its last status.
    pub(crate) suspect: bool,
    /// Of a server: answers that it did not bring to a good end, less one for each status since; none after one that it did.
    pub(crate) misses: u32,
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
    pub(crate) arrival: u64,
    pub(crate) route: Route,
    /// Decode nodes that failed it.
    pub(crate) tried: Vec<usize>,
    /// What nodes have seen of its prompt.
    pub(crate) seen: Seen,
    /// What its prompt begins with, as it was submitted.
    pub(crate) prefix: Vec<u64>,
    /// True for a turn of a conversation.
    pub(crate) goes_on: bool,
    /// True once a node had less of its prompt than it was taken to have.
    pub(crate) lacks: bool,
    /// Longest context, in tokens, that was too short for it.
    pub(crate) too_short: u32,
    pub(crate) busy_retries: u32,
    /// How often there was no connection to a node.
    pub(crate) unreached: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) model: usize,
    pub(crate) decode: usize,
    /// Until the prefill has ended.
    pub(crate) prefill: Option<usize>,
    /// The nodes that see its prompt.
    pub(crate) seeing: Vec<usize>,
    pub(crate) waiting: Waiting,
}

impl Waiting {
    /// Blocks of its prompt.
    pub(crate) const fn blocks(&self) -> usize {
        self.prefix.len()
    }

    /// Blocks that its prompt begins with and another one, too: each digest stands for all before it.
    pub(crate) fn common(&self, other: &[u64]) -> usize {
        let most = self.prefix.len().min(other.len());
        let (mut from, mut to) = (0, most);
        while from < to {
            let middle = usize::midpoint(from, to);
            if self.prefix[middle] == other[middle] {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

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
        let percent = 100 * (self.blocks() - seen) / (PREFILL_ADVANTAGE * self.blocks());
        u8::try_from(percent).unwrap_or(100)
    }

    /// True if the node is taken to lack no more than this part of the prompt, in percent; false of 0, which stands for none
    /// that matters, and once a node has lacked more.
    pub(crate) fn lacks_at_most(&self, node: usize, percent: u8) -> bool {
        let lacks = self.blocks().saturating_sub(self.seen_by(node));
        !self.lacks && percent > 0 && 100 * lacks <= usize::from(percent) * self.blocks()
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
