//! What the loop knows of each sequence, and what it can do for it next.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::generation::Generation;
use tandem_engine::{Sequence, Token};
use tandem_handoff::KvBlock;
use tandem_handoff::codec::Codec;
use tandem_handoff::receipt::ReturnTicket;
use tandem_proto::{GenerateEvent, ParityReport, Phase, PrefillSummary};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::milliseconds;
use super::slices::{CopyOut, FullOut, Taking, Window};
use crate::chunking::Chunking;
use crate::prefix_cache::Keep;
use crate::sequence::{
    Admission, Computed, Input, Origin, PagesHere, Parity, Retired, SequenceId, Told,
};

/// A block to take in, and who waits for that.
pub(super) struct Apply {
    pub(super) id: SequenceId,
    pub(super) origin: Origin,
    pub(super) taking: Taking,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

pub(super) struct ActiveSequence {
    pub(super) request: String,
    pub(super) place: Sequence,
    pub(super) tokens: Vec<Token>,
    pub(super) chunk: u32,
    pub(super) prefill_ms: f64,
    pub(super) computed_tokens: u32,
    pub(super) work: Work,
    /// Whom it shares KV with.
    pub(super) salt: Option<Arc<str>>,
    /// True if it runs alone, and its prompt is computed in fixed shapes.
    pub(super) reproducible: bool,
    /// Where its window is copied while its prompt is read, in order.
    pub(super) cuts: Vec<u32>,
    /// True if its rows may be wrong.
    pub(super) is_doubtful: bool,
    /// Frees the place when this is dropped, after the engine has released it; none if its request has ended.
    pub(super) admission: Option<Admission>,
}

pub(super) enum Work {
    /// Computes KV for another node.
    Export(Box<Export>),
    /// Generates for a coordinator.
    Generate(Box<Generating>),
    /// Has generated; hands out its KV.
    Retire {
        chunks: mpsc::Sender<Input>,
        /// What is left of the full layers.
        full: FullOut,
        end: u32,
        /// The window, which is handed out when all full blocks are, and its blocks so far.
        window: Option<(CopyOut, Vec<Arc<KvBlock>>)>,
    },
}

pub(super) struct Export {
    pub(super) stage: ExportStage,
    /// The window, until all of it has been handed out.
    pub(super) window: Option<CopyOut>,
    pub(super) chunks: mpsc::Sender<Input>,
    /// Who waits for the chunk that has been begun.
    pub(super) begun: Option<oneshot::Sender<Computed>>,
    /// Layers are given while the next ones are computed.
    pub(super) by_layer: bool,
    pub(super) hand_back: Option<ReturnTicket>,
}

/// What is copied out of a computed chunk.
pub(super) struct ChunkExport {
    /// What has been copied.
    pub(super) blocks: Vec<Arc<KvBlock>>,
    /// What is left of the full layers.
    pub(super) full: FullOut,
    /// When it was computed.
    pub(super) computed: Instant,
}

pub(super) enum ExportStage {
    /// Pages of this node come first.
    Seeding,
    /// This node computes from here on.
    Prefilling(u32),
    /// Rows are left to copy out of what is computed.
    ChunkExport(ChunkExport),
    /// Everything is out; the window is put back.
    PuttingBack(Taking),
    /// Everything is out; the last token is next.
    Evaluating,
}

pub(super) struct Generating {
    pub(super) stage: Stage,
    /// Pages of this node that it may begin with.
    pub(super) pages: Option<PagesHere>,
    pub(super) generation: Generation,
    pub(super) events: mpsc::Sender<GenerateEvent>,
    pub(super) summary: PrefillSummary,
    pub(super) parity: Parity,
    pub(super) receipt: ReceiptState,
    /// Logits of the last prompt token, until they have been compared.
    pub(super) logits: Option<Vec<f32>>,
    pub(super) compared: Option<ParityReport>,
    pub(super) keep: Keep,
    pub(super) retire: Option<oneshot::Sender<Retired>>,
    /// When an event could not be delivered for the first time since one could.
    pub(super) stalled: Option<Instant>,
}

pub(super) enum ReceiptState {
    /// None is expected, or it has been compared.
    Settled,
    /// It will come, or the news that it will not.
    Awaited,
    /// The news came before our own logits.
    Here(Told),
}

pub(super) enum Stage {
    /// KV comes from another node.
    Receiving,
    /// KV comes from pages of this node.
    Seeding,
    /// An older prompt that begins alike is being read.
    Waiting,
    /// This node computes from `next` on.
    Prefilling { next: u32 },
    /// The rows before `next` are there; the window is not yet where an import puts it.
    Settling { window: Window, next: u32 },
    /// The window before `next` is copied, for others that go on from there.
    Copying { out: CopyOut, next: u32 },
    /// KV is complete.
    Decoding {
        token: Token,
        position: u32,
        /// When the first token was sampled.
        first: Option<Instant>,
    },
    /// The answer is complete; the last event waits for the comparison.
    Finished {
        done: Box<GenerateEvent>,
        position: u32,
        since: Instant,
    },
    /// Nothing more is done for it.
    Ended,
}

/// What to do with a sequence after a step.
pub(super) enum After {
    Keep,
    End,
}

impl ActiveSequence {
    /// Counts tokens of the prompt that were computed since then.
    pub(super) fn has_computed(&mut self, tokens: &Range<u32>, since: Instant) {
        self.prefill_ms += milliseconds(since);
        self.computed_tokens += tokens.end - tokens.start;
    }

