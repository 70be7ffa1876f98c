//! What is going on, drawn: phases of the two answers, machines, and an answer as far as it came.

use askama::Template;
use serde_json::Value;
use tandem_grading::{Job, JobRecord, Rubric, Submission, items};

use super::words;
use crate::activity::{Activity, Does, Span, busy_percent};
use crate::trial::{JobState, Trial, TrialState, place};

/// Pixels, so to speak, of a whole bar.
const BAR: u64 = 1000;
/// Shortest time that a whole bar stands for, in milliseconds.
const LEAST_MS: u64 = 2_000;

/// A part of a bar.
pub(crate) struct Part {
    pub(crate) class: &'static str,
    pub(crate) from: u64,
    pub(crate) size: u64,
}

/// What a machine did.
pub(crate) struct Lane {
    pub(crate) machine: String,
    pub(crate) parts: Vec<Part>,
    pub(crate) busy: u64,
}

/// The machines between two times.
pub(crate) fn lanes(activity: &Activity, begin_ms: u64, now_ms: u64) -> Vec<Lane> {
    let whole = now_ms.saturating_sub(begin_ms).max(1);
    let part = |span: &Span| {
        let from = span.from_ms.max(begin_ms) - begin_ms;
        let to = span.to_ms.min(now_ms) - begin_ms;
        Part {
            class: match span.does {
                Does::Reads => "p-prefill",
                Does::Writes => "p-decode",
            },
            from: from * BAR / whole,
            size: (to.saturating_sub(from) * BAR / whole).max(2),
        }
    };
    let lane = |(machine, spans): (String, Vec<Span>)| Lane {
        busy: busy_percent(&spans, begin_ms, now_ms),
        // What is written lies over what is read: both show where they overlap.
        parts: {
            let of = |does| spans.iter().filter(move |s| s.does == does);
            of(Does::Writes).chain(of(Does::Reads)).map(part).collect()
        },
        machine,
    };
    activity
        .since(begin_ms, now_ms)
        .into_iter()
        .map(lane)
        .collect()
}

/// The trial as far as it is.
#[derive(Template)]
#[template(path = "parts/live.html")]
pub(crate) struct LiveView {
    pub(crate) jobs: Vec<JobView>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) elapsed: String,
    pub(crate) is_over: bool,
    pub(crate) total: Option<String>,
    pub(crate) max: String,
    pub(crate) findings: Vec<&'static str>,
    pub(crate) problem: Option<String>,
}

