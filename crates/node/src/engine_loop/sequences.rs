//! What the loop knows of each sequence, and what it can do for it next.

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
    /// How far the KV of the prompt is.
    pub(super) reading: Reading,
    pub(super) work: Work,
    /// Pages of this node that it may begin with.
    pub(super) pages: Option<PagesHere>,
    /// Whom it shares KV with.
    pub(super) salt: Option<Arc<str>>,
    /// True if it runs alone, and its prompt is computed in fixed shapes.
    pub(super) reproducible: bool,
    /// Where its window is copied while its prompt is read, in order.
    pub(super) cuts: Vec<u32>,
    /// True if its rows may be wrong.
    pub(super) is_doubtful: bool,
    /// Frees the place when this is dropped, after the engine has released it.
    pub(super) admission: Admission,
}

pub(super) enum Work {
    /// Computes KV for another node.
    Export(Box<Export>),
    /// Generates for a coordinator.
    Generate(Box<Generating>),
}

/// How far the KV of a prompt is. It is received, or seeded with pages, or waits, or begins with rows of another
/// sequence (whose window is put back first); then it is read from a token on, to its end.
pub(super) enum Reading {
    /// KV comes from another node.
    Receiving,
    /// KV comes from pages of this node.
    Seeding,
    /// An older prompt that begins alike is being read: it waits until that one has so many tokens.
    Waiting { whom: SequenceId, until: u32 },
    /// This node computes from there on.
    Next(u32),
    /// The rows before `next` are there; the window is not yet where an import puts it.
    Settling { window: Window, next: u32 },
    /// The window before `next` is copied, for others that go on from there.
    Copying { out: CopyOut, next: u32 },
    /// All of it is there.
    Complete,
}

pub(super) struct Export {
    /// Rows that are left to copy out of what is computed.
    pub(super) out: Option<ChunkExport>,
    /// Up to where rows have been handed out.
    pub(super) end: u32,
    /// Up to where the other node has rows, once it has said so.
    pub(super) there: Option<u32>,
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

pub(super) struct Generating {
    pub(super) stage: Stage,
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
    /// Its prompt is being read.
    Prompt,
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
    /// KV must cover tokens `[0, kv_end)`; the last token is evaluated by decoding.
    pub(super) fn kv_end(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) - 1
    }

    /// The rows before this token are there: it is read from there on, or is complete.
    pub(super) fn read_from(&mut self, next: u32) {
        match &self.work {
            Work::Generate(_) if next == self.kv_end() => self.complete(),
            _ => self.reading = Reading::Next(next),
        }
    }

    /// The KV of its prompt is complete: decoding starts with its last token.
    pub(super) fn complete(&mut self) {
        let position = self.kv_end();
        self.reading = Reading::Complete;
        if let Work::Generate(g) = &mut self.work {
            let summary = g.summary.clone();
            g.tell(GenerateEvent::Prefilled(summary));
            g.stage = Stage::Decoding {
                token: self.tokens[position as usize],
                position,
                first: None,
            };
        }
    }

    /// What is left of it when its request ends: its place, and the tokens of prompt and answer.
    pub(super) fn into_cached(self, salt: Option<Arc<str>>) -> (Cached, Admission) {
        let mut tokens = self.tokens;
        if let Work::Generate(g) = &self.work {
            tokens.extend_from_slice(g.generation.generated());
        }
        let cached = Cached {
            place: self.place,
            salt,
            tokens,
            used: 0,
            pages: None,
        };
        (cached, self.admission)
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
            Work::Generate(g) => {
                g.events.is_closed() || g.stalled.is_some_and(|t| t.elapsed() > stall)
            }
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match (&self.work, &self.reading) {
            (Work::Generate(_), Reading::Complete) => Phase::Decoding,
            (Work::Generate(_), Reading::Receiving | Reading::Seeding) => Phase::Receiving,
            _ => Phase::Prefilling,
        }
    }

    /// True if a token can be computed now.
    pub(super) fn can_decode(&self) -> bool {
        match &self.work {
            Work::Export(_) => matches!(self.reading, Reading::Complete),
            Work::Generate(g) => matches!(g.stage, Stage::Decoding { .. }) && g.has_room(),
        }
    }

    /// True if tokens of its prompt can be read now.
    pub(super) fn can_read(&self) -> bool {
        let Reading::Next(next) = self.reading else {
            return false;
        };
        match &self.work {
            // One place stays free for the receipt.
            Work::Export(e) => e.out.is_none() && e.end == next && e.chunks.capacity() > 1,
            Work::Generate(g) => g.events.capacity() >= EVENTS_AT_ONCE,
        }
    }

    /// True if a slice of its KV can be copied now.
    pub(super) fn can_copy(&self) -> bool {
        let copies = matches!(
            self.reading,
            Reading::Settling { .. } | Reading::Copying { .. }
        );
        match &self.work {
            // There was room for the chunk when it was begun.
            Work::Export(e) => copies || e.out.is_some() || self.has_shared(e),
            Work::Generate(g) => copies && g.events.capacity() > 0,
        }
    }

    /// True if rows that it shares can be handed out: as far as the other node lacks them.
    fn has_shared(&self, export: &Export) -> bool {
        let is_there = matches!(self.reading, Reading::Next(next) if export.end < next);
        is_there && export.there.is_some() && export.chunks.capacity() > 1
    }
}

/// A sequence whose request has ended.
pub(super) struct Cached {
    pub(super) place: Sequence,
    /// Whom it shares its rows with; `None`: with nobody.
    pub(super) salt: Option<Arc<str>>,
    /// Those whose rows it has.
    pub(super) tokens: Vec<Token>,
    /// When it was used last.
    pub(super) used: u64,
    /// What pages are to be made of, if that has not been done yet.
    pub(super) pages: Option<Box<Unpaged>>,
}

/// KV of which pages are to be made.
pub(super) struct Unpaged {
    pub(super) keep: Keep,
    pub(super) retire: oneshot::Sender<Retired>,
    /// Tokens of the answer among those.
    pub(super) generated: u32,
    /// Where the rows end of which pages are made.
    pub(super) end: u32,
    /// True if no other node has computed any of it.
    pub(super) is_own: bool,
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
}