    /// KV must cover tokens `[0, kv_end)`; the last token is evaluated by decoding.
    pub(super) fn kv_end(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - 1
    }

    /// How it is computed by an engine that computes its end in steps of `tail` tokens.
    pub(super) fn chunking(&self, tail: u32) -> Chunking {
        Chunking {
            kv_end: self.kv_end(),
            chunk: self.chunk,
            tail,
        }
    }

    /// True if nobody takes what it gives any more, or nothing for as long as `stall`.
    pub(super) fn abandoned(&self, stall: Duration) -> bool {
        match &self.work {
            Work::Export(export) => export.chunks.is_closed(),
            Work::Retire { chunks, .. } => chunks.is_closed(),
            Work::Generate(g) => {
                g.events.is_closed() || g.stalled.is_some_and(|t| t.elapsed() > stall)
            }
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.work {
            Work::Export(_) => Phase::Prefilling,
            Work::Retire { .. } => Phase::Decoding,
            Work::Generate(g) => match g.stage {
                Stage::Receiving | Stage::Seeding => Phase::Receiving,
                Stage::Waiting
                | Stage::Prefilling { .. }
                | Stage::Settling { .. }
                | Stage::Copying { .. } => Phase::Prefilling,
                _ => Phase::Decoding,
            },
        }
    }

    /// True if a token can be computed now.
    pub(super) fn can_decode(&self) -> bool {
        match &self.work {
            Work::Export(e) => matches!(e.stage, ExportStage::Evaluating),
            Work::Retire { .. } => false,
            Work::Generate(g) => matches!(g.stage, Stage::Decoding { .. }) && g.has_room(),
        }
    }

    /// True if tokens of its prompt can be read beside those of others now.
    pub(super) fn can_read(&self) -> bool {
        match &self.work {
            Work::Generate(g) => {
                let is_reading = matches!(g.stage, Stage::Prefilling { .. });
                is_reading && !self.reproducible && g.events.capacity() >= EVENTS_AT_ONCE
            }
            _ => false,
        }
    }

    /// True if a chunk can be computed by itself now.
    pub(super) fn can_prefill(&self) -> bool {
        match &self.work {
            // One place stays free for the receipt.
            Work::Export(e) => {
                matches!(e.stage, ExportStage::Prefilling(_)) && e.chunks.capacity() > 1
            }
            Work::Retire { chunks, window, .. } => window.is_none() && chunks.capacity() > 0,
            Work::Generate(g) => {
                matches!(g.stage, Stage::Prefilling { .. })
                    && self.reproducible
                    && g.events.capacity() > 0
            }
        }
    }

    /// True if a slice of its KV can be copied now.
    pub(super) fn can_copy(&self) -> bool {
        match &self.work {
            Work::Export(e) => match &e.stage {
                // There was room for the chunk when it was begun.
                ExportStage::ChunkExport(_) | ExportStage::PuttingBack(_) => true,
                _ => false,
            },
            Work::Retire { chunks, window, .. } => window.is_some() && chunks.capacity() > 0,
            Work::Generate(g) => {
                let copies = matches!(g.stage, Stage::Settling { .. } | Stage::Copying { .. });
                copies && g.events.capacity() > 0
            }
        }
    }
}

/// Events of one step at most: the prompt is there, a token, the end.
const EVENTS_AT_ONCE: usize = 3;

impl Generating {
    /// True if all its rows are what was computed, here or elsewhere.
    pub(super) fn is_lossless(&self) -> bool {
        self.summary.codec.is_none_or(Codec::is_lossless)
    }

    /// True if a token and the last event can be delivered.
    pub(super) fn has_room(&self) -> bool {
        self.events.capacity() >= 2
    }

    /// Delivers an event if there is room; the caller has checked that there is.
    pub(super) fn tell(&mut self, event: GenerateEvent) {
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            tracing::error!("an event was dropped though there was room for it");
        }
    }

    /// Notes how far the ends compute the same; why they do not, if that is beyond the bound.
    pub(super) fn judged(&mut self, parity: tandem_handoff::receipt::Parity) -> Option<String> {
        let holds = self.parity.bound.holds(&parity);
        self.compared = Some(ParityReport { parity, holds });
        (!holds).then(|| {
            format!(
                "the nodes do not compute the same: KL {:.4}, largest difference {:.3}, likeliest token {}",
                parity.kl,
                parity.max_difference,
                if parity.same_top { "equal" } else { "another" }
            )
        })
    }

    /// KV is complete: decoding starts with the last token of the prompt.
    pub(super) fn start_decoding(&mut self, last_token: Token, position: u32) {
        let summary = self.summary.clone();
        self.tell(GenerateEvent::Prefilled(summary));
        self.stage = Stage::Decoding {
            token: last_token,
            position,
            first: None,
        };
    }
}
