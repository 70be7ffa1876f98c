//! What all parts of a running node share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tandem_cluster::PeerId;
use tandem_proto::{ErrorCode, HandoffTerms, NodeError};
use tokio::sync::{Semaphore, oneshot};

use crate::NodeConfig;
use crate::handoffs::Handoffs;
use crate::limits::DRAIN_LOOK;
use crate::link_estimate::{CodecPolicy, LinkEstimates};
use crate::model::Model;
use crate::route::Route;
use crate::running::Running;
use crate::tickets::Tickets;
use tandem_prefix_cache::PageStore;

/// Everything that the handlers share.
#[derive(Debug)]
pub struct Node {
    /// How the node works.
    pub config: NodeConfig,
    /// Port on which KV is taken in, on nodes that decode.
    pub handoff_port: Option<u16>,
    /// The only address on which KV is taken in, if there is one and it means the same on other machines.
    pub handoff_ip: Option<IpAddr>,
    /// Port on which the KV of answers is taken back.
    pub return_port: u16,
    /// The models.
    pub models: Vec<Arc<Model>>,
    /// Permitted handoffs.
    pub tickets: Tickets,
    /// Handoffs that are being received.
    pub handoffs: Arc<Handoffs>,
    /// Places for handoffs that are being received.
    pub receiving: Arc<Semaphore>,
    /// Memory for them, in units of [`crate::limits::STAGING_UNIT`].
    pub staging: Arc<Semaphore>,
    /// Places for complete handoffs that can be confirmed again.
    pub confirmed: Arc<Semaphore>,
    /// KV of earlier requests.
    pub pages: PageStore,
    /// Permissions to hand an answer back that may be open.
    pub returns: Arc<Semaphore>,
    /// Answers that may be taken back at once.
    pub taking_back: Arc<Semaphore>,
    /// Answers that may be handed back at once.
    pub handing_back: Arc<Semaphore>,
    /// The links to nodes that KV was sent to.
    pub links: Arc<LinkEstimates>,
    /// Requests that generate here, by id.
    pub running: Running,
    /// Set when the node shuts down, so that the end of an engine thread is no fault.
    pub stopping: AtomicBool,
    /// Set when nothing new is taken any more.
    pub draining: AtomicBool,
    /// Requests that are being prepared, before they have a sequence.
    pub preparing: AtomicUsize,
    /// Prompts that may be tokenised at once for those who only ask how long they are.
    pub tokenizing: Semaphore,
    /// A link may be tested.
    pub testing: Semaphore,
}

impl Node {
    /// The way to another node.
    #[must_use]
    pub fn route(&self, target: String, peer: Option<PeerId>, terms: &HandoffTerms) -> Route {
        Route {
            target,
            peer,
            security: self.config.security.clone(),
            limits: self.config.limits,
            choice: match terms.codec.fixed() {
                Some(codec) => CodecPolicy::Fixed(codec),
                None => CodecPolicy::Auto(terms.quality),
            },
            links: Arc::clone(&self.links),
            overlap: terms.overlap,
        }
    }

    /// Whether new work is taken.
    pub(crate) fn takes_work(&self) -> Result<(), NodeError> {
        if self.draining.load(Ordering::SeqCst) {
            let draining = "this node is draining: it takes nothing new";
            return Err(NodeError::new(ErrorCode::Stopping, draining));
        }
        Ok(())
    }

    /// Completes when no request runs here, none is being prepared, and none is sent from here.
    pub async fn idle(&self) {
        let prepares = || self.preparing.load(Ordering::SeqCst) > 0;
        let runs = || !self.models.iter().all(|model| model.is_idle());
        while prepares() || self.links.going() > 0 || runs() {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }

    pub(crate) fn model(&self, name: &str) -> Result<&Arc<Model>, NodeError> {
        self.models.iter().find(|m| m.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
            NodeError::new(
                ErrorCode::UnknownModel,
                format!(
                    "this node has no model `{name}`; it has {}",
                    known.join(", ")
                ),
            )
        })
    }

    /// Ends all engine threads and with them all requests, and waits for the threads for a limited
    /// time ([`crate::Limits::stop`]).
    pub async fn stop(self: &Arc<Self>) {
        self.stopping.store(true, Ordering::Relaxed);
        let node = Arc::clone(self);
        let (done, stopped) = oneshot::channel::<()>();
        // A plain thread: the end of the process does not wait for it.
        std::thread::spawn(move || {
            for model in &node.models {
                model.stop();
            }
            let _ = done.send(());
        });
        if tokio::time::timeout(self.config.limits.stop, stopped)
            .await
            .is_err()
        {
            tracing::warn!("an engine is still busy; leaving without it");
        }
    }
}
