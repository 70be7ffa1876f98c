//! What a tandem server tells of its models: `GET /v1/nodes`, which has no text of anybody.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;

/// Longest wait for it.
const WAIT: Duration = Duration::from_secs(5);

/// The parts of the server's answer that are needed here.
#[derive(Debug, Deserialize)]
pub(crate) struct Told {
    #[serde(default)]
    data: Vec<ToldNode>,
    #[serde(default)]
    servers: Vec<ToldServer>,
    #[serde(default)]
    queued: Vec<ToldModel>,
}

#[derive(Debug, Deserialize)]
struct ToldNode {
    #[serde(flatten)]
    state: ToldState,
    #[serde(default)]
    models: Vec<ToldHeld>,
}

/// Whether a machine answers.
#[derive(Debug, Deserialize)]
struct ToldState {
    #[serde(default)]
    name: String,
    up: Option<bool>,
    #[serde(default)]
    reason: Option<String>,
}

impl ToldState {
    /// That it is down, and why.
    fn problem(&self) -> Option<String> {
        let reason = self.reason.as_deref().filter(|reason| !reason.is_empty());
        let why = reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        (self.up == Some(false)).then(|| format!("`{}` is down{why}", self.name))
    }
}

#[derive(Debug, Deserialize)]
struct ToldHeld {
    name: String,
    #[serde(default)]
    no_chat: Option<String>,
    #[serde(default)]
    contract: ToldContract,
}

#[derive(Debug, Default, Deserialize)]
struct ToldContract {
    #[serde(default)]
    weights: String,
}

#[derive(Debug, Deserialize)]
struct ToldServer {
    #[serde(flatten)]
    state: ToldState,
    #[serde(default)]
    models: Vec<ToldServed>,
}

#[derive(Debug, Deserialize)]
struct ToldServed {
    name: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    reported: String,
}

#[derive(Debug, Deserialize)]
struct ToldModel {
    model: String,
}

impl Told {
    /// Asks the server; nothing if it is none of tandem's.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) async fn ask(
        http: &reqwest::Client,
        base_url: &str,
    ) -> Result<Option<Self>, reqwest::Error> {
        let request = http.get(format!("{base_url}/nodes")).timeout(WAIT);
        let response = request.send().await?;
        if response.status().is_server_error() {
            return response.error_for_status().map(|_| None);
        }
        match response.bytes().await {
            Ok(body) => Ok(serde_json::from_slice(&body).ok()),
            Err(error) => Err(error),
        }
    }

    /// The models that can be asked.
    pub(crate) fn models(&self) -> Vec<String> {
        self.queued.iter().map(|q| q.model.clone()).collect()
    }

    /// Which machines do not answer, and why.
    pub(crate) fn down(&self) -> Vec<String> {
        let nodes = self.data.iter().map(|node| &node.state);
        let servers = self.servers.iter().map(|server| &server.state);
        nodes
            .chain(servers)
            .filter_map(ToldState::problem)
            .collect()
    }

    /// Why one of some models cannot be asked, if the server tells.
    pub(crate) fn problem(&self, models: [&str; 2]) -> Option<String> {
        let knows = |name: &str| self.queued.iter().any(|queued| queued.model == name);
        models.into_iter().find_map(|name| {
            if !self.queued.is_empty() && !knows(name) {
                return Some(format!("no model `{name}` is loaded: start tandem with it"));
            }
            let why = self.no_chat(name)?;
            Some(format!("`{name}` cannot be asked: {why}"))
        })
    }

    /// Why a model answers no chats wherever it is.
    fn no_chat(&self, name: &str) -> Option<&str> {
        let served = self.servers.iter().flat_map(|server| &server.models);
        let held = self.data.iter().flat_map(|node| &node.models);
        let mut held = held.filter(|model| model.name == name).peekable();
        held.peek()?.no_chat.as_deref().filter(|_| {
            served.into_iter().all(|model| model.name != name)
                && held.all(|model| model.no_chat.is_some())
        })
    }

    /// What serves some models: digests of weights, and what servers tell of theirs.
    pub(crate) fn served_by(&self, models: &[&str]) -> BTreeSet<String> {
        let held = self.data.iter().flat_map(|node| &node.models);
        let held = held.map(|m| (&m.name, format!("{}={}", m.name, m.contract.weights)));
        let served = self.servers.iter().flat_map(|server| &server.models);
        let served = served.map(|m| (&m.name, format!("{}={} ({})", m.name, m.model, m.reported)));
        let all = held.chain(served);
        all.filter(|(name, _)| models.contains(&name.as_str()))
            .map(|(_, told)| told)
            .collect()
    }
}
