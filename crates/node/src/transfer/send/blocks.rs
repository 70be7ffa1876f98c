//! The blocks of a handoff: those that wait, and those that have been opened and not acknowledged.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tandem_handoff::segment::block_tokens;
use tandem_handoff::{Contract, KvBlock, PerSection, Section};

use super::streamed::Place;
use crate::sequence::StreamedBlock;

/// A block that has not been opened.
pub(super) enum Queued {
    Whole(Arc<KvBlock>),
    /// It is being computed.
    Streamed(StreamedBlock),
}

impl Queued {
    pub(super) const fn is_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    pub(super) fn bytes(&self, contract: &Contract) -> u64 {
        match self {
            Self::Whole(block) => block.bytes(),
            Self::Streamed(streamed) => contract.block_bytes(streamed.section, &streamed.tokens),
        }
    }
}

/// A block that has been opened and not acknowledged.
struct Sent {
    section: Section,
    tokens: Range<u32>,
    /// True once some of it has been given to the connection.
    has_begun: bool,
    /// All of it, once it is computed.
    block: Option<Arc<KvBlock>>,
}

#[derive(Default)]
pub(super) struct Blocks {
    queue: VecDeque<Queued>,
    /// End of the blocks of each section that were queued, or that the receiver has.
    queued_to: PerSection<u32>,
    sent: VecDeque<Sent>,
}

impl Blocks {
    /// The next block to be opened.
    pub(super) fn next(&self) -> Option<&Queued> {
        self.queue.front()
    }

    pub(super) fn take_next(&mut self) -> Option<Queued> {
        self.queue.pop_front()
    }

    /// True if no block waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues what the receiver lacks of a block, and what was not queued before: an engine that cannot use its pages after
    /// all computes from the start.
    pub(super) fn push(&mut self, block: Arc<KvBlock>, contract: &Contract) {
        let is_it = |s: &Sent| s.section == block.section && s.tokens == block.tokens;
        if let Some(at) = self.sent.iter().position(is_it) {
            // It was streamed.
            self.sent[at].block = Some(block);
            return;
        }
        let next = self.queued_to[block.section];
        if block.tokens.end <= next {
            return;
        }
        self.queued_to[block.section] = block.tokens.end;
        let block = if block.tokens.start < next {
            Arc::new(block.part(next..block.tokens.end))
        } else {
            block
        };
        // Pages, and windows of pages, are whole in memory, however large they are.
        let step = block_tokens(contract, block.section);
        if block.len() <= step {
            return self.queue.push_back(Queued::Whole(block));
        }
        let starts = block.tokens.clone().step_by(step as usize);
        let parts = starts.map(|start| block.part(start..start.saturating_add(step)));
        self.queue
            .extend(parts.map(|part| Queued::Whole(Arc::new(part))));
    }

    /// Queues a block that is being computed, if the receiver lacks all of it. Otherwise what it lacks comes with the
    /// chunk.
    pub(super) fn push_streamed(&mut self, streamed: StreamedBlock) {
        let next = &mut self.queued_to[streamed.section];
        if streamed.tokens.start == *next {
            *next = streamed.tokens.end;
            self.queue.push_back(Queued::Streamed(streamed));
        }
    }

    /// What was opened and not acknowledged counts as not sent, and what the receiver has, up to `next`, is dropped. What
    /// is still being computed comes with its chunk.
    pub(super) fn requeue(&mut self, next: PerSection<u32>, contract: &Contract) {
        let sent = std::mem::take(&mut self.sent);
        let queued = std::mem::take(&mut self.queue);
        self.queued_to = next;
        let sent = sent.into_iter().filter_map(|s| s.block);
        for block in sent.map(Queued::Whole).chain(queued) {
            match block {
                Queued::Whole(block) => self.push(block, contract),
                Queued::Streamed(streamed) => self.push_streamed(streamed),
            }
        }
    }

    /// A block has been opened, all of which is there or will be.
    pub(super) fn opened(
        &mut self,
        section: Section,
        tokens: Range<u32>,
        block: Option<Arc<KvBlock>>,
    ) {
        self.sent.push_back(Sent {
            section,
            tokens,
            has_begun: block.is_some(),
            block,
        });
    }

    /// The first bytes of a block have gone out. False if it has been acknowledged.
    pub(super) fn begun(&mut self, place: Place) -> bool {
        let is_it = |s: &&mut Sent| (s.section, s.tokens.start) == place;
        let sent = self.sent.iter_mut().find(is_it);
        sent.map(|sent| sent.has_begun = true).is_some()
    }

    /// The first block of a section has been acknowledged.
    pub(super) fn acknowledged(&mut self, section: Option<Section>) {
        let is_acked = |sent: &Sent| Some(sent.section) == section;
        let at = self.sent.iter().position(is_acked);
        at.and_then(|at| self.sent.remove(at));
    }

    /// True if bytes of a block have gone out that is not acknowledged.
    pub(super) fn is_in_flight(&self) -> bool {
        self.sent.iter().any(|s| s.has_begun)
    }
}
