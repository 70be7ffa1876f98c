//! Tables for the terminal.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use tandem_api::{PhasesMs, TandemInfo};
use tandem_coordinator::NodeList;
use tandem_grading::export::Change;
use tandem_grading::{
    Forecast, Graded, Job, JobRecord, PromptSize, Rubric, Status, Submission, TestResults,
};

/// Characters of a cell of feedback.
const CELL_CHARS: usize = 40;
/// Most files that are named one by one.
const MAX_FILES: usize = 10;

/// What came of results of tests, a line for each thing to know.
pub fn test_results(found: &TestResults, submissions: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "results of tests for {} of {submissions} submissions",
        found.submissions
    )];
    let unknown = found.unknown.iter().map(|file| {
        format!("results of tests: {file} is of no submission; name it, or its folder, after one")
    });
    let unreadable = found.unreadable.iter();
    lines.extend(unknown.take(MAX_FILES));
    lines.extend(
        unreadable
            .take(MAX_FILES)
            .map(|why| format!("results of tests: {why}")),
    );
    let left = found.unknown.len().saturating_sub(MAX_FILES)
        + found.unreadable.len().saturating_sub(MAX_FILES);
    if left > 0 {
        lines.push(format!("results of tests: {left} more files are not used"));
    }
    lines
}

/// Cells that an export changes, a line for each.
pub fn changes(changes: &[Change]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(vec!["student", "column", "before", "after"]);
    let short = |cell: &str| match cell.chars().count() > CELL_CHARS {
        true => format!("{} …", cell.chars().take(CELL_CHARS).collect::<String>()),
        false => cell.to_owned(),
    };
    for change in changes {
        let before = match change.before.is_empty() {
            true => NOTHING.to_owned(),
            false => short(&change.before),
        };
        table.add_row(vec![
            Cell::new(&change.student),
            Cell::new(&change.column),
            right(before),
            right(short(&change.after)),
        ]);
    }
    table
}

/// Columns of a table that is not shown on a terminal.
const WIDTH: u16 = 120;
/// Fewest columns of a terminal that are used as they are.
const NARROWEST: u16 = 40;

/// Characters of the reason why there is no score.
const REMARK_CHARS: usize = 60;

/// What an unknown value is shown as.
const NOTHING: &str = "–";

/// How one request was served, a line per figure.
pub fn timings(info: &TandemInfo) -> Table {
    let p = &info.phases_ms;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let tokens = format!("{} + {} tokens", info.prompt_tokens, info.generated_tokens);
    let served = match &info.server {
        Some(server) => format!("{}: {}", route(info), server.model),
        None => format!("{}, {}", route(info), info.mode),
    };
    let has_nodes = info.server.is_none();
    // Where no KV passed there is nothing to tell of its way.
    let passed = info.mode == "remote" || info.handoff_bytes > 0;
    let who = if has_nodes {
        "prefill → decode"
    } else {
        "server"
    };
    for (name, value, is_told) in [
        (who, served, true),
        ("prompt + answer", tokens, true),
        ("queue", ms(p.queue), true),
        ("tokenize", ms(p.tokenize), has_nodes),
        ("prefill", ms(p.prefill), true),
        ("transfer", ms(p.transfer), passed),
        ("exposed transfer", ms(p.exposed_transfer), passed),
        ("apply", ms(p.apply), passed),
        ("first token after", ms(p.first_token), true),
        ("decode", ms(p.decode), true),
        (
            "handoff",
            format!("{} MB", megabytes(info.handoff_bytes)),
            passed,
        ),
    ] {
        if !is_told {
            continue;
        }
        table.add_row(vec![Cell::new(name), right(value)]);
    }
    if let Some(alone) = &info.alone {
        let name = format!("{} alone, by its profile", alone.machine);
        table.add_row(vec![Cell::new(name), right(ms(alone.predicted_ms))]);
        let times = format!("{:.2} times", alone.speed_up);
        table.add_row(vec![Cell::new("as fast as that"), right(times)]);
    }
    table
}

/// One line per submission: what it got, and where points were lost.
pub fn grades(graded: &[Graded]) -> Table {
    let mut table = new(&["submission", "status", "score", "points lost on"]);
    for one in graded {
        table.add_row(vec![
            Cell::new(&one.name),
            Cell::new(one.status.as_str()),
            score(one),
            Cell::new(remark(one)),
        ]);
    }
    table
}

