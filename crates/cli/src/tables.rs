//! Tables for the terminal.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use tandem_grading::{Graded, Job, JobRecord};
use tandem_openai::{PhasesMs, TandemInfo};

/// What an unknown value is shown as.
const NOTHING: &str = "–";

/// How one request was served, a line per figure.
pub fn timings(info: &TandemInfo) -> Table {
    let p = &info.phases_ms;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let tokens = format!("{} + {} tokens", info.prompt_tokens, info.generated_tokens);
    let served = format!("{}, {}", route(info), info.mode);
    for (name, value) in [
        ("prefill → decode", served),
        ("prompt + answer", tokens),
        ("queue", ms(p.queue)),
        ("tokenize", ms(p.tokenize)),
        ("prefill", ms(p.prefill)),
        ("transfer", ms(p.transfer)),
        ("exposed transfer", ms(p.exposed_transfer)),
        ("apply", ms(p.apply)),
        ("first token after", ms(p.first_token)),
        ("decode", ms(p.decode)),
        ("handoff", format!("{} MB", megabytes(info.handoff_bytes))),
    ] {
        table.add_row(vec![Cell::new(name), right(value)]);
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

/// The criteria that lost points; without criteria, why there are none.
fn remark(one: &Graded) -> String {
    if one.score.is_none() {
        return one.reasons.first().cloned().unwrap_or_default();
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

fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    table
}

fn route(info: &TandemInfo) -> String {
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
