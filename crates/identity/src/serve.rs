//! An HTTP server whose connections cost something only while they ask for something.
//!
//! A connection is *silent* while no request of it is being answered: before its first request, inside
//! a head that has not come whole, and between two requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

use crate::gate::Gate;
use crate::limits::ACCEPT_RETRY;
use crate::link::Link;

/// Where connections come from.
#[derive(Debug)]
pub enum Entrance {
    /// Machines of the cluster.
    Cluster(Gate),
    /// Whoever reaches the address, without TLS.
    Anyone(TcpListener),
}

impl Entrance {
    /// Safe to drop and call again.
    async fn next(&mut self) -> Link {
        match self {
            Self::Cluster(gate) => gate.next().await.0,
            Self::Anyone(listener) => loop {
                match listener.accept().await {
                    Ok((tcp, _)) => return Link::plain(tcp),
                    Err(error) => {
                        tracing::error!(%error, "cannot take a connection");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                }
            },
        }
    }
}

/// What the connections of one server may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once. When all of them are being answered, new ones wait.
    pub connections: usize,
    /// Silent ones among them. When one more comes, the longest silent gives way, first of those that
    /// have never asked for anything.
    pub silent: usize,
    /// How long a connection may be silent.
    pub head: Duration,
}

/// Serves HTTP/1.1 until `shutdown` completes, and then until the requests that are being answered
/// have been; silent connections are closed at once. Dropping it takes no more connections; answers
/// that have begun go on.
pub async fn serve<S, B>(
    mut entrance: Entrance,
    service: S,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let table = Arc::new(Table::default());
    // Dropping the one tells connections to end; when all copies of the other are dropped, they have.
    let (running, stop) = watch::channel(());
    let (open, mut ended) = mpsc::channel::<Infallible>(1);
    let mut shutdown = pin!(shutdown);
    loop {
        let admitted = async {
            let link = entrance.next().await;
            (link, table.admit(bounds).await)
        };
        let (link, id) = tokio::select! {
            admitted = admitted => admitted,
            () = &mut shutdown => break,
        };
        let place = Place {
            table: Arc::clone(&table),
            id,
        };
        let service = Asked {
            service: TowerToHyperService::new(service.clone()),
            place: Arc::new(place),
        };
        let open = open.clone();
        let answering = answer(link, service, bounds.head, stop.clone());
        let task = tokio::spawn(async move {
            answering.await;
            drop(open);
        });
        table.started(id, task.abort_handle());
    }
    drop((entrance, running, open));
    ended.recv().await;
}

/// Answers the requests of one connection, one after the other.
async fn answer<S, B>(link: Link, service: Asked<S>, head: Duration, mut stop: watch::Receiver<()>)
where
    Asked<S>: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(link), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(reason) = result {
        tracing::debug!(%reason, "a connection has ended");
    }
}

/// The connections of a server.
#[derive(Default)]
struct Table {
    rows: Mutex<Rows>,
    /// One of them has become silent or has ended.
    changed: Notify,
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<u64, Row>,
    /// Counts what happens, so that it has an order.
    moment: u64,
}

/// A connection.
struct Row {
    has_asked: bool,
    /// `None` while it is being answered.
    silent_since: Option<u64>,
    task: Option<AbortHandle>,
}

impl Rows {
    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A place for one more, if there is or can be one.
    fn admit(&mut self, bounds: Bounds) -> Option<u64> {
        let silent = self.by_id.values().filter(|r| r.silent_since.is_some());
        let is_full = self.by_id.len() >= bounds.connections;
        if (is_full || silent.count() >= bounds.silent) && !self.give_way() {
            return None;
        }
        let id = self.next_moment();
        let row = Row {
            has_asked: false,
            silent_since: Some(id),
            task: None,
        };
        self.by_id.insert(id, row);
        Some(id)
    }

    /// Ends the longest silent connection, first of those that have never asked; false if there is none.
    fn give_way(&mut self) -> bool {
        let silent = self.by_id.iter();
        let silent = silent.filter_map(|(id, r)| Some(((r.has_asked, r.silent_since?), *id)));
        let Some((_, id)) = silent.min() else {
            return false;
        };
        if let Some(task) = self.by_id.remove(&id).and_then(|r| r.task) {
            task.abort();
        }
        true
    }
}

impl Table {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place for one more connection.
    async fn admit(&self, bounds: Bounds) -> u64 {
        loop {
            let admitted = self.rows().admit(bounds);
            if let Some(id) = admitted {
                return id;
            }
            // Remembers a change between the two.
            self.changed.notified().await;
        }
    }

    fn started(&self, id: u64, task: AbortHandle) {
        // If it is not there, it has ended.
        if let Some(row) = self.rows().by_id.get_mut(&id) {
            row.task = Some(task);
        }
    }
}

/// The place of a connection among those of the server; dropped when it has ended.
struct Place {
    table: Arc<Table>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.rows().by_id.remove(&self.id);
        self.table.changed.notify_one();
    }
}

/// A request of this connection is being answered; dropped when the answer has ended.
struct Busy(Arc<Place>);

impl Busy {
    fn new(place: &Arc<Place>) -> Self {
        if let Some(row) = place.table.rows().by_id.get_mut(&place.id) {
            row.has_asked = true;
            row.silent_since = None;
        }
        Self(Arc::clone(place))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut rows = self.0.table.rows();
        let now = rows.next_moment();
        if let Some(row) = rows.by_id.get_mut(&self.0.id) {
            row.silent_since = Some(now);
        }
        drop(rows);
        self.0.table.changed.notify_one();
    }
}

/// A service that tells the table when a connection asks.
struct Asked<S> {
    service: TowerToHyperService<S>,
    place: Arc<Place>,
}

impl<S, B> Service<Request<Incoming>> for Asked<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<Answer<B>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let busy = Busy::new(&self.place);
        let answering = self.service.call(request);
        Box::pin(async move {
            let answer = answering.await?;
            Ok(answer.map(|body| Answer { body, _busy: busy }))
        })
    }
}

/// The body of an answer.
struct Answer<B> {
    body: B,
    _busy: Busy,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