/// One line per submission: how large its prompts are and whether they fit; and what holds for all.
pub fn forecasts(submissions: &[Submission], forecasts: &[Forecast]) -> (Table, String) {
    let mut table = new(&[
        "submission",
        "files",
        "analysis",
        "feedback",
        "what will happen",
    ]);
    for (submission, forecast) in submissions.iter().zip(forecasts) {
        let (analysis, feedback) = match forecast {
            Forecast::Asked { analysis, feedback } => (tokens(analysis), tokens(feedback)),
            _ => (NOTHING.to_owned(), NOTHING.to_owned()),
        };
        table.add_row(vec![
            Cell::new(&submission.name),
            right(submission.files.iter().filter(|f| !f.is_tests).count()),
            right(analysis),
            right(feedback),
            Cell::new(fate(submission, forecast)),
        ]);
    }
    (table, sentence(forecasts))
}

/// Most lines about files that were not read as they are.
const MAX_LINES: usize = 40;

/// Most files of a submission that is too large that are named.
const MAX_HEAVY: usize = 5;

/// Of those that are too large, which files are, a line each.
pub fn heavy(rubric: &Rubric, submissions: &[Submission], forecasts: &[Forecast]) -> Vec<String> {
    let is_large = |forecast: &Forecast| match forecast {
        Forecast::Asked { analysis, feedback } => analysis.excess() + feedback.excess() > 0,
        _ => false,
    };
    let pairs = submissions.iter().zip(forecasts);
    let large = pairs.filter(|(one, forecast)| one.files.len() > 1 && is_large(forecast));
    let line = |(one, _): (&Submission, _)| {
        let weights = one.weights(rubric);
        let all: usize = weights.iter().map(|(_, bytes)| bytes).sum();
        let shares = weights
            .iter()
            .take(MAX_HEAVY)
            .map(|(name, bytes)| format!("{name} {} %", bytes * 100 / all.max(1)));
        let shares = shares.collect::<Vec<_>>().join(", ");
        format!(
            "{}: too large; of {} files {shares}: --leave-out PATTERN leaves some out",
            one.name,
            weights.len()
        )
    };
    let mut lines: Vec<String> = large.map(line).collect();
    if lines.len() > MAX_LINES {
        let more = lines.split_off(MAX_LINES).len();
        lines.push(format!("and {more} more that are too large"));
    }
    lines
}

/// What was not read of submissions, and what is to be looked at, a line each.
pub fn left_out(submissions: &[Submission]) -> Vec<String> {
    let of_one = |one: &Submission| {
        let flags = one.flags.iter().map(|flag| flag.text.clone());
        let texts = flags.chain(one.notes.iter().cloned());
        let name = one.name.clone();
        texts
            .map(move |text| format!("{name}: {text}"))
            .collect::<Vec<_>>()
    };
    let mut lines: Vec<String> = submissions.iter().flat_map(of_one).collect();
    if lines.len() > MAX_LINES {
        let more = lines.split_off(MAX_LINES).len();
        lines.push(format!(
            "and {more} more; each is in the report of its submission"
        ));
    }
    lines
}

/// Tokens of a prompt; those that are guessed are marked.
fn tokens(size: &PromptSize) -> String {
    let mark = if size.estimated { "about " } else { "" };
    format!("{mark}{}", size.prompt)
}

fn fate(submission: &Submission, forecast: &Forecast) -> String {
    let (analysis, feedback) = match forecast {
        Forecast::Problem(problem) => return format!("unreadable: {problem}"),
        Forecast::NotAttempted(how) => return format!("not attempted: {how}"),
        Forecast::Asked { analysis, feedback } => (analysis, feedback),
    };
    let flags = match submission.flags.len() {
        0 => String::new(),
        n => format!("; {n} to look at"),
    };
    let known = analysis.context.and(feedback.context);
    let fits = match (known, analysis.excess(), feedback.excess()) {
        (_, excess @ 1.., _) => format!("too large by {excess} tokens"),
        (_, 0, excess @ 1..) => format!("no feedback: too large by {excess} tokens"),
        (None, ..) => "the server does not say what fits".to_owned(),
        (Some(_), 0, 0) => "fits".to_owned(),
    };
    fits + &flags
}

/// True if no score can be made.
pub fn will_fail(forecast: &Forecast) -> bool {
    match forecast {
        Forecast::Problem(_) => true,
        Forecast::NotAttempted(_) => false,
        Forecast::Asked { analysis, .. } => analysis.excess() > 0,
    }
}

/// True if there will be something to look at first.
pub fn needs_a_person(submission: &Submission, forecast: &Forecast) -> bool {
    match forecast {
        Forecast::Asked { feedback, .. } => feedback.excess() > 0 || !submission.flags.is_empty(),
        _ => false,
    }
}

