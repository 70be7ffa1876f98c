//! The KV of a request whose answer is complete. That of prompt and answer is kept for the next turn of a conversation:
//! as pages of this node, and handed back to the node that prefilled the prompt. Where nothing goes on from the answer,
//! pages of the prompt alone are kept, for others that begin alike.

use std::sync::Arc;

use tandem_engine::Token;
use tandem_handoff::Section;
use tandem_handoff::codec::Codec;
use tandem_handoff::sender::Offer;
use tandem_proto::{ErrorCode, HandoffTerms, NodeError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::limits::{HAND_BACK_STALL, MAX_CHUNKS_WAITING};
use crate::link_estimate::Report;
use crate::model::Model;
use crate::node::Node;
use crate::prefix_cache::{Keep, Pieces, Tail, keep_block};
use crate::sequence::{Command, Computed, Input, Origin, Retired, SequenceId};
use crate::tickets::HandBack;
use crate::transfer::send::transmit;

/// What is needed to keep an answer, or its prompt.
pub struct Keeping {
    /// This node.
    pub node: Arc<Node>,
    /// The model.
    pub model: Arc<Model>,
    /// Its pages.
    pub keep: Keep,
    /// Codec of the way back.
    pub terms: HandoffTerms,
    /// Of the prompt.
    pub prompt: Vec<Token>,
    /// Comes when the answer is complete; closed if it never will be.
    pub retired: oneshot::Receiver<Retired>,
    /// Comes with the receipt, if the prefill node takes the answer.
    pub hand_back: oneshot::Receiver<HandBack>,
}

impl Keeping {
    /// Waits for the answer, keeps its KV, and hands it back. If there is nothing to keep, the permission to
    /// hand it back is used up all the same: the other node need not wait until it expires.
    pub async fn run(mut self) {
        let Ok(retired) = (&mut self.retired).await else {
            // Nothing waits for it but this, and it comes with the receipt or ends with the handoff.
            if let Ok(back) = (&mut self.hand_back).await {
                let (_, nothing) = mpsc::channel(1);
                if let Err(error) = self.hand(back, &self.prompt, 0, nothing).await {
                    tracing::debug!(%error, "a permission to hand back is given up");
                }
            }
            return;
        };
        let patience = self.node.config.limits.receipt;
        let hand_back = timeout(patience, &mut self.hand_back).await;
        let hand_back = hand_back.ok().and_then(Result::ok);
        let tokens: Arc<[u32]> = retired.tokens.into();
        let (forward, input) = mpsc::channel(MAX_CHUNKS_WAITING);
        let sending =
            hand_back.map(|back| tokio::spawn(self.hand(back, &tokens, retired.generated, input)));
        let forward = sending.is_some().then_some(forward);
        let keep = match retired.is_own {
            true => self.keep,
            false => self.keep.behind_all(),
        };
        store(&self.model, retired.chunks, &keep, &tokens, forward).await;
        match sending {
            None => {}
            Some(sending) => match sending.await {
                Ok(Ok(report)) => {
                    tracing::debug!(
                        bytes = report.raw_bytes,
                        "the KV of an answer was handed back"
                    );
                }
                Ok(Err(error)) => tracing::info!(%error, "the KV of an answer was not handed back"),
                Err(error) => tracing::error!(%error, "handing back ended"),
            },
        }
    }

    /// Hands KV back, of `generated` tokens behind the prompt. The other end has the pages of the prompt
    /// itself.
    fn hand(
        &self,
        back: HandBack,
        tokens: &[Token],
        generated: u32,
        input: mpsc::Receiver<Input>,
    ) -> impl Future<Output = Result<Report, NodeError>> + Send + 'static {
        let all = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let offer = Offer {
            contract: Arc::clone(&self.model.contract),
            handoff: back.ticket.handoff,
            ticket: back.ticket.ticket,
            tokens: tokens.to_vec(),
            continuation: generated,
            kv_end: all,
            pages: self.keep.chain(tokens),
            step_bytes: 0,
            exact_end: 0,
        };
        let target = std::net::SocketAddr::new(back.from, back.ticket.port).to_string();
        let route = self.node.route(target, back.peer, &self.terms);
        // To give a permission up takes a moment and no memory.
        let place =
            (generated > 0).then(|| Arc::clone(&self.node.handing_back).try_acquire_owned());
        let limit = self.node.config.limits.hand_back;
        async move {
            let place = place.transpose();
            let _place = place.map_err(|_| not_handed_back("too many others are"))?;
            // It has no coordinator that could go.
            let (events, _listens) = mpsc::channel(1);
            let sending = timeout(limit, transmit(offer, route, input, events, None)).await;
            sending.unwrap_or_else(|_| Err(not_handed_back("it takes too long")))
        }
    }
}

fn not_handed_back(reason: &str) -> NodeError {
    NodeError::new(ErrorCode::Busy, reason)
}

/// Keeps blocks as pages, and passes them on.
async fn store(
    model: &Model,
    mut chunks: mpsc::Receiver<Input>,
    keep: &Keep,
    tokens: &Arc<[u32]>,
    mut forward: Option<mpsc::Sender<Input>>,
) {
    let mut tail = Tail::default();
    while let Some(Input::Chunk(chunk)) = chunks.recv().await {
        // The engine may have paused for want of room; a full queue wakes it anyway.
        let _ = model.command(Command::Wake);
        for block in chunk.to_keep() {
            let before = tail.then(block, Codec::Raw);
            keep_block(keep, tokens, block, Codec::Raw, before).await;
        }
        // Without its end nobody keeps it.
        forward = forward.filter(|_| !keep.is_discredited());
        let Some(to) = &forward else { continue };
        // The sequence keeps its place in the engine until it is handed out.
        let sent = timeout(HAND_BACK_STALL, to.send(Input::Chunk(chunk))).await;
        if !matches!(sent, Ok(Ok(()))) {
            forward = None;
        }
    }
}

/// Whom a request shares KV with in the engine; `None`: nobody.
#[must_use]
pub fn shared_by(terms: &HandoffTerms) -> Option<Arc<str>> {
    (terms.reuse && !terms.reproducible).then(|| terms.salt.as_str().into())
}

/// Puts pages of this node into a sequence, and passes them on to whoever sends them.
pub async fn seed(
    model: Arc<Model>,
    sequence: SequenceId,
    mut pieces: Pieces,
    forward: Option<mpsc::Sender<Input>>,
) {
    let exact = pieces.is_exact();
    'pages: loop {
        let blocks = match pieces.next().await {
            Ok(blocks) => blocks,
            Err(reason) => {
                tracing::warn!(%reason, "pages cannot be read; computing instead");
                break;
            }
        };
        if blocks.is_empty() {
            break;
        }
        for block in blocks {
            let block = Arc::new(block);
            let applied = model
                .apply(sequence, Origin::Pages, Arc::clone(&block))
                .await;
            if let Err(reason) = applied {
                tracing::warn!(%reason, "pages cannot be used; computing instead");
                break 'pages;
            }
            if let (Section::Full, Some(forward)) = (block.section, &forward) {
                let chunk = Computed {
                    tokens: block.tokens.end,
                    blocks: vec![block],
                    window: None,
                    computed: std::time::Instant::now(),
                    prefill_ms: 0.0,
                    computed_tokens: 0,
                    last: false,
                    receipt_follows: false,
                };
                if forward.send(Input::Chunk(chunk)).await.is_err() {
                    break 'pages;
                }
            }
        }
    }
    // The sender must not wait for this end of the channel.
    drop(forward);
    model.deliver(Command::Seeded(sequence, exact)).await;
}
