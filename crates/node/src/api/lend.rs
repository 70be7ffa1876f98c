//! `POST /node/v1/lend`: what is here of a prompt is sent to the node that prefills it.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use tandem_kv::sender::Offer;
use tandem_proto::{ErrorCode, HandoffFailed, NodeError, PrefillEvent, PrefillRequest};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::prefill::{answer, checked};
use super::{Node, Refusal, can_be_lent, invalid, parse};
use crate::held::{Keep, Pieces};
use crate::lend::read;
use crate::limits::{MAX_CHUNKS_WAITING, MAX_EVENTS};
use crate::model::Model;
use crate::send::transmit;

pub(super) async fn lend(State(node): State<Arc<Node>>, body: Bytes) -> Result<Response, Refusal> {
    let request: PrefillRequest = parse(&body)?;
    let (model, peer) = checked(&node, &request)?;
    can_be_lent(&request.terms)?;
    let terms = request.terms.handing_back();
    let prompt = &request.tokens[..request.tokens.len() - 1];
    let kv_end = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let batches = model.batches(kv_end, request.chunk);
    let keep = Keep::new(&node.pages, &model.contract, &terms, batches);
    let pieces = keep.pieces(prompt, node.config.limits.page_read);
    let pieces = pieces.ok_or_else(|| {
        let nothing = "this node has nothing of the prompt";
        NodeError::new(ErrorCode::Refused, nothing)
    })?;
    let place = Arc::clone(&node.handing_back).try_acquire_owned();
    let place = place
        .map_err(|_| NodeError::new(ErrorCode::Busy, "this node lends to too many others now"))?;
    let offer = offer(&model, &request, &keep, &pieces);
    let route = node.route(request.target, peer, &terms);
    let (limit, stall) = (node.config.limits.hand_back, node.config.limits.event_stall);
    let (chunks, input) = mpsc::channel(MAX_CHUNKS_WAITING);
    tokio::spawn(read(keep, pieces, chunks));
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    tokio::spawn(async move {
        let _place = place;
        let sending = timeout(limit, transmit(offer, route, input, events.clone(), None));
        let late = |_| Err(NodeError::new(ErrorCode::Handoff, "it takes too long"));
        let last = match sending.await.unwrap_or_else(late) {
            Ok(report) => PrefillEvent::from(report),
            Err(error) => PrefillEvent::Failed(error),
        };
        // The coordinator may have gone; then nobody needs the event.
        let _ = timeout(stall, events.send(last)).await;
    });
    Ok(answer(None, receiver, (), node.config.limits.beat))
}

/// What is here of a prompt.
fn offer(model: &Model, request: &PrefillRequest, keep: &Keep, pieces: &Pieces) -> Offer {
    let end = pieces.tokens();
    Offer {
        contract: Arc::clone(&model.contract),
        handoff: request.handoff,
        ticket: request.ticket.clone(),
        tokens: request.tokens.clone(),
        continuation: 0,
        kv_end: end,
        pages: keep.chain(&request.tokens[..end as usize]),
        step_bytes: 0,
        exact_end: 0,
    }
}

pub(super) async fn lend_failed(
    State(node): State<Arc<Node>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let failed: HandoffFailed = parse(&body)?;
    if !node.borrowers.fail(&id) {
        return Err(invalid(format!("no request `{id}` waits for a loan here")).into());
    }
    tracing::info!(request = %id, reason = %failed.reason, "nothing is lent");
    Ok(StatusCode::NO_CONTENT)
}
