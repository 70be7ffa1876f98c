//! How nodes are chosen for a request.

use tandem_proto::{ModelStatus, Role};

use crate::event::{Plan, Rejection, Route};
use crate::limits::{BLOCKS_PER_REQUEST, MAX_SEEN_REQUESTS, PREFIX_BLOCK};
use crate::pin::{self, OtherModel};
use crate::state::{NodeState, Scheduler, Waiting};

/// What can be done about a waiting request now.
pub(crate) enum Placement {
    /// It can start.
    Fits {
        /// Index of the decode node.
        decode: usize,
        /// Index of the prefill node.
        prefill: Option<usize>,
        /// The same in words.
        plan: Plan,
    },
    /// The nodes that can serve it are in use.
    Wait,
    /// No node can serve it.
    Never(Rejection),
}

/// What can be done about a prefill for one decode node.
enum Prefill {
    /// This node can, after these notes.
    Node(usize, Fit, Vec<String>),
    /// A node can once something ends there; until then the decode node, if it lacks no more than this part of the
    /// prompt, in percent ([`Plan::alone_percent`]).
    Wait(u8),
    /// No node can, for these reasons.
    Nobody(Vec<String>),
}

/// How the contracts of two nodes compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// They are equal.
    Equal,
    /// One node has another quantisation of the weights, and that is permitted.
    MixedQuantisation,
}

/// Whether a node can prefill for another. `Full` is worth a wait.
enum Fitness {
    Ready(Fit),
    Full,
    Unfit(String),
}

impl Scheduler {
    /// Chooses nodes: among those that can decode, of servers those that have failed least lately, the one with the
    /// fewest sequences of the model, for it the prefill node with the fewest prefills, one with an equal contract first.
    /// Who has seen [`BLOCKS_PER_REQUEST`] of the prompt before counts as if it had one request less, up to
    /// [`MAX_SEEN_REQUESTS`]; configured order decides ties.
    pub(crate) fn choose(&self, model: usize, waiting: &Waiting) -> Placement {
        let mut able = Vec::new();
        let mut reasons = Vec::new();
        for &node in &self.models[model].decode {
            match self.can_decode(node, model, waiting) {
                Ok(capacity) => able.push((node, capacity)),
                Err(reason) => reasons.push(reason),
            }
        }
        if able.is_empty() && self.may_return(model, waiting) {
            return Placement::Wait;
        }
        if able.is_empty() {
            return Placement::Never(Rejection::NoDecodeNode {
                model: self.models[model].name.clone(),
                reasons: or_none_configured(reasons),
            });
        }
        able.sort_by_key(|&(node, _)| {
            let cost = cost(self.decodes(node, model), self.reuses(node, model, waiting));
            (self.nodes[node].misses, cost)
        });
        // With the route `Remote`, nodes without a prefill node come after those with one.
        let mut alone = Vec::new();
        for &(decode, capacity) in &able {
            let free = self.has_room(decode, model, capacity);
            match self.with_prefill(decode, model, waiting) {
                Prefill::Node(node, fit, notes) if free => {
                    let percent = waiting.alone_percent(decode, node);
                    return self.fits(decode, Some((node, fit)), percent, (model, waiting), notes);
                }
                Prefill::Nobody(notes) if waiting.route == Route::Remote => {
                    alone.push((free, decode, notes));
                }
                Prefill::Nobody(notes) if free => {
                    return self.fits(decode, None, 100, (model, waiting), notes);
                }
                // It would compute what is left itself, wherever there was room.
                Prefill::Wait(percent) if free && waiting.lacks_at_most(decode, percent) => {
                    let name = &self.nodes[decode].name;
                    let note = format!(
                        "no prefill node has room, and `{name}` has had nearly all of the prompt before: it prefills the rest by itself"
                    );
                    return self.fits(decode, None, percent, (model, waiting), vec![note]);
                }
                _ => {}
            }
        }
        let others_have_one = alone.len() < able.len();
        match alone.into_iter().find(|(free, ..)| *free) {
            Some((_, decode, notes)) if !others_have_one => {
                self.fits(decode, None, 100, (model, waiting), notes)
            }
            _ => Placement::Wait,
        }
    }

    /// True if a node that could serve it has just gone.
    fn may_return(&self, model: usize, waiting: &Waiting) -> bool {
        let has_gone = |node: usize| {
            let state = &self.nodes[node].state;
            matches!(state, NodeState::Down { may_return, .. } if *may_return)
        };
        let mut decode = self.models[model].decode.iter();
        decode.any(|node| has_gone(*node) && !waiting.tried.contains(node))
    }

