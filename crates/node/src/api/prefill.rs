//! `POST /node/v1/prefill`: a prompt that is computed here and sent to another node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use tandem_cluster::PeerId;
use tandem_engine::Token;
use tandem_handoff::receipt::ReturnTicket;
use tandem_handoff::receiver::{Covers, Expectation};
use tandem_handoff::segment::step_bytes;
use tandem_handoff::sender::Offer;
use tandem_proto::{ErrorCode, NodeError, PrefillEvent, PrefillRequest};
use tokio::sync::{mpsc, oneshot};

use super::{Node, Refusal, check_chunk, event_stream, invalid, named_peer, parse};
use crate::conversation::{seed, shared_by};
use crate::limits::{MAX_CHUNKS_WAITING, MAX_EVENTS};
use crate::model::Model;
use crate::prefix_cache::{Keep, Pieces};
use crate::sequence::{
    Admission, Command, Input, PagesHere, PrefillSequence, SequenceId, SequencePrompt,
};
use crate::tickets::{Permitted, Target, handoff_id};
use crate::transfer::send::{Kept, Sending, send_kv};

pub(super) async fn prefill(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: PrefillRequest = parse(&body)?;
    if !node.config.role.prefills() {
        return Err(NodeError::new(ErrorCode::WrongRole, "this node only decodes").into());
    }
    let (model, peer) = checked(&node, &request)?;
    let terms = request.terms.clone();
    let kv_end = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX) - 1;
    let tokens: Arc<[u32]> = request.tokens[..kv_end as usize].into();
    let chunking = model.chunking(kv_end, request.chunk);
    let keep = Keep::new(&node.pages, &model.contract, &terms, chunking);
    // One more than may wait, for what follows the last chunk.
    let (chunks, computed) = mpsc::channel(MAX_CHUNKS_WAITING + 1);
    let admission = admitted(&node, &model, &request).await?;
    let id = admission.sequence;
    let hand_back = match terms.keeps_answer() {
        true => return_ticket(&node, &model, &request, &keep, peer.as_ref()),
        false => None,
    };
    let back = hand_back.as_ref().map(|b| b.ticket.clone());
    // With the pages that are here now.
    let pieces = keep.pieces(&tokens, node.config.limits.page_read);
    let sequence = PrefillSequence {
        prompt: SequencePrompt {
            request: request.request.clone(),
            tokens: request.tokens.clone(),
            chunk: request.chunk,
            pages: pieces.map(|pieces| pages(&model, id, pieces, chunks.clone())),
            salt: shared_by(&terms),
            reproducible: terms.reproducible,
        },
        by_layer: request.terms.overlap,
        hand_back,
        chunks,
    };
    let beat = node.config.limits.beat;
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let offer = offer(&model, &request, &keep, &tokens);
    if let Err(error) = model.command(Command::Prefill(admission, Box::new(sequence))) {
        // Nobody will hear of the permission.
        back.inspect(|secret| drop(node.tickets.revoke(secret)));
        return Err(error.into());
    }
    let route = node.route(request.target.clone(), peer, &terms);
    let sending = Sending {
        request: request.request.clone(),
        model: Arc::clone(&model),
        sequence: id,
        kept: Kept::new(keep, tokens),
    };
    tokio::spawn(async move {
        let has_told = send_kv(sending, offer, route, computed, events).await;
        // Without a receipt nobody has heard of the permission.
        if let Some(secret) = back.filter(|_| !has_told) {
            node.tickets.revoke(&secret);
        }
    });
    let guard = PumpGuard {
        model,
        sequence: id,
    };
    Ok(answer(receiver, guard, beat))
}

/// Pages that are put into a sequence, and sent, when it asks for them.
fn pages(
    model: &Arc<Model>,
    sequence: SequenceId,
    pieces: Pieces,
    forward: mpsc::Sender<Input>,
) -> PagesHere {
    let (ask, asked) = oneshot::channel();
    let tokens = Some(pieces.tokens());
    let model = Arc::clone(model);
    tokio::spawn(async move {
        if asked.await.is_ok() {
            seed(model, sequence, pieces, Some(forward)).await;
        }
    });
    PagesHere { tokens, ask }
}

/// A place in the engine; all of them for a reproducible request.
async fn admitted(
    node: &Node,
    model: &Model,
    request: &PrefillRequest,
) -> Result<Admission, NodeError> {
    if !request.terms.reproducible {
        return model.admit_soon().await;
    }
    if node.running.get(&request.request).is_some() {
        let itself = "a reproducible request runs alone, so its own node cannot prefill for it";
        return Err(NodeError::new(ErrorCode::Busy, itself));
    }
    // Longer than that the decode node does not wait either.
    model.admit_alone(node.config.limits.handoff_silence).await
}

