//! The grading against a scripted server, an independent schema validator, and its own example course.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod agreements;
mod archives;
mod course;
mod drafts;
mod exports;
mod fake;
mod feedback;
mod origins;
mod prompts;
mod pseudonyms;
mod reports;
mod reviews;
mod rubrics;
mod rules;
mod runs;
mod sources;
mod test_results;
mod verdicts;

/// What findings say, in one line.
fn texts(findings: &[tandem_grading::Finding]) -> String {
    let texts: Vec<&str> = findings.iter().map(|f| f.text.as_str()).collect();
    texts.join("; ")
}

/// What a finding says, or "none".
fn text(finding: Option<&tandem_grading::Finding>) -> &str {
    finding.map_or("none", |f| f.text.as_str())
}
