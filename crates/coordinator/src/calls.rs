//! Calls to a node's control API.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tandem_cluster::{PeerId, Security};
use tandem_proto::limits::MAX_LINE_BYTES;
use tandem_proto::{
    GenerateEvent, GenerateRequest, HandoffFailed, LinkReport, LinkRequest, NodeStatus,
    PROTOCOL_VERSION, PrefillEvent, PrefillRequest, TokenizeRequest, Tokenized,
};

use crate::connect::Connector;
use crate::error::CallError;
use crate::limits::{
    IDLE_CONNECTION, Limits, MAX_REFUSAL_BYTES, MAX_STATUS_BYTES, MAX_TOKENIZED_BYTES,
};
use crate::lines::Lines;

/// The part of a status that all versions have.
#[derive(Deserialize)]
struct Version {
    protocol: u32,
    #[serde(default)]
    version: String,
}

/// Makes calls to nodes, over connections that are kept for the next ones. A node must have told its status
/// before it is asked for anything else.
#[derive(Clone)]
pub struct Calls {
    http: Client<Connector, Full<Bytes>>,
    /// Which machine the node at each address has proved to be, as of its last status.
    peers: Arc<Mutex<HashMap<String, PeerId>>>,
    limits: Limits,
}

impl Calls {
    /// `expected` holds machines that must be at some addresses.
    #[must_use]
    pub fn new(security: Security, expected: HashMap<String, PeerId>, limits: Limits) -> Self {
        let connector = Connector::new(security, expected, limits.connect);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .build(connector);
        Self {
            http,
            peers: Arc::default(),
            limits,
        }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<String, PeerId>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which machine the node at this address is, if it has told its status over TLS.
    pub(crate) fn peer(&self, address: &str) -> Option<PeerId> {
        self.peers().get(address).cloned()
    }

    /// `GET /node/v1/status`, with everything checked that does not depend on a request.
    ///
    /// # Errors
    /// If the node does not answer, or cannot be worked with.
    pub async fn status(&self, address: &str) -> Result<Box<NodeStatus>, CallError> {
        let read = async {
            let answer = self
                .send(address, "status", Method::GET, Bytes::new())
                .await?;
            let answer = accepted(answer).await?;
            let peer = answer.extensions().get::<PeerId>().cloned();
            Ok((peer, body(answer, MAX_STATUS_BYTES).await?))
        };
        let read = tokio::time::timeout(self.limits.connect, read).await;
        let (peer, body) = read.map_err(|_| CallError::Silent(self.limits.connect))??;
        let unreadable = |e: serde_json::Error| {
            CallError::Unusable(format!("answered with an unreadable status: {e}"))
        };
        let seen: Version = serde_json::from_slice(&body).map_err(unreadable)?;
        if seen.protocol != PROTOCOL_VERSION {
            let (theirs, version) = (seen.protocol, seen.version);
            return Err(CallError::Protocol { theirs, version });
        }
        let status: NodeStatus = serde_json::from_slice(&body).map_err(unreadable)?;
        self.learn(address, peer, status.identity.as_deref())?;
        for model in &status.models {
            let checked = model.contract.validate();
            checked.map_err(|e| CallError::Unusable(format!("holds `{}`: {e}", model.name)))?;
        }
        Ok(Box::new(status))
    }

    /// Keeps which machine a node is. What it says must be what it has proved.
    fn learn(
        &self,
        address: &str,
        peer: Option<PeerId>,
        told: Option<&str>,
    ) -> Result<(), CallError> {
        if told != peer.as_ref().map(PeerId::as_str) {
            return Err(CallError::Unusable(
                "says that it is another machine than its certificate does".to_owned(),
            ));
        }
        match peer {
            Some(peer) => self.peers().insert(address.to_owned(), peer),
            None => self.peers().remove(address),
        };
        Ok(())
    }

    /// `POST /node/v1/tokenize`.
    ///
    /// # Errors
    /// If the node does not answer or refuses.
    pub(crate) async fn tokenize(
        &self,
        address: &str,
        request: &TokenizeRequest,
    ) -> Result<Tokenized, CallError> {
        self.whole(address, "tokenize", request).await
    }

    /// `POST /node/v1/link`: tests the link from a node to another one.
    ///
    /// # Errors
    /// If the node does not answer or refuses, or the other one cannot be reached from there.
    pub async fn link(
        &self,
        address: &str,
        request: &LinkRequest,
    ) -> Result<LinkReport, CallError> {
        self.whole(address, "link", request).await
    }

    /// `POST /node/v1/generate`.
    ///
    /// # Errors
    /// If the node does not answer or refuses.
    pub async fn generate(
        &self,
        address: &str,
        request: &GenerateRequest,
    ) -> Result<Lines<GenerateEvent>, CallError> {
        self.stream(address, "generate", request).await
    }

    /// `POST /node/v1/prefill`.
    ///
    /// # Errors
    /// If the node does not answer or refuses.
    pub async fn prefill(
        &self,
        address: &str,
        request: &PrefillRequest,
    ) -> Result<Lines<PrefillEvent>, CallError> {
        self.stream(address, "prefill", request).await
    }

    /// `POST /node/v1/requests/{id}/prefill-failed`.
    pub(crate) async fn failed(
        &self,
        address: &str,
        request: &str,
        reason: &str,
    ) -> Result<(), CallError> {
        let body = HandoffFailed {
            reason: reason.to_owned(),
        };
        let path = format!("requests/{request}/prefill-failed");
        self.post(address, &path, &body).await.map(|_| ())
    }

    /// An answer that is one object.
    async fn whole<B: Serialize, T: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        request: &B,
    ) -> Result<T, CallError> {
        let answer = self.post(address, path, request).await?;
        let reading = body(answer, MAX_TOKENIZED_BYTES);
        let read = tokio::time::timeout(self.limits.silence, reading).await;
        let body = read.map_err(|_| CallError::Silent(self.limits.silence))??;
        let unreadable = |e: serde_json::Error| CallError::Odd(format!("answered: {e}"));
        serde_json::from_slice(&body).map_err(unreadable)
    }

