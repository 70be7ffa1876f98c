//! Asks a node for its status again and again.

use std::time::Instant;

use tandem_sched::Event;
use tokio::sync::oneshot;

use crate::calls::Calls;
use crate::cluster::Cluster;
use crate::config::NodeConfig;
use crate::error::CallError;
use crate::limits::Limits;

/// Polls one node for ever; `first` is sent when the scheduler knows the first result.
pub(crate) async fn poll(
    calls: Calls,
    cluster: Cluster,
    node: NodeConfig,
    limits: Limits,
    first: oneshot::Sender<()>,
) {
    let mut first = Some(first);
    let mut missed = limits.missed_polls;
    let mut up = None;
    let mut last_up: Option<Instant> = None;
    let mut drains = false;
    loop {
        let result = calls.status(&node.address).await;
        missed = if result.is_ok() {
            last_up = Some(Instant::now());
            0
        } else {
            missed.saturating_add(1)
        };
        // A node that answers, but with something unusable, is down at once.
        let patient = matches!(
            result,
            Err(CallError::Connect(_)
                | CallError::Silent(_)
                | CallError::Broken(_)
                | CallError::Odd(_))
        );
        // Each poll of one that has gone dark takes long.
        let late = limits
            .may_return
            .max(limits.poll * limits.missed_polls.min(60));
        let is_late = last_up.is_some_and(|last| last.elapsed() >= late);
        // One that drains is expected to go.
        if !patient || drains || is_late || missed >= limits.missed_polls {
            if up != Some(result.is_ok()) {
                up = Some(result.is_ok());
                announce(&node, &result);
            }
            let may_return = last_up.is_some_and(|last| last.elapsed() < limits.may_return);
            drains = result.as_ref().is_ok_and(|status| status.draining);
            cluster.tell(event(&node, result, may_return)).await;
        }
        if let Some(first) = first.take() {
            // Nobody waits if the coordinator is stopping.
            let _ = first.send(());
        }
        tokio::time::sleep(limits.poll).await;
    }
}

fn event(
    node: &NodeConfig,
    result: Result<Box<tandem_proto::NodeStatus>, CallError>,
    may_return: bool,
) -> Event {
    let node = node.name.clone();
    match result {
        Ok(status) => Event::NodeUp { node, status },
        Err(e) => Event::NodeDown {
            node,
            reason: e.to_string(),
            may_return,
        },
    }
}

fn announce(node: &NodeConfig, result: &Result<Box<tandem_proto::NodeStatus>, CallError>) {
    let (name, address) = (&node.name, &node.address);
    match result {
        Ok(status) => {
            tracing::info!(node = name, address, version = status.version, "node is up");
        }
        Err(reason) => tracing::warn!(node = name, address, %reason, "node is down"),
    }
}
