//! The report of one submission, for the teacher.

use crate::graded::{CriterionResult, Evidence, Graded};
use crate::rubric::Rubric;
use std::fmt::Write;

const LABEL: &str = "> AI-suggested. A person must check and approve it before it counts.";

/// What to look at, and what else was found.
fn findings(out: &mut String, graded: &Graded) {
    for reason in &graded.reasons {
        let _ = writeln!(out, "- Look at: {}", quiet(&reason.text));
    }
    let flags = graded.flags.iter().filter(|f| !graded.reasons.contains(f));
    let flags = flags.map(|flag| &flag.text);
    for flag in flags.chain(&graded.notes) {
        let _ = writeln!(out, "- Found in the submission: {}", quiet(flag));
    }
}

/// The Markdown report. Writing into a `String` cannot fail, hence the ignored results.
pub(crate) fn report(rubric: &Rubric, graded: &Graded) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# {}: {}\n\n{LABEL}\n",
        quiet(&rubric.title),
        quiet(&graded.name)
    );
    let score = graded.score.map_or("none".to_owned(), |s| s.to_string());
    let _ = writeln!(
        out,
        "- Status: **{}**\n- Score: **{score}** of {}",
        graded.status.as_str(),
        graded.max_score
    );
    findings(&mut out, graded);
    if !graded.criteria.is_empty() {
        out.push_str("\n## Criteria\n");
        graded.criteria.iter().for_each(|c| criterion(&mut out, c));
    }
    if let Some(feedback) = &graded.feedback {
        out.push_str("\n## Feedback to the student\n\n");
        // As a quotation, so that it cannot pass for a part of this report.
        for line in quiet(feedback).lines() {
            let _ = writeln!(out, "> {line}");
        }
    }
    if !graded.jobs.is_empty() {
        out.push_str("\n## How it was made\n\n");
        for job in &graded.jobs {
            let outcome = job.error.as_ref().map_or("done", |e| e.text.as_str());
            let _ = write!(
                out,
                "- {}: {}, {:.0} ms, {}",
                job.job.as_str(),
                quiet(&job.model),
                job.wall_ms,
                quiet(outcome)
            );
            let server = job
                .tandem
                .as_ref()
                .and_then(|info| Some((info, info.server.as_ref()?)));
            if let Some((info, server)) = server {
                let _ = write!(
                    out,
                    " (by server {}, which calls the model {}{})",
                    quiet(&info.decode_node),
                    quiet(&server.model),
                    match (server.verified, server.reported.as_str()) {
                        (true, reported) => format!(" and tells of it: {}", quiet(reported)),
                        (false, _) => "; that it is this model is unverified".to_owned(),
                    }
                );
            } else if let Some(info) = &job.tandem {
                let (mode, from, to) = (
                    quiet(&info.mode),
                    quiet(&info.prefill_node),
                    quiet(&info.decode_node),
                );
                let _ = write!(out, " ({mode}, prefill on {from}, decode on {to})");
            }
            out.push('\n');
        }
    }
    out
}

fn criterion(out: &mut String, c: &CriterionResult) {
    let lost = if c.points < c.max_points {
        " — points lost"
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "\n### {}: {} of {}{lost}\n",
        quiet(&c.title),
        c.points,
        c.max_points
    );
    if let Some(level) = &c.level {
        let _ = writeln!(out, "Level: {}\n", quiet(level));
    }
    let _ = writeln!(out, "{}", quiet(&c.rationale));
    c.evidence.iter().for_each(|e| evidence(out, e));
}

fn evidence(out: &mut String, e: &Evidence) {
    let lines = if e.line_start == e.line_end {
        format!("line {}", e.line_start)
    } else {
        format!("lines {} to {}", e.line_start, e.line_end)
    };
    let fence = fence_for(&e.quote);
    let _ = writeln!(
        out,
        "\n{}, {lines}:\n\n{fence}\n{}\n{fence}",
        quiet(&e.file),
        e.quote
    );
}

/// A fence longer than any run of backticks in the text.
fn fence_for(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat(longest.max(2) + 1)
}

/// Text of students and models without HTML, and without images, which would tell a foreign server
/// that the report was opened. Code stays as it is.
pub(crate) fn quiet(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fenced = false;
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            out.push_str(line);
        } else if fenced {
            out.push_str(line);
        } else {
            quiet_line(line, &mut out);
        }
    }
    out
}

fn quiet_line(line: &str, out: &mut String) {
    // An odd number of backticks means that some code span is not closed on this line: no code.
    let spans = line.matches('`').count().is_multiple_of(2);
    let mut code = false;
    for (i, c) in line.char_indices() {
        match c {
            '`' => {
                code = spans && !code;
                out.push(c);
            }
            '<' if !code => out.push_str("&lt;"),
            '[' if !code && line[..i].ends_with('!') => out.push_str("\\["),
            _ => out.push(c),
        }
    }
}
