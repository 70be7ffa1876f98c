//! The account of a handoff while it goes on.

use std::time::Instant;

use tandem_handoff::codec::Codec;
use tandem_handoff::sender::Sender;

use super::streamed::Done;
use crate::link_estimate::Report;

/// Time during which KV was written but not acknowledged.
#[derive(Debug, Default)]
struct TransferClock {
    since: Option<Instant>,
    total_ms: f64,
}

#[derive(Default)]
pub(super) struct Account {
    report: Report,
    /// When the receiver answered the first hello.
    accepted: Option<Instant>,
    /// When it said that it has everything.
    committed: Option<Instant>,
    clock: TransferClock,
}

impl Account {
    pub(super) fn accepted(&mut self, have_tokens: u32) {
        self.report.have_tokens = have_tokens;
        self.accepted = Some(Instant::now());
    }

    pub(super) fn committed(&mut self) {
        self.committed.get_or_insert_with(Instant::now);
    }

    /// A connection broke; gives how many have.
    pub(super) const fn reconnects(&mut self) -> u32 {
        self.report.reconnects += 1;
        self.report.reconnects
    }

    /// A block has been opened.
    pub(super) fn opened(&mut self, codec: Codec) {
        self.report.is_mixed |= self.report.codec.is_some_and(|other| other != codec);
        self.report.codec = self.report.codec.max(Some(codec));
    }

    /// Bytes of a block go out.
    pub(super) fn sent(&mut self) {
        self.clock.since.get_or_insert_with(Instant::now);
    }

    /// A block has been written.
    pub(super) fn written(&mut self, done: &Done) {
        self.report.wire_bytes += done.wire_bytes;
    }

    /// Nothing that was written waits to be acknowledged.
    pub(super) fn all_acknowledged(&mut self) {
        if let Some(since) = self.clock.since.take() {
            self.clock.total_ms += since.elapsed().as_secs_f64() * 1e3;
        }
    }

    /// So many tokens have been computed, of blocks of so many bytes, in so long in all. False if nothing was computed for
    /// the last of them: the engine had their rows.
    pub(super) fn computed(&mut self, prefill_ms: f64, tokens: u32, bytes: u64) -> bool {
        let is_computed = prefill_ms > self.report.prefill_ms;
        if is_computed {
            self.report.computed_bytes += bytes;
        }
        self.report.prefill_ms = prefill_ms;
        self.report.computed_tokens = tokens;
        is_computed
    }

    /// The account of a handoff that the receiver has confirmed, and whose last chunk was computed then.
    pub(super) fn total(&self, sender: &Sender, last: Option<Instant>, has_told: bool) -> Report {
        let mut report = self.report.clone();
        report.transfer_ms = self.clock.total_ms;
        if let Some((last, committed)) = last.zip(self.committed) {
            let since = self.accepted.map_or(last, |at| at.max(last));
            let exposed = committed.saturating_duration_since(since);
            report.exposed_transfer_ms = exposed.as_secs_f64() * 1e3;
        }
        report.raw_bytes = sender.raw_bytes();
        report.apply_ms = sender.applying().as_secs_f64() * 1e3;
        report.has_told = has_told;
        report
    }
}
