//! An HTTP server whose connections cost something only while they ask for something.
//!
//! A connection is *silent* while no request of it is being answered: before its first request, inside
//! a request that has not come whole, and between two requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::PollSemaphore;

use crate::gate::Gate;
use crate::limits::{HTTP_BUFFER, MAKE_ROOM};
use crate::link::Link;
use crate::unread::Unread;

/// What the connections of one server may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once. When all of them are being answered, new ones wait.
    pub connections: usize,
    /// Silent ones among them. When one more comes, the longest silent gives way: of those that have
    /// never asked for anything, or of those that have if these are more than half.
    pub silent: usize,
    /// How long a connection may be silent outside a body, for which the service has a limit.
    pub head: Duration,
    /// How long a peer may take nothing of an answer; then its connection ends.
    pub unread: Duration,
    /// Bytes of bodies of all requests that have not been answered. A body for which there is no room
    /// waits, and the silent connections that sent most of one give way to it.
    pub bodies: usize,
}

/// How a request came; an extension of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transport {
    /// True if its connection is encrypted, and the server's certificate is for the name that was asked for.
    pub is_tls: bool,
}

/// Serves HTTP/1.1 until `shutdown` completes, and then until the requests that are being answered
/// have been; silent connections are closed at once. Dropping it takes no more connections; answers
/// that have begun go on.
pub async fn serve<S, B>(
    mut gates: Vec<Gate>,
    service: S,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) where
    S: tower_service::Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let table = Arc::new(Table {
        rows: Mutex::default(),
        changed: Notify::new(),
        bodies: Arc::new(Semaphore::new(bounds.bodies)),
    });
    // Dropping the one tells connections to end; when all copies of the other are dropped, they have.
    let (running, stop) = watch::channel(());
    let (open, mut ended) = mpsc::channel::<Infallible>(1);
    let mut shutdown = pin!(shutdown);
    loop {
        let admitted = async {
            let link = next(&mut gates).await;
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
            transport: Transport {
                is_tls: link.is_tls(),
            },
            service: TowerToHyperService::new(service.clone()),
            place: Arc::new(place),
        };
        let open = open.clone();
        let answering = answer(link, service, bounds, stop.clone());
        let task = tokio::spawn(async move {
            answering.await;
            drop(open);
        });
        table.started(id, task.abort_handle());
    }
    drop((gates, running, open));
    ended.recv().await;
}

/// The next connection, on any of the gates. Safe to drop and call again.
async fn next(gates: &mut [Gate]) -> Link {
    let mut all: FuturesUnordered<_> = gates.iter_mut().map(Gate::next).collect();
    match all.next().await {
        Some((link, _)) => link,
        None => std::future::pending().await,
    }
}