/// How many fit, and the context that all would.
fn sentence(forecasts: &[Forecast]) -> String {
    let sizes = forecasts.iter().filter_map(|forecast| match forecast {
        Forecast::Asked { analysis, feedback } => Some([analysis, feedback]),
        _ => None,
    });
    let sizes: Vec<&PromptSize> = sizes.flatten().collect();
    let count = |of: fn(&Forecast) -> bool| forecasts.iter().filter(|f| of(f)).count();
    let problems = count(|f| matches!(f, Forecast::Problem(_)));
    let mut parts = vec![format!(
        "{} submissions: {} go to the models, {} not attempted, {problems} unreadable, {} too large.",
        forecasts.len(),
        sizes.len() / 2 + problems - count(will_fail),
        count(|f| matches!(f, Forecast::NotAttempted(_))),
        count(will_fail) - problems,
    )];
    if let Some(needed) = sizes.iter().map(|size| size.needed()).max() {
        let about = if sizes.iter().any(|size| size.estimated) {
            "about "
        } else {
            ""
        };
        parts.push(format!(
            "The largest prompt with its longest answer needs a context of {about}{needed} tokens (--context of the nodes)."
        ));
    }
    parts.join("\n")
}

/// Submissions that are named with a cause that they share.
const NAMED: usize = 3;

/// How busy each node was over the last minute; nothing without nodes.
pub fn busy(nodes: &NodeList) -> Option<Table> {
    let mut table = new(&["node", "model", "busy over the last minute"]);
    for node in &nodes.data {
        for model in &node.models {
            let percent = right(format!("{} %", model.busy_percent));
            table.add_row(vec![Cell::new(&node.name), Cell::new(&model.name), percent]);
        }
    }
    (table.row_count() > 0).then_some(table)
}

/// Why submissions have no score, or lack an answer: a line per cause, whatever the numbers in it.
pub fn causes(graded: &[Graded]) -> Vec<String> {
    let mut causes: Vec<(String, String, Vec<&str>)> = Vec::new();
    for one in graded {
        let lacks = one.jobs.iter().filter_map(|job| {
            let error = job.error.as_ref()?;
            Some(("lack an answer", format!("{}: {error}", job.job.as_str())))
        });
        let reasons: Vec<(&str, String)> = match one.status {
            // What else there is to look at is no cause.
            Status::Failed => vec![("failed", first_reason(one).to_owned())],
            _ => lacks.collect(),
        };
        for (what, reason) in reasons {
            let kind = format!("{what} {}", without_numbers(&reason));
            match causes.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., names)) => names.push(&one.name),
                None => causes.push((kind, format!("{what}: {reason}"), vec![&one.name])),
            }
        }
    }
    let line = |(_, reason, names): (String, String, Vec<&str>)| {
        let shown: Vec<String> = names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!(
            "{} of {}: {}{more} {reason}",
            names.len(),
            graded.len(),
            shown.join(", ")
        )
    };
    causes.into_iter().map(line).collect()
}

/// What went otherwise on the way to answers: a line per cause, whatever the numbers in it.
pub fn notes(graded: &[Graded]) -> Vec<String> {
    let mut notes: Vec<(String, String, usize)> = Vec::new();
    let jobs = graded.iter().flat_map(|one| &one.jobs);
    for event in jobs.flat_map(|job| job.tandem.iter().flat_map(|info| &info.events)) {
        let kind = without_numbers(event);
        match notes.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., count)) => *count += 1,
            None => notes.push((kind, event.clone(), 1)),
        }
    }
    let line = |(_, event, count)| match count {
        1 => format!("note: {event}"),
        n => format!("note, {n} times: {event}"),
    };
    notes.into_iter().map(line).collect()
}

/// A reason but for its numbers; the status of an answer stays, as another one is another cause.
fn without_numbers(reason: &str) -> String {
    let words = reason.split(' ');
    let mut last = "";
    let mut out = Vec::new();
    for word in words {
        let is_status = last == "status";
        out.push(match is_status {
            true => word.to_owned(),
            false => word.chars().filter(|c| !c.is_ascii_digit()).collect(),
        });
        last = word;
    }
    out.join(" ")
}

fn first_reason(one: &Graded) -> &str {
    one.reasons
        .first()
        .map_or("", |reason| reason.text.as_str())
}

/// The beginning of the first reason; the whole is told once, with its cause.
pub fn short_reason(one: &Graded) -> String {
    let reason = first_reason(one);
    let short: String = reason.chars().take(REMARK_CHARS).collect();
    let cut = if short.len() < reason.len() {
        "…"
    } else {
        ""
    };
    short + cut
}