/// What is sent: the KV of `tokens`, all of the request's but the last.
fn offer(model: &Model, request: &PrefillRequest, keep: &Keep, tokens: &[Token]) -> Offer {
    let kv_end = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Offer {
        contract: Arc::clone(&model.contract),
        handoff: request.handoff,
        ticket: request.ticket.clone(),
        // Rows of another quantisation have no names that both ends agree on.
        pages: match request.terms.mixed_quantisation {
            true => Vec::new(),
            false => keep.chain(tokens),
        },
        tokens: request.tokens.clone(),
        continuation: 0,
        kv_end,
        step_bytes: match model.gives_layers && request.terms.overlap {
            true => step_bytes(&model.contract, kv_end, request.chunk),
            false => 0,
        },
        exact_end: model.chunking(kv_end, request.chunk).complete(),
    }
}

fn answer(events: mpsc::Receiver<PrefillEvent>, guard: PumpGuard, beat: Duration) -> Response {
    let is_last =
        |e: &PrefillEvent| matches!(e, PrefillEvent::Done { .. } | PrefillEvent::Failed(_));
    event_stream(None, events, guard, beat, PrefillEvent::Beat, is_last)
}

/// The model that a request is for, and the machine that KV may be sent to.
fn checked(
    node: &Node,
    request: &PrefillRequest,
) -> Result<(Arc<Model>, Option<PeerId>), NodeError> {
    node.takes_work()?;
    tandem_proto::generate::check_request_id(&request.request)?;
    let model = Arc::clone(node.model(&request.model)?);
    model.check_handed_over()?;
    if request.chunk == 0 {
        return Err(invalid("`chunk` is 0"));
    }
    check_chunk(&model, request.chunk)?;
    check_prefill_tokens(&model, &request.tokens)?;
    let why = "sends KV only to a machine that it is told";
    let peer = named_peer(node, "target_peer", request.target_peer.as_deref(), why)?;
    Ok((model, peer))
}

/// The permission for the decode node to hand the KV of its answer back; `None` if there are too many, or if nothing is
/// kept here.
fn return_ticket(
    node: &Arc<Node>,
    model: &Arc<Model>,
    request: &PrefillRequest,
    keep: &Keep,
    peer: Option<&PeerId>,
) -> Option<ReturnTicket> {
    if !node.config.pages.keeps_any() {
        return None;
    }
    let place = Arc::clone(&node.returns).try_acquire_owned().ok()?;
    let good_for = node.config.limits.return_ticket;
    let handoff = handoff_id(0);
    let permitted = Permitted {
        request: request.request.clone(),
        target: Target::Pages {
            until: Instant::now() + good_for,
            place: Some(Arc::new(place)),
        },
        expectation: Expectation {
            contract: Arc::clone(&model.contract),
            handoff,
            tokens: request.tokens.clone(),
            kv_end: u32::try_from(request.tokens.len()).unwrap_or(u32::MAX) - 1,
            covers: Covers::Beyond,
            quality: request.terms.handing_back().quality,
            mixed_quantisation: false,
        },
        // Good when all of it has come, or as much as will.
        keep: keep.behind_all(),
        peer: peer.cloned(),
    };
    let ticket = node.tickets.issue(permitted, good_for);
    let port = node.return_port;
    Some(ReturnTicket {
        ticket,
        handoff,
        port,
    })
}

fn check_prefill_tokens(model: &Model, tokens: &[Token]) -> Result<(), NodeError> {
    let context = model.capacity.tokens_per_sequence;
    if tokens.len() < 2 {
        return Err(invalid(
            "`tokens`: there is nothing to prefill before the last token",
        ));
    }
    if tokens.len() > context as usize {
        return Err(NodeError::new(
            ErrorCode::ContextLength,
            format!(
                "the prompt has {} tokens; this node was started with a context of {context}",
                tokens.len()
            ),
        ));
    }
    if let Some(token) = tokens.iter().find(|t| **t >= model.tokenizer.len()) {
        return Err(invalid(format!(
            "`tokens`: {token} is not in the vocabulary"
        )));
    }
    Ok(())
}

/// Stops a prefill when the coordinator has gone. The pump finds that out by itself, and tells the
/// decode node.
struct PumpGuard {
    model: Arc<Model>,
    sequence: SequenceId,
}

impl Drop for PumpGuard {
    fn drop(&mut self) {
        let _ = self.model.command(Command::Cancel(self.sequence));
    }
}
