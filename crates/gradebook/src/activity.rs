//! What is going on: calls in flight, and which machine did what in the last minute. Times come in as milliseconds
//! since 1970.
//!
//! Of a finished call the server tells the machines and the phases; of one in flight only its start and its first word
//! are known, and it is shown on the machines that served the last call to the same model.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem_grading::{Job, JobRecord};

/// How far back it is remembered.
pub(crate) const WINDOW_MS: u64 = 60_000;

/// A call in flight: whose, which work, which job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallId {
    /// The run or the trial.
    pub(crate) of: String,
    pub(crate) index: usize,
    pub(crate) job: Job,
}

/// What a machine does for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Reads the prompt.
    Reads,
    /// Writes the answer.
    Writes,
}

/// A machine did something for a while.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) machine: String,
    pub(crate) does: Does,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// A call in flight.
#[derive(Debug, Clone)]
struct Open {
    model: String,
    since_ms: u64,
    first_ms: Option<u64>,
}

#[derive(Default)]
struct Inner {
    spans: VecDeque<Span>,
    open: HashMap<CallId, Open>,
    /// Who read and who wrote for the last call to a model.
    machines: HashMap<String, (String, String)>,
}

/// What is going on.
#[derive(Default)]
pub(crate) struct Activity {
    inner: Mutex<Inner>,
}

/// Milliseconds as a whole number.
fn whole(ms: f64) -> u64 {
    // `as` saturates, and a time is never negative.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = ms.max(0.0).round() as u64;
    whole
}

/// Who read, who wrote, and when, for a finished call.
pub(crate) fn spans(record: &JobRecord) -> Vec<Span> {
    let start = record.started_ms;
    let end = start + whole(record.wall_ms);
    let span = |machine: &str, does, from: u64, to: u64| Span {
        machine: machine.to_owned(),
        does,
        from_ms: from.clamp(start, end),
        to_ms: to.clamp(start, end),
    };
    match &record.tandem {
        Some(told) if told.server.is_none() => {
            let phases = &told.phases_ms;
            let reads = start + whole(phases.queue + phases.tokenize);
            let writes = start + whole(phases.first_token);
            vec![
                span(
                    &told.prefill_node,
                    Does::Reads,
                    reads,
                    reads + whole(phases.prefill),
                ),
                span(
                    &told.decode_node,
                    Does::Writes,
                    writes,
                    writes + whole(phases.decode),
                ),
            ]
        }
        told => {
            let machine = told
                .as_ref()
                .map_or(record.model.as_str(), |t| &t.decode_node);
            let first = start + whole(record.first_ms.unwrap_or(record.wall_ms));
            vec![
                span(machine, Does::Reads, start, first),
                span(machine, Does::Writes, first, end),
            ]
        }
    }
}

impl Activity {
    /// A call was sent.
    pub(crate) fn asked(&self, id: CallId, model: &str, now_ms: u64) {
        let open = Open {
            model: model.to_owned(),
            since_ms: now_ms,
            first_ms: None,
        };
        self.lock().open.insert(id, open);
    }

    /// A part of its answer came.
    pub(crate) fn answered(&self, id: &CallId, now_ms: u64) {
        if let Some(open) = self.lock().open.get_mut(id) {
            open.first_ms.get_or_insert(now_ms);
        }
    }

    /// It ended.
    pub(crate) fn ended(&self, id: &CallId, record: &JobRecord) {
        let mut inner = self.lock();
        inner.open.remove(id);
        if record.answer.is_none() {
            return;
        }
        let spans = spans(record);
        if let [reads, writes] = spans.as_slice() {
            let machines = (reads.machine.clone(), writes.machine.clone());
            inner.machines.insert(record.model.clone(), machines);
        }
        let end = spans.iter().map(|s| s.to_ms).max().unwrap_or(0);
        inner.spans.extend(spans);
        let begin = end.saturating_sub(WINDOW_MS);
        while inner.spans.front().is_some_and(|s| s.to_ms < begin) {
            inner.spans.pop_front();
        }
    }

    /// Whatever is open of a run or a trial has ended with it.
    pub(crate) fn closed(&self, of: &str) {
        self.lock().open.retain(|id, _| id.of != of);
    }

    /// What was done since a time, by machine, what is still going on included.
    pub(crate) fn since(&self, begin_ms: u64, now_ms: u64) -> Vec<(String, Vec<Span>)> {
        let inner = self.lock();
        let mut all: Vec<Span> = inner.spans.iter().cloned().collect();
        for open in inner.open.values() {
            let lane = || (open.model.clone(), open.model.clone());
            let (reader, writer) = inner
                .machines
                .get(&open.model)
                .cloned()
                .unwrap_or_else(lane);
            let first = open.first_ms.unwrap_or(now_ms);
            all.push(Span {
                machine: reader,
                does: Does::Reads,
                from_ms: open.since_ms,
                to_ms: first,
            });
            if open.first_ms.is_some() {
                all.push(Span {
                    machine: writer,
                    does: Does::Writes,
                    from_ms: first,
                    to_ms: now_ms,
                });
            }
        }
        let mut lanes: Vec<(String, Vec<Span>)> = Vec::new();
        all.retain(|span| span.to_ms > begin_ms && span.from_ms < now_ms);
        all.sort_by(|a, b| (&a.machine, a.from_ms).cmp(&(&b.machine, b.from_ms)));
        for span in all {
            match lanes.last_mut() {
                Some((machine, spans)) if *machine == span.machine => spans.push(span),
                _ => lanes.push((span.machine.clone(), vec![span])),
            }
        }
        lanes
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of a time in which a machine was busy, in percent.
pub(crate) fn busy_percent(spans: &[Span], begin_ms: u64, now_ms: u64) -> u64 {
    let mut times: Vec<(u64, u64)> = spans
        .iter()
        .map(|s| (s.from_ms.max(begin_ms), s.to_ms.min(now_ms)))
        .collect();
    times.sort_unstable();
    let (mut busy, mut until) = (0, begin_ms);
    for (from, to) in times {
        let from = from.max(until);
        busy += to.saturating_sub(from);
        until = until.max(to);
    }
    busy * 100 / now_ms.saturating_sub(begin_ms).max(1)
}