/// The criteria that lost points; without criteria, why there are none.
fn remark(one: &Graded) -> String {
    if one.score.is_none() {
        return short_reason(one);
    }
    let lost = one.criteria.iter().filter(|c| c.points != c.max_points);
    let lost: Vec<String> = lost
        .map(|c| format!("{} {}/{}", c.id, c.points, c.max_points))
        .collect();
    match lost.is_empty() {
        true => "nothing".to_owned(),
        false => lost.join(", "),
    }
}

/// One line per job and run: where it ran and the mean of each figure, side by side.
pub fn jobs(graded: &[Graded], compared: Option<&[Graded]>) -> Table {
    let mut header = vec![
        "job (means)",
        "mode",
        "answers",
        "prompt",
        "prefill ms",
        "transfer ms",
        "exposed ms",
        "first token ms",
        "decode ms",
        "KV MB",
    ];
    if compared.is_some() {
        header.push("same tokens");
    }
    let mut table = new(&header);
    for job in [Job::CodeAnalysis, Job::Feedback] {
        let first = records(graded, job);
        let second = compared.map(|c| records(c, job));
        for (i, run) in [Some(&first), second.as_ref()]
            .into_iter()
            .flatten()
            .enumerate()
        {
            let mut row = means(job, run);
            if let (0, Some(second)) = (i, &second) {
                let same = first
                    .iter()
                    .zip(second)
                    .filter(|(a, b)| identical(a, b) == Some(true));
                row.push(right(format!("{} of {}", same.count(), first.len())));
            }
            table.add_row(row);
        }
    }
    table
}

fn records(graded: &[Graded], job: Job) -> Vec<&JobRecord> {
    let all = graded.iter().flat_map(|g| &g.jobs);
    all.filter(|r| r.job == job).collect()
}

fn means(job: Job, run: &[&JobRecord]) -> Vec<Cell> {
    let infos: Vec<&TandemInfo> = run.iter().filter_map(|r| r.tandem.as_ref()).collect();
    let n = f64::from(u32::try_from(infos.len()).unwrap_or(u32::MAX)).max(1.0);
    let mean = |figure: fn(&TandemInfo) -> f64| infos.iter().map(|i| figure(i)).sum::<f64>() / n;
    let phase = |figure: fn(&PhasesMs) -> f64| {
        right(format!(
            "{:.1}",
            infos.iter().map(|i| figure(&i.phases_ms)).sum::<f64>() / n
        ))
    };
    let bytes = infos.iter().map(|i| i.handoff_bytes).sum::<u64>();
    let mut modes: Vec<&str> = infos.iter().map(|i| i.mode.as_str()).collect();
    modes.sort_unstable();
    modes.dedup();
    vec![
        Cell::new(job.as_str()),
        Cell::new(modes.join(", ")),
        right(infos.len()),
        right(format!("{:.0}", mean(|i| f64::from(i.prompt_tokens)))),
        phase(|p| p.prefill),
        phase(|p| p.transfer),
        phase(|p| p.exposed_transfer),
        phase(|p| p.first_token),
        phase(|p| p.decode),
        right(megabytes(bytes / (infos.len() as u64).max(1))),
    ]
}

/// Whether two runs of a job generated the same tokens; `None` if one of them has no tokens to show.
pub fn identical(a: &JobRecord, b: &JobRecord) -> Option<bool> {
    let tokens = |record: &JobRecord| record.tandem.as_ref()?.tokens.clone();
    Some(tokens(a)? == tokens(b)?)
}

/// A table of this program's look.
pub fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    // On a terminal its own width counts; some do not know theirs, and say 0.
    if table.width().is_none_or(|width| width < NARROWEST) {
        table.set_width(WIDTH);
    }
    table
}

fn route(info: &TandemInfo) -> String {
    if let Some(server) = &info.server {
        return format!("{} ({})", info.decode_node, server.dialect);
    }
    format!("{} → {}", info.prefill_node, info.decode_node)
}

fn score(one: &Graded) -> Cell {
    let text = match one.score {
        Some(score) => format!("{score}/{}", one.max_score),
        None => NOTHING.to_owned(),
    };
    right(text)
}

fn ms(value: f64) -> String {
    format!("{value:.1} ms")
}

fn megabytes(bytes: u64) -> String {
    // Exact to the shown digits for anything below 2^53 bytes.
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let value = bytes as f64 / 1e6;
    format!("{value:.2}")
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}
