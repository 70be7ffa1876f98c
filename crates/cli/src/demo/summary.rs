//! The outcome of the demo as JSON, and whether it is a success.

use serde::Serialize;
use tandem_api::PhasesMs;
use tandem_grading::{Graded, Job, JobRecord, Status};

use crate::tables::identical;

/// What `tandem demo --json` prints.
#[derive(Debug, Serialize)]
pub struct Summary {
    submissions: Vec<SubmissionSummary>,
    /// Of the whole run.
    pub totals: Totals,
}

/// Of the whole run.
#[derive(Debug, Serialize)]
pub struct Totals {
    /// Duration of the first run, without starting nodes.
    pub wall_ms: f64,
    /// Submissions that models were asked about, per hour at this rate.
    pub submissions_per_hour: f64,
    /// Whether both runs generated the same tokens everywhere; null without a comparison.
    pub identical: Option<bool>,
}

#[derive(Debug, Serialize)]
struct SubmissionSummary {
    name: String,
    status: &'static str,
    /// Null if there is none; never 0 for something that was not graded.
    score: Option<f64>,
    max_score: f64,
    jobs: Vec<JobSummary>,
}

#[derive(Debug, Serialize)]
struct JobSummary {
    job: &'static str,
    model: String,
    mode: Option<String>,
    prefill_node: Option<String>,
    decode_node: Option<String>,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    generated_tokens: Option<u32>,
    phases_ms: Option<PhasesMs>,
    handoff_bytes: Option<u64>,
    identical: Option<bool>,
}

impl Summary {
    /// The summary of a run, compared with a second one if there is one.
    pub fn new(graded: &[Graded], compared: Option<&[Graded]>, wall_ms: f64) -> Self {
        let submission = |(i, one): (usize, &Graded)| {
            let other = compared.and_then(|c| c.get(i));
            let job =
                |(j, record): (usize, &JobRecord)| job(record, other.and_then(|o| o.jobs.get(j)));
            SubmissionSummary {
                name: one.name.clone(),
                status: one.status.as_str(),
                score: one.score,
                max_score: one.max_score,
                jobs: one.jobs.iter().enumerate().map(job).collect(),
            }
        };
        let asked = graded.iter().filter(|g| !g.jobs.is_empty()).count();
        let asked = f64::from(u32::try_from(asked).unwrap_or(u32::MAX));
        let submissions: Vec<_> = graded.iter().enumerate().map(submission).collect();
        let all_same = submissions
            .iter()
            .flat_map(|s| &s.jobs)
            .all(|j| j.identical == Some(true));
        Self {
            submissions,
            totals: Totals {
                wall_ms,
                submissions_per_hour: asked * 3.6e6 / wall_ms.max(1.0),
                identical: compared.map(|_| all_same),
            },
        }
    }
}

fn job(record: &JobRecord, other: Option<&JobRecord>) -> JobSummary {
    let info = record.tandem.as_ref();
    JobSummary {
        job: record.job.as_str(),
        model: record.model.clone(),
        mode: info.map(|i| i.mode.clone()),
        prefill_node: info.map(|i| i.prefill_node.clone()),
        decode_node: info.map(|i| i.decode_node.clone()),
        prompt_tokens: info.map(|i| i.prompt_tokens),
        cached_tokens: info.map(|i| i.cached_tokens),
        generated_tokens: info.map(|i| i.generated_tokens),
        phases_ms: info.map(|i| i.phases_ms),
        handoff_bytes: info.map(|i| i.handoff_bytes),
        identical: other.and_then(|o| identical(record, o)),
    }
}

/// Why the demo is no success: jobs without an answer or without a timeline, jobs of the first run
/// that another node should have prefilled, and differences.
///
/// Feedback that was cut at its limit is an answer here: models with random weights seldom end by
/// themselves. The report of the submission says so.
pub fn faults(graded: &[Graded], compared: Option<&[Graded]>) -> Vec<String> {
    let mut found = Vec::new();
    for run in [Some(graded), compared].into_iter().flatten() {
        for one in run {
            found.extend(faults_of(one));
        }
    }
    for one in graded {
        for record in &one.jobs {
            if record.tandem.as_ref().is_some_and(|i| i.mode != "remote") {
                let job = record.job.as_str();
                found.push(format!(
                    "`{}` {job}: not prefilled on the other node",
                    one.name
                ));
            }
        }
    }
    for (one, other) in graded.iter().zip(compared.unwrap_or_default()) {
        for (record, again) in one.jobs.iter().zip(&other.jobs) {
            if identical(record, again) != Some(true) {
                found.push(format!(
                    "`{}` {}: the tokens differ between the two runs",
                    one.name,
                    record.job.as_str()
                ));
            }
        }
    }
    found
}