/// One of the two answers.
pub(crate) struct JobView {
    pub(crate) title: &'static str,
    pub(crate) model: String,
    pub(crate) speed: String,
    pub(crate) parts: Vec<Part>,
    /// The phases in words.
    pub(crate) phases: String,
    /// What one machine would have taken, where a profile says.
    pub(crate) alone: Option<String>,
    pub(crate) points: Vec<PointsView>,
    pub(crate) text: Vec<(&'static str, String)>,
    pub(crate) is_writing: bool,
    pub(crate) problem: Option<&'static str>,
}

/// A criterion as far as the answer has it.
pub(crate) struct PointsView {
    pub(crate) title: String,
    pub(crate) points: String,
    pub(crate) quotes: Vec<String>,
    pub(crate) rationale: String,
}

impl LiveView {
    pub(crate) fn new(trial: &Trial, activity: &Activity, now_ms: u64) -> Self {
        let state = trial.state();
        let now = state.ended_ms.unwrap_or(now_ms);
        let whole = now.saturating_sub(trial.started_ms).max(LEAST_MS);
        let job = |job: Job| job_view(trial, &state, job, (now, whole));
        let findings = state.graded.iter().flat_map(|graded| &graded.reasons);
        let mut findings: Vec<&'static str> = findings.map(|f| words::finding(f.kind)).collect();
        findings.dedup();
        Self {
            jobs: vec![job(Job::CodeAnalysis), job(Job::Feedback)],
            lanes: lanes(
                activity,
                trial.started_ms,
                now.max(trial.started_ms + LEAST_MS),
            ),
            elapsed: seconds(now.saturating_sub(trial.started_ms)),
            is_over: state.ended_ms.is_some(),
            total: state
                .graded
                .as_ref()
                .and_then(|g| g.score)
                .map(|s| s.to_string()),
            max: trial.rubric.max_points.to_string(),
            findings,
            problem: state.problem,
        }
    }
}

/// Milliseconds as a person reads them.
pub(crate) fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

fn job_view(trial: &Trial, state: &TrialState, job: Job, (now, whole): (u64, u64)) -> JobView {
    let of = &state.jobs[place(job)];
    let phases = phases(trial.started_ms, of, now);
    let mut parts = Vec::new();
    let mut told = Vec::new();
    let mut from = 0;
    for (class, word, ms) in phases {
        let size = ms * BAR / whole;
        parts.push(Part { class, from, size });
        from += size;
        if ms >= 50 {
            told.push(format!("{word} {}", seconds(ms)));
        }
    }
    let is_writing = of.record.is_none() && of.first_ms.is_some() && state.ended_ms.is_none();
    JobView {
        title: match job {
            Job::CodeAnalysis => "Points",
            Job::Feedback => "Feedback",
        },
        model: trial.models[place(job)].clone(),
        speed: speed(of, now),
        parts,
        phases: match told.is_empty() {
            true => "not asked yet".to_owned(),
            false => told.join(", "),
        },
        alone: of.record.as_ref().and_then(alone),
        points: match job {
            Job::CodeAnalysis => points(&of.text, &trial.rubric, &trial.submission),
            Job::Feedback => Vec::new(),
        },
        text: match job {
            Job::CodeAnalysis => Vec::new(),
            Job::Feedback => {
                let item = |item: tandem_grading::Item| match item.kind {
                    tandem_grading::ItemKind::Strength => ("strength", item.text),
                    tandem_grading::ItemKind::NextStep => ("next_step", item.text),
                };
                items(&of.text).into_iter().map(item).collect()
            }
        },
        is_writing,
        problem: of.record.as_ref().and_then(|record| {
            let error = record.error.as_ref()?;
            Some(words::finding(error.kind))
        }),
    }
}

/// Class, word and milliseconds of each phase so far.
fn phases(start_ms: u64, of: &JobState, now: u64) -> Vec<(&'static str, &'static str, u64)> {
    let Some(asked) = of.asked_ms else {
        return vec![("p-queue", "waits", now.saturating_sub(start_ms))];
    };
    let before = asked.saturating_sub(start_ms);
    if let Some(told) = of.record.as_ref().and_then(told_phases) {
        let mut all = told;
        all[0].2 += before;
        return all;
    }
    let first = of.first_ms.unwrap_or(now);
    let end = of
        .record
        .as_ref()
        .map_or(now, |r| r.started_ms + ms(r.wall_ms));
    vec![
        ("p-queue", "waits", before),
        ("p-prefill", "reads", first.saturating_sub(asked)),
        ("p-decode", "writes", end.saturating_sub(first).min(now)),
    ]
}

fn ms(value: f64) -> u64 {
    // Times are never negative, and `as` saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = value.max(0.0).round() as u64;
    whole
}

/// What the machine that wrote would have taken alone.
fn alone(record: &JobRecord) -> Option<String> {
    let alone = record.tandem.as_ref()?.alone.as_ref()?;
    Some(format!(
        "{} alone would take {:.1} s by its profile: this was {:.2} times as fast",
        alone.machine,
        alone.predicted_ms / 1e3,
        alone.speed_up
    ))
}

/// The phases that the server told.
fn told_phases(record: &JobRecord) -> Option<Vec<(&'static str, &'static str, u64)>> {
    let told = record
        .tandem
        .as_ref()
        .filter(|told| told.server.is_none())?;
    let phases = &told.phases_ms;
    Some(vec![
        ("p-queue", "waits", ms(phases.queue + phases.tokenize)),
        ("p-prefill", "reads", ms(phases.prefill)),
        (
            "p-transfer",
            "waits for the transfer",
            ms(phases.exposed_transfer + phases.apply),
        ),
        ("p-decode", "writes", ms(phases.decode)),
    ])
}

fn speed(of: &JobState, now: u64) -> String {
    let Some(first) = of.first_ms else {
        return String::new();
    };
    let told = of.record.as_ref().and_then(|record| {
        let tokens = record.usage.as_ref()?.completion_tokens;
        let decode = match &record.tandem {
            Some(told) if told.server.is_none() => told.phases_ms.decode,
            _ => record.wall_ms - record.first_ms?,
        };
        (decode > 0.0).then(|| f64::from(tokens) * 1e3 / decode)
    });
    let elapsed = now.saturating_sub(first);
    let so_far = || {
        let elapsed = u32::try_from(elapsed).unwrap_or(u32::MAX);
        f64::from(of.parts) * 1e3 / f64::from(elapsed.max(1))
    };
    match told {
        Some(speed) => format!("{speed:.0} tokens/s"),
        None if elapsed > 200 => format!("{:.0} tokens/s", so_far()),
        None => String::new(),
    }
}

/// The criteria of an answer that may not be whole yet.
fn points(answer: &str, rubric: &Rubric, submission: &Submission) -> Vec<PointsView> {
    let Some(value) = so_far(answer) else {
        return Vec::new();
    };
    let of = |c: &tandem_grading::Criterion| {
        let told = value["criteria"].get(&c.id)?;
        let quote = |e: &Value| {
            let name = e["file"].as_str();
            let file = submission
                .files
                .iter()
                .find(|f| name.is_none_or(|n| f.name == n))?;
            let start = usize::try_from(e["line_start"].as_u64()?).ok()?;
            let line = file.lines.get(start.checked_sub(1)?)?;
            Some(format!("line {start} · {}", line.trim()))
        };
        let evidence = told["evidence"].as_array();
        Some(PointsView {
            title: c.title.clone(),
            points: match told["points"].as_f64() {
                Some(points) => format!("{points} of {}", c.max_points),
                None => "…".to_owned(),
            },
            quotes: evidence.into_iter().flatten().filter_map(quote).collect(),
            rationale: told["rationale"].as_str().unwrap_or_default().to_owned(),
        })
    };
    rubric.criteria.iter().filter_map(of).collect()
}

/// The beginning of a JSON text as a value: what is open is closed, and what has only begun is left out.
fn so_far(text: &str) -> Option<Value> {
    let text = text.trim_start();
    let text = text.strip_prefix("```json").unwrap_or(text);
    let mut closers: Vec<char> = Vec::new();
    let (mut in_text, mut escaped) = (false, false);
    // Places behind which the text can be closed, with what closes it there; the last one that can be read counts.
    let mut ends: Vec<(usize, String)> = Vec::new();
    for (at, c) in text.char_indices() {
        if in_text {
            match (escaped, c) {
                (true, _) => escaped = false,
                (false, '\\') => escaped = true,
                (false, '"') => in_text = false,
                _ => {}
            }
        } else {
            match c {
                '"' => in_text = true,
                '{' => closers.push('}'),
                '[' => closers.push(']'),
                '}' | ']' => drop(closers.pop()),
                _ => {}
            }
        }
        if closers.len() > 16 {
            return None;
        }
        let close: String = closers.iter().rev().collect();
        let end = at + c.len_utf8();
        if in_text && !escaped {
            ends.push((end, format!("\"{close}")));
        } else if !in_text {
            ends.push((end, close));
        }
    }
    let last = ends.iter().rev().take(200);
    last.filter_map(|(end, close)| {
        let text = text[..*end].trim_end().trim_end_matches(',');
        serde_json::from_str(&format!("{text}{close}")).ok()
    })
    .next()
}

#[cfg(test)]
mod tests {
    use super::so_far;

    #[test]
    fn every_beginning_of_an_answer_can_be_shown() {
        let whole = r#"{"criteria":{"a":{"evidence":[{"line_start":1,"line_end":2}],"rationale":"a \"b\" }{ é","points":2.5},"b":{"evidence":[],"rationale":"","points":0}}}"#;
        let value: serde_json::Value = serde_json::from_str(whole).unwrap_or_default();
        assert_eq!(so_far(whole), Some(value));
        let mut seen = 0;
        for (end, _) in whole.char_indices().skip(1) {
            let Some(value) = so_far(&whole[..end]) else {
                panic!("{}", &whole[..end]);
            };
            let criteria = value["criteria"]
                .as_object()
                .map_or(0, serde_json::Map::len);
            assert!(criteria >= seen, "{}", &whole[..end]);
            seen = criteria;
        }
        assert_eq!(seen, 2);
        assert_eq!(so_far("no JSON"), None);
        assert_eq!(so_far(&"[".repeat(100_000)), None);
    }
}
