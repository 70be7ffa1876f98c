//! The daemon: holds models, computes KV for other nodes, takes KV in, generates.
//!
//! A node does not know which engine it runs; the caller hands it [`KvEngine`]s.
//!
//! - [`api`]: the control API that the coordinator calls;
//! - [`conversation`]: the KV of answers; [`route`], [`link_estimate`]: where a handoff goes, and what is known of the way;
//! - [`transfer`]: the two ends of a handoff on real connections;
//! - [`node`]: what they share; [`tickets`]: who may hand KV to what; [`handoffs`]: the ways to a handoff that is going on;
//! - [`prefix_cache`]: what a request shares of the KV that is kept;
//! - [`model`], [`engine_loop`]: the engine thread of one model, which owns the engine and every sequence;
//! - [`sequence`]: what a sequence is doing, and the commands and events around it;
//! - [`chunking`]: how a prompt is cut for the engine, and where a prefill may go on.

pub mod api;
mod busy;
pub mod chunking;
pub mod conversation;
pub mod engine_loop;
pub mod handoffs;
pub mod limits;
pub mod link;
pub mod link_estimate;
mod measured;
pub mod model;
pub mod node;
pub mod prefix_cache;
pub mod route;
pub mod running;
pub mod sequence;
pub mod tickets;
pub mod transfer;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tandem_cluster::{Bounds, Ending, Gate, LinkError, Security};
use tandem_engine::KvEngine;
use tandem_proto::Role;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

use crate::node::Node;

pub use limits::Limits;
pub use tandem_prefix_cache::{DiskConfig, PagesConfig};

/// How a node works.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// What the node is for.
    pub role: Role,
    /// Version told to the coordinator.
    pub version: String,
    /// Who may connect, and as whom this node connects.
    pub security: Security,
    /// How much KV of earlier requests is kept.
    pub pages: PagesConfig,
    /// Waits; the defaults are those of the protocol.
    pub limits: Limits,
}