    /// The prefill that the route leads to.
    fn with_prefill(&self, decode: usize, model: usize, waiting: &Waiting) -> Prefill {
        let found = match waiting.route {
            _ if self.is_server(decode) => return Prefill::Nobody(Vec::new()),
            Route::Local => return Prefill::Nobody(Vec::new()),
            _ if let Some(why) = self.stays(decode, model) => Prefill::Nobody(vec![why]),
            Route::Auto => self.prefill_for(decode, model, waiting),
            Route::Remote => match self.prefill_for(decode, model, waiting) {
                Prefill::Nobody(reasons) => self.prefill_on_itself(decode, model, reasons),
                found => found,
            },
        };
        match found {
            // Without other nodes in the configuration there is nothing to tell.
            Prefill::Nobody(mut notes) if !notes.is_empty() => {
                notes.push(format!("`{}` prefills by itself", self.nodes[decode].name));
                Prefill::Nobody(notes)
            }
            found => found,
        }
    }

    /// Blocks of a prompt that a node has seen and may use again.
    fn reuses(&self, node: usize, model: usize, waiting: &Waiting) -> usize {
        match self.stays(node, model) {
            Some(_) => 0,
            None => waiting.seen_by(node),
        }
    }

    /// Why KV of a model does not leave a node, if it does not.
    fn stays(&self, node: usize, model: usize) -> Option<String> {
        let name = &self.models[model].name;
        let reason = self.nodes[node].model(name)?.stays.as_ref()?;
        Some(format!("KV of `{name}` is not handed over: {reason}"))
    }

    fn prefill_for(&self, decode: usize, model: usize, waiting: &Waiting) -> Prefill {
        let mut ready = Vec::new();
        let mut full = Vec::new();
        let mut notes = Vec::new();
        let mut reasons = Vec::new();
        for &node in &self.models[model].prefill {
            if node == decode {
                continue;
            }
            match self.can_prefill(node, decode, model, waiting.route) {
                Ok(Fitness::Ready(fit)) => ready.push((fit, node)),
                Ok(Fitness::Full) => full.push(waiting.alone_percent(decode, node)),
                Ok(Fitness::Unfit(reason)) => reasons.push(reason),
                Err(difference) => {
                    notes.push(difference.clone());
                    reasons.push(difference);
                }
            }
        }
        let first = ready
            .into_iter()
            .min_by_key(|&(fit, node)| (fit, cost(self.prefills(node), waiting.seen_by(node))));
        match (first, full.into_iter().min()) {
            (Some((fit, node)), _) => Prefill::Node(node, fit, notes),
            (None, Some(percent)) => Prefill::Wait(percent),
            (None, None) => Prefill::Nobody(reasons),
        }
    }

    /// With the route `Remote` a node hands KV to itself if there is no other.
    fn prefill_on_itself(&self, decode: usize, model: usize, mut reasons: Vec<String>) -> Prefill {
        let node = &self.nodes[decode];
        let prefills = matches!(&node.state, NodeState::Up(s) if s.role.prefills());
        if !prefills || !self.models[model].prefill.contains(&decode) {
            return Prefill::Nobody(or_none_configured(reasons));
        }
        let capacity = node
            .model(&self.models[model].name)
            .map_or(0, |m| m.capacity.sequences);
        let free = capacity.saturating_sub(self.used(decode, model));
        if free < 2 {
            reasons.push(format!(
                "`{}` is the decode node and has room for {free} more sequences, a handoff to itself needs 2",
                node.name
            ));
            return Prefill::Nobody(reasons);
        }
        let note = format!(
            "`{}` hands KV to itself, no other node can prefill",
            node.name
        );
        Prefill::Node(decode, Fit::Equal, vec![note])
    }

    fn fits(
        &self,
        decode: usize,
        prefill: Option<(usize, Fit)>,
        alone_percent: u8,
        (model, waiting): (usize, &Waiting),
        mut notes: Vec<String>,
    ) -> Placement {
        let mixed = prefill.filter(|(_, fit)| *fit == Fit::MixedQuantisation);
        let prefill = prefill.map(|(node, _)| node);
        if let Some((node, _)) = mixed {
            notes.push(self.tells_quantisations(node, decode, model));
        }
        let seen = |node| match self.reuses(node, model, waiting) {
            0 => String::new(),
            blocks => {
                let bytes = blocks * PREFIX_BLOCK;
                format!(" and the first {bytes} bytes of the prompt have been before")
            }
        };
        let what = match self.is_server(decode) {
            true => "answer by the server",
            false => "decode on",
        };
        let mut reason = format!(
            "{what} `{}`, where {} sequences of the model run{}",
            self.nodes[decode].name,
            self.decodes(decode, model),
            seen(decode)
        );
        if let Some(node) = prefill {
            let running = self.prefills(node);
            let name = &self.nodes[node].name;
            reason.push_str(&format!(
                "; prefill on `{name}`, where {running} prefills run{}",
                seen(node)
            ));
        }
        let name = |node: usize| self.nodes[node].name.clone();
        let plan = Plan {
            decode: name(decode),
            prefill: prefill.map(name),
            alone_percent,
            mixed_quantisation: mixed.is_some(),
            reason,
            notes,
        };
        Placement::Fits {
            decode,
            prefill,
            plan,
        }
    }