/// Answers the requests of one connection, one after the other.
async fn answer<S, B>(link: Link, service: Asked<S>, bounds: Bounds, mut stop: watch::Receiver<()>)
where
    Asked<S>: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head);
    builder.max_buf_size(HTTP_BUFFER);
    // Whoever reads nothing would keep its place and the room of its body for as long as it likes.
    let link = Unread::new(link, bounds.unread);
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
struct Table {
    rows: Mutex<Rows>,
    /// One of them has become silent or has ended.
    changed: Notify,
    /// Room for bytes of bodies.
    bodies: Arc<Semaphore>,
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
    /// Bytes of the body of its request.
    body: usize,
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
        let (all, asked) = silent.fold((0, 0), |(all, asked), row| {
            (all + 1, asked + usize::from(row.has_asked))
        });
        if self.by_id.len() >= bounds.connections || all >= bounds.silent {
            // While many idle, one that has just come is not the one to go.
            let idle_first = asked > all / 2;
            self.give_way(|_, row, since| Some((row.has_asked != idle_first, since)))?;
        }
        let id = self.next_moment();
        let row = Row {
            has_asked: false,
            silent_since: Some(id),
            body: 0,
            task: None,
        };
        self.by_id.insert(id, row);
        Some(id)
    }

    /// Ends the silent connection that comes first in this order, of those that have a place in it. Tells
    /// how many bytes of a body become free; `None` if there is none.
    fn give_way<O: Ord>(&mut self, order: impl Fn(u64, &Row, u64) -> Option<O>) -> Option<usize> {
        let silent = self.by_id.iter().filter_map(|(id, row)| {
            let place = order(*id, row, row.silent_since?)?;
            Some((place, *id))
        });
        let (_, id) = silent.min()?;
        let row = self.by_id.remove(&id)?;
        if let Some(task) = row.task {
            task.abort();
        }
        Some(row.body)
    }

    /// Ends silent connections other than this one until so many bytes of bodies become free, or
    /// there are no more: those with most of a body first, so that they are few.
    fn make_room(&mut self, own: u64, bytes: usize) {
        let mut free = 0;
        let order = |id, row: &Row, since| {
            (id != own && row.body > 0).then_some((std::cmp::Reverse(row.body), since))
        };
        // One that has given way itself wants none.
        while free < bytes
            && self.by_id.contains_key(&own)
            && let Some(more) = self.give_way(order)
        {
            free += more;
        }
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
        match self.rows().by_id.get_mut(&id) {
            Some(row) => row.task = Some(task),
            // It has ended, or has given way already.
            None => task.abort(),
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

/// A request of this connection; dropped when its answer has ended.
struct Asking {
    place: Arc<Place>,
    /// For the bytes of its body.
    room: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Asking {
    /// It has come whole, or nobody waits for the rest: it is being answered.
    fn answering(&self) {
        if let Some(row) = self.place.table.rows().by_id.get_mut(&self.place.id) {
            row.has_asked = true;
            row.silent_since = None;
        }
    }

    /// So many more bytes of its body have come.
    fn holds(&self, permit: OwnedSemaphorePermit) {
        let bytes = permit.num_permits();
        let mut rows = self.place.table.rows();
        let now = rows.next_moment();
        if let Some(row) = rows.by_id.get_mut(&self.place.id) {
            row.body += bytes;
            row.silent_since = row.silent_since.map(|_| now);
        }
        drop(rows);
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        match room.as_mut() {
            Some(room) => room.merge(permit),
            None => *room = Some(permit),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut rows = self.place.table.rows();
        let now = rows.next_moment();
        if let Some(row) = rows.by_id.get_mut(&self.place.id) {
            row.silent_since = Some(now);
            row.body = 0;
        }
        drop(rows);
        self.place.table.changed.notify_one();
    }
}

/// The body of a request. Its bytes count among those of all bodies until the request has been answered.
pub struct RequestBody {
    body: Incoming,
    asking: Arc<Asking>,
    bodies: PollSemaphore,
    /// For this there was no room yet.
    waiting: Option<Bytes>,
    /// Until when no others give way to it again: the room of those that have becomes free a moment later.
    has_made_room: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.waiting.is_none() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.waiting = Some(bytes),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.asking.answering();
                    return Poll::Ready(None);
                }
            }
        }
        let bytes = self.waiting.as_ref().map_or(0, Bytes::len);
        // A frame is at most `HTTP_BUFFER`.
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Poll::Ready(permit) = self.bodies.poll_acquire_many(cx, permits) else {
            // Whatever else comes on this connection asks again. What has become free may be others' by now.
            while self
                .has_made_room
                .as_mut()
                .is_none_or(|made| made.as_mut().poll(cx).is_ready())
            {
                let place = &self.asking.place;
                place.table.rows().make_room(place.id, bytes);
                self.has_made_room = Some(Box::pin(sleep(MAKE_ROOM)));
            }
            return Poll::Pending;
        };
        self.has_made_room = None;
        if let Some(permit) = permit {
            self.asking.holds(permit);
        }
        Poll::Ready(self.waiting.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }
}

/// A service that tells the table what a connection asks.
struct Asked<S> {
    transport: Transport,
    service: TowerToHyperService<S>,
    place: Arc<Place>,
}

impl<S, B> Service<Request<Incoming>> for Asked<S>
where
    S: tower_service::Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>
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
        let asking = Arc::new(Asking {
            place: Arc::clone(&self.place),
            room: Mutex::default(),
        });
        if request.body().is_end_stream() {
            asking.answering();
        }
        let mut request = request.map(|body| RequestBody {
            body,
            asking: Arc::clone(&asking),
            bodies: PollSemaphore::new(Arc::clone(&self.place.table.bodies)),
            waiting: None,
            has_made_room: None,
        });
        request.extensions_mut().insert(self.transport);
        let answering = self.service.call(request);
        Box::pin(async move {
            let answer = answering.await?;
            asking.answering();
            Ok(answer.map(|body| Answer {
                body,
                _asking: asking,
            }))
        })
    }
}

/// The body of an answer.
struct Answer<B> {
    body: B,
    _asking: Arc<Asking>,
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
