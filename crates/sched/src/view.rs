//! What the scheduler knows, for people and health checks.

use tandem_proto::NodeStatus;

use crate::event::{Rejection, Serves};
use crate::state::{Node, NodeState, Scheduler};

/// One node as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its last status, or why it is down.
    pub state: Result<Box<NodeStatus>, String>,
    /// What requests of this scheduler use there, for each configured model with any.
    pub load: Vec<ModelLoad>,
}

/// One server as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// Its name.
    pub name: String,
    /// What it serves, or why it is down.
    pub state: Result<Serves, String>,
    /// Requests of this scheduler that it answers.
    pub requests: u32,
}

/// Requests of one model at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelLoad {
    /// Name of the model.
    pub model: String,
    /// Requests that decode there.
    pub decodes: usize,
    /// Requests that prefill there for another node.
    pub prefills: usize,
}

impl Scheduler {
    /// All nodes, in configured order.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        (0..self.first_server).map(|n| self.view(n)).collect()
    }

    /// All servers, in configured order.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerView> {
        let view = |server: usize| {
            let Node { name, state, .. } = &self.nodes[server];
            ServerView {
                name: name.clone(),
                state: match state {
                    NodeState::Serves(serves) => Ok(serves.clone()),
                    NodeState::Down { reason, .. } => Err(reason.clone()),
                    NodeState::Up(_) => Err("is a node".to_owned()),
                },
                requests: self.answers(server),
            }
        };
        (self.first_server..self.nodes.len()).map(view).collect()
    }

    fn view(&self, node: usize) -> NodeView {
        let load = |(index, model): (usize, &crate::state::Model)| {
            let of_model = self.running.values().filter(|r| r.model == index);
            let prefills = of_model.filter(|r| r.prefill == Some(node)).count();
            let decodes = self.decodes(node, index);
            (decodes + prefills > 0).then(|| ModelLoad {
                model: model.name.clone(),
                decodes,
                prefills,
            })
        };
        let state = match &self.nodes[node].state {
            NodeState::Up(status) => Ok(status.clone()),
            NodeState::Serves(_) => Err("is a server".to_owned()),
            NodeState::Down { reason, .. } => Err(reason.clone()),
        };
        NodeView {
            name: self.nodes[node].name.clone(),
            state,
            load: self.models.iter().enumerate().filter_map(load).collect(),
        }
    }

    /// Nodes that can decode the model now, with the tokens of their contexts.
    #[must_use]
    pub fn decoders(&self, model: &str) -> Vec<(String, u32)> {
        let Some(index) = self.models.iter().position(|m| m.name == model) else {
            return Vec::new();
        };
        let able = |node: &usize| {
            let held = self.decodes_pinned(*node, index).ok()?;
            let name = self.nodes[*node].name.clone();
            Some((name, held.capacity.tokens_per_sequence))
        };
        self.models[index].decode.iter().filter_map(able).collect()
    }

    /// Models that no node can decode now, with the reasons; empty if all is well.
    #[must_use]
    pub fn unavailable(&self) -> Vec<Rejection> {
        (0..self.models.len())
            .filter_map(|model| {
                let reasons: Result<Vec<String>, ()> = self.models[model]
                    .decode
                    .iter()
                    .map(|&node| self.cannot_decode(node, model).ok_or(()))
                    .collect();
                reasons.ok().map(|reasons| Rejection::NoDecodeNode {
                    model: self.models[model].name.clone(),
                    reasons,
                })
            })
            .collect()
    }

    /// Requests that wait for the model; 0 for an unknown one.
    #[must_use]
    pub fn queued(&self, model: &str) -> usize {
        let found = self.models.iter().find(|m| m.name == model);
        found.map_or(0, |m| m.queue.len())
    }
}