    async fn stream<B: Serialize, T: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        body: &B,
    ) -> Result<Lines<T>, CallError> {
        let answer = self.post(address, path, body).await?;
        let stream = answer.into_body().into_data_stream();
        Ok(Lines::new(stream, MAX_LINE_BYTES, self.limits.silence))
    }

    async fn post<B: Serialize>(
        &self,
        address: &str,
        path: &str,
        body: &B,
    ) -> Result<Response<Incoming>, CallError> {
        let unsendable = |e: serde_json::Error| CallError::Odd(format!("was not asked: {e}"));
        let body = Bytes::from(serde_json::to_vec(body).map_err(unsendable)?);
        let sending = self.send(address, path, Method::POST, body);
        let sent = tokio::time::timeout(self.limits.silence, sending).await;
        let answer = sent.map_err(|_| CallError::Silent(self.limits.silence))??;
        // Since its last status another machine may have taken the address.
        if answer.extensions().get::<PeerId>() != self.peer(address).as_ref() {
            return Err(CallError::Odd("has become another machine".to_owned()));
        }
        let refusal = tokio::time::timeout(self.limits.silence, accepted(answer)).await;
        refusal.map_err(|_| CallError::Silent(self.limits.silence))?
    }

    /// Sends a request to a node; its answer has begun.
    async fn send(
        &self,
        address: &str,
        path: &str,
        method: Method,
        body: Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let malformed = |e: hyper::http::Error| CallError::Connect(e.to_string());
        let uri = Uri::builder()
            // Whether there is TLS below is the connector's business.
            .scheme("http")
            .authority(address)
            .path_and_query(format!("/node/v1/{path}"))
            .build()
            .map_err(malformed)?;
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(malformed)?;
        let sent = self.http.request(request).await;
        sent.map_err(|e| CallError::failed(&e))
    }
}

/// The answer if it is a success, otherwise the refusal in it.
async fn accepted(answer: Response<Incoming>) -> Result<Response<Incoming>, CallError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = body(answer, MAX_REFUSAL_BYTES).await?;
    Err(match serde_json::from_slice(&body) {
        Ok(error) => CallError::Refused(error),
        Err(_) => CallError::Odd(format!("answered with status {status} and no reason")),
    })
}

async fn body(answer: Response<Incoming>, limit: usize) -> Result<BytesMut, CallError> {
    let mut body = answer.into_body();
    let mut out = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing here.
        let bytes = frame.map_err(|e| CallError::broken(&e))?.into_data();
        out.extend_from_slice(&bytes.unwrap_or_default());
        if out.len() > limit {
            return Err(CallError::Broken(format!(
                "answered with more than {limit} bytes"
            )));
        }
    }
    Ok(out)
}