/// Why a node cannot start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A socket failed.
    #[error("the node's listener failed: {0}")]
    Listener(#[from] std::io::Error),
    /// A listener is where it must not be, or cannot be used.
    #[error("the node's listener cannot be used: {0}")]
    Security(#[from] LinkError),
    /// There is no place for pages.
    #[error("pages: {0}")]
    Pages(#[from] tandem_prefix_cache::OpenError),
    /// A model cannot be used.
    #[error("model `{model}`: {reason}")]
    Model {
        /// Its name.
        model: String,
        /// Why.
        reason: String,
    },
}

/// Runs a node until `shutdown` completes.
///
/// `listener` takes the control API, `handoff` takes KV in (used by nodes that decode). `ready` is called once
/// nothing more can keep it from serving.
///
/// # Errors
/// If a model cannot be served or a listener fails.
pub async fn run(
    listener: TcpListener,
    handoff: TcpListener,
    config: NodeConfig,
    models: Vec<(String, Box<dyn KvEngine>)>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = impl Into<Ending>> + Send + 'static,
) -> Result<(), RunError> {
    let handoff_address = handoff.local_addr()?;
    let gate = Gate::start(handoff, config.security.clone(), config.limits.connect)?;
    let pages = {
        let config = config.pages.clone();
        let opening =
            tokio::task::spawn_blocking(move || tandem_prefix_cache::PageStore::open(&config));
        opening.await.map_err(std::io::Error::other)??
    };
    let control = Gate::start(listener, config.security.clone(), config.limits.connect)?;
    let mut served = Vec::new();
    for (name, engine) in models {
        check_stays(&name, engine.as_ref(), config.role)?;
        served.push(Arc::new(model::Model::start(name, engine, config.limits)?));
    }
    let node = Arc::new(Node {
        handoff_port: config.role.decodes().then_some(handoff_address.port()),
        handoff_ip: Some(handoff_address.ip()).filter(|ip| !needs_more(ip)),
        return_port: handoff_address.port(),
        models: served,
        tickets: tickets::Tickets::default(),
        handoffs: Arc::default(),
        receiving: Arc::new(Semaphore::new(limits::MAX_HANDOFFS)),
        staging: Arc::new(Semaphore::new(limits::STAGING_UNITS)),
        confirmed: Arc::new(Semaphore::new(limits::MAX_CONFIRMED)),
        pages,
        links: Arc::new(link_estimate::LinkEstimates::with_rate(
            config.limits.link_rate,
        )),
        returns: Arc::new(Semaphore::new(limits::MAX_RETURNS)),
        taking_back: Arc::new(Semaphore::new(limits::MAX_TAKEN_BACK)),
        handing_back: Arc::new(Semaphore::new(limits::MAX_HAND_BACKS)),
        running: running::Running::default(),
        stopping: AtomicBool::new(false),
        draining: AtomicBool::new(false),
        preparing: AtomicUsize::new(0),
        tokenizing: Semaphore::new(limits::MAX_TOKENIZING),
        testing: Semaphore::new(1),
        config,
    });
    let receiving = tokio::spawn(transfer::receive::accept_loop(gate, Arc::clone(&node)));
    let expiring = tokio::spawn(expire(Arc::clone(&node)));
    let (told, asked) = oneshot::channel();
    ready();
    let serving = tandem_cluster::serve(
        vec![control],
        api::router(Arc::clone(&node)),
        bounds(node.config.limits),
        stop(shutdown, Arc::clone(&node), told),
    );
    let result = tokio::select! {
        () = serving => Ok(()),
        () = overdue(asked, node.config.limits.stop) => Ok(()),
        fault = engine_fault(&node) => Err(fault),
    };
    receiving.abort();
    expiring.abort();
    node.stop().await;
    let (pages, limit) = (node.pages.clone(), node.config.limits.stop);
    let written = tokio::task::spawn_blocking(move || pages.flush(limit)).await;
    if !written.is_ok_and(|all| all) {
        tracing::warn!("not all pages are on disk; leaving without them");
    }
    result
}

/// A node that only prefills has no use for a model whose KV it cannot hand over.
fn check_stays(name: &str, engine: &dyn KvEngine, role: Role) -> Result<(), RunError> {
    match engine.stays() {
        Some(reason) if !role.decodes() => Err(RunError::Model {
            model: name.to_owned(),
            reason: format!(
                "{reason}; this node only prefills for others: start it with `--role both`, or without this model"
            ),
        }),
        Some(reason) => {
            tracing::warn!(model = %name, %reason, "KV is not handed over: prompts are prefilled on this node, and their beginnings not reused");
            Ok(())
        }
        None => Ok(()),
    }
}

async fn expire(node: Arc<Node>) {
    let limit = node.config.limits.handoff_silence;
    node.tickets.expire(limit).await;
}

/// Of the control API.
const fn bounds(limits: Limits) -> Bounds {
    Bounds {
        connections: limits::MAX_CONNECTIONS,
        head: limits.head,
        unread: limits.event_stall,
    }
}

/// Ends running requests when the shutdown comes, or after they have drained, so that their streams close and the
/// server can.
async fn stop(
    shutdown: impl Future<Output = impl Into<Ending>> + Send + 'static,
    node: Arc<Node>,
    told: oneshot::Sender<()>,
) {
    let ending: Ending = shutdown.await.into();
    if ending == Ending::Drain {
        let limit = node.config.limits.drain;
        node.draining.store(true, Ordering::SeqCst);
        tracing::info!(limit_s = limit.as_secs(), "draining: nothing new is taken");
        if tokio::time::timeout(limit, node.idle()).await.is_err() {
            tracing::warn!("requests are still running; ending them");
        }
    }
    let _ = told.send(());
    node.stop().await;
}

/// Completes some time after the shutdown was asked for: a client that keeps its connection open
/// does not keep the node alive.
async fn overdue(asked: oneshot::Receiver<()>, patience: Duration) {
    if asked.await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(patience * 2).await;
    tracing::warn!("connections are still open; leaving without them");
}

/// Completes when an engine thread has ended though nobody asked it to (a panic), or hangs in a step.
async fn engine_fault(node: &Node) -> RunError {
    let limit = node.config.limits.engine_step;
    let faults = node.models.iter().map(|model| {
        Box::pin(async move {
            let reason = tokio::select! {
                () = model.ended() => "its engine thread has ended; see the log".to_owned(),
                () = model.hangs(limit) => format!(
                    "its engine does not come back: one step took longer than {} s; start the node again",
                    limit.as_secs_f64()
                ),
            };
            RunError::Model {
                model: model.name.clone(),
                reason,
            }
        })
    });
    let (fault, _, _) = futures_util::future::select_all(faults).await;
    if node.stopping.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    fault
}

/// True for an address that by itself does not say where: any, or one that means something only on a link.
const fn needs_more(ip: &std::net::IpAddr) -> bool {
    match ip {
        std::net::IpAddr::V4(ip) => ip.is_unspecified(),
        std::net::IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_address_that_means_something_elsewhere_is_told() {
        for (ip, needs_more) in [
            ("0.0.0.0", true),
            ("::", true),
            ("fe80::2", true),
            ("192.0.2.1", false),
            ("127.0.0.1", false),
            ("fd00::2", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(super::needs_more(&ip.parse().unwrap()), needs_more, "{ip}");
        }
    }
}
