//! An HTTP/1.1 server: hyper's, with bounds for its connections.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::gate::Gate;
use crate::limits::HTTP_BUFFER;
use crate::link::Link;

/// What the connections of one server may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once; further ones wait.
    pub connections: usize,
    /// How long a connection may be silent before a request and inside its head. Inside a body the service has a limit.
    pub head: Duration,
    /// How long a peer may take nothing of an answer; then its connection ends.
    pub unread: Duration,
}

/// How a request came; an extension of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transport {
    /// True if its connection is encrypted, and the server's certificate is for the name that was asked for.
    pub is_tls: bool,
}

/// Serves until `shutdown` completes, and then until the requests that are being answered have been; idle connections
/// are closed at once. Dropping it takes no more connections; answers that have begun go on.
pub async fn serve<S, B>(
    mut gates: Vec<Gate>,
    service: S,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let places = Arc::new(Semaphore::new(bounds.connections));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let admitted = async {
            // It is never closed.
            let place = Arc::clone(&places).acquire_owned().await;
            (next(&mut gates).await, place)
        };
        let (link, place) = tokio::select! {
            admitted = admitted => admitted,
            () = &mut shutdown => break,
        };
        let transport = Transport {
            is_tls: link.is_tls(),
        };
        let service = Tagged {
            transport,
            service: TowerToHyperService::new(service.clone()),
        };
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_buf_size(HTTP_BUFFER);
        // Whoever reads nothing would keep its place for as long as it likes.
        let mut link = TimeoutStream::new(link);
        link.set_write_timeout(Some(bounds.unread));
        let connection = builder.serve_connection(TokioIo::new(Box::pin(link)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(reason) = connection.await {
                tracing::debug!(%reason, "a connection has ended");
            }
            drop(place);
        });
    }
    drop(gates);
    graceful.shutdown().await;
}

/// The next connection, on any of the gates. Safe to drop and call again.
async fn next(gates: &mut [Gate]) -> Link {
    let mut all: FuturesUnordered<_> = gates.iter_mut().map(Gate::next).collect();
    match all.next().await {
        Some((link, _)) => link,
        None => std::future::pending().await,
    }
}

/// A service that is told how its requests come.
struct Tagged<S> {
    transport: Transport,
    service: S,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for Tagged<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.transport);
        self.service.call(request)
    }
}
