//! The test of a link, and its other end.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use futures_util::StreamExt;
use tandem_proto::limits::MAX_BODY_BYTES;
use tandem_proto::{BytesRequest, ErrorCode, LinkReport, LinkRequest, NodeError};

use super::{Node, Refusal, check_asker, invalid, named_peer, parse};
use crate::link;

/// Tests the link to another node; one at a time, because two would test each other.
pub(super) async fn test(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Json<LinkReport>, Refusal> {
    let request: LinkRequest = parse(&body)?;
    let busy = || NodeError::new(ErrorCode::Busy, "another link is being tested");
    let _turn = node.testing.try_acquire().map_err(|_| busy())?;
    let peer = request.peer.as_deref();
    let peer = named_peer(&node, "peer", peer, "tests links to known machines only")?;
    let (security, connect) = (&node.config.security, node.config.limits.connect);
    let report = link::test(security, &request.to, peer.as_ref(), connect).await?;
    Ok(Json(report))
}

/// Takes bytes and drops them as they come.
pub(super) async fn sink(
    State(node): State<Arc<Node>>,
    request: Request,
) -> Result<StatusCode, Refusal> {
    check_asker(&node, request.headers())?;
    let mut bytes = request.into_body().into_data_stream();
    let taking = async {
        let mut come = 0;
        while let Some(part) = bytes.next().await {
            come += part
                .map_err(|e| invalid(format!("request body: {e}")))?
                .len();
            if come > MAX_BODY_BYTES {
                let most = format!("request body: at most {MAX_BODY_BYTES} bytes");
                return Err(invalid(most));
            }
        }
        Ok(())
    };
    let limit = node.config.limits.body;
    let late = || invalid(format!("the request body did not come within {limit:?}"));
    tokio::time::timeout(limit, taking)
        .await
        .map_err(|_| late())??;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives as many bytes as are asked for.
pub(super) async fn source(body: Bytes) -> Result<Bytes, Refusal> {
    let BytesRequest { bytes } = parse(&body)?;
    if bytes > MAX_BODY_BYTES {
        return Err(invalid(format!("`bytes` is {bytes}; at most {MAX_BODY_BYTES}")).into());
    }
    Ok(Bytes::from(vec![0; bytes]))
}