    /// That two nodes hold different quantisations of a model, in words.
    fn tells_quantisations(&self, prefill: usize, decode: usize, model: usize) -> String {
        let of = |node: usize| {
            let node = &self.nodes[node];
            let status = node.model(&self.models[model].name);
            let held = status.map_or("?", |s| &s.contract.quantisation);
            format!("quantisation {held} on `{}`", node.name)
        };
        format!("prefill with {}, decode with {}", of(prefill), of(decode))
    }

    /// How many sequences a node that can decode it has, or how many requests a server takes.
    fn can_decode(&self, node: usize, model: usize, waiting: &Waiting) -> Result<u32, String> {
        let name = &self.nodes[node].name;
        if waiting.tried.contains(&node) {
            return Err(format!("`{name}` failed this request"));
        }
        if self.is_server(node) {
            return self.serves(node, model);
        }
        let held = self.decodes_pinned(node, model)?;
        let context = held.capacity.tokens_per_sequence;
        if context <= waiting.too_short {
            return Err(format!(
                "the context of `{name}` is {context} tokens, too short"
            ));
        }
        Ok(held.capacity.sequences)
    }

    /// True for a server, which is no node.
    pub(crate) const fn is_server(&self, node: usize) -> bool {
        node >= self.first_server
    }

    /// How many requests a server takes that has the model.
    fn serves(&self, server: usize, model: usize) -> Result<u32, String> {
        let name = &self.nodes[server].name;
        match &self.nodes[server].state {
            NodeState::Serves(serves) => {
                let model = &self.models[model].name;
                match serves.models.contains(model) {
                    true => Ok(serves.parallel),
                    false => Err(format!("`{name}` does not serve `{model}`")),
                }
            }
            NodeState::Down { reason, .. } => Err(format!("`{name}` is down: {reason}")),
            NodeState::Up(_) => Err(format!("`{name}` is a node")),
        }
    }

    /// Why the node cannot decode the model at all, or the server not answer; `None` if it can.
    pub(crate) fn cannot_decode(&self, node: usize, model: usize) -> Option<String> {
        match self.is_server(node) {
            true => self.serves(node, model).err(),
            false => self.decodes_pinned(node, model).err(),
        }
    }

    /// The model on a node that decodes it, if it is the one that its name stands for.
    pub(crate) fn decodes_pinned(&self, node: usize, model: usize) -> Result<&ModelStatus, String> {
        let held = self.holds(node, model, "decode", Role::decodes)?;
        self.is_pinned(&self.nodes[node].name, model, held)?;
        Ok(held)
    }

    /// Whether the node can prefill for the decode node; an error is a difference of contract, or of what they compute.
    fn can_prefill(
        &self,
        node: usize,
        decode: usize,
        model: usize,
        route: Route,
    ) -> Result<Fitness, String> {
        let status = match self.holds(node, model, "prefill for others", Role::prefills) {
            Ok(status) => status,
            Err(reason) => return Ok(Fitness::Unfit(reason)),
        };
        let name = &self.nodes[node].name;
        if self.refused.contains(&(node, decode, model)) {
            let other = &self.nodes[decode].name;
            return Err(format!(
                "`{name}` is not to prefill for `{other}`: they do not compute the same"
            ));
        }
        let mut fit = Fit::Equal;
        if let Some(ours) = self.nodes[decode].model(&self.models[model].name) {
            let differences = if self.models[model].mixed_quantisation {
                ours.contract.differences_but_quantisation(&status.contract)
            } else {
                ours.contract.differences(&status.contract)
            };
            if let Some(difference) = differences.first() {
                return Err(format!(
                    "`{name}` cannot prefill for `{}`: {difference}",
                    self.nodes[decode].name
                ));
            }
            if ours.contract != status.contract {
                // The weights have not been compared.
                self.is_pinned(name, model, status)?;
                fit = Fit::MixedQuantisation;
            }
        }
        if self.has_room(node, model, status.capacity.sequences) {
            return Ok(Fitness::Ready(fit));
        }
        // Prefills end soon and are worth a wait; the sequences of a node that decodes are not.
        let short = matches!(&self.nodes[node].state, NodeState::Up(s) if s.role == Role::Prefill);
        if short || route == Route::Remote {
            return Ok(Fitness::Full);
        }
        Ok(Fitness::Unfit(format!("`{name}` is full")))
    }

