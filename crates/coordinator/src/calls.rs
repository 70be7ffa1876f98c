//! Calls to a node's control API.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tandem_proto::limits::MAX_LINE_BYTES;
use tandem_proto::{
    GenerateEvent, GenerateRequest, NodeError, NodeStatus, PROTOCOL_VERSION, PrefillEvent,
    PrefillFailed, PrefillRequest,
};

use crate::limits::{Limits, MAX_REFUSAL_BYTES, MAX_STATUS_BYTES};
use crate::lines::Lines;

/// Why a call to a node failed. Reads as the end of a sentence that begins with the node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("cannot be reached: {0}")]
    Connect(String),
    #[error("was silent for {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("{0}")]
    Broken(String),
    /// It answers, but it cannot be worked with.
    #[error("{0}")]
    Unusable(String),
    #[error("sent a line longer than {0} bytes")]
    LongLine(usize),
    #[error("refused: {0}")]
    Refused(NodeError),
    #[error(
        "speaks protocol {theirs} (tandem {version}) and this coordinator protocol {PROTOCOL_VERSION}; \
         install the same version of tandem on both"
    )]
    Protocol { theirs: u32, version: String },
}

impl CallError {
    /// The connection failed.
    pub(crate) fn broken(error: &reqwest::Error) -> Self {
        let cause = innermost(error);
        if error.is_connect() {
            return Self::Connect(cause);
        }
        Self::Broken(format!("broke the connection: {cause}"))
    }
}

/// The innermost cause says what happened; the outer ones only repeat the address.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The part of a status that all versions have.
#[derive(Deserialize)]
struct Version {
    protocol: u32,
    #[serde(default)]
    version: String,
}

/// Makes calls to nodes.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    http: reqwest::Client,
    limits: Limits,
}

impl Calls {
    pub(crate) fn new(limits: Limits) -> Result<Self, reqwest::Error> {
        // Nodes are named in the configuration; a proxy of the environment is not for them.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(limits.connect)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()?;
        Ok(Self { http, limits })
    }

    /// `GET /node/v1/status`, with everything checked that does not depend on a request.
    pub(crate) async fn status(&self, address: &str) -> Result<Box<NodeStatus>, CallError> {
        let read = async {
            let request = self.http.get(url(address, "status"));
            let answer = request.send().await.map_err(|e| CallError::broken(&e))?;
            let answer = accepted(answer).await?;
            body(answer, MAX_STATUS_BYTES).await
        };
        let read = tokio::time::timeout(self.limits.connect, read).await;
        let body = read.map_err(|_| CallError::Silent(self.limits.connect))??;
        let unreadable = |e: serde_json::Error| {
            CallError::Unusable(format!("answered with an unreadable status: {e}"))
        };
        let seen: Version = serde_json::from_slice(&body).map_err(unreadable)?;
        if seen.protocol != PROTOCOL_VERSION {
            let (theirs, version) = (seen.protocol, seen.version);
            return Err(CallError::Protocol { theirs, version });
        }
        let status: NodeStatus = serde_json::from_slice(&body).map_err(unreadable)?;
        for model in &status.models {
            let checked = model.contract.validate();
            checked.map_err(|e| CallError::Unusable(format!("holds `{}`: {e}", model.name)))?;
        }
        Ok(Box::new(status))
    }

    /// `POST /node/v1/generate`.
    pub(crate) async fn generate(
        &self,
        address: &str,
        request: &GenerateRequest,
    ) -> Result<Lines<GenerateEvent>, CallError> {
        self.stream(address, "generate", request).await
    }

    /// `POST /node/v1/prefill`.
    pub(crate) async fn prefill(
        &self,
        address: &str,
        request: &PrefillRequest,
    ) -> Result<Lines<PrefillEvent>, CallError> {
        self.stream(address, "prefill", request).await
    }

    /// `POST /node/v1/requests/{id}/prefill-failed`.
    pub(crate) async fn prefill_failed(
        &self,
        address: &str,
        request: &str,
        reason: &str,
    ) -> Result<(), CallError> {
        let body = PrefillFailed {
            reason: reason.to_owned(),
        };
        let path = format!("requests/{request}/prefill-failed");
        self.post(address, &path, &body).await.map(|_| ())
    }

    async fn stream<B: Serialize, T: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        body: &B,
    ) -> Result<Lines<T>, CallError> {
        let answer = self.post(address, path, body).await?;
        let stream = answer.bytes_stream();
        Ok(Lines::new(stream, MAX_LINE_BYTES, self.limits.silence))
    }

    async fn post<B: Serialize>(
        &self,
        address: &str,
        path: &str,
        body: &B,
    ) -> Result<reqwest::Response, CallError> {
        let sending = self.http.post(url(address, path)).json(body).send();
        let sent = tokio::time::timeout(self.limits.silence, sending).await;
        let answer = sent
            .map_err(|_| CallError::Silent(self.limits.silence))?
            .map_err(|e| CallError::broken(&e))?;
        let refusal = tokio::time::timeout(self.limits.silence, accepted(answer)).await;
        refusal.map_err(|_| CallError::Silent(self.limits.silence))?
    }
}

fn url(address: &str, path: &str) -> String {
    format!("http://{address}/node/v1/{path}")
}

/// The answer if it is a success, otherwise the refusal in it.
async fn accepted(answer: reqwest::Response) -> Result<reqwest::Response, CallError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = body(answer, MAX_REFUSAL_BYTES).await?;
    Err(match serde_json::from_slice(&body) {
        Ok(error) => CallError::Refused(error),
        Err(_) => CallError::Broken(format!("answered with status {status} and no reason")),
    })
}

async fn body(answer: reqwest::Response, limit: usize) -> Result<BytesMut, CallError> {
    let mut stream = answer.bytes_stream();
    let mut out = BytesMut::new();
    while let Some(bytes) = stream.next().await {
        out.extend_from_slice(&bytes.map_err(|e| CallError::broken(&e))?);
        if out.len() > limit {
            return Err(CallError::Broken(format!(
                "answered with more than {limit} bytes"
            )));
        }
    }
    Ok(out)
}
