//! Starts everything, serves, and ends everything.

use std::collections::HashMap;
use std::future::Future;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use tandem_cluster::{Bounds, Ending, Gate, LinkError, Public, Security};
use tandem_sched::Scheduler;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::answers::Answers;
use crate::api::router;
use crate::backend::pair::Pairs as NodePairs;
use crate::backend::server::Server;
use crate::backend::server::watch::watch;
use crate::calls::Calls;
use crate::cluster::{Cluster, cluster};
use crate::config::Config;
use crate::config::server::ServerConfig;
use crate::error::CoordinatorError;
use crate::guard::guarded;
use crate::limits::{Limits, MAX_CONNECTIONS};
use crate::pairs::Pairs;
use crate::pins::{Pins, read_pins};
use crate::poison::Poisons;
use crate::poll::poll;
use crate::service::Service;
use crate::totals::Totals;

/// [`run_with_pages`] without pages.
///
/// # Errors
/// The same.
pub async fn run(
    listeners: Vec<(TcpListener, Public)>,
    config: Config,
    security: Security,
    shutdown: impl Future<Output = impl Into<Ending>> + Send + 'static,
) -> Result<(), CoordinatorError> {
    run_with_pages(listeners, config, security, Router::new(), shutdown).await
}

/// Serves the public API, and `pages` beside it, on each of `listeners` until `shutdown` completes, and speaks to the nodes with
/// `security`. Connections are accepted as
/// soon as every node has told its status or failed to. After `shutdown` open answers may go on
/// for [`crate::Limits::shutdown`], then they end with an error; with [`Ending::Drain`], before that, for
/// [`crate::Limits::drain`], while new requests are refused.
///
/// # Errors
/// If the configuration cannot be used, or a listener needs TLS and has none.
pub async fn run_with_pages(
    listeners: Vec<(TcpListener, Public)>,
    config: Config,
    security: Security,
    pages: Router,
    shutdown: impl Future<Output = impl Into<Ending>> + Send + 'static,
) -> Result<(), CoordinatorError> {
    config.validate_or_empty()?;
    config.check_security(&security)?;
    for (listener, public) in &listeners {
        public.check_listen(listener.local_addr().map_err(LinkError::from)?)?;
    }
    let calls = Calls::new(security, config.identities(), config.limits);
    let models = config.models.iter().map(|m| m.name.clone()).collect();
    let pins = pins_of(&config)?;
    let scheduler = Scheduler::new(config.topology(&pins));
    let (cluster, owner) = cluster(scheduler, models, config.pins.clone());
    // Dropping this set ends its tasks.
    let mut tasks = JoinSet::new();
    tasks.spawn(owner.run());
    let stop = CancellationToken::new();
    let _stop_on_drop = stop.clone().drop_guard();
    let servers = servers_of(&config)?;
    start_polling(&config, (&calls, &servers), &cluster, &mut tasks).await;
    let gates = gates(listeners, config.limits.connect)?;
    let limit = config.limits.shutdown;
    let service = Arc::new(Service {
        profiles: config.profiles()?,
        config,
        nodes: NodePairs {
            calls: calls.clone(),
        },
        calls,
        servers,
        cluster,
        pairs: Pairs::default(),
        totals: Totals::default(),
        poisons: Poisons::default(),
        prefix_keys: RandomState::new(),
        answers: Answers::new(),
        stop: stop.clone(),
    });
    let told = CancellationToken::new();
    let (cluster, drain) = (service.cluster.clone(), service.config.limits.drain);
    // What is left of the time to drain when no request is open: answers are still on their way to clients.
    let (tell_rest, rest) = oneshot::channel();
    let telling = async {
        let ending: Ending = shutdown.await.into();
        let since = Instant::now();
        let mut rest = Duration::ZERO;
        if ending == Ending::Drain {
            tracing::info!(limit_s = drain.as_secs(), "draining: nothing new is taken");
            match tokio::time::timeout(drain, cluster.drain()).await {
                Ok(()) => rest = drain.saturating_sub(since.elapsed()),
                Err(_) => tracing::warn!("requests are still open; ending them"),
            }
        }
        let _ = tell_rest.send(rest);
        told.cancel();
    };
    let bounds = bounds(&service.config.limits);
    let stop_serving = told.clone().cancelled_owned();
    let cors = service.config.cors.clone();
    let routes = guarded(router(service).merge(pages), cors);
    let serving = tandem_cluster::serve(gates, routes, bounds, stop_serving);
    let serving = async { tokio::join!(serving, telling) };
    let ending = async {
        told.cancelled().await;
        tokio::time::sleep(limit + rest.await.unwrap_or_default()).await;
        stop.cancel();
        // Time for the errors to reach the clients.
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        _ = serving => {}
        () = ending => {}
    }
    Ok(())
}

const fn bounds(limits: &Limits) -> Bounds {
    Bounds {
        connections: MAX_CONNECTIONS,
        head: limits.head,
        unread: limits.client_stall,
    }
}

fn pins_of(config: &Config) -> Result<Pins, CoordinatorError> {
    let Some(path) = &config.pins else {
        return Ok(Pins::new());
    };
    read_pins(path).map_err(|source| CoordinatorError::Pins {
        path: path.clone(),
        source,
    })
}

fn gates(
    listeners: Vec<(TcpListener, Public)>,
    limit: Duration,
) -> Result<Vec<Gate>, CoordinatorError> {
    let open = |(listener, public)| Gate::public(listener, public, limit);
    let gates: Result<Vec<Gate>, _> = listeners.into_iter().map(open).collect();
    Ok(gates?)
}

/// The servers, by name.
fn servers_of(config: &Config) -> Result<HashMap<String, Arc<Server>>, CoordinatorError> {
    let server = |of: &ServerConfig| {
        let server = Server::new(of.clone(), config.limits);
        let server = server.map_err(|reason| CoordinatorError::Server {
            server: of.name.clone(),
            reason,
        });
        Ok((of.name.clone(), Arc::new(server?)))
    };
    config.servers.iter().map(server).collect()
}

/// Starts the pollers and waits for the first result of each.
async fn start_polling(
    config: &Config,
    (calls, servers): (&Calls, &HashMap<String, Arc<Server>>),
    cluster: &Cluster,
    tasks: &mut JoinSet<()>,
) {
    let mut firsts = Vec::new();
    for (name, server) in servers {
        let (first, told) = oneshot::channel();
        let (server, cluster) = (Arc::clone(server), cluster.clone());
        let wanted = config.models_of(name);
        tasks.spawn(watch(server, cluster, wanted, config.limits, first));
        firsts.push(told);
    }
    for node in &config.nodes {
        let (first, told) = oneshot::channel();
        let (calls, cluster) = (calls.clone(), cluster.clone());
        tasks.spawn(poll(calls, cluster, node.clone(), config.limits, first));
        firsts.push(told);
    }
    for told in firsts {
        // Each poller tells after at most its time limit for one status.
        let _ = told.await;
    }
}