    /// The node's status of the model, if it is up, has the role and the model.
    fn holds(
        &self,
        node: usize,
        model: usize,
        task: &str,
        has_role: fn(Role) -> bool,
    ) -> Result<&ModelStatus, String> {
        let (node, model) = (&self.nodes[node], &self.models[model].name);
        let name = &node.name;
        let status = match &node.state {
            NodeState::Down { reason, .. } => return Err(format!("`{name}` is down: {reason}")),
            NodeState::Serves(_) => return Err(format!("`{name}` is a server")),
            NodeState::Up(status) => status,
        };
        if status.draining {
            return Err(format!("`{name}` is draining: it takes nothing new"));
        }
        if !has_role(status.role) {
            return Err(format!(
                "`{name}` does not {task}; start it with another role"
            ));
        }
        let found = node.model(model);
        let found = found.ok_or_else(|| format!("`{name}` does not hold `{model}`"))?;
        if found.capacity.sequences == 0 {
            return Err(format!(
                "`{name}` has no room for any sequence of `{model}`"
            ));
        }
        Ok(found)
    }

    /// That a node has the model that its name stands for.
    fn is_pinned(&self, node: &str, model: usize, held: &ModelStatus) -> Result<(), String> {
        let mixed = self.models[model].mixed_quantisation;
        let other = pin::check(&self.pins(model), &held.contract, mixed);
        other.map(|_| ()).map_err(|other| {
            let name = &self.models[model].name;
            let OtherModel {
                field,
                found,
                pinned,
            } = other;
            format!(
                "`{node}` holds another model as `{name}`: `{field}` is {found}, and was {pinned} when it was first used; \
                 give it the same file, or run `tandem cluster repin {name}`"
            )
        })
    }

    /// Nodes that get nothing because they have another model under a name, with the field that differs.
    #[must_use]
    pub fn odd(&self) -> Vec<String> {
        let mut odd = Vec::new();
        for (index, model) in self.models.iter().enumerate() {
            for node in model.decode.iter().chain(&model.prefill) {
                let node = &self.nodes[*node];
                let held = node.model(&model.name);
                let checked = held.map_or(Ok(()), |held| self.is_pinned(&node.name, index, held));
                if let Err(reason) = checked
                    && !odd.contains(&reason)
                {
                    odd.push(reason);
                }
            }
        }
        odd
    }

    fn has_room(&self, node: usize, model: usize, capacity: u32) -> bool {
        let held = self.nodes[node].suspect || self.nodes[node].busy.contains(&model);
        let used = match self.is_server(node) {
            // It has one limit for all of its models.
            true => self.answers(node),
            false => self.used(node, model),
        };
        !held && used < capacity
    }

    /// Requests of all models that a server answers.
    pub(crate) fn answers(&self, server: usize) -> u32 {
        let mine = self.running.values().filter(|r| r.decode == server);
        u32::try_from(mine.count()).unwrap_or(u32::MAX)
    }

    /// Sequences of the model that our requests use at the node.
    fn used(&self, node: usize, model: usize) -> u32 {
        let of_model = self.running.values().filter(|r| r.model == model);
        of_model
            .map(|r| u32::from(r.decode == node) + u32::from(r.prefill == Some(node)))
            .sum()
    }

    /// Requests of the model that the node decodes.
    pub(crate) fn decodes(&self, node: usize, model: usize) -> usize {
        let mine = |r: &&crate::state::Running| r.model == model && r.decode == node;
        self.running.values().filter(mine).count()
    }

    /// Prefills of any model that run at the node.
    fn prefills(&self, node: usize) -> usize {
        let mine = |r: &&crate::state::Running| r.prefill == Some(node);
        self.running.values().filter(mine).count()
    }
}

/// What it costs to give a node one more request when so many run there and it has seen so many blocks of the prompt.
fn cost(running: usize, seen: usize) -> isize {
    let blocks = running.saturating_mul(BLOCKS_PER_REQUEST);
    let counts = seen.min(MAX_SEEN_REQUESTS * BLOCKS_PER_REQUEST);
    blocks.cast_signed().saturating_sub_unsigned(counts)
}

fn or_none_configured(mut reasons: Vec<String>) -> Vec<String> {
    if reasons.is_empty() {
        reasons.push("no other node is configured for it".to_owned());
    }
    reasons
}
