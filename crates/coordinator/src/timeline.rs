//! What is known about a request when it ends, and how it is told.

use std::time::Duration;

use tandem_api::{ParityInfo, PhasesMs, ServerInfo, TandemInfo};
use tandem_proto::{ParityReport, PrefillSummary};
use tandem_sched::Plan;

/// The prefill node's account, from its `Done`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrefillTimes {
    pub(crate) prefill_ms: f64,
    /// Tokens that it computed; `None` if it did not tell.
    pub(crate) computed_tokens: Option<u32>,
    pub(crate) transfer_ms: f64,
    pub(crate) exposed_transfer_ms: f64,
}

/// What one attempt collects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    pub(crate) prompt_tokens: u32,
    pub(crate) tokenize_ms: f64,
    /// True if no other node was asked for KV.
    pub(crate) alone: bool,
    pub(crate) prefill: PrefillTimes,
    pub(crate) summary: PrefillSummary,
    pub(crate) generated_tokens: u32,
    pub(crate) first_token_ms: f64,
    pub(crate) decode_ms: f64,
    pub(crate) parity: Option<ParityReport>,
    /// Who answered, if it was a server.
    pub(crate) server: Option<ServerInfo>,
}

impl Timeline {
    /// True if KV of the prompt came from the prefill node, now or for an earlier request, and all of
    /// it did. A prompt of one token has no KV to come from anywhere.
    fn is_remote(&self, plan: &Plan) -> bool {
        let summary = &self.summary;
        let is_elsewhere = summary.remote_tokens > 0 || summary.cached_tokens > 0;
        plan.prefill.is_some() && !self.alone && is_elsewhere && summary.local_tokens == 0
    }

    /// Tokens of the prompt that nobody computed for this request. What the decode node had may have been computed again all
    /// the same, where a model has windows: then a node cannot begin behind them.
    fn saved(&self, plan: &Plan) -> u32 {
        let summary = &self.summary;
        if plan.prefill.is_none() || self.alone {
            return summary.cached_tokens;
        }
        let kv_end = self.prompt_tokens.saturating_sub(1);
        // If it did not tell, it may have computed all.
        let computed = self.prefill.computed_tokens.unwrap_or(kv_end);
        kv_end.saturating_sub(computed.saturating_add(summary.local_tokens))
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
        let mode = match (&self.server, remote) {
            (Some(_), _) => "server",
            (None, Some(_)) => "remote",
            (None, None) => "local",
        };
        TandemInfo {
            request_id: request.to_owned(),
            mode: mode.to_owned(),
            reproducible: false,
            prefill_node: remote.unwrap_or(&plan.decode).clone(),
            decode_node: plan.decode.clone(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.saved(plan),
            held_tokens: self.summary.cached_tokens,
            generated_tokens: self.generated_tokens,
            phases_ms: PhasesMs {
                queue: queue.as_secs_f64() * 1e3,
                tokenize: self.tokenize_ms,
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
            alone: None,
            server: self.server.clone(),
            events,
            ignored: Vec::new(),
            tokens: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(prefill: Option<&str>) -> Plan {
        Plan {
            decode: "d".into(),
            prefill: prefill.map(str::to_owned),
            alone_percent: 0,
            mixed_quantisation: false,
            reason: String::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn what_was_saved_is_what_nobody_computed() {
        // (prefill node, asked for nothing, what it computed, tokens computed here, tokens that were here, failed, saved)
        // of a prompt of 10 tokens.
        let table = [
            (Some("p"), false, Some(9), 0, 0, false, 0),
            (Some("p"), false, Some(1), 0, 0, false, 8),
            // The decode node had rows that the prefill node computed all the same.
            (Some("p"), false, Some(9), 0, 8, false, 0),
            (Some("p"), false, None, 0, 8, false, 0),
            (Some("p"), false, None, 1, 8, true, 0),
            (Some("p"), true, None, 2, 7, false, 7),
            (None, true, None, 2, 7, false, 7),
        ];
        for (prefill, alone, computed, local_tokens, cached_tokens, failed, saved) in table {
            let timeline = Timeline {
                prompt_tokens: 10,
                alone,
                prefill: PrefillTimes {
                    computed_tokens: computed,
                    ..PrefillTimes::default()
                },
                summary: PrefillSummary {
                    local_tokens,
                    cached_tokens,
                    fallback: failed.then(String::new),
                    ..PrefillSummary::default()
                },
                ..Timeline::default()
            };
            let plan = plan(prefill);
            let info = timeline.info("r", &plan, Duration::ZERO, Vec::new());
            assert_eq!(
                (info.cached_tokens, info.held_tokens),
                (saved, cached_tokens)
            );
        }
    }

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
            let plan = plan(prefill);
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
