//! What is known about a request when it ends, and how it is told.

use std::time::Duration;

use tandem_openai::{ParityInfo, PhasesMs, TandemInfo};
use tandem_proto::{ParityReport, PrefillSummary};
use tandem_sched::Plan;

/// The prefill node's account, from its `Done`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrefillTimes {
    pub(crate) prefill_ms: f64,
    pub(crate) transfer_ms: f64,
    pub(crate) exposed_transfer_ms: f64,
}

/// What one attempt collects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    pub(crate) prompt_tokens: u32,
    pub(crate) tokenize_ms: f64,
    pub(crate) loan_ms: f64,
    /// True if no other node was asked for KV.
    pub(crate) alone: bool,
    pub(crate) prefill: PrefillTimes,
    pub(crate) summary: PrefillSummary,
    pub(crate) generated_tokens: u32,
    pub(crate) first_token_ms: f64,
    pub(crate) decode_ms: f64,
    pub(crate) parity: Option<ParityReport>,
}

impl Timeline {
    /// True if KV of the prompt came from the prefill node, now or for an earlier request, and all of
    /// it did. A prompt of one token has no KV to come from anywhere.
    fn is_remote(&self, plan: &Plan) -> bool {
        let summary = &self.summary;
        let is_elsewhere = summary.remote_tokens > 0 || summary.cached_tokens > 0;
        plan.prefill.is_some() && !self.alone && is_elsewhere && summary.local_tokens == 0
    }

    /// The extension of the answer.
    pub(crate) fn info(
        &self,
        request: &str,
        plan: &Plan,
        queue: Duration,
        events: Vec<String>,
    ) -> TandemInfo {
        let remote = plan.prefill.as_ref().filter(|_| self.is_remote(plan));
        let mode = if remote.is_some() { "remote" } else { "local" };
        TandemInfo {
            request_id: request.to_owned(),
            mode: mode.to_owned(),
            prefill_node: remote.unwrap_or(&plan.decode).clone(),
            decode_node: plan.decode.clone(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.summary.cached_tokens,
            generated_tokens: self.generated_tokens,
            phases_ms: PhasesMs {
                queue: queue.as_secs_f64() * 1e3,
                tokenize: self.tokenize_ms,
                loan: self.loan_ms,
                // JSON has no infinity.
                prefill: (self.prefill.prefill_ms + self.summary.local_prefill_ms).min(f64::MAX),
                transfer: self.prefill.transfer_ms,
                exposed_transfer: self.prefill.exposed_transfer_ms,
                apply: self.summary.apply_ms,
                first_token: self.first_token_ms,
                decode: self.decode_ms,
            },
            handoff_bytes: self.summary.handoff_bytes,
            wire_bytes: self.summary.wire_bytes,
            codec: self.summary.codec.map(|c| c.to_string()),
            reconnects: self.summary.reconnects,
            parity: self.parity.map(|p| ParityInfo {
                kl: p.parity.kl,
                max_difference: p.parity.max_difference,
                same_top: p.parity.same_top,
                holds: p.holds,
            }),
            events,
            tokens: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_says_who_computed_the_prompt() {
        // (planned prefill node, asked for nothing, tokens from there, tokens computed here, tokens that were here, mode,
        // prefill node told)
        let table = [
            (Some("p"), false, 9, 0, 0, "remote", "p"),
            (Some("p"), false, 5, 4, 0, "local", "d"),
            (Some("p"), false, 0, 9, 0, "local", "d"),
            (Some("p"), false, 0, 0, 0, "local", "d"),
            (Some("p"), false, 0, 0, 9, "remote", "p"),
            (Some("p"), true, 0, 0, 9, "local", "d"),
            (Some("p"), true, 0, 2, 7, "local", "d"),
            (None, true, 0, 9, 0, "local", "d"),
            (None, true, 0, 0, 0, "local", "d"),
        ];
        for (prefill, alone, remote_tokens, local_tokens, cached_tokens, mode, node) in table {
            let plan = Plan {
                decode: "d".into(),
                prefill: prefill.map(str::to_owned),
                alone_percent: 0,
                lender: None,
                mixed_quantisation: false,
                reason: String::new(),
                notes: Vec::new(),
            };
            let summary = PrefillSummary {
                remote_tokens,
                local_tokens,
                cached_tokens,
                ..PrefillSummary::default()
            };
            let timeline = Timeline {
                summary,
                alone,
                ..Timeline::default()
            };
            let info = timeline.info("r", &plan, Duration::ZERO, Vec::new());
            assert_eq!(
                (&*info.mode, &*info.prefill_node),
                (mode, node),
                "{prefill:?}"
            );
        }
    }
}