fn faults_of(one: &Graded) -> Vec<String> {
    if one.status == Status::NotAttempted {
        return Vec::new();
    }
    if one.jobs.is_empty() {
        let reasons: Vec<&str> = one.reasons.iter().map(|r| r.text.as_str()).collect();
        return vec![format!("`{}`: {}", one.name, reasons.join(", "))];
    }
    let fault = |record: &JobRecord| {
        let name = format!("`{}` {}", one.name, record.job.as_str());
        let error = record.error.as_ref().map(|e| e.text.as_str());
        if record.answer.is_none() || (record.job == Job::CodeAnalysis && error.is_some()) {
            return Some(format!("{name}: {}", error.unwrap_or("no answer")));
        }
        let missing = record.tandem.is_none();
        missing.then(|| format!("{name}: the coordinator told no phases"))
    };
    one.jobs.iter().filter_map(fault).collect()
}

/// What happened on the way, such as a fallback, with the submission's name.
pub fn notes(graded: &[Graded]) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for one in graded {
        for info in one.jobs.iter().filter_map(|j| j.tandem.as_ref()) {
            found.extend(info.events.iter().map(|e| (one.name.as_str(), e.as_str())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use tandem_api::{FinishReason, TandemInfo};
    use tandem_grading::{Finding, FindingKind};

    use super::*;

    fn record(job: Job, tokens: &[u32]) -> JobRecord {
        JobRecord {
            job,
            model: "m".into(),
            finish_reason: Some(FinishReason::Stop),
            question: String::new(),
            started_ms: 0,
            first_ms: None,
            wall_ms: 1.0,
            attempts: 1,
            usage: None,
            tandem: Some(TandemInfo {
                reproducible: false,
                mode: "remote".into(),
                tokens: Some(tokens.to_vec()),
                ..TandemInfo::default()
            }),
            error: None,
            answer: Some("x".into()),
            without_comments: false,
        }
    }

    fn graded(jobs: Vec<JobRecord>) -> Graded {
        Graded {
            name: "s".into(),
            status: Status::Graded,
            reasons: Vec::new(),
            score: Some(1.0),
            max_score: 2.0,
            criteria: Vec::new(),
            feedback: None,
            flags: Vec::new(),
            notes: Vec::new(),
            jobs,
        }
    }

    #[test]
    fn a_good_run_has_no_faults_and_is_identical() {
        let run = [graded(vec![record(Job::CodeAnalysis, &[1, 2])])];
        assert_eq!(faults(&run, Some(&run)), Vec::<String>::new());
        let summary = Summary::new(&run, Some(&run), 3_600.0);
        assert_eq!(summary.totals.identical, Some(true));
        assert!((summary.totals.submissions_per_hour - 1000.0).abs() < 1e-6);
        assert_eq!(Summary::new(&run, None, 1.0).totals.identical, None);
    }

    #[test]
    fn every_gap_is_a_fault() {
        let good = record(Job::CodeAnalysis, &[1]);
        let with = |change: fn(&mut JobRecord)| {
            let mut record = good.clone();
            change(&mut record);
            record
        };
        for (record, expected) in [
            (with(|r| r.answer = None), "no answer"),
            (
                with(|r| r.error = Some(Finding::new(FindingKind::Cut, "cut"))),
                "cut",
            ),
            (with(|r| r.tandem = None), "no phases"),
            (
                with(|r| r.tandem.get_or_insert_default().mode = "local".into()),
                "not prefilled on the other node",
            ),
        ] {
            let found = faults(&[graded(vec![record])], None).join("; ");
            assert!(found.contains(expected), "{found}");
        }
        let other = [graded(vec![record(Job::CodeAnalysis, &[2])])];
        let found = faults(&[graded(vec![good])], Some(&other));
        assert!(found.len() == 1 && found[0].contains("differ"), "{found:?}");
    }

    #[test]
    fn a_job_without_a_timeline_has_null_and_not_zero() {
        let mut without = record(Job::Feedback, &[1]);
        without.tandem = None;
        let run = [graded(vec![without])];
        let json = serde_json::to_value(Summary::new(&run, Some(&run), 1.0)).unwrap();
        assert!(json["submissions"][0]["jobs"][0]["phases_ms"].is_null());
        assert_eq!(json["totals"]["identical"], false);
    }
}
