//! Calls of a node's control API, over the connections that nodes take.

use std::marker::PhantomData;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_identity::{PeerId, Security};
use tandem_proto::limits::{CONNECT, MAX_LINE_BYTES, SILENCE};
use tandem_proto::{GenerateEvent, GenerateRequest, PrefillEvent, PrefillRequest};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A node, as a coordinator reaches it.
#[derive(Debug, Clone)]
pub struct Control {
    /// Where its control API listens.
    pub address: SocketAddr,
    /// How it is connected to.
    pub security: Security,
    /// Who it is; `None` without TLS.
    pub peer: Option<PeerId>,
}

impl Control {
    /// `POST /node/v1/generate`.
    ///
    /// # Errors
    /// If the node cannot be reached or refuses.
    pub async fn generate(
        &self,
        request: &GenerateRequest,
    ) -> anyhow::Result<Events<GenerateEvent>> {
        self.post("generate", request).await
    }

    /// `POST /node/v1/prefill`.
    ///
    /// # Errors
    /// If the node cannot be reached or refuses.
    pub async fn prefill(&self, request: &PrefillRequest) -> anyhow::Result<Events<PrefillEvent>> {
        self.post("prefill", request).await
    }

    async fn post<B: Serialize, E: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> anyhow::Result<Events<E>> {
        let address = self.address.to_string();
        let link = match &self.peer {
            Some(peer) => self.security.connect_to(&address, peer, CONNECT).await,
            None => self.security.connect(&address, CONNECT).await,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(link?)).await?;
        let connection = Connection(tokio::spawn(async move {
            // What goes wrong is told to whoever reads the answer.
            let _ = connection.await;
        }));
        let request = hyper::Request::post(format!("/node/v1/{path}"))
            .header(HOST, &address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?;
        let answer = timeout(SILENCE, sender.send_request(request)).await;
        let answer = answer.context("the node does not answer")??;
        let status = answer.status();
        if !status.is_success() {
            let reason = timeout(SILENCE, answer.into_body().collect()).await??;
            bail!(
                "the node refused {path} ({status}): {}",
                String::from_utf8_lossy(&reason.to_bytes())
            );
        }
        Ok(Events {
            body: answer.into_body(),
            buffer: BytesMut::new(),
            event: PhantomData,
            _connection: connection,
        })
    }
}

/// The task of a connection, which ends with it.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Events of a request. Dropping it ends the request.
pub struct Events<E> {
    body: Incoming,
    buffer: BytesMut,
    event: PhantomData<fn() -> E>,
    _connection: Connection,
}

impl<E: DeserializeOwned> Events<E> {
    /// The next event.
    ///
    /// # Errors
    /// If the stream ends, breaks, is silent for too long or holds something else.
    pub async fn next(&mut self) -> anyhow::Result<E> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(searched + at + 1);
                return Ok(serde_json::from_slice(&line)?);
            }
            searched = self.buffer.len();
            if searched > MAX_LINE_BYTES {
                bail!("the node sent a line longer than {MAX_LINE_BYTES} bytes");
            }
            let frame = timeout(SILENCE, self.body.frame()).await;
            let frame = frame.context("the node was silent")?;
            let frame = frame.context("the node ended the stream early")??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
