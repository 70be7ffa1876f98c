//! A test of the link to another node: how many bytes pass in each direction, and how long an answer takes.
//!
//! It goes over one connection to the other node's control API, encrypted as all others are.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tandem_cluster::{PeerId, Security};
use tandem_proto::{BytesRequest, ErrorCode, LinkReport, NodeError};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// How long bytes pass in each direction.
const LENGTH: Duration = Duration::from_secs(1);
/// Bytes of the first request, and of the largest.
const FIRST: usize = 256 << 10;
const LARGEST: usize = 16 << 20;
/// A request that takes less is followed by a larger one.
const SHORT: Duration = Duration::from_millis(50);
/// Requests of one byte whose time is taken.
const ROUND_TRIPS: u32 = 20;
/// A test takes no longer: less than the silence that ends a call.
const LIMIT: Duration = Duration::from_secs(12);
/// Bytes of the headers of IP and TCP, with the time stamps that systems send.
const HEADERS_V4: u32 = 52;
const HEADERS_V6: u32 = 72;

/// Tests the link from this machine to a node, which must be this peer if one is given.
///
/// # Errors
/// If the node cannot be reached, does not answer as a node does, or takes too long.
pub async fn test(
    security: &Security,
    to: &str,
    peer: Option<&PeerId>,
    connect: Duration,
) -> Result<LinkReport, NodeError> {
    let testing = async {
        let mut other = Other::connect(security, to, peer, connect).await?;
        let mut round_trip = Duration::MAX;
        for _ in 0..ROUND_TRIPS {
            let began = Instant::now();
            other.fetch(1).await?;
            round_trip = round_trip.min(began.elapsed());
        }
        let zeros = Bytes::from(vec![0; LARGEST]);
        let mut there = Passed::new();
        while there.goes_on() {
            let part = zeros.slice(..there.part);
            // The answer has no body.
            let _answer = other.post("/node/v1/link/sink", part).await?;
            there.pass();
        }
        let mut back = Passed::new();
        while back.goes_on() {
            other.fetch(back.part).await?;
            back.pass();
        }
        Ok(LinkReport {
            there: there.per_second(),
            back: back.per_second(),
            round_trip_ms: round_trip.as_secs_f64() * 1e3,
            mtu: other.mtu,
        })
    };
    let late = || failed(to, &format!("the test took more than {LIMIT:?}"));
    timeout(LIMIT, testing).await.map_err(|_| late())?
}

fn failed(to: &str, why: &str) -> NodeError {
    NodeError::new(ErrorCode::Handoff, format!("the link to {to}: {why}"))
}

/// Bytes that have passed in one direction.
struct Passed {
    began: Instant,
    /// When the last request was over.
    last: Instant,
    bytes: usize,
    /// Bytes of the next request.
    part: usize,
}

impl Passed {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            last: now,
            bytes: 0,
            part: FIRST,
        }
    }

    fn goes_on(&self) -> bool {
        self.began.elapsed() < LENGTH
    }

    /// A request of this size is over.
    fn pass(&mut self) {
        self.bytes += self.part;
        if self.last.elapsed() < SHORT {
            self.part = (self.part * 2).min(LARGEST);
        }
        self.last = Instant::now();
    }

    fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = self.bytes as f64;
        bytes / (self.last - self.began).as_secs_f64().max(1e-9)
    }
}

/// A connection to the other node.
struct Other {
    to: String,
    send: SendRequest<Full<Bytes>>,
    mtu: Option<u32>,
    task: AbortHandle,
}

impl Drop for Other {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Other {
    async fn connect(
        security: &Security,
        to: &str,
        peer: Option<&PeerId>,
        limit: Duration,
    ) -> Result<Self, NodeError> {
        let link = match peer {
            Some(peer) => security.connect_to(to, peer, limit).await,
            None => security.connect(to, limit).await,
        };
        let link = link.map_err(|e| failed(to, &e.to_string()))?;
        let headers = match link.peer_addr() {
            Ok(address) if address.is_ipv6() => HEADERS_V6,
            _ => HEADERS_V4,
        };
        let segment = link.segment_bytes();
        let (send, connection) = handshake(TokioIo::new(link))
            .await
            .map_err(|e| failed(to, &e.to_string()))?;
        let task = tokio::spawn(async move {
            // Its end is that of the request, which says why.
            let _ = connection.await;
        });
        Ok(Self {
            to: to.to_owned(),
            send,
            mtu: segment.map(|segment| segment + headers),
            task: task.abort_handle(),
        })
    }

    /// Fetches so many bytes.
    async fn fetch(&mut self, bytes: usize) -> Result<(), NodeError> {
        let request = serde_json::to_vec(&BytesRequest { bytes });
        let request = request.map_err(|e| failed(&self.to, &e.to_string()))?;
        let mut body = self.post("/node/v1/link/source", request.into()).await?;
        let mut come = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| failed(&self.to, &e.to_string()))?;
            come += frame.data_ref().map_or(0, Bytes::len);
        }
        match come == bytes {
            true => Ok(()),
            false => Err(failed(&self.to, &format!("{come} of {bytes} bytes came"))),
        }
    }

    async fn post(&mut self, path: &str, body: Bytes) -> Result<Incoming, NodeError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, &self.to)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| failed(&self.to, &e.to_string()))?;
        let sending = async {
            self.send.ready().await?;
            self.send.send_request(request).await
        };
        let answer = sending
            .await
            .map_err(|e| failed(&self.to, &e.to_string()))?;
        match answer.status().is_success() {
            true => Ok(answer.into_body()),
            false => Err(failed(
                &self.to,
                &format!(
                    "it answers with {}; is it a node of this version?",
                    answer.status()
                ),
            )),
        }
    }
}
